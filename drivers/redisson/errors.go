package redisson

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
)

// ErrNotReplicated: too few replicas confirmed a grant or a renewal in time (Options.WaitReplicas). A grant was undone. The error matches
// driver.ErrUnavailable too.
var ErrNotReplicated = fmt.Errorf("not enough replicas: %w", driver.ErrUnavailable)

// unavailableCodes begin the errors by which a server refuses a command for now, before doing anything.
var unavailableCodes = []string{
	"READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "MOVED", "ASK",
	"max number of clients", // reached, by itself or with those of the cluster; the library leaves out the ERR before it
}

var permissionCodes = []string{"NOPERM", "NOAUTH", "WRONGPASS"}

// deniedInScript begins the errors, without a code, by which servers up to 7.0 refuse a command of a script. They do not name the
// command.
const deniedInScript = "The user executing the script can't"

// unknownInScript begins the errors by which servers refuse a command of a
// script that they do not know.
const unknownInScript = "Unknown Redis command called from"

// fault makes the error of a call out of the error of a request about name. Doubt says that the request was perhaps carried out, or may
// yet be.
func fault(ctx context.Context, name string, err error) (_ error, doubt bool) {
	if answer, ok := rueidis.IsRedisErr(err); ok {
		return refusal(name, answer)
	}
	kind, doubt := driver.ErrUnknown, true
	if neverSent(err) {
		kind, doubt = driver.ErrUnavailable, false
	}
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w (%w)", kind, err, ended), doubt
	}
	return fmt.Errorf("%w: %w", kind, err), doubt
}

// notSent is why a request was not sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// neverSent reports whether a request failed before there was a connection to send it on.
func neverSent(err error) bool {
	var dial *net.OpError
	return errors.As(err, new(notSent)) || errors.As(err, &dial) && dial.Op == "dial" ||
		errors.Is(err, rueidis.ErrNoSlot) || errors.Is(err, rueidis.ErrNoAddr)
}

// refusal is fault for an error that a server answered.
func refusal(name string, answer *rueidis.RedisError) (_ error, doubt bool) {
	text := answer.Error()
	if err := redisdial.RefusedCommand(answer); err != nil {
		return err, false
	}
	switch {
	case redisdial.HasCode(text, unavailableCodes...):
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, answer), false
	case redisdial.HasCode(text, deniedInScript, unknownInScript):
		return fmt.Errorf("%w: %s: %w", fs.ErrPermission, commandAt(text), answer), true
	case redisdial.HasCode(text, permissionCodes...):
		return fmt.Errorf("%w: %w", fs.ErrPermission, answer), true // a script may have been stopped half-way
	case redisdial.HasCode(text, "WRONGTYPE"):
		return fmt.Errorf("key %q, or one that belongs to it, is in use for something else: %w", name, answer), false
	}
	return answer, true
}

// slotMoves reports whether a node refused a request because some of its keys are on another node by now.
func slotMoves(err error) bool {
	var answer *rueidis.RedisError
	return errors.As(err, &answer) && redisdial.HasCode(answer.Error(), "TRYAGAIN")
}
