package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// shortest is the longest TTL in tests that restart nodes, which then do not
// count for that time.
const shortest = 2 * time.Second

const restarting = "?maxttl=2s"

// awaitAge waits until all nodes have run long enough to count.
func (s servers) awaitAge(tb testing.TB) {
	tb.Helper()
	for _, server := range s {
		testenv.Eventually(tb, func() bool {
			uptime, err := strconv.Atoi(fields(server.Do("INFO", "server").(string))["uptime_in_seconds"])
			return err == nil && time.Duration(uptime)*time.Second > shortest+time.Second
		}, "the node has run for longer than the longest TTL")
	}
}

// TestFaultsOfNodes lets clients contend while one or two of five nodes are
// killed, frozen, or restarted without their data, and checks the history.
func TestFaultsOfNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 5)
	nodes.awaitAge(t)
	s := &storm{history: history.New(), stop: make(chan struct{})}
	for i := range 3 {
		c, err := dsync.Open(t.Context(), nodes.url()+restarting, &dsync.Options{TTL: shortest / 2})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		for range 3 {
			s.wg.Go(func() { s.work(t, c, fmt.Sprint("client", i)) }) // ends with stop
		}
	}
	for _, count := range []int{1, 2} {
		for _, f := range []struct {
			name    string
			on, off func(*testenv.RedisServer)
		}{
			{"kill", func(s *testenv.RedisServer) { s.Kill() }, func(s *testenv.RedisServer) { s.Start() }},
			{"freeze", func(s *testenv.RedisServer) { s.Freeze() }, func(s *testenv.RedisServer) { s.Thaw() }},
			{"restart", func(s *testenv.RedisServer) { s.Restart() }, func(*testenv.RedisServer) {}},
		} {
			time.Sleep(shortest / 4)
			over := s.history.Fault(f.name, fmt.Sprint(count, " nodes"))
			hit := rand.Perm(len(nodes))[:count]
			for _, i := range hit {
				f.on(nodes[i])
			}
			time.Sleep(shortest * 3 / 4)
			for _, i := range hit {
				f.off(nodes[i])
			}
			nodes.awaitAge(t)
			over()
		}
	}
	close(s.stop)
	s.wg.Wait()
	if err := s.history.Close(); err != nil {
		t.Fatal(err)
	}
	v := history.Judge(s.history.Events(), history.Bounds{
		Linger: shortest/2 + redisdriver.Late, Stuck: hangGuard, Recover: hangGuard / 2, MaxUnknown: 0.5,
	})
	t.Log(v)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
}

// storm is a set of workers that lock and unlock.
type storm struct {
	history *history.History
	stop    chan struct{}
	wg      sync.WaitGroup
}

func (s *storm) work(t *testing.T, c *dsync.Client, label string) {
	for {
		name := fmt.Sprint("storm", rand.IntN(2))
		ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
		op := s.history.Begin(history.Attempt{Client: label, Name: name})
		l, err := c.Lock(ctx, name)
		cancel()
		if err != nil {
			op.Returned(nil, err)
			t.Errorf("Lock while a majority of the nodes is there: %v", err)
			return
		}
		op.Returned(l, nil)
		time.Sleep(rand.N(5 * time.Millisecond))
		_ = op.Check()
		op.Released(l.Unlock(op.Releasing(context.Background())))
		select {
		case <-s.stop:
			return
		default:
		}
	}
}

func TestRestartedNodesDoNotCount(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	nodes.awaitAge(t)
	holder, other := openURL(t, "%s", nodes.url()+restarting), openURL(t, "%s", nodes.url()+restarting)
	r := request("x")
	r.TTL = shortest
	release(t, acquire(t, other, noWait("warm")))
	l := acquire(t, holder, r)
	for _, s := range nodes[:2] {
		s.Restart()
	}
	// A driver that counts their answers would be granted the lock, so the
	// fault is a real one.
	reckless := openURL(t, "%s", nodes.url()+settled)
	release(t, acquire(t, reckless, noWait("x")))

	for l.Expires().After(time.Now()) {
		got, err := other.Acquire(t.Context(), noWait("x"))
		if err == nil {
			if now := time.Now(); now.Before(l.Expires()) {
				t.Fatalf("granted %v before the end of a hold that two of three nodes have forgotten", l.Expires().Sub(now))
			}
			release(t, got)
		} else if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("got %v, want ErrUnavailable", err)
		} else if strings.Contains(err.Error(), "started less than") && !strings.Contains(err.Error(), "127.0.0.1:") {
			t.Fatalf("the error %q does not name the node", err)
		}
	}
	testenv.Eventually(t, func() bool {
		got, err := other.Acquire(t.Context(), noWait("x"))
		if err == nil {
			release(t, got)
		}
		return err == nil
	}, "the nodes count again")
}

func TestNewNodesDoNotCountEither(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s?maxttl=1h", nodes.url())
	_, err := d.Acquire(t.Context(), noWait("x"))
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "started less than the longest TTL (1h0m0s) ago") {
		t.Errorf("got %v, want ErrUnavailable with a reason", err)
	}
	if got := nodes.do("DBSIZE"); got[0] != int64(0) || got[1] != int64(0) || got[2] != int64(0) {
		t.Errorf("keys on the nodes: got %v, want none", got)
	}
}

