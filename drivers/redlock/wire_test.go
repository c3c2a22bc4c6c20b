package redlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestWireFormat(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s/3%s", nodes.url(), settled)
	for _, name := range []string{"orders", "{t}:orders", "日本 über/x y"} {
		r := request(name)
		l := acquire(t, d, r)
		for _, s := range nodes {
			get := func() any {
				return s.Do("EVAL", "redis.call('SELECT', 3) return redis.call('GET', KEYS[1])", "1", name)
			}
			testenv.Eventually(t, func() bool { return get() == r.Hold }, "the node beyond the majority has the value")
			ttl := s.Do("EVAL", "redis.call('SELECT', 3) return redis.call('PTTL', KEYS[1])", "1", name).(int64)
			if ttl <= 0 || ttl > r.TTL.Milliseconds() {
				t.Errorf("%s: TTL: got %d ms, want more than 0 and at most %v", name, ttl, r.TTL)
			}
		}
		release(t, l)
	}
	nodes.awaitClear(t)
}

func TestFreeLockTakesOneRequestToEachNode(t *testing.T) {
	nodes := startNodes(t, 5)
	d := openURL(t, "%s", nodes.url()+settled)
	const rounds = 20
	release(t, acquire(t, d, request("x")))
	testenv.Eventually(t, d.nodesIdle, "the nodes are known")
	got := nodes.counted(func() {
		for range rounds {
			l := acquire(t, d, request("x"))
			testenv.Eventually(t, d.nodesIdle, "the nodes beyond the majority have the value")
			release(t, l)
		}
		nodes.awaitClear(t)
		testenv.Eventually(t, d.nodesIdle, "all nodes are done")
	}, "set", "evalsha", "eval", "del", "publish", "subscribe", "script|load")
	want := map[string]int64{"set": 5 * rounds, "evalsha": 5 * rounds, "eval": 0, "del": 5 * rounds, "publish": 5 * rounds,
		"subscribe": 0, "script|load": 0}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("commands at all nodes: got %v, want %v", got, want)
	}
}

func (d *Driver) nodesIdle() bool {
	for _, n := range d.nodes {
		if !n.idle() {
			return false
		}
	}
	return true
}

// TestHotLockInOneProcess counts the cost of 32 goroutines on one name: at most
// one and a half rounds of requests for each grant.
func TestHotLockInOneProcess(t *testing.T) {
	nodes := startNodes(t, 5)
	c := dsyncOn(t, nodes)
	const goroutines, each = 32, 30
	got := nodes.counted(func() {
		parallel(goroutines, func(int) {
			for range each {
				if err := ours(c, "hot"); err != nil {
					t.Error(err)
				}
			}
		})
	}, "set")
	if limit := int64(5 * goroutines * each * 3 / 2); got["set"] > limit {
		t.Errorf("%d grants took %d requests, want at most %d", goroutines*each, got["set"], limit)
	}
	t.Logf("%d grants took %d requests", goroutines*each, got["set"])
}

// TestHotLockBetweenClients counts the cost of a grant when the lock always
// goes to another client.
func TestHotLockBetweenClients(t *testing.T) {
	nodes := startNodes(t, 5)
	const clients, each = 4, 50
	drivers := make([]*Driver, clients)
	for i := range drivers {
		drivers[i] = openURL(t, "%s", nodes.url()+settled)
	}
	var inside, most atomic.Int32
	got := nodes.counted(func() {
		parallel(clients, func(i int) {
			for range each {
				l := acquire(t, drivers[i], request("hot"))
				most.Store(max(most.Load(), inside.Add(1)))
				inside.Add(-1)
				release(t, l)
			}
		})
	}, "set", "evalsha")
	if most.Load() != 1 {
		t.Errorf("%d simultaneous holders", most.Load())
	}
	t.Logf("%d grants took %v", clients*each, got)
}

func TestManyLeasesAreRenewedInFewRequests(t *testing.T) {
	nodes := startNodes(t, 5)
	d := openURL(t, "%s", nodes.url()+settled)
	const n = 1000
	leases := make([]driver.Lease, n)
	parallel(50, func(i int) {
		for j := i; j < n; j += 50 {
			leases[j] = acquire(t, d, request(fmt.Sprint("many", j)))
		}
	})
	testenv.Eventually(t, d.nodesIdle, "all nodes are done")
	got := nodes.counted(func() {
		var count atomic.Int64
		d.RenewAll(t.Context(), leases, func(i int, err error) {
			count.Add(1)
			if err != nil {
				t.Errorf("lease %d: %v", i, err)
			}
		})
		if count.Load() != n {
			t.Errorf("done was called %d times, want %d", count.Load(), n)
		}
		testenv.Eventually(t, d.nodesIdle, "all nodes are done")
	}, "evalsha")
	if want := int64(5 * 2); got["evalsha"] != want {
		t.Errorf("renewal of %d leases: got %d requests, want %d", n, got["evalsha"], want)
	}
}

