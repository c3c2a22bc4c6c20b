package zk_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestNodesOfALock(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	for _, test := range []struct{ path, name, dir string }{
		{"", "orders/42", "/orders/42"},
		{"/app/locks", "orders/42", "/app/locks/orders/42"},
		{"/app/", "%", "/app/%25"},
		{"", "/a//b/", "/%2Fa/%2Fb%2F"},
		{"", "zookeeper/../.", "/%7Aookeeper/%2E%2E/%2E"},
		{"/app", "zookeeper", "/app/zookeeper"},
		{"", "ü \n\u0080\U0001F512", "/ü %0A%C2%80%F0%9F%94%92"},
		{"", "orders/x-lock-0000000001", "/orders/x-lock-000000000%31"},
		{"", "orders/locks", "/orders/lock%73"},
		{"/app", "orders/leases", "/app/orders/lease%73"},
		{"/app", "leases", "/app/leases"},
		{"", "locks/42", "/locks/42"},
	} {
		t.Run(test.dir, func(t *testing.T) {
			d := openURL(t, "zk://%s%s", s.Addr, test.path)
			r := request(test.name)
			r.Note = "a note"
			l := acquire(t, d, r)
			list := children(t, c, test.dir)
			if len(list) != 1 || !regexp.MustCompile(`^_c_[0-9a-f]{32}-lock-\d{10}$`).MatchString(list[0]) {
				t.Fatalf("children of %q: got %q, want one child as go-zookeeper makes it", test.dir, list)
			}
			text, stat, err := c.Get(test.dir + "/" + list[0])
			if err != nil {
				t.Fatal(err)
			}
			var value map[string]string
			if err := json.Unmarshal(text, &value); err != nil {
				t.Fatal(err)
			}
			if value["owner"] != r.Owner || value["note"] != "a note" || value["host"] == "" || value["time"] == "" {
				t.Errorf("node: got %v, want owner, host, time and note", value)
			}
			if got, want := token(l), uint64(stat.Czxid)*256; got != want {
				t.Errorf("token: got %d, want %d, from the transaction that made the node", got, want)
			}
			release(t, l)
			if exists, _, err := c.Exists(test.dir); exists || err != nil {
				t.Errorf("node of the name after the release: got %t, %v, want none", exists, err)
			}
		})
	}
}

// requests returns the number of requests that the server gets while f runs.
func requests(tb testing.TB, s *testenv.ZooKeeperServer, f func()) int64 {
	tb.Helper()
	start := s.Requests()
	own := s.Requests() - start // the cost of asking the server
	f()
	return s.Requests() - start - 2*own
}

