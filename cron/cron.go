// Package cron runs a job once per period in one of the processes of a fleet.
//
// Each process has the same [Job] and calls [Job.Loop], or calls [Job.Once]
// from its own scheduler. A job cannot simply call TryLock, do its work and
// call Unlock: clocks differ, so a short job would have released the lock
// before the next process tries. The backend therefore keeps the lock of a
// period until the period has ended (dsync.HoldAtLeast). Memory, Redis, etcd
// and tables support this. Redlock supports it up to maxttl. On ZooKeeper and
// PostgreSQL advisory locks, Loop and Once fail with errors.ErrUnsupported.
//
// A period has at most one run. It has no run if the process that began the run
// dies, or if the backend is out of reach for the first quarter of the period.
// A job that must not be skipped belongs in a queue.
package cron

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-dsync/dsync"
)

// Job is a job that a fleet runs once per period. Its fields must not change
// while it is in use, and its methods may be called concurrently.
type Job struct {
	// Locker is a client of a backend that the fleet shares. If a process dies
	// during a run, other processes cannot begin the next run until this TTL
	// has passed.
	Locker dsync.Locker

	// Name is the same in each process. The job locks Name, and Name/0 to
	// Name/999 in turn.
	Name string

	// Every is the length of a period, 1 s or more. Periods begin at multiples
	// of Every since the year 1, UTC. The clocks of processes may differ by up
	// to a quarter of it.
	Every time.Duration

	// Run does the work. Its context ends with the context of Loop or Once, and
	// when the lock is lost. Two runs never overlap. A run that takes longer
	// than Every delays the next run by up to a quarter of a period, or causes
	// it to be missed.
	Run func(ctx context.Context, at time.Time) error

	// Report is called with the outcome of each period that begins while Run
	// does not run in this process. A period had a run if one of the processes
	// reports Ran. Nil means no reports.
	Report func(Result)
}

// Outcome is the outcome of a period.
type Outcome int

const (
	Elsewhere Outcome = iota // another process has begun the period; it may have died in Run
	Ran                      // Run ran in this process
	Missed                   // Run did not run, for the reason Result.Err
)

func (o Outcome) String() string { return [...]string{"elsewhere", "ran", "missed"}[o] }

// Result is the outcome of a period, as far as this process knows.
type Result struct {
	At      time.Time // the start of the period
	Outcome Outcome

	// Err is the error of Run, or the reason why the period was missed. It
	// matches dsync.ErrLocked if the previous run has not ended, and
	// dsync.ErrUnavailable or dsync.ErrUnknown if the backend did not answer.
	// If the lock was lost in the middle of a run, Err matches dsync.ErrLost.
	Err error

	// Took is the duration of the call to Run. If it is longer than Job.Every,
	// periods were missed.
	Took time.Duration
}

// errLate is the error for a period that this process reached too late.
var errLate = errors.New("the process was late by a quarter of the period")

// check returns an error if the job is invalid.
func (j *Job) check() error {
	switch {
	case j.Name == "" || j.Run == nil:
		return fmt.Errorf("cron: job %q has no Name or no Run", j.Name)
	case j.Every < time.Second:
		return fmt.Errorf("cron: job %q: Every is %v, less than 1s", j.Name, j.Every)
	}
	return nil
}

// checkBackend returns an error if the backend releases the lock of a period
// when its client goes away.
func (j *Job) checkBackend() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	lease, err := j.period(ended, time.Time{})
	if err == nil {
		return lease.Unlock(context.Background()) // this Locker ignored its context
	}
	if !errors.Is(err, context.Canceled) {
		return fmt.Errorf("cron: job %q: %w", j.Name, err)
	}
	return nil
}

// names is the number of lock names that the periods use in turn. The lock of a
// period may outlast the period by half a period. On etcd it may last even
// longer, because a server restart starts each TTL again.
const names = 1000

// period locks the period that begins at the given time.
func (j *Job) period(ctx context.Context, at time.Time) (*dsync.Lease, error) {
	number := uint64(at.UnixNano()/int64(j.Every)) % names
	name := j.Name + "/" + strconv.FormatUint(number, 10)
	return j.Locker.TryLock(ctx, name, dsync.HoldAtLeast(j.Every), dsync.ExpireAfter((j.Every * 3 / 2).Truncate(time.Second)))
}

// Loop runs the job in this process whenever a period begins that no other
// process has claimed. It returns when ctx is done and the last run has
// returned. It returns the error of ctx. If the job cannot work, it returns an
// error immediately. Loop skips periods that begin during a call to Run.
func (j *Job) Loop(ctx context.Context) error {
	err := j.check()
	if err == nil {
		err = j.checkBackend()
	}
	if err != nil {
		return err
	}
	for {
		at := time.Now().Truncate(j.Every).Add(j.Every)
		timer := time.NewTimer(time.Until(at))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		j.Once(ctx, at)
	}
}

// Once runs the job if no other process has claimed the period that begins at
// the time at. It returns the outcome. All processes pass the same at: the
// scheduled time of the run, not the time of the call.
func (j *Job) Once(ctx context.Context, at time.Time) Result {
	r := j.once(ctx, at)
	r.At = at
	if j.Report != nil {
		j.Report(r)
	}
	return r
}

func (j *Job) once(ctx context.Context, at time.Time) Result {
	if err := j.check(); err != nil {
		return Result{Outcome: Missed, Err: err}
	}
	lease, err := j.claim(ctx, at)
	switch {
	case errors.Is(err, dsync.ErrLocked):
		return Result{Outcome: Elsewhere}
	case err != nil:
		return Result{Outcome: Missed, Err: err}
	}
	// Unlock leaves the lock on the backend until the period has ended.
	defer lease.Unlock(ctx)
	var took time.Duration
	err = dsync.Do(ctx, j.Locker, j.Name, func(ctx context.Context) error {
		began := time.Now()
		defer func() { took = time.Since(began) }()
		if time.Since(at) >= j.Every { // this machine was suspended after claim
			return errLate
		}
		return j.Run(ctx, at)
	}, dsync.WaitAtMost(j.Every/4))
	ran, failed := dsync.Ran(err)
	switch {
	case !ran, failed == errLate:
		return Result{Outcome: Missed, Err: err}
	case errors.Is(err, dsync.ErrLost):
		failed = err
	}
	return Result{Outcome: Ran, Err: failed, Took: took}
}

// claim acquires the lock of a period. If the backend is out of reach or does
// not answer a request, claim tries again until a quarter of the period has
// passed. The client releases a lock that was granted by an unanswered request.
func (j *Job) claim(ctx context.Context, at time.Time) (*dsync.Lease, error) {
	if time.Since(at) >= j.Every/4 {
		return nil, errLate
	}
	ctx, cancel := context.WithDeadline(ctx, at.Add(j.Every/4))
	defer cancel()
	for trouble := false; ; {
		lease, err := j.period(ctx, at)
		if transient := errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrUnknown); transient {
			trouble = true
		} else if !trouble || !errors.Is(err, dsync.ErrLocked) {
			// Otherwise the unanswered request may block the next claim.
			return lease, err
		}
		select {
		case <-time.After(j.Every / 50):
		case <-ctx.Done():
			return nil, err
		}
	}
}
