// Package bench compares dsync with what people use today, on the same servers in one run. A [Backend] has a row for each library, and
// one for the floor: the fewest requests that a lock can be made of, sent through the same client library with nothing on top. A
// [Workload] is run on all rows in turn, round after round, so that all see the same machine; what counts is the ratio to the floor
// within a round.
//
// `make bench-peers` runs it on servers with a disk, and again on servers without one, and writes docs/bench.
package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// Locker takes locks by one library, through one client of it. Lock may be called concurrently.
type Locker interface {
	// Lock waits until it holds name or ctx is done.
	Lock(ctx context.Context, name string) (Held, error)
	Close() error
}

// Held is a lock that is held. What implements it should not cost an allocation more than the library does.
type Held interface {
	Release(ctx context.Context) error
}

// Renewer is a Held that lasts for [heldTTL] only unless it is renewed.
type Renewer interface {
	Held
	Renew(ctx context.Context) error
}

// BatchRenewer is a Locker that renews many locks in few requests.
type BatchRenewer interface {
	RenewAll(ctx context.Context, held []Held) error
}

// Lossy is a Held that knows when it is lost.
type Lossy interface {
	Held
	Err() error
}

// Kind says what a row is there for.
type Kind string

const (
	Floor Kind = "floor"
	Peer  Kind = "peer"
	Ours  Kind = "dsync"
)

// Row is one way to lock on a backend.
type Row struct {
	Name string
	Kind Kind

	// Open returns a new client, for servers at addrs.
	Open func(ctx context.Context, addrs []string) (Locker, error)

	// MayFail reports whether the row is known to end with an error now and then, so that the error fails no run. Nil means never.
	MayFail func(w *Workload, err error) bool

	// In is the workloads that the row takes part in, by number; nil means all that are not for rows that name them. Elsewhere the table
	// leaves it out.
	In []int

	planted int // see plant
}

// key returns a name for locks that no other row uses: libraries of one backend differ in what they make of a name.
func (r *Row) key(parts ...any) string {
	letters := strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			return c
		}
		return -1
	}, r.Name)
	return letters + "-" + fmt.Sprint(parts...)
}

// Servers are what a backend runs on.
type Servers struct {
	Addrs []string
	Pids  []int

	// Counter counts the requests of clients from now on.
	Counter func(tb testing.TB) counter

	// Runs is Count for rows that ask by scripts alone, where Count keeps the servers from their work; else it is nil.
	Runs func(tb testing.TB, during func()) int64

	// Left returns what the servers keep now, by metric of the curve of names.
	Left func(tb testing.TB) Sample
}

// Backend is a kind of server, and who uses it for locks. The rows of kind [Floor] come first; there is one for each workload.
type Backend struct {
	Name  string
	Start func(tb testing.TB, storage testenv.Storage) *Servers
	Rows  []*Row

	// Warms says that the server is slow at first, and not worth measuring.
	Warms bool
}

// Backends are all there are.
var Backends = []*Backend{redisBackend, redlockBackend, etcdBackend, zkBackend, pgBackend}

// find returns a row by the names of its backend and its own.
func find(backend, row string) *Row {
	for _, b := range append(slices.Clone(Backends), memoryBackend) {
		for _, r := range b.Rows {
			if b.Name == backend && r.Name == row {
				return r
			}
		}
	}
	return nil
}
