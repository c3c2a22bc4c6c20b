package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// refusals are answers to requests that were not carried out, for now.
var refusals = []error{
	rpctypes.ErrNoSpace, rpctypes.ErrTooManyRequests, rpctypes.ErrNoLeader, rpctypes.ErrNotCapable, rpctypes.ErrAuthOldRevision,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrUnhealthy, rpctypes.ErrCorrupt, rpctypes.ErrNotLeader,
}

// denials are answers that the server would also give to any other request of
// the same user.
var denials = []error{
	rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrAuthNotEnabled,
	rpctypes.ErrRoleNotFound, rpctypes.ErrUserNotFound,
}

// ofUser are the denials that concern the user, regardless of the request.
var ofUser = []error{rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound}

// fault converts the error from a request into the error of a call. It sets
// doubt if the request may have been carried out, or may still be.
func fault(ctx context.Context, err error) (_ error, doubt bool) {
	err = rpctypes.Error(err)
	if ctx.Err() == nil && isContextError(err) {
		err = errNoAnswer // the request's time limit has passed, not the caller's
	}
	switch {
	case err == errOverlooked:
		return err, false
	case errors.Is(err, errClusters): // either cluster may have carried out the request
		return err, true
	case isOneOf(err, ofUser):
		return fmt.Errorf("%w: %w", driver.ErrCredentials, err), false
	case isOneOf(err, denials):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err), false
	case isOneOf(err, refusals), isLearner(err), errors.Is(err, errNotSent), neverSent(err):
		return lifecycle.WithCause(ctx, driver.ErrUnavailable, err), false
	case isInvalid(err):
		return err, false
	}
	return lifecycle.WithCause(ctx, driver.ErrUnknown, err), true
}

// isInvalid reports whether the server has refused a request that it will never
// carry out, for example because the request is too large.
func isInvalid(err error) bool {
	var refusal rpctypes.EtcdError
	if !errors.As(err, &refusal) || errors.Is(err, rpctypes.ErrLeaseExist) {
		return false
	}
	code := refusal.Code()
	return code == codes.InvalidArgument || code == codes.FailedPrecondition || code == codes.OutOfRange
}

var (
	errNoAnswer = errors.New("no answer in time")
	errNotSent  = errors.New("the request was not sent")
	errAnswer   = errors.New("the server's answer does not match the request")
)

// final is an error that the caller gets unchanged, because an answer from the
// server proves it. Other errors come from requests.
type final struct{ error }

// Outcomes of an attempt for which giveUp has special cases.
var (
	errAgain = errors.New("ask again")                          // to try again with another key
	errGone  = errors.New("the place in the queue was removed") // by another client
	errOver  = errors.New("the session has ended")
)

func isContextError(err error) bool {
	code := status.Code(err)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || code == codes.DeadlineExceeded || code == codes.Canceled
}

func isOneOf(err error, list []error) bool {
	for _, e := range list {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func isLeaseGone(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }

// isForOne reports whether the server refused a request for several callers,
// without carrying it out, for a reason that may concern only one caller.
func isForOne(err error) bool {
	if err == nil {
		return false
	}
	err = rpctypes.Error(err)
	var refusal rpctypes.EtcdError
	return isOneOf(err, denials) || isLeaseGone(err) || errors.As(err, &refusal) && refusal.Code() == codes.InvalidArgument
}

// neverSent reports whether a request failed before there was a connection to
// send it on.
func neverSent(err error) bool {
	s, ok := status.FromError(err)
	text := err.Error()
	if ok {
		text = s.Message()
	}
	if ok && s.Code() != codes.Unavailable {
		return false
	}
	for _, part := range []string{"Error while dialing", "handshake failed", "error reading server preface", "no connection available", "no address available"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// queryFault is like fault, but for requests that belong to no hold and change
// nothing.
func (d *Driver) queryFault(ctx context.Context, err error) error {
	if d.life.Open().Err() != nil {
		return driver.ErrClosed
	}
	err, _ = fault(ctx, err)
	return err
}

// changeFault is like fault, but for requests that belong to no hold. If Close
// begins during a request that may have been carried out, the error matches
// driver.ErrUnknown and driver.ErrClosed.
func (d *Driver) changeFault(ctx context.Context, err error) error {
	err, doubt := fault(ctx, err)
	switch {
	case d.life.Open().Err() == nil:
		return err
	case doubt:
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	}
	return driver.ErrClosed
}
