package interop

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

// readWrite are scenarios of getReadWriteLock.
var readWrite = []scenario{
	{"readers of both share a read-write lock", true, readersShare},
	{"a writer excludes all others from a read-write lock", true, writerIsAlone},
	{"hand-overs of a read-write lock, in both directions", true, readWriteHandOvers},
	{"a writer wakes all readers of both", true, writerWakesReaders},
	{"readers of both are renewed", false, readersAreRenewed},
	{"every go lock writes", true, locksOfGoWrite},
	{"a go lock alongside java's read-write lock", false, javaBesideALock},
	{"java readers outlive their keys", false, javaReadersStay},
	{"a java reader is killed", false, javaReaderKilled},
	{"a go reader is killed", false, goReaderKilled},
	{"a go reader is frozen", false, goReaderFrozen},
	{"readers and writers are removed by force", false, readWriteForced},
	{"a crowd of readers and writers of both", true, readWriteCrowd},
}

func readWriteChannel(name string) string { return "redisson_rwlock:" + tagged(name) }

// timeoutKey returns the key of the only hold of a reader.
func timeoutKey(name, owner string) string { return "{" + name + "}:" + owner + ":rwlock_timeout:1" }

func (b *bed) wantFields(tb testing.TB, name string, want map[string]string) {
	tb.Helper()
	if got := b.fields(name); !maps.Equal(got, want) {
		tb.Errorf("hash at %q: got %v, want %v", name, got, want)
	}
}

// sides returns the two ways to pair Java and the other side.
func sides(java, other *redisson) [][2]*redisson { return [][2]*redisson{{java, other}, {other, java}} }

func sideOf(r *redisson) string {
	if r.name == "go" {
		return "go"
	}
	return "java"
}

// refusesBoth checks that threads of both sides are refused.
func refusesBoth(t *testing.T, java, other *redisson, kind, name string) {
	t.Helper()
	for _, side := range []*redisson{java, other} {
		side.thread("refused", kind, name).begin("tryLock").equals(t, "false")
	}
}

// readersShare checks the data that either side stores in Redis.
func readersShare(t *testing.T, b *bed) {
	_, g := b.startReader(t, watchdog)
	for _, pair := range sides(b.redisson, g) {
		name := fresh("share")
		node := b.node(name)
		first, second := pair[0].thread("first", "read", name), pair[1].thread("second", "read", name)
		first.acquire(0).ok(t)
		one := first.owner(t)
		b.wantFields(t, name, map[string]string{"mode": "read", one: "1"})
		second.acquire(0).ok(t)
		two := second.owner(t)
		b.wantFields(t, name, map[string]string{"mode": "read", one: "1", two: "1"})
		for _, owner := range []string{one, two} {
			// Java checks only the TTL of this key, and Go stores the text
			// about the reader in it.
			text, _ := node.Do("GET", timeoutKey(name, owner)).(string)
			if ofGo := strings.HasSuffix(owner, ":read"); ofGo && !strings.HasPrefix(text, "#1\n") || !ofGo && text != "1" {
				t.Errorf("key of the reader %s: got %q", owner, text)
			}
			b.lasts(t, timeoutKey(name, owner), watchdog)
		}
		b.lasts(t, name, watchdog)
		refusesBoth(t, b.redisson, g, "write", name)
		first.do(t, "unlock")
		b.wantFields(t, name, map[string]string{"mode": "read", two: "1"})
		if got := node.Do("EXISTS", timeoutKey(name, one)); got != int64(0) {
			t.Error("the key of a reader that has released the lock remains")
		}
		refusesBoth(t, b.redisson, g, "write", name)
		second.do(t, "unlock")
		b.gone(t, name)
	}
}

func writerIsAlone(t *testing.T, b *bed) {
	_, g := b.startReader(t, watchdog)
	for _, side := range []*redisson{b.redisson, g} {
		name := fresh("alone")
		w := side.thread("writer", "write", name)
		w.acquire(0).ok(t)
		b.wantFields(t, name, map[string]string{"mode": "write", w.owner(t) + ":write": "1"})
		b.lasts(t, name, watchdog)
		refusesBoth(t, b.redisson, g, "write", name)
		refusesBoth(t, b.redisson, g, "read", name)
		w.do(t, "unlock")
		b.gone(t, name)
	}
}

