// Package asynqlock runs tasks of asynq under locks.
//
// [Middleware] locks a name that depends on the task, on any backend of dsync,
// before the handler runs. Two tasks of the same name never run at the same
// time, on any server. [Configure] makes asynq retry a task whose lock is held,
// or whose backend is out of reach, without counting that as a failure.
//
//	cfg := asynq.Config{Concurrency: 10}
//	asynqlock.Configure(&cfg, 2*time.Second)
//	server := asynq.NewServer(redis, cfg)
//	mux := asynq.NewServeMux()
//	mux.Use(asynqlock.Middleware(locks, func(t *asynq.Task) (string, error) {
//		var p struct{ Account string }
//		err := json.Unmarshal(t.Payload(), &p)
//		return "accounts/" + p.Account, err
//	}))
//
// The locker may be a client of redisson:// on asynq's Redis server. With
// dsync.With(client, dsync.Permits(1, 3)), up to three tasks of a name run at a
// time.
//
// asynq.Unique prevents a second task from being queued. A lock prevents two
// tasks from running at the same time. This includes a task that asynq has
// started again because its timeout has passed, while its handler is still
// running.
//
// If the lock is lost, the context of the handler ends. The task then counts as
// failed, even if the handler returns nil, and asynq runs it again. If only the
// response to the unlock is lost, the task is done, and its name may stay
// locked for up to the TTL.
//
// Waiting tasks have no order. A task that has no retries left waits for its
// lock in the handler, because asynq would otherwise archive it. The task takes
// one of the server's Config.Concurrency workers while it waits, and asynq
// archives it if its timeout or deadline ends first.
package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/go-dsync/dsync"
)

// ErrHeld is the error for a task that did not run because another owner held
// its lock, or because the backend was out of reach. Configure keeps it from
// being a failure.
var ErrHeld = errors.New("asynqlock: task put off")

// Middleware returns a middleware that runs a task while it holds the lock that
// name returns. A task with the name "" needs no lock. If name fails, the task
// fails.
func Middleware(l dsync.Locker, name func(*asynq.Task) (string, error)) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			key, err := name(task)
			if err != nil {
				return fmt.Errorf("asynqlock: name of a task of type %q: %w", task.Type(), err)
			}
			if key == "" {
				return next.ProcessTask(ctx, task)
			}
			do, last := dsync.TryDo, lastAttempt(ctx)
			if last {
				do = dsync.Do
			}
			err = do(ctx, l, key, func(ctx context.Context) error { return next.ProcessTask(ctx, task) })
			ran, failed := dsync.Ran(err)
			switch {
			case !ran && !last && (errors.Is(err, dsync.ErrLocked) || errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrUnknown)):
				return fmt.Errorf("%w: %w", ErrHeld, err)
			case ran && failed == nil && !errors.Is(err, dsync.ErrLost):
				return nil // the lock was held to the end, even if the unlock got no answer
			}
			return err
		})
	}
}

// lastAttempt reports whether asynq would archive the task for any error.
func lastAttempt(ctx context.Context) bool {
	retried, _ := asynq.GetRetryCount(ctx)
	most, ok := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}

// Configure makes a server retry a task that returns ErrHeld after delay. The
// retry does not count as a failure, and the ErrorHandler is not called.
// Configure keeps the settings of cfg for other errors, so set the fields of
// cfg first. asynq checks for such tasks every Config.DelayedTaskCheckInterval.
func Configure(cfg *asynq.Config, delay time.Duration) {
	isFailure, retryDelay, handler := cfg.IsFailure, cfg.RetryDelayFunc, cfg.ErrorHandler
	cfg.IsFailure = func(err error) bool {
		return !errors.Is(err, ErrHeld) && (isFailure == nil || isFailure(err))
	}
	if retryDelay == nil {
		retryDelay = asynq.DefaultRetryDelayFunc
	}
	cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if errors.Is(err, ErrHeld) {
			return delay
		}
		return retryDelay(n, err, task)
	}
	if handler != nil {
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
			if !errors.Is(err, ErrHeld) {
				handler.HandleError(ctx, task, err)
			}
		})
	}
}
