package etcd_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// drain lets the waiters be granted the lock one after another, in their order
// and with rising tokens.
func drain(t *testing.T, l driver.Lease, waiters []*drivertest.Waiter, before func(i int, l driver.Lease) (skip bool)) {
	t.Helper()
	for i, w := range waiters {
		if before != nil && before(i, l) {
			continue
		}
		last := token(l)
		release(t, l)
		if l = w.Granted(t); token(l) <= last {
			t.Fatalf("token of waiter %d: got %d after %d", i, token(l), last)
		}
	}
	release(t, l)
}

// TestCrowdOfAClientIsOneKey has 2,000 callers of one client wait behind
// another client. The server has only one key for them, and gets as few
// requests for it as for a single caller, even when the watch is silent for so
// long that it is replaced. Then the lock is passed from caller to caller. Each
// pass takes one request, and a turn of other clients takes another.
func TestCrowdOfAClientIsOneKey(t *testing.T) {
	t.Parallel()
	const n, few = 2000, 20
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	observer, other := userClient(t, s.Addr), openURL(t, "etcd://%s", s.Addr)
	c, err := dsync.Open(guard(t), "etcd://"+addr+"?ttl=60s", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(guard(t)) })
	free, err := c.Lock(guard(t), "free") // which begins the session
	if err != nil {
		t.Fatal(err)
	}
	l := acquire(t, other, request("a"))
	last := token(l)
	before := s.Requests()
	requests := func() (sum int64) {
		now := s.Requests()
		for _, kind := range []string{"Txn", "DeleteRange", "Range"} {
			sum += now[kind] - before[kind]
		}
		return sum
	}
	patience, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // of a hang, and not of a busy machine
	defer cancel()
	var callers sync.WaitGroup
	for range n {
		callers.Go(func() {
			l, err := c.Lock(patience, "a")
			if err != nil {
				t.Error(err)
				return
			}
			if l.Token() <= last {
				t.Errorf("token: got %d after %d", l.Token(), last)
			}
			last = l.Token() // guarded by the lock
			if err := l.Unlock(patience); err != nil {
				t.Error(err)
			}
		})
	}
	testenv.Eventually(t, func() bool { return len(keys(t, observer, "a/")) == 2 }, "the client has its key")
	for range 3 { // in each of which the watch is late
		link.Hold(wire.Both)
		<-time.After(2 * time.Second)
		link.Heal()
		<-time.After(4 * time.Second)
	}
	if got := len(keys(t, observer, "a/")); got != 2 {
		t.Errorf("keys of %d waiters and a holder: got %d, want 2", n, got)
	}
	looks := int64(2 * few) // including the requests of this test
	if got := requests(); got > looks {
		t.Errorf("requests while all wait: got %d, want at most %d", got, looks)
	}
	release(t, l)
	callers.Wait()
	if got := requests(); got > 2*n+2*looks {
		t.Errorf("requests of %d holds: got %d, want at most %d", n, got, 2*n+2*looks)
	}
	if err := free.Unlock(guard(t)); err != nil {
		t.Error(err)
	}
}

// TestCrowdThatComesAtOnce has a thousand callers request one name at the same
// time, for which no caller waits yet.
func TestCrowdThatComesAtOnce(t *testing.T) {
	const n = 1000
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s?order=fifo", s.Addr)
	l := acquire(t, d, request("a"))
	var work sync.WaitGroup
	work.Go(func() { drivertest.Crowd(n, 1, func(int) { release(t, acquire(t, d, request("a"))) }) })
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == n+1 }, "all have their keys")
	release(t, l)
	work.Wait()
	if got := keys(t, c, ""); len(got) > 0 {
		t.Errorf("keys: got %q, want none", got)
	}
}

// TestLongQueueThroughFaults drains a long queue while its watch breaks, the
// name is marked, and waiters leave. Every fourth waiter belongs to another
// client.
func TestLongQueueThroughFaults(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, b, request("a"))
	var waiters []*drivertest.Waiter
	for i := range 120 {
		d := a
		if i%4 == 3 {
			d = b
		}
		waiters = append(waiters, wait(t, d, request("a")))
	}
	left := make(map[int]bool)
	drain(t, l, waiters, func(i int, l driver.Lease) bool {
		switch i % 20 {
		case 3:
			link.Cut()
			link.Heal()
		case 8:
			mark(t, b, l, token(l)+1<<30)
		case 12:
			unmark(t, b, l)
		case 16:
			for _, next := range []int{i, i + 2, i + 3} {
				left[next] = true
				waiters[next].Cancel()
				if _, err := waiters[next].End(t); err == nil {
					t.Fatalf("waiter %d was canceled but granted the lock", next)
				}
			}
		}
		return left[i]
	})
}

// TestLongQueueWhoseLeaseEnds revokes the lease to which the keys of a long
// queue are attached, while another client holds the lock. All waiters queue up
// again.
func TestLongQueueWhoseLeaseEnds(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, b, request("a"))
	waiters := queueUp(t, a, "a", 50)
	revoke(t, c, leaseOf(t, c, keys(t, c, "a/")[1]))
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 51 }, "all have new keys")
	for _, w := range waiters {
		if !w.Waits() {
			t.Fatal("granted while another client holds the lock")
		}
	}
	release(t, l)
	drivertest.Crowd(len(waiters), 1, func(i int) { release(t, waiters[i].Granted(t)) }) // in any order
}

// TestCrowdThatIsCutOff has callers request a name from a server that does not
// answer. None waits for longer than its context.
func TestCrowdThatIsCutOff(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	release(t, acquire(t, d, request("a")))
	link.Hold(wire.Both)
	ctx, cancel := context.WithTimeout(guard(t), 300*time.Millisecond)
	defer cancel()
	drivertest.Crowd(50, 1, func(int) {
		if _, err := d.Acquire(ctx, request("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: got %v, want %v", err, context.DeadlineExceeded)
		}
	})
	link.Heal()
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "all keys are gone")
	release(t, acquire(t, d, request("a")))
}
