package dsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Options are the options of a Client. Nil means the defaults, and so does a
// zero field.
type Options struct {
	// TTL is how long the backend keeps a lock whose holder is gone. Other
	// clients wait for this long after a crash. A live holder renews every
	// third of the TTL. The default is 30 s, or the nearest TTL that the
	// backend supports. A TTL outside the backend's bounds is an error. The
	// parameter ttl of the URL takes precedence.
	TTL time.Duration // at least 10 ms

	// Require makes New and Open fail if the backend promises less. The
	// parameter require of the URL adds to it.
	Require Require

	// Floor is added to each fencing token. A program that has moved from
	// another backend needs a Floor above all tokens of that backend, because
	// resources remember those tokens. `dsync migrate` prints a suitable Floor.
	// All programs that lock the same names need the same Floor. The parameter
	// floor of the URL takes precedence.
	Floor uint64

	// Note is a text for people that is stored with each lock, if the
	// backend can store it. The trace context of a traced holder follows
	// the text.
	Note string

	// MaxHold is the default of the option MaxHold. 0 means no bound: a lease
	// is renewed until Unlock or a loss.
	MaxHold time.Duration

	// SlowHold makes the Logger report each lease without ExpireAfter that
	// is held for longer. 0 means no report.
	SlowHold time.Duration

	// Debug finds forgotten leases. When the garbage collector finds that the
	// program no longer has a reference to a Lease, the lease ends with an
	// error that matches ErrLost. The Logger then reports the caller of Lock. A
	// context of Lease.Context, and contexts made from it, refer to its lease.
	// Debug costs some µs and 5 allocations for each lease.
	Debug bool

	// TracerProvider and MeterProvider receive the spans and metrics of the
	// Client. Nil means the global provider of OpenTelemetry, even if it is set
	// later.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider

	// OmitNames and OmitOwners keep names and owners of locks out of spans
	// and logs. They also omit the texts of errors, which may contain
	// either. Metrics never contain names or owners.
	OmitNames, OmitOwners bool

	// Class maps the name of a lock to one of a few values, such as
	// orders/42 to orders. The value becomes the attribute dsync.lock.class
	// of the metrics, unless it is empty. Class is called concurrently and must
	// not block. Nil means no class.
	Class func(name string) string

	// Logger receives the records that an operator should see. It reports the
	// start and the end of an outage of the backend, at most once a minute. It
	// also reports locks that were lost or removed by force, batched into one
	// record. It also gets a WARN when a call has waited for 10 s for one lease
	// of the same client, at most once per name and minute. With Debug the WARN
	// includes the caller that acquired the lease. If Logger is nil, nothing is
	// logged, except that an Open without a deadline and a waiting call without
	// a deadline log to slog.Default.
	Logger *slog.Logger
}

// LockOption is an option of one Lock, TryLock, Do or TryDo, or of all calls
// through a Locker of [With]. If options contradict each other, the last one
// counts.
type LockOption struct {
	expireAfter, waitAtMost, maxHold, holdAtLeast *time.Duration
	mode                                          driver.Mode // Exclusive: no option
	permits, limit                                int         // of the mode Permit
}

// ExpireAfter makes a lease that ends d after the grant and is not renewed (see
// [Lease.Extend]). A re-entry with ExpireAfter ends at that time, or when the
// hold that it joined ends, whichever is earlier.
func ExpireAfter(d time.Duration) LockOption { return LockOption{expireAfter: &d} }

// WaitAtMost bounds the wait of Lock. Unlike a deadline of the context, it does
// not bound the work under the lock. After d, Lock returns an error that
// matches context.DeadlineExceeded, and ErrLocked if another owner held the
// name. WaitAtMost also bounds TryLock, which waits only for the backend's
// response. d is more than 0. The shortest of several counts.
func WaitAtMost(d time.Duration) LockOption { return LockOption{waitAtMost: &d} }