func TestRoundTrips(t *testing.T) {
	s := testenv.ZooKeeper(t, "maxSessionTimeout=600000") // so that there are no pings
	c := userClient(t, s.Addr)
	a, b := openURL(t, "zk://%s?ttl=10m", s.Addr), openURL(t, "zk://%s?ttl=10m", s.Addr)
	for _, d := range []*zk.Driver{a, b} {
		d.CheckAfter(time.Hour) // nor watches of locks that are held for a while
		d.NudgeAfter(time.Hour)
	}
	if _, err := c.Create("/foreign", []byte("theirs"), 0, gozk.WorldACL(gozk.PermAll)); err != nil {
		t.Fatal(err)
	}
	long := func(r *driver.Request) *driver.Request { return withTTL(r, 10*time.Minute) }
	release(t, acquire(t, a, long(request("foreign"))))
	var l driver.Lease
	take := func(r *driver.Request) func() { return func() { l = acquire(t, a, long(r)) } }
	give := func() { release(t, l) }
	refused := func() {
		if _, err := b.Acquire(t.Context(), long(noWait("a"))); err != driver.ErrLocked {
			t.Errorf("a try of a lock that is held: got %v, want %v", err, driver.ErrLocked)
		}
	}
	var w *drivertest.Waiter
	var beside driver.Lease
	for _, step := range []struct {
		what string
		do   func()
		want int64
	}{
		{"lock without a node for the name", take(request("a")), 1},
		{"first refused try", refused, 2},
		{"refused try", refused, 2}, // of which one is a Sync
		{"release", give, 1},
		{"try without a node for the name", take(noWait("t")), 1},
		{"release after a try", give, 1},
		{"lock with a node for the name", take(request("foreign")), 2},
		{"release with a node for the name", give, 1},
		{"read", take(in(driver.Read, request("r"))), 1},
		{"release of a read", give, 1},
		{"read with a node for the name", take(in(driver.Read, request("foreign"))), 2},
		{"read next to another read", func() { beside = acquire(t, a, long(in(driver.Read, request("foreign")))) }, 2},
		{"release of a read next to another read", give, 1},
		{"release of a read with a node for the name", func() { release(t, beside) }, 1},
		{"a lock", take(request("w")), 1},
		{"release with waiters", func() {
			w = wait(t, b, long(request("w")))
			testenv.Eventually(t, func() bool { return s.Watches() == 1 }, "the waiter watches the holder")
			before := s.Requests()
			give()
			l = w.Granted(t)
			t.Logf("hand-over between clients: %d requests", s.Requests()-before)
		}, -1},
		{"release after a wait", give, -1}, // 1, and 1 for the node of the name, for which no caller waits
	} {
		if got := requests(t, s, step.do); step.want >= 0 && got != step.want {
			t.Errorf("requests of a %s: got %d, want %d", step.what, got, step.want)
		}
	}
	testenv.Eventually(t, func() bool { return len(children(t, c, "/")) == 2 }, "the nodes of names are gone, except the foreign node")
	if text, stat, err := c.Get("/foreign"); err != nil || string(text) != "theirs" || stat.Version != 0 {
		t.Errorf("a foreign node: got %q, %+v, %v, want it unchanged", text, stat, err)
	}
}

