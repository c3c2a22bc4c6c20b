package dsync

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// Lease is one hold of a lock, returned by Lock and TryLock. A lease that has
// ended never comes back to life, and a late Unlock never ends the hold of
// another owner. A nil Lease and the zero Lease have ended: their methods
// return ErrNotHeld. All methods may be called concurrently.
type Lease struct {
	hold  *hold // nil for a handle, see handOut, and for the zero Lease
	owner string
	token uint64
	fixed bool // made with ExpireAfter

	// Guarded by hold.lock.mu.
	end      *holdAlarm    // latest end of a re-entry with ExpireAfter, or by MaxHold; or nil
	slow     *holdAlarm    // when Options.SlowHold has passed; nil if there is nothing more to report
	err      error         // why the lease ended; nil while the lease is held
	last     moment        // the deadline when the lease ended
	done     chan struct{} // nil until the first call to Done
	contexts *leaseContext // the contexts that this lease ends
	next     *Lease        // in hold.views; of a handle: its lease
	at       **Lease       // the pointer to this lease in hold.views
	by       callers       // the call stack of Lock, with Options.Debug
}

// Name returns the name of the lock.
func (l *Lease) Name() string {
	if l = l.view(); l == nil {
		return ""
	}
	return l.hold.lock.name
}

// Owner returns the identity of the lease's owner. Inspect shows the same owner
// if the backend stores owners. After a hand-over inside the process, Inspect
// still shows the owner to which the backend granted the lock.
func (l *Lease) Owner() string {
	if l = l.view(); l == nil {
		return ""
	}
	return l.owner
}

// Token returns the fencing token of the lease. It is larger than the tokens of
// all earlier grants of the name. It is 0 if the backend has no tokens, and for
// permits, which several clients hold at the same time.
//
// Send the token with every write to the protected resource, and let the
// resource refuse a token smaller than the largest one it has seen. Nothing
// else protects against a late write.
//
// The token of a [Read] is larger than the tokens of all earlier exclusive
// holders, and smaller than the tokens of all later ones. A resource compares
// it but does not store it. A re-entry has the token of the hold that it
// joined.
//
// On PostgreSQL the first call for a hold waits until the server has the token
// on its disk. If the lease ends before that, Token is 0. Package guard refuses
// 0, and so should every resource.
func (l *Lease) Token() uint64 {
	if l = l.view(); l == nil || l.token == 0 {
		return 0
	}
	if k, ok := l.hold.lease.(driver.TokenKeeper); ok && k.KeepTokens(context.Background()) != nil {
		return 0
	}
	return l.token
}

// Deadline returns the local time until which the lock is certain to be held,
// even without another renewal. The backend may grant the lock to another
// client 5 ms plus 1 % of a TTL after this time. The TTL is the lease's TTL, or
// the TTL of its session on the backend if the session may end first.
func (l *Lease) Deadline() time.Time {
	if l = l.view(); l == nil {
		return time.Time{}
	}
	k := l.hold.lock
	k.client.now() // this also detects whether the machine has slept
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.client.clock.Start.Add(l.deadline())
}

// deadline is called with lock.mu held.
func (l *Lease) deadline() moment {
	if l.err != nil {
		return l.last
	}
	d := l.hold.deadline()
	if l.end != nil {
		d = min(d, l.end.At())
	}
	return d
}

// Err returns nil while the lease is held. After that it returns an error that
// matches ErrNotHeld, and also ErrLost if the lease was lost. Err compares the
// clock, so a process that was stopped for longer than its lease never gets nil
// afterwards.
func (l *Lease) Err() error {
	if l = l.view(); l == nil {
		return errNoLease
	}
	k := l.hold.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.check(k.client.now())
}

// check ends the lease if its time is up and returns its error. Called with
// lock.mu held.
func (l *Lease) check(now moment) error {
	if l.err == nil && now >= l.deadline() {
		if now >= l.hold.deadline() {
			l.hold.expire()
		} else {
			l.endItself(now, l.overEnd())
		}
	}
	return l.err
}

// Done returns a channel that is closed when the lease ends, by Unlock or by
// loss.
func (l *Lease) Done() <-chan struct{} {
	if l = l.view(); l == nil {
		return closed
	}
	k := l.hold.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	err := l.check(k.client.now())
	if l.done == nil {
		l.done = make(chan struct{}) // closed below, or else by finish
		if err != nil {
			close(l.done)
		}
	}
	return l.done
}