// HoldAtLeast keeps the name taken until d after the grant, even if the lease
// is unlocked earlier or the process ends. With it, a job that takes a second
// is not repeated by a machine whose clock is two seconds late:
//
//	lease, err := client.TryLock(ctx, "report", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(59*time.Minute))
//
// HoldAtLeast requires ExpireAfter with the same time or longer, which the
// backend enforces when the process is gone. Unlock still ends the lease
// immediately. Close does not free the name, but ForceUnlock does. Calls
// through an Owner and Reads refuse the option with errors.ErrUnsupported. So
// do ZooKeeper and PostgreSQL's advisory locks, which do not support it.
func HoldAtLeast(d time.Duration) LockOption { return LockOption{holdAtLeast: &d} }

// A lease can outlive its work, because the work hangs or does not unlock. The
// lease would then be renewed for as long as the process lives. MaxHold bounds
// the renewals, SlowHold reports such leases, and Debug finds leases that can
// no longer be unlocked.

// MaxHold bounds how long a lease is renewed. If the lease is still held d
// after the grant, it is lost with an error that matches ErrLost, and the lock
// is free immediately. MaxHold(0) means no bound. Options.MaxHold is the
// default of a Client. MaxHold does not affect a lease with ExpireAfter.
func MaxHold(d time.Duration) LockOption { return LockOption{maxHold: &d} }

// Read shares the name with other readers, and excludes all other holders. If
// the backend does not support it (Info.ReadWrite), Lock returns
// errors.ErrUnsupported.
//
// Reads of one Client share one hold of the backend. A Read joins another
// Read's hold for 100 ms after its grant, without a request, and all waiting
// Reads are granted together. A Read with ExpireAfter has its own hold. If a
// hold is lost, all its leases are lost.
//
// Under a lease of the same name, of the same [Owner] or with the context of
// the lease (see [Lease.Context]), a Read is granted immediately and without a
// request. The name is then held until both have ended. Under a Read, Write and
// Lock are refused: Lock returns ErrDeadlock, and TryLock ErrLocked. Pass the
// context of the lease to code that reads the same name again. Without it the
// second Read may wait behind a writer that is waiting for the first.
func Read() LockOption { return LockOption{mode: driver.Read} }

// Write excludes all other holders, as Lock does without a mode. It also
// excludes users of the read-write lock of the backend's own libraries, such as
// Redisson's RReadWriteLock. Use Write if other calls use Read. Between clients
// of dsync, Write, Read and Lock without a mode exclude each other. If the
// backend does not support it (Info.ReadWrite), Lock returns
// errors.ErrUnsupported.
func Write() LockOption { return LockOption{mode: driver.Write} }

// Permits acquires n of limit permits of the name. At no time are more than
// limit permits held. Lock waits until n permits are free, and acquires all of
// them or none. Unlock releases all of them. The permits of a vanished holder
// are free after the TTL, or at the end of ExpireAfter.
//
//	err = dsync.Do(ctx, dsync.With(client, dsync.Permits(1, 10)), "api/"+tenant, call) // at most ten calls at a time, over all machines
//
// The limit is stored on the backend. The first Lock of a name sets it, and a
// Lock that passes a different limit fails with [ErrLimit]. A limit of 0 means
// the stored limit, for programs whose limit changes while they run (see
// [Client.SetLimit]). The limit of a Lock is forgotten some time after the last
// permit is released.
//
// A call that waits for many permits may be overtaken by calls of its own
// Client for fewer permits, for at most 100 ms. Later callers of other clients
// wait behind it if the backend has an order (Info.Permits.Order).
//
// A lease of permits has no token. Permits are not reentrant, even through an
// [Owner]: each Lock acquires more permits. If ctx belongs to leases of the
// same name (see [Lease.Context]) that leave too few permits, Lock returns
// ErrDeadlock. Use a name for permits or for locks, not for both. If the
// backend does not support permits, Lock returns errors.ErrUnsupported.
func Permits(n, limit int) LockOption {
	return LockOption{mode: driver.Permit, permits: n, limit: limit}
}

