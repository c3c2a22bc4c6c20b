package interop

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// scenario is a test that involves Java and Go.
type scenario struct {
	name    string
	cluster bool // also runs in a cluster
	run     func(t *testing.T, b *bed)
}

var plain = []scenario{
	{"java holds and go waits", true, javaHolds},
	{"go holds and java waits", true, goHolds},
	{"tries are refused on both sides", true, tries},
	{"java's tryLock with wait and lease", false, tryForAWhile},
	{"java's reentrancy", false, javaReenters},
	{"go's reentrancy", false, goReenters},
	{"a client without the lock cannot unlock it", false, strangers},
	{"unlock of a free lock", false, unlockFree},
	{"java's lease runs out", false, javaLeaseEnds},
	{"go's lease runs out", false, goLeaseEnds},
	{"go ends java's hold by force", false, goForces},
	{"java ends go's hold by force", false, javaForces},
	{"java's watchdog", false, javaWatchdog},
	{"go's watchdog", false, goWatchdog},
	{"java is killed", false, javaKilled},
	{"go is killed", false, goKilled},
	{"java is frozen", false, javaFrozen},
	{"go is frozen", false, goFrozen},
	{"java shuts down without unlocking", false, javaShutsDown},
	{"names", true, nameForms},
	{"a crowd of both", true, crowd},
	{"tokens rise over a mixed sequence", true, tokens},
	{"subscriptions are cut while both wait", false, subscriptionsCut},
	{"a message that is no number", false, nonsense},
	{"two objects of one lock in java", false, twoObjects},
	{"the response to go's unlock is lost", false, unlockAnswerLost},
	{"go asks twice", true, acquireTwice},
}

func TestLock(t *testing.T) {
	onBeds(t, "single", func(t *testing.T, b *bed) {
		for _, s := range slices.Concat(plain, readWrite, latches, permits) {
			t.Run(s.name, func(t *testing.T) { t.Parallel(); s.run(t, b) })
		}
	})
}

func TestLockCluster(t *testing.T) {
	onBeds(t, "cluster", func(t *testing.T, b *bed) {
		for _, s := range slices.Concat(plain, readWrite, latches, permits) {
			if s.cluster {
				t.Run(s.name, func(t *testing.T) { s.run(t, b) })
			}
		}
	})
}

// byMessage checks that a hand-over is faster than it can be without a message.
// It tries a few times, because the machine may be slow.
func byMessage(t *testing.T, handOver func() time.Duration) {
	t.Helper()
	const poll = 3 * time.Second // Go sends another request after 3.75 s, Java when the TTL has expired
	took := handOver()
	for range 3 {
		if took < poll {
			return
		}
		took = min(took, handOver())
	}
	t.Errorf("the fastest hand-over took %v, so no message woke the waiter", took)
}

func javaHolds(t *testing.T, b *bed) {
	name := fresh("hold")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	byMessage(t, func() time.Duration {
		j.acquire(0).ok(t)
		b.holds(t, name, j.owner(t), "1")
		b.lasts(t, name, watchdog)
		w := lockLater(c, name)
		b.subscribed(t, channelOf(name), 1)
		start := time.Now()
		if w.ended() {
			t.Fatalf("go got the lock that java holds: %v, %v", w.lease, w.err)
		}
		j.do(t, "unlock")
		lease := w.granted(t)
		took := time.Since(start)
		b.heldByGo(t, name, lease)
		b.lasts(t, name, watchdog)
		j.begin("isLocked").equals(t, "true")
		j.begin("isHeld").equals(t, "false")
		unlock(t, lease)
		return took
	})
	b.free(t, name)
}

