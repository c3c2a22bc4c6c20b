package redisson

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// sprung waits for a request that a link waits for.
func sprung(tb testing.TB, trap <-chan struct{}) {
	tb.Helper()
	select {
	case <-trap:
	case <-time.After(hangGuard):
		tb.Fatal("the request did not reach the link")
	}
}

// overLink returns a warm driver and its link to the server.
func overLink(tb testing.TB, s *testenv.RedisServer, parameters string) (*Driver, *wire.Wire) {
	tb.Helper()
	link, addr := testenv.Wire(tb, s.Addr)
	d := openURL(tb, "redisson://%s/%s", addr, parameters)
	release(tb, acquire(tb, d, request("warm")))
	return d, link
}

func TestLostAnswerOfAcquireIsCleanedUp(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	r := request("x")
	r.TTL = 3 * time.Second // Close waits for it, since the request might still have been on its way
	trap := link.LoseReply(r.Hold)
	_, err := d.Acquire(t.Context(), r)
	sprung(t, trap)
	if !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("Acquire: got %v, want ErrUnknown", err)
	}
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "x") == int64(0) }, "the hold is gone")
	release(t, acquire(t, d, request("x")))
}

func TestLateAnswerOfAcquireIsCleanedUp(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	r := request("x")
	trap := link.HoldReply(r.Hold)
	w := begin(d, r)
	sprung(t, trap)
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "x") == int64(1) }, "the server has granted the request")
	w.cancel()
	<-w.done
	if !errors.Is(w.err, driver.ErrUnknown) || !errors.Is(w.err, context.Canceled) || errors.Is(w.err, driver.ErrLocked) {
		t.Errorf("Acquire: got %v, want ErrUnknown and context.Canceled", w.err)
	}
	link.Heal()
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", "x") == int64(0) }, "the hold is gone")
	// The late answer settled everything, so nothing is left that Close would
	// wait for.
	testenv.Eventually(t, func() bool { return ghostsOf(d) == 0 }, "no ghost is left")
}

func TestRequestThatArrivesLateIsCleanedUp(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	link.Hold(wire.Requests)
	r := request("x")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.Acquire(ctx, r); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire: got %v, want ErrUnknown and context.DeadlineExceeded", err)
	}
	link.Heal()
	testenv.Eventually(t, func() bool { return ghostsOf(d) == 0 && s.Do("EXISTS", "x") == int64(0) }, "the hold came and went")
}

func ghostsOf(d *Driver) int { return d.ghosts.Left() }

func TestLostAnswerOfReleaseIsSuccess(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "?fenced=false"} {
		d, link := overLink(t, s, parameters)
		r := request("x")
		l := acquire(t, d, r)
		trap := link.LoseReply(r.Hold)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release: got %v, want nil", err)
		}
		sprung(t, trap)
		if err := l.Release(t.Context()); err != driver.ErrNotHeld {
			t.Errorf("second Release: got %v, want ErrNotHeld", err)
		}
		if keys := keysOf(s); len(keys) != 0 {
			t.Errorf("keys: got %q, want none", keys)
		}
	}
}

func TestLostAnswerOfReleaseDoesNotTouchTheNextHold(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	other := openURL(t, "redisson://%s", s.Addr)
	r := request("x")
	l := acquire(t, d, r)
	w := wait(t, other, request("x"))
	trap := link.LoseReply(r.Hold)
	err := l.Release(t.Context())
	sprung(t, trap)
	if err != nil {
		t.Errorf("Release: got %v, want nil", err)
	}
	next := w.granted(t)
	if got := s.Do("HEXISTS", "x", next.request.Hold); got != int64(1) {
		t.Error("the next hold is gone")
	}
	release(t, next)
}

func TestReleaseThatHangsIsFinishedInTheBackground(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	for _, direction := range []wire.Direction{wire.Requests, wire.Replies} {
		l := acquire(t, d, request("x"))
		link.Hold(direction)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := l.Release(ctx)
		cancel()
		if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: got %v, want ErrUnknown and context.DeadlineExceeded", err)
		}
		link.Heal()
		testenv.Eventually(t, func() bool { return s.Do("EXISTS", "x") == int64(0) && ghostsOf(d) == 0 }, "the hold is gone")
		testenv.Eventually(t, func() bool { l.Mu.Lock(); defer l.Mu.Unlock(); return l.Phase == redisdriver.Removed }, "the lease knows that its hold was removed")
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("repeated Release: got %v, want nil: the unanswered Release ended the hold", err)
		}
	}
}

