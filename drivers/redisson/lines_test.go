package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// listening waits until n waiters for x listen for messages and have no request under way.
func listening(tb testing.TB, s *testenv.RedisServer, d *Driver, n int) {
	tb.Helper()
	testenv.Eventually(tb, func() bool {
		line := lineOfX(s)
		for _, hold := range line {
			if s.SubscriberCount(prefixName(channelPrefix, "x")+":"+hold) == 0 {
				return false
			}
		}
		return len(line) == n && d.direct.busy.Load() == 0
	}, "all wait and listen")
}

// TestFairHandOverInTheRelease: where a waiter of the same client is next, the release gives it the lock, and no message is needed.
func TestFairHandOverInTheRelease(t *testing.T) {
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "&fenced=false", "&fence=redisson"} {
		t.Run(parameters, func(t *testing.T) {
			d := openURL(t, "redisson://%s?fair=true%s", s.Addr, parameters)
			l := acquire(t, d, request("x"))
			var waiters []*waiter
			for i := range 3 {
				r := request("x")
				r.TTL += time.Duration(i) * time.Second // other TTLs are no run
				waiters = append(waiters, wait(t, d, r))
			}
			listening(t, s, d, len(waiters))
			published := s.Commands()["publish"]
			last, _ := l.Tokens()
			for i, w := range waiters {
				line := lineOfX(s)
				begun := time.Now()
				release(t, l)
				l = w.granted(t)
				if fields := s.Do("HKEYS", "x").([]any); len(fields) != 1 || fields[0] != line[0] || l.request.Hold != line[0] {
					t.Errorf("hand-over %d: %s holds the lock, and %q by the server, want %s", i, l.request.Hold, fields, line[0])
				}
				if got := lineOfX(s); !slices.Equal(got, line[1:]) {
					t.Errorf("hand-over %d: queue %q, want %q", i, got, line[1:])
				}
				if ttl := time.Duration(s.Do("PTTL", "x").(int64)) * time.Millisecond; ttl <= 0 || l.Expires().After(time.Now().Add(ttl+time.Millisecond)) || l.Expires().Before(begun.Add(testTTL)) {
					t.Errorf("hand-over %d: the lease ends in %v, the hold in %v", i, time.Until(l.Expires()), ttl)
				}
				first, n := l.Tokens()
				if fenced := parameters != "&fenced=false"; fenced && (first <= last || n != 1) || !fenced && n != 0 {
					t.Errorf("hand-over %d: %d tokens from %d, the one before had %d", i, n, first, last)
				}
				last = first
			}
			if got := s.Commands()["publish"] - published; got != 0 {
				t.Errorf("%d messages for hand-overs in a client", got)
			}
			release(t, l)
			if got := keysOf(s); len(got) > 0 {
				t.Errorf("keys that are left: %q", got)
			}
			d.lines.mu.Lock()
			defer d.lines.mu.Unlock()
			if n := len(d.lines.byName); n > 0 {
				t.Errorf("%d lines are left", n)
			}
		})
	}
}

// TestFairHandOverIsInOrder: a waiter of Redisson that came before keeps its turn, and is told alone.
func TestFairHandOverIsInOrder(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, request("x"))
	first := wait(t, d, request("x"))
	addWaiter(s, "java:1", leftOfX(t, s, lineOfX(s)[0])+5*time.Minute)
	java := spyOn(t, s, prefixName(channelPrefix, "x")+":java:1")
	last := wait(t, d, request("x"))
	hold := lineOfX(s)[2]
	release(t, l)
	l = first.granted(t)
	if len(java.messages) > 0 {
		t.Error("the waiter of Redisson was told before its turn")
	}
	release(t, l)
	if got := java.next(t); got != "0" {
		t.Errorf("message to the waiter of Redisson: got %q, want 0", got)
	}
	if got := lineOfX(s); !slices.Equal(got, []string{"java:1", hold}) {
		t.Errorf("queue: got %q, want java:1 and %s", got, hold)
	}
	select {
	case <-last.done:
		t.Fatal("a waiter overtook that of Redisson")
	default:
	}
	// As Redisson does: it takes the lock, and gives it back.
	s.Do("EVAL", `redis.call('LPOP', KEYS[2]) redis.call('ZREM', KEYS[3], 'java:1') redis.call('HSET', KEYS[1], 'java:1', '1') redis.call('PEXPIRE', KEYS[1], '30000')`,
		"3", "x", queueOfX, timesOfX)
	listening(t, s, d, 1)
	s.Do("DEL", "x")
	s.Do("PUBLISH", prefixName(channelPrefix, "x")+":"+hold, "0")
	release(t, last.granted(t))
}

