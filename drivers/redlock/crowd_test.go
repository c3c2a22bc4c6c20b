package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// fight has drivers acquire and release the lock x, each the given number of
// times on average, and returns how often each driver held it.
func fight(tb testing.TB, drivers []*Driver, each int) []int {
	tb.Helper()
	return drivertest.Fight(tb, drivers, each, func() *driver.Request { return request("x") })
}

func openMany(tb testing.TB, n int, url string) []*Driver {
	tb.Helper()
	drivers := make([]*Driver, n)
	for i := range drivers {
		drivers[i] = openURL(tb, "%s", url)
	}
	return drivers
}

// waitFor has each driver wait for the lock x, which is held, and returns when
// all have subscribed to the messages of a release.
func waitFor(tb testing.TB, drivers []*Driver) []*drivertest.Waiter {
	tb.Helper()
	var waiters []*drivertest.Waiter
	for _, d := range drivers {
		waiters = append(waiters, drivertest.Wait(tb, d, drivertest.Request("x")))
	}
	for _, d := range drivers {
		testenv.Eventually(tb, func() bool { return listens(d) }, "the waiter has subscribed")
	}
	return waiters
}

// listens reports whether a driver is subscribed to the messages of the lock x,
// on any node, because on a busy machine the first node may seem impaired.
func listens(d *Driver) bool {
	for _, e := range d.ears {
		if t := e.JoinActive(channel("x"), 0, false); t != nil {
			t.Leave(false)
			return true
		}
	}
	return false
}

// patient is for tests in which no node may seem impaired.
const patient = settled + "&nodetimeout=5s"

// releaseAll has each waiter release the lock once it is granted. The order is
// a hint, so any waiter may be first.
func releaseAll(tb testing.TB, waiters []*drivertest.Waiter) {
	tb.Helper()
	parallel(len(waiters), func(i int) {
		l, err := waiters[i].End(tb)
		if err != nil {
			tb.Errorf("Acquire after a wait: %v", err)
			return
		}
		release(tb, l)
	})
}

// TestCrowdSharesTheLock: of many clients that always want a lock, all are
// granted it equally often.
func TestCrowdSharesTheLock(t *testing.T) {
	t.Parallel()
	const n, each = 40, 10
	for _, count := range []int{3, 1} {
		nodes := startNodes(t, count)
		drivers := openMany(t, n, nodes.url()+patient)
		fight(t, drivers, 1) // all came together; connections and subscriptions
		var counts []int
		begun := time.Now()
		got := nodes.counted(func() { counts = fight(t, drivers, each) }, "set", "evalsha", "subscribe", "unsubscribe")
		t.Logf("%d nodes: %.0f hand-overs/s, commands for %d hand-overs: %v, Jain %.3f", count, n*each/time.Since(begun).Seconds(), n*each, got, drivertest.Jain(counts))
		// One client releases the lock and is granted it, and at most all
		// others try one node.
		if requests := float64(got["set"]+got["evalsha"]+got["subscribe"]+got["unsubscribe"]) / (n * each); requests > float64(3*n+4*count) {
			t.Errorf("%d nodes: commands for each hand-over: got %.1f", count, requests)
		}
		// Ten grants each in a random order have an index of 0.91, and grants
		// to clients that do not stand back have one of 0.28.
		if got := drivertest.Jain(counts); got < 0.6 {
			t.Errorf("%d nodes: Jain's index of %v: got %.3f, want 0.6", count, counts, got)
		}
	}
}

