package zk_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// permits turns a request into one for n permits of limit.
func permits(r *driver.Request, n, limit int) *driver.Request {
	r.Permits, r.Limit = n, limit
	return in(driver.Permit, r)
}

// newPermits is like newFleet, but with a server that removes empty containers
// soon.
func newPermits(t *testing.T, clients int, query string, settings ...string) *fleet {
	t.Helper()
	s := testenv.ZooKeeper(t, append(settings, "-Dznode.container.checkIntervalMs=50")...)
	f := &fleet{ZooKeeperServer: s, users: userClient(t, s.Addr)}
	for range clients {
		f.clients = append(f.clients, openURL(t, "zk://%s%s", s.Addr, query))
	}
	return f
}

// nothingLeft waits until there is no node of a name.
func (f *fleet) nothingLeft(t *testing.T, name string) {
	t.Helper()
	testenv.Eventually(t, func() bool {
		exists, _, err := f.users.Exists("/" + name)
		return err == nil && !exists
	}, "the node of "+name+" is gone")
}

// allFree checks that all permits of a name can be acquired.
func (f *fleet) allFree(t *testing.T, name string, limit int) {
	t.Helper()
	release(t, acquire(t, f.clients[0], permits(noWait(name), limit, limit)))
}

func TestNodesOfPermits(t *testing.T) {
	f := newPermits(t, 2, "")
	a, c := f.clients[0], f.users
	r := permits(request("sem"), 3, 5)
	l := acquire(t, a, r)
	nodes := leases(t, c, "/sem")
	shape := regexp.MustCompile(`^/sem/leases/_c_[0-9a-f]{32}-lease-\d{10}$`)
	for i, node := range nodes {
		text, stat, err := c.Get(node)
		if err != nil || !shape.MatchString(node) || stat.EphemeralOwner == 0 || strings.Contains(string(text), r.Owner) != (i == 0) {
			t.Errorf("node %q: got %q, %+v, %v, want an ephemeral node as Curator makes it, and the owner in the first", node, text, stat, err)
		}
	}
	if len(nodes) != 3 || len(children(t, c, "/sem")) != 1 {
		t.Errorf("nodes: got %q and %q, want three leases and nothing else", nodes, children(t, c, "/sem"))
	}
	if text, _, err := c.Get("/sem"); err != nil || len(text) != 4 || binary.BigEndian.Uint32(text) != 5 {
		t.Errorf("node of the name: got %q, %v, want the limit as in a SharedCount", text, err)
	}
	wantErr(t, "Seal", a.Seal(t.Context(), l), errors.ErrUnsupported)
	wantErr(t, "Mark", a.Mark(t.Context(), l, 1), errors.ErrUnsupported)
	release(t, l)
	f.nothingLeft(t, "sem")
	release(t, acquire(t, a, permits(request("sem"), 1, 2))) // the limit is forgotten
	f.nothingLeft(t, "sem")

	if err := a.SetLimit(t.Context(), "sem", 7); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, a, permits(request("sem"), 7, 0)))
	testenv.Eventually(t, func() bool { return slices.Equal(children(t, c, "/sem"), []string{"%limit"}) }, "only the limit is left")
	f.allFree(t, "sem", 7)
}

// TestLimitsOfOthers has the node of the name contain data other than a limit,
// or no data.
func TestLimitsOfOthers(t *testing.T) {
	f := newPermits(t, 1, "")
	for _, test := range []struct {
		data string
		want error
	}{{"\x00\x00\x00\x03", nil}, {"", nil}, {"\x00\x00\x00\x00", driver.ErrLimit}, {"\xff\xff\xff\xff", driver.ErrLimit}, {"theirs", errors.ErrUnsupported}} {
		name := fmt.Sprintf("x%x", test.data)
		if _, err := f.users.Create("/"+name, []byte(test.data), 0, gozk.WorldACL(gozk.PermAll)); err != nil {
			t.Fatal(err)
		}
		l, err := f.clients[0].Acquire(t.Context(), permits(request(name), 2, 3))
		if !errors.Is(err, test.want) {
			t.Errorf("data %q: got %v, want %v", test.data, err, test.want)
		}
		if l != nil {
			release(t, l)
		}
		if text, _, err := f.users.Get("/" + name); err != nil || test.data != "" && string(text) != test.data {
			t.Errorf("data %q became %q, %v", test.data, text, err)
		}
		if nodes := leases(t, f.users, "/"+name); len(nodes) > 0 {
			t.Errorf("data %q: leases %q are left", test.data, nodes)
		}
	}
	if _, err := f.clients[0].Acquire(t.Context(), permits(request("many"), 5000, 5000)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("5,000 permits in one request: got %v, want %v", err, errors.ErrUnsupported)
	}
	release(t, acquire(t, f.clients[0], permits(request("many"), 500, 500)))
}