func goHolds(t *testing.T, b *bed) {
	name := fresh("hold")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	byMessage(t, func() time.Duration {
		lease := lock(t, c, name)
		b.heldByGo(t, name, lease)
		b.lasts(t, name, watchdog)
		w := j.acquire(0)
		b.subscribed(t, channelOf(name), 1)
		start := time.Now()
		if w.ended() {
			t.Fatalf("java got the lock that go holds: %v", w.err)
		}
		unlock(t, lease)
		w.ok(t)
		took := time.Since(start)
		b.holds(t, name, j.owner(t), "1")
		refuses(t, c, name)
		j.do(t, "unlock")
		return took
	})
	b.free(t, name)
}

func tries(t *testing.T, b *bed) {
	name := fresh("try")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	j.begin("tryLock").equals(t, "true")
	refuses(t, c, name)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Lock(ctx, name); !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock for a while: got %v, want ErrLocked and DeadlineExceeded", err)
	}
	b.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")

	lease, err := c.TryLock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	field := b.heldByGo(t, name, lease)
	j.begin("tryLock").equals(t, "false")
	j.begin("tryLockFor", "300", "-1").equals(t, "false")
	b.holds(t, name, field, "1")
	unlock(t, lease)
	b.free(t, name)
}

func tryForAWhile(t *testing.T, b *bed) {
	name := fresh("while")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	lease := lock(t, c, name)
	j.begin("tryLockFor", "100", "5000").equals(t, "false")
	w := j.begin("tryLockFor", "50000", "5000")
	b.subscribed(t, channelOf(name), 1)
	unlock(t, lease)
	w.equals(t, "true")
	b.holds(t, name, j.owner(t), "1")
	b.lasts(t, name, 5*time.Second)
	status, err := c.Inspect(t.Context(), name)
	if err != nil || !status.Held || status.Hold != j.owner(t) || status.TTL > 5*time.Second {
		t.Errorf("Inspect: got %+v, %v, want the hold of %s for at most 5s", status, err, j.owner(t))
	}
	j.do(t, "unlock")
	b.free(t, name)
}

func javaReenters(t *testing.T, b *bed) {
	name := fresh("again")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	sp := spyOn(t, b.node(name), channelOf(name))
	for _, count := range []string{"1", "2", "3"} {
		j.acquire(10 * time.Second).ok(t)
		b.holds(t, name, j.owner(t), count)
		j.begin("count").equals(t, count)
	}
	w := lockLater(c, name)
	b.subscribed(t, channelOf(name), 2)
	for _, count := range []string{"2", "1"} {
		j.do(t, "unlock")
		b.holds(t, name, j.owner(t), count)
		b.lasts(t, name, 10*time.Second)
		if w.ended() {
			t.Fatalf("go got the lock although java has %s holds left", count)
		}
	}
	sp.expect(t)
	j.do(t, "unlock")
	lease := w.granted(t)
	sp.expect(t, "0")
	j.begin("count").equals(t, "0")
	unlock(t, lease)
	sp.expect(t, "0")
}

// goReenters checks that leases of one Owner share one hold in Redis.
func goReenters(t *testing.T, b *bed) {
	name := fresh("again")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	sp := spyOn(t, b.node(name), channelOf(name))
	owner := c.NewOwner()
	leases := []*dsync.Lease{lock(t, owner, name), lock(t, owner, name), lock(t, owner, name)}
	field := b.heldByGo(t, name, leases[0])
	w := j.acquire(0)
	b.subscribed(t, channelOf(name), 2)
	for _, lease := range leases[1:] {
		unlock(t, lease)
		b.holds(t, name, field, "1")
		if w.ended() {
			t.Fatal("java got the lock although go has a lease left")
		}
	}
	sp.expect(t)
	unlock(t, leases[0])
	w.ok(t)
	sp.expect(t, "0")
	j.do(t, "unlock")
	sp.expect(t, "0")
}

