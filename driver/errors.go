package driver

import (
	"errors"
	"fmt"
	"io/fs"
)

// The errors that package dsync acts on. Drivers return them unchanged or
// wrapped; match them with errors.Is.
var (
	// ErrLocked: another hold on the name excludes the request.
	ErrLocked = errors.New("locked by another owner")

	// ErrNotHeld: the hold has ended.
	ErrNotHeld = errors.New("lock not held")

	// ErrUnknown: the request may or may not have been carried out, and the
	// driver cleans up after the request. Package dsync then repeats an
	// Acquire, with a new Hold.
	ErrUnknown = errors.New("outcome unknown")

	// ErrUnavailable: the backend is out of reach or refuses work for now, and
	// the request was not carried out. Package dsync then repeats an Acquire,
	// with a new Hold. A lasting refusal, such as a missing right, may have its
	// own error, but never matches ErrLocked or ErrNotHeld.
	ErrUnavailable = errors.New("backend unavailable")

	// ErrCredentials: the server does not accept the user or its password, so
	// that requests about any name fail. ErrCredentials matches
	// fs.ErrPermission.
	ErrCredentials = fmt.Errorf("credentials refused: %w", fs.ErrPermission)

	// ErrClosed: the driver is closed.
	ErrClosed = errors.New("closed")

	// ErrLimit: the name has a limit of permits other than [Request.Limit]. A
	// request that passes no limit fails with ErrLimit if the name has no
	// limit, or if that limit is smaller than [Request.Permits].
	ErrLimit = errors.New("the limit of permits is different")

	// ErrSealed: the name has moved to another backend permanently
	// (drivers/migrate).
	ErrSealed = errors.New("lock is sealed")
)

// The causes of a loss, passed to Events.Lost.
var (
	// ErrRemoved: another client removed the hold from the backend, or the
	// backend lost the hold.
	ErrRemoved = errors.New("hold was removed")

	// ErrSessionEnded: the session or connection of the hold has ended.
	ErrSessionEnded = errors.New("session ended")
)
