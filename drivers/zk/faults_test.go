package zk_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// spy is a connection that keeps the first bytes from the server: the session,
// and its password.
type spy struct {
	net.Conn
	mu    *sync.Mutex
	hello *[]byte
}

func (s spy) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.hello = append(*s.hello, b[:n]...)
	return n, err
}

// openSpied opens a driver. It also returns a function that ends its session on
// the server.
func openSpied(tb testing.TB, addr string) (*zk.Driver, func()) {
	tb.Helper()
	var mu, gate sync.Mutex
	var hello []byte
	d, err := zk.New(guard(tb), []string{addr}, &zk.Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		gate.Lock() // a client that reconnects while the session is being ended would keep it
		defer gate.Unlock()
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		hello = nil
		return spy{c, &mu, &hello}, nil
	}})
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, d)
	return d, func() {
		tb.Helper()
		gate.Lock()
		defer gate.Unlock()
		mu.Lock()
		// Length, version, timeout, session, password.
		session, password := hello[12:20], hello[24:40]
		mu.Unlock()
		endSession(tb, addr, session, password)
	}
}

func endSession(tb testing.TB, addr string, session, password []byte) {
	tb.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	hello := binary.BigEndian.AppendUint32(nil, 44)
	hello = append(hello, make([]byte, 12)...)
	hello = binary.BigEndian.AppendUint32(hello, 30_000)
	hello = append(hello, session...)
	hello = binary.BigEndian.AppendUint32(hello, 16)
	hello = append(hello, password...)
	if _, err := c.Write(hello); err != nil {
		tb.Fatal(err)
	}
	end := int32(-11)
	bye := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8, 0, 0, 0, 1}, uint32(end))
	if _, err := c.Write(bye); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		tb.Fatal(err)
	}
}

func TestSessionThatTheServerEnded(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	a, end := openSpied(t, s.Addr)
	b := openURL(t, "zk://%s", s.Addr)
	r1, r2 := request("a"), request("b")
	l := acquire(t, a, r1)
	acquire(t, a, r2)
	h := acquire(t, b, request("c"))
	w1, w2 := wait(t, b, request("a")), wait(t, a, request("c"))
	end()
	next := w1.Granted(t)
	for _, r := range []*driver.Request{r1, r2} {
		wantErr(t, "loss", lostBy(t, r), driver.ErrSessionEnded)
	}
	wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
	release(t, next)
	testenv.Eventually(t, func() bool { return len(children(t, c, "/c")) == 2 }, "the waiter waits again")
	release(t, h)
	release(t, w2.Granted(t))
	release(t, acquire(t, a, request("a")))
}

// TestAnswerLost cuts the connection when the server has made the node. The
// lock is granted anyway, with that node.
func TestAnswerLost(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "zk://%s", addr), openURL(t, "zk://%s", s.Addr)
	for _, cuts := range []int{1, 2} {
		l := acquire(t, b, request("a"))
		trap := link.LoseReply("-lock-")
		w := begin(a, request("a"))
		<-trap
		if cuts == 2 { // the second while it searches for the node
			select {
			case <-link.LoseReply("/a"):
			case <-w.Done:
			case <-time.After(hangGuard):
				t.Fatal("the driver does not look for the node")
			}
		}
		testenv.Eventually(t, func() bool { return len(children(t, c, "/a")) == 2 }, "the waiter has one node")
		release(t, l)
		release(t, w.Granted(t))
		trap = link.LoseReply("-lock-")
		w = begin(a, request("a"))
		<-trap
		release(t, w.Granted(t))
		testenv.Eventually(t, func() bool { return len(children(t, c, "/a")) == 0 }, "no node is left")
	}
}

// TestCanceledBeforeTheAnswer ends the context while the server has made the
// node and the answer is on its way.
func TestCanceledBeforeTheAnswer(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	link, addr := testenv.Wire(t, s.Addr)
	a := openURL(t, "zk://%s", addr)
	for _, cut := range []bool{false, true} {
		name := fmt.Sprint("cut-", cut)
		release(t, acquire(t, a, request("warm")))
		trap := link.HoldReply("-lock-")
		w := begin(a, request(name))
		<-trap
		testenv.Eventually(t, func() bool { return len(children(t, c, "/"+name)) == 1 }, "the server has made the node")
		w.Cancel()
		l, err := w.End(t)
		if l != nil {
			t.Fatal("granted without an answer")
		}
		wantErr(t, "Acquire", err, driver.ErrUnknown, context.Canceled)
		if errors.Is(err, driver.ErrLocked) {
			t.Errorf("Acquire: got %v, which means that another client holds the lock", err)
		}
		if cut {
			link.Cut()
		}
		link.Heal()
		testenv.Eventually(t, func() bool {
			exists, _, err := c.Exists("/" + name)
			return err == nil && !exists
		}, "no node is left")
	}
}

// TestReleaseWhoseAnswerIsLost checks that such a release counts as done.
func TestReleaseWhoseAnswerIsLost(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	a := openURL(t, "zk://%s", addr)
	l := acquire(t, a, request("a"))
	trap := link.LoseReply("-lock-")
	release(t, l)
	<-trap
	wantErr(t, "second Release", l.Release(t.Context()), driver.ErrNotHeld)
	release(t, acquire(t, a, request("a")))
}

