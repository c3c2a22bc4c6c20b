package redisson

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// waitForRun has n callers of d wait for the lock x, which somebody holds, as the only ones of the driver, and makes its next release name all of them.
func waitForRun(tb testing.TB, s *testenv.RedisServer, d *Driver, n int) []*waiter {
	tb.Helper()
	var waiters []*waiter
	for range n {
		waiters = append(waiters, wait(tb, d, forLong("x")))
	}
	testenv.Eventually(tb, func() bool {
		d.lines.mu.Lock()
		defer d.lines.mu.Unlock()
		for p := range d.lines.byName["x"].places.All() {
			if !p.waits {
				return false
			}
		}
		return true
	}, "all wait")
	d.lines.mu.Lock()
	defer d.lines.mu.Unlock()
	d.lines.byName["x"].reach = n
	return waiters
}

// amidRun returns a driver with the lease of the second of n callers who get the lock x in one run, and all of them.
func amidRun(tb testing.TB, s *testenv.RedisServer, n int) (*Driver, *lease, []*waiter) {
	tb.Helper()
	d := openURL(tb, "redisson://%s?fair=true", s.Addr)
	l := acquire(tb, d, forLong("x"))
	w := waitForRun(tb, s, d, n)
	release(tb, l)
	release(tb, w[0].granted(tb))
	return d, w[1].granted(tb), w
}

// openPatient opens a driver for fair locks whose attempts ask once, however slow the machine is: they do not listen, after which they would ask again.
func openPatient(tb testing.TB, s *testenv.RedisServer, parameters string) *Driver {
	tb.Helper()
	d := openURL(tb, "redisson://%s?fair=true%s", s.Addr, parameters)
	d.lines.alone = backstop / 2
	return d
}

// prolong has the run of the lock x last, however slow the machine is.
func prolong(d *Driver) {
	d.lines.mu.Lock()
	defer d.lines.mu.Unlock()
	if r := d.lines.byName["x"].run; r != nil {
		r.since += int64(time.Hour)
	}
}

// scriptRuns returns how many runs of scripts the server has counted.
func scriptRuns(s *testenv.RedisServer) int64 { return s.Commands()["evalsha"] }

// TestRun: the callers of one client who stand one behind the other get the lock in this order, each with a larger token, by one request in all.
func TestRun(t *testing.T) {
	const callers = 10
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "&fenced=false", "&fence=redisson"} {
		t.Run(parameters, func(t *testing.T) {
			d := openPatient(t, s, parameters)
			l := acquire(t, d, forLong("x"))
			waiters := waitForRun(t, s, d, callers)
			before := scriptRuns(s)
			last, _ := l.Tokens()
			release(t, l)
			for i, w := range waiters {
				if l = w.granted(t); i == 0 {
					prolong(d)
				}
				if first, n := l.Tokens(); parameters != "&fenced=false" && (first <= last || n != 1) {
					t.Errorf("caller %d has %d tokens from %d on, the one before had %d", i, n, first, last)
				} else {
					last = first
				}
				if ttl := time.Duration(s.Do("PTTL", "x").(int64)) * time.Millisecond; l.Expires().After(time.Now().Add(ttl + time.Millisecond)) {
					t.Errorf("caller %d: the lease ends in %v, the hold in %v", i, time.Until(l.Expires()), ttl)
				}
				for _, other := range waiters[i+1:] {
					select {
					case <-other.done:
						t.Fatalf("a caller behind caller %d has returned: %v", i, other.err)
					default:
					}
				}
				if i < callers-1 {
					release(t, l)
				}
			}
			if got := scriptRuns(s) - before; got != 1 && !t.Failed() {
				t.Errorf("%d requests for %d grants, want 1", got, callers)
			}
			release(t, l)
			if got := keysOf(s); len(got) > 0 {
				t.Errorf("keys that are left: %q", got)
			}
		})
	}
}

// TestRunEndsAtOthers: a waiter of another client is in between. Nobody is overtaken.
func TestRunEndsAtOthers(t *testing.T) {
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s?fair=true", s.Addr), openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, forLong("x"))
	first, second := wait(t, d, forLong("x")), wait(t, d, forLong("x"))
	between := wait(t, other, forLong("x"))
	last := waitForRun(t, s, d, 1)[0]
	d.lines.mu.Lock()
	d.lines.byName["x"].reach = 3
	d.lines.mu.Unlock()
	for _, w := range []*waiter{first, second, between, last} {
		release(t, l)
		l = w.granted(t)
	}
	release(t, l)
	if got := keysOf(s); len(got) > 0 {
		t.Errorf("keys that are left: %q", got)
	}
}

