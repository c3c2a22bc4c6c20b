package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// queueUp has n callers of d wait behind the holder of name.
func queueUp(t *testing.T, d *etcd.Driver, name string, n int) []*drivertest.Waiter {
	t.Helper()
	waiters := make([]*drivertest.Waiter, n)
	for i := range waiters {
		waiters[i] = wait(t, d, request(name))
	}
	return waiters
}

// TestPassIsOneRequest counts the server's requests when a lock passes from
// caller to caller of one client. A run that takes longer than a client may
// keep a lock among its callers costs more.
func TestPassIsOneRequest(t *testing.T) {
	const n = 5
	s := testenv.Etcd(t)
	for _, test := range []struct {
		query   string
		options []dsync.LockOption
		want    int64
	}{
		{"", nil, n},
		{"", []dsync.LockOption{dsync.Write()}, n},
		{"?fenced=false", nil, 0},
	} {
		c, err := dsync.Open(guard(t), "etcd://"+s.Addr+test.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(guard(t)) })
		row := 0
		testenv.Eventually(t, func() bool {
			row++
			name := fmt.Sprint("row", row)
			l, err := c.Lock(guard(t), name, test.options...)
			if err != nil {
				t.Fatal(err)
			}
			granted := make(chan *dsync.Lease)
			for range n {
				go func() { // ends when the test ends, at the latest
					l, err := c.Lock(guard(t), name, test.options...)
					if err != nil {
						t.Error(err)
					}
					granted <- l
				}()
			}
			<-time.After(5 * time.Millisecond) // for all to be in the queue
			before := s.Requests()
			for range n {
				last := l.Token()
				if err := l.Unlock(guard(t)); err != nil {
					t.Error(err)
				}
				if l = <-granted; l.Token() < last || test.want > 0 && l.Token() == last {
					t.Errorf("token: got %d after %d", l.Token(), last)
				}
			}
			after := s.Requests()
			if err := l.Unlock(guard(t)); err != nil {
				t.Error(err)
			}
			return after["Txn"]-before["Txn"] == test.want && after["DeleteRange"] == before["DeleteRange"]
		}, "each hand-over takes one request, or none without tokens")
	}
}

// TestPassIsNoNewsForOthers passes a hold on while another client waits. The
// event of the release shows the other client that it is next.
func TestPassIsNoNewsForOthers(t *testing.T) {
	const n = 3
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	row := 0
	testenv.Eventually(t, func() bool { // a waiter that is delayed for long enough reads the queue
		row++
		name := fmt.Sprint("row", row)
		l := acquire(t, a, request(name))
		w := wait(t, b, request(name))
		<-time.After(20 * time.Millisecond) // its watch is there
		before := s.Requests()
		for i := range n {
			last := token(l)
			if err := l.(driver.Passer).Pass(guard(t), fmt.Sprint("owner", i), ""); err != nil {
				t.Fatal(err)
			}
			if token(l) <= last {
				t.Errorf("token: got %d after %d", token(l), last)
			}
		}
		last := token(l)
		release(t, l)
		if l = w.Granted(t); token(l) <= last {
			t.Errorf("token: got %d after %d", token(l), last)
		}
		after := s.Requests()
		release(t, l)
		return after["Txn"]-before["Txn"] == n && after["DeleteRange"]-before["DeleteRange"] == 1
	}, "the waiter does not look")
}

// TestPassWithoutAnAnswer loses the answer to a pass, and then releases the
// hold.
func TestPassWithoutAnAnswer(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	l := acquire(t, d, request("a"))
	held := link.HoldReply("the next")
	passed := make(chan error, 1)
	go func() { passed <- l.(driver.Passer).Pass(guard(t), "the next", "") }() // ends when the test ends, at the latest
	<-held
	link.Cut()
	link.Heal()
	wantErr(t, "Pass", <-passed, driver.ErrUnknown)
	release(t, l)
	if got := keys(t, c, "a/"); len(got) > 0 {
		t.Errorf("keys after the release: got %q, want none", got)
	}
}