// TestRemovedPermit removes one lease of several. All permits of the hold are
// lost and become free.
func TestRemovedPermit(t *testing.T) {
	f := newPermits(t, 2, "")
	a, b := f.clients[0], f.clients[1]
	a.CheckAfter(0)
	for i := range 3 {
		r := permits(request("a"), 3, 4)
		l := acquire(t, a, r)
		testenv.Eventually(t, func() bool { return f.Watches() >= 3 }, "each lease is watched")
		w := wait(t, b, permits(request("a"), 4, 4))
		if err := f.users.Delete(leases(t, f.users, "/a")[i], -1); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "loss", lostBy(t, r), driver.ErrRemoved)
		wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
		release(t, w.Granted(t))
	}
	a.CheckAfter(time.Hour)
	for i := range 2 {
		l := acquire(t, a, permits(request("b"), 2, 4))
		if err := f.users.Delete(leases(t, f.users, "/b")[i], -1); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			wantErr(t, "Renew", l.Renew(t.Context(), time.Second), driver.ErrNotHeld)
		}
		wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
		testenv.Eventually(t, func() bool { return len(leases(t, f.users, "/b")) == 0 }, "no lease is left")
	}
}

// TestPermitsWhoseAnswerIsLost cuts the connection when the server has made the
// leases, or removed them.
func TestPermitsWhoseAnswerIsLost(t *testing.T) {
	f := newPermits(t, 1, "")
	link, addr := testenv.Wire(t, f.Addr)
	a := openURL(t, "zk://%s", addr)
	for range 3 {
		trap := link.LoseReply("-lease-")
		w := begin(a, permits(request("a"), 2, 3))
		<-trap
		l := w.Granted(t)
		if nodes := leases(t, f.users, "/a"); len(nodes) != 2 {
			t.Errorf("leases: got %q, want 2", nodes)
		}
		trap = link.LoseReply("-lease-")
		release(t, l)
		<-trap
		f.allFree(t, "a", 3)
	}
}

// TestCanceledPermits cancels calls at any moment.
func TestCanceledPermits(t *testing.T) {
	f := newPermits(t, 4, "")
	const limit, calls = 4, 1000
	h := acquire(t, f.clients[0], permits(request("a"), 1, limit))
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for range calls / 20 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
				l, err := f.clients[i%len(f.clients)].Acquire(ctx, permits(request("a"), 2, limit))
				if l != nil {
					err = l.Release(t.Context())
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	testenv.Eventually(t, func() bool { return len(leases(t, f.users, "/a")) == 1 && len(contenders(t, f.users, "/a/locks")) == 0 }, "one lease is left, and no waiter")
	w := wait(t, f.clients[1], permits(request("a"), limit, limit)) // the server does not remove a container that never had children
	release(t, h)
	release(t, w.Granted(t))
	f.allFree(t, "a", limit)
	f.nothingLeft(t, "a")
}

// TestUnansweredPermits has the server carry out many requests whose answers
// never arrive.
func TestUnansweredPermits(t *testing.T) {
	f := newPermits(t, 1, "")
	link, addr := testenv.Wire(t, f.Addr)
	a := openURL(t, "zk://%s", addr)
	const limit, calls = 4, 100
	rounds := testenv.Briefly(5, 10)
	keeps := acquire(t, f.clients[0], permits(request("a"), 1, limit)) // the nodes that are made below
	made := 0
	for range rounds {
		release(t, acquire(t, a, permits(request("a"), 2, limit))) // the next request does not read first
		link.Hold(wire.Replies)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				if l, err := a.Acquire(ctx, permits(request("a"), 2, limit)); l != nil || err == nil {
					t.Errorf("without an answer: got %v, %v, want an error", l, err)
				}
			})
		}
		for end := time.Now().Add(time.Second); len(leases(t, f.users, "/a")) <= limit && time.Now().Before(end); {
			awaitTicks(t, 1) // the driver may need a new connection, which it cannot make
		}
		made += len(leases(t, f.users, "/a")) - 1
		cancel()
		all.Wait()
		link.Cut() // the answers are lost
		link.Heal()
		testenv.Eventually(t, func() bool { return len(leases(t, f.users, "/a")) == 1 && len(contenders(t, f.users, "/a/locks")) == 0 }, "one lease is left")
	}
	if made == 0 {
		t.Error("the server has carried out no request")
	}
	release(t, keeps)
	f.allFree(t, "a", limit)
}