// TestCrowdOnLateNodes: while all nodes are late, for example in a crowd
// without enough CPU, no client gives up the waiters' node and tries the next
// one. Clients that do so split the votes and try again and again: this took
// 130 to 230 commands for each grant, and takes 40 to 60.
func TestCrowdOnLateNodes(t *testing.T) {
	t.Parallel()
	const n = 30
	nodes := startNodes(t, 5)
	link, through := nodes.through(t)
	drivers := openMany(t, n, through+settled+"&nodetimeout=5ms")
	link.Delay(wire.Replies, 60*time.Millisecond)
	var counts []int
	got := nodes.counted(func() { counts = fight(t, drivers, 1) }, "set", "evalsha", "subscribe")
	link.Heal()
	t.Logf("commands for %d grants: %v, Jain %.3f", n, got, drivertest.Jain(counts))
	// Including the commands of the scripts, a first try costs 5, the part
	// before the turn 7, a hand-over 12, and each early attempt 2.
	if commands := got["set"] + got["evalsha"] + got["subscribe"]; commands > 120*n {
		t.Errorf("commands for each of %d grants: got %d", n, commands/n)
	}
	nodes.awaitClear(t)
}

// TestWhoReleasesExpectsOthers: a client that was granted a lock immediately
// learns of the waiters at its release, and from then on competes for the lock
// as one of them.
func TestWhoReleasesExpectsOthers(t *testing.T) {
	nodes := startNodes(t, 3)
	d, other := openURL(t, "%s", nodes.url()+patient), openURL(t, "%s", nodes.url()+patient)
	first := d.firstNode("x")
	ear := d.ears[first]
	release(t, acquire(t, d, request("x")))
	if topic := ear.JoinActive(channel("x"), 0, true); topic != nil {
		t.Error("a single client listens")
		topic.Leave(false)
	}
	l := acquire(t, d, request("x"))
	waiters := waitFor(t, []*Driver{other})
	testenv.Eventually(t, func() bool { return nodes[first].SubscriberCount(channel("x")) > 0 }, "the waiter has subscribed")
	release(t, l)
	if topic := ear.JoinActive(channel("x"), 0, true); topic == nil {
		t.Error("a client that keeps others waiting does not listen")
	} else {
		topic.Leave(false)
	}
	releaseAll(t, waiters)
}

// TestPatience: a node gets as much time as the majority takes, and some more.
func TestPatience(t *testing.T) {
	d := &Driver{quorum: 3, nodes: []*node{{}, {}, {}, {}, {}}}
	for _, c := range []struct {
		took        []time.Duration
		least, want time.Duration
	}{
		{[]time.Duration{0, 0, 0, 0, 0}, 50, 50},
		{[]time.Duration{100, 90, 1, 1, 1}, 50, 50}, // two are slow
		{[]time.Duration{100, 90, 80, 1, 1}, 50, 640},
		{[]time.Duration{100, 90, 80, 1, 1}, 1000, 1000},
		{[]time.Duration{9000, 9000, 9000, 9000, 9000}, 50, 1250}, // half of a vote's time
	} {
		for i, n := range d.nodes {
			n.took.Store(int64(c.took[i] * time.Millisecond))
		}
		if got := d.patience(c.least * time.Millisecond); got != c.want*time.Millisecond {
			t.Errorf("patience(%v ms) while the nodes take %v: got %v, want %v ms", int(c.least), c.took, got, int(c.want))
		}
	}
}

// TestDeadWaiters: dead waiters delay no client, whether or not the end of the
// hold is announced.
func TestDeadWaiters(t *testing.T) {
	t.Parallel()
	const dead, alive = 5, 3
	for _, how := range []string{"frozen", "cut off", "gone"} {
		for _, told := range []bool{true, false} {
			nodes := startNodes(t, 3)
			link, through := nodes.through(t)
			l := acquire(t, openURL(t, "%s", nodes.url()+settled), request("x"))
			drivers := openMany(t, dead, through+settled)
			drivers = append(drivers, openMany(t, alive, nodes.url()+settled)...)
			waiters := waitFor(t, drivers)
			end := func(ws []*drivertest.Waiter) {
				for _, w := range ws {
					w.Cancel()
				}
				for _, w := range ws {
					if l, err := w.End(t); err == nil {
						release(t, l)
					}
				}
			}
			switch how {
			case "frozen":
				link.Hold(wire.Both)
			case "cut off":
				link.Cut()
			case "gone":
				end(waiters[:dead])
			}
			start := time.Now()
			if told {
				release(t, l)
			} else {
				nodes.do("DEL", "x")
			}
			releaseAll(t, waiters[dead:])
			if took := time.Since(start); took > longestPause {
				t.Errorf("%s: the other clients held the lock after %v", how, took)
			}
			link.Heal()
			if how != "gone" {
				end(waiters[:dead])
			}
		}
	}
}

