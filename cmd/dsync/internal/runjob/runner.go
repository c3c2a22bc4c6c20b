package runjob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// guardName is the command that run starts in addition to the user's command.
// It ends the user's command in time even if the run process dies.
const guardName = "guard"

// runner runs a command under a lock, once or in each of its terms.
type runner struct {
	runFlags
	name    string
	path    string // of the command
	argv    []string
	stderr  io.Writer
	client  *dsync.Client
	signals *signals
	// The time from KILL to the deadline of the lease, in which the kernel ends
	// processes, even on a busy machine.
	reserve time.Duration
}

// ending is the outcome of a command.
type ending struct {
	started bool
	status  int   // of the command
	lost    error // why the command was ended or not started; nil if it ended by itself
	err     error // an exitError: the command could not be started or watched
}

// say writes a message to standard error.
func (r *runner) say(format string, args ...any) {
	fmt.Fprintf(r.stderr, "dsync: %s\n", fmt.Sprintf(format, args...))
}

// once runs the command under one lease. If the lock is lost before the command
// begins, once waits for the lock again unless waiting is disabled.
func (r *runner) once(ctx context.Context) error {
	lock := r.client.Lock
	if r.try {
		lock = r.client.TryLock
	}
	for until := time.Now().Add(r.wait); ; {
		lease, err := lock(ctx, r.name, r.options(time.Until(until))...)
		if err != nil {
			return r.notLocked(ctx, err)
		}
		done := r.under(ctx, lease)
		unlocked := lease.Unlock(ctx)
		again := done.lost != nil && !done.started && done.err == nil && !r.try && (r.wait == 0 || time.Now().Before(until))
		if !again || interruption(ctx) != nil {
			return r.verdict(ctx, done, unlocked)
		}
		r.say("%v (the command was not started; dsync waits for the lock again)", done.lost)
		select {
		case <-time.After(rand.N(time.Second)): // as an election does
		case <-ctx.Done():
			return r.verdict(ctx, ending{}, nil)
		}
	}
}

// elect runs the command in each term until the command ends by itself.
func (r *runner) elect(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var locker dsync.Locker = r.client
	if r.write {
		locker = dsync.With(locker, dsync.Write())
	}
	for {
		var done ending
		err := dsync.Elect(ctx, locker, r.name, func(_ context.Context, term *dsync.Lease) error {
			if done = r.under(ctx, term); done.err != nil {
				end() // even if the lock is lost, because another term would end the same way
			} else if done.lost != nil {
				r.say("%v", cli.Exit(cli.ExitLost, done.lost))
			}
			return nil
		})
		if done.err != nil {
			return done.err
		}
		var left *dsync.DoError
		if err != nil && !errors.As(err, &left) {
			return r.notLocked(ctx, err)
		}
		if done.lost != nil && ctx.Err() == nil {
			continue // the command was ended in time, but the lease was renewed after all
		}
		if left != nil {
			err = left.Unlock
		}
		return r.verdict(ctx, done, err)
	}
}

// options returns the options of a call that waits for a limited time.
func (r *runner) options(left time.Duration) []dsync.LockOption {
	var opts []dsync.LockOption
	if r.wait > 0 {
		opts = append(opts, dsync.WaitAtMost(max(left, time.Millisecond)))
	}
	if r.read {
		opts = append(opts, dsync.Read())
	}
	if r.write {
		opts = append(opts, dsync.Write())
	}
	if r.permits.asked() {
		opts = append(opts, r.permits.option())
	}
	if r.atLeast > 0 {
		opts = append(opts, dsync.ExpireAfter(r.lasting(r.atLeast)), dsync.HoldAtLeast(r.atLeast))
	}
	return opts
}

// lasting returns a lease length of at least d, in the units of the backend,
// that is no shorter than other leases.
func (r *runner) lasting(d time.Duration) time.Duration {
	d = max(d, r.ttl)
	if unit := r.client.Info().TTLUnit; unit > 0 {
		d = (d + unit - 1) / unit * unit
	}
	return d
}