// TestHotLockOfOneClient checks that callers of one client hand the lock over
// in the process. If the URL asks for the order of all callers, the same code
// hands the lock over with requests.
func TestHotLockOfOneClient(t *testing.T) {
	s := testenv.ZooKeeper(t, "maxSessionTimeout=600000")
	for order, most := range map[string]float64{"client": 1, "fifo": 6} {
		const goroutines, rounds = 32, 40
		c, err := dsync.Open(guard(t), "zk://"+s.Addr+"?ttl=10m&order="+order, nil)
		if err != nil {
			t.Fatal(err)
		}
		var n int // guarded by the lock
		got := requests(t, s, func() {
			var all sync.WaitGroup
			for range goroutines {
				all.Go(func() {
					for range rounds {
						l, err := c.Lock(t.Context(), order)
						if err != nil {
							t.Error(err)
							return
						}
						n++
						if err := l.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
		if n != goroutines*rounds {
			t.Errorf("order=%s: got %d holds, want %d", order, n, goroutines*rounds)
		}
		each := float64(got) / (goroutines * rounds)
		t.Logf("order=%s: %.2f requests for each lock and unlock", order, each)
		if each > most {
			t.Errorf("order=%s: requests for each lock and unlock: got %.2f, want at most %v", order, each, most)
		}
		if err := c.Close(guard(t)); err != nil {
			t.Error(err)
		}
	}
}

// counter counts the requests of some kinds that are written to a connection.
type counter struct {
	net.Conn
	syncs, writes *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	switch binary.BigEndian.Uint32(b[8:]) {
	case 9:
		c.syncs.Add(1)
	case 14:
		c.writes.Add(1)
	}
	return c.Conn.Write(b)
}

// TestRequestsThatConfirmASession counts the requests to the leader while a
// lock is held.
func TestRequestsThatConfirmASession(t *testing.T) {
	const ttl = time.Second
	var syncs, writes atomic.Int64
	d, err := zk.New(guard(t), []string{testenv.ZooKeeper(t).Addr}, &zk.Options{TTL: ttl, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return counter{c, &syncs, &writes}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	l := acquire(t, d, withTTL(request("a"), ttl))
	start, end := time.Now(), l.Expires()
	syncs.Store(0)
	writes.Store(0)
	testenv.Eventually(t, func() bool { return l.Expires().Sub(end) > 4*ttl }, "the end of the session moves on")
	rounds := int64(time.Since(start)/(ttl/4)) + 1
	if s, w := syncs.Load(), writes.Load(); s+w > 2*rounds || w > rounds/2+1 {
		t.Errorf("requests in %d quarters of the TTL: got %d syncs and %d writes, want at most two in each, and every second time a write", rounds, s, w)
	}
	release(t, l)
}

func TestHeldLocksCostNoRequests(t *testing.T) {
	s := testenv.ZooKeeper(t, "maxSessionTimeout=600000")
	d := openURL(t, "zk://%s?ttl=10m", s.Addr)
	for i := range 500 {
		acquire(t, d, withTTL(request("held-"+strings.Repeat("x", i%7)+string(rune('a'+i%26))+string(rune('a'+i/26))), 10*time.Minute))
	}
	testenv.Eventually(t, func() bool { return s.Watches() == 500 }, "all are watched")
	if got := requests(t, s, func() { awaitTicks(t, 20) }); got != 0 {
		t.Errorf("requests while 500 locks are held for 2 s: got %d, want none", got)
	}
}

func TestQueueIsInOrderOfArrival(t *testing.T) {
	s := testenv.ZooKeeper(t)
	a, b := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
	first := acquire(t, a, request("a"))
	var waiters []*drivertest.Waiter
	for i := range 6 {
		d := a
		if i%2 == 1 {
			d = b
		}
		waiters = append(waiters, wait(t, d, request("a")))
	}
	status, err := b.Inspect(t.Context(), "a")
	if err != nil || !status.Held || status.Waiters != 6 || status.Owner != "owner of a" || len(status.Queue) != 6 {
		t.Errorf("Inspect: got %+v, %v, want a holder and 6 waiters", status, err)
	}
	tokens := []uint64{token(first)}
	release(t, first)
	for i, w := range waiters {
		l := w.Granted(t)
		for j, later := range waiters[i+1:] {
			if !later.Waits() {
				t.Errorf("waiter %d was granted while %d holds", i+1+j, i)
			}
		}
		tokens = append(tokens, token(l))
		release(t, l)
	}
	if !slices.IsSorted(tokens) || len(slices.Compact(slices.Clone(tokens))) != len(tokens) {
		t.Errorf("tokens: got %v, want them to rise", tokens)
	}
}

// TestForeignChildren has children below a name. Some children are contenders
// and some are not.
func TestForeignChildren(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "zk://%s", s.Addr)
	acl := gozk.WorldACL(gozk.PermAll)
	for _, path := range []string{"/a", "/a/_c_x", "/a/lock-", "/a/lock-12345", "/a/lock-99999999999", "/a/lock-9999999999", "/a/b", "/a/b-0000000000"} {
		if _, err := c.Create(path, nil, 0, acl); err != nil {
			t.Fatal(err)
		}
	}
	release(t, acquire(t, d, request("a")))
	release(t, acquire(t, d, noWait("a")))
	for _, child := range []string{"_c_0b4d9ad6-2a3b-4f0c-9b57-1a2b3c4d5e6f-lock-0000000001", "lock-0000000001", "0123__lock__0000000001", "x-lock--000000001"} {
		if _, err := c.Create("/a/"+child, nil, 0, acl); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Acquire(t.Context(), noWait("a")); err != driver.ErrLocked {
			t.Errorf("a try next to %q: got %v, want %v", child, err, driver.ErrLocked)
		}
		w := wait(t, d, request("a"))
		if err := c.Delete("/a/"+child, -1); err != nil {
			t.Fatal(err)
		}
		release(t, w.Granted(t))
	}
}
