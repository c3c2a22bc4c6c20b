package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync"
)

// CronLock is what gocron.WithDistributedLocker needs. Its Lock method returns gocron's type Lock, so a program adds a method that does:
//
//	type locker struct{ recipes.CronLock }
//	func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) { return l.Take(ctx, key) }
type CronLock struct {
	Locker dsync.Locker
	Hold   time.Duration // longer than the clocks of the processes are apart, shorter than the period
}

// Take takes the lock of one run.
func (c CronLock) Take(ctx context.Context, key string) (*CronLease, error) {
	lease, err := c.Locker.TryLock(ctx, key, dsync.ExpireAfter(c.Hold))
	if err != nil {
		return nil, err // and gocron skips the run
	}
	return &CronLease{lease}, nil
}

// CronLease implements gocron.Lock. Its Unlock does nothing: a lock that is free right after a short job lets a process whose clock is
// behind run the job again.
type CronLease struct{ lease *dsync.Lease }

// Unlock implements gocron.Lock.
func (*CronLease) Unlock(context.Context) error { return nil }

// Elector implements gocron.Elector: the process that holds the lock runs the jobs.
type Elector struct{ held chan *dsync.Lease }

// NewElector waits for the lock in the background, until ctx ends.
func NewElector(ctx context.Context, l dsync.Locker, name string) *Elector {
	e := &Elector{held: make(chan *dsync.Lease, 1)}
	e.held <- nil
	go func() { // ends with ctx
		_ = Lead(ctx, l, name, func(ctx context.Context) error {
			<-e.held
			e.held <- dsync.LeaseFrom(ctx)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	return e
}

// IsLeader implements gocron.Elector.
func (e *Elector) IsLeader(context.Context) error {
	lease := <-e.held
	e.held <- lease
	if err := lease.Err(); err != nil { // of no lease, too
		return errors.Join(errors.New("not the leader"), err)
	}
	return nil
}
