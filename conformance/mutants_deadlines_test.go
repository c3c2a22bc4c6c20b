package conformance

import (
	"context"
	"time"

	"github.com/go-dsync/dsync"
)

var deadlineMutants = []mutant{
	{check: "deadlines/held", breaks: "a call with little time left does not say what it was told", owner: hasty()},
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