// openPair opens two drivers for a lock that one waits for while the other
// holds it. The only watch on the server is the waiter's.
func openPair(tb testing.TB, one, other string) (a, b *zk.Driver) {
	tb.Helper()
	a, b = openURL(tb, "zk://%s", one), openURL(tb, "zk://%s", other)
	for _, d := range []*zk.Driver{a, b} {
		d.CheckAfter(time.Hour)
		d.NudgeAfter(time.Hour)
	}
	return a, b
}

// TestHandOverBetweenClients checks that the requests that a hand-over waits
// for bypass the library, unless it is writing at this moment.
func TestHandOverBetweenClients(t *testing.T) {
	s := testenv.ZooKeeper(t)
	a, b := openPair(t, s.Addr, s.Addr)
	l := acquire(t, a, request("a"))
	const handOvers = 10
	for range handOvers {
		w := wait(t, b, request("a"))
		testenv.Eventually(t, func() bool { return s.Watches() == 1 }, "the waiter watches the holder")
		release(t, l)
		l = w.Granted(t)
		a, b = b, a
	}
	// Each hand-over has a list and a deletion, except the first, which must
	// also remove the node of the name.
	if got, most := a.Direct()+b.Direct(), 2*handOvers-1; got < most/2 || got > most {
		t.Errorf("%d hand-overs: got %d requests past the library, want %d", handOvers, got, most)
	}
}

// TestCanceledWhileItLooks ends the wait when the contender before it is gone,
// and the answer that shows the next contender is on its way.
func TestCanceledWhileItLooks(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openPair(t, s.Addr, addr)
	for _, cut := range []bool{false, true} {
		l := acquire(t, a, request("a"))
		w := wait(t, b, request("a"))
		testenv.Eventually(t, func() bool { return s.Watches() == 1 }, "the waiter watches the holder")
		trap := link.HoldReply("/a")
		release(t, l)
		<-trap
		w.Cancel()
		got, err := w.End(t)
		if got != nil {
			t.Fatal("granted without an answer")
		}
		wantErr(t, "Acquire", err, context.Canceled)
		if cut {
			link.Cut()
		}
		link.Heal()
		testenv.Eventually(t, func() bool { return len(children(t, c, "/a")) == 0 }, "no node is left")
		release(t, acquire(t, b, request("a")))
	}
}

// TestConnectionLostWhileItLooks cuts the connection when the waiter has
// requested the contenders. It must repeat the request.
func TestConnectionLostWhileItLooks(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openPair(t, s.Addr, addr)
	for range 5 {
		l := acquire(t, a, request("a"))
		w := wait(t, b, request("a"))
		testenv.Eventually(t, func() bool { return s.Watches() == 1 }, "the waiter watches the holder")
		trap := link.LoseReply("/a")
		release(t, l)
		<-trap
		l = w.Granted(t)
		trap = link.LoseReply("-lock-")
		release(t, l) // whose answer is lost
		<-trap
		wantErr(t, "second Release", l.Release(t.Context()), driver.ErrNotHeld)
	}
}

// TestHolderThatIsCutOff checks that a holder learns of the loss before the
// next client is granted the lock.
func TestHolderThatIsCutOff(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "zk://%s?ttl=1s", addr), openURL(t, "zk://%s", s.Addr)
	for name, r := range map[string]*driver.Request{"kept": withTTL(request("a"), time.Second), "fixed": fixed(request("b"), time.Second)} {
		l := acquire(t, a, r)
		w := wait(t, b, request(r.Name))
		link.Hold(wire.Both)
		next := w.Granted(t)
		if now := time.Now(); now.Before(l.Expires()) {
			t.Errorf("%s: the next client was granted the lock %v before Expires", name, l.Expires().Sub(now))
		}
		if !r.Fixed {
			wantErr(t, "loss", lostBy(t, r), driver.ErrSessionEnded)
		}
		link.Heal()
		release(t, next)
		wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
	}
}

