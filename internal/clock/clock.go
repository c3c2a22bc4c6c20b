// Package clock provides a monotonic clock that also measures how long it stood
// still while the machine slept.
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
	// minSleep is the minimum difference between the clocks that counts as a
	// sleep, and so the length of the shortest recorded sleep. The margin of a
	// lease covers shorter ones.
	minSleep = time.Millisecond

	// maxSleeps is the number of sleeps that are recorded separately.
	maxSleeps = 64
)

// Clock is the monotonic clock of a client, and the time that this clock has
// missed. The clock stands still while the machine sleeps, but the leases on
// the backend continue. The wall clock, which is read with the time at no extra
// cost, indicates a sleep. asleep returns the length of the sleep, if the
// system knows it. If the system does not, the lead of the wall clock over the
// monotonic clock counts as the length of the sleep.
//
// A sleep is noticed at the next reading. Requests that were sent before that
// reading must be treated as sent before the sleep.
type Clock struct {
	Start time.Time
	wall  int64 // Start on the wall clock, in nanoseconds
	// how long the machine has slept so far; false if that is unknown
	asleep func() (time.Duration, bool)

	lead atomic.Int64 // lead of the wall clock over the monotonic one, as far as it is accounted for
	last atomic.Int64 // moment of the last sleep; math.MinInt64 before there is one

	mu     sync.Mutex
	known  bool          // whether the first result of asleep was known
	before time.Duration // the result of asleep when a sleep was last accounted for
	total  time.Duration // sum of all sleeps
	sleeps []sleep       // in order
}

// sleep represents one or several sleeps of the machine, noticed at a Moment.
type sleep struct {
	at     Moment
	before time.Duration // sum of all sleeps noticed earlier
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

// Plain reads the clock without checking for a sleep, at half the cost, for
// times on which no lease depends.
func (c *Clock) Plain() Moment { return time.Since(c.Start) }

// read returns the time, and the lead of the wall clock that is not accounted
// for yet.
func (c *Clock) read() (now Moment, ahead time.Duration) {
	t := time.Now()
	now = t.Sub(c.Start)
	return now, time.Duration(t.UnixNano() - c.wall - int64(now) - c.lead.Load())
}

// apart reads the clock after the clocks have diverged, and determines whether
// the machine has slept. A stepped or slewed wall clock also makes them
// diverge.
func (c *Clock) apart() Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, ahead := c.read()
	if ahead < minSleep && -ahead < minSleep {
		return now // another reader has already handled this
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
	c.lead.Add(int64(ahead)) // last, so that a reader that finds this lead also finds the sleep
	return now
}

// slept records a sleep. Called with mu held.
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

// merge merges two neighboring records into one, with the effect of both for
// requests that were sent between them. It chooses the two that are closest to
// each other in relation to their age. Called with mu held.
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

// LastSleep returns the time at which the last sleep was noticed, and a time
// before Start if there was none.
func (c *Clock) LastSleep() Moment { return Moment(c.last.Load()) }

// Sleep makes the clock find a sleep of the machine at its next reading, in
// tests. known reports whether the system knows the length of the sleep.
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
