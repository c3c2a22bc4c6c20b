// Package clock has a monotonic clock that tells how long it stood still while
// the machine slept.
package clock

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Moment is a time on the monotonic clock, counted from Clock.Start.
type Moment = time.Duration

const (
	// minSleep is how far the clocks go apart before anybody looks for a sleep,
	// and the shortest sleep. The margin of a lease covers less.
	minSleep = time.Millisecond

	// maxSleeps is how many sleeps are told apart.
	maxSleeps = 64
)

// Clock is the monotonic clock of a client, and what this clock has missed: it
// stands still while the machine sleeps, and the leases on the backend go on.
// The wall clock, which a reading of the time has at no extra cost, gives the
// hint of a sleep; asleep tells the length of the sleep, where the system
// knows, and otherwise the lead of the wall clock over the monotonic one counts
// as the sleep.
//
// A sleep is noticed at the next reading. What was sent before has to be
// thought of as sent before the sleep.
type Clock struct {
	Start  time.Time
	wall   int64                        // Start on the wall clock, in nanoseconds
	asleep func() (time.Duration, bool) // how long the machine has slept so far; false if not known

	lead atomic.Int64 // of the wall clock over the monotonic one, as far as accounted for
	last atomic.Int64 // moment of the last sleep; math.MinInt64 before there is one

	mu     sync.Mutex
	known  bool          // what asleep said first was known
	before time.Duration // what asleep said when a sleep was last accounted for
	total  time.Duration // of all sleeps
	sleeps []sleep       // in order
}

// sleep stands for one or several sleeps of the machine, noticed at a Moment.
type sleep struct {
	at     Moment
	before time.Duration // of all sleeps noticed earlier
}

// New returns a clock that starts now.
func New() *Clock {
	now := time.Now()
	c := &Clock{Start: now, wall: now.UnixNano(), asleep: asleep}
	c.last.Store(math.MinInt64)
	c.before, c.known = c.asleep()
	return c
}

// Now reads the clock.
func (c *Clock) Now() Moment {
	now, ahead := c.read()
	if ahead >= minSleep || -ahead >= minSleep {
		now = c.apart()
	}
	return now
}

// Plain reads the clock without a look for a sleep, at half the cost, for times
// on which no lease depends.
func (c *Clock) Plain() Moment { return time.Since(c.Start) }

// read returns the time, and how far the wall clock is ahead of what is
// accounted for.
func (c *Clock) read() (now Moment, ahead time.Duration) {
	t := time.Now()
	now = t.Sub(c.Start)
	return now, time.Duration(t.UnixNano() - c.wall - int64(now) - c.lead.Load())
}

// apart reads the clock, and finds out whether the machine has slept when the
// clocks have gone apart. A step of the wall clock, or one that is slewed, does
// the same.
func (c *Clock) apart() Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, ahead := c.read()
	if ahead < minSleep && -ahead < minSleep {
		return now // another reader was here
	}
	slept := ahead
	if total, ok := c.asleep(); ok && c.known {
		if slept = total - c.before; slept >= minSleep {
			c.before = total
		}
	}
	if slept >= minSleep {
		c.slept(now, slept)
	}
	c.lead.Add(int64(ahead)) // last: whoever finds this lead finds the sleep too
	return now
}

// slept enters a sleep. Called with mu held.
func (c *Clock) slept(now Moment, d time.Duration) {
	if n := len(c.sleeps); n > 0 {
		now = max(now, c.sleeps[n-1].at)
	}
	if len(c.sleeps) == maxSleeps {
		c.merge(now)
	}
	c.sleeps = append(c.sleeps, sleep{now, c.total})
	c.total += d
	c.last.Store(int64(now))
}

// merge makes one record of two neighbours, with the effect of both for
// requests that were sent between them: of the two that are closest to each
// other in relation to how long ago they were. Called with mu held.
func (c *Clock) merge(now Moment) {
	best, least := 0, math.Inf(1)
	for i, from := 0, Moment(0); i+1 < len(c.sleeps); i, from = i+1, c.sleeps[i].at {
		to := c.sleeps[i+1].at
		if cost := float64(to-from) / float64(now-to+1); cost < least {
			best, least = i, cost
		}
	}
	c.sleeps[best+1].before = c.sleeps[best].before
	c.sleeps = slices.Delete(c.sleeps, best, best+1)
}

// Missed returns how long the machine may have slept since a request was sent,
// as far as noticed.
func (c *Clock) Missed(since Moment) time.Duration {
	if int64(since) > c.last.Load() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.sleeps, since, func(s sleep, t Moment) int { return cmp.Compare(s.at, t) })
	if i == len(c.sleeps) {
		return 0
	}
	return c.total - c.sleeps[i].before
}

// LastSleep returns when the last sleep was noticed, and a time before Start if
// there was none.
func (c *Clock) LastSleep() Moment { return Moment(c.last.Load()) }

// Sleep has the clock find a sleep of the machine at its next reading, in
// tests. Known reports whether the system knows how long the sleep was.
func (c *Clock) Sleep(d time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.asleep
	c.asleep = func() (time.Duration, bool) {
		slept, ok := before()
		return slept + d, ok && known
	}
	c.StepWall(d)
}

// StepWall moves the wall clock, in tests.
func (c *Clock) StepWall(d time.Duration) { c.lead.Add(-int64(d)) }
