// Package riverlock runs jobs of River under locks.
//
// A [Middleware] of a client or a worker locks a job's name before the worker
// runs, on any backend of dsync. If another owner holds the lock, or the
// backend is out of reach, River snoozes the job, so the job waits without a
// worker and without losing an attempt. Locks of different jobs, and of other
// programs that use dsync, exclude each other if they have the same name.
//
//	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
//		Middleware: []rivertype.Middleware{
//			&riverlock.Middleware{Locker: locks, Name: riverlock.Arg("account_id")},
//		},
//		// ...
//	})
//
// The locker may be a client of pglock:// on River's own database. With
// dsync.With(client, dsync.Permits(1, 3)), up to three jobs of a name run at a
// time on all machines together. pglock:// does not support permits, but
// pgtable:// does.
//
// River's unique jobs prevent a second job from being inserted. A lock prevents
// two jobs from running at the same time. This includes a job that River has
// rescued because its first run takes too long, while that run is still active.
//
// If the lock is lost, the context of the job ends. The job then counts as
// failed, even if the worker returns nil, and River runs it again. If only the
// response to the unlock is lost, the job is done, and its name may stay locked
// for up to the TTL.
//
// Waiting jobs have no order. A job that is snoozed may be overtaken by later
// jobs.
package riverlock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/go-dsync/dsync"
)

// Middleware is a rivertype.WorkerMiddleware. Its fields must not change while
// it is in use.
type Middleware struct {
	river.MiddlewareDefaults

	// Locker is a Client, or the result of dsync.With.
	Locker dsync.Locker

	// Name returns the name of the lock of a job. A job with the name "" needs
	// no lock. Nil means Kind.
	Name func(job *rivertype.JobRow) (string, error)

	// Snooze is how long a job is postponed if it does not get its lock. The
	// default is 5 s. River checks for snoozed jobs every few seconds.
	Snooze time.Duration
}

var _ rivertype.WorkerMiddleware = (*Middleware)(nil)

// Kind is a Name with which only one job of each kind runs at a time.
func Kind(job *rivertype.JobRow) (string, error) { return "river/" + job.Kind, nil }

// Arg returns a Name with which only one job of each kind runs at a time for
// each value of an argument. field is the name of the argument in JSON. The
// name of a lock is "river/KIND/VALUE".
func Arg(field string) func(job *rivertype.JobRow) (string, error) {
	return func(job *rivertype.JobRow) (string, error) {
		var args map[string]json.RawMessage
		if err := json.Unmarshal(job.EncodedArgs, &args); err != nil {
			return "", fmt.Errorf("riverlock: job %d: %w", job.ID, err)
		}
		value := string(args[field])
		if len(value) > 0 && value[0] == '"' {
			_ = json.Unmarshal(args[field], &value) // a valid string, as part of args
		}
		switch {
		case len(args[field]) == 0, string(args[field]) == "null":
			return "", fmt.Errorf("riverlock: job %d of kind %q has no argument %q", job.ID, job.Kind, field)
		case value == "":
			return "", fmt.Errorf("riverlock: the argument %q of job %d of kind %q is empty", field, job.ID, job.Kind)
		}
		return "river/" + job.Kind + "/" + value, nil
	}
}

// Work implements rivertype.WorkerMiddleware.
func (m *Middleware) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	nameOf := m.Name
	if nameOf == nil {
		nameOf = Kind
	}
	name, err := nameOf(job)
	if err != nil {
		return err
	}
	if name == "" {
		return doInner(ctx)
	}
	err = dsync.TryDo(ctx, m.Locker, name, doInner)
	ran, failed := dsync.Ran(err)
	switch {
	case !ran && (errors.Is(err, dsync.ErrLocked) || errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrUnknown)):
		return river.JobSnooze(cmp.Or(m.Snooze, 5*time.Second))
	case ran && failed == nil && !errors.Is(err, dsync.ErrLost):
		return nil // the lock was held to the end, even if the unlock got no answer
	}
	return err
}
