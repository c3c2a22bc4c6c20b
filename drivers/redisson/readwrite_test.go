package redisson

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func inMode(m driver.Mode, r *driver.Request) *driver.Request {
	r.Mode = m
	return r
}

func read(name string) *driver.Request  { return inMode(driver.Read, request(name)) }
func write(name string) *driver.Request { return inMode(driver.Write, request(name)) }

// during returns a request with a TTL.
func during(ttl time.Duration, r *driver.Request) *driver.Request {
	r.TTL = ttl
	return r
}

var modes = []driver.Mode{driver.Exclusive, driver.Read, driver.Write}

// fieldsOf returns the hash at a key.
func fieldsOf(s *testenv.RedisServer, key string) map[string]string {
	fields := make(map[string]string)
	list := s.Do("HGETALL", key).([]any)
	for i := 0; i < len(list); i += 2 {
		fields[list[i].(string)] = list[i+1].(string)
	}
	return fields
}

func wantFields(tb testing.TB, s *testenv.RedisServer, key string, want map[string]string) {
	tb.Helper()
	if got := fieldsOf(s, key); !reflect.DeepEqual(got, want) {
		tb.Errorf("hash at %q: got %v, want %v", key, got, want)
	}
}

// leftOf returns the TTL of a key.
func leftOf(s *testenv.RedisServer, key string) time.Duration {
	return time.Duration(s.Do("PTTL", key).(int64)) * time.Millisecond
}

// wantLeft wants the TTL of a key to be that long, but for the time that a test takes.
func wantLeft(tb testing.TB, s *testenv.RedisServer, key string, want time.Duration) {
	tb.Helper()
	if got := leftOf(s, key); got > want || got < want-hangGuard {
		tb.Errorf("TTL of %q: got %v, want %v", key, got, want)
	}
}

func wantNoKeys(tb testing.TB, s *testenv.RedisServer) {
	tb.Helper()
	if keys := keysOf(s); len(keys) > 0 {
		tb.Errorf("keys left: %q", keys)
	}
}

// refusedNow wants a request that does not wait to be refused.
func refusedNow(tb testing.TB, d *Driver, m driver.Mode, name string) {
	tb.Helper()
	if l, err := d.Acquire(tb.Context(), inMode(m, noWait(name))); err != driver.ErrLocked {
		tb.Errorf("Acquire in mode %v: got %v, %v, want ErrLocked", m, l, err)
	}
}

func TestReadWriteWireFormatIsRedissons(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const far = time.Hour
	for _, test := range []struct{ name, channel, prefix string }{
		{"orders", "redisson_rwlock:{orders}", "{orders}:"},
		{"{t}:orders", "redisson_rwlock:{t}:orders", "{t}:orders:"},
		{"a}b", "redisson_rwlock:{a}b}", "{a}b}:"},
		{"日本 über/x y", "redisson_rwlock:{日本 über/x y}", "{日本 über/x y}:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			spy := spyOn(t, s, test.channel)
			short, long := during(far, read(test.name)), during(2*far, read(test.name))
			keyOf := func(r *driver.Request) string { return test.prefix + r.Hold + ":rwlock_timeout:1" }

			a := acquire(t, d, long)
			b := acquire(t, d, short)
			wantFields(t, s, test.name, map[string]string{"mode": "read", short.Hold: "1", long.Hold: "1"})
			for _, r := range []*driver.Request{short, long} {
				if got := s.Do("GET", keyOf(r)); got != "1" {
					t.Errorf("key %s: got %v, want 1", keyOf(r), got)
				}
				wantLeft(t, s, keyOf(r), r.TTL)
			}
			wantLeft(t, s, test.name, 2*far)
			release(t, a)
			wantFields(t, s, test.name, map[string]string{"mode": "read", short.Hold: "1"})
			wantLeft(t, s, test.name, far)
			release(t, b)
			wantNoKeys(t, s)
			if got, want := spy.next(t), "0"; got != want {
				t.Errorf("message of the last reader: got %q, want %q", got, want)
			}

			r := write(test.name)
			l := acquire(t, d, r)
			wantFields(t, s, test.name, map[string]string{"mode": "write", r.Hold + ":write": "1"})
			wantLeft(t, s, test.name, r.TTL)
			release(t, l)
			wantNoKeys(t, s)
			if got, want := spy.next(t), "1"; got != want {
				t.Errorf("message of the one that wrote: got %q, want %q", got, want)
			}
		})
	}
}

