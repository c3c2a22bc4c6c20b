package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// queueUp has n callers of d wait behind whoever holds name.
func queueUp(t *testing.T, d *etcd.Driver, name string, n int) []*drivertest.Waiter {
	t.Helper()
	waiters := make([]*drivertest.Waiter, n)
	for i := range waiters {
		waiters[i] = wait(t, d, request(name))
	}
	return waiters
}

// TestHandOverInAProcessIsOneRequest counts what the server is asked when a lock goes from caller to caller of one client. A caller that
// is held up for long enough looks for itself, so some rows may cost more.
func TestHandOverInAProcessIsOneRequest(t *testing.T) {
	const n = 5
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s", s.Addr)
	row := 0
	testenv.Eventually(t, func() bool {
		row++
		name := fmt.Sprint("row", row)
		l := acquire(t, d, request(name))
		waiters := queueUp(t, d, name, n)
		before := s.Requests()
		for _, w := range waiters {
			last := token(l)
			release(t, l)
			if l = w.Granted(t); token(l) <= last {
				t.Errorf("token: got %d after %d", token(l), last)
			}
		}
		after := s.Requests()
		release(t, l)
		return after["Txn"]-before["Txn"] == n && after["DeleteRange"] == before["DeleteRange"]
	}, "a row of hand-overs takes one request each")
}

// TestHandOverTokenIsTheRevision compares with what package concurrency exports: the revision of an answer that showed the grant.
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
		t.Errorf("token: got %d, want one above %d and up to %d", got, before, after)
	}
	release(t, next)
}

// TestHandOverWithoutAnAnswer has the answer lost that says who is next: the waiter finds out for itself.
func TestHandOverWithoutAnAnswer(t *testing.T) {
	s := testenv.Etcd(t)
	proxy := testenv.NewProxy(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", proxy.Addr)
	l := acquire(t, d, request("a"))
	waiters := queueUp(t, d, "a", 2)
	held := proxy.HoldAfterRequest(keys(t, c, "a/")[0])
	released := make(chan error, 1)
	go func() { released <- l.Release(guard(t)) }() // ends with the test at the latest
	<-held
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 2 }, "the server has handled it")
	proxy.Cut()
	proxy.Heal()
	if err := <-released; err != nil {
		t.Errorf("Release: got %v, want nil", err)
	}
	next := waiters[0].Granted(t)
	if !waiters[1].Waits() {
		t.Error("two were granted the lock")
	}
	release(t, next)
	release(t, waiters[1].Granted(t))
}

// TestHandOverToOneWhoLeaves has waits end while the lock comes to them.
func TestHandOverToOneWhoLeaves(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	for i := range 50 {
		l := acquire(t, d, request("a"))
		waiters := queueUp(t, d, "a", 2)
		released := make(chan error, 1)
		go func() { released <- l.Release(guard(t)) }() // ends with the test at the latest
		<-time.After(time.Duration(i) * 20 * time.Microsecond)
		waiters[0].Cancel()
		if l, err := waiters[0].End(t); err == nil {
			release(t, l)
		} else {
			wantErr(t, "Acquire that was canceled", err, context.Canceled)
		}
		release(t, waiters[1].Granted(t))
		if err := <-released; err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 0 }, "all keys are gone")
}

// TestHandOverToAFixedLease has the next in line hang on a lease of its own, which has to last from the grant.
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
