package zk_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestSealAnswersWaitersAndStays(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	for what, r := range kinds("orders") {
		t.Run(what, func(t *testing.T) {
			a, b := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
			dir := "/" + r.Name
			l := acquire(t, a, r)
			holder := children(t, c, dir)[0]
			waiters := []*drivertest.Waiter{wait(t, a, request(r.Name)), wait(t, b, request(r.Name)), wait(t, b, fixed(request(r.Name), 20*time.Second))}
			theirs := make(chan error, 1)
			other := gozk.NewLock(c, dir, gozk.WorldACL(gozk.PermAll))
			go func() { theirs <- other.Lock() }() // ends when the test removes the seal
			testenv.Eventually(t, func() bool { return len(children(t, c, dir)) == 5 }, "the lock of go-zookeeper waits")
			seal(t, a, l)
			for _, w := range waiters {
				if l, err := w.End(t); err != driver.ErrSealed {
					t.Errorf("a waiter: got %v, %v, want %v", l, err, driver.ErrSealed)
				}
			}
			if err := l.Release(t.Context()); err != driver.ErrNotHeld {
				t.Errorf("Release of the hold that became a seal: got %v, want %v", err, driver.ErrNotHeld)
			}
			isSealed(t, b, r.Name, lastOf(l))
			if err := b.ForceUnlock(t.Context(), r.Name); err != driver.ErrSealed {
				t.Errorf("ForceUnlock: got %v, want %v", err, driver.ErrSealed)
			}
			status, err := b.Inspect(t.Context(), r.Name)
			if err != nil || !status.Held || status.Owner != "seal" || status.Token != lastOf(l) || status.TTL != 0 || status.Waiters != 1 {
				t.Errorf("Inspect: got %+v, %v, want the seal as the owner, its token, and a waiter", status, err)
			}
			if err := a.Close(guard(t)); err != nil { // with its sessions
				t.Fatal(err)
			}
			list := children(t, c, dir)
			node := strings.TrimPrefix(first(t, c, dir)[0], dir+"/")
			if len(list) != 2 || node[len(node)-10:] != holder[len(holder)-10:] || !strings.HasPrefix(node, "dsync-seal-") {
				t.Errorf("nodes: got %q, want the seal with the number of %q, and a waiter", list, holder)
			}
			if _, stat, err := c.Get(dir + "/" + node); err != nil || stat.EphemeralOwner != 0 {
				t.Errorf("node of the seal: got %+v, %v, want a node of no session", stat, err)
			}
			select {
			case err := <-theirs:
				t.Fatalf("go-zookeeper was granted a sealed lock: %v", err)
			default:
			}
			if err := c.Delete(dir+"/"+node, -1); err != nil {
				t.Fatal(err)
			}
			if err := <-theirs; err != nil { // so it was directly behind the seal
				t.Error(err)
			}
			if err := other.Unlock(); err != nil {
				t.Error(err)
			}
		})
	}
}

// curatorTries has Curator wait for a lock, until a limit, and returns its
// output.
func curatorTries(tb testing.TB, command []string, addr, path, limit string) *testenv.Process {
	tb.Helper()
	return testenv.Spawn(tb, "curator", "ADDR="+addr, "LOCK_PATH="+path, "LIMIT="+limit, "COMMAND="+strings.Join(command, "\n"))
}

// curatorRole becomes a Java program.
func curatorRole() {
	command := strings.Split(os.Getenv("COMMAND"), "\n")
	panic(syscall.Exec(command[0], command, os.Environ()))
}

