package redisson

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func clusterURL(c *testenv.Cluster) string {
	return "redisson://" + strings.Join(c.Addrs(), ",") + "?mode=cluster"
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t, 3, 1)
	t.Run("names", func(t *testing.T) { testClusterNames(t, c) })
	t.Run("list", func(t *testing.T) { testClusterList(t, c) })
	t.Run("sharded", func(t *testing.T) { testClusterWakeUp(t, c, "") })
	t.Run("plain", func(t *testing.T) { testClusterWakeUp(t, c, "&pubsub=plain") })
	t.Run("both", func(t *testing.T) { testClusterWakeUp(t, c, "&pubsub=both") })
	t.Run("client", func(t *testing.T) { testClusterClient(t, c) })
	t.Run("renew", func(t *testing.T) { testClusterRenew(t, c) })
	t.Run("permits", func(t *testing.T) { testClusterPermits(t, c) }) // after renew, which wants no key: limits remain for a while
	t.Run("slow", func(t *testing.T) { testClusterSlowNode(t, c) })
	t.Run("replicas", func(t *testing.T) { testClusterReplicas(t, c) })
	t.Run("move", func(t *testing.T) { testClusterMove(t, c) })
	t.Run("failover", func(t *testing.T) { testClusterFailOver(t, c) })
}

func testClusterNames(t *testing.T, c *testenv.Cluster) {
	d := openURL(t, "%s", clusterURL(c))
	for _, name := range []string{"a{b", "{}x", "{}", "{a}", "a{", "{a", "a}b", "}", "a{}b{c}"} {
		for what, call := range map[string]func() error{
			"Acquire":     func() error { _, err := d.Acquire(t.Context(), request(name)); return err },
			"Inspect":     func() error { _, err := d.Inspect(t.Context(), name); return err },
			"ForceUnlock": func() error { return d.ForceUnlock(t.Context(), name) },
		} {
			if err := call(); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "braces") {
				t.Errorf("%s of %q: got %v, want errors.ErrUnsupported with a reason", what, name, err)
			}
		}
	}
	for _, name := range []string{"a", "a{b}c", "{a}b", "{a}{b", "日本", "a b", "x{y}}"} {
		l := acquire(t, d, request(name))
		if got := c.Owner(name).Do("HGET", name, l.request.Hold); got != valueOf(l) {
			t.Errorf("%q: got the value %q of the hold at the owner, want %q", name, got, valueOf(l))
		}
		release(t, l)
	}
}

func testClusterWakeUp(t *testing.T, c *testenv.Cluster, parameters string) {
	a, b := openURL(t, "%s%s", clusterURL(c), parameters), openURL(t, "%s%s", clusterURL(c), parameters)
	const n = 20 // names, over all nodes
	for i := range n {
		name := fmt.Sprint(t.Name(), i)
		l := acquire(t, a, request(name))
		w := wait(t, b, request(name))
		testenv.Eventually(t, func() bool { return b.topics.Own(prefixName(channelPrefix, name)) > 0 }, "the waiter is subscribed")
		start := time.Now()
		release(t, l)
		if !l.Contended() {
			t.Error("Contended of a release that woke a waiter: got false")
		}
		release(t, w.granted(t))
		if took := time.Since(start); took > backstop/2 {
			t.Errorf("%s: the waiter got the lock after %v", name, took)
		}
	}
	testenv.Eventually(t, func() bool { return b.topics.Idle() }, "the driver forgets the names")
	for _, node := range c.Nodes {
		for i := range n {
			subscribers(t, node, fmt.Sprint(t.Name(), i), 0)
		}
	}
}

func testClusterClient(t *testing.T, c *testenv.Cluster) {
	d, err := New(userClient(t, rueidis.ClientOption{InitAddress: c.Addrs()}), nil)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	for i := range 20 {
		release(t, acquire(t, d, request(fmt.Sprint("client", i))))
	}
	if got := d.checked.pubSub; got != PubSubSharded {
		t.Errorf("kind of messages: got %q, want %q", got, PubSubSharded)
	}
}

func testClusterRenew(t *testing.T, c *testenv.Cluster) {
	d := openURL(t, "%s", clusterURL(c))
	const n = 1000
	leases := make([]driver.Lease, n)
	parallel(50, func(i int) {
		for j := i; j < n; j += 50 {
			leases[j] = acquire(t, d, forLong(fmt.Sprint("renew", j)))
		}
	})
	lost := leases[7].(*lease).request.Name
	c.Owner(lost).Do("DEL", lost)
	calls := make([]int, n)
	before := time.Now()
	d.RenewAll(t.Context(), leases, func(i int, err error) {
		calls[i]++
		if want := map[bool]error{true: driver.ErrNotHeld}[i == 7]; err != want {
			t.Errorf("lease %d: got %v, want %v", i, err, want)
		}
	})
	for i, l := range leases {
		if calls[i] != 1 {
			t.Errorf("lease %d: done was called %d times", i, calls[i])
		}
		if i != 7 && l.Expires().Before(before.Add(time.Minute)) {
			t.Errorf("lease %d: Expires did not move", i)
		}
	}
	if err := d.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, node := range c.Nodes {
		if keys := keysOf(node); len(keys) != 0 {
			t.Errorf("keys of %s: got %d, want none", node.Addr, len(keys))
		}
	}
}

