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

// Options are the options of a Client. Nil means the defaults, and so does a zero field.
type Options struct {
	// TTL is how long the backend keeps a lock whose holder is gone, and hence how long others wait after a crash. A live holder
	// renews every third of the TTL. The default is 30 s, or the nearest TTL that the backend keeps; another value outside of the
	// backend's bounds is an error. A ttl parameter in the URL takes precedence.
	TTL time.Duration // at least 10 ms

	// Require makes New and Open fail if the backend promises less. A require parameter in the URL adds to Require.
	Require Require

	// Floor is added to each fencing token. A program that has moved here from another backend has a Floor above all tokens of that one,
	// so that resources which remember those do not refuse the program; `dsync migrate` tells it. All programs that lock the same names need
	// the same. A floor parameter in the URL takes precedence.
	Floor uint64

	// Note is a text for people, stored with each lock, where the backend can. The trace context of a traced holder is put behind the
	// text.
	Note string

	// MaxHold is the default of the option MaxHold. 0 means no bound: a lease is renewed until Unlock or a loss.
	MaxHold time.Duration

	// SlowHold has the Logger told of each lease without ExpireAfter that is held for longer. 0 means none.
	SlowHold time.Duration

	// Debug looks for leases that were forgotten: when the garbage collector finds that nothing in the program refers to a Lease any more,
	// and so nobody can unlock it, the lease ends with an error that matches ErrLost, and the Logger is told who called Lock. A context of
	// Lease.Context refers to its lease, also by contexts made of that one. Debug costs some µs and 5 allocations for each lease.
	Debug bool

	// TracerProvider and MeterProvider make the spans and metrics of the Client. Nil means the global ones of OpenTelemetry, also
	// if they are set later.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider

	// OmitNames and OmitOwners keep names and owners of locks out of spans and logs, and also the texts of errors, which may
	// contain either. Metrics never have them.
	OmitNames, OmitOwners bool

	// Class maps the name of a lock to one of few values, such as orders/42 to orders, which becomes the attribute dsync.lock.class
	// of the metrics. An empty value leaves the attribute out. Calls are concurrent, and must not block. Nil means no class.
	Class func(name string) string

	// Logger gets a record of what an operator has to see: the begin and the end
	// of an outage of the backend, at most once a minute, and locks that were
	// lost or removed by force, many of them in one record. It also gets a WARN
	// when a call has waited for 10 s for one lease of the same client, at most
	// once per name and minute; with Debug the WARN says who acquired the lease.
	// Nil means no logs, except that an Open and such a call without a deadline
	// log to slog.Default.
	Logger *slog.Logger
}

// LockOption is an option of one Lock, TryLock, Do or TryDo, or of all that is locked through a Locker of [With]. Of several that contradict
// each other the last one counts.
type LockOption struct {
	expireAfter, waitAtMost, maxHold, holdAtLeast *time.Duration
	mode                                          driver.Mode // Exclusive: no option
	permits, limit                                int         // of the mode Permit
}

// ExpireAfter makes a lease that ends by itself d after the grant, and is not renewed; see Lease.Extend. A re-entry with ExpireAfter ends
// then, or with the hold that it joined, whichever is earlier.
func ExpireAfter(d time.Duration) LockOption { return LockOption{expireAfter: &d} }

// WaitAtMost bounds the wait of Lock, and nothing else: unlike a deadline of the context, WaitAtMost does not reach into the work under
// the lock. Lock then returns an error that matches context.DeadlineExceeded, and ErrLocked if another owner held the name. WaitAtMost
// bounds TryLock, too, which waits for the answer of the backend alone. d is more than 0; of several the shortest counts.
func WaitAtMost(d time.Duration) LockOption { return LockOption{waitAtMost: &d} }

// HoldAtLeast keeps the name taken until d after the grant, however early the lease is unlocked and whatever becomes of the process: a
// job that takes a second is not done again by the next machine, whose clock is two seconds late.
//
//	lease, err := client.TryLock(ctx, "report", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(59*time.Minute))
//
// HoldAtLeast goes with ExpireAfter of the same time or a longer one, which is what the backend keeps to when the process is gone. Unlock
// ends the lease at once all the same, and Close does not free the name. Backends whose holds end with the client's session (ZooKeeper,
// PostgreSQL) refuse with errors.ErrUnsupported, and so does an Owner, and Read. ForceUnlock frees the name at any time.
func HoldAtLeast(d time.Duration) LockOption { return LockOption{holdAtLeast: &d} }

// A lease can outlive the work that it was taken for: the work hangs, or its code forgot to unlock. The lease would be renewed for as
// long as the process lives. MaxHold bounds that, SlowHold tells of it, and Debug finds leases that nobody can unlock any more.

