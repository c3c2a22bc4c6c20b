package zk

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

var (
	errNoAnswer    = errors.New("no answer in time")
	errOver        = errors.New("the session has ended")
	errNoServer    = errors.New("no server answers")
	errStopping    = errors.New("the driver is being closed")
	errGone        = errors.New("another client has removed the node")
	errSealShared  = fmt.Errorf("a hold in mode Read or Permit does not become a seal: %w", errors.ErrUnsupported)
	errMarkPermits = fmt.Errorf("permits have no tokens to mark: %w", errors.ErrUnsupported)
	// errLastNumber: the server has counted 2^31 children of a node. It gives
	// the last number to each additional child, so none of these children is
	// the first.
	errLastNumber  = errors.New("no sequence numbers are left below a node; delete the node when no client uses it")
	errLongRequest = fmt.Errorf("owner and note take more than %d bytes", maxData)
)

// answers are errors of the server itself: the request was handled, and nothing
// was done.
var answers = []error{
	gozk.ErrNoNode, gozk.ErrNodeExists, gozk.ErrNotEmpty, gozk.ErrNoAuth, gozk.ErrBadVersion, gozk.ErrNoChildrenForEphemerals,
	gozk.ErrInvalidACL, gozk.ErrAuthFailed, gozk.ErrBadArguments, gozk.ErrShortBuffer, gozk.ErrInvalidPath,
}

// errAnswer is the error of an answer that does not fit its request. The
// outcome of the request is unknown.
var errAnswer = errors.New("the server's answer is invalid")

// maxData limits the data of a node, because servers disconnect clients that
// send much longer requests.
const maxData = 64 << 10

// serverError is an error of the server for which the library has no name.
type serverError struct {
	code int32
	errorCode
}

// errorCode is the meaning of a server error.
type errorCode struct {
	name    string
	kind    error // ErrUnavailable if the request may be repeated later
	refused bool  // the request was not carried out
}

const throttled = -127

// errorCodes are the errors of ZooKeeper 3.5 to 3.9 for which the library has
// no name, except UNKNOWNSESSION.
var errorCodes = map[int32]errorCode{
	-1:        {"system error", driver.ErrUnknown, false},
	-2:        {"runtime inconsistency", driver.ErrUnknown, false},
	-3:        {"data inconsistency", driver.ErrUnknown, false},
	-4:        {"connection loss", driver.ErrUnknown, false},
	-5:        {"marshalling error", errors.ErrUnsupported, true},
	-6:        {"unimplemented", errors.ErrUnsupported, true},
	-7:        {"operation timeout", driver.ErrUnknown, false},
	-13:       {"no quorum of the new configuration", driver.ErrUnavailable, true},
	-14:       {"reconfiguration in progress", driver.ErrUnavailable, true},
	-113:      {"invalid callback", errors.ErrUnsupported, true},
	-119:      {"read-only server", driver.ErrUnavailable, true},
	-120:      {"ephemeral node on a local session", errors.ErrUnsupported, true},
	-121:      {"no watcher", errors.ErrUnsupported, true},
	-122:      {"request timeout", driver.ErrUnknown, false},
	-124:      {"session closed because SASL authentication is required", fs.ErrPermission, true},
	-125:      {"quota exceeded", driver.ErrUnavailable, true},
	throttled: {"request throttled", driver.ErrUnavailable, true},
}

func (e *serverError) Error() string { return fmt.Sprintf("%s (ZooKeeper error %d)", e.name, e.code) }

func (e *serverError) Unwrap() error { return e.kind }

// errorOf returns the error for a code for which the library has no name.
func errorOf(code int32) error {
	meaning, known := errorCodes[code]
	if !known {
		meaning = errorCode{"unknown error", driver.ErrUnknown, false}
	}
	return &serverError{code, meaning}
}

// Errors of the server for which the library has no names. UNKNOWNSESSION is
// one of them: the session ended while the server was working on the request.
// The end of the session follows, as after ErrSessionExpired.
const (
	withoutName    = "unknown error: "
	unknownSession = -12
)

// named replaces an error of the library by its named error.
func named(err error) error {
	if err == nil {
		return nil
	}
	digits, ok := strings.CutPrefix(err.Error(), withoutName)
	code, failed := strconv.ParseInt(digits, 10, 32)
	if !ok || failed != nil || code == unknownSession {
		return err
	}
	return errorOf(int32(code))
}

func serverErrorIn(err error) (e *serverError) {
	errors.As(named(err), &e)
	return e
}

// isThrottled reports whether the server has deferred a request, which should
// be repeated soon.
func isThrottled(err error) bool {
	e := serverErrorIn(err)
	return e != nil && e.code == throttled
}

// isAnswer reports whether a request was certainly handled, or certainly never
// sent.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	if e := serverErrorIn(err); e != nil {
		return e.refused
	}
	for _, a := range answers {
		if errors.Is(err, a) {
			return true
		}
	}
	return false
}

// isServerError reports whether an error comes from a server, rather than from
// the end of a connection or of the session. The request may have been carried
// out anyway.
func isServerError(err error) bool {
	if isAnswer(err) || errors.Is(err, gozk.ErrAPIError) || errors.Is(err, gozk.ErrUnknown) {
		return true
	}
	return serverErrorIn(err) != nil
}

// isOutdated reports whether a request was refused because the children have
// changed since they were read.
func isOutdated(err error) bool {
	return errors.Is(err, gozk.ErrNoNode) || errors.Is(err, gozk.ErrNodeExists)
}

// undecided is the error of a request that may have been carried out.
type undecided struct{ error }

func (e undecided) Unwrap() error { return e.error }

// explain converts the error that ended the work of a call into the error of
// the call. No other function does this. It leaves an error unchanged if the
// error comes neither from a server nor from the wait for a server.
func (c caller) explain(err error) error {
	var open undecided
	switch {
	case errors.As(err, &open):
		err = lifecycle.WithCause(c.ctx, driver.ErrUnknown, open.error)
		if c.session.driver.life.Open().Err() != nil {
			return fmt.Errorf("%w: %w", driver.ErrClosed, err)
		}
		return err
	case errors.Is(err, errStopping):
		return driver.ErrClosed
	case errors.Is(err, gozk.ErrNoAuth), errors.Is(err, gozk.ErrAuthFailed), errors.Is(err, gozk.ErrInvalidACL):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case !isOurs(err):
		return err
	}
	if cause := c.session.trouble(); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return lifecycle.WithCause(c.ctx, driver.ErrUnavailable, err)
}
