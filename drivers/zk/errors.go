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
	errLongRequest = fmt.Errorf("owner and note take more than %d bytes", maxData)
)

// answers are errors that the server itself gave: the request was handled, and nothing was done.
var answers = []error{
	gozk.ErrNoNode, gozk.ErrNodeExists, gozk.ErrNotEmpty, gozk.ErrNoAuth, gozk.ErrBadVersion, gozk.ErrNoChildrenForEphemerals,
	gozk.ErrInvalidACL, gozk.ErrAuthFailed, gozk.ErrBadArguments, gozk.ErrShortBuffer, gozk.ErrInvalidPath,
}

// errAnswer is that of an answer that does not fit the request. What became of the request is not known then.
var errAnswer = errors.New("the server's answer makes no sense")

// isAnswer reports whether it is certain that a request was handled, or never sent.
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

// isServerError reports whether a server said what is wrong, although that need not mean that nothing was done.
func isServerError(err error) bool {
	return isAnswer(err) || errors.Is(err, gozk.ErrAPIError) || errors.Is(err, gozk.ErrUnknown) || strings.HasPrefix(err.Error(), "unknown error:")
}

// fault makes the error of a call out of the error of a request of which nothing can be left.
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

// withCause adds why ctx ended to an error, where it did and the error does not say so.
func withCause(ctx context.Context, kind, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w (%w)", kind, err, ended)
	}
	return fmt.Errorf("%w: %w", kind, err)
}
