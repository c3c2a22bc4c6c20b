package zk_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// waitsFor has a lock of go-zookeeper wait for a name until the given number of
// contenders exist. The channel receives the result.
func waitsFor(tb testing.TB, c *gozk.Conn, dir string, contenders int) (*gozk.Lock, <-chan error) {
	tb.Helper()
	other, theirs := gozk.NewLock(c, dir, gozk.WorldACL(gozk.PermAll)), make(chan error, 1)
	go func() { theirs <- other.Lock() }() // ends when the connection of the test is closed, at the latest
	testenv.Eventually(tb, func() bool { return len(children(tb, c, dir)) == contenders }, "the lock of go-zookeeper waits")
	return other, theirs
}

func TestUnsealNeedsTheIDOfTheLastLoosenAndWakesOthers(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	for what, r := range kinds("orders") {
		t.Run(what, func(t *testing.T) {
			a, b, name := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr), r.Name
			const floor = 1 << 60
			wantErr(t, "Loosen of a name that is not there", b.Loosen(t.Context(), name, "a", floor), driver.ErrNotHeld)
			l := acquire(t, a, r)
			wantErr(t, "Loosen of a name that is not sealed", b.Loosen(t.Context(), name, "a", floor), driver.ErrNotHeld)
			other, theirs := waitsFor(t, c, "/"+name, 2)
			seal(t, a, l)
			wantErr(t, "Unseal before Loosen", b.Unseal(t.Context(), name, "a"), driver.ErrNotHeld)
			wantErr(t, "Unseal before Loosen without an id", b.Unseal(t.Context(), name, ""), driver.ErrNotHeld)
			for id, floor := range map[string]uint64{"a": floor, "of/any:kind": 5} {
				loosen(t, b, name, id, floor)
			}
			loosen(t, b, name, "b", 0)
			wantErr(t, "Unseal with an id that was replaced", b.Unseal(t.Context(), name, "a"), driver.ErrNotHeld)
			isSealed(t, b, name, lastOf(l))
			status, err := b.Inspect(t.Context(), name)
			if err != nil || status.Owner != "seal" || status.Token != lastOf(l) || status.Waiters != 1 {
				t.Errorf("Inspect after Loosen: got %+v, %v, want the seal as the owner, its token, and a waiter", status, err)
			}
			select {
			case err := <-theirs:
				t.Fatalf("go-zookeeper was granted a sealed lock: %v", err)
			default:
			}
			unseal(t, b, name, "b")
			if err := <-theirs; err != nil {
				t.Fatal(err)
			}
			wantErr(t, "second Unseal", b.Unseal(t.Context(), name, "b"), driver.ErrNotHeld)
			_, err = b.Acquire(t.Context(), noWait(name))
			wantErr(t, "TryLock while go-zookeeper holds the lock", err, driver.ErrLocked)
			ours := wait(t, b, request(name))
			if err := other.Unlock(); err != nil {
				t.Fatal(err)
			}
			next := ours.Granted(t)
			if marked, err := b.Marked(t.Context(), next); marked || err != nil || token(next) <= floor {
				t.Errorf("our next lease: marked %t, %v, token %d, want an unmarked lease and a token above %d", marked, err, token(next), floor)
			}
			seal(t, b, next)
			wantErr(t, "Unseal of a new seal with the id of an old one", a.Unseal(t.Context(), name, "b"), driver.ErrNotHeld)
			loosen(t, a, name, "c", 0)
			unseal(t, a, name, "c")
			again := acquire(t, a, noWait(name))
			if token(again) <= lastOf(next) {
				t.Errorf("token after the second Unseal: got %d, want a token above %d", token(again), lastOf(next))
			}
			release(t, again)
			if left := children(t, c, "/"+name); len(left) != 1 || !strings.HasPrefix(left[0], "dsync-base-") {
				t.Errorf("nodes that are left: got %q, want only the number added to the tokens", left)
			}
		})
	}
}

