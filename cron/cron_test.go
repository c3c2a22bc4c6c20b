package cron

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

const every = 10 * time.Second

// fleet is a set of processes with the same job, and the outcomes of its
// periods.
type fleet struct {
	server *memory.Server
	wg     sync.WaitGroup

	mu      sync.Mutex
	results map[time.Time][]Result
}

// start starts a process whose clock lags and returns its driver.
func (f *fleet) start(ctx context.Context, t *testing.T, behind time.Duration, run func(context.Context, time.Time) error) *memory.Driver {
	d := f.server.NewDriver()
	c, err := dsync.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	job := &Job{Locker: c, Name: "report", Every: every, Run: run, Report: func(r Result) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.results[r.At] = append(f.results[r.At], r)
	}}
	f.wg.Go(func() {
		defer c.Close(context.Background())
		for at := time.Now().Truncate(every).Add(every); ; at = at.Add(every) {
			select {
			case <-time.After(time.Until(at.Add(behind))):
				f.wg.Go(func() { job.Once(ctx, at) })
			case <-ctx.Done():
				return
			}
		}
	})
	return d
}

// count returns the number of results of a period that have the given outcome.
func (f *fleet) count(at time.Time, o Outcome) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.results[at] {
		if r.Outcome == o {
			n++
		}
	}
	return n
}

func TestEachPeriodRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fleet{server: memory.NewServer(nil), results: map[time.Time][]Result{}}
		var drivers []*memory.Driver
		for i := range 3 {
			drivers = append(drivers, f.start(ctx, t, time.Duration(i)*every/10, func(context.Context, time.Time) error { return nil }))
		}
		first := time.Now().Truncate(every).Add(every)
		time.Sleep(4*every + every/2)
		drivers[0].Inject(memory.Fault{Kind: memory.LoseAnswer, Times: 1}) // of the next period
		time.Sleep(every)
		drivers[0].Cut() // for two periods, which other processes run
		time.Sleep(2 * every)
		drivers[0].Heal()
		time.Sleep(3 * every)
		cancel()
		f.wg.Wait()
		for i := range 10 {
			at := first.Add(time.Duration(i) * every)
			if n := f.count(at, Ran); n != 1 {
				t.Errorf("period %d ran %d times: %v", i, n, f.results[at])
			}
		}
	})
}

// TestRunsDoNotOverlap starts a run that takes two and a half periods.
func TestRunsDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fleet{server: memory.NewServer(nil), results: map[time.Time][]Result{}}
		first := time.Now().Truncate(every).Add(every)
		var mu sync.Mutex
		run := func(_ context.Context, at time.Time) error {
			if !mu.TryLock() {
				t.Error("two runs overlap")
			} else {
				defer mu.Unlock()
			}
			if at.Equal(first) {
				time.Sleep(2*every + every/2)
			}
			return nil
		}
		for range 2 {
			f.start(ctx, t, 0, run)
		}
		time.Sleep(4*every + every/2)
		cancel()
		f.wg.Wait()
		for i, want := range []Outcome{Ran, Missed, Missed, Ran} {
			at := first.Add(time.Duration(i) * every)
			if f.count(at, want) != 1 || f.count(at, Elsewhere) != 1 {
				t.Errorf("period %d: %v, want one process with the outcome %v", i, f.results[at], want)
			}
			for _, r := range f.results[at] {
				if r.Outcome == Missed && !errors.Is(r.Err, dsync.ErrLocked) || r.Outcome == Ran && i == 0 && r.Took != 2*every+every/2 {
					t.Errorf("period %d: %+v", i, r)
				}
			}
		}
	})
}

func TestMissedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		c, err := dsync.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		job := &Job{Locker: c, Name: "report", Every: every, Run: func(context.Context, time.Time) error { return nil }}
		d.Cut()
		began := time.Now()
		if r := job.Once(t.Context(), began); r.Outcome != Missed || !errors.Is(r.Err, dsync.ErrUnavailable) || time.Since(began) > every/4 {
			t.Errorf("%+v after %v, want Missed for ErrUnavailable after a quarter of the period", r, time.Since(began))
		}
		d.Heal()
		if r := job.Once(t.Context(), time.Now().Add(-every/2)); r.Outcome != Missed || r.Err == nil {
			t.Errorf("%+v, want Missed: the process is late", r)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := dsync.New(memory.New(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*every+every/2)
		defer cancel()
		var runs []time.Time
		job := &Job{Locker: c, Name: "report", Every: every, Run: func(_ context.Context, at time.Time) error {
			runs = append(runs, at)
			return nil
		}}
		if err := job.Loop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(runs) != 3 {
			t.Errorf("runs at %v, want 3", runs)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestJobsThatCannotWork expects Loop to fail immediately.
func TestJobsThatCannotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaver, err := dsync.New(memory.New(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		bare, err := dsync.New(struct{ driver.Driver }{memory.New(nil)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		run := func(context.Context, time.Time) error { return nil }
		for name, job := range map[string]*Job{
			"no HoldAtLeast": {Locker: bare, Name: "report", Every: every, Run: run},
			"no period":      {Locker: leaver, Name: "report", Run: run},
			"no name":        {Locker: leaver, Every: every, Run: run},
			"no run":         {Locker: leaver, Name: "report", Every: every},
		} {
			err := job.Loop(t.Context())
			if err == nil || name == "no HoldAtLeast" && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := errors.Join(leaver.Close(t.Context()), bare.Close(t.Context())); err != nil {
			t.Error(err)
		}
	})
}
