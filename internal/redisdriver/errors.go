package redisdriver

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

// ErrAnswer reports an answer that no script gives.
var ErrAnswer = errors.New("the server's answer makes no sense")

// unavailableCodes begin the errors by which a server refuses a command for
// now, before doing anything.
var unavailableCodes = []string{
	"READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "MOVED", "ASK",
	// reached, by itself or with those of the cluster; the library leaves out
	// the ERR before it
	"max number of clients",
}

var credentialCodes = []string{"NOAUTH", "WRONGPASS"}

// deniedInScript begins the errors, without a code, by which servers up to 7.0
// refuse a command of a script. They do not name the command.
const deniedInScript = "The user executing the script can't"

// unknownInScript begins the errors by which servers refuse a command of a
// script that they do not know.
const unknownInScript = "Unknown Redis command called from"

// Fault makes the error of a call out of the error of a request about name.
// Doubt says that the request was perhaps carried out, or may yet be.
func Fault(ctx context.Context, name string, err error) (_ error, doubt bool) {
	if answer, ok := rueidis.IsRedisErr(err); ok {
		return Refusal(name, answer)
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

// Explain is Fault without the doubt. It returns nil for nil.
func Explain(ctx context.Context, name string, err error) error {
	if err != nil {
		err, _ = Fault(ctx, name, err)
	}
	return err
}

// NotSent is why a request was not sent, and never will be.
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

// Refusal is Fault for an error that a server answered.
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
		// a command may have been sent before
		return fmt.Errorf("%w: %w", driver.ErrCredentials, answer), true
	case redisdial.HasCode(text, "NOPERM"):
		// a script may have been stopped half-way
		return fmt.Errorf("%w: %w", fs.ErrPermission, answer), true
	case redisdial.HasCode(text, "WRONGTYPE"):
		return fmt.Errorf("key %q, or one that belongs to it, is in use for something else: %w", name, answer), false
	}
	return answer, true
}

// Transient reports whether a request may succeed when it is repeated.
func Transient(err error) bool {
	return errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable)
}

// Lowest version of Redis. Valkey began at 7.2.
const minMajor, minMinor = 6, 2

// CheckVersion returns an error for a server that is too old.
func CheckVersion(version string) error {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n == 2 && (major < minMajor || major == minMajor && minor < minMinor) {
		return fmt.Errorf("the server is Redis %s, and %d.%d is the oldest that will do: %w", version, minMajor, minMinor, errors.ErrUnsupported)
	}
	return nil
}

// CheckEviction returns an error for a server that evicts keys, by its
// maxmemory-policy if that is known.
func CheckEviction(policy string) error {
	if policy == "" || policy == "noeviction" {
		return nil
	}
	return fmt.Errorf("the server may evict locks that are held (its maxmemory-policy is %s, not noeviction); evict=allow, or Options.AllowEviction, accepts that", policy)
}

// ErrEvicts refuses what is to last, such as a seal.
var ErrEvicts = fmt.Errorf("a server that may evict keys cannot keep a seal or a mark: %w", errors.ErrUnsupported)