func TestUnsealWakesCurator(t *testing.T) {
	command := testenv.Curator(t, "../../test/interop/java-curator/Try.java", "Try")
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "zk://%s", s.Addr)
	l := acquire(t, d, request("x"))
	before := curatorTries(t, command, s.Addr, "/x", "60000")
	testenv.Eventually(t, func() bool { return len(children(t, c, "/x")) == 2 }, "Curator waits behind us")
	seal(t, d, l)
	after := curatorTries(t, command, s.Addr, "/x", "60000")
	testenv.Eventually(t, func() bool { return len(children(t, c, "/x")) == 3 }, "Curator waits behind the seal")
	loosen(t, d, "x", "a", 1<<60)
	unseal(t, d, "x", "a")
	for _, p := range []*testenv.Process{before, after} {
		if got := p.Line(); got != "granted" {
			t.Errorf("Curator after Unseal: got %q, want it granted", got)
		}
	}
	release(t, acquire(t, d, request("x")))
}

func TestLoosenRefusesWhatItCannotCountTo(t *testing.T) {
	s := testenv.ZooKeeper(t)
	d := openURL(t, "zk://%s", s.Addr)
	bare := openURL(t, "zk://%s?fenced=false", s.Addr)
	l := acquire(t, d, request("x"))
	seal(t, d, l)
	wantErr(t, "a floor without room above it", d.Loosen(t.Context(), "x", "a", 1<<63), errors.ErrUnsupported)
	wantErr(t, "a floor without tokens", bare.Loosen(t.Context(), "x", "a", 1), errors.ErrUnsupported)
	wantErr(t, "Unseal after that", d.Unseal(t.Context(), "x", "a"), driver.ErrNotHeld)
	loosen(t, bare, "x", "a", 0)
	unseal(t, bare, "x", "a")
	next := acquire(t, d, request("x"))
	if token(next) <= lastOf(l) {
		t.Errorf("token after Unseal: got %d, want a token above %d", token(next), lastOf(l))
	}
	release(t, next)
	if left := children(t, userClient(t, s.Addr), "/"); len(left) != 1 { // the server's own node
		t.Errorf("nodes that are left: got %q, want none of ours", left)
	}
}

// TestUnsealThatArrivesLate writes another id into the seal while a request to
// unseal is on its way, or half done.
func TestUnsealThatArrivesLate(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	b := openURL(t, "zk://%s", s.Addr)
	for name, delay := range map[string]func() <-chan struct{}{
		"request": func() <-chan struct{} { link.Hold(wire.Requests); return nil },
		"half":    func() <-chan struct{} { return link.HoldReply("\x00\x00\x00\x0c\x00\x00\x00\x05/half") }, // the list of the children
	} {
		drivertest.LateUnseal(t, openURL(t, "zk://%s", addr), b, name, delay, link.Heal)
	}
}

// TestUnsealWhoseAnswerIsLost repeats requests that may have been carried out.
func TestUnsealWhoseAnswerIsLost(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "zk://%s", addr), openURL(t, "zk://%s", s.Addr)
	l := acquire(t, b, request("x"))
	seal(t, b, l)
	const floor = 1 << 60
	for _, step := range []struct {
		do    func() error
		again error
	}{
		{func() error { return a.Loosen(guard(t), "x", "a", floor) }, nil},
		{func() error { return a.Unseal(guard(t), "x", "a") }, driver.ErrNotHeld},
	} {
		trap := link.LoseReply("dsync-seal-")
		wantErr(t, "the answer is lost", step.do(), driver.ErrUnknown)
		<-trap
		if err := step.do(); err != step.again {
			t.Errorf("again: got %v, want %v", err, step.again)
		}
	}
	next := acquire(t, b, noWait("x"))
	if token(next) <= floor {
		t.Errorf("token after that: got %d, want a token above %d", token(next), floor)
	}
	release(t, next)
}

// TestSealWhoseAnswerIsLostAndThatIsLoosened has the holder learn by its own
// request that the name is sealed.
func TestSealWhoseAnswerIsLostAndThatIsLoosened(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "zk://%s", addr), openURL(t, "zk://%s", s.Addr)
	l := acquire(t, a, fixed(request("x"), 30*time.Second))
	trap := link.LoseReply("dsync-seal-")
	wantErr(t, "Seal", a.Seal(guard(t), l), driver.ErrUnknown)
	<-trap
	loosen(t, b, "x", "a", 0)
	seal(t, a, l)
	isSealed(t, b, "x", lastOf(l))
}