// TestPassOfASeal checks that Pass does not end a seal.
func TestPassOfASeal(t *testing.T) {
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("a"))
	last := token(l)
	seal(t, d, l)
	wantErr(t, "Pass", l.(driver.Passer).Pass(guard(t), "the next", ""), driver.ErrNotHeld)
	isSealed(t, d, "a", last)
}

// TestHandOverBetweenClientsIsOneRequest counts the server's requests when a
// lock goes from client to client and back. The event shows the waiter that it
// is now the first contender. A waiter that is delayed for long enough reads
// the queue, so some runs may cost more.
func TestHandOverBetweenClientsIsOneRequest(t *testing.T) {
	const n = 6
	s := testenv.Etcd(t)
	drivers := []*etcd.Driver{openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)}
	row := 0
	testenv.Eventually(t, func() bool {
		row++
		name := fmt.Sprint("row", row)
		l := acquire(t, drivers[0], request(name))
		waiters := []*drivertest.Waiter{wait(t, drivers[1], request(name)), wait(t, drivers[2], request(name))}
		got := make(map[string]int64)
		for i := range n {
			<-time.After(20 * time.Millisecond) // they have seen that their watches are there
			last, before := token(l), s.Requests()
			release(t, l)
			if l = waiters[0].Granted(t); token(l) <= last {
				t.Errorf("token: got %d after %d", token(l), last)
			}
			if !waiters[1].Waits() {
				t.Error("two clients were granted the lock")
			}
			for method, count := range s.Requests() {
				got[method] += count - before[method]
			}
			waiters = append(waiters[1:], wait(t, drivers[i%len(drivers)], request(name)))
		}
		for _, w := range waiters {
			release(t, l)
			l = w.Granted(t)
		}
		release(t, l)
		return got["DeleteRange"] == n && got["Txn"] == 0 && got["Range"] == 0
	}, "each hand-over takes one request")
}

// TestHandOverPastThoseWhoLeft has the contenders directly before a waiter
// leave first. This does not make the waiter the next one, regardless of how
// many leave.
func TestHandOverPastThoseWhoLeft(t *testing.T) {
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	for _, n := range []int{1, 2, 6, 7, 8, 9, 20} {
		l := acquire(t, a, request("a"))
		left := queueUp(t, a, "a", n)
		stays := wait(t, a, request("a"))
		left = append(left, queueUp(t, a, "a", n)...)
		w := wait(t, b, request("a"))
		<-time.After(20 * time.Millisecond) // its watch is there
		for _, other := range left {
			other.Cancel()
			if _, err := other.End(t); err == nil {
				t.Fatalf("%d: a canceled request was granted the lock", n)
			}
		}
		<-time.After(10 * time.Millisecond) // for the events
		if !w.Waits() || !stays.Waits() {
			t.Fatalf("%d: granted while another client holds the lock", n)
		}
		release(t, l)
		l = stays.Granted(t)
		if !w.Waits() {
			t.Fatalf("%d: two clients were granted the lock", n)
		}
		release(t, l)
		release(t, w.Granted(t))
	}
}