func strangers(t *testing.T, b *bed) {
	name := fresh("stranger")
	j, other, c := b.redisson.thread(name, "plain", name), b.redisson.thread(name+"other", "plain", name), b.client(t, "")
	sp := spyOn(t, b.node(name), channelOf(name))
	stale := lock(t, c, name)
	unlock(t, stale)
	sp.expect(t, "0")
	j.acquire(0).ok(t)
	if err := stale.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) {
		t.Errorf("Unlock of an ended lease: got %v, want ErrNotHeld", err)
	}
	other.begin("unlock").refused(t)
	b.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")
	sp.expect(t, "0")

	lease := lock(t, c, name)
	field := b.heldByGo(t, name, lease)
	j.begin("unlock").refused(t)
	b.holds(t, name, field, "1")
	unlock(t, lease)
	sp.expect(t, "0")
	b.forged(t, name, j)
}

// forged makes the driver release a hold with the identity of another client's
// thread.
func (b *bed) forged(t *testing.T, name string, j *thread) {
	d, _, err := driver.Open(t.Context(), b.url(""))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	lease, err := d.Acquire(t.Context(), &driver.Request{Name: name, Hold: j.owner(t) + "9", TTL: watchdog, Events: silent{}})
	if err != nil {
		t.Fatal(err)
	}
	b.node(name).Do("DEL", name)
	j.acquire(0).ok(t)
	if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release while another thread holds the lock: got %v, want ErrNotHeld", err)
	}
	b.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")
}

// silent discards all driver.Events.
type silent struct{}

func (silent) Waiting()    {}
func (silent) Tokens() int { return 1 }
func (silent) Lost(error)  {}

func unlockFree(t *testing.T, b *bed) {
	name := fresh("free")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	sp := spyOn(t, b.node(name), channelOf(name))
	j.begin("unlock").refused(t)
	j.begin("force").equals(t, "false")
	if err := c.ForceUnlock(t.Context(), name); !errors.Is(err, dsync.ErrNotHeld) {
		t.Errorf("ForceUnlock of a free lock: got %v, want ErrNotHeld", err)
	}
	sp.expect(t)
}

func javaLeaseEnds(t *testing.T, b *bed) {
	name := fresh("lease")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	j.acquire(700 * time.Millisecond).ok(t)
	b.lasts(t, name, 700*time.Millisecond)
	lease := lock(t, c, name)
	field := b.heldByGo(t, name, lease)
	j.begin("isHeld").equals(t, "false")
	j.begin("unlock").refused(t)
	b.holds(t, name, field, "1")
	unlock(t, lease)
}

func goLeaseEnds(t *testing.T, b *bed) {
	name := fresh("lease")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	lease := lock(t, c, name, dsync.ExpireAfter(700*time.Millisecond))
	b.lasts(t, name, 700*time.Millisecond)
	j.acquire(0).ok(t)
	if lease.Err() == nil {
		t.Error("java holds the lock, but go's lease has not ended")
	}
	lost(t, lease)
	b.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")
}

func goForces(t *testing.T, b *bed) {
	name := fresh("force")
	j, next, c := b.hasty.thread(name, "plain", name), b.redisson.thread(name, "plain", name), b.client(t, "")
	sp := spyOn(t, b.node(name), channelOf(name))
	j.acquire(0).ok(t)
	w := next.acquire(0)
	b.subscribed(t, channelOf(name), 2)
	if err := c.ForceUnlock(t.Context(), name); err != nil {
		t.Errorf("ForceUnlock: %v", err)
	}
	sp.expect(t, "0")
	w.ok(t)
	j.begin("isHeld").equals(t, "false")
	j.begin("unlock").refused(t)
	b.holds(t, name, next.owner(t), "1")
	next.do(t, "unlock")

	j.acquire(0).ok(t)
	if err := c.ForceUnlock(t.Context(), name); err != nil {
		t.Errorf("ForceUnlock: %v", err)
	}
	if err := c.ForceUnlock(t.Context(), name); !errors.Is(err, dsync.ErrNotHeld) {
		t.Errorf("ForceUnlock again: got %v, want ErrNotHeld", err)
	}
	for end := time.Now().Add(2 * shortWatchdog); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if b.node(name).Do("EXISTS", name) != int64(0) {
			t.Fatal("java's watchdog brought the lock back")
		}
	}
}

