package driver

import "errors"

// The errors that package dsync acts on. Drivers return them as they are or wrapped; they are matched with errors.Is.
var (
	// ErrLocked: another hold has the name.
	ErrLocked = errors.New("locked by another owner")

	// ErrNotHeld: the hold is over.
	ErrNotHeld = errors.New("lock not held")

	// ErrUnknown: the request may or may not have been carried out, and the driver cleans up behind it. Package dsync repeats an
	// Acquire that failed with it, with a new Hold.
	ErrUnknown = errors.New("outcome unknown")

	// ErrUnavailable: the backend is out of reach or refuses work for now, and the request was not carried out. Package dsync
	// repeats an Acquire that failed with it, with a new Hold.
	ErrUnavailable = errors.New("backend unavailable")

	// ErrClosed: the driver is closed.
	ErrClosed = errors.New("closed")

	// ErrSealed: the name has moved to another backend for good (drivers/migrate).
	ErrSealed = errors.New("lock is sealed")
)

// What a hold can be lost by, as the cause that Events.Lost is given.
var (
	// ErrRemoved: somebody removed the hold from the backend, or the backend lost it.
	ErrRemoved = errors.New("hold was removed")

	// ErrSessionEnded: the session or connection that carried the hold is over.
	ErrSessionEnded = errors.New("session ended")
)