// TestHandOverOfARecordThatChanged has the holder set a mark on a name, and
// remove it, while another client waits. The waiter gets the token, and knows
// of the mark, as if it had arrived later.
func TestHandOverOfARecordThatChanged(t *testing.T) {
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	marked := func(l driver.Lease) bool {
		is, err := b.Marked(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	for i := range 10 {
		l := acquire(t, a, request("a"))
		w := wait(t, b, request("a"))
		<-time.After(20 * time.Millisecond) // its watch is there
		mark(t, a, l, token(l)+1<<40)
		last := token(l)
		release(t, l)
		l = w.Granted(t)
		if got := token(l); got <= last {
			t.Errorf("token in round %d: got %d after %d", i, got, last)
		}
		if !marked(l) {
			t.Errorf("round %d: the mark is not known", i)
		}
		release(t, l)

		l = acquire(t, a, request("a"))
		w = wait(t, b, request("a"))
		<-time.After(20 * time.Millisecond)
		unmark(t, a, l)
		release(t, l)
		if l = w.Granted(t); marked(l) {
			t.Errorf("round %d: the removed mark is still known", i)
		}
		release(t, l)
	}
}

// TestHandOverByTheEndOfALease has one event report the deletion of both the
// holder's key and the waiter's key.
func TestHandOverByTheEndOfALease(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	for range 10 {
		d := openURL(t, "etcd://%s", s.Addr)
		acquire(t, d, request("a"))
		w := wait(t, d, request("a"))
		<-time.After(20 * time.Millisecond) // its watch is there
		old := keys(t, c, "a/")
		revoke(t, c, leaseOf(t, c, old[0]))
		l := w.Granted(t)
		if now := keys(t, c, "a/"); len(now) != 1 || now[0] == old[1] {
			t.Errorf("keys: got %q, want one key, not on the lease of %q", now, old[1])
		}
		release(t, l)
	}
}

// TestHandOverThatNoWatchTells cuts a waiter off while the lock is released,
// and has the server forget the events.
func TestHandOverThatNoWatchTells(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", addr)
	for range 3 {
		l := acquire(t, a, request("a"))
		w := wait(t, b, request("a"))
		link.Cut()
		release(t, l)
		if _, err := c.Put(t.Context(), "other", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compact(t.Context(), revision(t, c)); err != nil {
			t.Fatal(err)
		}
		link.Heal()
		release(t, w.Granted(t))
	}
}

// TestHandOverTokenIsTheRevision compares the token with the value that package
// concurrency exports: the revision of an answer that showed the grant.
func TestHandOverTokenIsTheRevision(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("a"))
	w := queueUp(t, d, "a", 1)[0]
	before := revision(t, c)
	release(t, l)
	next := w.Granted(t)
	if got, after := token(next), uint64(revision(t, c)); got <= uint64(before) || got > after {
		t.Errorf("token: got %d, want a token above %d and up to %d", got, before, after)
	}
	release(t, next)
}

// TestHandOverWithoutAnAnswer loses the answer that shows the next holder. The
// waiter must find out without it.
func TestHandOverWithoutAnAnswer(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	l := acquire(t, d, request("a"))
	waiters := queueUp(t, d, "a", 2)
	held := link.HoldReply(keys(t, c, "a/")[0])
	released := make(chan error, 1)
	go func() { released <- l.Release(guard(t)) }() // ends when the test ends, at the latest
	<-held
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 2 }, "the server has handled the request")
	link.Cut()
	link.Heal()
	if err := <-released; err != nil {
		t.Errorf("Release: got %v, want nil", err)
	}
	next := waiters[0].Granted(t)
	if !waiters[1].Waits() {
		t.Error("two clients were granted the lock")
	}
	release(t, next)
	release(t, waiters[1].Granted(t))
}

// TestHandOverToOneWhoLeaves has waits end while the lock is being handed over
// to the waiters.
func TestHandOverToOneWhoLeaves(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	for i := range 50 {
		l := acquire(t, d, request("a"))
		waiters := queueUp(t, d, "a", 2)
		released := make(chan error, 1)
		go func() { released <- l.Release(guard(t)) }() // ends when the test ends, at the latest
		<-time.After(time.Duration(i) * 20 * time.Microsecond)
		waiters[0].Cancel()
		if l, err := waiters[0].End(t); err == nil {
			release(t, l)
		} else {
			wantErr(t, "canceled Acquire", err, context.Canceled)
		}
		release(t, waiters[1].Granted(t))
		if err := <-released; err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "all keys are gone")
}

// TestHandOverToAFixedLease makes the next waiter use its own lease, which must
// last from the grant.
func TestHandOverToAFixedLease(t *testing.T) {
	const ttl = 30 * time.Second
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("a"))
	w := wait(t, d, fixed(request("a"), ttl))
	before := time.Now()
	release(t, l)
	next := w.Granted(t)
	if got := next.Expires(); got.Before(before.Add(ttl)) {
		t.Errorf("Expires: got %v after the release, want %v or more", got.Sub(before), ttl)
	}
	release(t, next)
}