func TestCuratorWaitsForASealAndIgnoresMarks(t *testing.T) {
	command := testenv.Curator(t, "../../test/interop/java-curator/Try.java", "Try")
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "zk://%s", s.Addr)
	l := acquire(t, d, request("marked"))
	mark(t, d, l, 1000)
	before := curatorTries(t, command, s.Addr, "/marked", "60000")
	testenv.Eventually(t, func() bool { return len(children(t, c, "/marked")) == 3 }, "Curator waits behind us")
	release(t, l)
	if got := before.Line(); got != "granted" {
		t.Errorf("Curator on a marked lock: got %q, want it granted", got)
	}
	release(t, acquire(t, d, request("marked")))
	if got := curatorTries(t, command, s.Addr, "/marked", "60000").Line(); got != "granted" {
		t.Errorf("Curator on a marked lock that is free: got %q, want it granted", got)
	}

	l = acquire(t, d, request("sealed"))
	before = curatorTries(t, command, s.Addr, "/sealed", "3000")
	testenv.Eventually(t, func() bool { return len(children(t, c, "/sealed")) == 2 }, "Curator waits behind us")
	seal(t, d, l)
	after := curatorTries(t, command, s.Addr, "/sealed", "500")
	for _, p := range []*testenv.Process{before, after} {
		if got := p.Line(); got != "refused" {
			t.Errorf("Curator on a sealed lock: got %q, want a refusal at its limit", got)
		}
	}
	isSealed(t, d, "sealed", lastOf(l))
}

func TestSealAndMarkNeedTheHold(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
	a.CheckAfter(time.Hour) // so that no watch reports it
	for what, change := range map[string]func(l driver.Lease) error{
		"seal": func(l driver.Lease) error { return a.Seal(t.Context(), l) },
		"mark": func(l driver.Lease) error { return a.Mark(t.Context(), l, 1<<61) },
	} {
		for _, r := range kinds(what) {
			l := acquire(t, a, r)
			next := wait(t, b, request(r.Name))
			removeFirst(t, c, "/"+r.Name)
			h := next.Granted(t)
			nodes := children(t, c, "/"+r.Name)
			if err := change(l); err != driver.ErrNotHeld {
				t.Errorf("%s: got %v, want %v", r.Name, err, driver.ErrNotHeld)
			}
			wantErr(t, r.Name, lostBy(t, r), driver.ErrRemoved)
			if err := change(l); err != driver.ErrNotHeld {
				t.Errorf("%s again: got %v, want %v", r.Name, err, driver.ErrNotHeld)
			}
			if got := children(t, c, "/"+r.Name); !slices.Equal(got, nodes) {
				t.Errorf("%s: nodes: got %q, want them as before, %q", r.Name, got, nodes)
			}
			release(t, h)
		}
	}
}

// TestSealWhoseAnswerIsLost has a seal that its holder does not know of. The
// seal stays regardless of what the holder does next.
func TestSealWhoseAnswerIsLost(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	b := openURL(t, "zk://%s", s.Addr)
	for what, r := range kinds("a") {
		a := openURL(t, "zk://%s", addr)
		l := acquire(t, a, r)
		w := wait(t, a, request(r.Name))
		trap := link.LoseReply("dsync-seal-")
		wantErr(t, what, a.Seal(guard(t), l), driver.ErrUnknown)
		<-trap
		if r.Fixed { // a repeated request returns the state of the hold
			seal(t, a, l)
		}
		if err := l.Release(guard(t)); err != driver.ErrNotHeld {
			t.Errorf("%s: Release: got %v, want %v", what, err, driver.ErrNotHeld)
		}
		if l, err := w.End(t); err != driver.ErrSealed {
			t.Errorf("%s: a waiter: got %v, %v, want %v", what, l, err, driver.ErrSealed)
		}
		if err := a.Close(guard(t)); err != nil {
			t.Error(err)
		}
		isSealed(t, b, r.Name, lastOf(l))
	}
}

// TestSealThatArrivesLate has the seal reach the server together with the next
// requests of the holder, or never.
func TestSealThatArrivesLate(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	b := openURL(t, "zk://%s", s.Addr)
	for _, lost := range []bool{true, false} {
		for _, r := range kinds(fmt.Sprint(lost)) {
			a := openURL(t, "zk://%s", addr)
			drivertest.LateSeal(t, a, b, r, func() { link.Hold(wire.Requests) }, func() {
				if lost {
					link.Cut()
				}
				link.Heal()
			}, lost)
		}
	}
}

