package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// permits turns a request into one for n of limit permits.
func permits(n, limit int, r *driver.Request) *driver.Request {
	r.Mode, r.Permits, r.Limit = driver.Permit, n, limit
	return r
}

func setLimit(tb testing.TB, d *etcd.Driver, name string, limit int) {
	tb.Helper()
	if err := d.SetLimit(guard(tb), name, limit); err != nil {
		tb.Fatalf("SetLimit: %v", err)
	}
}

// wantStatus checks the status of a name with permits.
func wantStatus(tb testing.TB, d *etcd.Driver, name string, used, holders, limit, waiters int) {
	tb.Helper()
	s, err := d.Inspect(guard(tb), name)
	if err != nil || s.Used != used || s.Holders != holders || s.Limit != limit || s.Waiters != waiters || s.Held != (used > 0) || s.Token != 0 {
		tb.Errorf("Inspect: got %+v and %v, want %d permits of %d, by %d holds, and %d waiters", s, err, used, limit, holders, waiters)
	}
}

// wantAllFree waits until all permits of a name can be acquired, and nothing is
// left of them after that.
func wantAllFree(tb testing.TB, c *clientv3.Client, d *etcd.Driver, name string, limit int) {
	tb.Helper()
	testenv.Eventually(tb, func() bool { return len(keys(tb, c, name+"/")) == 0 }, "nothing is left")
	release(tb, acquire(tb, d, permits(limit, limit, noWait(name))))
}

func TestKeysOfPermits(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	if got := d.Info().Permits; got != (driver.Support{Offered: true, Order: driver.FIFOByClient}) {
		t.Errorf("Info: got %+v", got)
	}
	before := s.Requests()["Txn"]
	l := acquire(t, d, permits(2, 10, request("a")))
	other := acquire(t, d, permits(1, 10, request("a")))
	if got := s.Requests()["Txn"] - before; got != 2 {
		t.Errorf("two grants of permits: got %d transactions, want 2", got)
	}
	want := regexp.MustCompile(`^\[a/permits-2of10-[0-9a-f]+-0 a/permits-1of10-[0-9a-f]+-1\]$`)
	if got := fmt.Sprint(keys(t, c, "a/")); !want.MatchString(got) {
		t.Errorf("keys: got %s, want %s", got, want)
	}
	below := acquire(t, d, request("a/permits-9of10-x")) // is a name of its own
	lower := acquire(t, d, permits(5, 5, request("a/b")))
	wantStatus(t, d, "a", 3, 2, 10, 0)
	release(t, acquire(t, d, permits(7, 10, noWait("a"))))
	names, err := drivertest.Listed(t, guard(t), d, "")
	if want := []string{"a", "a/b", "a/permits-9of10-x"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("List: got %q, %v, want %q", names, err, want)
	}
	wantErr(t, "Seal", d.Seal(t.Context(), l), errors.ErrUnsupported)
	for _, l := range []driver.Lease{l, other, below, lower} {
		release(t, l)
	}
	if got := keys(t, c, ""); len(got) > 0 {
		t.Errorf("keys after the last release: got %q", got)
	}
}

// TestLimitIsForgottenWithTheLastHold checks that a limit not set by SetLimit
// exists only in the keys.
func TestLimitIsForgottenWithTheLastHold(t *testing.T) {
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	first := acquire(t, a, permits(1, 3, request("a")))
	open := acquire(t, b, permits(1, 0, request("a"))) // with the stored limit
	release(t, first)
	for _, r := range []*driver.Request{permits(1, 4, noWait("a")), permits(1, 4, request("a")), permits(4, 0, request("a"))} {
		_, err := a.Acquire(guard(t), r)
		wantErr(t, "a limit other than the holder's", err, driver.ErrLimit)
	}
	wantStatus(t, a, "a", 1, 1, 3, 0)
	w := wait(t, a, permits(3, 0, request("a")))
	wantStatus(t, a, "a", 1, 1, 3, 1)
	release(t, open)
	release(t, w.Granted(t))
	wantStatus(t, a, "a", 0, 0, 0, 0)
	for _, r := range []*driver.Request{permits(1, 0, noWait("a")), permits(1, 0, request("a"))} {
		_, err := a.Acquire(guard(t), r)
		wantErr(t, "no limit", err, driver.ErrLimit)
	}
	release(t, acquire(t, a, permits(4, 4, noWait("a"))))
	setLimit(t, b, "a", 2)
	wantStatus(t, a, "a", 0, 0, 2, 0)
	_, err := a.Acquire(guard(t), permits(1, 4, noWait("a")))
	wantErr(t, "a limit other than SetLimit's", err, driver.ErrLimit)
	l := acquire(t, a, permits(2, 0, noWait("a")))
	wantStatus(t, b, "a", 2, 1, 2, 0)
	release(t, l)
}

