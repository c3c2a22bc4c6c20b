package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

func TestLeaseIsRenewedEveryThirdOfTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		l := mustLock(t, newStub(t, d), "x")
		time.Sleep(35 * time.Second)
		if err := l.Err(); err != nil {
			t.Errorf("Err after 3.5 TTLs: %v", err)
		}
		if got, want := len(d.renewals()), 10; got != want {
			t.Errorf("%d renewals in 35 s at a TTL of 10 s, want %d", got, want)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		before := len(d.renewals())
		time.Sleep(time.Minute)
		if got := len(d.renewals()); got != before {
			t.Errorf("%d renewals after Unlock", got-before)
		}
	})
}

func TestFixedLeaseIsNotRenewedAndEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{}
		start := time.Now()
		l := mustLock(t, newStub(t, d), "x", dsync.ExpireAfter(4*time.Second))
		<-l.Done()
		// The margin: 1 % of the TTL and 5 ms.
		if got, want := time.Since(start), 4*time.Second-45*time.Millisecond; got != want {
			t.Errorf("the lease ended after %v, want %v", got, want)
		}
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err: %v, want ErrLost", err)
		}
		if got := len(d.renewals()); got != 0 {
			t.Errorf("%d renewals, want none", got)
		}
	})
}

// TestWatchRemoval lets a driver notice a removal while an earlier renewal is
// pending.
func TestWatchRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewals, stopped int
		removed := make(chan func(), 1)
		d := &stub{
			renew: func(context.Context, *stubLease) error {
				if renewals++; renewals == 1 {
					time.Sleep(time.Second)
					return nil
				}
				return driver.ErrNotHeld
			},
			watch: func(renew func()) (stop func()) {
				removed <- renew
				return func() { stopped++ }
			},
		}
		c := newStub(t, d)
		l := mustLock(t, c, "x")
		ended := make(chan struct{})
		go func() {
			l.WatchRemoval(t.Context())
			close(ended)
		}()
		renew := <-removed
		begun := time.Now()
		renew()
		synctest.Wait()
		renew() // during the first renewal
		<-ended
		if took := time.Since(begun); took != time.Second || !errors.Is(l.Err(), dsync.ErrLost) {
			t.Errorf("after %v the lease reports %v, want a loss after 1s", took, l.Err())
		}

		other := mustLock(t, c, "y")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		other.WatchRemoval(ctx)
		new(dsync.Lease).WatchRemoval(t.Context())
		if stopped != 2 {
			t.Errorf("stopped %d times, want twice", stopped)
		}
	})
}

// TestWatchRemovalAsksUntilItIsAnswered: after an unanswered query the client
// queries again, because a renewal might restore the hold.
func TestWatchRemovalAsksUntilItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		removed := make(chan func(), 1)
		answers := []error{driver.ErrUnavailable, driver.ErrUnavailable, driver.ErrNotHeld}
		d := &stub{watch: func(renew func()) (stop func()) {
			removed <- renew
			return func() {}
		}}
		d.renew = func(context.Context, *stubLease) error { return answers[d.looks.Load()-1] }
		l := mustLock(t, newStub(t, d), "x")
		go l.WatchRemoval(t.Context())
		(<-removed)()
		<-l.Done()
		if got := d.looks.Load(); got != 3 {
			t.Errorf("queried %d times, want 3 times", got)
		}
	})
}

// TestDeadlineOfAnEndedLeaseStays: a response that arrives late and moves the
// end on the backend does not change the deadline of the ended lease.
func TestDeadlineOfAnEndedLeaseStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var granted *stubLease
		d := &stub{}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			granted = d.grant(r, time.Now())
			return granted, nil
		}
		l := mustLock(t, newStub(t, d), "x", dsync.ExpireAfter(time.Second))
		<-l.Done()
		want := l.Deadline()
		granted.setExpires(time.Now().Add(time.Minute))
		if got := l.Deadline(); !got.Equal(want) {
			t.Errorf("the deadline moved on by %v", got.Sub(want))
		}
	})
}

