package zk_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

const stormTTL = time.Second

// storm has clients lock a few names in turn while fault happens, and checks
// their results.
func storm(t *testing.T, servers []*testenv.ZooKeeperServer, name string, fault func()) {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	url := "zk://" + strings.Join(addrs, ",") + "?ttl=" + stormTTL.String()
	h := history.New()
	var late time.Duration
	var ended atomic.Bool
	var grants atomic.Int64
	var workers sync.WaitGroup
	for i := range 6 {
		d, o, err := driver.Open(guard(t), url)
		if err != nil {
			t.Fatal(err)
		}
		c, err := dsync.New(history.Tap(d), &dsync.Options{TTL: o.TTL})
		if err != nil {
			t.Fatal(err)
		}
		late = c.Info().Late
		label := string(rune('A' + i))
		workers.Go(func() {
			for !ended.Load() {
				if use(h, c, label, name+"/"+string(rune('1'+rand.IntN(2)))) {
					grants.Add(1)
				}
			}
			if err := c.Close(guard(t)); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	progress := func(what string) {
		start := grants.Load()
		testenv.Eventually(t, func() bool { return grants.Load() > start+100 }, what)
	}
	progress("locks are granted before the fault")
	off := h.Fault(name, "server")
	fault()
	off()
	progress("locks are granted after the fault")
	ended.Store(true)
	workers.Wait()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	verdict := history.Judge(h.Events(), history.Bounds{
		Fenced: true, FIFO: true, Detect: 2 * stormTTL, Linger: stormTTL + late, Wake: hangGuard / 2, Stuck: hangGuard, Recover: hangGuard / 2, MaxUnknown: 0.5,
	})
	t.Log(verdict)
	if err := verdict.Err(); err != nil {
		t.Error(err)
	}
}

// use locks a name once, and reports whether it was granted.
func use(h *history.History, c *dsync.Client, label, name string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	op := h.Begin(history.Attempt{Client: label, Name: name})
	l, err := c.Lock(ctx, name)
	if op.Returned(l, err); err != nil {
		return false
	}
	work := time.NewTimer(rand.N(10 * time.Millisecond))
	defer work.Stop()
	select {
	case <-l.Done():
		op.Lost()
	case <-work.C:
	}
	op.Released(l.Unlock(op.Releasing(ctx)))
	return true
}

// leader returns the leader of an ensemble, and one of the other servers.
func leader(tb testing.TB, servers []*testenv.ZooKeeperServer) (leads, follows *testenv.ZooKeeperServer) {
	tb.Helper()
	for _, s := range servers {
		if s.Leads() {
			leads = s
		} else {
			follows = s
		}
	}
	if leads == nil {
		tb.Fatal("no server leads")
	}
	return leads, follows
}

func TestEnsembleFaults(t *testing.T) {
	servers := testenv.ZooKeeperEnsemble(t, 3)
	freeze := func(s *testenv.ZooKeeperServer) {
		s.Freeze()
		awaitTicks(t, 3*int(stormTTL/(100*time.Millisecond)))
		s.Thaw()
	}
	storm(t, servers, "leader-killed", func() {
		leads, _ := leader(t, servers)
		leads.Restart()
	})
	storm(t, servers, "follower-frozen", func() {
		_, follows := leader(t, servers)
		freeze(follows)
	})
	storm(t, servers, "leader-frozen", func() {
		leads, _ := leader(t, servers)
		freeze(leads)
	})
}
