package redisson

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// fight has drivers acquire and release the lock x, each the given number of
// times on average, and returns how often each driver held it.
func fight(tb testing.TB, drivers []*Driver, each int) []int {
	tb.Helper()
	return drivertest.Fight(tb, drivers, each, func() *driver.Request { return forLong("x") })
}

func openMany(tb testing.TB, n int, format string, args ...any) []*Driver {
	tb.Helper()
	drivers := make([]*Driver, n)
	for i := range drivers {
		drivers[i] = openURL(tb, format, args...)
	}
	return drivers
}

// TestCrowdAsksInTurn: of many waiting clients, about one tries after a
// release, and all are granted the lock equally often.
func TestCrowdAsksInTurn(t *testing.T) {
	t.Parallel()
	const n, each = 40, 10
	s := testenv.Redis(t)
	drivers := openMany(t, n, "redisson://%s", s.Addr)
	fight(t, drivers, 1) // all came together; connections and subscriptions
	var counts []int
	got := counted(s, func() { counts = fight(t, drivers, each) }, "evalsha", "subscribe")
	requests := float64(got["evalsha"]+got["subscribe"]) / (n * each)
	t.Logf("%.2f requests for each hand-over, Jain %.3f", requests, drivertest.Jain(counts))
	if requests > 10 { // without turns there are n; on an idle machine 3.3
		t.Errorf("requests for each hand-over: got %.2f", requests)
	}
	if got := drivertest.Jain(counts); got < 0.95 {
		t.Errorf("Jain's index of %v: got %.3f, want 0.95", counts, got)
	}
}

// waitInLine has each driver wait for the lock x, one after another, and
// returns when all have a place in the line.
func waitInLine(tb testing.TB, s *testenv.RedisServer, drivers []*Driver) []*waiter {
	tb.Helper()
	var waiters []*waiter
	for _, d := range drivers {
		waiters = append(waiters, wait(tb, d, forLong("x")))
		testenv.Eventually(tb, func() bool { return d.topics.Own(prefixName(channelPrefix, "x")) == 1 && placeOf(d) != 0 }, "the waiter has a place")
	}
	return waiters
}

// placeOf returns the ticket of a driver for the lock x.
func placeOf(d *Driver) int64 {
	t := d.topics.JoinActive(prefixName(channelPrefix, "x"), 0, false)
	if t == nil {
		return 0
	}
	defer t.Leave(false)
	return t.Ticket()
}

// TestDeadHeadOfTheLine: if the next waiters are dead, they delay the others
// for pauses, and not until the backstop.
func TestDeadHeadOfTheLine(t *testing.T) {
	for _, how := range []string{"frozen", "cut off", "gone"} {
		t.Run(how, func(t *testing.T) {
			s := testenv.Redis(t)
			link, addr := testenv.Wire(t, s.Addr)
			holder, drivers := openURL(t, "redisson://%s", s.Addr), append(openMany(t, 5, "redisson://%s", addr), openMany(t, 3, "redisson://%s", s.Addr)...)
			l := acquire(t, holder, forLong("x"))
			waiters := waitInLine(t, s, drivers)
			switch how {
			case "frozen":
				link.Hold(wire.Both)
			case "cut off":
				link.Cut()
			case "gone":
				for _, w := range waiters[:5] {
					w.cancel()
					<-w.done
				}
			}
			start := time.Now()
			release(t, l)
			releaseAll(t, waiters[5:])
			if took := time.Since(start); took > longestPause {
				t.Errorf("the other clients held the lock after %v", took)
			}
			for _, w := range waiters[:5] {
				w.cancel()
			}
			link.Heal()
			for _, w := range waiters[:5] {
				if <-w.done; w.err == nil {
					release(t, w.lease)
				}
			}
		})
	}
}

// TestShortWaitsBehindTheDead: calls that each wait for less time than the dead
// waiters of the line cost are granted a free lock anyway.
func TestShortWaitsBehindTheDead(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, openURL(t, "redisson://%s", s.Addr), forLong("x"))
	s.Do("HSET", "dsync_turn:{x}", "last", "1000000040", "granted", "1000000000")
	w := waitInLine(t, s, []*Driver{d})[0]
	w.cancel()
	<-w.done
	release(t, l)
	for start := time.Now(); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		l, err := d.Acquire(ctx, forLong("x"))
		cancel()
		if err == nil {
			release(t, l)
			return
		}
		if took := time.Since(start); took > hangGuard {
			t.Fatalf("the lock has been free for %v, but no client gets it: %v", took, err)
		}
	}
}