// TestRefusalOnASlowServer checks that a refused request leaves nothing behind,
// and that its outcome is known, although the deletion of its key takes a
// while.
func TestRefusalOnASlowServer(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, slow := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", addr)
	setLimit(t, a, "a", 3)
	release(t, acquire(t, slow, permits(1, 3, request("a"))))
	link.Delay(wire.Replies, 100*time.Millisecond)
	for _, r := range []*driver.Request{permits(1, 4, noWait("a")), permits(1, 4, request("a"))} {
		_, err := slow.Acquire(guard(t), r)
		if !errors.Is(err, driver.ErrLimit) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("a limit other than SetLimit's: got %v, want only %v", err, driver.ErrLimit)
		}
	}
	release(t, acquire(t, a, permits(3, 3, noWait("a"))))
}

// TestPermitsBesideOtherModes has one queue for all modes, and for a client of
// package concurrency.
func TestPermitsBesideOtherModes(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Write} {
		l := acquire(t, a, permits(1, 3, request("a")))
		_, err := b.Acquire(guard(t), in(mode, noWait("a")))
		wantErr(t, fmt.Sprintf("%v while a permit is held", mode), err, driver.ErrLocked)
		w := wait(t, b, in(mode, request("a")))
		_, err = a.Acquire(guard(t), permits(1, 3, noWait("a")))
		wantErr(t, fmt.Sprintf("a permit behind a %v", mode), err, driver.ErrLocked)
		next := []*drivertest.Waiter{wait(t, a, permits(2, 3, request("a"))), wait(t, b, permits(1, 3, request("a")))}
		release(t, l)
		l = w.Granted(t)
		if !next[0].Waits() || !next[1].Waits() {
			t.Errorf("permits are granted while a %v is held", mode)
		}
		release(t, l)
		l = next[0].Granted(t)
		release(t, next[1].Granted(t))
		release(t, l)
	}
	session, err := concurrency.NewSession(userClient(t, s.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	m := concurrency.NewMutex(session, "a")
	l := acquire(t, a, permits(1, 2, request("a")))
	wantErr(t, "Mutex while a permit is held", m.TryLock(guard(t)), concurrency.ErrLocked)
	release(t, l)
	if err := m.Lock(guard(t)); err != nil {
		t.Fatal(err)
	}
	w := wait(t, a, permits(1, 2, request("a")))
	if err := m.Unlock(guard(t)); err != nil {
		t.Fatal(err)
	}
	release(t, w.Granted(t))
}

// TestCrowdForPermits has many calls of ten clients wait for permits, in the
// order of their arrival. None sends more requests than are necessary to wait
// and to be granted its permits, regardless of how many others wait.
func TestCrowdForPermits(t *testing.T) {
	t.Parallel()
	const clients, limit = 10, 10
	n := testenv.Briefly(100, 400)
	s := testenv.Etcd(t)
	drivers := make([]*etcd.Driver, clients)
	for i := range drivers {
		drivers[i] = openURL(t, "etcd://%s?order=fifo", s.Addr) // so that few waiters of a client read the queue at a time
		release(t, acquire(t, drivers[i], request(fmt.Sprint("warm", i))))
	}
	all := acquire(t, drivers[0], permits(limit, limit, request("a")))
	before, start := s.Requests(), time.Now()
	waiters, many := make([]*drivertest.Waiter, n), 0
	drivertest.Crowd(clients, 1, func(i int) {
		for ; i < n; i += clients {
			waiters[i] = wait(t, drivers[i%clients], permits(1+i%3, limit, request("a")))
		}
	})
	last := wait(t, drivers[0], permits(limit, limit, request("a")))
	var used atomic.Int64
	var work sync.WaitGroup
	for i, w := range waiters {
		many += 1 + i%3
		work.Go(func() {
			l := w.Granted(t)
			if now := used.Add(int64(1 + i%3)); now > limit {
				t.Errorf("%d permits are held", now)
			}
			if !last.Waits() {
				t.Error("the last caller is granted its permits before others")
			}
			used.Add(-int64(1 + i%3))
			release(t, l)
		})
	}
	release(t, all)
	work.Wait()
	release(t, last.Granted(t))
	after := s.Requests()
	backstops := int64(time.Since(start)/(3*time.Second)) * int64(n)
	// A put, a read when the watches have begun, a read at the grant, and a
	// deletion.
	most := int64(5*(n+1)+2*clients) + backstops
	if got := after["Txn"] - before["Txn"] + after["DeleteRange"] - before["DeleteRange"]; got > most {
		t.Errorf("requests: got %d, want at most %d", got, most)
	}
	t.Logf("%d calls for %d permits: %d transactions, %d deletions, %v", n, many, after["Txn"]-before["Txn"], after["DeleteRange"]-before["DeleteRange"], time.Since(start))
}

// TestSetLimitReachesWaiters changes limits while calls wait, even while they
// are cut off and the server forgets the events.
func TestSetLimitReachesWaiters(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", addr)
	for round, cutOff := range []bool{false, true, true} {
		setLimit(t, a, "a", 2)
		l := acquire(t, a, permits(2, 0, request("a")))
		open, old := wait(t, b, permits(2, 0, request("a"))), wait(t, b, permits(1, 2, request("a")))
		change := func(limit int) {
			if cutOff {
				link.Cut()
			}
			setLimit(t, a, "a", limit)
			if round == 2 {
				if _, err := c.Compact(guard(t), revision(t, c)); err != nil {
					t.Fatal(err)
				}
			}
			link.Heal()
		}
		change(3)
		_, err := old.End(t)
		wantErr(t, "a request with the old limit", err, driver.ErrLimit)
		change(1)
		_, err = open.End(t)
		wantErr(t, "a request for more permits than the limit", err, driver.ErrLimit)
		open = wait(t, b, permits(1, 0, request("a")))
		change(4)
		release(t, open.Granted(t))
		release(t, l)
		wantStatus(t, a, "a", 0, 0, 4, 0)
	}
}

// TestLoweredLimit inspects holders with more permits than a lowered limit
// allows, and removes them.
func TestLoweredLimit(t *testing.T) {
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	var held []*driver.Request
	for range 3 {
		held = append(held, permits(1, 3, request("a")))
		acquire(t, a, held[len(held)-1])
	}
	setLimit(t, b, "a", 1)
	wantStatus(t, b, "a", 3, 3, 1, 0)
	setLimit(t, b, "a", 4)
	held = append(held, permits(1, 0, request("a")))
	acquire(t, a, held[3])
	w := wait(t, b, permits(2, 0, request("a")))
	wantStatus(t, b, "a", 4, 4, 4, 1)
	setLimit(t, b, "a", 2)
	if err := b.ForceUnlock(guard(t), "a"); err != nil {
		t.Fatal(err)
	}
	l := w.Granted(t)
	for _, r := range held {
		wantErr(t, "loss", lostBy(t, r), driver.ErrRemoved)
	}
	wantStatus(t, b, "a", 2, 1, 2, 0)
	release(t, l)
	wantErr(t, "ForceUnlock of free permits", b.ForceUnlock(guard(t), "a"), driver.ErrNotHeld)
}

func TestForceUnlockOfManyPermits(t *testing.T) {
	const n = 150 // more than fit into one request
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	for range n {
		acquire(t, a, permits(2, 2*n, request("a")))
	}
	w := wait(t, b, permits(2*n, 2*n, request("a")))
	wantStatus(t, b, "a", 2*n, n, 2*n, 1)
	if err := b.ForceUnlock(guard(t), "a"); err != nil {
		t.Fatal(err)
	}
	release(t, w.Granted(t))
}

// TestPermitsOfTheDead checks that the permits of a client that is cut off are
// free when its etcd lease has ended, and not before.
func TestPermitsOfTheDead(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	r := withTTL(permits(2, 4, request("a")), 2*time.Second)
	dead, brief := acquire(t, a, r), acquire(t, b, fixed(permits(1, 4, request("a")), 2*time.Second))
	acquire(t, b, permits(1, 4, request("a")))
	link.Hold(wire.Both)
	acquire(t, b, permits(3, 0, request("a")))
	for _, l := range []driver.Lease{dead, brief} {
		if now := time.Now(); now.Before(l.Expires()) {
			t.Errorf("the permits were granted again %v before Expires", l.Expires().Sub(now))
		}
	}
	wantErr(t, "loss", lostBy(t, r), driver.ErrSessionEnded)
	link.Heal()
}

// TestCanceledPermits cancels waits at random moments, while permits come and
// go.
func TestCanceledPermits(t *testing.T) {
	t.Parallel()
	const clients, limit = 20, 3
	rounds := testenv.Briefly(10, 50)
	s := testenv.Etcd(t)
	drivers := make([]*etcd.Driver, clients)
	for i := range drivers {
		drivers[i] = openURL(t, "etcd://%s", s.Addr)
	}
	var canceled atomic.Int64
	drivertest.Crowd(clients, rounds, func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%16)*2*time.Millisecond)
		defer cancel()
		l, err := drivers[i%clients].Acquire(ctx, permits(2, limit, request("a")))
		switch {
		case err == nil:
			release(t, l)
		case errors.Is(err, context.DeadlineExceeded):
			canceled.Add(1)
		default:
			t.Errorf("Acquire: %v", err)
		}
	})
	wantAllFree(t, userClient(t, s.Addr), drivers[0], "a", limit)
	t.Logf("%d of %d were canceled", canceled.Load(), clients*rounds)
}

