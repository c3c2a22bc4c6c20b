package redisson

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestDeadReader: a reader that is gone holds nobody up beyond its own TTL, however long others read and renew.
func TestDeadReader(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const ttl = 100 * time.Millisecond
	gone := func(name string) {
		dead := during(ttl, read(name))
		l := acquire(t, d, dead)
		d.forget(l)
		testenv.Eventually(t, func() bool { return s.Do("EXISTS", timeoutKey(driver.Read, name, dead.Hold)) == int64(0) }, "the reader's time is over")
		if got := s.Do("HEXISTS", name, dead.Hold); got != int64(1) {
			t.Fatalf("the field of a reader whose time is over: got %v, want that it is left", got)
		}
	}
	t.Run("the last that lives lets go", func(t *testing.T) {
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
	t.Run("nobody lives", func(t *testing.T) {
		live := acquire(t, d, read("y"))
		gone("y")
		s.Do("DEL", timeoutKey(driver.Read, "y", live.request.Hold))
		l := acquire(t, d, inMode(driver.Write, noWait("y")))
		wantFields(t, s, "y", map[string]string{"mode": "write", l.request.Hold + ":write": "1"})
		if err := live.Release(t.Context()); err != driver.ErrNotHeld {
			t.Errorf("Release of the reader whose time is over: got %v, want ErrNotHeld", err)
		}
		wantFields(t, s, "y", map[string]string{"mode": "write", l.request.Hold + ":write": "1"})
		release(t, l)
	})
	t.Run("is removed by one that writes", func(t *testing.T) {
		live := acquire(t, d, read("z"))
		gone("z")
		refusedNow(t, d, driver.Write, "z")
		wantFields(t, s, "z", map[string]string{"mode": "read", live.request.Hold: "1"})
		release(t, live)
	})
	t.Run("lets go late", func(t *testing.T) {
		live := acquire(t, d, read("late"))
		late := acquire(t, d, read("late"))
		s.Do("DEL", timeoutKey(driver.Read, "late", late.request.Hold))
		if err := late.Release(t.Context()); err != driver.ErrNotHeld {
			t.Errorf("Release: got %v, want ErrNotHeld", err)
		}
		wantFields(t, s, "late", map[string]string{"mode": "read", live.request.Hold: "1"})
		release(t, live)
	})
	wantNoKeys(t, s)
}

// TestReaderOfJava has a count, and a key for each.
func TestReaderOfJava(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const java = "8743c9c0-0795-4907-87fd-6c719a6b4586:41"
	s.Do("HSET", "x", "mode", "read", java, "3")
	s.Do("SET", "{x}:"+java+":rwlock_timeout:2", "1", "PX", "50000")
	s.Do("PEXPIRE", "x", "100000")
	l := acquire(t, d, during(time.Hour, read("x")))
	refusedNow(t, d, driver.Write, "x")
	wantFields(t, s, "x", map[string]string{"mode": "read", java: "3", l.request.Hold: "1"})
	wantLeft(t, s, "x", time.Hour)
	release(t, l)
	wantFields(t, s, "x", map[string]string{"mode": "read", java: "3"})
	wantLeft(t, s, "x", 50*time.Second)
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
	s.Do("HDEL", "x", a.request.Hold)
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
		t.Error("Contended of a reader beside whom others read: got false, though one that writes may wait")
	}
	release(t, b)
	wantNoKeys(t, s)
}

// TestReaderLastsAsLongAsItsLock looks for a reader that ends before the lock, which then would not end with the reader: some servers look at
// the clock for each command of a script.
func TestReaderLastsAsLongAsItsLock(t *testing.T) {
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

// TestManyReaders: more than are looked at first. Nearly all are dead, the lock lasts as long as those that live, and is free after the last.
func TestManyReaders(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const n = 100
	longest := acquire(t, d, during(3*time.Hour, read("x")))
	for i := range n {
		l := acquire(t, d, during(2*time.Hour, read("x")))
		d.forget(l)
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
		d.forget(l)
		s.Do("DEL", timeoutKey(driver.Read, "x", l.request.Hold))
	}
	release(t, acquire(t, d, inMode(driver.Write, noWait("x"))))
	wantNoKeys(t, s)
}

// TestCostOfManyReaders counts what the server does when many who read let go.
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
