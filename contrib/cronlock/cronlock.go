// Package cronlock runs the jobs of gocron and of robfig/cron in one process of
// a fleet at a time. Package cron of dsync does the same without a scheduler.
//
// The clocks of the processes differ. A process whose clock is late by more
// than the duration of a short job would run the job again. So a Locker and a
// Wrapper keep the lock for a minimum time. It must be longer than the
// difference between the clocks and shorter than the period. The backend must
// support dsync.HoldAtLeast: the memory, Redis and etcd backends and the table
// backends do.
package cronlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"

	"github.com/go-dsync/dsync"
)

// Locker is a gocron.Locker. The lock has the name of the job. With Keep, the
// Locker also acquires a lock for the run, which has the name of the job
// followed by "/run".
//
// gocron does not notify a job of the loss of its lock. A job that must not
// overlap with its next run calls dsync.Do itself, or uses package cron of
// dsync.
type Locker struct {
	Locker dsync.Locker
	// how long the lock is held at least; 0 releases the lock when the job ends
	Keep time.Duration
}

var (
	_ gocron.Locker  = Locker{}
	_ gocron.Elector = (*Elector)(nil)
)

// Lock implements gocron.Locker. It does not wait. If it fails, gocron skips
// the job.
func (l Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.Locker.TryLock(ctx, key)
	if err == nil {
		err = keep(ctx, l.Locker, key, l.Keep)
	}
	if err == nil {
		return lease, nil
	}
	if lease != nil {
		_ = lease.Unlock(ctx) // err reports why the job is skipped
	}
	return nil, err
}

// keep prevents other processes from running a job for a while. The lock of the
// job itself is renewed, so it cannot outlast its holder.
func keep(ctx context.Context, l dsync.Locker, name string, d time.Duration) error {
	if d == 0 {
		return nil
	}
	run, err := l.TryLock(ctx, name+"/run", dsync.ExpireAfter(d), dsync.HoldAtLeast(d))
	if err != nil {
		return err
	}
	return run.Unlock(ctx) // the backend keeps the lock
}

// Elector is a gocron.Elector: the scheduler of the leader runs all jobs.
type Elector struct {
	term atomic.Pointer[dsync.Lease]
	done chan struct{}
	err  error
}

// Campaign makes the process a candidate for the leadership name until ctx
// ends.
func Campaign(ctx context.Context, l dsync.Locker, name string) *Elector {
	e := &Elector{done: make(chan struct{})}
	go func() { // ends when ctx ends, or after a permanent error
		defer close(e.done)
		e.err = dsync.Elect(ctx, l, name, func(ctx context.Context, term *dsync.Lease) error {
			e.term.Store(term)
			<-ctx.Done()
			return nil
		})
	}()
	return e
}

// IsLeader implements gocron.Elector.
func (e *Elector) IsLeader(context.Context) error {
	select {
	case <-e.done:
		if e.err != nil {
			return e.err
		}
	default:
	}
	if term := e.term.Load(); term != nil {
		return term.Err()
	}
	return dsync.ErrLocked
}

// Wait returns the error of dsync.Elect after the process has stopped being a
// candidate and has released the leadership. A service calls Wait after it has
// ended the context of Campaign.
func (e *Elector) Wait() error {
	<-e.done
	return e.err
}

// Wrapper returns a cron.JobWrapper of robfig/cron. A run is skipped if its
// lock is held. report receives the ErrLocked of a skipped run and any other
// error of the lock.
func Wrapper(ctx context.Context, l dsync.Locker, name string, keepFor time.Duration, report func(error)) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return cron.FuncJob(func() {
			err := dsync.TryDo(ctx, l, name, func(ctx context.Context) error {
				err := keep(ctx, l, name, keepFor)
				if err == nil {
					job.Run()
				}
				return err
			})
			if err != nil {
				report(err)
			}
		})
	}
}
