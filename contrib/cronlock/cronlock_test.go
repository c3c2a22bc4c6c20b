package cronlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/contrib/cronlock"
	"github.com/go-dsync/dsync/drivers/memory"
)

// fleet calls start for three clients of one backend, whose clocks differ.
func fleet(t *testing.T, start func(c *dsync.Client, i int)) {
	t.Helper()
	server := memory.NewServer(nil)
	for i := range 3 {
		c, err := dsync.New(server.NewDriver(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		start(c, i)
		time.Sleep(100 * time.Millisecond)
	}
}

func scheduler(t *testing.T, o gocron.SchedulerOption, runs *atomic.Int64) {
	t.Helper()
	s, err := gocron.NewScheduler(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() { runs.Add(1) }), gocron.WithName("report")); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
}

func TestLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		fleet(t, func(c *dsync.Client, _ int) {
			scheduler(t, gocron.WithDistributedLocker(cronlock.Locker{Locker: c, Keep: 10 * time.Second}), &runs)
		})
		time.Sleep(10*time.Minute + 30*time.Second)
		if n := runs.Load(); n != 10 {
			t.Errorf("%d runs in 10 minutes, want 10", n)
		}
	})
}

func TestElector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		var resign context.CancelFunc
		fleet(t, func(c *dsync.Client, i int) {
			ctx, cancel := context.WithCancel(t.Context())
			e := cronlock.Campaign(ctx, c, "scheduler")
			t.Cleanup(func() {
				cancel()
				if err := e.Wait(); err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("Wait: got %v, want no error, or context.Canceled from a candidate", err)
				}
				if e.IsLeader(context.Background()) == nil {
					t.Error("a process leads after it has resigned")
				}
			})
			if i == 0 {
				resign = cancel
			}
			scheduler(t, gocron.WithDistributedElector(e), &runs)
		})
		time.Sleep(5*time.Minute + 30*time.Second)
		resign()
		time.Sleep(5 * time.Minute)
		if n := runs.Load(); n != 10 {
			t.Errorf("%d runs in 10 minutes with a change of leader, want 10", n)
		}
	})
}

func TestWrapper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs, skipped atomic.Int64
		fleet(t, func(c *dsync.Client, _ int) {
			report := func(err error) {
				if !errors.Is(err, dsync.ErrLocked) {
					t.Error(err)
				}
				skipped.Add(1)
			}
			s := cron.New(cron.WithChain(cronlock.Wrapper(t.Context(), c, "report", 10*time.Second, report)))
			if _, err := s.AddFunc("@every 1m", func() { runs.Add(1) }); err != nil {
				t.Fatal(err)
			}
			s.Start()
			t.Cleanup(func() { <-s.Stop().Done() })
		})
		time.Sleep(10*time.Minute + 30*time.Second)
		if runs, skipped := runs.Load(), skipped.Load(); runs != 10 || skipped != 20 {
			t.Errorf("%d runs and %d skipped runs in 10 minutes, want 10 and 20", runs, skipped)
		}
	})
}