// TestFairLostAnswerOfAHandOver: the server carries out a release that hands the lock over, and nobody gets to know. Who released is told
// that it did, and who is next has the lock.
func TestFairLostAnswerOfAHandOver(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprint("the next leaves ", leaves), func(t *testing.T) {
			s := testenv.Redis(t)
			link, addr := testenv.Wire(t, s.Addr)
			d := openURL(t, "redisson://%s?fair=true", addr)
			l := acquire(t, d, request("x"))
			next, last := wait(t, d, request("x")), wait(t, d, request("x"))
			listening(t, s, d, 2)
			trap := link.LoseReply(l.request.Hold)
			var wg sync.WaitGroup
			wg.Go(func() { release(t, l) })
			<-trap
			if leaves {
				next.cancel()
			}
			<-next.done
			if next.err == nil {
				if fields := s.Do("HKEYS", "x").([]any); len(fields) != 1 || fields[0] != next.lease.request.Hold {
					t.Errorf("the lock is held by %q, want %s", fields, next.lease.request.Hold)
				}
				before, _ := l.Tokens()
				if first, _ := next.lease.Tokens(); first <= before {
					t.Errorf("token %d after %d", first, before)
				}
				release(t, next.lease)
			} else if !leaves || !errors.Is(next.err, context.Canceled) {
				t.Errorf("Acquire: %v", next.err)
			}
			wg.Wait()
			release(t, last.granted(t))
			testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
		})
	}
}

// TestFairLateRepeatOfARelease: a release that hands the lock over is carried out again, as its connection delivers late what was sent again
// over another one. The heir may have renewed its hold for longer by then, or for less time, as one that leaves does.
func TestFairLateRepeatOfARelease(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l, heir := acquire(t, d, request("x")), request("x")
	addWaiter(s, heir.Hold, time.Minute)
	o := d.newOp(l.request, l)
	o.heir, o.tokens = newPlace(heir), 1
	carryOut := func() rueidis.RedisResult {
		return d.eval(t.Context(), fairReleaseScript, o.keys(d, nil), o.args(d, nil))
	}
	last, _ := l.Tokens()
	if answer, err := carryOut().AsIntSlice(); err != nil || len(answer) != 4 || answer[0] != 0 || answer[1] <= int64(last) || answer[2] != 1 || answer[3] != 0 {
		t.Fatalf("answer to the release: got %v, %v, want 0 and a token above %d", answer, err, last)
	}
	token := s.Do("GET", d.tokenKey("x"))
	for _, ttl := range []time.Duration{time.Hour, testTTL / 2} {
		s.Do("PEXPIRE", "x", fmt.Sprint(ttl.Milliseconds()))
		if answer, err := carryOut().ToInt64(); err != nil || answer != -1 {
			t.Errorf("answer to the repeat: got %d, %v, want -1", answer, err)
		}
		if left := time.Duration(s.Do("PTTL", "x").(int64)) * time.Millisecond; left > ttl || left < ttl-hangGuard {
			t.Errorf("a hold that lasts %v lasts %v after the repeat", ttl, left)
		}
		if fields := s.Do("HKEYS", "x").([]any); len(fields) != 1 || fields[0] != heir.Hold {
			t.Errorf("the lock is held by %q, want %s", fields, heir.Hold)
		}
	}
	if got := s.Do("GET", d.tokenKey("x")); got != token {
		t.Errorf("the last token is %v after the repeat, was %v", got, token)
	}
}

// TestFairHeirOfALostAnswerAsks: a release that finds no hold may be the repeat of one that handed the lock over.
func TestFairHeirOfALostAnswerAsks(t *testing.T) {
	d := openURL(t, "redisson://%s?fair=true", testenv.Redis(t).Addr)
	l, p := acquire(t, d, request("x")), newPlace(request("x"))
	release(t, l)
	d.lines.enter(p)
	defer d.lines.leave(p, nil, d.now())
	o := d.newOp(l.request, l)
	d.sendOp(t.Context(), o, nil, nil)
	if o.err != nil || o.first != -1 {
		t.Fatalf("release of a hold that is over: got %d, %v, want -1", o.first, o.err)
	}
	select {
	case <-p.wake:
	default:
		t.Error("the first in the line is not woken")
	}
	if _, ask := d.lines.grantOrAsk(p, d.now()); !ask {
		t.Error("the first in the line may not ask")
	}
}

