package etcd_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// drain has the waiters be granted the lock one after the other, in their order and with rising tokens.
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

// TestLongQueueNeedsNoLooks counts what the server is asked by hundreds of waiters of one client: a request each to put the key, and one to
// delete it, neither of which reads the queue, for that costs the more the longer it is. A few do before the queue is known, and now and
// then one, to see that it is right. A watch that says nothing for seconds is made anew, and all look then, as is right on a machine that
// stands still: one run of several has to do without.
func TestLongQueueNeedsNoLooks(t *testing.T) {
	const n, looks = 300, 60
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s", s.Addr)
	release(t, acquire(t, d, request("other")))
	conditions := s.Requests()["ranges"]
	release(t, acquire(t, d, request("other")))
	conditions = s.Requests()["ranges"] - conditions - 1 // what a transaction reads beside the queue
	var requests, ranges int64
	for range 10 {
		l := acquire(t, d, request("a"))
		before := s.Requests()
		drain(t, l, queueUp(t, d, "a", n), nil)
		got := s.Requests()
		for kind := range got {
			got[kind] -= before[kind]
		}
		requests, ranges = got["Txn"]+got["DeleteRange"]+got["Range"], got["ranges"]-conditions*n
		if requests <= 2*n+looks && ranges <= looks {
			return
		}
		t.Logf("%d requests, %d looks at the queue", requests, ranges)
	}
	t.Errorf("requests: got %d, want at most %d; looks at the queue: got %d, want at most %d", requests, 2*n+looks, ranges, looks)
}

// TestCrowdThatComesAtOnce has a thousand callers ask for one name at the same time, of which nobody waits yet.
func TestCrowdThatComesAtOnce(t *testing.T) {
	const n = 1000
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
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

// TestLongQueueThroughFaults has the watch of a long queue break, the name be marked, and waiters leave, while it is drained. Every fourth
// waiter is of another client.
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
					t.Fatalf("waiter %d was canceled, and granted the lock", next)
				}
			}
		}
		return left[i]
	})
}

// TestLongQueueWhoseLeaseEnds has the lease revoked that a long queue hangs on, while another client holds the lock: all queue up anew.
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
			t.Fatal("granted while another holds the lock")
		}
	}
	release(t, l)
	drivertest.Crowd(len(waiters), 1, func(i int) { release(t, waiters[i].Granted(t)) }) // in any order
}

// TestCrowdThatIsCutOff has more callers ask for a name than may do so at a time, of a server that does not answer: none waits for longer
// than its context.
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
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "what was put is gone")
	release(t, acquire(t, d, request("a")))
}
