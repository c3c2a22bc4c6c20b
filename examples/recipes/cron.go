// Package recipes has the code of docs/recipes.md, with a test for each recipe. It is there to be copied.
package recipes

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-dsync/dsync"
)

// OncePerPeriod runs job in one of all processes that call OncePerPeriod with the same name for the same period. at is the time for
// which the run was scheduled.
func OncePerPeriod(ctx context.Context, l dsync.Locker, name string, period time.Duration, at time.Time,
	job func(context.Context) error) error {
	if time.Since(at) >= period {
		return nil // too late: the lock of the process that has run the job may be over
	}
	// Two locks take turns, so that the lock of one period may outlast it, and never keeps a process from the next one.
	turn := name + "/" + strconv.FormatInt(at.UnixNano()/int64(period)%2, 10)
	lease, err := l.TryLock(ctx, turn, dsync.ExpireAfter((period * 3 / 2).Truncate(time.Second)), dsync.WaitAtMost(period/4))
	if errors.Is(err, dsync.ErrLocked) {
		return nil // another process has this period
	}
	if err != nil {
		return err
	}
	under, cancel := lease.Context(ctx)
	defer cancel()
	return job(under) // and no Unlock: processes whose clocks are behind ask later
}
