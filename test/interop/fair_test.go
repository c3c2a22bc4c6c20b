package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

var fair = []scenario{
	{"order of arrival", true, fairOrder},
	{"a canceled waiter leaves the queue immediately", true, fairGiveUp},
	{"unlock of a free lock", false, fairUnlockFree},
	{"a go waiter dies", false, fairGoDies},
	{"a go waiter dies before java", false, fairGoDiesBeforeJava},
	{"a java waiter dies", false, fairJavaDies},
	{"a holder that was renewed dies", false, fairHolderDies},
	{"an interrupted java waiter stays in the queue", false, fairInterrupted},
	{"tries do not queue, reentrancy does not wait", false, fairTries},
	{"go ends java's hold by force", false, fairGoForces},
	{"java ends go's hold by force", false, fairJavaForces},
	{"lock and queue are deleted", false, fairDelete},
	{"a hold that outlasts every wait", false, fairLongHold},
	{"a crowd of both", true, fairCrowd},
	{"eight go callers have the share of one client", false, fairShare},
	{"subscriptions are cut while both wait", false, fairCut},
}

func TestFair(t *testing.T) {
	onBeds(t, "single", func(t *testing.T, b *bed) {
		for _, s := range fair {
			t.Run(s.name, func(t *testing.T) { t.Parallel(); s.run(t, b) })
		}
	})
}

func TestFairCluster(t *testing.T) {
	onBeds(t, "cluster", func(t *testing.T, b *bed) {
		for _, s := range fair {
			if s.cluster {
				t.Run(s.name, func(t *testing.T) { s.run(t, b) })
			}
		}
	})
}

func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// queue returns the waiters of a fair lock.
func (b *bed) queue(name string) []string {
	var holds []string
	for _, hold := range b.node(name).Do("LRANGE", "redisson_lock_queue:"+tagged(name), "0", "-1").([]any) {
		holds = append(holds, hold.(string))
	}
	return holds
}

// time returns when a waiter may be removed from the queue, relative to the
// server's clock.
func (b *bed) time(tb testing.TB, name, hold string) time.Duration {
	tb.Helper()
	score, _ := b.node(name).Do("ZSCORE", "redisson_lock_timeout:"+tagged(name), hold).(string)
	at, err := strconv.ParseInt(score, 10, 64)
	if err != nil {
		tb.Errorf("time of the waiter %s of %s: %v", hold, name, err)
	}
	now := b.node(name).Do("TIME").([]any)
	seconds, _ := strconv.ParseInt(now[0].(string), 10, 64)
	return time.Duration(at-1000*seconds) * time.Millisecond
}

// queued waits until the lock has n waiters.
func (b *bed) queued(tb testing.TB, name string, n int) []string {
	tb.Helper()
	testenv.Eventually(tb, func() bool { return len(b.queue(name)) == n }, fmt.Sprintf("%d wait for %s", n, name))
	queue := b.queue(name)
	for _, hold := range queue {
		b.subscribed(tb, channelOf(name)+":"+hold, 1)
	}
	return queue
}

// fairUnlockFree checks that Redisson reports success to any client that
// unlocks a free fair lock.
func fairUnlockFree(t *testing.T, b *bed) {
	name := fresh("free")
	stale := lock(t, b.client(t, "&fair=true"), name)
	unlock(t, stale)
	b.redisson.thread(name, "fair", name).do(t, "unlock")
	if err := stale.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) {
		t.Errorf("Unlock of an ended lease: got %v, want ErrNotHeld", err)
	}
}

// inLine is a waiter of a fair lock.
type inLine struct {
	hold    string
	granted func()
	release func()
	cancel  func() // cancels a Go waiter
	call    *call  // the call of a Java waiter
}

// stand adds waiters one behind the other and returns them. g is a Go waiter, j
// a Java waiter, and t a Java waiter with a timeout of three seconds.
func (b *bed) stand(t *testing.T, name, letters string) []*inLine {
	t.Helper()
	c := b.client(t, "&fair=true&order=fifo")
	var all []*inLine
	before := len(b.queue(name))
	for i, letter := range letters {
		w := &inLine{}
		if letter == 'g' {
			g := lockLater(c, name)
			w.granted, w.release = func() { g.granted(t) }, func() { unlock(t, g.lease) }
			w.cancel = func() {
				g.cancel()
				switch <-g.done; {
				case errors.Is(g.err, dsync.ErrUnknown): // it was about to send another request
					testenv.Eventually(t, func() bool { return !slices.Contains(b.queue(name), w.hold) }, "the canceled waiter is gone")
				case !errors.Is(g.err, dsync.ErrLocked):
					t.Errorf("Lock that was canceled: got %v, want ErrLocked", g.err)
				}
			}
		} else {
			j := b.redisson.thread(fmt.Sprint(name, i), "fair", name)
			if letter == 'j' {
				w.call = j.acquire(0)
			} else {
				w.call = j.begin("tryLockFor", "3000", "-1")
			}
			w.granted, w.release = func() { w.call.ok(t) }, func() { j.do(t, "unlock") }
		}
		w.hold = b.queued(t, name, before+i+1)[before+i]
		all = append(all, w)
	}
	return all
}