// TestRemovedNode has an administrator remove nodes.
func TestRemovedNode(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
	r := request("a")
	l := acquire(t, a, r)
	w := wait(t, b, request("a"))
	if err := b.ForceUnlock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	next := w.Granted(t)
	wantErr(t, "loss", lostBy(t, r), driver.ErrRemoved)
	wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
	// A waiter's node: the waiter queues again.
	w = wait(t, a, request("a"))
	nodes := children(t, c, "/a")
	holder := strings.TrimPrefix(first(t, c, "/a")[0], "/a/")
	for _, node := range nodes {
		if node != holder {
			if err := c.Delete("/a/"+node, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	release(t, next)
	release(t, w.Granted(t))
	wantErr(t, "ForceUnlock of a free lock", b.ForceUnlock(t.Context(), "a"), driver.ErrNotHeld)
}

// TestThrottlingServer has a server defer requests because it is too busy. All
// of them are repeated.
func TestThrottlingServer(t *testing.T) {
	s := testenv.ZooKeeper(t, "-Dzookeeper.request_throttle_max_requests=1", "-Dzookeeper.request_throttle_stall_time=5",
		"-Dzookeeper.throttled_op_wait_time=1")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 2 {
		d := openURL(t, "zk://%s", s.Addr)
		for w := range 16 {
			all.Go(func() {
				for ctx.Err() == nil {
					r := request(fmt.Sprint("q/", w%8))
					if w%4 == 0 {
						r.Name += "p"
						r.Mode, r.Permits, r.Limit = driver.Permit, 1, 2
					}
					l, err := d.Acquire(ctx, r)
					if err == nil {
						err = l.Release(guard(t))
					}
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
}

// halfOpen opens a driver. After hang its connections are silent, and new ones
// work.
func halfOpen(tb testing.TB, s *testenv.ZooKeeperServer, ttl time.Duration) (d *zk.Driver, hang func()) {
	tb.Helper()
	link, addr := testenv.Wire(tb, s.Addr)
	var hung atomic.Bool
	d, err := zk.New(guard(tb), []string{s.Addr}, &zk.Options{TTL: ttl, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		to := addr
		if hung.Load() {
			to = s.Addr
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return d, func() {
		hung.Store(true)
		link.Drop(wire.Both)
	}
}

// TestConnectionsThatHang checks that calls, waiters and Close soon use a new
// connection, regardless of the TTL.
func TestConnectionsThatHang(t *testing.T) {
	const ttl, soon = time.Minute, 20 * time.Second // the bound is 5 s, on a machine that is not busy
	s := testenv.ZooKeeper(t)
	long := func(r *driver.Request) *driver.Request { return withTTL(r, ttl) }
	other, err := zk.New(guard(t), []string{s.Addr}, &zk.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, other)
	for what, begin := range map[string]func(d *zk.Driver, name string) func(){
		"lock":  func(d *zk.Driver, name string) func() { return func() { acquire(t, d, long(request(name))) } },
		"try":   func(d *zk.Driver, name string) func() { return func() { acquire(t, d, long(noWait(name))) } },
		"close": func(d *zk.Driver, name string) func() { return func() {} },
		"release": func(d *zk.Driver, name string) func() {
			l := acquire(t, d, long(request(name)))
			return func() { release(t, l) }
		},
		"close with a hold": func(d *zk.Driver, name string) func() {
			acquire(t, d, long(request(name)))
			return func() {}
		},
		"waiter": func(d *zk.Driver, name string) func() {
			l := acquire(t, other, long(request(name)))
			w := wait(t, d, long(request(name)))
			return func() {
				release(t, l)
				w.Granted(t)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d, hang := halfOpen(t, s, ttl)
			call := begin(d, what)
			hang()
			start := time.Now()
			call()
			if what == "close" || what == "close with a hold" {
				start = time.Now()
			}
			if err := d.Close(guard(t)); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > soon {
				t.Errorf("took %v, want at most 5 s", took)
			} else {
				t.Logf("took %v", took)
			}
		})
	}
}

// TestServerThatStandsStill freezes a server for a third of a TTL, like a
// virtual machine during a migration. No client loses a lock, although
// connections are constantly given up and replaced.
func TestServerThatStandsStill(t *testing.T) {
	const ttl = 9 * time.Second
	s := testenv.ZooKeeper(t)
	d, other := openURL(t, "zk://%s?ttl=9s", s.Addr), openURL(t, "zk://%s?ttl=9s", s.Addr)
	for _, d := range []*zk.Driver{d, other} {
		d.HangAfter(100 * time.Millisecond)
	}
	r := withTTL(request("x"), ttl)
	l := acquire(t, d, r)
	w := wait(t, other, withTTL(request("x"), ttl))
	begun := time.Now()
	s.Freeze()
	late := begin(d, withTTL(request("y"), ttl))
	<-time.After(ttl/3 - time.Since(begun))
	s.Thaw()
	release(t, late.Granted(t))
	release(t, l)
	release(t, w.Granted(t))
}

// TestFrozenServer checks that no lock is lost when a server is silent for a
// while.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	s := testenv.ZooKeeper(t)
	drivertest.FrozenServerCostsNoLock(t, "zk://"+s.Addr, s.Freeze, s.Thaw)
}

// TestWatchOfADeadSession cuts off a session until it is dead. Each call of a
// watch reports at most a few changes then.
func TestWatchOfADeadSession(t *testing.T) {
	t.Parallel()
	link, addr := testenv.Wire(t, testenv.ZooKeeper(t, shortSessions).Addr)
	d := openURL(t, "zk://%s?ttl=4s", addr)
	var calls atomic.Int64
	stop, err := d.Watch("a", func() { calls.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	r := request("a")
	r.TTL = 4 * time.Second
	acquire(t, d, r)
	testenv.Eventually(t, func() bool { return calls.Load() > 0 }, "the watch reports the hold")
	link.Drop(wire.Both)
	_ = lostBy(t, r)
	time.Sleep(2 * time.Second)
	if n := calls.Load(); n > 100 {
		t.Errorf("the watch has reported %d changes", n)
	}
}