// TestFairReleaseWithoutMemory: a server that takes nothing more cannot hand the lock over, or give an heir more time, but frees the lock.
func TestFairReleaseWithoutMemory(t *testing.T) {
	s := testenv.Redis(t)
	for _, in := range []time.Duration{time.Minute, -time.Minute} {
		d := openURL(t, "redisson://%s?fair=true", s.Addr)
		l, p := acquire(t, d, request("x")), newPlace(request("x"))
		d.lines.enter(p)
		addWaiter(s, p.request.Hold, in)
		s.Do("CONFIG", "SET", "maxmemory", "1")
		release(t, l)
		s.Do("CONFIG", "SET", "maxmemory", "0")
		if s.Do("EXISTS", "x") != int64(0) {
			t.Errorf("the time of the heir ends in %v: the lock is held", in)
		}
		d.lines.leave(p, nil, d.now())
		s.Do("DEL", queueOfX, timesOfX)
	}
}

// TestFairHandOverThatIsLate: the connection hangs with a release that hands the lock over, and the caller gives up. So does the next, or it
// has the lock when the connection is back.
func TestFairHandOverThatIsLate(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprint("the next leaves ", leaves), func(t *testing.T) {
			s := testenv.Redis(t)
			link, addr := testenv.Wire(t, s.Addr)
			d := openURL(t, "redisson://%s?fair=true", addr)
			other := openURL(t, "redisson://%s?fair=true", s.Addr)
			l := acquire(t, d, request("x"))
			next, behind := wait(t, d, request("x")), wait(t, other, request("x"))
			listening(t, s, d, 2)
			release(t, acquire(t, d, request("y")))
			link.Hold(wire.Replies)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := l.Release(ctx); !errors.Is(err, driver.ErrUnknown) {
				t.Errorf("Release without an answer: got %v, want ErrUnknown", err)
			}
			if leaves {
				next.cancel()
				if <-next.done; next.err == nil {
					t.Fatal("a waiter without an answer was granted the lock")
				}
			}
			link.Heal()
			if !leaves {
				release(t, next.granted(t))
			}
			release(t, behind.granted(t))
			testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
		})
	}
}

// TestFairNextLeavesAtTheHandOver: the next leaves while the release is under way that gives it the lock. It has the lock then, or the one
// behind it gets the lock.
func TestFairNextLeavesAtTheHandOver(t *testing.T) {
	const rounds = 150
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	granted, last := 0, uint64(0)
	rises := func(l *lease) {
		t.Helper()
		if first, _ := l.Tokens(); first <= last {
			t.Errorf("token %d after %d", first, last)
		} else {
			last = first
		}
	}
	for range rounds {
		l := acquire(t, d, request("x"))
		rises(l)
		next, behind := wait(t, d, request("x")), wait(t, d, request("x"))
		parallel(2, func(i int) {
			if i == 0 {
				time.Sleep(rand.N(300 * time.Microsecond)) // about as long as the release takes
				next.cancel()
			} else {
				release(t, l)
			}
		})
		if <-next.done; next.err == nil {
			granted++
			rises(next.lease)
			release(t, next.lease)
		} else if !errors.Is(next.err, context.Canceled) {
			t.Fatalf("Acquire that was canceled: %v", next.err)
		}
		l = behind.granted(t)
		rises(l)
		release(t, l)
	}
	t.Logf("granted in %d rounds of %d", granted, rounds)
	testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
}

