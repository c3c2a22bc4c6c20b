package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCrowdIsServedTogether counts the server's requests from 64 callers with a
// name each.
func TestCrowdIsServedTogether(t *testing.T) {
	const callers = 64
	rounds := testenv.Briefly(5, 20)
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s", s.Addr)
	testenv.Eventually(t, func() bool {
		before := s.Requests()
		drivertest.Crowd(callers, rounds, func(i int) { release(t, acquire(t, d, request(fmt.Sprint(i)))) })
		after := s.Requests()
		return after["Txn"]-before["Txn"]+after["DeleteRange"]-before["DeleteRange"] < int64(2*callers*rounds/4)
	}, "a request serves at least four callers on average")
}

// TestHistoryOfACrowd checks the results of combined requests of a crowd. Some
// of the names are free, and the connection breaks repeatedly.
func TestHistoryOfACrowd(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(testing.TB, ...string) *testenv.EtcdServer{"current": testenv.Etcd, "packaged": testenv.PackagedEtcd} {
		t.Run(kind, func(t *testing.T) {
			if kind == "packaged" {
				testenv.Long(t)
			}
			t.Parallel()
			crowd(t, start(t))
		})
	}
}

func crowd(t *testing.T, s *testenv.EtcdServer) {
	const clients, callers, names, ttl = 3, 32, 40, 5 * time.Second
	h := history.New()
	var grants [clients]atomic.Int64
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var work sync.WaitGroup
	links := make([]*wire.Wire, clients)
	for i := range clients {
		link, addr := testenv.Wire(t, s.Addr)
		links[i] = link
		c, err := dsync.Open(t.Context(), fmt.Sprintf("etcd://%s?ttl=%v", addr, ttl), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(guard(t)) })
		for range callers {
			work.Go(func() {
				for ctx.Err() == nil {
					if lockOne(ctx, h, c, fmt.Sprint("client", i), fmt.Sprint("name", rand.N(names))) {
						grants[i].Add(1)
					}
				}
			})
		}
	}
	goesOn := func() {
		for i := range grants {
			before := grants[i].Load()
			testenv.Eventually(t, func() bool { return grants[i].Load() >= before+2*callers }, "the crowd is served")
		}
	}
	goesOn()
	for i := range testenv.Briefly(clients, 2*clients) {
		off := h.Fault("cut", fmt.Sprint("client", i%clients))
		links[i%clients].Cut()
		links[i%clients].Heal()
		off()
		goesOn()
	}
	end()
	work.Wait()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	v := history.Judge(h.Events(), history.Bounds{
		Fenced: true, Linger: ttl + 2*time.Second, MinClients: clients, MinGrants: names,
	})
	t.Log(v)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
}

// lockOne locks a name briefly and reports whether it was granted.
func lockOne(ctx context.Context, h *history.History, c *dsync.Client, label, name string) bool {
	op := h.Begin(history.Attempt{Client: label, Name: name})
	l, err := c.Lock(ctx, name)
	if op.Returned(l, err); err != nil {
		return false
	}
	if rand.N(4) == 0 {
		<-time.After(rand.N(2 * time.Millisecond))
	}
	op.Released(l.Unlock(op.Releasing(context.Background())))
	return true
}

// TestCrowdOnALeaseThatEnds revokes the lease to which the requests of a crowd
// attach their keys. Requests that are refused together are sent again one by
// one, and every caller gets an answer.
func TestCrowdOnALeaseThatEnds(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	for range testenv.Briefly(2, 5) {
		kept := acquire(t, d, request("kept"))
		id := leaseOf(t, c, keys(t, c, "kept/")[0])
		var work sync.WaitGroup
		work.Go(func() {
			drivertest.Crowd(64, testenv.Briefly(5, 20), func(i int) {
				l, err := d.Acquire(guard(t), request(fmt.Sprint(i)))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if err := l.Release(guard(t)); err != nil && !errors.Is(err, driver.ErrNotHeld) {
					t.Errorf("Release: %v", err)
				}
			})
		})
		revoke(t, c, id)
		work.Wait()
		wantErr(t, "Release of a lock on the revoked lease", kept.Release(t.Context()), driver.ErrNotHeld)
	}
	if got := keys(t, c, ""); len(got) > 0 {
		t.Errorf("keys: got %q, want none", got)
	}
}

// TestCrowdWithNamesThatAreDenied has one user request several names, not all
// of which are permitted.
func TestCrowdWithNamesThatAreDenied(t *testing.T) {
	s := testenv.Etcd(t)
	password := testenv.Password()
	secure(t, s, password)
	d := openURL(t, "etcd://app:%s@%s", password, s.Addr)
	drivertest.Crowd(64, testenv.Briefly(3, 10), func(i int) {
		name, permitted := fmt.Sprint("locks/", i), i%8 > 0
		if !permitted {
			name = fmt.Sprint("others/", i)
		}
		l, err := d.Acquire(guard(t), request(name))
		if permitted != (err == nil) || err != nil && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: got %v", name, err)
		}
		if err == nil {
			release(t, l)
		}
	})
}

// TestCrowdOnAServerThatTakesFewOps has a server that refuses requests that
// other servers accept.
func TestCrowdOnAServerThatTakesFewOps(t *testing.T) {
	s := testenv.Etcd(t, "--max-txn-ops", "8")
	d := openURL(t, "etcd://%s", s.Addr)
	drivertest.Crowd(64, testenv.Briefly(5, 20), func(i int) { release(t, acquire(t, d, request(fmt.Sprint(i)))) })
}

// TestCrowdWhoLeaves has callers leave at all stages of requests that are
// combined.
func TestCrowdWhoLeaves(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	drivertest.Crowd(64, testenv.Briefly(5, 20), func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(10*time.Millisecond))
		defer cancel()
		l, err := d.Acquire(ctx, request(fmt.Sprint(i)))
		if err != nil {
			return
		}
		release(t, l)
	})
	testenv.Eventually(t, func() bool { return len(keys(t, c, "")) == 0 }, "all keys are gone")
	drivertest.Crowd(64, 1, func(i int) { release(t, acquire(t, d, noWait(fmt.Sprint(i)))) })
}
