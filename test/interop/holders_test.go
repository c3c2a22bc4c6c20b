package interop

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Live holders, with and without renewal.

// staysHeld checks that a hold is renewed for three times its TTL, and that its
// TTL never exceeds ttl.
func (b *bed) staysHeld(t *testing.T, name string, ttl time.Duration, refused func()) {
	t.Helper()
	renewed := 0
	last := int64(0)
	for end := time.Now().Add(3 * ttl); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		left := b.node(name).Do("PTTL", name).(int64)
		if left <= 0 || left > ttl.Milliseconds() {
			t.Fatalf("PTTL while the lock is held: got %d, want 1 to %d", left, ttl.Milliseconds())
		}
		if left > last {
			renewed++
			refused()
		}
		last = left
	}
	if renewed < 3 {
		t.Errorf("the hold was renewed %d times in three times its TTL, want at least 3", renewed)
	}
}

func javaWatchdog(t *testing.T, b *bed) {
	name := fresh("watchdog")
	j, c := b.hasty.thread(name, "plain", name), b.client(t, "")
	j.acquire(0).ok(t)
	w := lockLater(c, name)
	b.staysHeld(t, name, shortWatchdog, func() { refuses(t, c, name) })
	if w.ended() {
		t.Fatalf("go got the lock: %v, %v", w.lease, w.err)
	}
	b.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")
	unlock(t, w.granted(t))
}

func goWatchdog(t *testing.T, b *bed) {
	name := fresh("watchdog")
	j, c := b.redisson.thread(name, "plain", name), b.client(t, "&ttl=3s")
	lease := lock(t, c, name)
	b.staysHeld(t, name, shortWatchdog, func() { j.begin("tryLock").equals(t, "false") })
	unlock(t, lease)
	j.begin("tryLock").equals(t, "true")
	b.lasts(t, name, watchdog) // each side sets its own TTL
	j.do(t, "unlock")
}

// ownJava returns a Java process that may be killed, and a thread of it.
func (b *bed) ownJava(t *testing.T, kind, name string) (*jvm, *thread) {
	java := startJava(t, b.version)
	return java, java.open(t, b.mode, b.addrs, shortWatchdog).thread("killed", kind, name)
}

func javaKilled(t *testing.T, b *bed) {
	name := fresh("killed")
	java, j := b.ownJava(t, "plain", name)
	c := b.client(t, "")
	j.acquire(0).ok(t)
	w := lockLater(c, name)
	b.subscribed(t, channelOf(name), 1)
	java.Kill()
	b.lasts(t, name, shortWatchdog)
	unlock(t, w.granted(t))
}

func goKilled(t *testing.T, b *bed) {
	name := fresh("killed")
	p := b.holder(t, name, "&ttl=3s")
	if got := p.Line(); got != "held" {
		t.Fatal(got)
	}
	w := b.redisson.thread(name, "plain", name).acquire(0)
	b.subscribed(t, channelOf(name), 1)
	p.Kill()
	b.lasts(t, name, 3*time.Second)
	w.ok(t)
}

func javaFrozen(t *testing.T, b *bed) {
	name := fresh("frozen")
	java, j := b.ownJava(t, "plain", name)
	c := b.client(t, "")
	j.acquire(0).ok(t)
	java.Stop()
	lease := lock(t, c, name)
	field := b.heldByGo(t, name, lease)
	java.Cont()
	j.begin("isHeld").equals(t, "false")
	j.begin("unlock").refused(t)
	b.holds(t, name, field, "1")
	unlock(t, lease)
}

func goFrozen(t *testing.T, b *bed) {
	name := fresh("frozen")
	p := b.holder(t, name, "&ttl=3s")
	if got := p.Line(); got != "held" {
		t.Fatal(got)
	}
	p.Stop()
	j := b.redisson.thread(name, "plain", name)
	w := j.acquire(0)
	select {
	case <-w.done:
	case <-time.After(hangGuard / 2):
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		t.Logf("java still waits; state of the frozen process: %s, %v; hash %v, PTTL %v; %d subscribers", stat, err, b.fields(name),
			b.node(name).Do("PTTL", name), b.node(name).SubscriberCount(channelOf(name)))
	}
	w.ok(t)
	p.Cont()
	if got := p.Line(); got != "over true true" {
		t.Errorf("the frozen holder reports %q, want a lost lease that is not held", got)
	}
	b.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")
}

func javaShutsDown(t *testing.T, b *bed) {
	name := fresh("shutdown")
	client := b.java.open(t, b.mode, b.addrs, shortWatchdog)
	client.thread(name, "plain", name).acquire(0).ok(t)
	b.java.call(client.name, "main", "close").ok(t)
	if got := b.node(name).Do("EXISTS", name); got != int64(1) {
		t.Errorf("EXISTS after the shutdown: got %v, want 1", got)
	}
	unlock(t, lock(t, b.client(t, ""), name))
}
