package dsynctest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/dsynctest"
)

// A Reporter is the code under test. It makes a report in steps while it holds
// a lock.
type Reporter struct {
	Locks dsync.Locker
	Steps int
}

func (r *Reporter) Report(ctx context.Context) error {
	return dsync.Do(ctx, r.Locks, "report", func(ctx context.Context) error {
		for range r.Steps {
			select {
			case <-time.After(time.Minute): // the work
				r.Steps--
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}, dsync.WaitAtMost(5*time.Minute))
}

func TestReportStopsWhenTheLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, backend := dsynctest.New(t, nil) // TTL 30 s
		time.AfterFunc(90*time.Second, backend.Cut)
		r := Reporter{client, 10}
		began := time.Now()
		err := r.Report(t.Context())
		if !errors.Is(err, dsync.ErrLost) || r.Steps != 9 {
			t.Errorf("got %v with %d steps left, want ErrLost and 9", err, r.Steps)
		}
		if took := time.Since(began); took > 120*time.Second { // before another client can acquire the lock
			t.Errorf("Report stopped after %v", took)
		}
	})
}

func TestReportSurvivesSlowRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, backend := dsynctest.New(t, nil)
		backend.Inject(memory.Fault{Kind: memory.Slow, On: memory.Renewals, Delay: 4 * time.Second})
		if err := (&Reporter{client, 10}).Report(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestReportsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, backend := dsynctest.New(t, nil)
		other, _ := dsynctest.Beside(t, backend, nil) // another process
		first := make(chan error, 1)
		go func() { first <- (&Reporter{client, 6}).Report(t.Context()) }()
		synctest.Wait() // the first client holds the lock
		if err := (&Reporter{other, 1}).Report(t.Context()); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("got %v, want ErrLocked after five minutes", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

func TestReportStopsWhenAnAdministratorTakesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, backend := dsynctest.New(t, nil)
		admin, _ := dsynctest.Beside(t, backend, nil)
		time.AfterFunc(30*time.Second, func() {
			if err := admin.ForceUnlock(t.Context(), "report"); err != nil {
				t.Error(err)
			}
		})
		r := Reporter{client, 10}
		if err := r.Report(t.Context()); !errors.Is(err, dsync.ErrLost) || r.Steps != 10 {
			t.Errorf("got %v with %d steps left, want ErrLost and 10", err, r.Steps)
		}
	})
}

func TestReportIsDoneAlthoughTheUnlockIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, backend := dsynctest.New(t, nil)
		backend.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases})
		err := (&Reporter{client, 1}).Report(t.Context())
		ran := new(dsync.DoError)
		if !errors.As(err, &ran) || ran.Err != nil || !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("got %v, want a DoError that reports that the function succeeded", err)
		}
	})
}

// TestFaults contains the table of docs/testing.md.
func TestFaults(t *testing.T) {
	unlock := func(c *dsync.Client, fault func()) error {
		lease, err := c.Lock(context.Background(), "x")
		if err != nil {
			return err
		}
		fault()
		return lease.Unlock(context.Background())
	}
	hold := func(c *dsync.Client, fault func()) error {
		lease, err := c.Lock(context.Background(), "x")
		if err != nil {
			return err
		}
		fault()
		time.Sleep(time.Hour)
		return lease.Err()
	}
	try := func(c *dsync.Client, fault func()) error {
		fault()
		_, err := c.TryLock(context.Background(), "x")
		return err
	}
	wait := func(c *dsync.Client, fault func()) error {
		fault()
		_, err := c.Lock(context.Background(), "x", dsync.WaitAtMost(time.Minute))
		return err
	}
	for _, test := range []struct {
		name  string
		call  func(*dsync.Client, func()) error
		fault memory.Fault
		want  []error // the error must match all of them; none means no error
	}{
		{"TryLock, cut off", try, memory.Fault{Kind: memory.CutOff}, []error{dsync.ErrUnavailable}},
		{"Lock, cut off", wait, memory.Fault{Kind: memory.CutOff}, []error{context.DeadlineExceeded, dsync.ErrUnavailable}},
		{"Lock, cut off for a moment", wait, memory.Fault{Kind: memory.CutOff, Times: 3}, nil},
		{"Lock, hangs", wait, memory.Fault{Kind: memory.Hang, On: memory.Acquires}, []error{context.DeadlineExceeded, dsync.ErrUnknown}},
		{"TryLock, the answer is lost", try, memory.Fault{Kind: memory.LoseAnswer, On: memory.Acquires}, []error{dsync.ErrUnknown}},
		{"Lock, the answer is lost once", wait, memory.Fault{Kind: memory.LoseAnswer, On: memory.Acquires, Times: 1}, nil},
		{"held, cut off", hold, memory.Fault{Kind: memory.CutOff}, []error{dsync.ErrLost, dsync.ErrNotHeld, dsync.ErrUnavailable}},
		{"held, renewals late by 4 s", hold, memory.Fault{Kind: memory.Slow, On: memory.Renewals, Delay: 4 * time.Second}, nil},
		{"Unlock, cut off", unlock, memory.Fault{Kind: memory.CutOff}, []error{dsync.ErrUnknown}},
		{"Unlock, hangs", unlock, memory.Fault{Kind: memory.Hang, On: memory.Releases}, []error{dsync.ErrUnknown}},
		{"Unlock, the answer is lost", unlock, memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases}, []error{dsync.ErrUnknown}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, backend := dsynctest.New(t, nil)
				err := test.call(client, func() { backend.Inject(test.fault) })
				if (err == nil) != (len(test.want) == 0) {
					t.Errorf("got %v, want errors %v", err, test.want)
				}
				for _, want := range test.want {
					if !errors.Is(err, want) {
						t.Errorf("got %v, want it to match %v", err, want)
					}
				}
			})
		})
	}
}
