package conformance

import (
	"context"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var deadlineMutants = []mutant{
	{check: "deadlines/held", breaks: "a call with little time left does not say what it was told", owner: hasty()},
	{
		check:  "deadlines/silent",
		breaks: "a wait that ended bids the backend farewell for half a second",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if ctx.Err() != nil {
				farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
				defer cancel()
				_, _ = d.Inspect(farewell, r.Name)
			}
			return l, err
		}),
	},
}

// hasty returns a mutation whose waits of less than a tenth of a second return the error of their context alone.
func hasty() func(*client, locker) locker {
	return func(_ *client, l locker) locker { return hastyLocker{l} }
}

type hastyLocker struct{ locker }

func (l hastyLocker) lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
	end, ok := ctx.Deadline()
	brief := ok && time.Until(end) < 100*time.Millisecond
	h, err := l.locker.lock(ctx, try, name, opts...)
	if err != nil && brief && ctx.Err() != nil {
		err = ctx.Err()
	}
	return h, err
}