func TestRequestsForPermits(t *testing.T) {
	f := newPermits(t, 2, "?ttl=10m", "maxSessionTimeout=600000")
	a, b := f.clients[0], f.clients[1]
	for _, d := range f.clients {
		d.CheckAfter(time.Hour)
		d.NudgeAfter(time.Hour)
	}
	long := func(n, limit int) *driver.Request { return permits(withTTL(request("a"), 10*time.Minute), n, limit) }
	if err := a.SetLimit(t.Context(), "keeps", 1); err != nil {
		t.Fatal(err)
	}
	held := acquire(t, a, long(1, 4)) // so that the nodes stay
	var l driver.Lease
	refused := func() {
		r := long(4, 4)
		r.NoWait = true
		if _, err := b.Acquire(t.Context(), r); err != driver.ErrLocked {
			t.Errorf("a try when too few permits are free: got %v, want %v", err, driver.ErrLocked)
		}
	}
	for _, step := range []struct {
		what string
		do   func()
		want int64
	}{
		{"acquire of permits", func() { l = acquire(t, a, long(3, 4)) }, 3}, // the leases, a list of them, the limit
		{"release of permits", func() { release(t, l) }, 1},
		{"refused try", refused, 3}, // a sync, a list, the limit
	} {
		if got := requests(t, f.ZooKeeperServer, step.do); got != step.want {
			t.Errorf("requests of a %s: got %d, want %d", step.what, got, step.want)
		}
	}
	release(t, held)
}