// longestPause is far above the delay by dead waiters.
const longestPause = 10 * time.Second

// TestHoldWithoutTheWaitersNode: while a majority without the waiters' node has
// a lock, each attempt is granted that node, and releases it. Only the release,
// and not such an attempt, makes all the others try.
func TestHoldWithoutTheWaitersNode(t *testing.T) {
	t.Parallel()
	const n = 20
	nodes := startNodes(t, 5)
	holder := openURL(t, "%s", nodes.url()+patient)
	first := nodes[holder.firstNode("x")]
	first.Do("SET", "x", "somebody else")
	l := acquire(t, holder, request("x"))
	waiters := waitFor(t, openMany(t, n, nodes.url()+patient))
	first.Do("DEL", "x")
	got := nodes.counted(func() {
		first.Do("PUBLISH", channel("x"), "")
		time.Sleep(time.Second) // for clients that would try
	}, "publish")["publish"]
	t.Logf("%d messages", got)
	if got > 5*n { // of the few that poll; otherwise each attempt makes another client try
		t.Errorf("messages while the lock was held: got %d", got)
	}
	release(t, l)
	releaseAll(t, waiters)
	nodes.awaitClear(t)
}

// TestReleaseIsToldWhereTheValueIsNot: the waiters' node had another value when
// the lock was granted, so the release deletes nothing there.
func TestReleaseIsToldWhereTheValueIsNot(t *testing.T) {
	nodes := startNodes(t, 3)
	d, other := openURL(t, "%s", nodes.url()+patient), openURL(t, "%s", nodes.url()+patient)
	first := d.firstNode("x")
	nodes[first].Do("SET", "x", "somebody else")
	l := acquire(t, d, request("x"))
	topic := other.ears[first].Join(channel("x"), 0)
	defer topic.Leave(false)
	<-topic.Wake // subscribed
	heard := func() {
		t.Helper()
		select {
		case <-topic.Wake:
		case <-time.After(hangGuard):
			t.Error("no waiter got a message of the release")
		}
	}
	topic.TakeTurn()
	release(t, l)
	heard()

	// The node refuses the value after the release has begun.
	topic.TakeTurn()
	nodes[first].Freeze()
	late := acquire(t, d, request("x"))
	released := make(chan error, 1)
	go func() { released <- late.Release(t.Context()) }()
	testenv.Eventually(t, func() bool {
		late.Mu.Lock()
		defer late.Mu.Unlock()
		return late.Phase == redisdriver.Ending
	}, "the release has begun")
	nodes[first].Thaw()
	if err := <-released; err != nil {
		t.Error(err)
	}
	heard()
}

// TestLostVoteIsNoRelease: an attempt that releases a minority of the nodes
// sends no message.
func TestLostVoteIsNoRelease(t *testing.T) {
	nodes := startNodes(t, 5)
	d := openURL(t, "%s", nodes.url()+patient)
	first := d.firstNode("x")
	for i := range 3 {
		nodes[(first+1+i)%len(nodes)].Do("SET", "x", "somebody else")
	}
	got := nodes.counted(func() {
		for range 20 {
			if _, err := d.Acquire(t.Context(), noWait("x")); !errors.Is(err, driver.ErrLocked) {
				t.Fatalf("got %v, want ErrLocked", err)
			}
		}
		testenv.Eventually(t, d.nodesIdle, "all nodes are done")
	}, "publish", "del")
	if got["publish"] != 0 || got["del"] == 0 {
		t.Errorf("commands: got %v, want deletions and no message", got)
	}
}

