package pglock

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-dsync/dsync/driver"
)

var (
	// ErrTooManyLocks reports that the driver holds as many locks as
	// Options.MaxLocks allows.
	ErrTooManyLocks = errors.New("too many locks")

	// ErrTooManyWaiters reports that the maximum number of connections
	// (Options.MaxWaiters) are waiting for locks, or hold locks after a wait.
	// The error matches driver.ErrUnavailable too, so package dsync tries again
	// until the wait ends.
	ErrTooManyWaiters = fmt.Errorf("too many waiting connections: %w", driver.ErrUnavailable)

	// ErrPooler reports that there is a connection pooler between the driver
	// and the server. The error matches errors.ErrUnsupported too.
	ErrPooler = fmt.Errorf("there is a connection pooler in front of the server: %w", errors.ErrUnsupported)
)

var (
	errAnswer = errors.New("the server's answer is invalid")
	errForced = errors.New("ended by ForceUnlock")
)

// SQLSTATE codes, and classes of codes, that the driver distinguishes.
const (
	codeUnknownSetting = "42704"
	codeProtocol       = "08P01"
	codePermission     = "42501"
	codeIdle           = "57P05"
)

// unavailable are the codes with which a server temporarily refuses work.
var unavailable = []string{
	"08", // connection exceptions
	// the transaction is read-only because the server is now a standby, or it
	// reached a time limit
	"25",
	"26000",          // the session has lost its prepared statements
	"53",             // out of memory, disk, connections or locks
	"57P",            // shutting down, starting up, or the session was ended
	"57014",          // another client canceled the statement
	"40", "55", "58", // conflicts, something in use, I/O errors
}

// broken are the codes after which a session is unusable: its server is no
// longer a primary, or another party has discarded the session's state,
// including its locks.
var broken = []string{"08", "25006", "26000"}

// isBroken reports whether the server's error to a statement ends the session.
func isBroken(fault error) bool {
	var answer *pgconn.PgError
	return errors.As(fault, &answer) && hasClass(broken, answer.Code)
}

func hasClass(classes []string, code string) bool {
	return slices.ContainsFunc(classes, func(class string) bool { return strings.HasPrefix(code, class) })
}

// refusal translates the server's error to a statement into the errors of
// package driver and leaves other errors unchanged. All effects of a statement
// that the server refused are undone.
func refusal(err error) error {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return err
	}
	if answer.Code == codePermission {
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	if hasClass(unavailable, answer.Code) {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return err
}

// dialError is a connection error on one line. The library's own error contains
// the configuration, and so the password.
type dialError struct {
	text string
	err  error
}

// newDialError unwraps the library's error and omits the server options that
// the URL may contain.
func newDialError(err error, options string) error {
	var failed *pgconn.ConnectError
	if !errors.As(err, &failed) {
		return err
	}
	err = failed.Unwrap()
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	for _, word := range strings.FieldsFunc(options, func(r rune) bool { return r == ' ' || r == '=' }) {
		if len(word) > 2 { // longer than the name of an option
			text = strings.ReplaceAll(text, word, "...")
		}
	}
	return &dialError{"failed to connect: " + text, err}
}

func (e *dialError) Error() string { return e.text }
func (e *dialError) Unwrap() error { return e.err }

// connectError turns a connection error into the error of a call.
func connectError(err error) error {
	var answer *pgconn.PgError
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, fs.ErrPermission):
		return err
	case !errors.As(err, &answer):
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	case answer.Code == codeUnknownSetting && strings.Contains(answer.Message, "idle_session_timeout"):
		return fmt.Errorf("the server is older than PostgreSQL 14: %w (%w)", errors.ErrUnsupported, err)
	case strings.HasPrefix(answer.Code, "28"), answer.Code == codePermission:
		// invalid authorization, no permission to connect
		return fmt.Errorf("%w: %w", driver.ErrCredentials, err)
	}
	return refusal(err)
}

// endedError is the outcome of statements whose session ends.
type endedError struct {
	cause error
	sent  bool // the statement was sent, and may have been executed
}

func (e *endedError) Error() string {
	if e.sent {
		return fmt.Sprintf("%v: %v", driver.ErrUnknown, e.cause)
	}
	return fmt.Sprintf("%v: %v", driver.ErrUnavailable, e.cause)
}

func (e *endedError) Unwrap() []error {
	if e.sent {
		return []error{driver.ErrUnknown, e.cause}
	}
	return []error{driver.ErrUnavailable, e.cause}
}

// errBreaks reports that each chosen session ended just as it was about to be
// used.
var errBreaks = fmt.Errorf("%w: connections break repeatedly", driver.ErrUnavailable)