// TestRemovalOfAFixedLeaseIsTold lets a client with a TTL of 10 s query the
// backend for fixed leases every third of the TTL.
func TestRemovalOfAFixedLeaseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer atomic.Pointer[error]
		var asked atomic.Int64
		d := &stub{renew: func(context.Context, *stubLease) error {
			asked.Add(1)
			if err := answer.Load(); err != nil {
				return *err
			}
			return nil
		}}
		c := newStub(t, d)
		l := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour))
		end := l.Deadline()
		time.Sleep(time.Minute + time.Second)
		if got := asked.Load(); got != 18 {
			t.Errorf("queried %d times in 61 s, want 18", got)
		}
		if got := l.Deadline(); !got.Equal(end) {
			t.Errorf("the requests moved the end by %v", got.Sub(end))
		}
		if err := l.Extend(t.Context(), 2*time.Hour); err != nil {
			t.Error(err)
		}
		answer.Store(&driver.ErrUnavailable)
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Errorf("Err in an outage: %v", err)
		}
		answer.Store(&driver.ErrNotHeld)
		removed := time.Now()
		<-l.Done()
		if took, detect := time.Since(removed), c.Info().Detect; took > detect {
			t.Errorf("notified after %v, want at most %v", took, detect)
		}
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err: %v, want ErrLost", err)
		}
		answer.Store(nil)
		mustLock(t, c, "x").Unlock(t.Context())

		asked.Store(0)
		short := mustLock(t, c, "x", dsync.ExpireAfter(3*time.Second))
		<-short.Done()
		if got := asked.Load(); got != 0 {
			t.Errorf("queried %d times for a lease of 3 s, want none", got)
		}
	})
}

func TestTransientRenewalErrorsAreNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		d := &stub{renew: func(context.Context, *stubLease) error {
			if failing.Load() {
				return driver.ErrUnavailable
			}
			return nil
		}}
		l := mustLock(t, newStub(t, d), "x")
		for range 20 {
			failing.Store(true)
			time.Sleep(6 * time.Second)
			failing.Store(false)
			time.Sleep(5 * time.Second)
			if err := l.Err(); err != nil {
				t.Fatalf("Err after a transient fault: %v", err)
			}
		}
	})
}

func TestLossOnTheLocalClock(t *testing.T) {
	for _, tt := range []struct {
		name  string
		renew func(ctx context.Context, l *stubLease) error
	}{
		{"renewals fail", func(context.Context, *stubLease) error { return driver.ErrUnavailable }},
		{"renewals hang", func(ctx context.Context, _ *stubLease) error { return unanswered(ctx) }},
		{"answers come too late", func(context.Context, *stubLease) error { time.Sleep(time.Minute); return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &stub{renew: tt.renew}
				start := time.Now()
				l := mustLock(t, newStub(t, d), "x")
				ctx, cancel := l.Context(t.Context())
				defer cancel()
				<-l.Done()
				if got, want := time.Since(start), 10*time.Second-105*time.Millisecond; got != want {
					t.Errorf("lost after %v, want %v", got, want)
				}
				if err := l.Err(); !errors.Is(err, dsync.ErrLost) || context.Cause(ctx) != err {
					t.Errorf("Err %v, cause of the context %v; want the same ErrLost", err, context.Cause(ctx))
				}
				if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) || !errors.Is(err, dsync.ErrNotHeld) {
					t.Errorf("Unlock of a lost lease: %v, want ErrLost and ErrNotHeld", err)
				}
				if got := len(d.gaveBack()); got != 0 {
					t.Errorf("%d releases before the hold had ended on the backend: that gives up the margin", got)
				}
				time.Sleep(2 * time.Minute)
				back := d.gaveBack()
				if len(back) != 1 {
					t.Fatalf("%d releases of the lost hold, want 1", len(back))
				}
				if got, want := back[0].freed.Sub(start), 10*time.Second; got < want {
					t.Errorf("the lost hold was released after %v, want not before %v", got, want)
				}
				if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
					t.Errorf("Err after a late answer: %v, want ErrLost forever", err)
				}
			})
		})
	}
}

func TestRenewalThatFindsTheHoldGoneIsLossAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{renew: func(context.Context, *stubLease) error { return driver.ErrNotHeld }}
		start := time.Now()
		l := mustLock(t, newStub(t, d), "x")
		<-l.Done()
		if got, want := time.Since(start), 10*time.Second/3; got < want-10*time.Second/64 || got > want {
			t.Errorf("lost after %v, want a loss at the first renewal, after %v or up to a sixty-fourth of the TTL earlier", got, want)
		}
		time.Sleep(time.Minute)
		if got := len(d.gaveBack()); got != 0 {
			t.Errorf("%d releases of a hold that the backend called gone, want none", got)
		}
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) || err.Error() != `dsync: lease "x": lock lost: removed: hold was removed` {
			t.Errorf("Err: %v", err)
		}
	})
}

func TestLostEventEndsTheLeaseAndReleasesNothing(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 10*time.Second - 50*time.Millisecond} { // held, and lapsed but not yet released
		synctest.Test(t, func(t *testing.T) {
			d := &stub{renew: func(context.Context, *stubLease) error { return driver.ErrUnavailable }}
			l := mustLock(t, newStub(t, d), "x")
			time.Sleep(after)
			d.asked()[0].Events.Lost(fmt.Errorf("lease revoked: %w", driver.ErrSessionEnded))
			if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
				t.Errorf("Err: %v, want ErrLost", err)
			}
			time.Sleep(time.Minute)
			if got := len(d.gaveBack()); got != 0 {
				t.Errorf("%d releases after Events.Lost, want none", got)
			}
		})
	}
}

func TestRenewalsGatherInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const locks = 1000
		d := &stub{}
		c := newStub(t, d)
		for i := range locks {
			mustLock(t, c, fmt.Sprint(i))
			time.Sleep(2 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		before := len(d.renewals())
		time.Sleep(10 * time.Second)
		batches := d.renewals()[before:]
		if got := len(batches); got > 12 {
			t.Errorf("%d batches in 3 rounds of renewals of %d locks, want a few in each", got, locks)
		}
		seen := 0
		for _, b := range batches {
			seen += len(b)
		}
		if seen < 2*locks || seen > 5*locks {
			t.Errorf("%d renewals in 10 s of %d locks at a TTL of 10 s, want about 3 for each", seen, locks)
		}
	})
}

func TestBatchThatHangsDelaysNoOtherLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{renew: func(ctx context.Context, l *stubLease) error {
			if l.request.Name == "slow" {
				return unanswered(ctx)
			}
			return nil
		}}
		c := newStub(t, d)
		slow := mustLock(t, c, "slow")
		time.Sleep(2 * time.Second) // beyond the window in which renewals gather
		fast := mustLock(t, c, "fast")
		<-slow.Done()
		time.Sleep(time.Minute)
		if err := fast.Err(); err != nil {
			t.Errorf("Err of the lease whose renewals succeed: %v", err)
		}
		inFlight := 0
		for _, b := range d.renewals() {
			for _, l := range b {
				if l.(*stubLease).request.Name == "slow" {
					inFlight++
				}
			}
		}
		if inFlight < 2 || inFlight > 6 {
			t.Errorf("the slow lease was in %d batches, want 2 to 6, one at a time", inFlight)
		}
	})
}

func TestSessionThatIsKeptAliveByTheDriverIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: driver.Info{KeepsAlive: true}}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			return d.grant(r, time.Now()), nil
		}
		var lease *stubLease
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			lease = d.grant(r, time.Now())
			return lease, nil
		}
		l := mustLock(t, newStub(t, d), "x")
		for range 10 {
			time.Sleep(5 * time.Second)
			lease.setExpires(time.Now().Add(10 * time.Second))
		}
		if err := l.Err(); err != nil || len(d.renewals()) != 0 {
			t.Fatalf("Err %v after %d renewals, want a live lease that only the driver kept alive", err, len(d.renewals()))
		}
		start := time.Now()
		<-l.Done()
		if got, want := time.Since(start), 10*time.Second-105*time.Millisecond; got != want {
			t.Errorf("lost %v after the last keep-alive, want %v", got, want)
		}
	})
}

func TestReleasesOfLostHoldsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		d := &stub{
			renew: func(context.Context, *stubLease) error { return driver.ErrUnavailable },
			release: func(context.Context, *stubLease) error {
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(100 * time.Millisecond)
				now.Add(-1)
				return nil
			},
		}
		c := newStub(t, d)
		const locks = 200
		for i := range locks {
			mustLock(t, c, fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		if got := len(d.gaveBack()); got != locks {
			t.Errorf("%d lost holds were released, want %d", got, locks)
		}
		if got := most.Load(); got > 16 {
			t.Errorf("%d releases at a time, want at most 16", got)
		}
	})
}

func TestErrComparesTheClockItself(t *testing.T) {
	// Only Err runs here after the deadline: the driver moves Expires into the
	// past without a report.
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: driver.Info{KeepsAlive: true}}
		var lease *stubLease
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			lease = d.grant(r, time.Now())
			return lease, nil
		}
		l := mustLock(t, newStub(t, d), "x")
		lease.setExpires(time.Now())
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err past the deadline: %v, want ErrLost", err)
		}
		lease.setExpires(time.Now().Add(time.Hour))
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err after the loss: %v, want ErrLost forever", err)
		}
	})
}

// A session that is kept alive again moves the Expires of a hold that is
// already lost.
func TestLapsedHoldIsReleasedAlthoughItsSessionGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lease *stubLease
		d := &stub{info: driver.Info{KeepsAlive: true}}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			lease = d.grant(r, time.Now())
			return lease, nil
		}
		c := newClient(t, d, &dsync.Options{TTL: 10 * time.Second})
		l := mustLock(t, c, "x")
		<-l.Done()
		for range 20 {
			lease.setExpires(time.Now().Add(10 * time.Second))
			time.Sleep(time.Second)
		}
		if n := len(d.gaveBack()); n != 1 {
			t.Errorf("the hold was released %d times, want once", n)
		}
	})
}