func javaForces(t *testing.T, b *bed) {
	name := fresh("force")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "&ttl=3s")
	lease := lock(t, c, name)
	j.begin("force").equals(t, "true")
	j.acquire(0).ok(t)
	lost(t, lease)
	b.holds(t, name, j.owner(t), "1")
	w := lockLater(c, name)
	b.subscribed(t, channelOf(name), 1)
	j.begin("force").equals(t, "true")
	unlock(t, w.granted(t))
}

func nameForms(t *testing.T, b *bed) {
	forms := []string{"a:b", "{tag}:b", "with space", "Grüße, 世界", "日{本}語", "'\"\\%s*?[x]"}
	if b.mode == "single" { // Redisson 4.7.0 sends subscriptions to "b}{c}d" to the wrong node of a cluster
		forms = append(forms, "a{b", "{}x", "}a{", "b}{c}d")
	}
	c := b.client(t, "")
	for _, form := range forms {
		name := fresh(form)
		j := b.redisson.thread("names", "plain", name)
		lease := lock(t, c, name)
		w := j.acquire(0)
		b.subscribed(t, channelOf(name), 1)
		unlock(t, lease)
		w.ok(t)
		b.holds(t, name, j.owner(t), "1")
		refuses(t, c, name)
		j.do(t, "unlock")
	}
	if b.mode == "cluster" {
		if _, err := c.TryLock(t.Context(), "a{b"); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a name whose keys have no common slot: got %v, want ErrUnsupported", err)
		}
	}
}

func crowd(t *testing.T, b *bed) { b.crowd(t, "plain", "") }

// crowd makes threads and goroutines of several clients enter a section in
// which each checks that no other one is inside.
func (b *bed) crowd(t *testing.T, kind, parameters string) {
	const threads, times = 6, 10
	name := fresh("crowd")
	guest := "guest {" + name + "}"
	node := b.node(guest)
	node.Do("SET", guest, "")
	var calls []*call
	for i := range threads {
		j := b.redisson.thread(name+strconv.Itoa(i), kind, name)
		calls = append(calls, j.begin("sections", guest, strconv.Itoa(times)))
	}
	clients := []*dsync.Client{b.client(t, parameters), b.client(t, parameters)}
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for range times {
				lease := lock(t, clients[i%2], name)
				for _, step := range []struct{ put, want string }{{"go", ""}, {"", "go"}} {
					if got := node.Do("GETSET", guest, step.put); got != step.want {
						t.Errorf("in the section: got guest %q, want %q", got, step.want)
					}
				}
				unlock(t, lease)
			}
		})
	}
	wg.Wait()
	for _, c := range calls {
		c.equals(t, "0")
	}
	node.Do("DEL", guest)
	b.free(t, name)
}