func TestReleaseOfALostHold(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for name, lose := range map[string]func(l *lease){
		"removed":  func(*lease) { s.Do("DEL", "x") },
		"replaced": func(*lease) { s.Do("DEL", "x"); s.Do("HSET", "x", "other:1", "1") },
		"flushed":  func(*lease) { s.Do("FLUSHALL") },
	} {
		t.Run(name, func(t *testing.T) {
			l := acquire(t, d, request("x"))
			lose(l)
			if err := l.Release(t.Context()); err != driver.ErrNotHeld {
				t.Errorf("Release: got %v, want ErrNotHeld", err)
			}
			if name == "replaced" && s.Do("HEXISTS", "x", "other:1") != int64(1) {
				t.Error("the hold of another client is gone")
			}
			s.Do("DEL", "x")
		})
	}
}

func TestRenewSetsExpires(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	r := request("x")
	r.Fixed = true
	before := time.Now()
	l := acquire(t, d, r)
	after := time.Now()
	between := func(what string, ttl time.Duration) {
		t.Helper()
		if got := l.Expires(); got.Before(before.Add(ttl)) || got.After(after.Add(ttl)) {
			t.Errorf("Expires after %s: got %v from the start, want between %v and %v", what, got.Sub(before), ttl, after.Add(ttl).Sub(before))
		}
		if got := time.Duration(s.Do("PTTL", "x").(int64)) * time.Millisecond; got > ttl || got < ttl-hangGuard {
			t.Errorf("TTL after %s: got %v, want %v", what, got, ttl)
		}
	}
	between("the grant", r.TTL)
	for _, ttl := range []time.Duration{time.Minute, time.Hour, 40 * time.Second} {
		before = time.Now()
		if err := l.Renew(t.Context(), ttl); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		after = time.Now()
		between("Renew", ttl)
	}
	release(t, l)
	if err := l.Renew(t.Context(), time.Minute); err != driver.ErrNotHeld {
		t.Errorf("Renew after Release: got %v, want ErrNotHeld", err)
	}
}

func TestRenewOfALostHoldDoesNotBringItBack(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for _, test := range []struct {
		name string
		lose func()
	}{
		{"removed", func() { s.Do("DEL", "x") }},
		{"replaced", func() { s.Do("DEL", "x"); s.Do("HSET", "x", "other:1", "1") }},
		{"another type", func() { s.Do("SET", "x", "text") }},
		{"restarted", s.Restart},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := acquire(t, d, request("x"))
			test.lose()
			var err error
			testenv.Eventually(t, func() bool {
				err = l.Renew(t.Context(), time.Minute)
				return !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable)
			}, "the server answers")
			if err != driver.ErrNotHeld {
				t.Errorf("Renew: got %v, want ErrNotHeld", err)
			}
			if s.Do("TYPE", "x") == "hash" && s.Do("HEXISTS", "x", l.request.Hold) != int64(0) {
				t.Error("the hold is back")
			}
			if err := l.Release(t.Context()); err != driver.ErrNotHeld {
				t.Errorf("Release: got %v, want ErrNotHeld", err)
			}
			s.Do("DEL", "x")
		})
	}
}

// TestOverwritten has another program overwrite the key of a lock. Then no hold
// of any mode is left. Each call reports this immediately, and there is nothing
// to clean up.
func TestOverwritten(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	ctx := t.Context()
	overwrite := map[string]func(){
		"string": func() { s.Do("SET", "x", "text") },
		"list":   func() { s.Do("EVAL", "redis.call('DEL', 'x') redis.call('RPUSH', 'x', 'a')", "0") },
		"hash":   func() { s.Do("EVAL", "redis.call('DEL', 'x') redis.call('HSET', 'x', 'field', '1')", "0") },
		"set":    func() { s.Do("EVAL", "redis.call('DEL', 'x') redis.call('SADD', 'x', 'a')", "0") },
		"ends":   func() { s.Do("SET", "{x}:timeout", "text") },
	}
	requests := map[string]func() *driver.Request{
		"exclusive": func() *driver.Request { return forLong("x") },
		"read":      func() *driver.Request { return inMode(driver.Read, forLong("x")) },
		"write":     func() *driver.Request { return inMode(driver.Write, forLong("x")) },
		"permits":   func() *driver.Request { return permits(2, 2, forLong("x")) },
	}
	for _, parameters := range []string{"", "?fair=true"} {
		for what, change := range overwrite {
			for mode, request := range requests {
				if what == "ends" && mode != "permits" {
					continue
				}
				t.Run(fmt.Sprint(mode, parameters, ", ", what), func(t *testing.T) {
					defer s.Do("FLUSHALL")
					d, err := tryOpen(t, "redisson://"+s.Addr+"/"+parameters)
					other := openURL(t, "redisson://%s/%s", s.Addr, parameters)
					if err != nil {
						t.Fatal(err)
					}
					held := []*lease{acquire(t, d, request())}
					if mode == "read" {
						held = append(held, acquire(t, d, request()), acquire(t, d, request()))
					}
					canceled, stays := requests["write"], requests["exclusive"]
					if mode == "permits" {
						canceled, stays = request, request
					}
					waiters := []*waiter{wait(t, other, canceled()), wait(t, other, stays())}
					settled(t, other)
					change()
					if len(held) > 1 {
						if err := held[1].Renew(ctx, testTTL); err != driver.ErrNotHeld {
							t.Errorf("Renew: got %v, want ErrNotHeld", err)
						}
						held = held[:1] // the third is left for Close
					}
					if err := held[0].Release(ctx); err != driver.ErrNotHeld {
						t.Errorf("Release: got %v, want ErrNotHeld", err)
					}
					start := time.Now()
					for _, w := range waiters {
						w.cancel()
						if <-w.done; w.lease != nil {
							t.Error("a waiter was granted a name that is used for something else")
						}
					}
					for _, d := range []*Driver{d, other} {
						if err := d.Close(ctx); err != nil {
							t.Errorf("Close: %v", err)
						}
					}
					if took := time.Since(start); took > backstop/2 {
						t.Errorf("the ends of the waiters and Close took %v", took)
					}
					for _, key := range keysOf(s) {
						if key != "x" && (key != "{x}:timeout" || what != "ends") && !strings.HasSuffix(key, readHold+"1") {
							t.Errorf("%s is left", key)
						}
					}
				})
			}
		}
	}
}