func TestMinorityIsGivenBack(t *testing.T) {
	nodes := startNodes(t, 5)
	d := openURL(t, "%s", nodes.url()+settled)
	for _, s := range nodes[:3] {
		s.Do("SET", "x", "somebody else")
	}
	for range 20 {
		if _, err := d.Acquire(t.Context(), noWait("x")); !errors.Is(err, driver.ErrLocked) {
			t.Fatalf("got %v, want ErrLocked", err)
		}
	}
	wait := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := d.Acquire(ctx, request("x"))
		return err
	}
	err := wait()
	for errors.Is(err, driver.ErrUnknown) { // the time ran out while the attempt was in progress
		err = wait()
	}
	if !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that ran out: got %v, want ErrLocked and the error of the context", err)
	}
	testenv.Eventually(t, func() bool { return fmt.Sprint(nodes.do("DBSIZE")) == "[1 1 1 0 0]" }, "the other nodes are free")
	for _, s := range nodes[:3] {
		if got := s.Do("GET", "x"); got != "somebody else" {
			t.Errorf("value of another client: got %v", got)
		}
	}
}

func TestMinorityOfOthersDoesNotHinder(t *testing.T) {
	nodes := startNodes(t, 5)
	d := openURL(t, "%s", nodes.url()+settled)
	for _, s := range nodes[:2] { // the remains of a dead client
		s.Do("SET", "x", "somebody else")
	}
	release(t, acquire(t, d, request("x")))
	l := acquire(t, d, request("x"))
	w := make(chan *lease)
	go func() { w <- acquire(t, d, request("x")) }()
	release(t, l)
	release(t, <-w)
}

func TestEachAttemptHasAValueOfItsOwn(t *testing.T) {
	nodes := startNodes(t, 3)
	a, b := openURL(t, "%s", nodes.url()+settled), openURL(t, "%s", nodes.url()+settled)
	l := acquire(t, a, request("x"))
	r := request("x")
	w := make(chan *lease)
	go func() { w <- acquire(t, b, r) }()
	<-r.Events.(*events).waiting
	release(t, l)
	next := <-w
	if next.value == r.Hold {
		t.Errorf("value of a later attempt: got %q, the value of the first attempt", next.value)
	}
	release(t, next)
	nodes.awaitClear(t)
}

func TestKeyOfAnotherKindIsLeftAlone(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s", nodes.url()+settled)
	nodes.do("HSET", "x", "f", "v")
	if _, err := d.Acquire(t.Context(), noWait("x")); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
	for i, got := range nodes.do("HGET", "x", "f") {
		if got != "v" {
			t.Errorf("node %d: got %v, want v", i, got)
		}
	}
}

func TestWaiterIsToldOfTheEnd(t *testing.T) {
	nodes := startNodes(t, 5)
	a, b := openURL(t, "%s", nodes.url()+settled), openURL(t, "%s", nodes.url()+settled)
	l := acquire(t, a, request("x"))
	r := request("x")
	w := make(chan *lease)
	go func() { w <- acquire(t, b, r) }()
	first := b.firstNode("x")
	testenv.Eventually(t, func() bool { return nodes[first].SubscriberCount(channel("x")) == 1 }, "the waiter listens")
	release(t, l)
	if !l.Contended() {
		t.Error("Contended: got false while another client waits")
	}
	release(t, <-w)
	testenv.Eventually(t, func() bool { return nodes[first].SubscriberCount(channel("x")) == 0 }, "the waiter listens no longer")
	l = acquire(t, a, request("x"))
	release(t, l)
	if l.Contended() {
		t.Error("Contended: got true without waiters")
	}
}

// TestTwoClientsShareAHotLock counts the cost of a grant when two clients
// contend for it with many goroutines each.
func TestTwoClientsShareAHotLock(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 5)
	clients := []*dsync.Client{dsyncOn(t, nodes), dsyncOn(t, nodes)}
	const goroutines, each = 16, 200
	got := nodes.counted(func() {
		parallel(2*goroutines, func(i int) {
			for range each {
				if err := ours(clients[i%2], "hot"); err != nil {
					t.Error(err)
				}
			}
		})
	}, "set", "evalsha")
	const grants = 2 * goroutines * each
	if limit := int64(grants); got["set"]+got["evalsha"] > limit {
		t.Errorf("%d grants took %v requests, want fewer than one each", grants, got)
	}
	t.Logf("%d grants took %v requests", grants, got)
}
