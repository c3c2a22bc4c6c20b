package redisson

import (
	"fmt"
	"reflect"
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

// wantLeft wants a key to have that TTL, minus the time that a test takes.
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
			keyOf := func(r *driver.Request) string { return test.prefix + r.Hold + ":read:rwlock_timeout:1" }

			a := acquire(t, d, long)
			b := acquire(t, d, short)
			wantFields(t, s, test.name, map[string]string{"mode": "read", short.Hold + ":read": "1", long.Hold + ":read": "1"})
			for _, l := range []*lease{a, b} {
				r := l.request
				if got := s.Do("GET", keyOf(r)); got != valueOf(l) {
					t.Errorf("key %s: got %q, want %q", keyOf(r), got, valueOf(l))
				}
				wantLeft(t, s, keyOf(r), r.TTL)
			}
			wantLeft(t, s, test.name, 2*far)
			release(t, a)
			wantFields(t, s, test.name, map[string]string{"mode": "read", short.Hold + ":read": "1"})
			wantLeft(t, s, test.name, far)
			release(t, b)
			wantNoKeys(t, s)
			if got, want := spy.next(t), "9000000000000000000"; got != want {
				t.Errorf("message of a reader that others outlast: got %q, want %q", got, want)
			}
			if got, want := spy.next(t), "0"; got != want {
				t.Errorf("message of the last reader: got %q, want %q", got, want)
			}

			r := write(test.name)
			l := acquire(t, d, r)
			wantFields(t, s, test.name, map[string]string{"mode": "write", r.Hold + ":write": valueOf(l)})
			wantLeft(t, s, test.name, r.TTL)
			release(t, l)
			wantNoKeys(t, s)
			if got, want := spy.next(t), "1"; got != want {
				t.Errorf("message of the writer: got %q, want %q", got, want)
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

// TestModesExclude tries each hold against each request, of the same and of
// another client.
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
						t.Errorf("%v while %v is held: got %v", wanted, held, err)
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

// TestEveryLockWrites tests write=true.
func TestEveryLockWrites(t *testing.T) {
	s := testenv.Redis(t)
	d, plain := openURL(t, "redisson://%s?write=true", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	if l.request.Mode != driver.Write {
		t.Errorf("mode of the lease: got %v, want Write", l.request.Mode)
	}
	wantFields(t, s, "x", map[string]string{"mode": "write", l.request.Hold + ":write": valueOf(l)})
	for _, mode := range modes {
		refusedNow(t, plain, mode, "x")
	}
	w, r := wait(t, d, request("x")), wait(t, plain, request("x"))
	settled(t, d, plain)
	start := time.Now()
	release(t, l)
	for range 2 {
		select {
		case <-w.done:
			release(t, w.granted(t))
			w = r
		case <-r.done:
			release(t, r.granted(t))
			r = w
		}
	}
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiters were done after %v", took)
	}

	l = acquire(t, d, request("x"))
	if err := d.Mark(t.Context(), l, 7); err != nil {
		t.Errorf("Mark: %v", err)
	}
	if marked, err := d.Marked(t.Context(), l); err != nil || !marked {
		t.Errorf("Marked: got %v, %v", marked, err)
	}
	if err := d.Unmark(t.Context(), l); err != nil {
		t.Errorf("Unmark: %v", err)
	}
	w, r = wait(t, d, request("x")), wait(t, plain, request("x"))
	settled(t, d, plain)
	start = time.Now()
	if err := d.Seal(t.Context(), l); err != nil {
		t.Errorf("Seal: %v", err)
	}
	for _, w := range []*waiter{w, r} {
		if <-w.done; w.err != driver.ErrSealed {
			t.Errorf("a waiter for a name that was sealed: got %v, want ErrSealed", w.err)
		}
	}
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiters were notified of the seal after %v", took)
	}
}

// TestWaitersOfAllModesAreWoken: some callers of both drivers wait in each
// mode, so the message about the end of a hold must wake all waiters that it
// concerns, and not only one.
func TestWaitersOfAllModesAreWoken(t *testing.T) {
	t.Parallel()
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
						go func() { // ends when the wait ends
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

// settled waits until the drivers know that they are subscribed and have tried
// again, so that they sleep.
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
		}, "no driver sends requests anymore")
	}
}

// asked returns a number that changes when a driver sends a request.
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
					t.Fatalf("%s: got %d tokens from %d for %v, want tokens above %d", parameters, n, first, mode, last)
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
