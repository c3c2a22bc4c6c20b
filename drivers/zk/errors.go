package zk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

var (
	errNoAnswer    = errors.New("no answer in time")
	errOver        = errors.New("the session is over")
	errNoServer    = errors.New("no server answers")
	errStopping    = errors.New("the driver is being closed")
	errAgain       = errors.New("ask again")
	errSealShared  = fmt.Errorf("a hold of the mode Read or Permit does not become a seal: %w", errors.ErrUnsupported)
	errMarkPermits = fmt.Errorf("permits have no tokens to mark: %w", errors.ErrUnsupported)
	// errLastNumber: the server has counted 2^31 children of a node. It gives the last number to each further one, so nobody is the first.
	errLastNumber  = errors.New("there are no sequence numbers left below a node, which has to be deleted when nobody uses it")
	errLongRequest = fmt.Errorf("owner and note take more than %d bytes", maxData)
)

// answers are errors of the server itself: the request was handled, and nothing was done.
var answers = []error{
	gozk.ErrNoNode, gozk.ErrNodeExists, gozk.ErrNotEmpty, gozk.ErrNoAuth, gozk.ErrBadVersion, gozk.ErrNoChildrenForEphemerals,
	gozk.ErrInvalidACL, gozk.ErrAuthFailed, gozk.ErrBadArguments, gozk.ErrShortBuffer, gozk.ErrInvalidPath,
}

// errAnswer is the error of an answer to another question. What became of the request is not known then.
var errAnswer = errors.New("the server's answer makes no sense")

// isAnswer reports whether a request was certainly handled, or certainly never sent.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	for _, a := range answers {
		if errors.Is(err, a) {
			return true
		}
	}
	return false
}

// unknownSession is how the library puts the server's UNKNOWNSESSION, which it does not know: the session ended while the server worked on the
// request. The end of the session follows, as after ErrSessionExpired.
const unknownSession = "unknown error: -12"

// isServerError reports whether the error is a server's, and not the end of a connection or of the session. Something may have been done all
// the same.
func isServerError(err error) bool {
	if isAnswer(err) || errors.Is(err, gozk.ErrAPIError) || errors.Is(err, gozk.ErrUnknown) {
		return true
	}
	return strings.HasPrefix(err.Error(), "unknown error:") && err.Error() != unknownSession
}

// fault makes the error of a call out of the error of a request that can have left nothing.
func fault(ctx context.Context, s *session, err error) error {
	switch {
	case errors.Is(err, errStopping):
		return driver.ErrClosed
	case errors.Is(err, gozk.ErrNoAuth), errors.Is(err, gozk.ErrAuthFailed), errors.Is(err, gozk.ErrInvalidACL):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case isServerError(err):
		return err
	}
	if s != nil {
		if cause := s.trouble(); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	return withCause(ctx, driver.ErrUnavailable, err)
}

// undecided makes the error of a call out of the error of a request that may have been carried out.
func (d *Driver) undecided(ctx context.Context, err error) error {
	err = withCause(ctx, driver.ErrUnknown, err)
	if d.life.Open().Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	}
	return err
}

// withCause adds the reason of the end of ctx to an error that does not name the reason.
func withCause(ctx context.Context, kind, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w (%w)", kind, err, ended)
	}
	return fmt.Errorf("%w: %w", kind, err)
}