// TestWaitingWithFewerRights: users who may not publish or subscribe compete
// with users who may.
func TestWaitingWithFewerRights(t *testing.T) {
	t.Parallel()
	for missing, rights := range map[string][]string{
		"PUBLISH":  {"~*", "-publish"},
		"channels": {"~*", "resetchannels"},
	} {
		nodes := startNodes(t, 3)
		password := testenv.Password()
		nodes.do(append([]string{"ACL", "SETUSER", "old", "reset", "on", ">" + password, "&*", "+@all"}, rights...)...)
		drivers := openMany(t, 3, strings.Replace(nodes.url(), "//", "//old:"+password+"@", 1)+settled)
		alone := fight(t, drivers, 10)
		beside := fight(t, append(drivers, openMany(t, 3, nodes.url()+settled)...), 10)
		t.Logf("without the right to %s: %v, and alongside others %v", missing, alone, beside)
		if old, others := beside[0]+beside[1]+beside[2], beside[3]+beside[4]+beside[5]; min(old, others) < (old+others)/20 {
			t.Errorf("without the right to %s: these clients held the lock %d times, the others %d times", missing, old, others)
		}
		nodes.awaitClear(t)
	}
}

// TestCrowdBesideOneThatSendsNoMessages adds a client of another library to a
// crowd. That client polls the nodes and sends no messages about its releases.
func TestCrowdBesideOneThatSendsNoMessages(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var silent sync.WaitGroup
	had := 0
	silent.Go(func() { // ends when ctx ends
		for ctx.Err() == nil {
			votes := 0
			for _, got := range nodes.do("SET", "x", "silent", "NX", "PX", "10000") {
				if got != nil {
					votes++
				}
			}
			if votes > 1 {
				had++
				time.Sleep(time.Millisecond)
			}
			nodes.do("EVAL", "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end", "1", "x", "silent")
			time.Sleep(5 * time.Millisecond)
		}
	})
	counts := fight(t, openMany(t, 10, nodes.url()+settled), 20)
	cancel()
	silent.Wait()
	t.Logf("drivers: %v, the other client: %d", counts, had)
	if had == 0 || drivertest.Jain(counts) < 0.8 {
		t.Errorf("drivers: %v, the other client: %d", counts, had)
	}
	nodes.awaitClear(t)
}

// TestCrowdWithoutTheWaitersNode: the waiters' node is killed, frozen or
// restarted, and the crowd continues.
func TestCrowdWithoutTheWaitersNode(t *testing.T) {
	t.Parallel()
	for how, hit := range map[string]func(*testenv.RedisServer){
		"killed":    func(s *testenv.RedisServer) { s.Kill() },
		"frozen":    func(s *testenv.RedisServer) { s.Freeze() },
		"restarted": func(s *testenv.RedisServer) { s.Restart() },
		"flushed":   func(s *testenv.RedisServer) { s.Do("FLUSHALL") },
	} {
		nodes := startNodes(t, 3)
		drivers := openMany(t, 20, nodes.url()+settled)
		fight(t, drivers, 1)
		nodes.awaitClear(t)
		l := acquire(t, drivers[0], request("x"))
		testenv.Eventually(t, func() bool { return fmt.Sprint(nodes.do("EXISTS", "x")) == "[1 1 1]" }, "all nodes have the value")
		waiters := waitFor(t, drivers[1:])
		hit(nodes[drivers[0].firstNode("x")])
		if err := l.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: Release: %v", how, err)
		}
		start := time.Now()
		releaseAll(t, waiters)
		t.Logf("%s: %v for %d hand-overs", how, time.Since(start), len(waiters))
	}
}

// TestNoAnswerIsNoRefusal: an Acquire whose ctx ends before any node has
// answered does not claim that another client holds the lock.
func TestNoAnswerIsNoRefusal(t *testing.T) {
	nodes := startNodes(t, 1)
	d := openURL(t, "%s", nodes.url()+settled)
	release(t, acquire(t, d, request("warm")))
	topic := d.ears[0].Join(channel("x"), 0) // so that Acquire asks as a waiter does
	defer topic.Leave(false)
	<-topic.Wake
	nodes[0].Freeze()
	defer nodes[0].Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := d.Acquire(ctx, request("x"))
	if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrLocked) {
		t.Errorf("got %v, want ErrUnknown and the deadline, and not ErrLocked", err)
	}
}
