package etcd_test

import (
	"errors"
	"fmt"
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

func TestSealAnswersWaitersAndStays(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	for what, r := range kinds("orders") {
		t.Run(what, func(t *testing.T) {
			a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
			name, dir := r.Name, r.Name+"/"
			l := acquire(t, a, r)
			before, err := c.Get(t.Context(), keys(t, c, dir)[0])
			if err != nil {
				t.Fatal(err)
			}
			own, other := wait(t, a, request(name)), wait(t, b, request(name))
			mutex, theirs := newMutex(t, c, name), make(chan error, 1)
			go func() { theirs <- mutex.Lock(guard(t)) }() // ends when the test removes the seal
			testenv.Eventually(t, func() bool { return len(keys(t, c, dir)) == 4 }, "the mutex waits")
			behind := wait(t, b, request(name))
			seal(t, a, l)
			for _, w := range []*drivertest.Waiter{own, other, behind} {
				if l, err := w.End(t); err != driver.ErrSealed {
					t.Errorf("a waiter: got %v, %v, want %v", l, err, driver.ErrSealed)
				}
			}
			if err := l.Release(t.Context()); err != driver.ErrNotHeld {
				t.Errorf("Release of the hold that became a seal: got %v, want %v", err, driver.ErrNotHeld)
			}
			isSealed(t, b, name, token(l))
			if err := b.ForceUnlock(t.Context(), name); err != driver.ErrSealed {
				t.Errorf("ForceUnlock: got %v, want %v", err, driver.ErrSealed)
			}
			status, err := b.Inspect(t.Context(), name)
			if err != nil || !status.Held || status.Owner != "seal" || status.Token != token(l) || status.TTL != 0 || status.Waiters != 1 {
				t.Errorf("Inspect: got %+v, %v, want the seal as the owner, its token, and the mutex", status, err)
			}
			if err := a.Close(guard(t)); err != nil { // with all its leases
				t.Fatal(err)
			}
			after, err := c.Get(t.Context(), string(before.Kvs[0].Key))
			if err != nil || len(after.Kvs) != 1 || after.Kvs[0].CreateRevision != before.Kvs[0].CreateRevision || after.Kvs[0].Lease != 0 {
				t.Errorf("key of the holder: got %v, %v, want the key of %v without a lease", after, err, before)
			}
			refusesMutexes(t, c, name)
			select {
			case err := <-theirs:
				t.Fatalf("the mutex was granted a sealed lock: %v", err)
			default:
			}
			if _, err := c.Delete(t.Context(), string(before.Kvs[0].Key)); err != nil {
				t.Fatal(err)
			}
			if err := <-theirs; err != nil { // so it was directly behind the seal
				t.Error(err)
			}
			isSealed(t, b, name, token(l))
		})
	}
}

// refusesMutexes has other clients try to acquire a lock, repeatedly.
func refusesMutexes(tb testing.TB, c *clientv3.Client, name string) {
	tb.Helper()
	for range 20 {
		if err := newMutex(tb, c, name).TryLock(guard(tb)); err != concurrency.ErrLocked {
			tb.Fatalf("their TryLock: got %v, want %v", err, concurrency.ErrLocked)
		}
	}
}

func TestEtcdctlWaitsForASeal(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("orders"))
	granted, end := etcdctlLock(t, s, "orders")
	testenv.Eventually(t, func() bool { return len(keys(t, c, "orders/")) == 2 }, "etcdctl waits")
	seal(t, d, l)
	for range 20 {
		isSealed(t, d, "orders", token(l))
	}
	select {
	case <-granted:
		t.Error("etcdctl was granted a sealed lock")
	default:
	}
	remove(t, c, "orders")
	if theirs := <-granted; theirs <= token(l) {
		t.Errorf("token of etcdctl: got %d, want more than %d", theirs, token(l))
	}
	end()
}

func TestSealAndMarkNeedTheHold(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	for _, next := range []bool{false, true} {
		for what, r := range kinds(fmt.Sprint(next)) {
			name := r.Name
			l := acquire(t, a, r)
			remove(t, c, name)
			var h driver.Lease
			if next {
				h = acquire(t, b, request(name))
			}
			before := revision(t, c)
			if err := a.Mark(t.Context(), l, 1<<40); err != driver.ErrNotHeld {
				t.Errorf("%s: Mark: got %v, want %v", what, err, driver.ErrNotHeld)
			}
			wantErr(t, what, lostBy(t, r), driver.ErrRemoved)
			if err := a.Seal(t.Context(), l); err != driver.ErrNotHeld {
				t.Errorf("%s: Seal: got %v, want %v", what, err, driver.ErrNotHeld)
			}
			if got := revision(t, c); got != before {
				t.Errorf("%s: changes: got %d, want none", what, got-before)
			}
			r = fixed(request(name), 30*time.Second)
			if !next {
				l = acquire(t, a, r)
				remove(t, c, name)
				if err := a.Seal(t.Context(), l); err != driver.ErrNotHeld {
					t.Errorf("%s: Seal: got %v, want %v", what, err, driver.ErrNotHeld)
				}
				wantErr(t, what, lostBy(t, r), driver.ErrRemoved)
				h = acquire(t, b, request(name))
			}
			if marked, err := b.Marked(t.Context(), h); marked || err != nil {
				t.Errorf("%s: Marked: got %t, %v, want false", what, marked, err)
			}
			release(t, h)
			if _, sealed, err := b.Sealed(t.Context(), name); sealed || err != nil {
				t.Errorf("%s: Sealed: got %t, %v, want false", what, sealed, err)
			}
		}
	}
}

