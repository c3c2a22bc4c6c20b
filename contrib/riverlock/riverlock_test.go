package riverlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/contrib/riverlock"
	"github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/dsynctest"
	"github.com/go-dsync/dsync/internal/testenv"
)

type charge struct {
	Account int `json:"account"`
}

func (charge) Kind() string { return "charge" }

type worker struct {
	river.WorkerDefaults[charge]
	work func(ctx context.Context, job *river.Job[charge]) error
}

func (w *worker) Work(ctx context.Context, job *river.Job[charge]) error { return w.work(ctx, job) }
func (w *worker) NextRetry(*river.Job[charge]) time.Time                 { return time.Now() }

// fleet starts processes, with River and dsync on one database, which run jobs
// with the given function. It returns the last process, the client of an
// operator, and the events of all processes.
func fleet(t *testing.T, processes int, work func(context.Context, *river.Job[charge]) error) (*river.Client[pgx.Tx], *dsync.Client, <-chan *river.Event) {
	t.Helper()
	ctx := t.Context()
	server := testenv.Postgres(t)
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	open := func(params string) *dsync.Client {
		locks, err := dsync.Open(ctx, server.URL("pglock")+params, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := locks.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return locks
	}
	var client *river.Client[pgx.Tx]
	all := make(chan *river.Event, 1000)
	for range processes {
		locks := open("")
		workers := river.NewWorkers()
		river.AddWorker(workers, &worker{work: work})
		client, err = river.NewClient(riverpgxv5.New(pool), &river.Config{
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}}, Workers: workers,
			FetchCooldown: 20 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
			Middleware: []rivertype.Middleware{&riverlock.Middleware{
				Locker: locks, Name: riverlock.Arg("account"), Snooze: 20 * time.Millisecond,
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		events, unsubscribe := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed, river.EventKindJobSnoozed)
		forwarded := make(chan struct{})
		go func() {
			defer close(forwarded)
			for e := range events {
				all <- e
			}
		}()
		if err := client.Start(ctx); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			unsubscribe()
			<-forwarded
		})
	}
	return client, open("?force_unlock=true"), all
}

func TestOneJobOfAnAccountAtATime(t *testing.T) {
	var working [2]atomic.Int32
	client, _, events := fleet(t, 2, func(_ context.Context, job *river.Job[charge]) error {
		n := &working[job.Args.Account]
		if n.Add(1) != 1 {
			t.Errorf("two jobs of account %d ran at the same time", job.Args.Account)
		}
		time.Sleep(30 * time.Millisecond) // the work
		n.Add(-1)
		return nil
	})
	jobs := make([]river.InsertManyParams, 16)
	for i := range jobs {
		jobs[i].Args = charge{Account: i % 2}
	}
	if _, err := client.InsertMany(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	snoozed := 0
	for done := 0; done < len(jobs); {
		switch e := <-events; e.Kind {
		case river.EventKindJobCompleted:
			done++
			if e.Job.Attempt != 1 || len(e.Job.Errors) != 0 {
				t.Errorf("job %d needed %d attempts, with the errors %v", e.Job.ID, e.Job.Attempt, e.Job.Errors)
			}
		case river.EventKindJobSnoozed:
			snoozed++
		default:
			t.Errorf("%s: %v", e.Kind, e.Job.Errors)
		}
	}
	if snoozed == 0 {
		t.Error("no job found its lock held")
	}
}

// A job whose lock is lost is not done, even if its worker returns nil.
func TestLostLock(t *testing.T) {
	began := make(chan struct{}, 1)
	client, operator, events := fleet(t, 1, func(ctx context.Context, job *river.Job[charge]) error {
		if job.Attempt > 1 {
			return nil
		}
		began <- struct{}{}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), dsync.ErrLost) {
			t.Errorf("the context ended with %v, want ErrLost", context.Cause(ctx))
		}
		return nil
	})
	if _, err := client.Insert(t.Context(), charge{Account: 7}, nil); err != nil {
		t.Fatal(err)
	}
	<-began
	if err := operator.ForceUnlock(t.Context(), "river/charge/7"); err != nil {
		t.Fatal(err)
	}
	var kinds []river.EventKind
	for {
		e := <-events
		if e.Kind == river.EventKindJobSnoozed { // the notification of the removal takes a moment to arrive
			continue
		}
		kinds = append(kinds, e.Kind)
		if e.Kind == river.EventKindJobCompleted {
			break
		}
	}
	if want := []river.EventKind{river.EventKindJobFailed, river.EventKindJobCompleted}; !slices.Equal(kinds, want) {
		t.Errorf("got %v, want %v", kinds, want)
	}
}