// under runs the command under a lease and returns when no process of its group
// is left.
func (r *runner) under(ctx context.Context, lease *dsync.Lease) ending {
	var beside sync.WaitGroup
	defer beside.Wait()
	holding, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	beside.Go(func() { lease.WatchRemoval(holding) })
	if r.atLeast > 0 {
		until := time.Now().Add(r.atLeast)
		beside.Go(func() { r.keep(holding, lease, until) })
	}
	if r.settle && !r.settled(ctx, lease) {
		return ending{lost: lease.Err()}
	}
	r.signals.take()
	defer r.signals.watch()
	if interruption(ctx) != nil {
		return ending{}
	}
	return r.supervise(lease)
}

// settled waits out a possible earlier holder with the same TTL that was not
// notified of a loss. The backend may have forgotten that holder, but the
// holder's last renewal was before this grant. It returns false if the lease
// has ended or the wait was interrupted.
func (r *runner) settled(ctx context.Context, lease *dsync.Lease) bool {
	timer := time.NewTimer(r.ttl)
	defer timer.Stop()
	select {
	case <-timer.C:
		return lease.Err() == nil
	case <-lease.Done():
	case <-ctx.Done():
	}
	return false
}

// keep renews a lease that package dsync does not renew because the lease may
// outlive its holder. It returns when ctx or the lease ends.
func (r *runner) keep(ctx context.Context, lease *dsync.Lease, until time.Time) {
	timer := time.NewTimer(r.ttl / 3)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-lease.Done():
			return
		case <-ctx.Done():
			return
		}
		bound, cancel := context.WithTimeout(ctx, r.ttl/6)
		err := lease.Extend(bound, r.lasting(time.Until(until)))
		if cancel(); err != nil {
			timer.Reset(r.ttl / 12)
		} else {
			timer.Reset(r.ttl / 3)
		}
	}
}

// verdict returns the program's error after a command has ended and its lease
// was unlocked with the given outcome.
func (r *runner) verdict(ctx context.Context, done ending, unlocked error) error {
	switch interrupted := interruption(ctx); {
	case done.err != nil:
		return done.err
	case done.lost != nil && !done.started:
		return cli.Exit(cli.ExitLost, fmt.Errorf("%w (the command was not started)", done.lost))
	case done.lost != nil:
		return cli.Exit(cli.ExitLost, done.lost)
	case !done.started:
		return interrupted
	case errors.Is(unlocked, dsync.ErrLost):
		return cli.Exit(cli.ExitLost, fmt.Errorf("%w: another command may have run at the same time as this one, which ended with status %d", unlocked, done.status))
	case unlocked != nil:
		r.say("the command ran under the lock to its end, but other clients may have to wait for the lock for up to %v: %v", r.ttl, unlocked)
	}
	if done.status == cli.ExitDone {
		return nil
	}
	return cli.Exit(done.status, nil)
}

// notLocked returns the program's error if it did not get the lock.
func (r *runner) notLocked(ctx context.Context, err error) error {
	switch interrupted := interruption(ctx); {
	case interrupted != nil:
		return interrupted
	case errors.Is(err, dsync.ErrLocked):
		return cli.Exit(cli.ExitLocked, err)
	}
	return backendError(err)
}

// backendError returns the program's error if the backend is out of reach or
// refuses a request.
func backendError(err error) error {
	if errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrUnknown) || errors.Is(err, context.DeadlineExceeded) {
		return cli.Exit(cli.ExitOutOfReach, err)
	}
	return cli.Exit(cli.ExitMisused, err)
}

// environment returns the environment of the command.
func (r *runner) environment(lease *dsync.Lease) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "DSYNC_NAME" || name == "DSYNC_TOKEN" || name == "DSYNC_DEADLINE" || name == cli.URLVariable && !r.passURL
	})
	env = append(env, "DSYNC_NAME="+r.name, "DSYNC_DEADLINE="+lease.Deadline().UTC().Format(time.RFC3339Nano))
	if token := lease.Token(); token > 0 {
		env = append(env, "DSYNC_TOKEN="+strconv.FormatUint(token, 10))
	}
	return env
}