func TestRenewalBringsARestartedNodeBack(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s", nodes.url()+settled)
	l := acquire(t, d, request("x"))
	for i, s := range nodes { // each node in turn loses all its data
		s.Restart()
		testenv.Eventually(t, func() bool {
			if err := l.Renew(t.Context(), testTTL); err != nil && !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
				t.Fatalf("renewal after the restart of node %d: %v", i, err)
			}
			return s.Do("GET", "x") == l.value
		}, "the node has the value again")
	}
	release(t, l)
	nodes.awaitClear(t)
}

func TestMajorityThatForgotIsALostHold(t *testing.T) {
	nodes := startNodes(t, 5)
	d := openURL(t, "%s", nodes.url()+settled)
	l := acquire(t, d, request("x"))
	nodes.do("GET", "x") // the nodes beyond the majority have it too
	for _, s := range nodes[:3] {
		s.Do("DEL", "x")
	}
	if err := l.Renew(t.Context(), testTTL); err != driver.ErrNotHeld {
		t.Errorf("Renew: got %v, want ErrNotHeld", err)
	}
	if err := l.Release(t.Context()); err != driver.ErrNotHeld {
		t.Errorf("Release: got %v, want ErrNotHeld", err)
	}
	nodes.awaitClear(t)
}

// TestDeletionWaitsForItsSet is about an answer at quorum: the lock is released
// while one node has not yet executed the request that sets the value. The node
// must not keep the value.
func TestDeletionWaitsForItsSet(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	d := openURL(t, "%s", nodes.url()+settled)
	release(t, acquire(t, d, request("warm")))
	nodes.awaitClear(t)
	nodes[0].Freeze()
	for range 20 {
		release(t, acquire(t, d, request("x")))
	}
	nodes[0].Thaw()
	release(t, acquire(t, d, request("x")))
	nodes.awaitClear(t)
}

// TestNodeThatLagsIsAskedOnce: refusing nodes are asked again while another
// node has not reached the request yet. If the lagging node were asked twice,
// it would refuse the second time because it has the value by then, and no
// request would delete the value.
func TestNodeThatLagsIsAskedOnce(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s%s&nodetimeout=%v", nodes.url(), settled, hangGuard)
	for _, s := range nodes[1:] {
		s.Do("SET", "x", "somebody's")
	}
	nodes[0].Freeze()
	before := acquire(t, d, request("before"))
	testenv.Eventually(t, func() bool { return d.nodes[0].flight.Load() != 0 }, "a request that the others wait behind")
	l := d.newLease(request("x"), "mine")
	for range 3 {
		l.askAll()
		if err := l.vote(t.Context()); err != driver.ErrLocked {
			t.Fatalf("got %v, want ErrLocked", err)
		}
	}
	nodes[0].Thaw()
	testenv.Eventually(t, d.nodes[0].idle, "the node has answered")
	if got := nodes[0].Do("GET", "x"); got != l.value {
		t.Errorf("the node has %v, want %s", got, l.value)
	}
	if err := d.giveUp(t.Context(), l, driver.ErrLocked); err != driver.ErrLocked {
		t.Errorf("got %v, want ErrLocked", err)
	}
	if got := nodes[0].Do("GET", "x"); got != nil {
		t.Errorf("the attempt is undone, and the node has %v", got)
	}
	release(t, before)
}

// TestRequestsOutliveTheirConnection is like TestNodeThatLagsIsAskedOnce, but
// the connection breaks in the meantime. The requests sent over it are executed
// when the node continues.
func TestRequestsOutliveTheirConnection(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s", nodes.url()+settled)
	release(t, acquire(t, d, request("warm")))
	nodes.awaitClear(t)
	nodes[0].Freeze()
	r := request("x")
	r.TTL = time.Hour / 200 // far longer than the test
	l := acquire(t, d, r)
	testenv.Eventually(t, func() bool { return d.nodes[0].flight.Load() != 0 || d.nodes[0].impaired() }, "the request is on its way")
	d.nodes[0].dialer.Break()
	release(t, l)
	nodes[0].Thaw()
	nodes.awaitClear(t)
	testenv.Eventually(t, d.nodes[0].idle, "nothing is left to clean up, long before the TTL")
}

func TestLostScriptsAreSentAgain(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			nodes := startNodes(t, n)
			d := openURL(t, "%s", nodes.url()+settled)
			nodes.do("SCRIPT", "FLUSH")
			l := acquire(t, d, request("x"))
			nodes.do("SCRIPT", "FLUSH")
			if err := l.Renew(t.Context(), testTTL); err != nil {
				t.Errorf("Renew: %v", err)
			}
			nodes.do("SCRIPT", "FLUSH")
			release(t, l)
			nodes.awaitClear(t)
		})
	}
}

// TestFrozenNodes: nodes that do not answer for a while cost no holder its
// lock.
func TestFrozenNodes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			nodes := startNodes(t, n)
			all := func(do func(*testenv.RedisServer)) func() {
				return func() {
					for _, s := range nodes {
						do(s)
					}
				}
			}
			drivertest.FrozenServerCostsNoLock(t, nodes.url()+settled, all((*testenv.RedisServer).Freeze), all((*testenv.RedisServer).Thaw))
		})
	}
}
