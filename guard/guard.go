// Package guard lets a resource refuse a holder who is late: a write with a
// fencing token that is smaller than one that the resource has seen. A lock
// alone cannot stop such a write, which may be on its way while its lease ends;
// the resource can.
//
//	lease, err := client.Lock(ctx, "accounts/7")
//	...
//	err = guard.Postgres.Write(ctx, tx, "accounts/7", lease.Token()) // in the transaction that writes
//
// [Postgres], [SQLite] and [MySQL] keep the tokens in a table of the database
// that they protect, [Memory] in the process, [Handler] asks for them at the
// door of an HTTP service.
//
// # Present the token before you read what the decision depends on
//
// The resource refuses an earlier holder only after it has seen a later token.
// Until then a write of the earlier holder that is on its way counts, also
// after the later holder has read. A holder that reads a balance, computes the
// new one and presents its token only with the write loses that earlier write
// without an error. So the token comes first:
//
//   - work in one transaction calls [SQL.Write], then reads, then writes;
//   - longer work calls [SQL.Enter] at its beginning, then reads, and calls
//     [SQL.Write] in each transaction that writes;
//   - a resource in the process calls [Memory.Write] and reads and writes under
//     one mutex;
//   - a client of an HTTP service sends its token with the request that reads,
//     too.
//
// A write whose new value the resource computes itself, such as
// "set balance = balance - 10", reads behind its own token.
//
// # Conditional writes
//
// A resource with a conditional write needs no table: S3, for example, and
// other object stores that know If-Match. The object has the token that it was
// written with beside it, in its metadata. Who writes
//
//  1. reads the object, its token and its ETag, and gives up with [ErrStale] if
//     that token is larger than the own one;
//  2. writes the object and the own token with If-Match and that ETag, or with
//     If-None-Match: * where there was no object;
//  3. begins again if the answer is 412 (Precondition Failed): somebody else
//     has written in between.
//
// docs/recipes.md has the code. The same goes for a row with a version, or a
// key of etcd with its revision.
//
// # Tokens of another backend
//
// Each backend has a scale of its own: tokens of etcd are revisions, tokens of
// redisson microseconds since 1970, or with fence=redisson a count from 1. A
// program that moves to a backend with smaller tokens by its URL alone is
// refused from then on, and the text of the error has both tokens.
// Options.Floor, or floor= in the URL, lifts the tokens of the new backend:
// `dsync migrate` tells a floor; without a migration step by step take the
// largest token in the table (select max(token) from dsync_guard). For the same
// reason do not run a developer's memory:// on a database that lasts.
package guard

import (
	"errors"
	"fmt"
	"math"
)

var (
	// ErrStale: a later holder has written. The caller has lost its lock,
	// perhaps without knowing it yet, and must not write.
	ErrStale = errors.New("guard: the token is stale: a later holder has written")

	// ErrNoToken: the token is 0, which is what a lease of a backend without
	// fencing tokens has, and on PostgreSQL one that was over before it was
	// asked for its token.
	ErrNoToken = errors.New("guard: no fencing token")
)

// check refuses tokens that are none, and those that no database keeps.
func check(name string, token uint64) error {
	switch {
	case token == 0:
		return fmt.Errorf("%w (%q)", ErrNoToken, name)
	case token > math.MaxInt64:
		return fmt.Errorf("guard: the token %d of %q is larger than a bigint", token, name)
	}
	return nil
}

// compare refuses a token that is smaller than the one that is kept, if one is.
func compare(name string, token uint64, kept int64) error {
	if int64(token) < kept {
		return fmt.Errorf("%w (%q, token %d, after %d)", ErrStale, name, token, kept)
	}
	return nil
}