// TestUnansweredPermits has the server carry out many requests whose answers
// never arrive.
func TestUnansweredPermits(t *testing.T) {
	t.Parallel()
	const callers, limit = 125, 3
	rounds := testenv.Briefly(2, 8)
	s := testenv.Etcd(t)
	c, other := userClient(t, s.Addr), openURL(t, "etcd://%s", s.Addr)
	unknown := 0
	for range rounds {
		link, addr := testenv.Wire(t, s.Addr)
		d := openURL(t, "etcd://%s", addr) // its session was not retired by a cleanup
		release(t, acquire(t, d, permits(2, limit, request("a"))))
		before := s.Requests()["Txn"]
		link.Hold(wire.Replies)
		var waiters []*drivertest.Waiter
		for range callers {
			waiters = append(waiters, drivertest.Begin(d, permits(2, limit, request("a"))))
		}
		testenv.Eventually(t, func() bool {
			return s.Requests()["Txn"] >= before+callers || !slices.ContainsFunc(waiters, (*drivertest.Waiter).Waits)
		}, "the server has all requests")
		for _, w := range waiters {
			w.Cancel()
		}
		for _, w := range waiters {
			if _, err := w.End(t); errors.Is(err, driver.ErrUnknown) {
				unknown++
			} else if !errors.Is(err, driver.ErrUnavailable) { // not sent in time
				t.Errorf("unanswered Acquire: got %v, want %v", err, driver.ErrUnknown)
			}
		}
		link.Cut()
		link.Heal()
		wantAllFree(t, c, other, "a", limit)
	}
	if t.Logf("%d of %d were not answered", unknown, callers*rounds); unknown == 0 {
		t.Error("all were answered")
	}
}

