package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	queueOfX = "redisson_lock_queue:{x}"
	timesOfX = "redisson_lock_timeout:{x}"
)

// lineOfX returns the holds that wait for the lock x.
func lineOfX(s *testenv.RedisServer) []string {
	var holds []string
	for _, hold := range s.Do("LRANGE", queueOfX, "0", "-1").([]any) {
		holds = append(holds, hold.(string))
	}
	return holds
}

// leftOfX returns how long a waiter for x is still safe from eviction, by the
// server's clock.
func leftOfX(tb testing.TB, s *testenv.RedisServer, hold string) time.Duration {
	tb.Helper()
	score, _ := s.Do("ZSCORE", timesOfX, hold).(string)
	at, err := strconv.ParseInt(score, 10, 64)
	if err != nil {
		tb.Fatalf("time of the waiter %s: %v", hold, err)
	}
	now := s.Do("TIME").([]any)
	seconds, _ := strconv.ParseInt(now[0].(string), 10, 64)
	return time.Duration(at-1000*seconds) * time.Millisecond
}

// addWaiter puts a waiter into the queue like Redisson, with its time in
// milliseconds from now.
func addWaiter(s *testenv.RedisServer, hold string, in time.Duration) {
	now := s.Do("TIME").([]any)
	seconds, _ := strconv.ParseInt(now[0].(string), 10, 64)
	s.Do("ZADD", timesOfX, fmt.Sprint(1000*seconds+in.Milliseconds()), hold)
	s.Do("RPUSH", queueOfX, hold)
}

func TestFairKeys(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, request("x"))
	if got := keysOf(s); !slices.Equal(got, []string{"x"}) {
		t.Errorf("keys of a lock without waiters: got %q", got)
	}
	first, second := wait(t, d, request("x")), wait(t, d, request("x"))
	queue := lineOfX(s)
	if len(queue) != 2 || leftOfX(t, s, queue[0]) >= leftOfX(t, s, queue[1]) {
		t.Errorf("queue: got %q, want two with rising times", queue)
	}
	status, err := d.Inspect(t.Context(), "x")
	if err != nil || !slices.Equal(status.Queue, queue) || status.Waiters != 2 {
		t.Errorf("Inspect: got %+v, %v, want the queue %q", status, err, queue)
	}
	release(t, l)
	release(t, first.granted(t))
	release(t, second.granted(t))
	if got := keysOf(s); len(got) > 0 {
		t.Errorf("keys that are left: %q", got)
	}
}

func TestFairReleaseTellsTheFirstAlone(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, request("x"))
	addWaiter(s, "java:1", time.Minute)
	addWaiter(s, "java:2", 2*time.Minute)
	name, first, second := spyOn(t, s, prefixName(channelPrefix, "x")), spyOn(t, s, prefixName(channelPrefix, "x")+":java:1"),
		spyOn(t, s, prefixName(channelPrefix, "x")+":java:2")
	release(t, l)
	if got := first.next(t); got != "0" {
		t.Errorf("message to the first: got %q, want 0", got)
	}
	if len(name.messages)+len(second.messages) > 0 {
		t.Error("other waiters were notified too")
	}
	if _, err := acquireOnce(t, d, "x"); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("a try while others wait: got %v, want ErrLocked", err)
	}
	if got := lineOfX(s); !slices.Equal(got, []string{"java:1", "java:2"}) {
		t.Errorf("queue: got %q", got)
	}
}

