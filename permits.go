package dsync

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/go-dsync/dsync/driver"
)

// modes is how many modes there are.
const modes = driver.Permit + 1

// Permits takes n of limit permits of the name: at no time are more than limit of them held. Lock waits until n are free, and gets all of
// them or none; Unlock gives all of them back. The permits of a holder that is gone are free again after the TTL, and permits with
// ExpireAfter at the time that this says.
//
//	err = dsync.Do(ctx, dsync.With(client, dsync.Permits(1, 10)), "api/"+tenant, call) // at most ten calls at a time, over all machines
//
// The backend keeps the limit. The first Lock of a name says what it is; a later one that says another limit fails with [ErrLimit]. A limit
// of 0 is the one that is kept, for programs whose limit changes while they run: see [Client.SetLimit]. A limit of a Lock is forgotten some
// time after the last permit was given back.
//
// A call that waits for many permits is not overtaken by callers of its own Client with fewer, but for 100 ms, while holds are handed over as
// those of locks are. Later callers of other clients wait behind it where the backend has an order (Info.Permits.Order).
//
// A lease of permits has no token. Permits do not re-enter, not through an [Owner] either: each Lock takes further ones, and returns ErrDeadlock
// under contexts of leases of the same name (see Lease.Context) that leave too few. A name is used for permits or for locks: what becomes of the
// two beside each other is not promised. If the backend does not offer permits, Lock returns errors.ErrUnsupported.
func Permits(n, limit int) LockOption {
	return LockOption{mode: driver.Permit, permits: n, limit: limit}
}

// maxLimit is the highest limit, which every backend can keep.
const maxLimit = math.MaxInt32

// checkPermits returns an error if a request for permits makes no sense.
func checkPermits(r request) error {
	switch {
	case r.permits < 1:
		return fmt.Errorf("Permits(%d, %d): the number is not 1 or more", r.permits, r.limit)
	case r.limit < 0 || r.limit > maxLimit:
		return fmt.Errorf("Permits(%d, %d): the limit is not between 0 and %d", r.permits, r.limit, maxLimit)
	case r.permits > maxLimit || r.limit > 0 && r.permits > r.limit:
		return fmt.Errorf("Permits(%d, %d): the number is above the limit", r.permits, r.limit)
	}
	return nil
}

// SetLimit sets how many permits of name there are, 1 or more, until the next SetLimit. A limit below what is held takes nothing from
// anybody: nothing is granted until enough was given back. Calls that wait and name another limit, or ask for more, fail with [ErrLimit]. After
// ErrUnknown call SetLimit again. If the backend does not offer permits, SetLimit returns errors.ErrUnsupported.
func (c *Client) SetLimit(ctx context.Context, name string, limit int) error {
	return c.admin("set limit", name, func() error {
		l, ok := c.driver.(driver.Limiter)
		switch {
		case !c.info.Offers(driver.Permit):
			return c.info.CheckMode(driver.Permit)
		case !ok:
			return errors.ErrUnsupported
		case limit < 1 || limit > maxLimit:
			return fmt.Errorf("limit %d is not between 1 and %d", limit, maxLimit)
		}
		return l.SetLimit(ctx, name, limit)
	})
}