// TestReleasesInALine compares the cost of a release with few and many
// contenders in the queue.
func TestReleasesInALine(t *testing.T) {
	few, many := 100, 1000
	if testing.Short() {
		many = 300
	}
	const releases = 50
	perRelease := map[int]float64{}
	for _, n := range []int{few, many} {
		f := newPermits(t, 5, "?ttl=10m&order=fifo", "maxSessionTimeout=600000")
		for _, d := range f.clients {
			d.CheckAfter(time.Hour)
			d.NudgeAfter(time.Hour)
		}
		ask := func() *driver.Request { return permits(withTTL(request("a"), 10*time.Minute), 1, 2) }
		held := []driver.Lease{acquire(t, f.clients[0], ask()), acquire(t, f.clients[1], ask())}
		granted := make(chan driver.Lease, n)
		ctx, cancel := context.WithCancel(t.Context())
		var waiters sync.WaitGroup
		for i := range n {
			waiters.Go(func() {
				l, err := f.clients[i%5].Acquire(ctx, ask())
				if err == nil {
					granted <- l
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		// Each contender watches the contender before it, and the contenders of
		// a client share a watch of the limit. The first watches the leases.
		testenv.Eventually(t, func() bool { return f.Watches() == int64(n+5) }, "all wait in line")
		got := requests(t, f.ZooKeeperServer, func() {
			for range releases {
				release(t, held[0])
				held = append(held[1:], <-granted)
			}
			testenv.Eventually(t, func() bool { return f.Watches() == int64(n+5-releases) }, "the next waiter watches")
		})
		perRelease[n] = float64(got) / releases
		cancel()
		waiters.Wait()
		for _, l := range held {
			release(t, l)
		}
		f.allFree(t, "a", 2)
	}
	t.Logf("requests for a release and the grant after it, by number of waiters: %v", perRelease)
	for n, got := range perRelease {
		if got > 25 {
			t.Errorf("%d waiters: got %v requests for a release and the grant after it", n, got)
		}
	}
}

// TestPermitsListedAndWatched has names with permits next to other names with
// the same beginning.
func TestPermitsListedAndWatched(t *testing.T) {
	f := newPermits(t, 2, "")
	a, b := f.clients[0], f.clients[1]
	changed := make(chan struct{}, 1000)
	stop, err := a.Watch("sem", func() { changed <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var held []driver.Lease
	for range 3 { // the second and the third are visible only at the leases
		held = append(held, acquire(t, b, permits(request("sem"), 1, 4)))
		awaitChange(t, changed, a, len(held))
	}
	for _, name := range []string{"sem/locks", "sem/leases", "sem/leases/x", "sem/locks/x", "locks"} {
		held = append(held, acquire(t, b, request(name)))
	}
	w := wait(t, b, permits(request("sem"), 4, 4))
	names, err := drivertest.Listed(t, t.Context(), a, "")
	slices.Sort(names)
	if want := []string{"locks", "sem", "sem/leases", "sem/leases/x", "sem/locks", "sem/locks/x"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("List: got %q, %v, want %q", names, err, want)
	}
	if names, err := drivertest.Listed(t, t.Context(), a, "sem/"); err != nil || slices.Contains(names, "sem") || len(names) != 4 {
		t.Errorf("List of a prefix: got %q, %v, want the names below sem", names, err)
	}
	for _, l := range held {
		release(t, l)
	}
	release(t, w.Granted(t))
	awaitChange(t, changed, a, 0)
	f.nothingLeft(t, "sem")
}

// awaitChange waits for reports of changes, after which the given number of
// permits of sem is held.
func awaitChange(t *testing.T, changed <-chan struct{}, d *zk.Driver, used int) {
	t.Helper()
	for {
		select {
		case <-changed:
		case <-time.After(hangGuard):
			t.Fatalf("no report of a change to %d permits", used)
		}
		if s, err := d.Inspect(t.Context(), "sem"); err != nil {
			t.Fatal(err)
		} else if s.Used == used {
			return
		}
	}
}

// TestLimitBelowWhatIsHeld checks that all held permits count, and are removed
// by force, even beyond a limit that was lowered.
func TestLimitBelowWhatIsHeld(t *testing.T) {
	s := testenv.ZooKeeper(t)
	d, other := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
	var held []*driver.Request
	for i := range 3 {
		r := request("x")
		r.Mode, r.Permits, r.Limit = driver.Permit, 1+i, 6
		acquire(t, d, r)
		held = append(held, r)
	}
	if err := other.SetLimit(guard(t), "x", 1); err != nil {
		t.Fatal(err)
	}
	waiting := request("x")
	waiting.Mode, waiting.Permits, waiting.Limit = driver.Permit, 1, 1
	w := wait(t, other, waiting)
	if got, err := other.Inspect(guard(t), "x"); err != nil || got.Used != 6 || got.Holders != 3 || got.Limit != 1 || got.Waiters != 1 {
		t.Errorf("Inspect: got %+v, %v, want 6 permits in 3 holds, and a waiter", got, err)
	}
	if err := other.ForceUnlock(guard(t), "x"); err != nil {
		t.Error(err)
	}
	for _, r := range held {
		wantErr(t, "a hold", lostBy(t, r), driver.ErrRemoved)
	}
	release(t, w.Granted(t))
}

// TestTokenOfReaders checks that Inspect reports the token of the last grant,
// regardless of which node comes first, and no token if another client may have
// it.
func TestTokenOfReaders(t *testing.T) {
	s := testenv.ZooKeeper(t)
	d, other := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
	read := func() *driver.Request {
		r := request("x")
		r.Mode = driver.Read
		return r
	}
	acquire(t, d, read())
	last := acquire(t, d, read())
	if got, err := d.Inspect(guard(t), "x"); err != nil || got.Token != lastOf(last) || got.Holders != 2 {
		t.Errorf("got %+v, %v, want the token %d", got, err, lastOf(last))
	}
	theirs := acquire(t, other, read())
	if got, err := d.Inspect(guard(t), "x"); err != nil || got.Token != 0 || got.Holders != 3 {
		t.Errorf("while another reader holds the lock: got %+v, %v, want no token", got, err)
	}
	release(t, theirs)
}
