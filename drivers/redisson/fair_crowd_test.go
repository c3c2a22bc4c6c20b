package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// crowd is a set of Acquire calls of one driver that wait for the lock x and
// are canceled together.
type crowd struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

// waitInCrowd begins n calls and returns when all of them are in the queue and
// listen.
func waitInCrowd(tb testing.TB, s *testenv.RedisServer, d *Driver, n int) *crowd {
	tb.Helper()
	c := &crowd{}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	before := len(lineOfX(s))
	for range n {
		c.wg.Go(func() {
			l, err := d.Acquire(ctx, request("x"))
			if err == nil {
				err = l.Release(context.Background())
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.errs = append(c.errs, err)
		})
	}
	tb.Cleanup(c.leave)
	testenv.Eventually(tb, func() bool { return len(lineOfX(s)) == before+n && d.direct.busy.Load() == 0 }, "all are in the queue")
	return c
}

// leave cancels all calls and waits until they have returned.
func (c *crowd) leave() {
	c.cancel()
	c.wg.Wait()
}

// scriptCommands are the commands that the scripts of the fair lock run for
// departing waiters.
var scriptCommands = []string{"evalsha", "eval", "hdel", "lpos", "lrem", "zrem", "lindex", "zscore", "zadd", "zincrby", "zmscore", "lrange"}

// TestFairCrowdLeaves: waiters that give up together leave with few requests
// that take little work, regardless of the queue behind them.
func TestFairCrowdLeaves(t *testing.T) {
	const n = 500
	for _, behind := range []int{0, 300} {
		t.Run(fmt.Sprint(behind), func(t *testing.T) {
			s := testenv.Redis(t)
			d := openURL(t, "redisson://%s?fair=true", s.Addr)
			l := acquire(t, d, forLong("x"))
			c := waitInCrowd(t, s, d, n)
			for i := range behind {
				addWaiter(s, fmt.Sprint("java:", i), time.Duration(n+i)*5*time.Minute)
			}
			got := counted(s, c.leave, scriptCommands...)
			testenv.Eventually(t, func() bool { return len(lineOfX(s)) == behind }, "all have left")
			t.Log(got)
			requests, work := got["evalsha"]+got["eval"], int64(0)
			for command, times := range got {
				if !strings.HasPrefix(command, "eval") {
					work += times
				}
			}
			if requests > n/2 { // how many leave together depends on the machine
				t.Errorf("%d waiters left by %d requests", n, requests)
			}
			if work > 20*n {
				t.Errorf("%d commands in scripts for %d waiters", work, n)
			}
			s.Do("DEL", queueOfX, timesOfX)
			release(t, l)
		})
	}
}

// TestFairWaitersLeaveOneByOne: each waiter belongs to its own process, so no
// two leave together. In any order of departure, the times of the waiters
// behind stay late enough for their turn, but not much later.
func TestFairWaitersLeaveOneByOne(t *testing.T) {
	t.Parallel()
	const n, behind, holdTTL = 200, 100, time.Minute
	for _, order := range []string{"from the front", "from the back", "all over"} {
		t.Run(order, func(t *testing.T) {
			s := testenv.Redis(t)
			d := openURL(t, "redisson://%s?fair=true", s.Addr)
			l := acquire(t, d, forLong("x"))
			var holds []string
			in := holdTTL + 5*time.Minute
			for i := range n + behind {
				hold := fmt.Sprint("java:", 1000+i)
				addWaiter(s, hold, in)
				in += 5 * time.Minute
				if i < n {
					holds = append(holds, hold)
				}
			}
			switch order {
			case "from the back":
				slices.Reverse(holds)
			case "all over":
				rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { holds[i], holds[j] = holds[j], holds[i] })
			}
			before := s.Commands()
			sc := d.releaseCall(request("x"), "")
			for _, hold := range holds {
				args := append([]string{"EVAL", fairReleaseScript.Text, strconv.Itoa(len(sc.Keys))}, sc.Keys...)
				s.Do(append(append(args, sc.Args[:len(sc.Args)-1]...), hold)...)
			}
			after := s.Commands()
			moves := after["zmscore"] - before["zmscore"] + after["zincrby"] - before["zincrby"]
			if moves > n/2 {
				t.Errorf("the waiters behind were moved %d times when %d left", moves, n)
			}
			line := lineOfX(s)
			if len(line) != behind {
				t.Fatalf("queue: got %d, want %d", len(line), behind)
			}
			last := holdTTL
			for i, hold := range line {
				left := leftOfX(t, s, hold)
				if left < last+15*time.Second-2*time.Second {
					t.Fatalf("time of waiter %d: %v, of the waiter before it: %v", i, left, last)
				}
				if most := holdTTL + time.Duration(i+1)*5*time.Minute + behind*5*time.Minute/4; left > most {
					t.Fatalf("time of waiter %d: %v, want at most %v", i, left, most)
				}
				last = left
			}
			s.Do("DEL", queueOfX, timesOfX)
			release(t, l)
		})
	}
}