func TestFreeReadWriteLockTakesOneRequestEachWay(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fenced=false", "?fence=redisson", "?fair=true"} {
		d := openURL(t, "redisson://%s/%s", s.Addr, parameters)
		for _, mode := range []driver.Mode{driver.Read, driver.Write} {
			release(t, acquire(t, d, inMode(mode, request("warm"))))
			var l *lease
			got := counted(s, func() { l = acquire(t, d, inMode(mode, request("free"))) }, "evalsha", "eval", "subscribe")
			if want := map[string]int64{"evalsha": 1, "eval": 0, "subscribe": 0}; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %v: commands of Acquire: got %v, want %v", parameters, mode, got, want)
			}
			got = counted(s, func() { release(t, l) }, "evalsha", "eval", "subscribe")
			if want := map[string]int64{"evalsha": 1, "eval": 0, "subscribe": 0}; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %v: commands of Release: got %v, want %v", parameters, mode, got, want)
			}
		}
	}
}

// TestModesExclude: each hold against each request, of the same and of another client.
func TestModesExclude(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true"} {
		a, b := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s/%s", s.Addr, parameters)
		for _, held := range modes {
			l := acquire(t, a, inMode(held, request("x")))
			for _, wanted := range modes {
				for _, d := range []*Driver{a, b} {
					beside, err := d.Acquire(t.Context(), inMode(wanted, noWait("x")))
					if held.Excludes(wanted) && err != driver.ErrLocked || !held.Excludes(wanted) && err != nil {
						t.Errorf("%v beside %v: got %v", wanted, held, err)
					}
					if err == nil {
						release(t, beside)
					}
				}
			}
			release(t, l)
		}
		wantNoKeys(t, s)
	}
}

// TestWaitersOfAllModesAreWoken: of both drivers, some wait in each mode, so that the message about the end of a hold is to wake all whom it
// concerns, and not one.
func TestWaitersOfAllModesAreWoken(t *testing.T) {
	s := testenv.Redis(t)
	c := testenv.RedisCluster(t, 3, 0)
	for what, url := range map[string]string{"plain": "redisson://" + s.Addr, "fair": "redisson://" + s.Addr + "?fair=true",
		"cluster": clusterURL(c), "cluster, both": clusterURL(c) + "&pubsub=both", "cluster, fair": clusterURL(c) + "&fair=true"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			a, b, x := openURL(t, "%s", url), openURL(t, "%s", url), openURL(t, "%s", url)
			for _, held := range modes {
				name := fmt.Sprint("woken", what, held)
				l := acquire(t, x, inMode(held, forLong(name)))
				granted := make(chan *waiter)
				waiting := 0
				for _, d := range []*Driver{a, b} {
					for _, wanted := range append(modes, driver.Read) {
						if !held.Excludes(wanted) {
							continue
						}
						waiting++
						w := wait(t, d, inMode(wanted, forLong(name)))
						go func() { // ends with the wait
							<-w.done
							granted <- w
						}()
					}
				}
				settled(t, a, b)
				start := time.Now()
				release(t, l)
				for range waiting {
					w := <-granted
					release(t, w.granted(t))
				}
				if took := time.Since(start); took > backstop/2 {
					t.Errorf("held in mode %v: all %d waiters were done after %v", held, waiting, took)
				}
			}
		})
	}
}

// settled waits until the drivers have heard that they are subscribed, and have asked once more, so that they sleep.
func settled(t *testing.T, all ...*Driver) {
	t.Helper()
	for _, d := range all {
		sent := int64(0)
		calm := 0
		testenv.Eventually(t, func() bool {
			now := asked(d)
			if now == sent && d.direct.busy.Load() == 0 {
				calm++
			} else {
				calm = 0
			}
			sent = now
			return calm > 10
		}, "nobody asks any more")
	}
}