// MaxHold bounds how long a lease is renewed: d after the grant the lease is lost, with an error that matches ErrLost, and the lock is
// free for others at once. MaxHold(0) is no bound. Options.MaxHold is the default of a Client. A lease with ExpireAfter has an end of
// its own, and MaxHold changes nothing there.
func MaxHold(d time.Duration) LockOption { return LockOption{maxHold: &d} }

// Read takes the name together with all others who read it, and with nobody else. If the backend does not offer modes (Info.ReadWrite),
// Lock returns errors.ErrUnsupported.
//
// Reads of one Client share one hold of the backend: a Read joins another one's hold for 100 ms after its grant, without a request, and
// all Reads that wait are granted together. A Read with ExpireAfter has a hold of its own. The loss of a hold is the loss of all its leases.
//
// Under a lease of the same name, of the same [Owner] or with the context of the lease (see Lease.Context), a Read is granted at once
// and without a request, whoever waits, and the name is held until both have ended. Under a Read nobody can Write or lock: Lock returns
// ErrDeadlock, and TryLock ErrLocked. Pass the context of the lease to code that reads the same name again: without it the second Read may
// wait behind a writer, who waits for the first.
func Read() LockOption { return LockOption{mode: driver.Read} }

// Write takes the name alone, as Lock does without a mode, and also keeps out users of the read-write lock of the backend's own libraries,
// such as RReadWriteLock of Redisson. Use Write where others use Read: between clients of dsync, Write, Read and Lock without either exclude
// each other. If the backend does not offer modes (Info.ReadWrite), Lock returns errors.ErrUnsupported.
func Write() LockOption { return LockOption{mode: driver.Write} }

// Permits takes n of limit permits of the name: at no time are more than limit of them held. Lock waits until n are free, and gets all of
// them or none; Unlock gives all of them back. The permits of a holder that is gone are free again after the TTL, and permits with
// ExpireAfter at the time that this says.
//
//	err = dsync.Do(ctx, dsync.With(client, dsync.Permits(1, 10)), "api/"+tenant, call) // at most ten calls at a time, over all machines
//
// The backend keeps the limit. The first Lock of a name says what it is; a later one that says another limit fails with [ErrLimit]. A limit
// of 0 is the one that is kept, for programs whose limit changes while they run: see [Client.SetLimit]. A limit of a Lock is forgotten some
// time after the last permit was given back.
//
// A call that waits for many permits is not overtaken by callers of its own Client with fewer, but for 100 ms, while holds are handed over as
// those of locks are. Later callers of other clients wait behind it where the backend has an order (Info.Permits.Order).
//
// A lease of permits has no token. Permits do not re-enter, not through an [Owner] either: each Lock takes further ones, and returns ErrDeadlock
// under contexts of leases of the same name (see Lease.Context) that leave too few. A name is used for permits or for locks: what becomes of the
// two beside each other is not promised. If the backend does not offer permits, Lock returns errors.ErrUnsupported.
func Permits(n, limit int) LockOption {
	return LockOption{mode: driver.Permit, permits: n, limit: limit}
}

// With returns a Locker that locks through l with these options, followed by those of the call. Do, LockAll and LockOn work with it as
// with any other.
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
		r.group = nil // each call has a hold of its own
	case driver.Read:
		if r.group = &c.readers; r.fixed {
			r.group = nil // its hold ends when it asked for
		}
	}
	return r
}

// checkRequest returns an error if the options of a call make no sense, or if
// the backend does not offer what they ask for.
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

// maxLimit is the highest limit, which every backend can keep.
const maxLimit = math.MaxInt32

// checkPermits returns an error if a request for permits makes no sense.
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

// checkLeave returns an error if a request with HoldAtLeast cannot be kept.
func (c *Client) checkLeave(r request) error {
	_, leaves := c.driver.(driver.Leaver)
	if m, ok := c.driver.(driver.MayLeave); ok && m.MayLeave() != nil {
		return fmt.Errorf("HoldAtLeast: %w", m.MayLeave())
	}
	switch {
	case r.atLeast < 0:
		return fmt.Errorf("HoldAtLeast(%v) is negative", r.atLeast)
	case !leaves:
		return fmt.Errorf("HoldAtLeast: backend %s keeps no hold without its client: %w", c.info.Name, errors.ErrUnsupported)
	case r.owner != nil:
		return fmt.Errorf("HoldAtLeast through an Owner: %w", errors.ErrUnsupported)
	case r.mode == driver.Read:
		return fmt.Errorf("HoldAtLeast of a Read: %w", errors.ErrUnsupported)
	case !r.fixed || r.ttl < r.atLeast:
		return fmt.Errorf("HoldAtLeast(%v) needs ExpireAfter of as much or more: without its holder the backend keeps the name no longer", r.atLeast)
	}
	return nil
}
