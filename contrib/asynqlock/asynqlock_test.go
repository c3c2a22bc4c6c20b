package asynqlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/contrib/asynqlock"
	"github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/dsynctest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// name returns the payload of a task, the name of its lock.
func name(t *asynq.Task) (string, error) { return string(t.Payload()), nil }

// fleet starts processes, with asynq and dsync on one Redis server, which
// handle tasks with the given function. Errors that asynq takes for failures go
// to failed. Each task that is put off calls putOff.
func fleet(t *testing.T, processes int, handle asynq.HandlerFunc, failed func(error), putOff func()) (*asynq.Client, *dsync.Client) {
	t.Helper()
	server := testenv.Redis(t)
	redis := asynq.RedisClientOpt{Addr: server.Addr}
	var locks *dsync.Client
	for range processes {
		var err error
		locks, err = dsync.Open(t.Context(), "redisson://"+server.Addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := locks.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		cfg := asynq.Config{
			Concurrency: 4, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 20 * time.Millisecond,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
			ErrorHandler:   asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { failed(err) }),
		}
		asynqlock.Configure(&cfg, 20*time.Millisecond)
		mux := asynq.NewServeMux()
		mux.Use(func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				err := next.ProcessTask(ctx, task)
				if errors.Is(err, asynqlock.ErrHeld) {
					putOff()
				}
				return err
			})
		}, asynqlock.Middleware(locks, name))
		mux.Handle("charge", handle)
		s := asynq.NewServer(redis, cfg)
		if err := s.Start(mux); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Shutdown)
	}
	client := asynq.NewClient(redis)
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client, locks
}

// enqueue adds a task, which may be retried the given number of times.
func enqueue(t *testing.T, c *asynq.Client, key string, retries int) {
	t.Helper()
	if _, err := c.Enqueue(asynq.NewTask("charge", []byte(key)), asynq.MaxRetry(retries)); err != nil {
		t.Fatal(err)
	}
}

// Half of the tasks must not be retried, but are done anyway. The first tasks
// run until another task is put off.
func TestOneTaskOfAnAccountAtATime(t *testing.T) {
	const tasks = 16
	var working [2]atomic.Int32
	done, waits := make(chan int, tasks), make(chan struct{})
	client, _ := fleet(t, 2, func(ctx context.Context, task *asynq.Task) error {
		n := &working[task.Payload()[0]-'0']
		if n.Add(1) != 1 {
			t.Errorf("two tasks of account %s ran at the same time", task.Payload())
		}
		<-waits
		time.Sleep(10 * time.Millisecond) // the work
		n.Add(-1)
		retried, _ := asynq.GetRetryCount(ctx)
		done <- retried
		return nil
	}, func(err error) { t.Errorf("a task failed: %v", err) }, sync.OnceFunc(func() { close(waits) }))
	for i := range tasks {
		enqueue(t, client, string(rune('0'+i%2)), i/2%2)
	}
	for range tasks {
		if n := <-done; n != 0 {
			t.Errorf("a task was retried %d times", n)
		}
	}
}

// A task whose lock is lost is not done, even if its handler returns nil.
func TestLostLock(t *testing.T) {
	attempts, failures := make(chan int, 2), make(chan error, 2)
	client, locks := fleet(t, 1, func(ctx context.Context, _ *asynq.Task) error {
		retried, _ := asynq.GetRetryCount(ctx)
		attempts <- retried
		if retried == 0 {
			<-ctx.Done()
		}
		return nil
	}, func(err error) { failures <- err }, func() {})
	enqueue(t, client, "7", 1)
	if n := <-attempts; n != 0 {
		t.Errorf("the first attempt is a retry: %d", n)
	}
	if err := locks.ForceUnlock(t.Context(), "7"); err != nil {
		t.Fatal(err)
	}
	if err := <-failures; !errors.Is(err, dsync.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if n := <-attempts; n != 1 {
		t.Errorf("attempt after the loss: %d retries, want 1", n)
	}
}

func TestMiddleware(t *testing.T) {
	failed := errors.New("task failed")
	client, backend := dsynctest.New(t, nil)
	other, _ := dsynctest.Beside(t, backend, nil)
	success := func(context.Context) error { return nil }
	for _, test := range []struct {
		title  string
		key    string
		handle func(context.Context) error
		before memory.Fault
		want   error // nil: none
	}{
		{title: "success", key: "a", handle: success},
		{title: "failure", key: "a", handle: func(context.Context) error { return failed }, want: failed},
		{title: "a task that gives up its retries", key: "a", handle: func(context.Context) error { return asynq.SkipRetry }, want: asynq.SkipRetry},
		{title: "no name", handle: func(context.Context) error { return failed }, want: failed},
		{title: "an unanswered unlock", key: "a", handle: success,
			before: memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases, Times: 1}},
		{title: "no backend", key: "a", handle: success, before: memory.Fault{Kind: memory.CutOff, Times: 1}, want: asynqlock.ErrHeld},
		{title: "no answer", key: "a", handle: success, before: memory.Fault{Kind: memory.LoseAnswer, On: memory.Acquires, Times: 1}, want: asynqlock.ErrHeld},
		{title: "a task whose own backend is unavailable", key: "a", handle: func(context.Context) error { return dsync.ErrUnavailable }, want: dsync.ErrUnavailable},
		{title: "a held lock that the task itself requests", key: "a", want: dsync.ErrLocked, handle: func(ctx context.Context) error {
			_, err := client.TryLock(ctx, "held")
			return err
		}},
		{title: "a lock that another owner holds", key: "held", want: asynqlock.ErrHeld},
	} {
		t.Run(test.title, func(t *testing.T) {
			lease, err := other.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			if test.before.Times > 0 {
				backend.Inject(test.before)
				defer backend.Heal()
			}
			handler := asynqlock.Middleware(client, name)(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { return test.handle(ctx) }))
			err = handler.ProcessTask(t.Context(), asynq.NewTask("charge", []byte(test.key)))
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if errors.Is(err, asynqlock.ErrHeld) != (test.want == asynqlock.ErrHeld) {
				t.Errorf("%v: wrong match with ErrHeld", err)
			}
		})
	}
	unnamed := asynqlock.Middleware(client, func(*asynq.Task) (string, error) { return "", failed })
	if err := unnamed(nil).ProcessTask(t.Context(), asynq.NewTask("charge", nil)); !errors.Is(err, failed) || !strings.Contains(err.Error(), `"charge"`) {
		t.Errorf("without a name: got %v, want the error from name, with the type of the task", err)
	}
}

func TestConfigure(t *testing.T) {
	var cfg asynq.Config
	asynqlock.Configure(&cfg, time.Minute)
	failed := errors.New("failed")
	if cfg.IsFailure(asynqlock.ErrHeld) || !cfg.IsFailure(failed) || cfg.ErrorHandler != nil {
		t.Error("Configure: a held lock counts as a failure, another error does not, or ErrorHandler is set")
	}
	if d := cfg.RetryDelayFunc(3, asynqlock.ErrHeld, nil); d != time.Minute {
		t.Errorf("retry after %v, want 1m", d)
	}
	if d := cfg.RetryDelayFunc(0, failed, nil); d <= 0 || d == time.Minute {
		t.Errorf("retry of a failure after %v, want asynq's default", d)
	}
}