// TestFairCanceledWaiterLeavesAtOnce: the waiters behind it keep their distance
// to the hold that they now wait for, and the next waiter is notified if the
// lock is free.
func TestFairCanceledWaiterLeavesAtOnce(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, request("x"))
	asked := s.Commands()["evalsha"]
	w := wait(t, d, request("x"))
	addWaiter(s, "java:1", leftOfX(t, s, lineOfX(s)[0])+5*time.Minute)
	before := leftOfX(t, s, "java:1")
	testenv.Eventually(t, func() bool { // otherwise it may be canceled during its request, which has an unknown outcome
		return s.Commands()["evalsha"] >= asked+2 && d.direct.busy.Load() == 0
	}, "the waiter has sent another request after it subscribed")
	w.cancel()
	if <-w.done; !errors.Is(w.err, driver.ErrLocked) || !errors.Is(w.err, context.Canceled) || errors.Is(w.err, driver.ErrUnknown) {
		t.Errorf("canceled Acquire: got %v, want ErrLocked and Canceled", w.err)
	}
	if got := lineOfX(s); !slices.Equal(got, []string{"java:1"}) {
		t.Errorf("queue when Acquire has returned: got %q", got)
	}
	if after := leftOfX(t, s, "java:1"); after > before-10*time.Second || after < 5*time.Minute {
		t.Errorf("time of the waiter behind: got %v, was %v, want 15 s less, and 5 minutes after the end of the hold", after, before)
	}

	s.Do("DEL", queueOfX, timesOfX)
	first := wait(t, d, request("x"))
	addWaiter(s, "java:1", leftOfX(t, s, lineOfX(s)[0])+5*time.Minute)
	next := spyOn(t, s, prefixName(channelPrefix, "x")+":java:1")
	s.Do("DEL", "x") // of which no client is notified
	first.cancel()
	<-first.done
	if first.err == nil {
		release(t, first.lease)
	}
	if got := next.next(t); got != "0" {
		t.Errorf("message to the next: got %q, want 0", got)
	}
	if err := l.Release(t.Context()); err != driver.ErrNotHeld {
		t.Errorf("Release of a hold that was removed: got %v, want ErrNotHeld", err)
	}
}

// TestFairDeafWaiter: a waiter that does not listen while the lock is free is
// evicted long before its time.
func TestFairDeafWaiter(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	addWaiter(s, "dead:1", 5*time.Minute)
	addWaiter(s, "dead:2", 10*time.Minute)
	before := s.Commands()["evalsha"]
	start := time.Now()
	release(t, wait(t, d, request("x")).granted(t))
	if took := time.Since(start); took < 4*time.Second {
		t.Errorf("the waiter behind got the lock after %v, want it to give each waiter ahead 5 s", took)
	}
	if asked := s.Commands()["evalsha"] - before; asked > 20*int64(time.Since(start)/time.Second+1) {
		t.Errorf("the waiter sent %d requests in %v", asked, time.Since(start))
	}
}

// TestFairDeafWaiterCountsFromTheRelease: its time begins with the release, not
// with the next request, up to 5 s later.
func TestFairDeafWaiterCountsFromTheRelease(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, request("x"))
	addWaiter(s, "dead:1", 5*time.Minute)
	addWaiter(s, "java:2", 10*time.Minute)
	release(t, l)
	if left := leftOfX(t, s, "dead:1"); left > 6*time.Second { // it counts from a full second
		t.Errorf("time of a waiter that does not listen, after the release: %v", left)
	}
	if left := leftOfX(t, s, "java:2"); left < 9*time.Minute {
		t.Errorf("time of the waiter behind it: %v", left)
	}
	s.Do("ZINCRBY", timesOfX, "-6000", "dead:1") // as if this time had passed
	if _, err := acquireOnce(t, d, "x"); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("a try while another waits: got %v, want ErrLocked", err)
	}
	if got := lineOfX(s); !slices.Equal(got, []string{"java:2"}) {
		t.Errorf("queue: got %q, want only the live waiter", got)
	}
}

// TestFairListeningWaiterIsNotOvertaken: it may just be slow, though not for
// more than 15 s.
func TestFairListeningWaiterIsNotOvertaken(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	addWaiter(s, "java:1", 5*time.Minute)
	sp := spyOn(t, s, prefixName(channelPrefix, "x")+":java:1")
	w := wait(t, d, request("x"))
	for range 5 { // reminded again and again
		sp.next(t)
	}
	if left := leftOfX(t, s, "java:1"); left < 5*time.Second || left > 15*time.Second {
		t.Errorf("time of the listening waiter: %v", left)
	}
	select {
	case <-w.done:
		t.Fatalf("the waiter behind got %v, %v", w.lease, w.err)
	default:
	}
	s.Do("ZINCRBY", timesOfX, "-15000", "java:1") // as if the reminders had continued until its time was up
	release(t, w.granted(t))
}