// asked is a number that changes when a driver asks.
func asked(d *Driver) int64 { return d.direct.answered.Load() }

func TestTokensOfReadersLieBetweenThoseOfWriters(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fence=redisson"} {
		d := openURL(t, "redisson://%s/%s", s.Addr, parameters)
		last := uint64(0)
		for i := range 50 {
			for _, mode := range []driver.Mode{driver.Write, driver.Read, driver.Read, driver.Exclusive, driver.Read} {
				r := inMode(mode, request("x"))
				if mode != driver.Read {
					r.Events.(*events).tokens = 1 + i
				}
				l := acquire(t, d, r)
				first, n := l.Tokens()
				if first <= last || n < 1 {
					t.Fatalf("%s: got %d tokens from %d for %v, want some above %d", parameters, n, first, mode, last)
				}
				last = first + uint64(n) - 1
				release(t, l)
			}
		}
	}
	if l := acquire(t, openURL(t, "redisson://%s?fenced=false", s.Addr), read("y")); l.first != 0 || l.tokens != 0 {
		t.Errorf("without fencing: got %d tokens from %d", l.tokens, l.first)
	}
}

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

func TestWhoWaitsToWriteKeepsReadersOut(t *testing.T) {
	s := testenv.Redis(t)
	a, b, c := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	first := acquire(t, a, read("x"))
	w := wait(t, b, write("x"))
	refusedNow(t, c, driver.Read, "x")
	if got := leftOf(s, "dsync_intent:{x}"); got <= 0 || got > 6*time.Second {
		t.Errorf("TTL of the intent: got %v, want up to 6s", got)
	}
	again := acquire(t, a, first.request) // the request was sent twice
	r := wait(t, c, read("x"))
	release(t, again)
	l := w.granted(t)
	if n := s.Do("EXISTS", "dsync_intent:{x}"); n != int64(0) {
		t.Error("the intent is left when the writer has the lock")
	}
	release(t, l)
	release(t, r.granted(t))
	refuser := acquire(t, a, read("x"))
	refusedNow(t, b, driver.Write, "x") // it does not wait, so it keeps nobody out
	release(t, acquire(t, c, inMode(driver.Read, noWait("x"))))
	release(t, refuser)
	wantNoKeys(t, s)
}

func TestWhoGivesUpToWriteKeepsNobodyOut(t *testing.T) {
	s := testenv.Redis(t)
	a, b, c := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	for what, end := range map[string]func(w *waiter){
		"canceled": func(w *waiter) { w.cancel() },
		"closed":   func(*waiter) { go b.Close(t.Context()) },
	} {
		l := acquire(t, a, read("x"))
		w := wait(t, b, write("x"))
		r := wait(t, c, read("x"))
		settled(t, c)
		start := time.Now()
		end(w)
		next := r.granted(t)
		if took := time.Since(start); took > backstop/2 {
			t.Errorf("%s: the reader was granted after %v", what, took)
		}
		if <-w.done; !errors.Is(w.err, driver.ErrLocked) && !errors.Is(w.err, driver.ErrClosed) || errors.Is(w.err, driver.ErrUnknown) {
			t.Errorf("%s: Acquire of the writer: got %v", what, w.err)
		}
		release(t, next)
		release(t, l)
		wantNoKeys(t, s)
		b = openURL(t, "redisson://%s", s.Addr)
	}
}

// TestWritersIntendTogether: one of two that wait to write gives up, and the other one goes on keeping readers out.
func TestWritersIntendTogether(t *testing.T) {
	s := testenv.Redis(t)
	a, b, c := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, a, read("x"))
	stays, leaves := wait(t, b, write("x")), wait(t, c, write("x"))
	leaves.cancel()
	<-leaves.done
	refusedNow(t, a, driver.Read, "x")
	release(t, l)
	release(t, stays.granted(t))
	wantNoKeys(t, s)
}

