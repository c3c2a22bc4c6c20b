// Package bench compares dsync with other lock libraries on the same servers. A
// [Backend] has a row for each library, and a row for the floor: the fewest
// requests that make up a lock, sent through the same client library with
// nothing on top. Each [Workload] runs on all rows in turn, round after round,
// so that every row runs under the same conditions. The result is the ratio to
// the floor within a round.
//
// `make bench-peers` writes the report docs/bench/README.md.
// `make bench-gates` checks the ratios that docs/performance.md states.
package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// Locker acquires locks through one client of a library. Lock may be called
// concurrently.
type Locker interface {
	// Lock waits until it holds name or ctx is done.
	Lock(ctx context.Context, name string) (Held, error)
	Close() error
}

// BatchRenewer is a Locker that renews many locks in few requests.
type BatchRenewer interface {
	RenewAll(ctx context.Context, names []string) error
}

// Held is a held lock.
type Held interface {
	Release(ctx context.Context) error
	// Err returns an error if the library knows that the lock is lost.
	Err() error
}

// hold is the Held of floors and peers.
type hold struct {
	release func(ctx context.Context) error
	renew   func(ctx context.Context) error // nil if the library or a BatchRenewer renews the locks
	err     func() error                    // nil if only the release reports a loss
}

func (h *hold) Release(ctx context.Context) error { return h.release(ctx) }

func (h *hold) Err() error {
	if h.err == nil {
		return nil
	}
	return h.err()
}

// Kind is the role of a row in the comparison.
type Kind int

const (
	Floor Kind = iota
	Peer
	Ours
)

// Row is one way to lock on a backend.
type Row struct {
	Name string
	Kind Kind

	// Open returns a new client for the servers at addrs.
	Open func(ctx context.Context, addrs []string) (Locker, error)

	// In lists the numbers of the workloads in which the row takes part. Nil
	// means all workloads.
	In []int

	// Shared is set if several callers may hold a name at a time.
	Shared bool

	// MayFail is set if errors of the row are known and do not fail a run.
	MayFail bool
}

// key returns a lock name that no other row uses, because libraries on one
// backend store names differently.
func (r *Row) key(name string, round int) string {
	letters := strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			return c
		}
		return -1
	}, r.Name)
	return letters + "-" + name + strconv.Itoa(round)
}

// Servers are the servers of a backend.
type Servers struct {
	Addrs []string
	Pids  []int
}

// Backend is a kind of server with the libraries that lock on it. Each
// workload has one row of kind [Floor].
type Backend struct {
	Name  string
	Start func(tb testing.TB, storage testenv.Storage) *Servers
	Rows  []*Row

	// Warms is set if the server needs to warm up.
	Warms bool
}

// Backends lists all backends.
var Backends = []*Backend{redisBackend, redlockBackend, etcdBackend, zkBackend, pgBackend, mariadbBackend, mariadbPlainBackend}

// find returns the element with a name, or the zero value.
func find[T any](all []T, name string, of func(T) string) (found T) {
	if i := slices.IndexFunc(all, func(x T) bool { return of(x) == name }); i >= 0 {
		found = all[i]
	}
	return found
}

func findBackend(name string) *Backend {
	return find(Backends, name, func(b *Backend) string { return b.Name })
}

func (b *Backend) row(name string) *Row {
	return find(b.Rows, name, func(r *Row) string { return r.Name })
}

// heldTTL is the TTL of all locks of libraries that have a TTL.
const heldTTL = 6 * time.Second

var errLost = errors.New("the lock was no longer held")

// released returns an error unless a request changed exactly one key.
func released(n int64, err error) error {
	if err == nil && n != 1 {
		err = errLost
	}
	return err
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newID returns a random identity of 16 hexadecimal digits.
func newID() string { return strconv.FormatUint(rand.Uint64()|1<<63, 16) }
