package dsync_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// TestElect has three candidates, and cuts off each leader.
func TestElect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var leaders atomic.Int32
		type elected struct {
			term   *dsync.Lease
			driver *memory.Driver
		}
		begun, ended := make(chan elected), make(chan error)
		for range 3 {
			d := s.NewDriver()
			c := newClient(t, d, nil)
			go func() {
				ended <- dsync.Elect(ctx, c, "planner", func(ctx context.Context, term *dsync.Lease) error {
					if n := leaders.Add(1); n != 1 {
						t.Errorf("%d leaders at the same time", n)
					}
					begun <- elected{term, d}
					<-ctx.Done()
					leaders.Add(-1)
					return errors.New("the leadership has ended")
				})
			}()
		}
		last := uint64(0)
		for range 20 {
			e := <-begun
			if e.term.Token() <= last || e.term.Err() != nil || e.term.Name() != "planner" {
				t.Errorf("term %d of %q after %d, error %v", e.term.Token(), e.term.Name(), last, e.term.Err())
			}
			last = e.term.Token()
			e.driver.Cut()
			<-e.term.Done()
			e.driver.Heal()
		}
		<-begun
		cancel()
		for range 3 {
			<-ended
		}
	})
}

func TestElectEndsWhenLeadReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		failed := errors.New("failed")
		for _, want := range []error{nil, failed} {
			err := dsync.Elect(t.Context(), c, "planner", func(context.Context, *dsync.Lease) error { return want })
			if err != want {
				t.Errorf("Elect: %v, want %v", err, want)
			}
			mustLock(t, c, "planner").Unlock(t.Context())
		}
	})
}

// TestElectResigns ends the ctx of a leader, and of a candidate.
func TestElectResigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		leader, candidate := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := errors.New("stopped")
		leads, gaveUp := make(chan error, 1), make(chan error, 1)
		go func() {
			leads <- dsync.Elect(ctx, leader, "planner", func(ctx context.Context, _ *dsync.Lease) error {
				<-ctx.Done()
				time.Sleep(time.Second) // the last of its work
				return stopped
			})
		}()
		synctest.Wait()
		go func() {
			gaveUp <- dsync.Elect(ctx, candidate, "planner", func(context.Context, *dsync.Lease) error {
				t.Error("elected after the end of ctx")
				return nil
			})
		}()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("the candidate: %v, want context.Canceled", err)
		}
		if err := <-leads; err != stopped {
			t.Errorf("the leader: %v, want %v", err, stopped)
		}
		mustLock(t, candidate, "planner")
	})
}

// TestElectGivesAGrantAtTheEndBack ends ctx while the backend grants.
func TestElectGivesAGrantAtTheEndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &stub{}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			cancel()
			return d.grant(r, time.Now()), nil
		}
		err := dsync.Elect(ctx, newStub(t, d), "planner", func(context.Context, *dsync.Lease) error {
			t.Error("elected after the end of ctx")
			return nil
		})
		if want := `dsync: lock "planner": context canceled`; err == nil || err.Error() != want || !errors.Is(err, context.Canceled) {
			t.Errorf("Elect: %v, want %q", err, want)
		}
		if n := len(d.gaveBack()); n != 1 {
			t.Errorf("%d grants were released, want 1", n)
		}
	})
}

// TestElectWaitsForLead has a leader that continues for a minute after its
// loss.
func TestElectWaitsForLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.NewServer(nil).NewDriver()
		c := newClient(t, d, nil)
		var terms []uint64
		began := time.Now()
		err := dsync.Elect(t.Context(), c, "planner", func(ctx context.Context, term *dsync.Lease) error {
			terms = append(terms, term.Token())
			if len(terms) == 2 {
				return nil
			}
			if err := d.ForceUnlock(ctx, "planner"); err != nil {
				return err
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), dsync.ErrLost) {
				t.Errorf("the cause is %v, want the loss", context.Cause(ctx))
			}
			time.Sleep(time.Minute)
			return errors.New("from a term that has ended")
		})
		took := time.Since(began)
		if err != nil || len(terms) != 2 || terms[1] <= terms[0] || took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("terms %v in %v, error %v", terms, took, err)
		}
	})
}

func TestElectEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		err := dsync.Elect(t.Context(), c, "planner", func(ctx context.Context, _ *dsync.Lease) error {
			go c.Close(context.WithoutCancel(ctx))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("Elect: %v, want ErrClosed", err)
		}
		lead := func(context.Context, *dsync.Lease) error { return nil }
		if err := dsync.Elect(t.Context(), c, "planner", lead); !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("Elect on a closed client: %v, want ErrClosed", err)
		}
	})
}