// readWriteHandOvers checks that the end of each hold notifies the other side.
func readWriteHandOvers(t *testing.T, b *bed) {
	_, g := b.startReader(t, watchdog)
	for _, pair := range sides(b.redisson, g) {
		for _, kinds := range [][2]string{{"read", "write"}, {"write", "read"}, {"write", "write"}} {
			t.Run(fmt.Sprint(sideOf(pair[0]), " to ", sideOf(pair[1]), ", ", kinds[0], " to ", kinds[1]), func(t *testing.T) {
				name := fresh("over")
				byMessage(t, func() time.Duration {
					from, to := pair[0].thread("from", kinds[0], name), pair[1].thread("to", kinds[1], name)
					from.acquire(0).ok(t)
					w := to.acquire(0)
					b.subscribed(t, readWriteChannel(name), 1)
					time.Sleep(20 * time.Millisecond) // a waiter sends another request once it has subscribed
					if w.ended() {
						t.Fatalf("the waiter was granted: %v", w.err)
					}
					start := time.Now()
					from.do(t, "unlock")
					w.ok(t)
					took := time.Since(start)
					to.do(t, "unlock")
					return took
				})
				b.gone(t, name)
			})
		}
	}
}

func writerWakesReaders(t *testing.T, b *bed) {
	_, g := b.startReader(t, watchdog)
	for _, side := range []*redisson{b.redisson, g} {
		name := fresh("all")
		byMessage(t, func() time.Duration {
			w := side.thread("writer", "write", name)
			w.acquire(0).ok(t)
			var readers []*thread
			var calls []*call
			for i := range 3 {
				for _, other := range []*redisson{b.redisson, g} {
					r := other.thread(fmt.Sprint("reader", i), "read", name)
					readers, calls = append(readers, r), append(calls, r.acquire(0))
				}
			}
			b.subscribed(t, readWriteChannel(name), 2)
			time.Sleep(50 * time.Millisecond)
			start := time.Now()
			w.do(t, "unlock")
			for _, c := range calls {
				c.ok(t)
			}
			took := time.Since(start)
			for _, r := range readers {
				r.do(t, "unlock")
			}
			return took
		})
		b.gone(t, name)
	}
}

func readersAreRenewed(t *testing.T, b *bed) {
	name := fresh("renewed")
	_, g := b.startReader(t, shortWatchdog)
	j, r := b.hasty.thread("reader", "read", name), g.thread("reader", "read", name)
	j.acquire(0).ok(t)
	r.acquire(0).ok(t)
	keys := []string{name, timeoutKey(name, j.owner(t)), timeoutKey(name, r.owner(t))}
	for end := time.Now().Add(3 * shortWatchdog); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, key := range keys {
			b.lasts(t, key, shortWatchdog)
		}
		if t.Failed() {
			return
		}
	}
	refusesBoth(t, b.redisson, g, "write", name)
	j.do(t, "unlock")
	refusesBoth(t, b.redisson, g, "write", name)
	r.do(t, "unlock")
	b.gone(t, name)
}

// locksOfGoWrite checks that, with write=true, the read-write lock of Java and
// each Lock of Go exclude each other.
func locksOfGoWrite(t *testing.T, b *bed) {
	c := b.client(t, "&write=true")
	for _, kind := range []string{"read", "write"} {
		name := fresh("writes")
		j := b.redisson.thread(name, kind, name)
		lease := lock(t, c, name)
		j.begin("tryLock").equals(t, "false")
		w := j.acquire(0)
		b.subscribed(t, readWriteChannel(name), 1)
		unlock(t, lease)
		w.ok(t)
		refuses(t, c, name)
		later := lockLater(c, name)
		b.subscribed(t, readWriteChannel(name), 1)
		j.do(t, "unlock")
		unlock(t, later.granted(t))
		b.gone(t, name)
	}
}