func TestWork(t *testing.T) {
	failed := errors.New("job failed")
	snoozed := river.JobSnooze(time.Second)
	client, backend := dsynctest.New(t, nil)
	other, _ := dsynctest.Beside(t, backend, nil)
	job := &rivertype.JobRow{Kind: "charge", EncodedArgs: []byte(`{"account": "a/7", "n": 12345678901234567890, "none": null, "empty": ""}`)}
	m := &riverlock.Middleware{Locker: client, Snooze: time.Second}
	for _, test := range []struct {
		title  string
		job    func(context.Context) error
		before func()
		want   error // nil: none
	}{
		{"success", func(context.Context) error { return nil }, nil, nil},
		{"failure", func(context.Context) error { return failed }, nil, failed},
		{"a job that snoozes itself", func(context.Context) error { return snoozed }, nil, snoozed},
		{"an unanswered unlock", func(context.Context) error { return nil }, func() {
			backend.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases, Times: 1})
		}, nil},
		{"a job whose own backend is unavailable", func(context.Context) error { return dsync.ErrUnavailable }, nil, dsync.ErrUnavailable},
		{"a held lock that the job itself requests", func(ctx context.Context) error {
			if _, err := other.Lock(ctx, "other"); err != nil {
				t.Fatal(err)
			}
			_, err := client.TryLock(ctx, "other")
			return err
		}, nil, dsync.ErrLocked},
	} {
		t.Run(test.title, func(t *testing.T) {
			if test.before != nil {
				test.before()
				defer backend.Heal()
			}
			err := m.Work(t.Context(), job, test.job)
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			var snooze *rivertype.JobSnoozeError
			if errors.As(err, &snooze) && test.want != snoozed {
				t.Errorf("the job is snoozed for %v", err)
			}
		})
	}
	var snooze *rivertype.JobSnoozeError
	for _, fault := range []memory.Fault{{Kind: memory.CutOff, Times: 1}, {Kind: memory.LoseAnswer, On: memory.Acquires, Times: 1}} {
		backend.Inject(fault)
		if err := m.Work(t.Context(), job, nil); !errors.As(err, &snooze) || snooze.Duration != time.Second {
			t.Errorf("without an answer from the backend (%v): got %v, want a snooze of 1s", fault.Kind, err)
		}
		backend.Heal()
	}
	lease, err := other.Lock(t.Context(), "river/charge")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Work(t.Context(), job, nil); !errors.As(err, &snooze) || snooze.Duration != time.Second {
		t.Errorf("while the lock is held: got %v, want a snooze of 1s", err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"account": "river/charge/a/7", "n": "river/charge/12345678901234567890", "none": "", "missing": ""} {
		if name, err := riverlock.Arg(field)(job); name != want || (err == nil) != (want != "") {
			t.Errorf("Arg(%q): got %q, %v, want %q", field, name, err, want)
		}
	}
	if _, err := riverlock.Arg("empty")(job); err == nil || !strings.Contains(err.Error(), `the argument "empty" of job 0 of kind "charge" is empty`) {
		t.Errorf("an empty argument: got %v, want an error that calls the argument empty", err)
	}
	m.Name = riverlock.Arg("missing")
	if err := m.Work(t.Context(), job, nil); err == nil {
		t.Error("a job without a name ran")
	}
	m.Name = func(*rivertype.JobRow) (string, error) { return "", nil }
	if err := m.Work(t.Context(), job, func(context.Context) error { return failed }); err != failed {
		t.Errorf("without a lock: got %v, want %v", err, failed)
	}
}