// TestRunPassesByThoseWhoLeave: one that gives up in the middle of a run leaves the queue, and the lock goes to the one behind.
func TestRunPassesByThoseWhoLeave(t *testing.T) {
	s := testenv.Redis(t)
	d := openPatient(t, s, "")
	l := acquire(t, d, forLong("x"))
	w := waitForRun(t, s, d, 4)
	release(t, l)
	l = w[0].granted(t)
	prolong(d)
	w[1].cancel()
	if <-w[1].done; !errors.Is(w[1].err, context.Canceled) {
		t.Errorf("Acquire that was canceled: %v", w[1].err)
	}
	before := scriptRuns(s)
	release(t, l)
	l = w[2].granted(t)
	if got := scriptRuns(s) - before; got != 0 {
		t.Errorf("%d requests for a hand-over in a run", got)
	}
	release(t, l)
	release(t, w[3].granted(t))
	if got := keysOf(s); len(got) > 0 {
		t.Errorf("keys that are left: %q", got)
	}
}

// TestRunLeavesAtTheHandOver: one of a run leaves while the lock is on its way to it. It has the lock then, or the one behind it gets the lock.
func TestRunLeavesAtTheHandOver(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	granted, last := 0, uint64(0)
	for range 100 {
		l := acquire(t, d, forLong("x"))
		w := waitForRun(t, s, d, 3)
		release(t, l)
		l = w[0].granted(t)
		parallel(2, func(i int) {
			if i == 0 {
				w[1].cancel()
			} else {
				time.Sleep(rand.N(50 * time.Microsecond))
				release(t, l)
			}
		})
		if <-w[1].done; w[1].err == nil {
			granted++
			release(t, w[1].lease)
		} else if !errors.Is(w[1].err, context.Canceled) {
			t.Fatalf("Acquire that was canceled: %v", w[1].err)
		}
		l = w[2].granted(t)
		if first, _ := l.Tokens(); first <= last {
			t.Errorf("token %d after %d", first, last)
		} else {
			last = first
		}
		release(t, l)
	}
	t.Logf("granted in %d rounds of 100", granted)
	testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
}

// TestRunOfOtherKinds: a lease that ends at a time of its own, or lasts otherwise, is granted by a request.
func TestRunOfOtherKinds(t *testing.T) {
	s := testenv.Redis(t)
	for name, change := range map[string]func(*driver.Request){
		"fixed": func(r *driver.Request) { r.Fixed = true },
		"TTL":   func(r *driver.Request) { r.TTL += time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			d := openURL(t, "redisson://%s?fair=true", s.Addr)
			l := acquire(t, d, forLong("x"))
			first := wait(t, d, forLong("x"))
			r := forLong("x")
			change(r)
			second, third := wait(t, d, r), wait(t, d, forLong("x"))
			for _, w := range []*waiter{first, second, third} {
				release(t, l)
				l = w.granted(t)
				if got := s.Do("HKEYS", "x").([]any); len(got) != 1 || got[0] != w.request.Hold {
					t.Errorf("the lock is held by %q, want %s", got, w.request.Hold)
				}
				if left := time.Until(l.Expires()); left < w.request.TTL-hangGuard {
					t.Errorf("a lease of %v lasts %v", w.request.TTL, left)
				}
			}
			release(t, l)
		})
	}
}

// TestRunEndsInTime: after a while, and behind a lease that was renewed, the next gets the lock by a request, and what the run has left in the queue goes.
func TestRunEndsInTime(t *testing.T) {
	s := testenv.Redis(t)
	for name, end := range map[string]func(*Driver, *lease){
		"time": func(d *Driver, l *lease) {
			d.lines.mu.Lock()
			defer d.lines.mu.Unlock()
			if r := d.lines.byName["x"].run; r != nil {
				r.since -= int64(runFor)
			}
		},
		"renewal": func(_ *Driver, l *lease) {
			if err := l.Renew(t.Context(), l.request.TTL); err != nil {
				t.Errorf("Renew: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, l, w := amidRun(t, s, 3)
			end(d, l)
			if name == "renewal" {
				testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 1 }, "one is left in the queue")
			}
			release(t, l)
			l = w[2].granted(t)
			if got := s.Do("HKEYS", "x").([]any); len(got) != 1 || got[0] != w[2].request.Hold {
				t.Errorf("the lock is held by %q, want %s", got, w[2].request.Hold)
			}
			if got := lineOfX(s); len(got) > 0 {
				t.Errorf("queue: %q", got)
			}
			release(t, l)
		})
	}
}

// TestRunAndClose: the driver is closed in the middle of a run, and leaves nothing.
func TestRunAndClose(t *testing.T) {
	s := testenv.Redis(t)
	for range 30 {
		d, l, w := amidRun(t, s, 4)
		releaseAtClose(t, d, l)
		for _, w := range w[2:] {
			if <-w.done; w.err != nil && !errors.Is(w.err, driver.ErrClosed) {
				t.Errorf("Acquire: %v", w.err)
			}
		}
		if got := keysOf(s); len(got) > 0 {
			var holds []string
			for _, w := range w {
				holds = append(holds, w.request.Hold)
			}
			t.Fatalf("keys that are left: %q, queue %q of %q", got, lineOfX(s), holds)
		}
	}
}