// served checks that waiters are granted the lock one after the other.
func (b *bed) served(t *testing.T, name string, line ...*inLine) {
	t.Helper()
	for i, w := range line {
		w.granted()
		b.holds(t, name, w.hold, "1")
		if got := b.queue(name); !slices.Equal(got, holdsOf(line[i+1:])) {
			t.Errorf("queue behind the waiter %d: got %q, want %q", i, got, holdsOf(line[i+1:]))
		}
		w.release()
	}
	b.gone(t, name)
}

func holdsOf(line []*inLine) []string {
	var holds []string
	for _, w := range line {
		holds = append(holds, w.hold)
	}
	return holds
}

func fairOrder(t *testing.T, b *bed) {
	name := fresh("order")
	j, c := b.redisson.thread(name, "fair", name), b.client(t, "&fair=true")
	sp := spyOn(t, b.node(name), channelOf(name))
	j.acquire(0).ok(t)
	b.holds(t, name, j.owner(t), "1")
	line := b.stand(t, name, "gjgjjg")
	last := time.Duration(0)
	for _, w := range line {
		at := b.time(t, name, w.hold)
		if at <= last {
			t.Errorf("time of a waiter: in %v, want more than %v, the time of the waiter ahead", at, last)
		}
		last = at
	}
	j.do(t, "unlock")
	b.served(t, name, line...)

	lease := lock(t, c, name)
	line = b.stand(t, name, "jgjg")
	unlock(t, lease)
	b.served(t, name, line...)
	sp.expect(t) // each waiter was notified on its own channel
}

func fairGiveUp(t *testing.T, b *bed) {
	name := fresh("giveup")
	lease := lock(t, b.client(t, "&fair=true"), name)
	line := b.stand(t, name, "gtgj")
	line[0].cancel()
	if got := b.queue(name); slices.Contains(got, line[0].hold) || len(got) > 3 {
		t.Errorf("queue when the first waiter has returned: got %q, want a queue without %s", got, line[0].hold)
	}
	line[1].call.equals(t, "false")
	if got := b.queue(name); !slices.Equal(got, holdsOf(line[2:])) {
		t.Errorf("queue: got %q, want %q", got, holdsOf(line[2:]))
	}
	for _, w := range line[2:] { // no waiter may be removed while the lock is held
		if at := b.time(t, name, w.hold); at < 0 {
			t.Errorf("time of a waiter: in %v", at)
		}
	}
	unlock(t, lease)
	b.served(t, name, line[2:]...)
}

// quiet checks that a waiter sends at most about 20 requests per second while f
// runs.
func (b *bed) quiet(t *testing.T, server *testenv.RedisServer, f func()) {
	t.Helper()
	start, before := time.Now(), server.Commands()
	f()
	after, seconds := server.Commands(), time.Since(start).Seconds()
	runs := after["evalsha"] + after["eval"] - before["evalsha"] - before["eval"]
	if limit := 20*seconds + 20; float64(runs) > limit {
		t.Errorf("a waiter behind a dead waiter: %d requests in %.1f s, want at most %.0f", runs, seconds, limit)
	}
}

func fairGoDies(t *testing.T, b *bed) {
	own := singleBed(t, b.version) // to count its requests
	name := fresh("dies")
	j := own.redisson.thread(name, "fair", name)
	j.acquire(0).ok(t)
	p := own.holder(t, name, "&fair=true")
	own.queued(t, name, 1)
	line := own.stand(t, name, "g")
	p.Kill()
	own.quiet(t, own.node(name), func() {
		j.do(t, "unlock")
		own.served(t, name, line...)
	})
}