// WatchRemoval makes the client notice immediately that another client removed
// the lock by [Client.ForceUnlock]. Otherwise the client notices it at its next
// renewal, or within Info.Detect. WatchRemoval returns when the lease ends, or
// ctx is done. On most backends it costs a subscription, so use it for a few
// leases whose work must stop soon. A removal without a message, such as DEL,
// is noticed as late as without WatchRemoval.
func (l *Lease) WatchRemoval(ctx context.Context) {
	view := l.view()
	if view == nil {
		return
	}
	defer runtime.KeepAlive(l) // keeps the handle alive
	h, done := view.hold, view.Done()
	removed := make(chan struct{}, 1)
	if w, ok := h.lease.(driver.RemovalWatcher); ok {
		stop := w.WatchRemoval(func() {
			select {
			case removed <- struct{}{}:
			default:
			}
		})
		defer stop()
	}
	for {
		select {
		case <-removed:
			h.lock.mu.Lock()
			h.lock.client.watchdog.renewNow(h)
			h.lock.mu.Unlock()
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Context returns a context that ends when parent or the lease ends, whichever
// ends first. If the lease ends first, context.Cause returns the lease's Err.
// Call cancel when the work is done, as with any context. A Lock of the lease's
// own name under such a context returns ErrDeadlock instead of waiting. A Read
// does not wait (see [Read]).
//
// A goroutine ends the context, so after a pause of the process the context may
// end slightly late. Just before an action that must not be late, call the
// lease's Err, which compares the clock.
func (l *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	if l.view() != l || l == nil {
		return l.contextOfView(parent)
	}
	ctx, cancel := context.WithCancelCause(parent)
	lc := &leaseContext{Context: ctx, lease: l, cancel: cancel}
	lc.outer, _ = parent.Value(leaseContextKey{}).(*leaseContext)
	k := l.hold.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := l.check(k.client.now()); err != nil {
		cancel(err)
	} else {
		lc.next, l.contexts = l.contexts, lc
	}
	return lc, func() {
		k.mu.Lock()
		for at := &l.contexts; *at != nil; at = &(*at).next {
			if *at == lc {
				*at = lc.next
				break
			}
		}
		k.mu.Unlock()
		cancel(context.Canceled)
	}
}

// Extend makes a lease with ExpireAfter end d from now, even if that is earlier
// than before. For other leases, which are renewed in the background, Extend
// returns errors.ErrUnsupported. After an error other than ErrLost or
// ErrNotHeld, the lease continues as before.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	view := l.view()
	if view == nil {
		return &LockError{"extend", "", errNoLease}
	}
	err := view.extend(ctx, d)
	runtime.KeepAlive(l) // keeps the handle alive
	if err != nil {
		return &LockError{"extend", l.Name(), err}
	}
	return nil
}

func (l *Lease) extend(ctx context.Context, d time.Duration) error {
	h := l.hold
	k := h.lock
	if !l.fixed {
		return fmt.Errorf("the lease is renewed automatically: %w", errors.ErrUnsupported)
	}
	if err := k.client.checkTTL(d); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	now := k.client.now()
	k.mu.Lock()
	if err := l.check(now); err != nil {
		k.mu.Unlock()
		return err
	}
	if now+d < h.keepUntil {
		k.mu.Unlock()
		return fmt.Errorf("HoldAtLeast keeps the name taken for another %v, longer than %v", h.keepUntil-now, d)
	}
	joined := l.end != nil
	if end := now + d; joined && (!h.req.Fixed || end < h.deadline()) {
		l.setEnd(end) // the end is within the hold that the lease joined, so no request is needed
		k.mu.Unlock()
		return nil
	}
	k.mu.Unlock()

	err := h.lease.Renew(ctx, d)
	k.client.reach.extended(ctx, h, err)

	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil:
		h.extended(d)
		if joined && l.err == nil {
			l.setEnd(now + d)
		}
	case errors.Is(err, ErrNotHeld):
		h.lose(lossFrom(err), true)
	default:
		return err
	}
	return l.check(k.client.now())
}

// setEnd sets the end of a re-entry and is called with lock.mu held.
func (l *Lease) setEnd(end moment) {
	if l.end == nil {
		l.end = &holdAlarm{Of: watched{l.hold, l}}
	}
	l.hold.lock.client.watchdog.endAt(l.end, end)
}

// Unlock ends the lease, and frees the lock unless another lease of the same
// owner, or of another reader, shares the hold. Unlock ignores the cancellation
// of ctx, so `defer lease.Unlock(ctx)` is correct even if ctx has ended. It
// waits no longer than the rest of the lease, and 5 s at most. Then Unlock
// returns ErrUnknown, and the release continues in the background.
//
// After a loss the error of Unlock matches ErrLost and ErrNotHeld. After an
// earlier Unlock it matches ErrNotHeld. In both cases Unlock changes nothing.
//
// Unlock sends no request if the hold continues, either for another of its
// leases or for a waiter of the same client. In this case Unlock, like Err, may
// return nil for up to Info.Detect after the hold was removed.
func (l *Lease) Unlock(ctx context.Context) error {
	view := l.view()
	if view == nil {
		return &LockError{"unlock", "", errNoLease}
	}
	ctx, span := view.startUnlock(ctx)
	err := view.unlock(ctx)
	runtime.KeepAlive(l) // keeps the handle alive
	span.End(failureOf(err))
	if err != nil {
		return &LockError{"unlock", l.Name(), err}
	}
	return nil
}

func (l *Lease) unlock(ctx context.Context) error {
	h := l.hold
	k := h.lock
	now := k.client.now()
	k.mu.Lock()
	if err := l.check(now); err != nil {
		k.mu.Unlock()
		if e, ok := err.(*LockError); ok {
			err = e.Err
		}
		return err
	}
	l.finish(errUnlocked)
	call := h.endTenure()
	if !h.viewEnded(now) {
		k.mu.Unlock()
		call.Ended(ctx, telemetry.Unlocked)
		return nil
	}
	left := h.expires() - now
	k.mu.Unlock()
	err := h.release(ctx, min(left, maxReleaseWait))
	if call != nil || err != nil {
		l.reportRelease(ctx, call, err)
	}
	return err
}

// overEnd returns the loss of a lease whose own time is up, although its hold
// continues.
func (l *Lease) overEnd() *lostError {
	if l.fixed {
		return &lostError{cause: lossExpired, asked: true}
	}
	return &lostError{cause: lossMaxHold}
}

// endItself ends a lease for the given reason. If it is the last view of its
// hold, the hold ends too. Called with lock.mu held.
func (l *Lease) endItself(now moment, why *lostError) {
	l.finish(&LockError{"lease", l.Name(), why})
	l.lost(why)
	if l.hold.viewEnded(now) {
		l.hold.lock.client.releaser.add(l.hold)
	}
}

// finish ends the lease with the error err and takes the lease out of its hold.
// It is called once, with lock.mu held.
func (l *Lease) finish(err error) {
	l.last = l.deadline() // the backend's deadline may still move with its session
	l.err = err
	l.hold.removeView(l)
	for _, a := range []*holdAlarm{l.end, l.slow} {
		if a != nil {
			l.hold.lock.client.watchdog.remove(a)
		}
	}
	for lc := l.contexts; lc != nil; lc = lc.next {
		lc.cancel(err)
	}
	l.contexts = nil
	if l.done != nil {
		close(l.done) // closed after the contexts, so that no goroutine sees Done before they end
	}
}

// leaseContext is the context of Lease.Context. It refers to its lease, and to
// the leases whose contexts it was derived from.
type leaseContext struct {
	context.Context
	lease  *Lease
	handle *Lease        // for LeaseFrom to return in place of lease; nil without Options.Debug
	outer  *leaseContext // of the lease from whose context this context was derived; may be nil
	cancel context.CancelCauseFunc
	next   *leaseContext // in lease.contexts
}

func (c *leaseContext) Value(key any) any {
	if key == (leaseContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// permits returns the number of permits of a name that are held by the leases
// to which the context belongs.
func (c *leaseContext) permits(of *Client, name string) (n int) {
	var counted []*Lease // one lease may have several contexts
	for ; c != nil; c = c.outer {
		k := c.lease.hold.lock
		if k.client != of || k.name != name || k.mode != driver.Permit || slices.Contains(counted, c.lease) {
			continue
		}
		counted = append(counted, c.lease)
		k.mu.Lock()
		if c.lease.check(k.client.now()) == nil {
			n += c.lease.hold.req.Permits
		}
		k.mu.Unlock()
	}
	return n
}

type leaseContextKey struct{}
