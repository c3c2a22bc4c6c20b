package zk_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// in returns a request with another mode.
func in(mode driver.Mode, r *driver.Request) *driver.Request {
	r.Mode = mode
	return r
}

// fleet is a server, its clients, and a user's view of it.
type fleet struct {
	*testenv.ZooKeeperServer
	users   *gozk.Conn
	clients []*zk.Driver
}

func newFleet(t *testing.T, clients int, query string) *fleet {
	s := testenv.ZooKeeper(t)
	f := &fleet{ZooKeeperServer: s, users: userClient(t, s.Addr)}
	for range clients {
		f.clients = append(f.clients, openURL(t, "zk://%s%s", s.Addr, query))
	}
	return f
}

// callers are the callers of one name, by their labels: the first letter is the
// mode, as in r1, w2 and x3. Each belongs to another client.
type callers struct {
	*testing.T
	*fleet
	name     string
	asked    int
	requests map[string]*driver.Request
	waiters  map[string]*drivertest.Waiter
	leases   map[string]driver.Lease
}

func (f *fleet) callers(t *testing.T, name string) *callers {
	return &callers{T: t, fleet: f, name: name, requests: map[string]*driver.Request{}, waiters: map[string]*drivertest.Waiter{}, leases: map[string]driver.Lease{}}
}

// request makes the request of a caller.
func (c *callers) request(who string) *driver.Request {
	r := request(c.name)
	r.Owner = who
	r.Mode = map[byte]driver.Mode{'r': driver.Read, 'w': driver.Write, 'x': driver.Exclusive}[who[0]]
	c.requests[who] = r
	return r
}

// client returns the client of the next caller.
func (c *callers) client() *zk.Driver {
	c.asked++
	return c.clients[(c.asked-1)%len(c.clients)]
}

// acquire lets callers be granted the name, one after another.
func (c *callers) acquire(all ...string) {
	c.Helper()
	for _, who := range all {
		c.leases[who] = acquire(c, c.client(), c.request(who))
	}
}

// wait lets callers begin to wait, one after another.
func (c *callers) wait(all ...string) {
	c.Helper()
	for _, who := range all {
		c.waiters[who] = wait(c, c.client(), c.request(who))
	}
}

// granted waits until callers are granted the name, and checks that the others
// wait.
func (c *callers) granted(all ...string) {
	c.Helper()
	for _, who := range all {
		c.leases[who] = c.waiters[who].Granted(c)
		delete(c.waiters, who)
	}
	for who, w := range c.waiters {
		if !w.Waits() {
			c.Errorf("%s no longer waits: want only %v to be granted", who, all)
		}
	}
}

func (c *callers) release(all ...string) {
	c.Helper()
	for _, who := range all {
		release(c, c.leases[who])
	}
}

// cancel cancels the call of a caller.
func (c *callers) cancel(who string) {
	c.Helper()
	c.waiters[who].Cancel()
	if _, err := c.waiters[who].End(c); !errors.Is(err, driver.ErrLocked) {
		c.Errorf("%s: got %v, want %v", who, err, driver.ErrLocked)
	}
	delete(c.waiters, who)
}

// refuses checks that tries are refused.
func (c *callers) refuses(all ...string) {
	c.Helper()
	for _, who := range all {
		r := c.request(who)
		r.NoWait = true
		if l, err := c.client().Acquire(c.Context(), r); err != driver.ErrLocked {
			c.Errorf("a try of %s: got %v, %v, want %v", who, l, err, driver.ErrLocked)
		}
	}
}

// gone waits until the node of the name is gone.
func (c *callers) gone() {
	c.Helper()
	testenv.Eventually(c, func() bool {
		exists, _, err := c.users.Exists("/" + c.name)
		return err == nil && !exists
	}, "the node of the name goes with the last hold")
}

// below checks that the tokens of some callers are below other callers' tokens.
func (c *callers) below(some []string, others ...string) {
	c.Helper()
	for _, a := range some {
		for _, b := range others {
			if last, first := lastOf(c.leases[a]), token(c.leases[b]); last >= first {
				c.Errorf("tokens: %s has up to %d and %s from %d: want them to rise", a, last, b, first)
			}
		}
	}
}

