// Package redisdriver is the common part of the Redis drivers: the life cycle
// of their calls, the term of a lease, scripts, and the meaning of server
// errors.
package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/linked"
)

// Late covers requests that are still on their way when their client is gone.
// The keys themselves expire after their TTL.
const Late = time.Second

// Lease is a pointer to a lease of a driver.
type Lease[L any] interface {
	linked.Element[L]
	driver.Lease
	Forget() // the driver ignores the hold from now on
}

// Life is the lifecycle of a driver, which counts its Acquires and Releases as
// calls, with the clock of the driver and the leases that are held.
type Life[L any, P Lease[L]] struct {
	*lifecycle.Lifecycle
	epoch time.Time // times inside a driver are nanoseconds since epoch, on the monotonic clock

	mu     sync.Mutex
	leases linked.List[L, P]
}

// NewLife returns the Life of a driver that is being opened.
func NewLife[L any, P Lease[L]]() *Life[L, P] {
	return &Life[L, P]{Lifecycle: lifecycle.New(), epoch: time.Now()}
}

// Now returns the time on the driver's clock.
func (f *Life[L, P]) Now() int64 { return int64(time.Since(f.epoch)) }

// At converts a time on the driver's clock for package driver.
func (f *Life[L, P]) At(t int64) time.Time { return f.epoch.Add(time.Duration(t)) }

// Acquire wraps acquire for driver.Driver.Acquire.
func (f *Life[L, P]) Acquire(ctx context.Context, r *driver.Request, acquire func(context.Context, *driver.Request) (P, error)) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := f.Enter(); err != nil {
		return nil, err
	}
	defer f.Leave()
	l, err := acquire(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case f.Open().Err() == nil:
		f.mu.Lock()
		f.leases.Add(l)
		f.mu.Unlock()
		return l, nil
	}
	err = driver.ErrClosed // the lock was granted while Close began
	if releaseErr := l.Release(ctx); errors.Is(releaseErr, driver.ErrUnknown) {
		err = fmt.Errorf("%w: %w", err, releaseErr)
	}
	return nil, err
}

// BeginRelease removes a lease from the driver's leases and begins a call that
// Close waits for, because Close must know the ghosts of the release.
func (f *Life[L, P]) BeginRelease(l P) {
	f.EnterLate()
	f.Remove(l)
}

// Remove removes a lease from the driver's leases.
func (f *Life[L, P]) Remove(l P) {
	f.mu.Lock()
	f.leases.Remove(l)
	f.mu.Unlock()
}

// TakeAll removes all leases from the driver.
func (f *Life[L, P]) TakeAll() []P {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leases.Take()
}

// Abandon implements driver.Leaver.Leave. It sends the last renewal of a lease,
// and repeats it like a release. Close waits for it and does not end the hold.
func (f *Life[L, P]) Abandon(ctx context.Context, l P, ttl time.Duration) error {
	f.BeginRelease(l)
	defer f.Leave()
	err := f.Repeat(ctx, func() (again bool, err error) {
		err = l.Renew(ctx, ttl)
		return lifecycle.Transient(err), err
	})
	l.Forget()
	return err
}

// Hold is the common part of the drivers' leases.
type Hold struct {
	Mu      sync.Mutex
	Phase   Phase
	Term    Term // on the driver's clock
	Awaited bool // other clients wait for the name
}

// Phase is the progress of a lease.
type Phase int8

// The phases. Doubted and Removed are phases of redisson only.
const (
	Wanted Phase = iota // not granted yet
	Held
	Ending  // Release was called, or the attempt was given up; the lease is never renewed again
	Doubted // a request to release the hold is unanswered
	Removed // removed by the cleaner after a failed Release
	Over    // the outcome is known
)

// Contended implements driver.ContentionReporter.
func (h *Hold) Contended() bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Awaited
}

// IsHeld reports whether the lease was granted and has not ended.
func (h *Hold) IsHeld() bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Phase == Held
}

// Forget ends the lease in this process only.
func (h *Hold) Forget() {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Phase = Over
}

// Begin is Term.Begin, unless the lease is not held.
func (h *Hold) Begin(at int64, ttl time.Duration) (r Renewal, ok bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Phase == Held {
		r, ok = h.Term.Begin(at, ttl)
	}
	return r, ok
}

// Term is the lifetime of a hold. Its methods are called under the mutex of the
// lease, except for Expires.
type Term struct {
	expires  atomic.Int64
	lasts    int64 // the end of the hold if every request to renew it is executed
	renewing int32 // renewals that were sent and not answered
	shortest int64 // the shortest TTL among these renewals
}

// Renewal is a request to renew a lease.
type Renewal struct {
	at, ttl int64 // when it was sent, and the TTL that it requests
	before  int64 // Term.Expires before the renewal
}

// Shortens reports whether the renewal shortens the hold.
func (r Renewal) Shortens() bool { return r.ttl > 0 && r.at+r.ttl < r.before }

// Expires returns the end of the lease.
func (t *Term) Expires() int64 { return t.expires.Load() }

// Grant sets the end of the lease.
func (t *Term) Grant(end int64) {
	t.expires.Store(end)
	t.Extend(end)
}

// Extend records that a request on its way can extend the hold until end.
func (t *Term) Extend(end int64) { t.lasts = max(t.lasts, end) }

// Over returns the time by which nothing is left of the hold.
func (t *Term) Over() int64 { return t.lasts + int64(Late) }

// Begin records that a renewal is about to be sent, unless the lease has ended.
// From here on the hold may end as early as this renewal requests, regardless
// of its outcome. A renewal with a TTL of 0 only checks for the hold.
func (t *Term) Begin(at int64, ttl time.Duration) (r Renewal, ok bool) {
	r = Renewal{at, int64(ttl), t.Expires()}
	if at >= r.before || ttl == 0 {
		return r, at < r.before
	}
	if t.renewing == 0 || r.ttl < t.shortest {
		t.shortest = r.ttl
	}
	t.renewing++
	t.Extend(at + r.ttl)
	t.expires.Store(min(r.before, at+r.ttl))
	return r, true
}

// Renewed handles the response that a renewal was executed. Overlapping
// renewals may have been executed in any order, and an unanswered renewal at
// any time, so the shortest of them counts.
func (t *Term) Renewed(r Renewal, now int64) error {
	expires := t.Expires()
	switch {
	case r.ttl == 0:
		return nil
	case now >= expires:
		return fmt.Errorf("%w: the answer came after the end of the lease", driver.ErrUnknown)
	}
	t.expires.Store(max(expires, r.at+min(r.ttl, t.shortest)))
	return nil
}

// Answered ends an answered renewal, after Renewed.
func (t *Term) Answered(r Renewal) {
	if r.ttl > 0 {
		t.renewing--
	}
}

// Refused ends a renewal that was not executed and so does not shorten the
// hold.
func (t *Term) Refused(r Renewal, now int64) {
	expires := t.Expires()
	if t.Answered(r); t.renewing == 0 && expires == r.at+r.ttl && now < expires {
		t.expires.Store(max(expires, r.before))
	}
}

// Milliseconds rounds a TTL up, so that no server ends a lease before Expires.
func Milliseconds(ttl time.Duration) int64 {
	return int64((ttl + time.Millisecond - 1) / time.Millisecond)
}

// TTLText formats a TTL for a script.
func TTLText(ttl time.Duration) string { return strconv.FormatInt(Milliseconds(ttl), 10) }