func fairGoDiesBeforeJava(t *testing.T, b *bed) {
	name := fresh("dies")
	j := b.redisson.thread(name, "fair", name)
	j.acquire(0).ok(t)
	p := b.holder(t, name, "&fair=true")
	dead := b.queued(t, name, 1)[0]
	line := b.stand(t, name, "j")
	p.Kill()
	if at := b.time(t, name, dead); at > watchdog+20*time.Second {
		t.Errorf("time of the waiter that died: in %v, want soon after the end of the lease", at)
	}
	b.node(name).Do("ZADD", "redisson_lock_timeout:"+tagged(name), "XX", "1000", dead) // as if that time had passed
	j.do(t, "unlock")
	b.served(t, name, line...)
}

func fairJavaDies(t *testing.T, b *bed) {
	own := singleBed(t, b.version)
	name := fresh("dies")
	java, dead := own.ownJava(t, "fair", name)
	j := own.redisson.thread(name, "fair", name)
	j.acquire(0).ok(t)
	dead.acquire(0)
	hold := own.queued(t, name, 1)[0]
	line := own.stand(t, name, "gj")
	java.Kill()
	own.quiet(t, own.node(name), func() {
		if at := own.time(t, name, hold); at < 5*time.Minute {
			t.Errorf("time of the java waiter: in %v, want more than five minutes", at)
		}
		j.do(t, "unlock")
		line[0].granted()
	})
	line[0].release()
	line[1].granted()
	line[1].release()
}

// fairHolderDies covers a bug in Redisson before 3.32. A waiter takes the end
// of the lease at its arrival as the time of its next request. If the holder
// has renewed the lease, that time lies in the past, and the waiter sleeps
// until another client wakes it.
func fairHolderDies(t *testing.T, b *bed) {
	own := singleBed(t, b.version)
	name := fresh("renewed")
	p := own.holder(t, name, "&fair=true&ttl=3s")
	if got := p.Line(); got != "held" {
		t.Fatal(got)
	}
	server, j := own.node(name), own.redisson.thread(name, "fair", name)
	before := server.Commands()["eval"]
	w := j.acquire(0)
	own.queued(t, name, 1)
	sleeps := agent.Before(b.version, agent.AsksAgain)
	if sleeps {
		testenv.Eventually(t, func() bool { return server.Commands()["eval"] >= before+3 }, "java has sent requests on arrival, after it subscribed, and later")
	} else {
		time.Sleep(4 * time.Second) // the lease that java saw has ended
	}
	p.Kill()
	if sleeps {
		testenv.Eventually(t, func() bool { return server.Do("EXISTS", name) == int64(0) }, "the lock is free")
		select {
		case <-w.done:
			t.Errorf("java came back by itself (%v), which Redisson %s does not", w.err, b.version)
		case <-time.After(time.Second):
		}
		g := lockLater(own.client(t, "&fair=true"), name) // the next waiter wakes it
		w.ok(t)
		j.do(t, "unlock")
		unlock(t, g.granted(t))
		return
	}
	w.ok(t)
	j.do(t, "unlock")
	own.gone(t, name)
}

// fairInterrupted covers a waiter that is interrupted in lock. Redisson does
// not remove it from the queue.
func fairInterrupted(t *testing.T, b *bed) {
	name := fresh("interrupted")
	lease := lock(t, b.client(t, "&fair=true"), name)
	stuck := b.redisson.thread(name, "fair", name)
	call := stuck.acquire(0)
	hold := b.queued(t, name, 1)[0]
	line := b.stand(t, name, "g")
	stuck.interrupt(t)
	if call.wait(t); call.err == nil {
		t.Fatal("the interrupted call of lock got the lock")
	}
	if got := b.queue(name); !slices.Contains(got, hold) {
		t.Errorf("queue: got %q, without the interrupted waiter %s", got, hold)
	}
	unlock(t, lease)
	b.served(t, name, line...)
}

func fairTries(t *testing.T, b *bed) {
	name := fresh("tries")
	j, other := b.redisson.thread(name, "fair", name), b.redisson.thread(name+"other", "fair", name)
	c := b.client(t, "&fair=true")
	j.acquire(0).ok(t)
	line := b.stand(t, name, "gj")
	j.acquire(0).ok(t)
	b.holds(t, name, j.owner(t), "2")
	other.begin("tryLock").equals(t, "false")
	refuses(t, c, name)
	if got := b.queue(name); !slices.Equal(got, holdsOf(line)) {
		t.Errorf("queue after tries: got %q, want %q", got, holdsOf(line))
	}
	status, err := c.Inspect(t.Context(), name)
	if err != nil || status.Hold != j.owner(t) || status.Waiters != 2 || !slices.Equal(status.Queue, holdsOf(line)) {
		t.Errorf("Inspect: got %+v, %v, want the queue %q", status, err, holdsOf(line))
	}
	j.do(t, "unlock")
	b.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")
	b.served(t, name, line...)
	other.begin("tryLock").equals(t, "true")
	refuses(t, c, name)
	other.do(t, "unlock")
}