func tokens(t *testing.T, b *bed) {
	name := fresh("token")
	j, c := b.redisson.thread(name, "fenced", name), b.client(t, "")
	var last uint64
	rises := func(token uint64, who string) {
		t.Helper()
		if token <= last {
			t.Errorf("token of %s: got %d, want more than %d", who, token, last)
		}
		last = token
	}
	fromJava := func() uint64 {
		t.Helper()
		token, err := strconv.ParseUint(j.do(t, "token"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	for range 5 {
		lease := lock(t, c, name)
		rises(lease.Token(), "go")
		j.begin("tryLock").equals(t, "false")
		unlock(t, lease)
		rises(fromJava(), "java")
		rises(fromJava(), "java, again")
		refuses(t, c, name)
		j.do(t, "unlock")
		j.do(t, "unlock")
	}
	key := "redisson_lock_token:{" + name + "}"
	if got, want := b.node(key).Do("GET", key), strconv.FormatUint(last, 10); got != want {
		t.Errorf("%s: got %v, want %v", key, got, want)
	}
	if got := b.node(key).Do("PTTL", key); got != int64(-1) {
		t.Errorf("PTTL of the token: got %v, want -1", got)
	}
}

// subscriptionsCut checks waiters that miss the messages published while their
// subscriptions are down.
func subscriptionsCut(t *testing.T, b *bed) {
	own := singleBed(t, b.version) // otherwise other scenarios would be disconnected as well
	name := fresh("cut")
	j, c := own.hasty.thread(name, "plain", name), own.client(t, "")
	first := lock(t, c, name)
	w := j.acquire(0)
	own.subscribed(t, channelOf(name), 1)
	own.node(name).Do("CLIENT", "KILL", "TYPE", "pubsub")
	unlock(t, first)
	w.ok(t)
	g := lockLater(c, name)
	own.subscribed(t, channelOf(name), 1)
	own.node(name).Do("CLIENT", "KILL", "TYPE", "pubsub")
	j.do(t, "unlock")
	unlock(t, g.granted(t))
	testenv.Eventually(t, func() bool { return own.node(name).Do("EXISTS", name) == int64(0) }, "the lock is free")
}

// nonsense sends a message that Redisson cannot decode on the channel of a
// lock. One such message does not keep Redisson from receiving the next one.
// After three in a row, some versions miss the next message, and their waiters
// wake up at the end of the lease.
func nonsense(t *testing.T, b *bed) {
	name := fresh("nonsense")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "")
	byMessage(t, func() time.Duration {
		lease := lock(t, c, name)
		w := j.acquire(0)
		b.subscribed(t, channelOf(name), 1)
		b.node(name).Do("PUBLISH", channelOf(name), "nonsense")
		start := time.Now()
		unlock(t, lease)
		w.ok(t)
		took := time.Since(start)
		g := lockLater(c, name)
		b.subscribed(t, channelOf(name), 1)
		b.node(name).Do("PUBLISH", channelOf(name), "nonsense")
		j.do(t, "unlock")
		unlock(t, g.granted(t))
		return took
	})
}

// twoObjects covers the lease that an RLock remembers from its last lock call.
// An unlock by another RLock that leaves holds sets their TTL to the TTL of the
// watchdog.
func twoObjects(t *testing.T, b *bed) {
	name := fresh("objects")
	j := b.redisson.thread(name, "plain", name)
	j.acquire(5 * time.Second).ok(t)
	j.acquire(5 * time.Second).ok(t)
	other := b.redisson.thread(name, "plain", name)
	other.kind = "plain again"
	other.do(t, "unlock")
	b.holds(t, name, j.owner(t), "1")
	if left := b.node(name).Do("PTTL", name).(int64); left <= 5000 {
		t.Errorf("PTTL after an unlock by another object: got %d, want the watchdog's PTTL", left)
	}
	j.do(t, "unlock")
}

// TestRestart restarts a Redis that loses all data.
func TestRestart(t *testing.T) {
	onBeds(t, "single", func(t *testing.T, b *bed) {
		name, other := fresh("restart"), fresh("restart")
		j, c := b.hasty.thread(name, "plain", name), b.client(t, "&ttl=3s")
		j.acquire(0).ok(t)
		lease := lock(t, c, other)
		b.node(name).Restart()
		lost(t, lease)
		testenv.Eventually(t, func() bool { // Redisson needs a while to reconnect
			c := j.begin("unlock")
			c.wait(t)
			return c.err != nil && len(c.err.Error()) > 0 && c.err.Error()[:7] == "Illegal"
		}, "java learns that it does not hold the lock")
		lease = lock(t, c, name)
		j.begin("tryLock").equals(t, "false")
		unlock(t, lease)
		j.acquire(0).ok(t)
		b.staysHeld(t, name, shortWatchdog, func() { refuses(t, c, name) })
		j.do(t, "unlock")
	})
}
