package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/redisdial"
)

// ErrAnswer reports a response that no script returns.
var ErrAnswer = errors.New("the server's answer is invalid")

// unavailableCodes are the prefixes of the errors with which a server
// temporarily refuses a command, before doing anything.
var unavailableCodes = []string{
	"READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "MOVED", "ASK",
	// the limit is reached by the node alone or together with the connections
	// of the cluster; the library omits the ERR before this text
	"max number of clients",
}

var credentialCodes = []string{"NOAUTH", "WRONGPASS"}

// deniedInScript is the prefix of the errors, without a code, by which servers
// up to 7.0 refuse a command in a script. They do not name the command.
const deniedInScript = "The user executing the script can't"

// unknownInScript is the prefix of the errors by which servers refuse an
// unknown command in a script.
const unknownInScript = "Unknown Redis command called from"

// Fault turns the error from a request about name into the error of a call.
// doubt reports that the request may have been executed, or may still be.
func Fault(ctx context.Context, name string, err error) (_ error, doubt bool) {
	if answer, ok := rueidis.IsRedisErr(err); ok {
		return Refusal(name, answer)
	}
	if neverSent(err) {
		return lifecycle.WithCause(ctx, driver.ErrUnavailable, err), false
	}
	return lifecycle.WithCause(ctx, driver.ErrUnknown, err), true
}

// Explain is like Fault, but does not return doubt. It returns nil for nil.
func Explain(ctx context.Context, name string, err error) error {
	if err != nil {
		err, _ = Fault(ctx, name, err)
	}
	return err
}

// NotSent is the error of a request that was not sent, and never will be, for
// the reason Why.
type NotSent struct{ Why error }

func (e NotSent) Error() string { return e.Why.Error() }
func (e NotSent) Unwrap() error { return e.Why }

// neverSent reports whether a request failed before there was a connection to
// send it on.
func neverSent(err error) bool {
	var dial *net.OpError
	return errors.As(err, new(NotSent)) || errors.As(err, &dial) && dial.Op == "dial" ||
		errors.Is(err, rueidis.ErrNoSlot) || errors.Is(err, rueidis.ErrNoAddr)
}

// Refusal is like Fault for an error that a server returned.
func Refusal(name string, answer *rueidis.RedisError) (_ error, doubt bool) {
	text := answer.Error()
	if err := redisdial.RefusedCommand(answer); err != nil {
		return err, false
	}
	switch {
	case redisdial.HasCode(text, unavailableCodes...):
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, answer), false
	case redisdial.HasCode(text, deniedInScript, unknownInScript):
		return fmt.Errorf("%w: %s: %w", fs.ErrPermission, commandAt(text), answer), true
	case redisdial.HasCode(text, credentialCodes...):
		// a command may have been sent earlier
		return fmt.Errorf("%w: %w", driver.ErrCredentials, answer), true
	case redisdial.HasCode(text, "NOPERM"):
		// a script may have been stopped half-way
		return fmt.Errorf("%w: %w", fs.ErrPermission, answer), true
	case redisdial.HasCode(text, "WRONGTYPE"):
		return fmt.Errorf("key %q, or a key that belongs to it, is used for something else: %w", name, answer), false
	}
	return answer, true
}

// The lowest supported version of Redis. Valkey's first version is 7.2.
const minMajor, minMinor = 6, 2

// CheckVersion returns an error for a server that is too old.
func CheckVersion(version string) error {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n == 2 && (major < minMajor || major == minMajor && minor < minMinor) {
		return fmt.Errorf("the server is Redis %s, and the oldest supported version is %d.%d: %w", version, minMajor, minMinor, errors.ErrUnsupported)
	}
	return nil
}

// CheckEviction returns an error for a server that evicts keys, according to
// its maxmemory-policy if known.
func CheckEviction(policy string) error {
	if policy == "" || policy == "noeviction" {
		return nil
	}
	return fmt.Errorf("the server may evict locks that are held (its maxmemory-policy is %s, not noeviction); evict=allow, or Options.AllowEviction, accepts that", policy)
}

// ErrEvicts refuses a permanent change, such as a seal.
var ErrEvicts = fmt.Errorf("a server that may evict keys cannot keep a seal or a mark: %w", errors.ErrUnsupported)