func TestLostAnswerOfRenewChangesNothing(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	r := request("x")
	l := acquire(t, d, r)
	expires := l.Expires()
	trap := link.LoseReply(r.Hold)
	err := l.Renew(t.Context(), time.Hour)
	sprung(t, trap)
	if !errors.Is(err, driver.ErrUnknown) || !l.Expires().Equal(expires) {
		t.Errorf("Renew: got %v and Expires moved by %v, want ErrUnknown and no move", err, l.Expires().Sub(expires))
	}
	// The unanswered renewal may arrive at any time, so until then the shorter
	// of both counts.
	if err := l.Renew(t.Context(), 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := time.Until(l.Expires()); got > time.Hour || got < time.Hour-hangGuard {
		t.Errorf("Expires after a renewal by 2 h, with an unanswered renewal by 1 h: got %v from now, want 1 h", got)
	}
	release(t, l)
}

func TestLateAnswerOfRenewDoesNotMoveExpires(t *testing.T) {
	s := testenv.Redis(t)
	d, link := overLink(t, s, "")
	r := request("x")
	r.TTL = 300 * time.Millisecond
	l := acquire(t, d, r)
	if err := l.Renew(t.Context(), r.TTL); err != nil { // so that the server knows the script
		t.Fatal(err)
	}
	expires := l.Expires()
	trap := link.HoldReply(r.Hold)
	renewed := make(chan error)
	go func() { renewed <- l.Renew(t.Context(), time.Hour) }()
	sprung(t, trap)
	time.Sleep(time.Until(expires))
	link.Heal()
	if err := <-renewed; err == nil || errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Renew: got %v, want an error that leaves the hold to Release", err)
	}
	if !l.Expires().Equal(expires) {
		t.Errorf("Expires moved by %v after it had passed", l.Expires().Sub(expires))
	}
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release of the hold that was renewed too late: got %v, want nil", err)
	}
}

func TestScriptFlush(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	for range 3 {
		s.Do("SCRIPT", "FLUSH")
		l := acquire(t, d, request("x"))
		if got := s.Do("HGET", "x", l.request.Hold); got != valueOf(l) {
			t.Errorf("value of the hold: got %q, want %q", got, valueOf(l))
		}
		s.Do("SCRIPT", "FLUSH")
		if err := l.Renew(t.Context(), time.Minute); err != nil {
			t.Errorf("Renew: %v", err)
		}
		s.Do("SCRIPT", "FLUSH")
		release(t, l)
	}
}

func TestServerOutOfReach(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	release(t, acquire(t, d, request("x")))
	s.Kill()
	testenv.Eventually(t, func() bool {
		_, err := d.Acquire(t.Context(), request("x"))
		if err == nil {
			t.Fatal("Acquire with no server: got a lease")
		}
		return errors.Is(err, driver.ErrUnavailable) // at first, perhaps, over a connection that is just breaking
	}, "Acquire fails with ErrUnavailable")
	s.Start()
	release(t, acquire(t, d, request("x")))
}