func TestRightsOfPermits(t *testing.T) {
	s := testenv.Etcd(t)
	password := testenv.Password()
	secure(t, s, password)
	d := openURL(t, "etcd://app:%s@%s/locks/", password, s.Addr)
	setLimit(t, d, "a", 2)
	l := acquire(t, d, permits(2, 2, request("a")))
	w := wait(t, d, permits(1, 0, request("a")))
	setLimit(t, d, "a", 3)
	release(t, w.Granted(t))
	wantStatus(t, d, "a", 2, 1, 3, 0)
	release(t, l)
	elsewhere := openURL(t, "etcd://app:%s@%s/other/", password, s.Addr)
	wantErr(t, "SetLimit without permission", elsewhere.SetLimit(guard(t), "a", 2), fs.ErrPermission)
	_, err := elsewhere.Acquire(guard(t), permits(1, 2, request("a")))
	wantErr(t, "Acquire without permission", err, fs.ErrPermission)
}

func TestSealIsForPermits(t *testing.T) {
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, a, request("a"))
	w := wait(t, b, permits(1, 2, request("a")))
	seal(t, a, l)
	_, err := w.End(t)
	wantErr(t, "a waiter for a permit", err, driver.ErrSealed)
	wantErr(t, "SetLimit", b.SetLimit(guard(t), "a", 2), driver.ErrSealed)
}

// TestPermitsAboveALoweredLimit checks that Inspect counts all held permits,
// even if keys name no limit, and on a client that holds none.
func TestPermitsAboveALoweredLimit(t *testing.T) {
	s := testenv.Etcd(t)
	d, other := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	for _, limit := range []int{5, 0} {
		name := fmt.Sprint("a", limit)
		setLimit(t, d, name, 5)
		var held []driver.Lease
		for range 5 {
			held = append(held, acquire(t, d, permits(1, limit, request(name))))
		}
		w := wait(t, d, permits(1, 0, request(name)))
		for _, lower := range []int{4, 2} {
			setLimit(t, d, name, lower)
			wantStatus(t, d, name, 5, 5, lower, 1)
			wantStatus(t, other, name, 5, 5, lower, 1)
		}
		release(t, held[0])
		wantStatus(t, other, name, 4, 4, 2, 1)
		if err := other.ForceUnlock(guard(t), name); err != nil {
			t.Fatal(err)
		}
		release(t, w.Granted(t))
		for _, l := range held[1:] {
			wantErr(t, "Release", l.Release(guard(t)), driver.ErrNotHeld)
		}
	}
}
