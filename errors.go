package dsync

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// The errors to match with errors.Is. An operation that the backend does not
// support returns errors.ErrUnsupported.
var (
	// ErrLocked: another owner holds the name. If a wait ends with its context,
	// the error matches the context's error. It also matches ErrLocked if the
	// backend's last response was that another owner held the name. If later
	// requests got no response, the error also matches ErrUnavailable or
	// ErrUnknown, and no longer ErrLocked once that last response is older than
	// the TTL. A backend failure alone never matches ErrLocked.
	ErrLocked = driver.ErrLocked

	// ErrNotHeld: the lease has ended, so there was nothing to do.
	ErrNotHeld = driver.ErrNotHeld

	// ErrLost: the lease ended before its Unlock. The error also matches
	// ErrNotHeld. Its text and the wrapped error give the reason: the lease
	// expired, another client removed the lock, the session ended, the
	// backend was out of reach for too long, or the lease was held for
	// longer than MaxHold.
	ErrLost error = &lostError{}

	// ErrUnknown: the backend may or may not have carried out the request.
	// The cleanup continues in the background.
	ErrUnknown = driver.ErrUnknown

	// ErrUnavailable: the backend is out of reach, or refuses work for now.
	// Lock tries again until its context ends.
	ErrUnavailable = driver.ErrUnavailable

	// ErrDeadlock: the wait could not end, because the context belongs to a
	// lease of the same name (see Lease.Context), or because the Owner
	// holds the name for Read and requests more.
	ErrDeadlock = errors.New("deadlock: the caller's own lease holds the name")

	// ErrLimit: the name has a different limit of permits than the call passes.
	// A call that passes no limit fails with ErrLimit if the name has no limit,
	// or if its limit is below the number of requested permits.
	ErrLimit = driver.ErrLimit

	// ErrClosed: the Client is closed.
	ErrClosed = driver.ErrClosed
)

// transient reports whether a request that failed with err may succeed when it
// is repeated.
func transient(err error) bool { return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown) }

// errNested is the error that TryLock returns where Lock returns ErrDeadlock.
var errNested = fmt.Errorf("%w: the caller's own lease holds the name", ErrLocked)

// LockError is the error of a method of Client, Owner, Lease or Latch, with the
// name of the lock. Match its cause with errors.Is.
type LockError struct {
	Op   string // what failed, such as "lock", "unlock" or "inspect"; "lease" for the loss of a lease
	Name string // of the lock or latch
	Err  error  // the cause
}

func (e *LockError) Error() string {
	name := e.Name
	if len(name) > maxName {
		name = name[:64] + "..."
	}
	return fmt.Sprintf("dsync: %s %q: %v", e.Op, name, e.Err)
}

// Unwrap returns the cause.
func (e *LockError) Unwrap() error { return e.Err }

// lossCause is the reason why a lease was lost.
type lossCause int

const (
	lossExpired lossCause = iota + 1 // it expired
	// another client removed the lock from the backend, or the backend lost it
	lossRemoved
	lossSession // its session ended
	// it expired, or its session ended, while the backend was out of reach
	lossUnreachable
	lossMaxHold   // it was held for longer than MaxHold
	lossForgotten // it could no longer be unlocked
)

var lossCauses = [...]telemetry.Cause{
	lossExpired:     {Value: "expired", Text: "expired"},
	lossRemoved:     {Value: "removed", Text: "removed"},
	lossSession:     {Value: "session_ended", Text: "session ended"},
	lossUnreachable: {Value: "unreachable", Text: "backend out of reach", Outage: true},
	lossMaxHold:     {Value: "max_hold", Text: "held for longer than MaxHold"},
	lossForgotten:   {Value: "forgotten", Text: "forgotten"},
}

func (c lossCause) String() string            { return c.reported().Text }
func (c lossCause) reported() telemetry.Cause { return lossCauses[c] }

// lostError is the error of a lost lease. The zero value is the sentinel
// ErrLost.
type lostError struct {
	cause lossCause
	err   error // from the backend or the last renewal; may be nil
	asked bool  // by ExpireAfter
}

func (e *lostError) Error() string {
	switch {
	case e.cause == 0:
		return "lock lost"
	case e.err == nil:
		return "lock lost: " + e.cause.String()
	case e.cause == lossSession:
		return "lock lost: " + e.err.Error() // the text of err already begins with the cause
	}
	return fmt.Sprintf("lock lost: %v: %v", e.cause, e.err)
}

func (e *lostError) Is(target error) bool { return target == ErrLost || target == ErrNotHeld }
func (e *lostError) Unwrap() error        { return e.err }

// lossFrom classifies the cause of a loss that a driver reported.
func lossFrom(err error) *lostError {
	if errors.Is(err, driver.ErrSessionEnded) {
		return &lostError{cause: lossSession, err: err}
	}
	if err == driver.ErrNotHeld { // of a renewal
		err = driver.ErrRemoved
	}
	return &lostError{cause: lossRemoved, err: err}
}

// unreachable returns the loss of a lease while requests failed with err.
func unreachable(err error) *lostError {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = ErrUnavailable // the timeout of a request is unrelated to the user's contexts
	}
	return &lostError{cause: lossUnreachable, err: err}
}

// notHeldError is the error of a lease that ended without a loss.
type notHeldError struct {
	text string
	also error // ErrClosed, or nil
}

func (e *notHeldError) Error() string        { return e.text }
func (e *notHeldError) Is(target error) bool { return target == ErrNotHeld }
func (e *notHeldError) Unwrap() error        { return e.also }

var (
	errUnlocked = &notHeldError{text: "lock not held: it was unlocked"}
	errClosing  = &notHeldError{text: "lock not held: the client was closed", also: ErrClosed}
)

// waitError is the error of a wait that ended with its context.
type waitError struct {
	ctx     error // ctx.Err()
	cause   error // context.Cause, if it is a different error
	answer  error // the error of the request that the context interrupted; may be nil
	trouble error // why earlier requests got no response; may be nil
	locked  bool  // another owner held the lock, as far as known
}

func newWaitError(ctx context.Context, answer, trouble error, locked bool) error {
	e := &waitError{ctx: ctx.Err(), answer: answer, trouble: trouble, locked: locked || errors.Is(answer, ErrLocked)}
	if cause := context.Cause(ctx); cause != e.ctx {
		e.cause = cause
	}
	if trouble == nil && answer != nil && !errors.Is(answer, e.ctx) {
		e.answer, e.trouble = nil, answer
	}
	return e
}

func (e *waitError) Error() string {
	text := e.ctx.Error()
	if e.cause != nil {
		text = fmt.Sprintf("%s (%v)", text, e.cause)
	}
	if e.locked {
		text += " while it was locked by another owner"
	}
	if errors.Is(e.answer, ErrUnknown) {
		text += "; outcome unknown"
	}
	if e.trouble != nil && e.trouble != ErrLocked {
		text = fmt.Sprintf("%s; before that: %v", text, e.trouble)
	}
	return text
}

// reason returns the backend's last response, or else the error of the context,
// without its cause.
func (e *waitError) reason() error {
	switch {
	case e.trouble != nil:
		return e.trouble
	case e.answer != nil:
		return e.answer
	}
	return e.ctx
}

func (e *waitError) Unwrap() []error {
	errs := []error{e.ctx}
	for _, err := range []error{e.cause, e.answer, e.trouble} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if e.locked {
		errs = append(errs, ErrLocked)
	}
	return errs
}

// unknown makes err match ErrUnknown.
func unknown(err error) error {
	if errors.Is(err, ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}