// TestWriterAmongEndlessReaders: at each moment somebody reads who asks again as soon as it has let go, so a writer that did not keep
// newcomers out would never get the lock.
func TestWriterAmongEndlessReaders(t *testing.T) {
	s := testenv.Redis(t)
	const readers = 4
	var stop atomic.Bool
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		parallel(readers, func(int) {
			d := openURL(t, "redisson://%s", s.Addr)
			held := acquire(t, d, read("x"))
			for !stop.Load() {
				time.Sleep(2 * time.Millisecond)
				next, err := d.Acquire(t.Context(), inMode(driver.Read, noWait("x")))
				release(t, held)
				if err != nil { // somebody waits to write
					next = acquire(t, d, read("x"))
				}
				held = next.(*lease)
			}
			release(t, held)
		})
	}()
	d := openURL(t, "redisson://%s", s.Addr)
	for range 20 {
		release(t, acquire(t, d, write("x")))
	}
	stop.Store(true)
	<-done
	wantNoKeys(t, s)
}

func TestInspectReadWrite(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true"} {
		name := "x" + parameters
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s/%s", s.Addr, parameters)
		r := write(name)
		l := acquire(t, d, r)
		got, err := d.Inspect(t.Context(), name)
		if err != nil || !got.Held || got.Mode != driver.Write || got.Holders != 1 || got.Hold != r.Hold || got.Owner != "somebody" || got.Token != l.first {
			t.Errorf("%s, written: got %+v, %v", parameters, got, err)
		}
		release(t, l)
		long, short := during(2*time.Hour, read(name)), during(time.Hour, read(name))
		short.Owner = "another"
		leases := []*lease{acquire(t, d, long), acquire(t, d, short)}
		dead := acquire(t, d, read(name))
		s.Do("DEL", timeoutKey(driver.Read, name, dead.request.Hold))
		w := wait(t, other, write(name))
		testenv.Eventually(t, func() bool { return s.SubscriberCount("redisson_rwlock:{"+name+"}") == 1 }, "the writer listens")
		got, err = d.Inspect(t.Context(), name)
		if err != nil || !got.Held || got.Mode != driver.Read || got.Holders != 2 || got.Waiters != 1 ||
			got.Hold != long.Hold && got.Hold != short.Hold || got.TTL > 2*time.Hour || got.TTL < time.Hour-hangGuard {
			t.Errorf("%s, read: got %+v, %v, want two holders and a waiter", parameters, got, err)
		}
		if wait, err := d.Inspect(t.Context(), "y"); err != nil || wait.Held || wait.Holders != 0 || wait.Mode != driver.Exclusive {
			t.Errorf("%s, free: got %+v, %v", parameters, wait, err)
		}
		for _, l := range leases {
			release(t, l)
		}
		release(t, w.granted(t))
	}
}

func TestForceUnlockReadWrite(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true"} {
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s/%s", s.Addr, parameters)
		spy := spyOn(t, s, "redisson_rwlock:{x}")
		for _, test := range []struct {
			held    driver.Mode
			n       int
			message string
		}{{driver.Read, 3, "0"}, {driver.Write, 1, "1"}} {
			var leases []*lease
			for range test.n {
				leases = append(leases, acquire(t, d, inMode(test.held, request("x"))))
			}
			waiters := []*waiter{wait(t, other, write("x")), wait(t, other, request("x"))}
			settled(t, other)
			start := time.Now()
			if err := d.ForceUnlock(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			if got := spy.next(t); got != test.message {
				t.Errorf("%s, %v: got message %q, want %q", parameters, test.held, got, test.message)
			}
			outcomes := make([]error, test.n)
			for i, l := range leases {
				outcomes[i] = l.Renew(t.Context(), testTTL)
				if outcomes[i] != driver.ErrNotHeld {
					t.Errorf("%s, %v: Renew of a hold that was removed: got %v, want ErrNotHeld", parameters, test.held, outcomes[i])
				}
			}
			<-either(waiters)
			for _, w := range waiters {
				release(t, w.granted(t))
			}
			if took := time.Since(start); took > backstop/2 {
				t.Errorf("%s, %v: the waiters were done after %v", parameters, test.held, took)
			}
			for range len(spy.messages) {
				<-spy.messages
			}
		}
		if err := d.ForceUnlock(t.Context(), "x"); err != driver.ErrNotHeld {
			t.Errorf("%s: ForceUnlock of a free name: got %v, want ErrNotHeld", parameters, err)
		}
	}
}