// TestFairHungWaiter: a waiter is cut off, the server still has its
// subscription, and the lock becomes free long before its TTL.
func TestFairHungWaiter(t *testing.T) {
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	cutOff, d := openURL(t, "redisson://%s?fair=true", addr), openURL(t, "redisson://%s?fair=true", s.Addr)
	r := request("x")
	r.TTL = 10 * time.Minute
	l := acquire(t, d, r)
	hung := wait(t, cutOff, request("x"))
	hold := lineOfX(s)[0]
	testenv.Eventually(t, func() bool { return s.SubscriberCount(prefixName(channelPrefix, "x")+":"+hold) == 1 }, "the waiter listens")
	link.Hold(wire.Both)
	next := wait(t, d, request("x"))
	release(t, l)
	testenv.Eventually(t, func() bool { return leftOfX(t, s, hold) <= 15*time.Second }, "the waiter's time is bounded")
	s.Do("ZINCRBY", timesOfX, "-15000", hold) // as if this time had passed
	release(t, next.granted(t))
	link.Heal()
	release(t, hung.granted(t))
}

// TestFairLateListener: a Redisson waiter that was not listening yet is granted
// the lock after all, and subtracts its wait of five minutes from the times of
// all waiters behind it, as Redisson does. No waiter's time may end because of
// this.
func TestFairLateListener(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	addWaiter(s, "java:1", 5*time.Minute)
	addWaiter(s, "java:2", 5*time.Minute+time.Second)
	w := wait(t, d, request("x"))
	leaves := wait(t, d, request("x"))
	testenv.Eventually(t, func() bool { return leftOfX(t, s, "java:1") < time.Minute }, "the first waiter counts as dead")
	hold := lineOfX(s)[2]
	addWaiter(s, "java:3", leftOfX(t, s, lineOfX(s)[3])+time.Second)
	leaves.cancel()
	if <-leaves.done; leaves.err == nil {
		t.Fatal("a waiter overtook the others")
	}
	testenv.Eventually(t, func() bool { return slices.Equal(lineOfX(s), []string{"java:1", "java:2", hold, "java:3"}) }, "the waiter has left")
	s.Do("LPOP", queueOfX)
	s.Do("ZREM", timesOfX, "java:1")
	s.Do("HSET", "x", "java:1", "1")
	for _, waiter := range lineOfX(s) {
		s.Do("ZINCRBY", timesOfX, "-300000", waiter)
		if left := leftOfX(t, s, waiter); left < 0 {
			t.Errorf("time of the waiter %s: %v", waiter, left)
		}
	}
	s.Do("DEL", queueOfX, timesOfX, "x")
	release(t, w.granted(t))
}

// TestFairThrownOut: an evicted waiter that is alive returns to the front.
func TestFairThrownOut(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, request("x"))
	w := wait(t, d, request("x"))
	hold := lineOfX(s)[0]
	addWaiter(s, "java:1", 20*time.Minute)
	s.Do("LPOP", queueOfX)
	s.Do("ZREM", timesOfX, hold)
	testenv.Eventually(t, func() bool { return slices.Equal(lineOfX(s), []string{hold, "java:1"}) }, "the waiter is first again")
	release(t, l)
	release(t, w.granted(t))
}

// TestFairLongWait: Redisson waiters set their times once, and these times do
// not pass while a Go waiter is ahead of them.
func TestFairLongWait(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, request("x"))
	w := wait(t, d, request("x"))
	hold := lineOfX(s)[0]
	addWaiter(s, "java:1", leftOfX(t, s, hold)+time.Minute)
	for _, waiter := range []string{hold, "java:1"} { // as if the wait had been long
		s.Do("ZINCRBY", timesOfX, "-1000000", waiter)
	}
	testenv.Eventually(t, func() bool { return leftOfX(t, s, hold) > 0 }, "the waiter sends another request")
	if left := leftOfX(t, s, "java:1"); left < 50*time.Second {
		t.Errorf("time of Redisson's waiter behind it: %v", left)
	}
	release(t, l)
	release(t, w.granted(t))
	if left := leftOfX(t, s, "java:1"); left < 30*time.Second {
		t.Errorf("time of Redisson's waiter when it is next: %v", left)
	}
}