// TestSealWhoseAnswerIsLost has a seal that its holder does not know of. The
// seal stays regardless of what the holder does next.
func TestSealWhoseAnswerIsLost(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	b := openURL(t, "etcd://%s", s.Addr)
	for what, r := range kinds("a") {
		a := openURL(t, "etcd://%s", addr)
		name, dir := r.Name, r.Name+"/"
		l := acquire(t, a, r)
		key := keys(t, c, dir)[0]
		held := link.HoldReply(key)
		sealed := make(chan error, 1)
		go func() { sealed <- a.Seal(guard(t), l) }() // ends when the connection is cut
		<-held
		testenv.Eventually(t, func() bool { _, done, _ := b.Sealed(t.Context(), name); return done }, "the server has handled the request")
		link.Cut()
		wantErr(t, what, <-sealed, driver.ErrUnknown)
		link.Heal()
		if r.Fixed { // a repeated request returns the state of the hold
			seal(t, a, l)
		}
		if err := l.Release(guard(t)); err != driver.ErrNotHeld {
			t.Errorf("%s: Release: got %v, want %v", what, err, driver.ErrNotHeld)
		}
		if err := a.Close(guard(t)); err != nil {
			t.Error(err)
		}
		isSealed(t, b, name, token(l))
		if got := keys(t, c, dir); len(got) != 1 || got[0] != key {
			t.Errorf("%s: keys: got %q, want %q", what, got, key)
		}
	}
}

