package zk_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// setLatch sets a latch that does not exist.
func setLatch(tb testing.TB, d *zk.Driver, name, id string, n int) {
	tb.Helper()
	if set, err := d.SetLatch(guard(tb), name, id, n); err != nil || !set {
		tb.Errorf("SetLatch of %q: got %v, %v, want true", name, set, err)
	}
}

func countDown(tb testing.TB, d *zk.Driver, name, id string) {
	tb.Helper()
	if err := d.CountDown(guard(tb), name, id); err != nil {
		tb.Error(err)
	}
}

func wantLeft(tb testing.TB, d *zk.Driver, name string, want int) {
	tb.Helper()
	if got, err := d.Latch(guard(tb), name); err != nil || got != want {
		tb.Errorf("count of %q: got %d, %v, want %d", name, got, err, want)
	}
}

// TestNodesOfALatch checks that the nodes are below no name, that a name with
// the same characters is separate, and that the ids of changes outlast the
// driver.
func TestNodesOfALatch(t *testing.T) {
	f := newFleet(t, 1, "/app")
	d := f.clients[0]
	setLatch(t, d, "orders/42", "a/b", 3)
	countDown(t, d, "orders/42", "first")
	const node = "/app/%latches/orders%2F42"
	if text, _, err := f.users.Get(node); err != nil || string(text) != "3 a%2Fb" {
		t.Errorf("node of the latch: got %q, %v", text, err)
	}
	if _, stat, err := f.users.Get(node + "/a%2Fb"); err != nil || stat.Version != 1 || stat.EphemeralOwner != 0 {
		t.Errorf("child of the latch: got %+v, %v, want it changed once", stat, err)
	}
	for _, name := range []string{"%latches/orders%2F42", "orders/42"} {
		held := acquire(t, d, request(name))
		wantLeft(t, d, "orders/42", 2)
		for got, err := range d.List(t.Context(), "") {
			if got != name || err != nil {
				t.Errorf("List: got %q, %v, want only %q", got, err, name)
			}
		}
		release(t, held)
	}
	countDown(t, d, "orders/42", "second")
	countDown(t, d, "orders/42", "last")
	if got := children(t, f.users, "/app/%latches"); len(got) > 0 {
		t.Errorf("nodes of latches at 0: got %q, want none", got)
	}
	if err := d.Close(guard(t)); err != nil {
		t.Fatal(err)
	}
	sets := children(t, f.users, "/app/%changes")
	if len(sets) != 1 {
		t.Fatalf("sets of ids: got %q, want one set", sets)
	}
	ids := children(t, f.users, "/app/%changes/"+sets[0])
	slices.Sort(ids)
	if got, want := fmt.Sprint(ids), "[a%2Fb first last second]"; got != want {
		t.Errorf("ids: got %s, want %s", got, want)
	}
}

// TestLatchThatIsNone has another node in the place of a latch. Each call fails
// with an error that names the node.
func TestLatchThatIsNone(t *testing.T) {
	f := newFleet(t, 1, "/app")
	d := f.clients[0]
	setLatch(t, d, "true", "one", 1)
	const node = "/app/%latches/false"
	if _, err := f.users.Create(node, []byte("something else"), 0, gozk.WorldACL(gozk.PermAll)); err != nil {
		t.Fatal(err)
	}
	_, seen := d.Latch(guard(t), "false")
	_, set := d.SetLatch(guard(t), "false", "one", 1)
	for what, err := range map[string]error{"Latch": seen, "SetLatch": set, "CountDown": d.CountDown(guard(t), "false", "one")} {
		if err == nil || !strings.Contains(err.Error(), node) {
			t.Errorf("%s of a node that is not a latch: got %v, want an error that names %s", what, err, node)
		}
	}
}

// TestLatchRequests has many clients count down at the same time. No request is
// refused because of another request.
func TestLatchRequests(t *testing.T) {
	const clients, each = 4, 25
	f := newFleet(t, clients, "?ttl=60s")
	for i, d := range f.clients {
		setLatch(t, d, fmt.Sprint("warm", i), fmt.Sprint("warm", i), 1) // the set is there
	}
	setLatch(t, f.clients[0], "x", "set", clients*each+1)
	before, requests := f.Logged(), f.Requests()
	drivertest.Crowd(clients*each, 1, func(i int) { countDown(t, f.clients[i%clients], "x", fmt.Sprint("down", i)) })
	if got := f.Logged() - before; got > clients*each*3/2 { // some of them keep the sessions alive
		t.Errorf("transactions of %d countdowns: got %d, want one transaction each", clients*each, got)
	}
	if got := f.Requests() - requests; got > 4*clients*each {
		t.Errorf("requests of %d countdowns: got %d, want three each", clients*each, got)
	}
	wantLeft(t, f.clients[0], "x", 1)
	countDown(t, f.clients[0], "x", "last")
	wantLeft(t, f.clients[0], "x", 0)
}

// TestLatchWhoseLastClientDied has a latch that is at 0 but still has its
// nodes. The next request removes them, and the watchers are notified.
func TestLatchWhoseLastClientDied(t *testing.T) {
	f := newFleet(t, 2, "")
	setLatch(t, f.clients[0], "x", "set", 1)
	told := make(chan struct{}, 10)
	stop, err := f.clients[1].WatchLatch("x", func() { told <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	<-told // the watch has begun
	if _, err := f.users.Set("/%latches/x/set", nil, -1); err != nil {
		t.Fatal(err)
	}
	wantLeft(t, f.clients[0], "x", 0)
	<-told
	setLatch(t, f.clients[0], "x", "again", 2)
	wantLeft(t, f.clients[1], "x", 2)
}

// TestSetsOfIDs checks that a change is known while the driver moves on to
// another set, that old sets are removed, and that a driver whose set was
// removed begins another.
func TestSetsOfIDs(t *testing.T) {
	f := newFleet(t, 2, "")
	d := f.clients[0]
	setLatch(t, d, "x", "set", 5)
	countDown(t, d, "x", "first")
	d.NextSet()
	countDown(t, d, "x", "first")
	wantLeft(t, d, "x", 4)
	countDown(t, d, "x", "second")
	if set, err := d.SetLatch(guard(t), "x", "set", 5); err != nil || !set {
		t.Errorf("repeat of SetLatch: got %v, %v, want true", set, err)
	}
	sets := func() []string {
		list := children(t, f.users, "/%changes")
		slices.Sort(list)
		return list
	}
	both := sets()
	if len(both) != 2 {
		t.Fatalf("sets: got %q, want two", both)
	}
	for _, set := range both { // as it was when the first request for it was sent before the second set was begun
		if ids := children(t, f.users, "/%changes/"+set); !slices.Contains(ids, "second") {
			t.Errorf("ids in %q: got %q, want the last change in both sets", set, ids)
		}
	}
	f.clients[1].KeepSetsFor(time.Millisecond)
	countDown(t, f.clients[1], "x", "third")
	testenv.Eventually(t, func() bool { return len(sets()) == 1 }, "old sets go with their ids")
	countDown(t, d, "x", "fourth")
	countDown(t, d, "x", "fourth")
	wantLeft(t, d, "x", 1)
	if got := sets(); len(got) != 2 || slices.Contains(both, got[0]) || slices.Contains(both, got[1]) {
		t.Errorf("sets: got %q, want one set from each driver, none in %q", got, both)
	}
}
