package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestInspect(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s/p/", s.Addr), openURL(t, "etcd://%s/p/", s.Addr)
	if got, err := b.Inspect(t.Context(), "orders"); err != nil || got.Held {
		t.Errorf("free lock: got %+v, %v", got, err)
	}
	below := acquire(t, a, request("orders/42"))
	r := request("orders")
	r.Note = "why"
	asked := time.Now()
	l := acquire(t, a, r)
	first, second := request("orders"), request("orders")
	first.Owner, second.Owner = "first", "second"
	w1, w2 := wait(t, b, first), wait(t, a, second)
	mutex := newMutex(t, c, "p/orders")
	go mutex.Lock(guard(t)) // ends when its session ends
	testenv.Eventually(t, func() bool { return len(keys(t, c, "p/orders/")) == 5 }, "the mutex waits")

	got, err := b.Inspect(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if !got.Held || got.Hold != r.Hold || got.Owner != r.Owner || got.Note != "why" || got.Waiters != 3 {
		t.Errorf("got %+v", got)
	}
	if got.Since.Before(asked.Truncate(0)) || got.Since.After(time.Now()) {
		t.Errorf("since: got %v, want after %v", got.Since, asked)
	}
	if got.TTL <= 15*time.Second || got.TTL > 30*time.Second {
		t.Errorf("TTL: got %v, want the remaining part of 30s", got.TTL)
	}
	theirs := strings.TrimPrefix(keys(t, c, "p/orders/")[4], "p/orders/")
	if want := []string{"first", "second", theirs}; !slices.Equal(got.Queue, want) {
		t.Errorf("queue: got %q, want %q", got.Queue, want)
	}
	if own, err := a.Inspect(t.Context(), "orders"); err != nil || own.Token != token(l) {
		t.Errorf("token of this driver's hold: got %d, %v, want %d", own.Token, err, token(l))
	}
	release(t, l)
	release(t, w1.Granted(t))
	release(t, w2.Granted(t))
	release(t, below)
}

func TestForceUnlock(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*driver.Request{"kept alive": request("a"), "fixed": fixed(request("a"), 30*time.Second)} {
		t.Run(name, func(t *testing.T) {
			s := testenv.Etcd(t)
			a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
			wantErr(t, "of a free lock", b.ForceUnlock(t.Context(), "a"), driver.ErrNotHeld)
			below := acquire(t, a, request("a/b"))
			l := acquire(t, a, r)
			w := wait(t, b, request("a"))
			if err := b.ForceUnlock(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			next := w.Granted(t)
			wantErr(t, "the holder is notified", lostBy(t, r), driver.ErrRemoved)
			wantErr(t, "release of the removed hold", l.Release(t.Context()), driver.ErrNotHeld)
			release(t, next)
			release(t, below)
		})
	}
}

// TestTokenOfReaders checks that Inspect reports the token of the last grant,
// or none.
func TestTokenOfReaders(t *testing.T) {
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	want := func(d *etcd.Driver, want uint64) {
		t.Helper()
		if got, err := d.Inspect(guard(t), "a"); err != nil || got.Token != want {
			t.Errorf("Inspect: got token %d, %v, want %d", got.Token, err, want)
		}
	}
	first, second := acquire(t, a, in(driver.Read, request("a"))), acquire(t, a, in(driver.Read, request("a")))
	want(a, token(second))
	want(b, 0)
	third := acquire(t, b, in(driver.Read, request("a")))
	want(a, 0)
	release(t, second)
	release(t, first)
	want(b, token(third))
	release(t, third)
}

// TestLockAfterForceUnlock checks that a client that has forced its own hold
// can acquire the name immediately.
func TestLockAfterForceUnlock(t *testing.T) {
	s := testenv.Etcd(t)
	c := openClient(t, "etcd://"+s.Addr)
	for range 10 {
		if _, err := c.TryLock(guard(t), "a"); err != nil {
			t.Fatalf("TryLock: %v", err)
		}
		if err := c.ForceUnlock(guard(t), "a"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestForceUnlockOfAMutex(t *testing.T) {
	s := testenv.Etcd(t)
	mutex := newMutex(t, userClient(t, s.Addr), "a")
	d := openURL(t, "etcd://%s", s.Addr)
	if err := mutex.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.ForceUnlock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, d, noWait("a")))
}

func TestRemovedWaiterAsksAgain(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("a"))
	for _, r := range []*driver.Request{request("a"), fixed(request("a"), 30*time.Second)} {
		w := wait(t, d, r)
		old := keys(t, c, "a/")[1]
		if _, err := c.Delete(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, func() bool {
			now := keys(t, c, "a/")
			return len(now) == 2 && now[1] != old
		}, "the waiter is in the queue again")
		w.Cancel()
		_, err := w.End(t)
		wantErr(t, "canceled wait", err, context.Canceled) // and ErrLocked, or ErrUnknown if the answer had not arrived
		testenv.Eventually(t, func() bool { return len(keys(t, c, "a/")) == 1 }, "the waiter has left the queue")
	}
	release(t, l)
}

func TestClose(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d, err := etcd.New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	var leases []driver.Lease
	for i := range 20 {
		leases = append(leases, acquire(t, d, request(fmt.Sprint("kept/", i))))
	}
	leases = append(leases, acquire(t, d, fixed(request("fixed"), 30*time.Second)))
	waiters := []*drivertest.Waiter{
		wait(t, d, request("kept/1")), wait(t, d, request("fixed")),
		wait(t, d, fixed(request("fixed"), 20*time.Second)),
	}
	before := revision(t, c)
	if err := d.Close(guard(t)); err != nil {
		t.Fatal(err)
	}
	for _, w := range waiters {
		_, err := w.End(t)
		wantErr(t, "waiter", err, driver.ErrClosed)
	}
	if got := keys(t, c, ""); len(got) > 0 {
		t.Errorf("keys after Close: got %q", got)
	}
	if got := revision(t, c) - before; got > 3 {
		t.Errorf("changes by Close: got %d, want one change for each lease", got)
	}
	for _, l := range leases {
		wantErr(t, "Release after Close", l.Release(t.Context()), driver.ErrNotHeld)
	}
	_, err = d.Acquire(t.Context(), request("a"))
	wantErr(t, "Acquire after Close", err, driver.ErrClosed)
	leftOver, err := c.Leases(t.Context())
	if err != nil || len(leftOver.Leases) > 0 {
		t.Errorf("leases after Close: got %v, %v", leftOver, err)
	}
}

func TestNewWithANamespace(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	plain, c := userClient(t, s.Addr), userClient(t, s.Addr)
	c.KV = namespace.NewKV(c.KV, "app/")
	c.Watcher = namespace.NewWatcher(c.Watcher, "app/")
	c.Lease = namespace.NewLease(c.Lease, "app/")
	d, err := etcd.New(c, &etcd.Options{Prefix: "locks/"})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	r := request("a")
	l := acquire(t, d, r)
	w := wait(t, d, request("a"))
	if got := keys(t, plain, "app/locks/a/"); len(got) != 2 {
		t.Errorf("keys: got %q, want two", keys(t, plain, ""))
	}
	release(t, l)
	release(t, w.Granted(t))
	kept := request("kept")
	acquire(t, d, kept)
	if _, err := plain.Delete(t.Context(), "app/locks/kept/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "removed hold", lostBy(t, kept), driver.ErrRemoved)
}

func TestNewRefuses(t *testing.T) {
	if _, err := etcd.New(nil, nil); err == nil {
		t.Error("New(nil): got no error")
	}
	if _, err := etcd.New(&clientv3.Client{}, &etcd.Options{Prefix: "a\x00"}); err == nil {
		t.Error("a prefix with NUL: got no error")
	}
}

func TestTTL(t *testing.T) {
	s := testenv.Etcd(t, "--election-timeout", "2000") // counts from 3 s
	exact, rounding := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s?roundup=true", s.Addr)
	if got := exact.Info(); got.MinTTL != 3*time.Second || got.TTLUnit != time.Second {
		t.Errorf("info: got %+v, want 3s in steps of 1s", got)
	}
	for _, ttl := range []time.Duration{0, time.Second, 3500 * time.Millisecond} {
		for _, r := range []*driver.Request{withTTL(request("a"), ttl), fixed(request("a"), ttl)} {
			_, err := exact.Acquire(t.Context(), r)
			wantErr(t, fmt.Sprint("TTL ", ttl), err, errors.ErrUnsupported)
		}
	}
	for ask, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 3 * time.Second, 3 * time.Second: 3 * time.Second, 4100 * time.Millisecond: 5 * time.Second,
	} {
		for _, r := range []*driver.Request{withTTL(request("a"), ask), fixed(request("a"), ask)} {
			sent := time.Now()
			l := acquire(t, rounding, r)
			if got := l.Expires().Sub(sent); got > want+time.Since(sent) || !r.Fixed && got < want/2 || r.Fixed && got < want {
				t.Errorf("TTL %v: the lease lasts %v, want %v", ask, got, want)
			}
			release(t, l)
		}
	}
	c := userClient(t, s.Addr)
	handed, err := etcd.New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, handed)
	_, err = handed.Acquire(t.Context(), withTTL(request("a"), 2*time.Second))
	wantErr(t, "TTL below the server's floor", err, errors.ErrUnsupported)
	wantText(t, "TTL below the server's floor", err, "2s", "3s")
}

// TestTokensAfterARestore restores an older copy of a server's data. Tokens
// fall unless Floor is above the earlier tokens.
func TestTokensAfterARestore(t *testing.T) {
	t.Parallel()
	dir, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup")
	s := testenv.Etcd(t, "--data-dir", dir)
	copyTo := func(to, from string) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
			t.Fatal(err)
		}
	}
	lock := func(parameter string) (token uint64) {
		t.Helper()
		c := openClient(t, "etcd://"+s.Addr+parameter)
		for range 10 {
			l, err := c.Lock(guard(t), "a")
			if err != nil {
				t.Fatal(err)
			}
			token = l.Token()
			if err := l.Unlock(guard(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(guard(t)); err != nil {
			t.Fatal(err)
		}
		return token
	}
	lock("")
	s.Kill()
	copyTo(backup, dir)
	s.Start()
	lock("")
	last := lock("")
	s.Kill()
	copyTo(dir, backup)
	s.Start()
	if got := lock(""); got >= last {
		t.Errorf("token after the restore: got %d, want less than %d", got, last)
	}
	if got := lock(fmt.Sprintf("?floor=%d", last)); got <= last {
		t.Errorf("token with a floor: got %d, want more than %d", got, last)
	}
}

// contenders puts keys with a lease, and other keys, in batches.
func contenders(t *testing.T, c *clientv3.Client, lease clientv3.LeaseID, keys ...string) {
	t.Helper()
	for some := range slices.Chunk(keys, 100) {
		var puts []clientv3.Op
		for _, key := range some {
			puts = append(puts, clientv3.OpPut(key, "", clientv3.WithLease(lease)))
		}
		if _, err := c.Txn(guard(t)).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListOfManyNames(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	grant, err := c.Grant(guard(t), 600)
	if err != nil {
		t.Fatal(err)
	}
	var keys, want []string
	for i := range 2500 {
		want = append(want, fmt.Sprintf("n%04d/below", i))
		keys = append(keys, fmt.Sprintf("locks/n%04d/below/%x", i, grant.ID))
	}
	contenders(t, c, grant.ID, keys...)
	contenders(t, c, clientv3.NoLease, "locks/n0000/below/0123456789abcdef", "locks/other/0123456789abcdef", "locks/"+strings.Repeat("x", 100))
	contenders(t, c, grant.ID, "locks/other/session", fmt.Sprintf("locks0/%x", grant.ID), fmt.Sprintf("lock/%x", grant.ID))
	d := openURL(t, "etcd://%s/locks/", s.Addr)
	before := s.Requests()["Txn"]
	got, err := drivertest.Listed(t, t.Context(), d, "")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("List: got %d names and %v, want %d", len(got), err, len(want))
	}
	if requests := s.Requests()["Txn"] - before; requests != 6 { // 3 pages, each with keys that look like contenders
		t.Errorf("List: got %d requests, want 6", requests)
	}
}

// TestListWhileAHoldMoves lets a name change hands while List is between two
// pages: from a key on the next page to a key on the page before.
func TestListWhileAHoldMoves(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	grant, err := c.Grant(guard(t), 600)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for i := range 999 {
		keys = append(keys, fmt.Sprintf("n%04d/%x", i, grant.ID))
	}
	contenders(t, c, grant.ID, append(keys, "x/2", "x/3000000000000000")...) // x/2 ends the first page and is not a contender
	names, moved := map[string]bool{}, false
	for name, err := range openURL(t, "etcd://%s", s.Addr).List(guard(t), "") {
		if err != nil {
			t.Fatal(err)
		}
		if !moved {
			moved = true
			contenders(t, c, grant.ID, "x/1000000000000000")
			if _, err := c.Delete(guard(t), "x/3000000000000000"); err != nil {
				t.Fatal(err)
			}
		}
		names[name] = true
	}
	if len(names) != 1000 || !names["x"] {
		t.Errorf("List: got %d names, x among them: %t; want 1000 names and x, which was held all the time", len(names), names["x"])
	}
}

func TestListOfSilentServer(t *testing.T) {
	s := testenv.Etcd(t)
	drivertest.ListOfSilentServer(t, openURL(t, "etcd://%s", s.Addr), s.Freeze, s.Thaw)
}

// TestListByABeginningOfALease lists with a prefix that matches the key of a
// name, but not the name.
func TestListByABeginningOfALease(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	for _, parameter := range []string{"", "?names=flat"} {
		d := openURL(t, "etcd://%s%s", s.Addr, parameter)
		l := acquire(t, d, request("a"))
		prefix := keys(t, c, "a/")[0][:3]
		names, err := drivertest.Listed(t, guard(t), d, prefix)
		if err != nil || len(names) > 0 {
			t.Errorf("List of %q: got %q, %v, want none", prefix, names, err)
		}
		release(t, l)
	}
}