// javaBesideALock covers the warning in redisson.md: the read-write lock of
// Java is granted while Go holds a plain lock. The end of a read removes the
// hold of Go. The end of a write leaves that hold, and a mark that makes the
// name count as read until the hash ends.
func javaBesideALock(t *testing.T, b *bed) {
	c := b.client(t, "&ttl="+shortWatchdog.String())
	read, written := fresh("beside"), fresh("beside")
	for name, kind := range map[string]string{read: "read", written: "write"} {
		j := b.redisson.thread(name, kind, name)
		lease := lock(t, c, name)
		j.begin("tryLock").equals(t, "true")
		j.do(t, "unlock")
		if name == read {
			b.gone(t, name)
			lost(t, lease)
			continue
		}
		b.wantFields(t, name, map[string]string{"mode": "read", b.heldBeside(t, name): "1"})
		unlock(t, lease)
		b.wantFields(t, name, map[string]string{"mode": "read"})
		b.lasts(t, name, watchdog)
		unlock(t, lock(t, c, name, dsync.Write()))
	}
}

// heldBeside returns the field of a hash that is not the mode.
func (b *bed) heldBeside(tb testing.TB, name string) string {
	tb.Helper()
	for field := range b.fields(name) {
		if field != "mode" {
			return field
		}
	}
	tb.Errorf("nobody holds %q", name)
	return ""
}

// TestReadersOfJavaStay runs one scenario with a Redisson version that lets
// readers' keys expire.
func TestReadersOfJavaStay(t *testing.T) {
	t.Parallel()
	for _, version := range agent.Versions(agent.Lapses) {
		t.Run("redisson "+version, func(t *testing.T) { t.Parallel(); javaReadersStay(t, singleBed(t, version)) })
	}
}

// javaReadersStay covers readers whose keys Redisson does not renew although it
// renews their lock. From 3.44 to 3.52 these are some keys of a client that
// reads two names or re-enters a read. Before 3.44 it is the key of a thread
// that wrote first. Such a reader still excludes the writers of both Java and
// Go.
func javaReadersStay(t *testing.T, b *bed) {
	c := b.client(t, "&ttl="+watchdog.String())
	first, second, again, downgraded := fresh("stays"), fresh("stays"), fresh("stays"), fresh("stays")
	reader := func(name string) *thread { return b.hasty.thread("reader of "+name, "read", name) }
	writer := b.hasty.thread("reader of "+downgraded, "write", downgraded) // the same thread
	writer.acquire(0).ok(t)
	for _, name := range []string{first, second, again, again, downgraded} {
		reader(name).acquire(0).ok(t)
	}
	time.Sleep(shortWatchdog + shortWatchdog/3) // a key that is not renewed has expired by then
	writer.do(t, "unlock")
	stays := func(name string) {
		if lease, err := c.TryLock(t.Context(), name, dsync.Write()); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("Write while java reads: got %v, %v, want ErrLocked", lease, err)
		}
		reader(name).begin("isHeld").equals(t, "true")
	}
	for _, name := range []string{first, second, again, downgraded} {
		stays(name)
		unlock(t, lock(t, c, name, dsync.Read())) // nor does the end of another reader
		stays(name)
		if name == again { // without its keys, the first unlock of a re-entered read ends it
			reader(name).begin("force").equals(t, "true")
		} else {
			reader(name).do(t, "unlock")
		}
		unlock(t, lock(t, c, name, dsync.Write()))
		b.gone(t, name)
	}
}

// javaReaderKilled covers a dead Java reader. It lasts as long as the lock,
// which is not renewed after the last live reader has left. Redisson before 4.4
// also renews the dead reader while another Java reader holds the lock.
func javaReaderKilled(t *testing.T, b *bed) {
	name := fresh("dead")
	java, j := b.ownJava(t, "read", name)
	_, g := b.startReader(t, shortWatchdog)
	j.acquire(0).ok(t)
	r := g.thread("reader", "read", name)
	r.acquire(0).ok(t)
	owner := j.owner(t)
	java.Kill()
	testenv.Eventually(t, func() bool { return b.node(name).Do("EXISTS", timeoutKey(name, owner)) == int64(0) }, "the dead reader has expired")
	waits := g.thread("writer", "write", name)
	w := waits.acquire(0)
	b.subscribed(t, readWriteChannel(name), 1)
	g.thread("another", "read", name).begin("tryLock").equals(t, "false")
	start := time.Now()
	r.do(t, "unlock")
	w.ok(t)
	if took := time.Since(start); took > 2*shortWatchdog {
		t.Errorf("the writer was granted %v after the end of the last live reader", took)
	}
	waits.do(t, "unlock")
	b.gone(t, name)
}