// testClusterSlowNode freezes one node for less time than a failover takes.
func testClusterSlowNode(t *testing.T, c *testenv.Cluster) {
	d := openURL(t, "%s", clusterURL(c))
	var leases []driver.Lease
	slow := make(map[int]bool)
	frozen := c.Owner("slow0")
	for i := range 100 {
		name := fmt.Sprint("slow", i)
		leases = append(leases, acquire(t, d, request(name)))
		slow[i] = c.Owner(name) == frozen
	}
	d.RenewAll(t.Context(), leases, func(int, error) {})
	frozen.Freeze()
	thaw := time.AfterFunc(800*time.Millisecond, frozen.Thaw)
	defer thaw.Stop()
	start := time.Now()
	took := make([]time.Duration, len(leases))
	d.RenewAll(t.Context(), leases, func(i int, err error) {
		took[i] = time.Since(start)
		if err != nil {
			t.Errorf("lease %d: %v", i, err)
		}
	})
	for i := range leases {
		if !slow[i] && took[i] > 400*time.Millisecond {
			t.Errorf("lease %d on a healthy node was renewed after %v", i, took[i])
		}
		if slow[i] && took[i] < 400*time.Millisecond {
			t.Errorf("lease %d on the frozen node was renewed after %v", i, took[i])
		}
	}
}

func testClusterReplicas(t *testing.T, c *testenv.Cluster) {
	d := openURL(t, "%s&waitreplicas=1", clusterURL(c))
	for i := range 20 {
		l := acquire(t, d, request(fmt.Sprint("replicas", i)))
		if err := l.Renew(t.Context(), time.Minute); err != nil {
			t.Errorf("Renew: %v", err)
		}
		d.RenewAll(t.Context(), []driver.Lease{l}, func(_ int, err error) {
			if err != nil {
				t.Errorf("RenewAll: %v", err)
			}
		})
		release(t, l)
	}
	two := openURL(t, "%s&waitreplicas=2&waitlimit=50ms", clusterURL(c))
	for i := range 5 {
		name := fmt.Sprint("replicas", i)
		if _, err := two.Acquire(t.Context(), request(name)); !errors.Is(err, ErrNotReplicated) || !strings.Contains(err.Error(), "1 of 2") {
			t.Errorf("Acquire: got %v, want ErrNotReplicated with 1 of 2", err)
		}
		if got := c.Owner(name).Do("EXISTS", name); got != int64(0) {
			t.Error("a grant that was not replicated still exists")
		}
	}
}

// testClusterMove moves a slot with a holder and a waiter to another node.
func testClusterMove(t *testing.T, c *testenv.Cluster) {
	a, b := openURL(t, "%s", clusterURL(c)), openURL(t, "%s", clusterURL(c))
	name := "{move}x"
	l := acquire(t, a, forLong(name))
	w := wait(t, b, request(name))
	testenv.Eventually(t, func() bool { return b.topics.Own(prefixName(channelPrefix, name)) == 1 }, "the waiter is subscribed")
	from := c.Owner(name)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	c.MoveSlot(name, to)
	if err := l.Renew(t.Context(), time.Minute); err != nil {
		t.Errorf("Renew after the move: %v", err)
	}
	testenv.Eventually(t, func() bool { return to.SubscriberCount(prefixName(channelPrefix, name)) == 1 }, "the waiter is subscribed on the new node")
	start := time.Now()
	release(t, l)
	release(t, w.granted(t))
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiter got the lock after %v", took)
	}
}

func testClusterFailOver(t *testing.T, c *testenv.Cluster) {
	a, b := openURL(t, "%s", clusterURL(c)), openURL(t, "%s", clusterURL(c))
	name := "failover"
	l := acquire(t, a, forLong(name))
	w := wait(t, b, request(name))
	testenv.Eventually(t, func() bool { return b.topics.Own(prefixName(channelPrefix, name)) == 1 }, "the waiter is subscribed")
	old := c.Owner(name)
	testenv.Eventually(t, func() bool {
		return slices.ContainsFunc(c.Nodes, func(node *testenv.RedisServer) bool {
			if node == old {
				return false
			}
			keys, err := node.Try("CLUSTER", "COUNTKEYSINSLOT", fmt.Sprint(slotOf(name)))
			return err == nil && keys != int64(0)
		})
	}, "the replica has the hold")
	old.Kill()
	var err error
	testenv.Eventually(t, func() bool {
		err = l.Renew(t.Context(), time.Minute)
		return err == nil || errors.Is(err, driver.ErrNotHeld)
	}, "the lease is renewed at the new primary")
	if err != nil {
		t.Fatalf("Renew: %v: the replica had the hold", err)
	}
	w.cancel() // perhaps its own attempt met the failure
	if <-w.done; w.err == nil {
		t.Fatal("the waiter was granted a lock that is held")
	}
	w = waitOut(t, b, name)
	testenv.Eventually(t, func() bool { return b.topics.Own(prefixName(channelPrefix, name)) == 1 }, "the waiter is subscribed on the new primary")
	start := time.Now()
	release(t, l)
	release(t, w.granted(t))
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiter got the lock after %v", took)
	}
}

// waitOut is like wait, for a server that may not be reachable yet.
func waitOut(tb testing.TB, d *Driver, name string) *waiter {
	tb.Helper()
	for end := time.Now().Add(hangGuard); time.Now().Before(end); {
		w := begin(d, request(name))
		select {
		case <-w.events.waiting:
			return w
		case <-w.done:
			if !errors.Is(w.err, driver.ErrUnavailable) && !errors.Is(w.err, driver.ErrUnknown) {
				tb.Fatalf("Acquire: got %v, want a wait", w.err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	tb.Fatal("the server does not come back")
	return nil
}
