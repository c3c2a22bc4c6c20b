package dsync

import (
	"context"
	"errors"
	"fmt"
)

// Do runs fn while it holds name, and unlocks name whatever becomes of fn. The context of fn ends when the lock is lost, with the loss as
// its cause; [LeaseFrom] returns the lease, whose token fn sends with what it writes.
//
// If the lock was not granted Do returns the error of Lock, and fn has not run. If fn has run Do returns the error of fn, as it is, or a
// [*DoError] if there is more to tell: the lock was lost while fn ran, or the outcome of the Unlock is unknown.
func Do(ctx context.Context, l Locker, name string, fn func(context.Context) error, opts ...LockOption) error {
	return do(ctx, l.Lock, name, fn, opts)
}

// TryDo is Do with TryLock in place of Lock: if another owner holds name the error matches ErrLocked, and fn does not run.
func TryDo(ctx context.Context, l Locker, name string, fn func(context.Context) error, opts ...LockOption) error {
	return do(ctx, l.TryLock, name, fn, opts)
}

func do(ctx context.Context, lock func(context.Context, string, ...LockOption) (*Lease, error), name string,
	fn func(context.Context) error, opts []LockOption) (err error) {
	lease, err := lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	under, cancel := lease.Context(ctx)
	defer cancel()
	defer func() { // also if fn panics
		if unlocked := lease.Unlock(ctx); unlocked != nil && !errors.Is(err, lease.Err()) {
			err = &DoError{Err: err, Unlock: unlocked}
		}
	}()
	return fn(under)
}

// DoError is what Do and TryDo return if fn has run, and Unlock then failed.
type DoError struct {
	// Err is the error of fn; nil if fn succeeded.
	Err error

	// Unlock is the error of Lease.Unlock. ErrLost: the lock was lost before fn returned, and another owner may have held the lock
	// meanwhile. ErrUnknown: the lock was held to the end, and may be kept from others for up to its TTL.
	Unlock error
}

func (e *DoError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%v (the function under the lock succeeded)", e.Unlock)
	}
	return fmt.Sprintf("%v; %v", e.Err, e.Unlock)
}

// Unwrap returns both errors, as far as there are any.
func (e *DoError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Unlock}
	}
	return []error{e.Err, e.Unlock}
}

// LeaseFrom returns the lease of ctx: the lease of Do, in its function, or else the lease whose Context ctx was made from; the innermost of
// several, or nil if there is none.
func LeaseFrom(ctx context.Context) *Lease {
	if lc, ok := ctx.Value(leaseContextKey{}).(*leaseContext); ok {
		if lc.handle != nil {
			return lc.handle
		}
		return lc.lease
	}
	return nil
}