func goReaderKilled(t *testing.T, b *bed) {
	name := fresh("dead")
	dead, g := b.startReader(t, shortWatchdog)
	_, lives := b.startReader(t, watchdog)
	g.thread("reader", "read", name).acquire(0).ok(t)
	w := b.redisson.thread("writer", "write", name)
	c := w.acquire(0)
	b.subscribed(t, readWriteChannel(name), 1)
	start := time.Now()
	dead.Kill()
	c.ok(t)
	if took := time.Since(start); took > 2*shortWatchdog {
		t.Errorf("java was granted %v after the reader with a TTL of %v was killed", took, shortWatchdog)
	}
	w.do(t, "unlock")
	lives.thread("reader", "read", name).begin("tryLock").equals(t, "true")
	lives.thread("reader", "read", name).do(t, "unlock")
	b.gone(t, name)
}

func goReaderFrozen(t *testing.T, b *bed) {
	name := fresh("frozen")
	frozen, g := b.startReader(t, shortWatchdog)
	r := g.thread("reader", "read", name)
	r.acquire(0).ok(t)
	frozen.Stop()
	w := b.redisson.thread("writer", "write", name)
	w.acquire(0).ok(t)
	frozen.Cont()
	c := r.begin("unlock")
	if c.wait(t); c.err == nil {
		t.Error("unlock of an expired reader: got no error")
	}
	b.wantFields(t, name, map[string]string{"mode": "write", w.owner(t) + ":write": "1"})
	w.do(t, "unlock")
	b.gone(t, name)
}

// readWriteForced checks that each side can remove the holds of the other side,
// and that this wakes the waiters.
func readWriteForced(t *testing.T, b *bed) {
	_, g := b.startReader(t, watchdog)
	for _, pair := range sides(b.redisson, g) {
		for _, kind := range []string{"read", "write"} {
			name := fresh("forced")
			h, w := pair[0].thread("holder", kind, name), pair[0].thread("waiter", "write", name)
			h.acquire(0).ok(t)
			c := w.acquire(0)
			b.subscribed(t, readWriteChannel(name), 1)
			time.Sleep(20 * time.Millisecond)
			pair[1].thread("force", kind, name).begin("force").equals(t, "true")
			c.ok(t)
			end := h.begin("unlock")
			if end.wait(t); end.err == nil {
				t.Error("unlock of a hold that was removed: got no error")
			}
			w.do(t, "unlock")
		}
	}
}

// ledger is protected by a read-write lock. Its two numbers are equal unless a
// writer is active.
type ledger struct {
	a, b          atomic.Int64
	writes, reads atomic.Int64
	torn, lost    atomic.Int64
}

// use reads or writes while a claim is valid.
func (l *ledger) use(kind string, until time.Time) {
	hold := rand.N(4 * time.Millisecond)
	good := func() bool { return time.Until(until) > claimMargin }
	a := l.a.Load()
	time.Sleep(hold)
	if kind == "read" {
		if b := l.b.Load(); good() {
			l.reads.Add(1)
			if a != b || a != l.a.Load() {
				l.torn.Add(1)
			}
		}
		return
	}
	if !good() {
		return
	}
	if !l.a.CompareAndSwap(a, a+1) {
		l.lost.Add(1)
	}
	time.Sleep(hold)
	if !l.b.CompareAndSwap(a, a+1) {
		l.lost.Add(1)
	}
	l.writes.Add(1)
}