func TestSharing(t *testing.T) {
	for what, query := range map[string]string{"by client": "", "fifo": "?order=fifo"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 7, query)
			if i := f.clients[0].Info(); i.ReadWrite != (driver.Support{Offered: true, Order: i.Order, Fencing: i.Fencing}) {
				t.Errorf("Info of Read and Write: got %+v, want that of Exclusive", i.ReadWrite)
			}
			for what, test := range map[string]func(c *callers){
				"readers share":    readersShare,
				"order":            readersKeepTheirPlace,
				"canceled":         canceledWriterHoldsNobodyUp,
				"reverse":          writerWaitsForAllReaders,
				"removed":          removalIsToldToAllReaders,
				"one removed":      removalOfAReaderConcernsNobodyElse,
				"seal":             sealEndsTheWaitOfReaders,
				"dead":             deadReaderEndsWithItsSession,
				"one client":       twoReadsOfOneClient,
				"closed":           closedClientLeavesNoNodes,
				"node of the name": nodeOfTheNameGoesWithTheLastReader,
			} {
				t.Run(what, func(t *testing.T) { test(f.callers(t, strings.ReplaceAll(what, " ", "-"))) })
			}
		})
	}
}

// readersShare has each mode meet every other mode.
func readersShare(c *callers) {
	c.acquire("r1", "r2", "r3")
	c.refuses("x", "w")
	c.wait("w1")
	c.refuses("r", "x", "w")
	c.wait("r4", "r5")
	c.release("r1", "r3")
	c.granted()
	c.release("r2")
	c.granted("w1")
	c.below([]string{"r1", "r2", "r3"}, "w1")
	c.refuses("r", "x", "w")
	c.release("w1")
	c.granted("r4", "r5")
	c.wait("x1")
	c.release("r4", "r5")
	c.granted("x1")
	c.below([]string{"w1"}, "r4", "r5", "x1")
	c.below([]string{"r4", "r5"}, "x1")
	c.refuses("r", "x", "w")
	c.wait("r6", "w2")
	c.release("x1")
	c.granted("r6")
	c.below([]string{"x1"}, "r6")
	c.release("r6")
	c.granted("w2")
	c.below([]string{"r6"}, "w2")
	c.release("w2")
	c.gone()
}

// readersKeepTheirPlace has readers be granted the name together between two
// writers, and overtake none.
func readersKeepTheirPlace(c *callers) {
	c.acquire("w1")
	c.wait("r1", "x1", "r2", "r3", "w2", "r4")
	c.release("w1")
	c.granted("r1")
	c.release("r1")
	c.granted("x1")
	c.release("x1")
	c.granted("r2", "r3")
	c.release("r3", "r2")
	c.granted("w2")
	c.release("w2")
	c.granted("r4")
	c.release("r4")
}

func canceledWriterHoldsNobodyUp(c *callers) {
	c.acquire("r1")
	c.wait("w1", "r2", "x1", "r3")
	c.cancel("w1")
	c.granted("r2")
	c.cancel("x1")
	c.granted("r3")
	c.release("r1", "r2", "r3")
}

// writerWaitsForAllReaders has readers leave in an order that makes the writer
// behind them read the queue again each time.
func writerWaitsForAllReaders(c *callers) {
	var readers []string
	for i := range 20 {
		readers = append(readers, fmt.Sprint("r", i))
	}
	c.acquire(readers...)
	c.wait("w")
	slices.Reverse(readers)
	before := c.Requests()
	for _, who := range readers {
		c.granted()
		c.release(who)
	}
	c.granted("w")
	// For each reader: two requests to release it, perhaps three and one for
	// the node of the name, and two of the writer.
	if got, most := c.Requests()-before, int64(10*len(readers)); got > most {
		c.Errorf("requests of %d releases with a writer behind them: got %d, want at most %d", len(readers), got, most)
	}
	c.release("w")
}

func removalIsToldToAllReaders(c *callers) {
	c.acquire("r1", "r2", "r3")
	c.wait("w", "r4")
	status, err := c.clients[0].Inspect(c.Context(), c.name)
	if err != nil || !status.Held || status.Mode != driver.Read || status.Holders != 3 || status.Owner != "r1" || status.Token != 0 ||
		status.Waiters != 2 || !slices.Equal(status.Queue, []string{"w", "r4"}) {
		c.Errorf("Inspect: got %+v, %v, want three readers of several clients, without a token, and two waiters", status, err)
	}
	if err := c.clients[6].ForceUnlock(c.Context(), c.name); err != nil {
		c.Fatal(err)
	}
	for _, who := range []string{"r1", "r2", "r3"} {
		wantErr(c, who, lostBy(c, c.requests[who]), driver.ErrRemoved)
		if err := c.leases[who].Release(c.Context()); err != driver.ErrNotHeld {
			c.Errorf("release of %s: got %v, want %v", who, err, driver.ErrNotHeld)
		}
	}
	c.granted("w")
	if status, err := c.clients[0].Inspect(c.Context(), c.name); err != nil || status.Mode != driver.Write || status.Holders != 1 || status.Waiters != 1 {
		c.Errorf("Inspect: got %+v, %v, want one writer and one waiter", status, err)
	}
	c.release("w")
	c.granted("r4")
	c.release("r4")
	if err := c.clients[6].ForceUnlock(c.Context(), c.name); err != driver.ErrNotHeld {
		c.Errorf("ForceUnlock of a free name: got %v, want %v", err, driver.ErrNotHeld)
	}
}

