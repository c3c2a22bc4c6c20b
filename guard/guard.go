// Package guard lets a resource refuse a late holder: it rejects a write whose
// fencing token is smaller than a token that the resource has seen. A lock by
// itself cannot stop such a write, which may be on its way while its lease
// ends. The resource can.
//
//	lease, err := client.Lock(ctx, "accounts/7")
//	...
//	err = guard.Postgres.Write(ctx, tx, "accounts/7", lease.Token()) // in the transaction that writes
//
// [Postgres], [SQLite] and [MySQL] keep the tokens in a table of the database
// that they protect. [Memory] keeps them in the process. [Handler] checks them
// at the entrance of an HTTP service.
//
// # Present the token before you read what the decision depends on
//
// The resource refuses an earlier holder only after it has seen a later token.
// Until then, a pending write of the earlier holder still takes effect, even
// after the later holder has read. A holder that reads a balance, computes the
// new one and presents its token only with the write overwrites that earlier
// write without an error. So present the token first:
//
//   - work in one transaction calls [SQL.Write], then reads, then writes;
//   - longer work calls [SQL.Enter] at its beginning, then reads, and calls
//     [SQL.Write] in each transaction that writes;
//   - a resource in the process calls [Memory.Write] and reads and writes under
//     one mutex;
//   - a client of an HTTP service sends its token with the request that reads,
//     too.
//
// A write whose new value is computed by the resource itself, such as "set
// balance = balance - 10", reads after its own token.
//
// # Conditional writes
//
// A resource with a conditional write needs no table: S3, for example, and
// other object stores that support If-Match. The token that the object was
// written with is stored in its metadata. A writer
//
//  1. reads the object, its token and its ETag, and gives up with [ErrStale] if
//     that token is larger than its own;
//  2. writes the object and its own token with If-Match and that ETag, or with
//     If-None-Match: * where there was no object;
//  3. starts over if the answer is 412 (Precondition Failed): another client
//     has written in between.
//
// docs/recipes.md contains the code. The same applies to a row with a version,
// or to an etcd key with its revision.
//
// # Tokens of another backend
//
// Each backend has its own scale: etcd tokens are revisions. redisson tokens
// are microseconds since 1970, or a count from 1 with fence=redisson. If a
// program moves to a backend with smaller tokens by only changing its URL, all
// its writes are refused from then on. The text of the error contains both
// tokens. Options.Floor, or floor= in the URL, raises the tokens of the new
// backend. `dsync migrate` prints a floor. Without a step-by-step migration use
// the largest token in the table (select max(token) from dsync_guard). For the
// same reason do not use memory:// in development with a database that
// persists.
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

	// ErrNoToken: the token is 0. A lease has no token if the backend has no
	// fencing tokens. On PostgreSQL a lease also has none if it ended before
	// its token was requested.
	ErrNoToken = errors.New("guard: no fencing token")
)

// check refuses invalid tokens, and tokens that no database can store.
func check(name string, token uint64) error {
	switch {
	case token == 0:
		return fmt.Errorf("%w (%q)", ErrNoToken, name)
	case token > math.MaxInt64:
		return fmt.Errorf("guard: the token %d of %q is larger than a bigint", token, name)
	}
	return nil
}

// compare refuses a token that is smaller than the stored one, if there is one.
func compare(name string, token uint64, kept int64) error {
	if int64(token) < kept {
		return fmt.Errorf("%w (%q, token %d, after %d)", ErrStale, name, token, kept)
	}
	return nil
}
