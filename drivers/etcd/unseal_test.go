package etcd_test

import (
	"errors"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// waitsFor has a mutex of package concurrency wait for a name until the given
// number of contenders exist. The channel receives the result.
func waitsFor(tb testing.TB, c *clientv3.Client, name string, contenders int) (*concurrency.Mutex, <-chan error) {
	tb.Helper()
	mutex, theirs := newMutex(tb, c, name), make(chan error, 1)
	go func() { theirs <- mutex.Lock(guard(tb)) }() // ends when the guard ends, at the latest
	testenv.Eventually(tb, func() bool { return len(keys(tb, c, name+"/")) == contenders }, "the mutex waits")
	return mutex, theirs
}

func TestUnsealNeedsTheIDOfTheLastLoosenAndWakesOthers(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	for what, r := range kinds("orders") {
		t.Run(what, func(t *testing.T) {
			a, b, name := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr), r.Name
			wantErr(t, "Loosen of a name that is not sealed", b.Loosen(t.Context(), name, "a", 0), driver.ErrNotHeld)
			wantErr(t, "Loosen of that name with a floor", b.Loosen(t.Context(), name, "a", 1), driver.ErrNotHeld)
			l := acquire(t, a, r)
			mutex, theirs := waitsFor(t, c, name, 2)
			seal(t, a, l)
			wantErr(t, "Unseal before Loosen", b.Unseal(t.Context(), name, "a"), driver.ErrNotHeld)
			wantErr(t, "Unseal before Loosen without an id", b.Unseal(t.Context(), name, ""), driver.ErrNotHeld)
			for _, id := range []string{"a", "b"} {
				loosen(t, b, name, id, token(l))
			}
			wantErr(t, "Unseal with an id that was replaced", b.Unseal(t.Context(), name, "a"), driver.ErrNotHeld)
			isSealed(t, b, name, token(l))
			select {
			case err := <-theirs:
				t.Fatalf("the mutex was granted a sealed lock: %v", err)
			default:
			}
			unseal(t, b, name, "b")
			if err := <-theirs; err != nil {
				t.Fatal(err)
			}
			last := uint64(mutex.Header().Revision)
			if last <= token(l) {
				t.Errorf("token of the mutex: got %d, want a token above %d", last, token(l))
			}
			wantErr(t, "second Unseal", b.Unseal(t.Context(), name, "b"), driver.ErrNotHeld)
			wantErr(t, "TryLock while the mutex is held", tryLock(t, b, name), driver.ErrLocked)
			ours := wait(t, b, request(name))
			if err := mutex.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := ours.Granted(t)
			if token(next) <= last {
				t.Errorf("our next token: got %d, want a token above %d", token(next), last)
			}
			seal(t, b, next)
			wantErr(t, "Unseal of a new seal with the id of an old one", a.Unseal(t.Context(), name, "b"), driver.ErrNotHeld)
			loosen(t, a, name, "c", 0)
			unseal(t, a, name, "c")
			release(t, acquire(t, a, noWait(name)))
			if left := append(keys(t, c, name+"/"), keys(t, c, name+"\x00")...); len(left) > 0 {
				t.Errorf("keys that are left: got %q, want none", left)
			}
		})
	}
}

// tryLock returns the result of a request that does not wait.
func tryLock(tb testing.TB, d *etcd.Driver, name string) error {
	tb.Helper()
	l, err := d.Acquire(guard(tb), noWait(name))
	if err == nil {
		release(tb, l)
	}
	return err
}

func TestUnsealWakesEtcdctl(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("orders"))
	below := acquire(t, d, request("orders/below")) // etcdctl waits for it too
	granted, end := etcdctlLock(t, s, "orders")
	testenv.Eventually(t, func() bool { return len(keys(t, c, "orders/")) == 3 }, "etcdctl waits")
	seal(t, d, l)
	loosen(t, d, "orders", "a", token(l))
	unseal(t, d, "orders", "a")
	release(t, below) // the seal did not affect it
	theirs := <-granted
	if theirs <= token(l) {
		t.Errorf("token of etcdctl: got %d, want more than %d", theirs, token(l))
	}
	end()
	next := acquire(t, d, request("orders"))
	if token(next) <= theirs {
		t.Errorf("our token after that: got %d, want more than %d", token(next), theirs)
	}
	release(t, next)
}

// TestLoosenRefusesWhatOthersWouldNotCountTo tries floors that revisions have
// not passed, although dsync's own tokens could be raised above them.
func TestLoosenRefusesWhatOthersWouldNotCountTo(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	bare := openURL(t, "etcd://%s?fenced=false", s.Addr)
	for _, marked := range []bool{false, true} {
		l := acquire(t, d, request("x"))
		if marked {
			mark(t, d, l, 1<<50)
		}
		seal(t, d, l)
		before := revision(t, c)
		for _, floor := range []uint64{uint64(before) + 1, 1 << 40, 1<<64 - 1} {
			wantErr(t, "a floor that revisions have not passed", d.Loosen(t.Context(), "x", "a", floor), errors.ErrUnsupported)
		}
		wantErr(t, "a floor without tokens", bare.Loosen(t.Context(), "x", "a", 1), errors.ErrUnsupported)
		wantErr(t, "Unseal after that", d.Unseal(t.Context(), "x", "a"), driver.ErrNotHeld)
		if after := revision(t, c); after != before {
			t.Errorf("changes: got %d, want none", after-before)
		}
		loosen(t, bare, "x", "a", 0)
		loosen(t, d, "x", "b", uint64(before))
		unseal(t, d, "x", "b")
		next := acquire(t, d, request("x"))
		if token(next) <= token(l) {
			t.Errorf("token after Unseal: got %d, want a token above %d", token(next), token(l))
		}
		release(t, next)
	}
}