// TestSealThatArrivesLate has the seal reach the server together with the next
// requests of the holder, or never.
func TestSealThatArrivesLate(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	b := openURL(t, "etcd://%s", s.Addr)
	for _, lost := range []bool{true, false} {
		for _, r := range kinds(fmt.Sprint(lost)) {
			a := openURL(t, "etcd://%s", addr)
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
	s := testenv.Etcd(t)
	drivertest.SurviveRestart(t, openURL(t, "etcd://%s", s.Addr), 1<<40, s.Restart)
}

// TestTokensAboveTheFloor has waiters of all kinds queue before the mark, and
// be granted after it.
func TestTokensAboveTheFloor(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s/p/", s.Addr), openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, a, request("x"))
	waiters := []*drivertest.Waiter{
		wait(t, a, request("x")), wait(t, b, request("p/x")), wait(t, a, fixed(request("x"), 30*time.Second)), wait(t, b, request("p/x")),
	}
	const floor = 1 << 50
	last := uint64(floor)
	rises := func(what string, d *etcd.Driver, l driver.Lease) {
		t.Helper()
		marked, err := d.Marked(t.Context(), l)
		if token(l) <= last || !marked || err != nil {
			t.Errorf("%s: token %d, marked %t, %v, want a token above %d, and true", what, token(l), marked, err, last)
		}
		last = token(l)
	}
	for _, floor := range []uint64{floor, 1, 0} {
		mark(t, a, l, floor)
		rises("the holder", a, l)
	}
	if status, err := a.Inspect(t.Context(), "x"); err != nil || status.Token != last {
		t.Errorf("Inspect: got %+v, %v, want the token %d", status, err, last)
	}
	for i, w := range waiters {
		release(t, l)
		l = w.Granted(t)
		rises("a waiter", []*etcd.Driver{a, b}[i%2], l)
	}
	if _, err := c.Delete(t.Context(), "p/x\x00", clientv3.WithPrefix()); err != nil { // the holder does not know of it
		t.Fatal(err)
	}
	mark(t, b, l, 2*floor)
	if last = 2 * floor; token(l) <= last {
		t.Errorf("token after a second mark: got %d, want more than %d", token(l), last)
	}
	release(t, l)
	for _, r := range []*driver.Request{request("p/x"), noWait("p/x"), fixed(noWait("p/x"), 30*time.Second)} {
		l = acquire(t, b, r)
		rises("a grant", b, l)
		release(t, l)
	}
	l = acquire(t, b, request("p/x"))
	wantErr(t, "a floor without room above it", b.Mark(t.Context(), l, 1<<63), errors.ErrUnsupported)
	seal(t, b, l)
	isSealed(t, a, "x", token(l))
}

// TestMarkWhoseAnswerIsLost checks that the next tokens are above the floor
// even if the answer to the mark is lost.
func TestMarkWhoseAnswerIsLost(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	a := openURL(t, "etcd://%s", addr)
	l := acquire(t, a, request("a"))
	w := wait(t, a, request("a"))
	held := link.HoldReply("a\x00mark")
	marked := make(chan error, 1)
	go func() { marked <- a.Mark(guard(t), l, 1<<40) }() // ends when the connection is cut
	<-held
	testenv.Eventually(t, func() bool { return len(keys(t, c, "a\x00mark")) == 1 }, "the server has handled the request")
	link.Cut()
	wantErr(t, "Mark", <-marked, driver.ErrUnknown)
	link.Heal()
	release(t, l)
	next := w.Granted(t)
	if done, err := a.Marked(t.Context(), next); !done || err != nil || token(next) <= 1<<40 {
		t.Errorf("the next grant: marked %t, %v, token %d, want true and one above the floor", done, err, token(next))
	}
	release(t, next)
}

// TestMarksAreNoContenders has marks on a name and on many longer names.
func TestMarksAreNoContenders(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	for _, name := range []string{"a", "a/0", "a/1", "a/2", "a/3", "a/4", "a/5", "a/6", "a/7", "a/8", "a/9"} {
		l := acquire(t, d, request(name))
		mark(t, d, l, 1000)
		release(t, l)
	}
	l := acquire(t, d, noWait("a"))
	w := wait(t, d, request("a"))
	if status, err := d.Inspect(t.Context(), "a"); err != nil || status.Waiters != 1 {
		t.Errorf("Inspect: got %+v, %v, want one waiter", status, err)
	}
	release(t, l)
	release(t, w.Granted(t))
	below := newMutex(t, c, "a/0")
	if err := below.TryLock(t.Context()); err != nil {
		t.Errorf("a mutex on a marked name: %v", err)
	}
	if err := below.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	l = acquire(t, d, request("b"))
	mark(t, d, l, 0)
	release(t, l)
	if status, err := d.Inspect(t.Context(), "b"); err != nil || status.Held {
		t.Errorf("Inspect of a marked name: got %+v, %v, want it free", status, err)
	}
	wantErr(t, "ForceUnlock", d.ForceUnlock(t.Context(), "b"), driver.ErrNotHeld)
}

// counter counts a driver's requests to a server.
type counter struct {
	server *testenv.EtcdServer
	client *clientv3.Client
}

// count fails the test unless f makes the given number of changes in the given
// number of requests.
func (n counter) count(t *testing.T, what string, changes int64, want map[string]int64, f func()) {
	t.Helper()
	revisions, before := revision(t, n.client), n.server.Requests()
	f()
	got := n.server.Requests()
	for _, method := range []string{"Txn", "DeleteRange", "Range", "LeaseGrant", "Watch", "Put"} {
		if n := got[method] - before[method]; n != want[method] {
			t.Errorf("%s: requests %s: got %d, want %d", what, method, n, want[method])
		}
	}
	if got := revision(t, n.client) - revisions; got != changes {
		t.Errorf("%s: changes: got %d, want %d", what, got, changes)
	}
}

func TestRoundTripsOfSealsAndMarks(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	n := counter{s, c}
	var l driver.Lease
	release(t, acquire(t, d, request("warm")))
	one, none := map[string]int64{"Txn": 1}, map[string]int64{}
	deletion := map[string]int64{"DeleteRange": 1}
	take := func() { l = acquire(t, d, request("a")) }
	give := func() { release(t, l) }
	take()
	n.count(t, "mark", 1, one, func() { mark(t, d, l, 1<<40) })
	give()
	n.count(t, "lock of a marked name", 1, one, take)
	n.count(t, "marked?", 0, none, func() { d.Marked(t.Context(), l) })
	n.count(t, "release of a marked name", 1, deletion, give)
	take()
	n.count(t, "unmark", 1, one, func() { unmark(t, d, l) })
	give()
	n.count(t, "lock of a name that was marked", 1, one, take)
	n.count(t, "release of that name", 1, deletion, give)
	take()
	n.count(t, "seal", 1, one, func() { seal(t, d, l) })
	for _, r := range []*driver.Request{request("a"), noWait("a")} {
		n.count(t, "lock of a sealed name", 0, one, func() { d.Acquire(t.Context(), r) })
	}
	n.count(t, "sealed?", 0, map[string]int64{"Range": 1}, func() { d.Sealed(t.Context(), "a") })
	if got, err := c.Get(t.Context(), "a\x00seal", clientv3.WithCountOnly()); err != nil || got.Count != 1 {
		t.Errorf("record of the seal: got %v, %v, want one record", got, err)
	}
	n.count(t, "loosen", 1, one, func() { loosen(t, d, "a", "1", 0) })
	n.count(t, "loosen with a floor", 1, map[string]int64{"Range": 1, "Txn": 1}, func() { loosen(t, d, "a", "2", 1) })
	n.count(t, "unseal", 1, map[string]int64{"Txn": 2}, func() { unseal(t, d, "a", "2") })
	n.count(t, "lock of a name that was sealed", 1, one, take)
	n.count(t, "release of that name", 1, deletion, give)
}