func removalOfAReaderConcernsNobodyElse(c *callers) {
	c.acquire("r1", "r2")
	c.wait("w")
	removeFirst(c, c.users, "/"+c.name)
	wantErr(c, "r1", lostBy(c, c.requests["r1"]), driver.ErrRemoved)
	c.granted()
	if err := c.leases["r2"].Renew(c.Context(), c.requests["r2"].TTL); err != nil {
		c.Errorf("Renew of the other reader: %v", err)
	}
	c.release("r2")
	c.granted("w")
	c.release("w")
}

func sealEndsTheWaitOfReaders(c *callers) {
	c.acquire("r1")
	if err := c.clients[0].Seal(c.Context(), c.leases["r1"]); !errors.Is(err, errors.ErrUnsupported) {
		c.Errorf("Seal of a hold that does not exclude readers: got %v, want %v", err, errors.ErrUnsupported)
	}
	c.wait("w1", "r2", "w2", "r3")
	c.release("r1")
	c.granted("w1")
	seal(c, c.clients[1], c.leases["w1"])
	for who, w := range c.waiters {
		if l, err := w.End(c); err != driver.ErrSealed {
			c.Errorf("%s: got %v, %v, want %v", who, l, err, driver.ErrSealed)
		}
	}
	if node := first(c, c.users, "/"+c.name)[0]; !strings.HasPrefix(node, "/"+c.name+"/dsync-seal-") || !strings.Contains(node, "-__WRIT__") {
		c.Errorf("seal: got %q, want a seal that readers of Curator wait for", node)
	}
	for _, who := range []string{"r", "w", "x"} {
		for _, noWait := range []bool{false, true} {
			r := c.request(who)
			r.NoWait = noWait
			if l, err := c.client().Acquire(c.Context(), r); err != driver.ErrSealed {
				c.Errorf("%s: got %v, %v, want %v", who, l, err, driver.ErrSealed)
			}
		}
	}
	isSealed(c, c.clients[0], c.name, lastOf(c.leases["w1"]))
	loosen(c, c.clients[2], c.name, "id", 0)
	unseal(c, c.clients[2], c.name, "id")
	c.acquire("r4")
	c.release("r4")
}

// deadReaderEndsWithItsSession has one of two readers vanish. The writer behind
// them waits for the end of its session, and for the other reader.
func deadReaderEndsWithItsSession(c *callers) {
	link, addr := testenv.Wire(c, c.Addr)
	defer link.Heal()
	d := openURL(c, "zk://%s", addr)
	c.acquire("r1")
	r := withTTL(in(driver.Read, request(c.name)), d.Info().MinTTL)
	acquire(c, d, r)
	c.wait("w")
	link.Hold(wire.Both)
	wantErr(c, "a reader that is cut off", lostBy(c, r), driver.ErrSessionEnded)
	testenv.Eventually(c, func() bool { return len(children(c, c.users, "/"+c.name)) == 2 }, "the server ends the session")
	c.granted()
	if err := c.leases["r1"].Renew(c.Context(), c.requests["r1"].TTL); err != nil {
		c.Errorf("Renew of the other reader: %v", err)
	}
	c.release("r1")
	c.granted("w")
	c.release("w")
}

// twoReadsOfOneClient checks that they are two holds, even with equal owners.
func twoReadsOfOneClient(c *callers) {
	d := c.clients[0]
	a, b := acquire(c, d, c.request("r1")), acquire(c, d, c.request("r2"))
	c.asked++
	c.wait("w")
	release(c, a)
	if err := a.Release(c.Context()); err != driver.ErrNotHeld {
		c.Errorf("second release of a reader: got %v, want %v", err, driver.ErrNotHeld)
	}
	c.granted()
	release(c, b)
	c.granted("w")
	c.release("w")
}