// TestFairGhosts: the answer to a request that queues is lost, and its caller
// gives up.
func TestFairGhosts(t *testing.T) {
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	d := openURL(t, "redisson://%s?fair=true", addr)
	other := openURL(t, "redisson://%s?fair=true", s.Addr)
	release(t, acquire(t, d, request("y")))
	l := acquire(t, other, request("x"))
	link.Hold(wire.Replies)
	w := begin(d, request("x"))
	testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 1 }, "the waiter is in the queue")
	w.cancel()
	if <-w.done; !errors.Is(w.err, driver.ErrUnknown) {
		t.Errorf("unanswered Acquire: got %v, want ErrUnknown", w.err)
	}
	link.Heal()
	testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 0 }, "the waiter is out of the queue")
	release(t, l)
}

// TestFairRights: the rights in docs/backends are enough.
func TestFairRights(t *testing.T) {
	s := testenv.Redis(t)
	password := testenv.Password()
	user := []string{"ACL", "SETUSER", "locker", "on", ">" + password}
	for _, right := range leastRights(t, "`fair=true`") {
		user = append(user, strings.ReplaceAll(right, "lk:", "x"))
	}
	s.Do(user...)
	d := openURL(t, "redisson://locker:%s@%s?fair=true", password, s.Addr)
	l := acquire(t, d, request("x"))
	canceled, next, last := wait(t, d, request("x")), wait(t, d, request("x")), wait(t, d, request("x"))
	canceled.cancel()
	<-canceled.done
	testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 2 }, "the canceled waiter has left the queue")
	release(t, l)
	release(t, next.granted(t))
	release(t, last.granted(t))
}

// TestFairNextLeavesAtTheHandOver: the next waiter leaves while the release
// that notifies it is in progress. The lock goes to this waiter or to the
// waiter behind it.
func TestFairNextLeavesAtTheHandOver(t *testing.T) {
	const rounds = 100
	s := testenv.Redis(t)
	d, other := openURL(t, "redisson://%s?fair=true", s.Addr), openURL(t, "redisson://%s?fair=true", s.Addr)
	granted := 0
	for range rounds {
		l := acquire(t, d, request("x"))
		next, behind := wait(t, other, request("x")), wait(t, d, request("x"))
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
			release(t, next.lease)
		} else if !errors.Is(next.err, context.Canceled) {
			t.Fatalf("canceled Acquire: %v", next.err)
		}
		release(t, behind.granted(t))
	}
	t.Logf("granted in %d rounds of %d", granted, rounds)
	testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
}

// TestFairExcludes: callers of two clients compete, some of them leave, and two
// never hold the lock at the same time.
func TestFairExcludes(t *testing.T) {
	t.Parallel()
	const callers, grants = 8, 30
	s := testenv.Redis(t)
	for _, parameters := range []string{"", "&fence=redisson"} {
		var holders atomic.Int64
		var last uint64 // guarded by the lock
		parallel(2, func(int) {
			d := openURL(t, "redisson://%s?fair=true%s", s.Addr, parameters)
			parallel(callers, func(i int) {
				for n := 0; n < grants; {
					ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
					if rand.N(4) == 0 {
						ctx, cancel = context.WithTimeout(t.Context(), rand.N(5*time.Millisecond))
					}
					r := forLong("x")
					r.Events.(*events).tokens = 1 + i
					l, err := d.Acquire(ctx, r)
					cancel()
					if err != nil {
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("Acquire: %v", err)
						}
						continue
					}
					if holders.Add(1) != 1 {
						t.Error("two callers hold the lock")
					}
					first, many := l.Tokens()
					if first <= last {
						t.Errorf("got tokens from %d after %d", first, last)
					}
					last = first + uint64(many) - 1
					holders.Add(-1)
					release(t, l.(*lease))
					n++
				}
			})
		})
		testenv.Eventually(t, func() bool { return len(keysOf(s)) == 0 }, "nothing is left")
	}
}