func TestSealsAndMarksSurviveARestart(t *testing.T) {
	s := testenv.ZooKeeper(t)
	drivertest.SurviveRestart(t, openURL(t, "zk://%s", s.Addr), 1<<61, s.Restart)
}

// TestTokensAboveTheFloor has waiters of all kinds queue before the mark, and
// be granted after it.
func TestTokensAboveTheFloor(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
	l := acquire(t, a, request("x"))
	waiters := []*drivertest.Waiter{
		wait(t, a, request("x")), wait(t, a, request("x")), wait(t, b, request("x")), wait(t, a, fixed(request("x"), 30*time.Second)), wait(t, b, request("x")),
	}
	const floor = 1 << 60
	last := uint64(floor)
	rises := func(what string, d *zk.Driver, l driver.Lease) {
		t.Helper()
		marked, err := d.Marked(t.Context(), l)
		if token(l) <= last || !marked || err != nil {
			t.Errorf("%s: token %d, marked %t, %v, want a token above %d, and true", what, token(l), marked, err, last)
		}
		last = lastOf(l)
	}
	for _, floor := range []uint64{floor, 1, 0} {
		mark(t, a, l, floor)
		rises("the holder", a, l)
	}
	if status, err := a.Inspect(t.Context(), "x"); err != nil || status.Token != lastOf(l) {
		t.Errorf("Inspect: got %+v, %v, want the token %d", status, err, lastOf(l))
	}
	for i, w := range waiters {
		release(t, l)
		l = w.Granted(t)
		rises("a waiter", []*zk.Driver{a, a, b, a, b}[i], l)
	}
	for _, child := range children(t, c, "/x") { // the holder does not know of it
		if strings.HasPrefix(child, "dsync-mark-") {
			if err := c.Delete("/x/"+child, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	mark(t, b, l, 2*floor)
	if last = 2 * floor; token(l) <= last {
		t.Errorf("token after a second mark: got %d, want more than %d", token(l), last)
	}
	last = lastOf(l)
	release(t, l)
	for _, r := range []*driver.Request{request("x"), noWait("x"), fixed(noWait("x"), 30*time.Second)} {
		for _, d := range []*zk.Driver{a, b} {
			l = acquire(t, d, r)
			rises("a grant", d, l)
			release(t, l)
			r = noWait("x")
		}
	}
	l = acquire(t, b, request("x"))
	if err := b.Mark(t.Context(), l, 1<<63); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a floor without room above it: got %v, want %v", err, errors.ErrUnsupported)
	}
	seal(t, b, l)
	isSealed(t, a, "x", lastOf(l))
}

// TestMarkWhoseAnswerIsLost checks that the next tokens are above the floor
// anyway, including those of the next waiter in the queue.
func TestMarkWhoseAnswerIsLost(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	a := openURL(t, "zk://%s", addr)
	l := acquire(t, a, request("a"))
	w := wait(t, a, request("a"))
	trap := link.LoseReply("dsync-mark-")
	wantErr(t, "Mark", a.Mark(guard(t), l, 1<<61), driver.ErrUnknown)
	<-trap
	release(t, l)
	next := w.Granted(t)
	if done, err := a.Marked(t.Context(), next); !done || err != nil || token(next) <= 1<<61 {
		t.Errorf("the next grant: marked %t, %v, token %d, want true and one above the floor", done, err, token(next))
	}
	release(t, next)
}

// TestNamesLikeSealsAndMarks has names below another name that look like the
// seals and marks of that name.
func TestNamesLikeSealsAndMarks(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "zk://%s", s.Addr)
	for _, below := range []string{"dsync-seal-5", "dsync-seal-5-lock-0000000001", "dsync-seal-5-61-lock-0000000001",
		"dsync-mark-5", "dsync-mark-5-lock-2147483647", "dsync-base-5-lock-2147483647"} {
		h := acquire(t, d, request("a/"+below))
		l := acquire(t, d, noWait("a"))
		if marked, err := d.Marked(t.Context(), l); marked || err != nil {
			t.Errorf("next to %q: marked %t, %v, want false", below, marked, err)
		}
		if _, sealed, err := d.Sealed(t.Context(), "a"); sealed || err != nil {
			t.Errorf("next to %q: sealed %t, %v, want false", below, sealed, err)
		}
		release(t, l)
		release(t, h)
	}
	// A mark is not a contender, nor does go-zookeeper see it as one.
	l := acquire(t, d, request("b"))
	mark(t, d, l, 0)
	other := gozk.NewLock(c, "/b", gozk.WorldACL(gozk.PermAll))
	theirs := make(chan error, 1)
	go func() { theirs <- other.Lock() }() // ends when we release
	testenv.Eventually(t, func() bool { return len(children(t, c, "/b")) == 3 }, "they wait behind us")
	release(t, l)
	if err := <-theirs; err != nil {
		t.Fatal(err)
	}
	if err := other.Unlock(); err != nil {
		t.Error(err)
	}
	if status, err := d.Inspect(t.Context(), "b"); err != nil || status.Held {
		t.Errorf("Inspect of a marked name: got %+v, %v, want it free", status, err)
	}
	wantErr(t, "ForceUnlock", d.ForceUnlock(t.Context(), "b"), driver.ErrNotHeld)
}

func TestRoundTripsOfSealsAndMarks(t *testing.T) {
	s := testenv.ZooKeeper(t, "maxSessionTimeout=600000") // so that there are no pings
	d := openURL(t, "zk://%s?ttl=10m", s.Addr)
	d.CheckAfter(time.Hour) // nor watches of locks that are held for a while
	d.NudgeAfter(time.Hour)
	long := func(r *driver.Request) *driver.Request { return withTTL(r, 10*time.Minute) }
	var l driver.Lease
	take := func(r *driver.Request) func() { return func() { l = acquire(t, d, long(r)) } }
	give := func() { release(t, l) }
	refused := func(r *driver.Request) func() { return func() { d.Acquire(t.Context(), long(r)) } }
	for _, step := range []struct {
		what string
		do   func()
		want int64
	}{
		{"lock", take(request("a")), 1},
		{"mark", func() { mark(t, d, l, 1<<61) }, 1},
		{"marked?", func() { d.Marked(t.Context(), l) }, 0},
		{"release of a marked name", give, 1},
		{"lock of a marked name", take(request("a")), 2},
		{"release of that name", give, 1},
		{"lock of a marked name again", take(request("a")), 2},
		{"unmark", func() { unmark(t, d, l) }, 1},
		{"release after that", give, 1},
		{"lock of a name that was marked", take(request("a")), 2},
		{"seal", func() { seal(t, d, l) }, 1},
		{"try of a sealed name", refused(noWait("a")), 2},
		{"lock of a sealed name", refused(request("a")), 3},
		{"sealed?", func() { d.Sealed(t.Context(), "a") }, 2}, // of which one is a Sync
		{"loosen", func() { loosen(t, d, "a", "1", 1<<62) }, 3},
		{"loosen again", func() { loosen(t, d, "a", "2", 0) }, 3},
		{"unseal", func() { unseal(t, d, "a", "2") }, 3},
		{"lock of a name that was sealed", take(request("a")), 2},
		{"release of that name", give, 1},
	} {
		if got := requests(t, s, step.do); got != step.want {
			t.Errorf("requests of a %s: got %d, want %d", step.what, got, step.want)
		}
	}
	if got := children(t, userClient(t, s.Addr), "/a"); len(got) != 1 {
		t.Errorf("nodes: got %q, want only the number added to the tokens", got)
	}
}