// longestPause is far above the cost of the dead waiters, and below the
// backstop.
const longestPause = 3 * time.Second

// TestReleaseThatIsTakenByAnother: if a Redisson client is granted the lock
// after a release, not all of the other clients try.
func TestReleaseThatIsTakenByAnother(t *testing.T) {
	const n = 20
	s := testenv.Redis(t)
	holder, drivers := openURL(t, "redisson://%s", s.Addr), openMany(t, n, "redisson://%s", s.Addr)
	l := acquire(t, holder, forLong("x"))
	waiters := waitInLine(t, s, drivers)
	got := counted(s, func() {
		s.Do("HSET", "x", "java:1", "1")
		s.Do("PEXPIRE", "x", "60000")
		s.Do("PUBLISH", prefixName(channelPrefix, "x"), "0")
		testenv.Eventually(t, func() bool { return s.Do("HEXISTS", "dsync_turn:{x}", "told") == int64(1) }, "the line is notified")
		time.Sleep(50 * time.Millisecond) // for clients that would try
	}, "evalsha")
	if got["evalsha"] > n/2 {
		t.Errorf("requests after a release that another client received: got %v", got)
	}
	s.Do("HDEL", "x", "java:1")
	release(t, l)
	releaseAll(t, waiters)
}

// releaseAll has each waiter release the lock once it is granted. The order is
// a hint, so any waiter may be first.
func releaseAll(tb testing.TB, waiters []*waiter) {
	tb.Helper()
	var wg sync.WaitGroup
	for _, w := range waiters {
		wg.Go(func() {
			if <-w.done; w.err != nil {
				tb.Errorf("Acquire after a wait: %v", w.err)
				return
			}
			release(tb, w.lease)
		})
	}
	wg.Wait()
}

// TestPassedBy: few of the waiters that the line has skipped try after each
// release.
func TestPassedBy(t *testing.T) {
	const n = 60
	s := testenv.Redis(t)
	holder, drivers := openURL(t, "redisson://%s", s.Addr), openMany(t, n, "redisson://%s", s.Addr)
	l := acquire(t, holder, forLong("x"))
	waiters := waitInLine(t, s, drivers)
	last := placeOf(drivers[n-1])
	s.Do("HSET", "dsync_turn:{x}", "granted", strconv.FormatInt(last, 10))
	s.Do("PUBLISH", prefixName(channelPrefix, "x"), fmt.Sprintf("-%d%06d", 60_000, last%1_000_000))
	got := counted(s, func() {
		release(t, l)
		releaseAll(t, waiters)
	}, "evalsha")["evalsha"]
	t.Logf("%d requests for %d hand-overs", got, n)
	if got > n*n/3 { // if all tried each time there would be more than n*n/2
		t.Errorf("requests for %d hand-overs: got %d", n, got)
	}
}

// TestLineOfNonsense: an invalid value in the key of the line keeps no client
// from the lock.
func TestLineOfNonsense(t *testing.T) {
	s := testenv.Redis(t)
	drivers := openMany(t, 4, "redisson://%s", s.Addr)
	for _, field := range []string{"last", "granted", "told", "at"} {
		l := acquire(t, drivers[0], forLong("x"))
		waiters := waitInLine(t, s, drivers[1:])
		s.Do("HSET", "dsync_turn:{x}", field, "nonsense")
		release(t, l)
		releaseAll(t, waiters)
		s.Do("DEL", "dsync_turn:{x}")
	}
}

// TestWaitingWithoutRightToTheLine: users with only the earlier rights wait as
// before.
func TestWaitingWithoutRightToTheLine(t *testing.T) {
	s := testenv.Redis(t)
	for missing, rights := range map[string][]string{
		"the command": {"~*", "-hmget"},
		"the key":     {"~x", "~dsync_fence:*"},
	} {
		password := testenv.Password()
		s.Do(append([]string{"ACL", "SETUSER", "old", "reset", "on", ">" + password, "&*", "+@all"}, rights...)...)
		drivers := openMany(t, 4, "redisson://old:%s@%s", password, s.Addr)
		fight(t, drivers, 10)
		if got := s.Do("EXISTS", "dsync_turn:{x}"); got != int64(0) {
			t.Errorf("without the right to %s there is a line", missing)
		}
	}
}
