// Package guard lets a resource refuse a holder who is late: a write with a fencing token that is smaller than one that the resource has
// seen. A lock alone cannot stop such a write, which may be on its way while its lease ends; the resource can.
//
//	lease, err := client.Lock(ctx, "accounts/7")
//	...
//	err = guard.Postgres.Write(ctx, tx, "accounts/7", lease.Token()) // in the transaction that writes
//
// [Postgres], [SQLite] and [MySQL] keep the tokens in a table of the database that they protect, [Memory] in the process, [Handler] asks
// for them at the door of an HTTP service.
//
// A resource with a conditional write needs no table: an object store that has If-Match, for example. Read the object with its ETag and
// the token that it was written with, refuse if that token is larger than your own, and write object and token with If-Match.
package guard

import (
	"errors"
	"fmt"
	"math"
)

var (
	// ErrStale: a later holder has written. The caller has lost its lock, perhaps without knowing it yet, and must not write.
	ErrStale = errors.New("guard: the token is stale: a later holder has written")

	// ErrNoToken: the token is 0, which is what a lease of a backend without fencing tokens has.
	ErrNoToken = errors.New("guard: no fencing token")
)

// check returns token as databases keep it.
func check(name string, token uint64) (int64, error) {
	switch {
	case token == 0:
		return 0, fmt.Errorf("%w (%q)", ErrNoToken, name)
	case token > math.MaxInt64:
		return 0, fmt.Errorf("guard: the token %d of %q is larger than a bigint", token, name)
	}
	return int64(token), nil
}

func stale(name string, token uint64) error {
	return fmt.Errorf("%w (%q, token %d)", ErrStale, name, token)
}
