package redisson

import (
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestDeadReader: a dead reader delays no client beyond the reader's own TTL,
// regardless of how long other readers read and renew.
func TestDeadReader(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const ttl = 100 * time.Millisecond
	gone := func(name string) {
		dead := during(ttl, read(name))
		l := acquire(t, d, dead)
		d.life.Remove(l)
		testenv.Eventually(t, func() bool { return s.Do("EXISTS", timeoutKey(driver.Read, name, dead.Hold)) == int64(0) }, "the reader's time has passed")
		if got := s.Do("HEXISTS", name, fieldOf(driver.Read, dead.Hold)); got != int64(1) {
			t.Fatalf("the field of an expired reader: got %v, want it left", got)
		}
	}
	t.Run("the last live reader releases", func(t *testing.T) {
		live := acquire(t, d, read("x"))
		gone("x")
		w := wait(t, d, write("x"))
		start := time.Now()
		release(t, live)
		release(t, w.granted(t))
		if took := time.Since(start); took > backstop/2 {
			t.Errorf("the writer was granted after %v", took)
		}
	})
	t.Run("no reader is alive", func(t *testing.T) {
		live := acquire(t, d, read("y"))
		gone("y")
		s.Do("DEL", timeoutKey(driver.Read, "y", live.request.Hold))
		l := acquire(t, d, inMode(driver.Write, noWait("y")))
		wantFields(t, s, "y", map[string]string{"mode": "write", l.request.Hold + ":write": valueOf(l)})
		if err := live.Release(t.Context()); err != driver.ErrNotHeld {
			t.Errorf("Release of the expired reader: got %v, want ErrNotHeld", err)
		}
		wantFields(t, s, "y", map[string]string{"mode": "write", l.request.Hold + ":write": valueOf(l)})
		release(t, l)
	})
	t.Run("a writer removes the expired reader", func(t *testing.T) {
		live := acquire(t, d, read("z"))
		gone("z")
		refusedNow(t, d, driver.Write, "z")
		wantFields(t, s, "z", map[string]string{"mode": "read", fieldOf(driver.Read, live.request.Hold): "1"})
		release(t, live)
	})
	t.Run("the reader releases late", func(t *testing.T) {
		live := acquire(t, d, read("late"))
		late := acquire(t, d, read("late"))
		s.Do("DEL", timeoutKey(driver.Read, "late", late.request.Hold))
		if err := late.Release(t.Context()); err != driver.ErrNotHeld {
			t.Errorf("Release: got %v, want ErrNotHeld", err)
		}
		wantFields(t, s, "late", map[string]string{"mode": "read", fieldOf(driver.Read, live.request.Hold): "1"})
		release(t, live)
	})
	wantNoKeys(t, s)
}

// javaReader is the field of a Redisson reader.
const javaReader = "8743c9c0-0795-4907-87fd-6c719a6b4586:41"

// TestReaderOfJava has a count and a key for each hold. Redisson does not renew
// all of these keys, so a Java reader lives as long as the lock, with or
// without its keys.
func TestReaderOfJava(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for _, key := range []string{"none", "of another count", "that ends soon", "of its own"} {
		t.Run("key "+key, func(t *testing.T) {
			s.Do("HSET", "x", "mode", "read", javaReader, "3")
			switch key {
			case "of another count":
				s.Do("SET", "{x}:"+javaReader+":rwlock_timeout:4", "1", "PX", "50000")
			case "that ends soon":
				s.Do("SET", "{x}:"+javaReader+":rwlock_timeout:2", "1", "PX", "1")
			case "of its own":
				s.Do("SET", "{x}:"+javaReader+":rwlock_timeout:2", "1", "PX", "50000")
			}
			s.Do("PEXPIRE", "x", "100000")
			refusedNow(t, d, driver.Write, "x")
			if got, err := d.Inspect(t.Context(), "x"); err != nil || got.Mode != driver.Read || got.Holders != 1 || got.TTL > 100*time.Second || got.TTL < time.Minute {
				t.Errorf("Inspect: got %+v, %v, want a reader that lasts as long as the lock", got, err)
			}
			l, other := acquire(t, d, during(time.Hour, read("x"))), acquire(t, d, read("x"))
			refusedNow(t, d, driver.Write, "x")
			refusedNow(t, d, driver.Exclusive, "x")
			wantLeft(t, s, "x", time.Hour)
			release(t, other)
			wantFields(t, s, "x", map[string]string{"mode": "read", javaReader: "3", fieldOf(driver.Read, l.request.Hold): "1"})
			s.Do("PEXPIRE", "x", "100000") // by Java, which renews its reader
			release(t, l)
			wantFields(t, s, "x", map[string]string{"mode": "read", javaReader: "3"})
			wantLeft(t, s, "x", 100*time.Second)
			refusedNow(t, d, driver.Write, "x")
			s.Do("PEXPIRE", "x", "1")
			release(t, acquire(t, d, write("x")))
			s.Do("DEL", "{x}:"+javaReader+":rwlock_timeout:4", "{x}:"+javaReader+":rwlock_timeout:2")
			wantNoKeys(t, s)
		})
	}
}

// TestHoldBesideModeOfJava: Java's read-write lock is granted despite a lock of
// dsync, whose hash then has a mode. The hold stays.
func TestHoldBesideModeOfJava(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	s.Do("HSET", "x", "mode", "read")
	refusedNow(t, d, driver.Write, "x")
	r := acquire(t, d, read("x"))
	release(t, r)
	release(t, l)
}

// TestDeadReaderOfJava: readers of dsync come and go, so that the lock never
// ends, until a writer waits. Then no more readers come, and the dead reader
// ends with the lock, by the TTL of the last reader.
func TestDeadReaderOfJava(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	const ttl = 500 * time.Millisecond
	s.Do("HSET", "x", "mode", "read", javaReader, "1")
	s.Do("PEXPIRE", "x", "100")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() { // ends when stop is set
		defer close(done)
		for !stop.Load() {
			l, err := d.Acquire(t.Context(), inMode(driver.Read, during(ttl, noWait("x"))))
			time.Sleep(10 * time.Millisecond)
			if err == nil {
				_ = l.Release(t.Context()) // it may have expired on a busy machine
			}
		}
	}()
	testenv.Eventually(t, func() bool { return leftOf(s, "x") > ttl/2 }, "a client reads")
	start := time.Now()
	w := acquire(t, other, write("x"))
	if took := time.Since(start); took > backstop {
		t.Errorf("the writer was granted after %v although readers have a TTL of %v", took, ttl)
	}
	stop.Store(true)
	<-done
	release(t, w)
	wantNoKeys(t, s)
}

func TestRenewalKeepsNoOtherHoldAlive(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const far, near = time.Hour, 10 * time.Minute
	a, b := acquire(t, d, during(near, read("x"))), acquire(t, d, during(near, read("x")))
	w, e := acquire(t, d, during(near, write("w"))), acquire(t, d, during(near, request("e")))
	other := timeoutKey(driver.Read, "x", b.request.Hold)
	if err := a.Renew(t.Context(), far); err != nil {
		t.Fatal(err)
	}
	wantLeft(t, s, "x", far)
	wantLeft(t, s, timeoutKey(driver.Read, "x", a.request.Hold), far)
	wantLeft(t, s, other, near)
	if a.Expires().Before(time.Now().Add(far - hangGuard)) {
		t.Errorf("Expires after the renewal: got %v from now", time.Until(a.Expires()))
	}
	if err := b.Renew(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	wantLeft(t, s, other, time.Minute)
	wantLeft(t, s, "x", far)

	s.Do("PEXPIRE", "x", "60000")
	outcomes := make([]error, 5)
	leases := []driver.Lease{a, w, b, e, acquire(t, d, during(near, read("y")))}
	d.RenewAll(t.Context(), leases, func(i int, err error) { outcomes[i] = err })
	if err := errors.Join(outcomes...); err != nil {
		t.Errorf("RenewAll: %v", err)
	}
	for _, key := range []string{"x", "w", "e", "y", other} {
		wantLeft(t, s, key, near)
	}
	s.Do("HDEL", "x", fieldOf(driver.Read, a.request.Hold))
	s.Do("DEL", timeoutKey(driver.Read, "y", leases[4].(*lease).request.Hold))
	d.RenewAll(t.Context(), leases, func(i int, err error) { outcomes[i] = err })
	if want := []error{driver.ErrNotHeld, nil, nil, nil, driver.ErrNotHeld}; !reflect.DeepEqual(outcomes, want) {
		t.Errorf("RenewAll after the field of one reader and the key of another were removed: got %v, want %v", outcomes, want)
	}
	wantLeft(t, s, other, near)
}

func TestReleaseOfAReaderShortensNoOther(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	a, b, c := acquire(t, d, during(time.Hour, read("x"))), acquire(t, d, during(30*time.Minute, read("x"))), acquire(t, d, read("x"))
	release(t, c)
	wantLeft(t, s, "x", time.Hour)
	release(t, a)
	wantLeft(t, s, "x", 30*time.Minute)
	if a.Contended() != true {
		t.Error("Contended of a reader while others read: got false, although a writer may wait")
	}
	release(t, b)
	wantNoKeys(t, s)
}

// TestReaderLastsAsLongAsItsLock looks for a reader that ends before the lock,
// which then would not end when the reader ends. Some servers read the clock
// for each command of a script.
func TestReaderLastsAsLongAsItsLock(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	ends := func(key string) int64 { return s.Do("PEXPIRETIME", key).(int64) }
	for i := range 2000 {
		l := acquire(t, d, read("x"))
		if i%2 == 1 {
			if err := l.Renew(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if reader, lock := ends(timeoutKey(driver.Read, "x", l.request.Hold)), ends("x"); reader < lock {
			t.Fatalf("try %d: the lock ends %d ms after its only reader", i, lock-reader)
		}
		release(t, l)
	}
}

// TestWatchOfReaders: a watcher is notified of the end of each reader. A waiter
// is notified only of the last.
func TestWatchOfReaders(t *testing.T) {
	s := testenv.Redis(t)
	d, watcher, waits := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	readers := []*lease{acquire(t, d, read("x")), acquire(t, d, read("x")), acquire(t, d, read("x"))}
	changed := make(chan struct{}, 100)
	stop, err := watcher.Watch("x", func() { changed <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for range 3 { // one for each subscribed channel
		<-changed
	}
	w := wait(t, waits, write("x"))
	settled(t, waits)
	asked := asked(waits)
	for i, l := range readers {
		if i == len(readers)-1 && waits.direct.answered.Load() != asked {
			t.Error("the writer sent a request when one of several readers ended")
		}
		release(t, l)
		select {
		case <-changed:
		case <-time.After(hangGuard):
			t.Fatal("the watcher was not notified of the end of a reader")
		}
	}
	release(t, w.granted(t))
}

// TestManyReaders: there are more readers than the script checks first. Nearly
// all are dead. The lock lasts as long as the live readers, and is free after
// the last of them.
func TestManyReaders(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const n = 100
	longest := acquire(t, d, during(3*time.Hour, read("x")))
	for i := range n {
		l := acquire(t, d, during(2*time.Hour, read("x")))
		d.life.Remove(l)
		s.Do("DEL", timeoutKey(driver.Read, "x", l.request.Hold))
		if i == n/2 {
			longest, l = acquire(t, d, during(time.Hour, read("x"))), longest
			release(t, l)
			wantLeft(t, s, "x", time.Hour)
		}
	}
	refusedNow(t, d, driver.Write, "x")
	spy := spyOn(t, s, "redisson_rwlock:{x}")
	release(t, longest)
	if got := spy.next(t); got != "0" {
		t.Errorf("message: got %q, want 0", got)
	}
	wantNoKeys(t, s)

	for range n {
		l := acquire(t, d, read("x"))
		d.life.Remove(l)
		s.Do("DEL", timeoutKey(driver.Read, "x", l.request.Hold))
	}
	release(t, acquire(t, d, inMode(driver.Write, noWait("x"))))
	wantNoKeys(t, s)
}

// TestCostOfManyReaders measures the work of the server when many readers
// release.
func TestCostOfManyReaders(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const n = 500
	leases := make([]*lease, n)
	for i := range leases {
		leases[i] = acquire(t, d, read("x"))
	}
	work := counted(s, func() {
		for _, l := range leases {
			release(t, l)
		}
	}, "pttl")
	if got := work["pttl"]; got > 30*n {
		t.Errorf("PTTL was run %d times for %d releases", got, n)
	}
	wantNoKeys(t, s)
}