func TestFrozenServerHoldsNobodyUp(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("held"))
	leases := []driver.Lease{acquire(t, d, request("renewed"))}
	s.Freeze()
	for name, call := range map[string]func(ctx context.Context) error{
		"Acquire": func(ctx context.Context) error { _, err := d.Acquire(ctx, request("x")); return err },
		"Release": l.Release,
		"Renew":   func(ctx context.Context) error { return leases[0].Renew(ctx, time.Minute) },
		"RenewAll": func(ctx context.Context) (err error) {
			d.RenewAll(ctx, leases, func(_ int, e error) { err = e })
			return err
		},
		"Inspect":     func(ctx context.Context) error { _, err := d.Inspect(ctx, "x"); return err },
		"ForceUnlock": func(ctx context.Context) error { return d.ForceUnlock(ctx, "x") },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		err := call(ctx)
		if took := time.Since(start); took > time.Second {
			t.Errorf("%s: returned after %v", name, took)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: got %v, want context.DeadlineExceeded and ErrUnknown", name, err)
		}
		cancel()
	}
	s.Thaw()
	testenv.Eventually(t, func() bool { return ghostsOf(d) == 0 }, "no ghost is left")
	release(t, leases[0])
	if keys := keysOf(s); len(keys) != 0 {
		t.Errorf("keys: got %q, want none", keys)
	}
}

func TestErrorsOfTheServer(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	release(t, acquire(t, d, request("warm")))
	_, err := acquireOnce(t, d, "free")
	if err != nil {
		t.Fatal(err)
	}
	s.Do("DEL", "free")

	s.Do("SET", "text", "text")
	if _, err := acquireOnce(t, d, "text"); err == nil || !strings.Contains(err.Error(), `"text"`) || errors.Is(err, driver.ErrLocked) ||
		errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("a key of another type: got %v, want an error that names the key and is not retried", err)
	}
	if got := s.Do("GET", "text"); got != "text" {
		t.Errorf("the key of another type: got %v, want it untouched", got)
	}

	s.Do("CONFIG", "SET", "maxmemory", "1")
	if _, err := acquireOnce(t, d, "x"); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("out of memory: got %v, want ErrUnavailable", err)
	}
	s.Do("CONFIG", "SET", "maxmemory", "0")

	s.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	if _, err := acquireOnce(t, d, "x"); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("too few replicas: got %v, want ErrUnavailable", err)
	}
	s.Do("CONFIG", "SET", "min-replicas-to-write", "0")

	s.Do("REPLICAOF", "127.0.0.1", "1")
	if _, err := acquireOnce(t, d, "x"); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("demoted: got %v, want ErrUnavailable", err)
	}
	s.Do("REPLICAOF", "NO", "ONE")
	testenv.Eventually(t, func() bool { l, err := acquireOnce(t, d, "x"); return err == nil && l.Release(t.Context()) == nil }, "promoted")

	s.Do("ACL", "SETUSER", "default", "-evalsha", "-eval")
	if _, err := acquireOnce(t, d, "x"); !errors.Is(err, fs.ErrPermission) || errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("no permission: got %v, want only fs.ErrPermission", err)
	}
	s.Do("ACL", "SETUSER", "default", "+@all")
	testenv.Eventually(t, func() bool { return ghostsOf(d) == 0 || len(keysOf(s)) == 1 }, "nothing is left")
}

func acquireOnce(tb testing.TB, d *Driver, name string) (driver.Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	r := noWait(name)
	r.TTL = time.Second
	return d.Acquire(ctx, r)
}

func TestOneBadNameDoesNotSpoilABatch(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	release(t, acquire(t, d, request("warm")))
	s.Do("SET", "text", "text")
	s.Do("ACL", "SETUSER", "default", "resetkeys", "~good*", "~{good*", "~dsync_fence:*", "~text")
	parallel(50, func(i int) {
		for range 20 {
			switch {
			case i%10 == 0:
				if _, err := acquireOnce(t, d, "text"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
					t.Errorf("a key of another type: got %v, want WRONGTYPE", err)
				}
			case i%10 == 1:
				if _, err := acquireOnce(t, d, "forbidden"); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("a name that is not permitted: got %v, want fs.ErrPermission", err)
				}
			default:
				l, err := acquireOnce(t, d, fmt.Sprint("good", i))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				release(t, l)
			}
		}
	})
	s.Do("ACL", "SETUSER", "default", "allkeys")
}

// TestFrozenServer: a server that does not answer for a while costs no holder
// its lock.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	for _, parameters := range []string{"", "?fair=true"} {
		t.Run(parameters, func(t *testing.T) {
			t.Parallel()
			s := testenv.Redis(t)
			drivertest.FrozenServerCostsNoLock(t, "redisson://"+s.Addr+parameters, s.Freeze, s.Thaw)
		})
	}
}
