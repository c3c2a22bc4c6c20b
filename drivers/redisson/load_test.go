package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/internal/testenv"
)

// loadTTL is the TTL of the clients of a load, shorter than a failover takes.
const loadTTL = 3 * time.Second

// load is a set of clients that acquire locks one after another, regardless of
// faults of the servers.
type load struct {
	history *history.History
	names   []string
	hold    time.Duration            // at most; 0: a lock is released immediately
	grants  map[string]*atomic.Int64 // by name
	ended   atomic.Bool
	wg      sync.WaitGroup
}

// startLoad starts three clients of a URL, each with two callers for each name.
// An attempt that is not granted within hangGuard, or fails, fails the test.
func startLoad(t *testing.T, url string, names ...string) *load {
	t.Helper()
	l := &load{history: history.New(), names: names, grants: countsOf(names), hold: 20 * time.Millisecond}
	for i := range 3 {
		c := clientOf(t, url+"&ttl="+loadTTL.String())
		for _, name := range names {
			for range 2 {
				l.wg.Go(func() {
					for !l.ended.Load() {
						l.use(t, c, fmt.Sprint("client", i), name)
					}
				})
			}
		}
	}
	t.Cleanup(l.end) // before the clients are closed
	return l
}

func countsOf(names []string) map[string]*atomic.Int64 {
	counts := make(map[string]*atomic.Int64)
	for _, name := range names {
		counts[name] = new(atomic.Int64)
	}
	return counts
}

func (l *load) use(t *testing.T, c *dsync.Client, label, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	op := l.history.Begin(history.Attempt{Client: label, Name: name})
	lease, err := c.Lock(ctx, name)
	if op.Returned(lease, err); err != nil {
		t.Errorf("Lock(%q): %v", name, err)
		return
	}
	l.grants[name].Add(1)
	if l.hold > 0 {
		time.Sleep(rand.N(l.hold))
	}
	op.Released(lease.Unlock(op.Releasing(context.Background())))
}

// end ends the load when every caller has been granted its locks.
func (l *load) end() {
	l.ended.Store(true)
	l.wg.Wait()
}

// goesOn waits until every name has been granted several times from now on.
func (l *load) goesOn(t *testing.T) {
	t.Helper()
	for _, name := range l.names {
		before := l.grants[name].Load()
		testenv.Eventually(t, func() bool { return l.grants[name].Load() >= before+5 }, name+" is granted again and again")
	}
}

// disturb waits for the load to make progress, injects a fault, and waits for
// progress again.
func (l *load) disturb(t *testing.T, fault string, f func()) {
	t.Helper()
	l.goesOn(t)
	off := l.history.Fault(fault, "server")
	f()
	off()
	l.goesOn(t)
}

// judge ends the load and judges it. detect is how long after a fault two
// callers may both believe that they hold a lock, because a failover forgot the
// hold of the first. It is 0 if nothing may be forgotten.
func (l *load) judge(t *testing.T, detect time.Duration) {
	t.Helper()
	l.end()
	if err := l.history.Close(); err != nil {
		t.Fatal(err)
	}
	events := l.history.Events()
	v := history.Judge(events, history.Bounds{Linger: loadTTL + late, MinClients: 3, MinGrants: 10})
	all := len(v.Violations)
	if detect > 0 {
		v.Violations = slices.DeleteFunc(v.Violations, func(v history.Violation) bool {
			return (v.Rule == history.RuleOverlap || v.Rule == history.RuleLoss) && soonAfter(events, v, detect)
		})
	}
	t.Logf("%v; %d of the violations are soon after a failover", v, all-len(v.Violations))
	if err := v.Err(); err != nil {
		t.Error(err)
	}
}

// soonAfter reports whether a violation began after a fault and ended within
// detect.
func soonAfter(events []history.Event, v history.Violation, detect time.Duration) bool {
	var on history.Event
	for _, e := range events {
		switch e.Kind {
		case history.KindFaultOn:
			on = e
		case history.KindFaultOff:
			if !slices.ContainsFunc(v.Events, func(x history.Event) bool { return x.Time < on.Time || x.Time > e.Time+detect }) {
				return true
			}
		}
	}
	return false
}

// detectLoss is how long the clients of a load may believe that they hold a
// lock that a failover lost. It lasts until the next renewal, plus some time
// for a request that hangs.
const detectLoss = loadTTL/3 + loadTTL/6 + time.Second

// lostByRenewal waits until a lease is lost. It wants the server to report the
// loss before the lease expires.
func lostByRenewal(t *testing.T, lease *dsync.Lease) {
	t.Helper()
	select {
	case <-lease.Done():
	case <-time.After(hangGuard):
		t.Fatal("the holder is not notified of its loss")
	}
	if err := lease.Err(); !errors.Is(err, dsync.ErrLost) || !strings.Contains(err.Error(), "removed") {
		t.Errorf("Err: got %v, want an ErrLost that reports the removal of the hold", err)
	}
	if now, end := time.Now(), lease.Deadline(); now.After(end) {
		t.Errorf("the holder was notified %v after the end of its lease", now.Sub(end))
	}
}
