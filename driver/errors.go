package driver

import (
	"errors"
	"fmt"
	"io/fs"
)

// The errors on which package dsync acts. Drivers return them as they are or
// wrapped; errors.Is matches them.
var (
	// ErrLocked: another hold has the name.
	ErrLocked = errors.New("locked by another owner")

	// ErrNotHeld: the hold is over.
	ErrNotHeld = errors.New("lock not held")

	// ErrUnknown: the request may or may not have been carried out, and the
	// driver cleans up behind the request. Package dsync then repeats an
	// Acquire, with a new Hold.
	ErrUnknown = errors.New("outcome unknown")

	// ErrUnavailable: the backend is out of reach or refuses work for now, and
	// the request was not carried out. Package dsync then repeats an Acquire,
	// with a new Hold. A refusal that lasts, such as that of a missing right,
	// may have an error of its own, but never matches ErrLocked or ErrNotHeld.
	ErrUnavailable = errors.New("backend unavailable")

	// ErrCredentials: the server does not accept the user or its password, so
	// that requests about any name fail. ErrCredentials matches
	// fs.ErrPermission.
	ErrCredentials = fmt.Errorf("credentials refused: %w", fs.ErrPermission)

	// ErrClosed: the driver is closed.
	ErrClosed = errors.New("closed")

	// ErrLimit: the name has another limit of permits than [Request.Limit], or,
	// where the request leaves it open, none, or a smaller one than
	// [Request.Permits].
	ErrLimit = errors.New("the limit of permits is another one")

	// ErrSealed: the name has moved to another backend for good
	// (drivers/migrate).
	ErrSealed = errors.New("lock is sealed")
)

// The causes of a loss, as Events.Lost gets them.
var (
	// ErrRemoved: somebody removed the hold from the backend, or the backend
	// lost the hold.
	ErrRemoved = errors.New("hold was removed")

	// ErrSessionEnded: the session or connection of the hold is over.
	ErrSessionEnded = errors.New("session ended")
)