// TestUnsealThatArrivesLate writes another id next to the seal while a request
// to unseal is on its way, or half done.
func TestUnsealThatArrivesLate(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	b := openURL(t, "etcd://%s", s.Addr)
	for name, delay := range map[string]func() <-chan struct{}{
		"request": func() <-chan struct{} { link.Hold(wire.Requests); return nil },
		"half":    func() <-chan struct{} { return link.HoldReply("half\x01") }, // the end of the range that contains the seal
	} {
		drivertest.LateUnseal(t, openURL(t, "etcd://%s", addr), b, name, delay, link.Heal)
	}
}

// TestUnsealWhoseAnswerIsLost repeats requests that may have been carried out.
func TestUnsealWhoseAnswerIsLost(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	seal(t, b, acquire(t, b, request("x")))
	for _, step := range []struct {
		do    func() error
		part  string // of the request
		again error
		done  func() bool
	}{
		{func() error { return a.Loosen(guard(t), "x", "a", 0) }, "x\x00loose", nil, func() bool { return len(keys(t, c, "x\x00loose")) == 1 }},
		{func() error { return a.Unseal(guard(t), "x", "a") }, "x\x00loose", driver.ErrNotHeld, func() bool { return len(keys(t, c, "x")) == 0 }},
	} {
		held := link.HoldReply(step.part)
		got := make(chan error, 1)
		go func() { got <- step.do() }() // ends when the connection is cut
		<-held
		testenv.Eventually(t, step.done, "the server has handled the request")
		link.Cut()
		wantErr(t, "the answer is lost", <-got, driver.ErrUnknown)
		link.Heal()
		var err error
		testenv.Eventually(t, func() bool {
			err = step.do()
			return !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown)
		}, "the connection is back")
		if err != step.again {
			t.Errorf("again: got %v, want %v", err, step.again)
		}
	}
	release(t, acquire(t, b, noWait("x")))
}

func TestUnmarkNeedsTheHoldAndKeepsTheTokens(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	const floor = 1 << 40
	for what, r := range kinds("x") {
		name := r.Name
		l := acquire(t, a, r)
		mark(t, a, l, floor)
		waiters := []driver.Lease{l, nil, nil}
		behind := wait(t, b, request(name))
		for range 2 {
			unmark(t, a, l)
		}
		if marked, err := a.Marked(t.Context(), l); marked || err != nil {
			t.Errorf("%s: Marked after Unmark: got %t, %v, want false", what, marked, err)
		}
		release(t, l)
		waiters[1] = behind.Granted(t)
		release(t, waiters[1])
		waiters[2] = acquire(t, b, request(name))
		if !slices.IsSortedFunc(waiters, func(x, y driver.Lease) int { return int(token(x) - token(y)) }) || token(l) <= floor {
			t.Errorf("%s: tokens: got %d, %d, %d, want them to rise from %d", what, token(l), token(waiters[1]), token(waiters[2]), floor)
		}
		for _, l := range waiters[1:] {
			if marked, err := b.Marked(t.Context(), l); marked || err != nil {
				t.Errorf("%s: Marked of a lease after Unmark: got %t, %v, want false", what, marked, err)
			}
		}
		mark(t, b, waiters[2], 1)
		wantErr(t, "Unmark of a hold that was released", a.Unmark(t.Context(), l), driver.ErrNotHeld)
		again := acquire(t, a, withName(r, name+"/removed"))
		mark(t, a, again, floor)
		remove(t, c, name+"/removed")
		if err := a.Unmark(t.Context(), again); err != driver.ErrNotHeld {
			t.Errorf("%s: Unmark of a hold that was removed: got %v, want %v", what, err, driver.ErrNotHeld)
		}
		if got := keys(t, c, name+"/removed\x00mark"); len(got) != 1 {
			t.Errorf("%s: marks after that: got %q, want one mark", what, got)
		}
		if marked, err := b.Marked(t.Context(), waiters[2]); !marked || err != nil || token(waiters[2]) <= floor {
			t.Errorf("%s: marked again: got %t, %v, token %d, want true and one above %d", what, marked, err, token(waiters[2]), floor)
		}
		release(t, waiters[2])
	}
}

// withName returns a request like r for another name.
func withName(r *driver.Request, name string) *driver.Request {
	if r.Fixed {
		return fixed(request(name), r.TTL)
	}
	return request(name)
}

// TestTokensRiseThereAndBack moves a name to etcd, away, and back, with other
// clients among its holders.
func TestTokensRiseThereAndBack(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	last := uint64(0)
	rises := func(what string, got uint64) {
		t.Helper()
		if got <= last {
			t.Errorf("%s: got token %d after %d", what, got, last)
		}
		last = got
	}
	for round := range 3 {
		mutex := newMutex(t, c, "x")
		if err := mutex.Lock(guard(t)); err != nil {
			t.Fatal(err)
		}
		rises("a mutex", uint64(mutex.Header().Revision))
		if err := mutex.Unlock(guard(t)); err != nil {
			t.Fatal(err)
		}
		l := acquire(t, d, request("x"))
		rises("a grant", token(l))
		mark(t, d, l, last)
		rises("a grant that was marked", token(l))
		if round == 1 {
			unmark(t, d, l)
		}
		release(t, l)
		l = acquire(t, d, request("x"))
		rises("a grant after the mark", token(l))
		seal(t, d, l)
		loosen(t, d, "x", "a", last)
		unseal(t, d, "x", "a")
	}
}