func TestUnmarkNeedsTheHoldAndKeepsTheTokens(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
	const floor = 1 << 60
	for what, r := range kinds("x") {
		name := r.Name
		l := acquire(t, a, r)
		unmark(t, a, l) // there is none
		mark(t, a, l, floor)
		waiters := []struct {
			d *zk.Driver
			w interface{ Granted(testing.TB) driver.Lease }
		}{{a, wait(t, a, request(name))}, {b, wait(t, b, request(name))}}
		for range 2 {
			unmark(t, a, l)
		}
		last := lastOf(l)
		if marked, err := a.Marked(t.Context(), l); marked || err != nil || last <= floor {
			t.Errorf("%s: after Unmark: marked %t, %v, token %d, want false and one above %d", what, marked, err, last, floor)
		}
		release(t, l)
		for _, w := range waiters {
			next := w.w.Granted(t)
			if marked, err := w.d.Marked(t.Context(), next); marked || err != nil || token(next) <= last {
				t.Errorf("%s: the next lease: marked %t, %v, token %d, want false and one above %d", what, marked, err, token(next), last)
			}
			last = lastOf(next)
			release(t, next)
		}
		wantErr(t, "Unmark of a hold that was released", a.Unmark(t.Context(), l), driver.ErrNotHeld)
		next := acquire(t, b, request(name))
		mark(t, b, next, 1)
		if marked, err := b.Marked(t.Context(), next); !marked || err != nil || token(next) <= last {
			t.Errorf("%s: marked again: got %t, %v, token %d, want true and one above %d", what, marked, err, token(next), last)
		}
		removeFirst(t, c, "/"+name)
		wantErr(t, "Unmark of a hold that was removed", b.Unmark(t.Context(), next), driver.ErrNotHeld)
		if left := children(t, c, "/"+name); len(left) != 1 || !strings.HasPrefix(left[0], "dsync-mark-") {
			t.Errorf("%s: nodes after that: got %q, want the mark", what, left)
		}
	}
}

// TestUnmarkWhoseAnswerIsLost has a waiter of the same process, which does not
// adopt the holder's belief.
func TestUnmarkWhoseAnswerIsLost(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	a := openURL(t, "zk://%s", addr)
	l := acquire(t, a, request("a"))
	mark(t, a, l, 1<<60)
	w := wait(t, a, request("a"))
	trap := link.LoseReply("dsync-mark-")
	wantErr(t, "Unmark", a.Unmark(guard(t), l), driver.ErrUnknown)
	<-trap
	release(t, l)
	next := w.Granted(t)
	if marked, err := a.Marked(t.Context(), next); marked || err != nil || token(next) <= lastOf(l) {
		t.Errorf("the next lease: marked %t, %v, token %d, want false and one above %d", marked, err, token(next), lastOf(l))
	}
	release(t, next)
}

// TestTokensRiseThereAndBack moves a name to ZooKeeper, away, and back with
// tokens that have risen elsewhere.
func TestTokensRiseThereAndBack(t *testing.T) {
	s := testenv.ZooKeeper(t)
	d := openURL(t, "zk://%s", s.Addr)
	last := uint64(0)
	rises := func(what string, l driver.Lease) {
		t.Helper()
		if got := token(l); got <= last {
			t.Errorf("%s: got token %d after %d", what, got, last)
		}
		last = lastOf(l)
	}
	for round := range 4 {
		l := acquire(t, d, request("x"))
		rises("a grant", l)
		last += 1 << 56
		mark(t, d, l, last)
		rises("a grant that was marked", l)
		if round%2 == 0 {
			unmark(t, d, l)
		}
		release(t, l)
		l = acquire(t, d, request("x"))
		rises("a grant after the mark", l)
		seal(t, d, l)
		last += uint64(round) << 56
		loosen(t, d, "x", "a", last)
		unseal(t, d, "x", "a")
	}
}