// either is closed when one of two waiters is done. The first lets go, so that the other one gets on.
func either(waiters []*waiter) <-chan struct{} {
	done := make(chan struct{})
	go func() { // ends with a waiter
		defer close(done)
		select {
		case <-waiters[0].done:
		case <-waiters[1].done:
			waiters[0], waiters[1] = waiters[1], waiters[0]
		}
	}()
	return done
}

func TestSealedInEveryMode(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	var waiters []*waiter
	for _, mode := range modes {
		waiters = append(waiters, wait(t, other, inMode(mode, request("x"))))
	}
	settled(t, other)
	start := time.Now()
	if err := d.Seal(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	for i, w := range waiters {
		if <-w.done; !errors.Is(w.err, driver.ErrSealed) {
			t.Errorf("the one that waits in mode %v: got %v, want ErrSealed", modes[i], w.err)
		}
	}
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("those who waited were told after %v", took)
	}
	for _, mode := range modes {
		if _, err := other.Acquire(t.Context(), inMode(mode, request("x"))); !errors.Is(err, driver.ErrSealed) {
			t.Errorf("Acquire in mode %v: got %v, want ErrSealed", mode, err)
		}
	}
}

// TestLostAnswersOfReadersAndWriters: what a request may have left behind is removed.
func TestLostAnswersOfReadersAndWriters(t *testing.T) {
	s := testenv.Redis(t)
	other := openURL(t, "redisson://%s", s.Addr)
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		release(t, acquire(t, other, inMode(mode, request("warm")))) // the server knows the scripts, so that no answer is about that
	}
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		d, link := overLink(t, s, "")
		r := during(3*time.Second, inMode(mode, request("x"))) // Close waits for it: the request might have been on its way still
		trap := link.LoseReply(r.Hold)
		_, err := d.Acquire(t.Context(), r)
		if sprung(t, trap); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%v: Acquire whose answer was lost: got %v, want ErrUnknown", mode, err)
		}
		testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "the hold is gone")
	}
	d, link := overLink(t, s, "")
	l := acquire(t, other, read("x"))
	r := during(3*time.Second, write("x"))
	trap := link.HoldReply(r.Hold)
	w := begin(d, r)
	sprung(t, trap)
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "dsync_intent:{x}") == int64(1) }, "the server has the intent")
	w.cancel()
	if <-w.done; !errors.Is(w.err, driver.ErrUnknown) {
		t.Errorf("Acquire of a writer that left before its answer: got %v, want ErrUnknown", w.err)
	}
	link.Heal()
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "dsync_intent:{x}") == int64(0) }, "the intent is gone")
	release(t, l)

	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		r := inMode(mode, request("x"))
		l := acquire(t, d, r)
		trap := link.LoseReply(r.Hold)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%v: Release whose answer was lost: %v", mode, err)
		}
		sprung(t, trap)
		wantNoKeys(t, s)
	}
}

func TestCloseEndsReadersAndWriters(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fair=true"} {
		d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s", s.Addr)
		acquire(t, d, read("x"))
		acquire(t, d, read("x"))
		acquire(t, d, write("w"))
		acquire(t, d, request("e"))
		held := acquire(t, other, read("y"))
		w := wait(t, d, write("y"))
		if err := d.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if <-w.done; !errors.Is(w.err, driver.ErrClosed) {
			t.Errorf("Acquire while Close began: got %v, want ErrClosed", w.err)
		}
		release(t, held)
		wantNoKeys(t, s)
	}
}