// TestFairShortDeadlines: calls that end while their first request is on its
// way leave nothing, and do not keep the lock from others.
func TestFairShortDeadlines(t *testing.T) {
	const n = 2000
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, d, forLong("x"))
	parallel(8, func(int) {
		for i := range n / 8 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%5)*time.Millisecond/2)
			if held, err := d.Acquire(ctx, request("x")); err == nil {
				release(t, held)
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Acquire: got %v, want DeadlineExceeded", err)
			}
			cancel()
		}
	})
	testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 0 }, "all have left")
	release(t, l)
	release(t, acquire(t, d, request("x")))
}

// TestFairOutage: waiters that are canceled while the server is unreachable
// leave the queue when it is back, however long that took.
func TestFairOutage(t *testing.T) {
	const n = 5
	for _, how := range []string{"cut", "frozen"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := testenv.Redis(t)
			link, addr := testenv.Wire(t, s.Addr)
			d := openURL(t, "redisson://%s?fair=true", addr)
			other := openURL(t, "redisson://%s?fair=true", s.Addr)
			long := request("x")
			long.TTL = time.Minute
			l := acquire(t, other, long)
			var waiters []*waiter
			for range n {
				r := request("x")
				r.TTL = time.Second
				waiters = append(waiters, wait(t, d, r))
			}
			testenv.Eventually(t, func() bool { return len(lineOfX(s)) == n && d.direct.busy.Load() == 0 }, "all are in the queue")
			if how == "cut" {
				link.Cut()
			} else {
				link.Hold(wire.Both)
			}
			for _, w := range waiters {
				w.cancel()
				if <-w.done; !errors.Is(w.err, driver.ErrUnknown) {
					t.Errorf("Acquire canceled during an outage: got %v, want ErrUnknown", w.err)
				}
			}
			d.awaitAge(t, 4*time.Second) // longer than their TTL and the margin added to it
			link.Heal()
			testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 0 }, "all have left the queue")
			release(t, l)
		})
	}
}

// awaitAge waits until everything that the cleaner was given so far would have
// expired, if it were a hold.
func (d *Driver) awaitAge(tb testing.TB, age time.Duration) {
	end := d.life.Now() + int64(age)
	testenv.Eventually(tb, func() bool { return d.life.Now() > end }, "time passes")
}

// TestFairCloseTellsOfPlaces: During an outage, Close requests the removal of
// its waiters' places until its context ends, and then reports that they are
// left.
func TestFairCloseTellsOfPlaces(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	d := openURL(t, "redisson://%s?fair=true", addr)
	other := openURL(t, "redisson://%s?fair=true", s.Addr)
	l := acquire(t, other, request("x"))
	r := request("x")
	r.TTL = time.Second
	w := wait(t, d, r)
	testenv.Eventually(t, func() bool { return len(lineOfX(s)) == 1 && d.direct.busy.Load() == 0 }, "the waiter is in the queue")
	link.Cut()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	if err := d.Close(ctx); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: got %v, want ErrUnknown when its context ends", err)
	}
	if <-w.done; w.err == nil {
		t.Error("a waiter without a server got the lock")
	}
	s.Do("DEL", queueOfX, timesOfX)
	release(t, l)
}

// BenchmarkFairCrowdLeaves measures 1,500 waiters that are canceled together.
// The metrics are the server time of the longest request, the server time of
// all requests, and the time that the holder's release and the next grant took
// in the meantime.
func BenchmarkFairCrowdLeaves(b *testing.B) {
	const n = 1500
	s := testenv.Redis(b, "--slowlog-log-slower-than", "100", "--slowlog-max-len", "100000")
	d, other := openURL(b, "redisson://%s?fair=true", s.Addr), openURL(b, "redisson://%s?fair=true", s.Addr)
	var longest, sum, next time.Duration
	for b.Loop() {
		r := request("x")
		r.TTL = time.Minute
		l := acquire(b, other, r)
		c := waitInCrowd(b, s, d, n)
		s.Do("SLOWLOG", "RESET")
		gone := make(chan struct{})
		start := time.Now()
		go func() { // ends when all have left
			defer close(gone)
			c.leave()
		}()
		release(b, l)
		release(b, acquire(b, other, request("x")))
		next += time.Since(start)
		<-gone
		testenv.Eventually(b, func() bool { return len(lineOfX(s)) == 0 }, "all have left")
		for _, entry := range s.Do("SLOWLOG", "GET", "100000").([]any) {
			took := time.Duration(entry.([]any)[2].(int64)) * time.Microsecond
			longest, sum = max(longest, took), sum+took
		}
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "longest-ms")
	b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), "server-ms/op")
	b.ReportMetric(next.Seconds()*1000/float64(b.N), "next-ms/op")
}