// releaseAtClose releases a lease and closes its driver at the same time.
func releaseAtClose(t *testing.T, d *Driver, l *lease) {
	t.Helper()
	parallel(2, func(i int) {
		if i == 1 {
			if err := l.Release(t.Context()); err != nil && err != driver.ErrNotHeld && !errors.Is(err, driver.ErrUnknown) {
				t.Errorf("Release: %v", err)
			}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// TestFairCloseAtTheHandOver: Close begins while a release hands the lock over, and leaves nothing.
func TestFairCloseAtTheHandOver(t *testing.T) {
	s := testenv.Redis(t)
	for range 30 {
		d := openURL(t, "redisson://%s?fair=true", s.Addr)
		l := acquire(t, d, request("x"))
		next, behind := wait(t, d, request("x")), wait(t, d, request("x"))
		releaseAtClose(t, d, l)
		for _, w := range []*waiter{next, behind} {
			if <-w.done; w.err != nil && !errors.Is(w.err, driver.ErrClosed) {
				t.Errorf("Acquire: %v", w.err)
			}
		}
		if got := keysOf(s); len(got) > 0 {
			t.Fatalf("keys that are left: %q", got)
		}
	}
}

// TestFairTokensRiseOverHandOvers: two clients, one of which has more callers, so that some hand-overs are in a client, and some are not.
func TestFairTokensRiseOverHandOvers(t *testing.T) {
	const grants = 60
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "&fence=redisson"} {
		var holders atomic.Int64
		var last uint64 // guarded by the lock
		parallel(2, func(client int) {
			d := openURL(t, "redisson://%s?fair=true%s", s.Addr, parameters)
			parallel(3+9*client, func(i int) {
				for range grants {
					r := request("x")
					r.Events.(*events).tokens = 1 + i
					l := acquire(t, d, r)
					if holders.Add(1) != 1 {
						t.Error("two hold the lock")
					}
					first, n := l.Tokens()
					if first <= last {
						t.Errorf("tokens from %d on after %d", first, last)
					}
					last = first + uint64(n) - 1
					holders.Add(-1)
					release(t, l)
				}
			})
		})
	}
}

// TestAmongOwn: an attempt does not listen at first if nobody else can be in front of it.
func TestAmongOwn(t *testing.T) {
	d := openURL(t, "redisson://%s?fair=true", testenv.Redis(t).Addr)
	ls, now := &d.lines, d.now()
	first, second := newPlace(request("x")), newPlace(request("x"))
	ls.enter(first)
	if ls.await(first, now) {
		t.Error("nobody knows who holds the lock")
	}
	l := d.newLease(request("x"), now, 7, 1)
	ls.leave(first, l, now)
	ls.enter(second)
	for front, want := range []bool{true, false} {
		if second.front = front; ls.await(second, now) != want {
			t.Errorf("%d in front of the only one of the driver: got %t", front, !want)
		}
	}
	second.front = 0
	if ls.await(second, now+int64(testTTL)) {
		t.Error("the hold in front is over")
	}
	ls.over(l)
	if ls.await(second, now) {
		t.Error("the hold in front was given back")
	}
	ls.leave(second, nil, now)
	if n := len(ls.byName); n != 0 {
		t.Errorf("%d lines are left", n)
	}
}

func heirOf(ls *lines) *place {
	heir, _ := ls.chooseHeir("x")
	return heir
}

// TestHeirDoesNotAsk: while a release is under way that may give it the lock, no request of its own is.
func TestHeirDoesNotAsk(t *testing.T) {
	d := openURL(t, "redisson://%s?fair=true", testenv.Redis(t).Addr)
	ls := &d.lines
	p, l := newPlace(request("x")), d.newLease(request("x"), d.now(), 7, 1)
	ls.enter(p)
	if heirOf(ls) != p || heirOf(ls) != nil {
		t.Error("the first attempt is not the heir of one release")
	}
	if granted, ask := ls.grantOrAsk(p, d.now()); granted != nil || ask {
		t.Errorf("turn of an heir: got %v, %t", granted, ask)
	}
	ls.inherit(p, nil, nil)
	select {
	case <-p.wake:
	default:
		t.Error("an heir that was to ask is not woken when the release is answered")
	}
	if granted, ask := ls.grantOrAsk(p, d.now()); granted != nil || !ask {
		t.Errorf("turn after the answer: got %v, %t, want that it asks", granted, ask)
	}
	if heirOf(ls) != nil {
		t.Error("an attempt that asks is an heir")
	}
	ls.answered(p)
	if heirOf(ls) != p {
		t.Error("an attempt that has asked is no heir")
	}
	ls.inherit(p, l, nil)
	if granted, ask := ls.grantOrAsk(p, d.now()); granted != l || ask {
		t.Errorf("turn after the grant: got %v, %t", granted, ask)
	}
	if granted, ask := ls.grantOrAsk(p, d.now()+int64(testTTL)); granted != nil || !ask {
		t.Errorf("turn after the end of the grant: got %v, %t, want that it asks", granted, ask)
	}
	ls.leave(p, nil, d.now())
	ls.enter(p) // its request is sent after all
	if n := len(ls.byName); n != 0 {
		t.Errorf("%d lines are left", n)
	}
}