func TestReadersAndWritersWaitForReplicas(t *testing.T) {
	primary, replica, link := replicated(t)
	d := openURL(t, "redisson://%s?waitreplicas=1&waitlimit=%v", primary.Addr, hangGuard)
	hasty := openURL(t, "redisson://%s?waitreplicas=1&waitlimit=100ms", primary.Addr)
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		l := acquire(t, d, inMode(mode, request("x")))
		if got := replica.Do("HEXISTS", "x", fieldOf(mode, l.request.Hold)); got != int64(1) {
			t.Errorf("%v: the replica does not have the grant", mode)
		}
		if err := l.Renew(t.Context(), time.Hour); err != nil {
			t.Errorf("%v: Renew: %v", mode, err)
		}
		release(t, l)
	}
	link.Cut()
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		if _, err := hasty.Acquire(t.Context(), inMode(mode, request("x"))); !errors.Is(err, ErrNotReplicated) {
			t.Errorf("%v without the replica: got %v, want ErrNotReplicated", mode, err)
		}
		wantNoKeys(t, primary)
	}
}

// TestReadersAndWritersInASlotThatMoves: what ends a hold runs to its end, and who asks waits until all keys are on one node.
func TestReadersAndWritersInASlotThatMoves(t *testing.T) {
	c := testenv.RedisCluster(t, 3, 0)
	d, other := openURL(t, "%s", clusterURL(c)), openURL(t, "%s", clusterURL(c))
	t.Run("reader", func(t *testing.T) {
		l, beside := acquire(t, d, inMode(driver.Read, forLong("{reader}x"))), acquire(t, other, inMode(driver.Read, forLong("{reader}x")))
		w := wait(t, other, inMode(driver.Write, forLong("{reader}x")))
		settled(t, other)
		end := beginMove(c, "{reader}x")
		release(t, l)
		release(t, beside)
		end()
		release(t, w.granted(t))
	})
	t.Run("reader beside one that is dead", func(t *testing.T) {
		l, dead := acquire(t, d, inMode(driver.Read, forLong("{dead}x"))), acquire(t, d, inMode(driver.Read, forLong("{dead}x")))
		d.forget(dead)
		end := beginMove(c, "{dead}x")
		c.Owner("{dead}x").Do("DEL", timeoutKey(driver.Read, "{dead}x", dead.request.Hold))
		released := make(chan error, 1)
		go func() { released <- l.Release(t.Context()) }() // ends when the slot has moved
		testenv.Eventually(t, func() bool { return tryAgains(c.Owner("{dead}x")) > 0 }, "the reader was told that the slot moves")
		end()
		if err := <-released; err != nil {
			t.Errorf("Release: %v", err)
		}
		if got := c.Owner("{dead}x").Do("EXISTS", "{dead}x"); got != int64(0) {
			t.Error("the lock is left")
		}
	})
	t.Run("writer", func(t *testing.T) {
		l := acquire(t, d, inMode(driver.Write, forLong("{writer}x")))
		w := wait(t, other, inMode(driver.Read, forLong("{writer}x")))
		end := beginMove(c, "{writer}x")
		release(t, l)
		end()
		release(t, w.granted(t))
	})
}

func TestReadWriteInCluster(t *testing.T) {
	c := testenv.RedisCluster(t, 3, 0)
	d := openURL(t, "%s", clusterURL(c))
	const n = 200
	leases := make([]driver.Lease, 0, 3*n)
	for i := range n {
		leases = append(leases, acquire(t, d, read(fmt.Sprint("r", i))), acquire(t, d, write("w"+strconv.Itoa(i))), acquire(t, d, request(fmt.Sprint("e", i))))
	}
	before := time.Now()
	d.RenewAll(t.Context(), leases, func(i int, err error) {
		if err != nil || leases[i].Expires().Before(before.Add(testTTL)) {
			t.Errorf("lease %d: got %v, and Expires %v after the renewal", i, err, leases[i].Expires().Sub(before))
		}
	})
	for _, name := range []string{"a{b", "{}x", "a}b"} {
		if _, err := d.Acquire(t.Context(), read(name)); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Read of %q: got %v, want errors.ErrUnsupported", name, err)
		}
	}
}