// closedClientLeavesNoNodes closes a client that reads names, one of them
// twice, and one of them together with another client.
func closedClientLeavesNoNodes(c *callers) {
	d := openURL(c, "zk://%s", c.Addr)
	for _, name := range []string{"twice", "twice", "alone", "beside"} {
		acquire(c, d, in(driver.Read, request(c.name+name)))
	}
	other := acquire(c, c.clients[0], in(driver.Read, request(c.name+"beside")))
	if err := d.Close(guard(c)); err != nil {
		c.Error(err)
	}
	release(c, other)
	for _, name := range []string{"twice", "alone", "beside"} {
		one := *c
		one.name += name
		one.gone()
	}
}

// nodeOfTheNameGoesWithTheLastReader has readers leave in different orders,
// after a wait or without one.
func nodeOfTheNameGoesWithTheLastReader(c *callers) {
	readers := []string{"r1", "r2", "r3"}
	for _, last := range readers {
		for _, waits := range []bool{false, true} {
			if waits {
				c.acquire("w")
				c.wait(readers...)
				c.release("w")
				c.granted(readers...)
			} else {
				c.acquire(readers...)
			}
			for _, who := range readers {
				if who != last {
					c.release(who)
				}
			}
			c.release(last)
			c.gone()
		}
	}
}

// TestLockOfGoZookeeperBesideReaders has the exclusive lock of another library
// wait for readers and writers, and readers and writers wait for the lock.
func TestLockOfGoZookeeperBesideReaders(t *testing.T) {
	f := newFleet(t, 2, "")
	for _, who := range []string{"r1", "w1"} {
		c := f.callers(t, "beside-"+who)
		other := gozk.NewLock(f.users, "/"+c.name, gozk.WorldACL(gozk.PermAll))
		c.acquire(who)
		theirs := make(chan error, 1)
		go func() { theirs <- other.Lock() }() // ends when we release
		testenv.Eventually(t, func() bool { return len(children(t, f.users, "/"+c.name)) == 2 }, "they wait behind us")
		c.refuses("r")
		c.release(who)
		if err := <-theirs; err != nil {
			t.Fatal(err)
		}
		c.refuses("r", "w")
		c.wait("r2")
		if err := other.Unlock(); err != nil {
			t.Fatal(err)
		}
		c.granted("r2")
		c.release("r2")
	}
}

// TestNodesOfReadersOfOtherLibraries has nodes made by hand. They are the nodes
// of a Curator thread that writes, reads with the number of its writer, and
// continues to read, and the node of a kazoo reader.
func TestNodesOfReadersOfOtherLibraries(t *testing.T) {
	f := newFleet(t, 3, "")
	c := f.callers(t, "theirs")
	create := func(node string, flags int32) string {
		made, err := f.users.Create("/theirs/"+node, nil, flags, gozk.WorldACL(gozk.PermAll))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	remove := func(node string) {
		if err := f.users.Delete(node, -1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.users.Create("/theirs", nil, 0, gozk.WorldACL(gozk.PermAll)); err != nil {
		t.Fatal(err)
	}
	writer := create("_c_a-__WRIT__", gozk.FlagEphemeralSequential)
	c.wait("r1", "w1")
	reader := create("_c_b-__READ__"+writer[len(writer)-10:], gozk.FlagEphemeral)
	status, err := f.clients[2].Inspect(t.Context(), "theirs")
	if err != nil || status.Mode != driver.Write || status.Holders != 1 || "/theirs/"+status.Hold != writer || !slices.Equal(status.Queue, []string{"r1", "w1"}) {
		t.Errorf("Inspect: got %+v, %v, want the writer and two waiters", status, err)
	}
	remove(writer)
	c.granted("r1") // together with the reader
	c.release("r1")
	c.granted()
	remove(reader)
	c.granted("w1")
	kazoo := create("f00__rlock__", gozk.FlagEphemeralSequential)
	c.release("w1")
	c.acquire("r2")
	c.wait("x1")
	c.release("r2")
	c.granted()
	if err := f.clients[2].ForceUnlock(t.Context(), "theirs"); err != nil {
		t.Error(err)
	}
	c.granted("x1")
	if exists, _, err := f.users.Exists(kazoo); exists || err != nil {
		t.Errorf("node of the reader after ForceUnlock: got %v, %v, want it removed", exists, err)
	}
	c.release("x1")
	// Both nodes of a writer disappear.
	writer = create("_c_a-__WRIT__", gozk.FlagEphemeralSequential)
	create("_c_b-__READ__"+writer[len(writer)-10:], gozk.FlagEphemeral)
	c.wait("w2")
	if err := f.clients[2].ForceUnlock(t.Context(), "theirs"); err != nil {
		t.Error(err)
	}
	c.granted("w2")
	c.release("w2")
}