// With returns a Locker that locks through l with these options, followed by
// the options of the call. Do, Elect, LockAll and LockOn accept it.
func With(l Locker, opts ...LockOption) Locker { return &optioned{l, slices.Clone(opts)} }

// optioned is a Locker with options.
type optioned struct {
	locker Locker
	opts   []LockOption
}

// Lock implements [Locker].
func (o *optioned) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.locker.Lock(ctx, name, slices.Concat(o.opts, opts)...)
}

// TryLock implements Locker.
func (o *optioned) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.locker.TryLock(ctx, name, slices.Concat(o.opts, opts)...)
}

// newRequest returns the request of a call with these options.
func (c *Client) newRequest(owner *Owner, opts []LockOption) request {
	r := request{owner: owner, group: owner, ttl: c.ttl, maxHold: c.maxHold}
	for _, o := range opts {
		if o.expireAfter != nil {
			r.ttl, r.fixed = *o.expireAfter, true
		}
		if o.maxHold != nil {
			r.maxHold = *o.maxHold
		}
		if o.mode != driver.Exclusive {
			r.mode, r.permits, r.limit = o.mode, o.permits, o.limit
		}
		if o.holdAtLeast != nil {
			r.atLeast = *o.holdAtLeast
		}
	}
	switch r.mode {
	case driver.Permit:
		r.group = nil // each call has its own hold
	case driver.Read:
		if r.group = &c.readers; r.fixed {
			r.group = nil // its hold ends at the requested time
		}
	}
	return r
}

// checkRequest returns an error if the options of a call are invalid, or if the
// backend does not support them.
func (c *Client) checkRequest(r request) error {
	if r.maxHold < 0 {
		return fmt.Errorf("MaxHold(%v) is less than 0", r.maxHold)
	}
	if !c.info.Offers(r.mode) {
		return c.info.CheckMode(r.mode)
	}
	if r.mode == driver.Permit {
		if err := checkPermits(r); err != nil {
			return err
		}
	}
	if r.fixed {
		if err := c.checkTTL(r.ttl); err != nil {
			return err
		}
	}
	if r.atLeast != 0 {
		return c.checkLeave(r)
	}
	return nil
}

// maxLimit is the highest limit. Every backend can store it.
const maxLimit = math.MaxInt32

// checkPermits returns an error if a request for permits is invalid.
func checkPermits(r request) error {
	switch {
	case r.permits < 1:
		return fmt.Errorf("Permits(%d, %d): the number is not 1 or more", r.permits, r.limit)
	case r.limit < 0 || r.limit > maxLimit:
		return fmt.Errorf("Permits(%d, %d): the limit is not between 0 and %d", r.permits, r.limit, maxLimit)
	case r.permits > maxLimit || r.limit > 0 && r.permits > r.limit:
		return fmt.Errorf("Permits(%d, %d): the number is above the limit", r.permits, r.limit)
	}
	return nil
}

// checkLeave returns an error if the HoldAtLeast of a request cannot be
// honored.
func (c *Client) checkLeave(r request) error {
	_, leaves := c.driver.(driver.Leaver)
	if m, ok := c.driver.(driver.MayLeave); ok && m.MayLeave() != nil {
		return fmt.Errorf("HoldAtLeast: %w", m.MayLeave())
	}
	switch {
	case r.atLeast < 0:
		return fmt.Errorf("HoldAtLeast(%v) is negative", r.atLeast)
	case !leaves:
		return fmt.Errorf("HoldAtLeast: backend %s cannot keep a hold without its client: %w", c.info.Name, errors.ErrUnsupported)
	case r.owner != nil:
		return fmt.Errorf("HoldAtLeast through an Owner: %w", errors.ErrUnsupported)
	case r.mode == driver.Read:
		return fmt.Errorf("HoldAtLeast of a Read: %w", errors.ErrUnsupported)
	case !r.fixed || r.ttl < r.atLeast:
		return fmt.Errorf("HoldAtLeast(%v) needs ExpireAfter with at least that time: without its holder, the backend keeps the name no longer", r.atLeast)
	}
	return nil
}
