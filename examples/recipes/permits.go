package recipes

import (
	"context"
	"time"

	"github.com/go-dsync/dsync"
)

// AtMost8 runs fn. At most eight callers of AtMost8 with the same name, on all
// machines together, run fn at a time.
func AtMost8(ctx context.Context, l dsync.Locker, name string, fn func(context.Context) error) error {
	return dsync.Do(ctx, dsync.With(l, dsync.Permits(1, 8)), name, fn)
}

// Allowed returns nil a hundred times in any minute, on all machines together,
// and then ErrLocked.
func Allowed(ctx context.Context, l dsync.Locker, name string) error {
	lease, err := l.TryLock(ctx, name, dsync.Permits(1, 100), dsync.ExpireAfter(time.Minute), dsync.HoldAtLeast(time.Minute))
	if err != nil {
		return err
	}
	return lease.Unlock(ctx) // the permit returns after the minute
}