// TestRunWithoutAnAnswer: nobody learns that the release at the end of a run was carried out. The next gets the lock, and nothing is left.
func TestRunWithoutAnAnswer(t *testing.T) {
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	d, other := openURL(t, "redisson://%s?fair=true", addr), openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, forLong("x"))
	w := waitForRun(t, s, d, 3)
	behind := wait(t, other, forLong("x"))
	release(t, l)
	release(t, w[0].granted(t))
	release(t, w[1].granted(t))
	l = w[2].granted(t)
	trap := link.LoseReply(l.request.Hold)
	parallel(2, func(i int) {
		if i == 0 {
			release(t, l)
		} else {
			<-trap
		}
	})
	release(t, behind.granted(t))
	testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
}

// TestRunAndAReleaseThatFails: a release did not take out of the queue whom the lock has passed, so the cleaner does.
func TestRunAndAReleaseThatFails(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l, p := acquire(t, d, request("x")), newPlace(request("x"))
	addWaiter(s, "served:1", time.Minute)
	addWaiter(s, "served:2", time.Minute)
	d.lines.enter(p)
	if heirOf(&d.lines) != p {
		t.Fatal("the first in the line is no heir")
	}
	d.lines.inherit(p, l, &run{served: lineOfX(s)})
	o := d.newOp(l.request, l)
	d.prepare(o)
	if len(o.served) != 2 {
		t.Errorf("a release takes out %q", o.served)
	}
	o.err = errAnswer
	d.inherit(o)
	if len(lineOfX(s)) != 2 {
		t.Error("the holds are given up before the lease is over: the release may be repeated")
	}
	d.lines.over(l)
	testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 0 }, "the queue is empty")
	d.lines.leave(p, nil, d.now())
	release(t, l)
}

// TestGrantAtTheLastMoment: an attempt that is about to give up is granted the lock, and has it then, unless a request of its own is in doubt.
func TestGrantAtTheLastMoment(t *testing.T) {
	d := openURL(t, "redisson://%s?fair=true", testenv.Redis(t).Addr)
	ls := &d.lines
	for _, waits := range []bool{true, false} {
		p, l := newPlace(request("x")), d.newLease(request("x"), d.now(), 7, 1)
		ls.enter(p)
		if waits {
			ls.await(p, d.now())
		}
		if heirOf(ls) != p {
			t.Fatal("the first in the line is no heir")
		}
		if granted, ask := ls.grantOrAsk(p, d.now()); granted != nil || ask {
			t.Errorf("turn of an heir: got %v, %t", granted, ask)
		}
		ls.inherit(p, l, nil)
		if got := ls.leave(p, nil, d.now()); (got == l) != waits {
			t.Errorf("waits %t: one that leaves got %v", waits, got)
		}
		ls.over(l)
	}
}

// TestRunOfADeadProcess: a process ends in the middle of a run. All of the run are out of the queue 5 s after the end of its hold.
func TestRunOfADeadProcess(t *testing.T) {
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	dead, d := openURL(t, "redisson://%s?fair=true", addr), openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, dead, forLong("x"))
	w := waitForRun(t, s, dead, 9)
	java := "java:1"
	addWaiter(s, java, leftOfX(t, s, w[8].request.Hold)+5*time.Minute)
	release(t, l)
	l = w[0].granted(t)
	prolong(dead)
	release(t, l)
	release(t, w[1].granted(t))
	w[2].granted(t)
	link.Hold(wire.Both)
	s.Do("DEL", "x") // as if it had expired
	for _, hold := range lineOfX(s)[:8] {
		if left := leftOfX(t, s, hold); left > time.Minute+6*time.Second {
			t.Errorf("one of the run may stay for %v", left)
		}
		s.Do("ZINCRBY", timesOfX, "-66000", hold) // as if TTL and 5 s had passed
	}
	if left := leftOfX(t, s, java); left < 5*time.Minute || left > 7*time.Minute {
		t.Errorf("time of the waiter of Redisson behind: %v", left)
	}
	if _, err := acquireOnce(t, d, "x"); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("a try while another waits: got %v, want ErrLocked", err)
	}
	if got := lineOfX(s); !slices.Equal(got, []string{java}) {
		t.Errorf("queue: %q, want the waiter of Redisson alone", got)
	}
	s.Do("DEL", queueOfX, timesOfX)
	link.Heal()
}

// TestRunsExclude: callers of two clients, some of whom leave, and two never hold the lock at once.
func TestRunsExclude(t *testing.T) {
	const callers, grants = 12, 40
	s := testenv.Redis(t)
	var holders, granted atomic.Int64
	var last uint64 // guarded by the lock
	parallel(2, func(int) {
		d := openURL(t, "redisson://%s?fair=true", s.Addr)
		parallel(callers, func(int) {
			for n := 0; n < grants; {
				ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
				if rand.N(4) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), rand.N(5*time.Millisecond))
				}
				l, err := d.Acquire(ctx, forLong("x"))
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Acquire: %v", err)
					}
					continue
				}
				if holders.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				if first, _ := l.Tokens(); first <= last {
					t.Errorf("token %d after %d", first, last)
				} else {
					last = first
				}
				holders.Add(-1)
				release(t, l.(*lease))
				n++
				granted.Add(1)
			}
		})
	})
	if granted.Load() != 2*callers*grants {
		t.Errorf("%d grants", granted.Load())
	}
	testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
}