func fairGoForces(t *testing.T, b *bed) {
	name := fresh("force")
	j, c := b.redisson.thread(name, "fair", name), b.client(t, "&fair=true")
	j.acquire(0).ok(t)
	line := b.stand(t, name, "jg")
	if err := c.ForceUnlock(t.Context(), name); err != nil {
		t.Errorf("ForceUnlock: %v", err)
	}
	line[0].granted()
	j.begin("unlock").refused(t)
	b.served(t, name, line...)
}

func fairJavaForces(t *testing.T, b *bed) {
	name := fresh("force")
	lease := lock(t, b.client(t, "&fair=true&ttl=3s"), name)
	line := b.stand(t, name, "gj")
	b.redisson.thread(name, "fair", name).begin("force").equals(t, "true")
	lost(t, lease)
	b.served(t, name, line...)
}

// fairDelete does what delete() of RFairLock does, which notifies no client.
func fairDelete(t *testing.T, b *bed) {
	name := fresh("delete")
	lease := lock(t, b.client(t, "&fair=true&ttl=3s"), name)
	line := b.stand(t, name, "g")
	b.node(name).Do("DEL", name, "redisson_lock_queue:"+tagged(name), "redisson_lock_timeout:"+tagged(name))
	lost(t, lease)
	b.served(t, name, line...)
}

// fairLongHold covers waiters whose time has expired. The next request of any
// Redisson client removes such a waiter from the queue. A Go waiter that was
// next then becomes next again.
func fairLongHold(t *testing.T, b *bed) {
	name := fresh("long")
	j := b.redisson.thread(name, "fair", name)
	j.acquire(0).ok(t)
	line := b.stand(t, name, "gjj")
	b.node(name).Do("ZADD", "redisson_lock_timeout:"+tagged(name), "XX", "1000", line[0].hold)
	j.do(t, "unlock")
	testenv.Eventually(t, func() bool { return slices.Equal(b.queue(name), []string{line[0].hold, line[2].hold}) },
		"the go waiter that was removed is first again")
	b.served(t, name, line[1], line[0], line[2])
}

func fairCrowd(t *testing.T, b *bed) { b.crowd(t, "fair", "&fair=true") }

// fairShare checks that all callers of a Go client share one place in the
// queue, as a Java thread has one. Between two turns of the thread, the client
// hands the lock from caller to caller.
func fairShare(t *testing.T, b *bed) {
	const callers, turns = 8, 20
	name := fresh("share")
	guest, node := "guest {"+name+"}", b.node(name)
	node.Do("SET", guest, "")
	order, endOrder := watchArrivals(t, node, []string{name})
	c := b.client(t, "&fair=true")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sections atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				lease, err := c.Lock(ctx, name)
				if err != nil {
					return // the end of the thread's turns
				}
				for _, step := range []struct{ put, want string }{{"go", ""}, {"", "go"}} {
					if got := node.Do("GETSET", guest, step.put); got != step.want {
						t.Errorf("in the section: got guest %q, want %q", got, step.want)
					}
				}
				sections.Add(1)
				unlock(t, lease)
			}
		})
	}
	testenv.Eventually(t, func() bool { return sections.Load() > callers }, "the go callers are busy")
	before, begun := sections.Load(), time.Now()
	b.redisson.thread(name, "fair", name).do(t, "sections", guest, strconv.Itoa(turns))
	inside, took := sections.Load()-before, time.Since(begun)
	cancel()
	wg.Wait()
	endOrder()
	t.Logf("%d turns of a java thread in %v, alongside %d sections of %d go callers: %d %% of all", turns, took, inside, callers,
		100*turns/(inside+turns))
	if len(order.overtaking) > 0 {
		t.Errorf("overtaken in the queue: %v", order.overtaking[0])
	}
	if order.grants < turns/2 {
		t.Errorf("the order of only %d grants was judged", order.grants)
	}
}

func fairCut(t *testing.T, b *bed) {
	own := singleBed(t, b.version)
	name := fresh("cut")
	lease := lock(t, own.client(t, "&fair=true"), name)
	line := own.stand(t, name, "jg")
	own.node(name).Do("CLIENT", "KILL", "TYPE", "pubsub")
	unlock(t, lease)
	line[0].granted()
	own.node(name).Do("CLIENT", "KILL", "TYPE", "pubsub")
	own.served(t, name, line...)
}
