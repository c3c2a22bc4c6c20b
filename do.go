package dsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Do runs fn while it holds name, and unlocks name when fn returns or panics.
// The context of fn ends when the lock is lost, with the loss as its cause.
// [LeaseFrom] returns the lease, whose token fn sends with its writes.
//
// If the lock was not granted, fn does not run, and Do returns the [*LockError]
// of Lock. Otherwise Do returns the error of fn unchanged. If the lock was lost
// while fn ran, or the outcome of the Unlock is unknown, Do returns a
// [*DoError] instead. [Ran] reports whether fn ran.
func Do(ctx context.Context, l Locker, name string, fn func(context.Context) error, opts ...LockOption) error {
	return do(ctx, l.Lock, name, fn, opts)
}

// TryDo is like Do, but uses TryLock instead of Lock. If another owner holds
// name, the error matches ErrLocked, and fn does not run.
func TryDo(ctx context.Context, l Locker, name string, fn func(context.Context) error, opts ...LockOption) error {
	return do(ctx, l.TryLock, name, fn, opts)
}

func do(ctx context.Context, lock func(context.Context, string, ...LockOption) (*Lease, error), name string,
	fn func(context.Context) error, opts []LockOption) (err error) {
	lease, err := lock(ctx, name, opts...)
	if err != nil {
		if !didNotLock(err) { // a Locker of another package returned it
			err = &LockError{"lock", name, err}
		}
		return err
	}
	under, cancel := lease.Context(ctx)
	defer cancel()
	defer func() { // even if fn panics
		unlocked := lease.Unlock(ctx)
		if unlocked != nil && errors.Is(err, lease.Err()) {
			unlocked = nil // fn's error reports the loss
		}
		_, nested := err.(*DoError)
		if unlocked != nil || nested || didNotLock(err) {
			// for Ran: fn may return an error from another Lock or Do
			err = &DoError{err, unlocked}
		}
	}()
	return fn(under)
}

// Ran reports whether the function of [Do], [TryDo] or [Elect] ran, and returns
// the function's error. err is the error that Do, TryDo or Elect returned.
func Ran(err error) (ran bool, failed error) {
	if e, ok := err.(*DoError); ok {
		return true, e.Err
	}
	return !didNotLock(err), err
}

// didNotLock reports whether err comes from Lock or TryLock.
func didNotLock(err error) bool {
	e, ok := err.(*LockError)
	return ok && e.Op == "lock"
}

// DoError is the error of Do and TryDo if fn has run and there is more to
// report than the error of fn.
type DoError struct {
	// Err is the error of fn; nil if fn succeeded.
	Err error

	// Unlock is the error of Lease.Unlock; nil if it succeeded. ErrLost:
	// the lock was lost before fn returned, and another owner may have held
	// the lock in the meantime. ErrUnknown: the lock was held to the end and
	// may stay taken for up to its TTL.
	Unlock error
}

func (e *DoError) Error() string {
	switch {
	case e.Err == nil:
		return fmt.Sprintf("%v (the function under the lock succeeded)", e.Unlock)
	case e.Unlock == nil:
		return e.Err.Error()
	}
	return fmt.Sprintf("%v; %v", e.Err, e.Unlock)
}

// Unwrap returns the errors that are not nil.
func (e *DoError) Unwrap() []error {
	return slices.DeleteFunc([]error{e.Err, e.Unlock}, func(err error) bool { return err == nil })
}

// LeaseFrom returns the lease of ctx: the lease of Do in its function, or the
// lease from whose Context ctx is derived. It returns the innermost of several
// leases, and nil if there is none.
func LeaseFrom(ctx context.Context) *Lease {
	if lc, ok := ctx.Value(leaseContextKey{}).(*leaseContext); ok {
		if lc.handle != nil {
			return lc.handle
		}
		return lc.lease
	}
	return nil
}