// claimMargin is the part at the end of a claim that is not used, so that a
// busy machine does not use the claim after its end.
const claimMargin = time.Second

func (l *ledger) judge(t *testing.T) {
	t.Helper()
	t.Logf("%d reads, %d writes", l.reads.Load(), l.writes.Load())
	if torn, lost := l.torn.Load(), l.lost.Load(); torn > 0 || lost > 0 || l.a.Load() != l.writes.Load() || l.b.Load() != l.writes.Load() {
		t.Errorf("after %d writes: got %d torn reads, %d lost updates, and the numbers %d and %d", l.writes.Load(), torn, lost, l.a.Load(), l.b.Load())
	}
	if l.reads.Load() == 0 || l.writes.Load() == 0 {
		t.Error("there was no reader or no writer")
	}
}

// visit acquires the lock for a moment, usually to read. It reports false when
// the process has ended.
func (l *ledger) visit(t *testing.T, r *redisson, who, name string, ttl time.Duration) bool {
	kind := "read"
	if rand.IntN(4) == 0 {
		kind = "write"
	}
	j := r.thread(who, kind, name)
	until := time.Now().Add(ttl) // the shortest duration of a hold
	c := j.acquire(0)
	if c.wait(t); c.err != nil {
		return false
	}
	l.use(kind, until)
	c = j.begin("unlock")
	c.wait(t)
	return c.err == nil || strings.Contains(c.err.Error(), "not held") || strings.HasPrefix(c.err.Error(), "IllegalMonitorState")
}

func readWriteCrowd(t *testing.T, b *bed) {
	const visits, threads = 10, 4
	name := fresh("crowd")
	_, g := b.startReader(t, watchdog)
	var l ledger
	var wg sync.WaitGroup
	for i := range threads {
		for _, side := range []*redisson{b.redisson, g} {
			wg.Go(func() {
				for range visits {
					if !l.visit(t, side, fmt.Sprint("visitor", i), name, watchdog) {
						t.Errorf("a visit of %s failed", sideOf(side))
						return
					}
				}
			})
		}
	}
	wg.Wait()
	l.judge(t)
	b.gone(t, name)
}

// TestSoakReadWrite makes threads and goroutines of two processes each read and
// write, on one server and in a cluster, while processes are frozen and killed.
// The ledger that the lock protects is in this process. It is used only as long
// as a hold is known to last.
func TestSoakReadWrite(t *testing.T) {
	t.Parallel()
	for _, version := range agent.Versions(agent.New, agent.Middle, agent.Old) {
		t.Run("redisson "+version, func(t *testing.T) { t.Parallel(); soakReadWrite(t, serverBed(testenv.Redis(t), version)) })
		t.Run("cluster, redisson "+version, func(t *testing.T) { t.Parallel(); soakReadWrite(t, mastersBed(testenv.RedisCluster(t, 3, 0), version)) })
	}
}

// soakReadWrite does not use the Java process of the bed, because the processes
// of the fleet are replaced.
func soakReadWrite(t *testing.T, b *bed) {
	name := fresh("soak")
	var l ledger
	var ended atomic.Bool
	var wg sync.WaitGroup
	start := func(i int) *jvm {
		p, r := b.startEither(t, i)
		for n := range 3 {
			wg.Go(func() {
				for !ended.Load() && l.visit(t, r, fmt.Sprint("visitor", n), name, soakTTL) {
				}
			})
		}
		return p
	}
	now := []*jvm{start(0), start(1), start(2), start(3)}
	faults := 0
	for end := time.Now().Add(*soakFor / 2); time.Until(end) > soakCalm+soakFreeze; faults++ {
		time.Sleep(soakCalm)
		if i := faults % len(now); faults/2%2 == faults%2 { // Java and Go in turn, frozen and killed in turn
			now[i].Stop()
			time.Sleep(soakFreeze)
			now[i].Cont()
		} else {
			now[i].kill()
			now[i] = start(i)
		}
	}
	time.Sleep(soakCalm)
	ended.Store(true)
	wg.Wait()
	t.Logf("%d faults", faults)
	l.judge(t)
	b.gone(t, name)
}
