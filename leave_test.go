package dsync_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// forSessions runs f on a backend whose leases each have a TTL, and on a
// backend with sessions.
func forSessions(t *testing.T, f func(t *testing.T, s *memory.Server)) {
	for name, sessions := range map[string]bool{"TTL": false, "sessions": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, memory.NewServer(&memory.Options{KeepsAlive: sessions})) })
		})
	}
}

// takenUntil checks that the name is taken until d from now, and free then.
func takenUntil(t *testing.T, l dsync.Locker, name string, d time.Duration) {
	t.Helper()
	time.Sleep(d - time.Millisecond)
	if _, err := l.TryLock(t.Context(), name); !errors.Is(err, dsync.ErrLocked) {
		t.Errorf("%v later: error %v, want ErrLocked", d-time.Millisecond, err)
	}
	time.Sleep(2 * time.Millisecond)
	lease, err := l.TryLock(t.Context(), name)
	if err != nil {
		t.Fatalf("%v later: error %v", d+time.Millisecond, err)
	}
	lease.Unlock(t.Context())
}

func TestHoldAtLeast(t *testing.T) {
	forSessions(t, func(t *testing.T, s *memory.Server) {
		c, other := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
		time.Sleep(time.Minute)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		if err := lease.Err(); !errors.Is(err, dsync.ErrNotHeld) {
			t.Errorf("after Unlock the lease reports %v, want ErrNotHeld", err)
		}
		if _, err := c.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock of the same client: %v, want ErrLocked", err)
		}
		takenUntil(t, other, "x", 49*time.Minute)

		lease = mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
		time.Sleep(51 * time.Minute)
		lease.Unlock(t.Context())
		mustLock(t, other, "x").Unlock(t.Context())
	})
}

// TestHoldAtLeastOutlivesTheClient closes the client while the lease is held,
// closes it after Unlock, and does not close it at all.
func TestHoldAtLeastOutlivesTheClient(t *testing.T) {
	forSessions(t, func(t *testing.T, s *memory.Server) {
		other := newClient(t, s.NewDriver(), nil)
		for _, unlock := range []bool{true, false} {
			c := newClient(t, s.NewDriver(), nil)
			held := mustLock(t, c, "held")
			lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
			if unlock {
				lease.Unlock(t.Context())
			}
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
			if lease.Err() == nil || held.Err() == nil {
				t.Error("a lease continues after Close")
			}
			mustLock(t, other, "held").Unlock(t.Context())
			takenUntil(t, other, "x", 50*time.Minute)
		}
		d := s.NewDriver()
		mustLock(t, newClient(t, d, nil), "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
		d.Cut() // for good
		takenUntil(t, other, "x", time.Hour)
		d.Heal()
	})
}

// TestHoldAtLeastWithoutAnAnswer makes Unlock fail in every way. The name is
// free when the lease would have ended.
func TestHoldAtLeastWithoutAnAnswer(t *testing.T) {
	for name, fault := range map[string]memory.Fault{
		"cut off":     {Kind: memory.CutOff},
		"lost answer": {Kind: memory.LoseAnswer, On: memory.Releases},
		"hangs":       {Kind: memory.Hang, On: memory.Releases},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(nil)
				d := s.NewDriver()
				c, other := newClient(t, d, nil), newClient(t, s.NewDriver(), nil)
				lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
				d.Inject(fault)
				if err := lease.Unlock(t.Context()); !errors.Is(err, dsync.ErrUnknown) {
					t.Errorf("Unlock: %v, want ErrUnknown", err)
				}
				d.Heal()
				c.Close(t.Context())
				time.Sleep(45 * time.Minute)
				if _, err := other.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
					t.Errorf("while the name is kept: %v, want ErrLocked", err)
				}
				time.Sleep(15 * time.Minute)
				mustLock(t, other, "x")
			})
		})
	}
}

// TestCloseDuringUnlockKeepsTheName closes the client at each stage of an
// Unlock with HoldAtLeast. Neither call frees the name.
func TestCloseDuringUnlockKeepsTheName(t *testing.T) {
	const slow = time.Second
	forSessions(t, func(t *testing.T, s *memory.Server) {
		other := newClient(t, s.NewDriver(), nil)
		for i := range 20 {
			d := s.NewDriver()
			c := newClient(t, d, nil)
			lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
			began := time.Now()
			d.Inject(memory.Fault{Delay: slow, On: memory.Releases})
			unlocked := make(chan error, 1)
			go func() { unlocked <- lease.Unlock(t.Context()) }()
			if i > 0 {
				synctest.Wait()
				time.Sleep(time.Duration(i-1) * slow / 10)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := <-unlocked; err != nil && (i > 0 || !errors.Is(err, dsync.ErrClosed)) { // Close may be first if both begin at the same time
				t.Errorf("Unlock: %v, want nil", err)
			}
			time.Sleep(50*time.Minute - time.Since(began) - time.Millisecond)
			if _, err := other.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
				t.Errorf("while the name is kept: error %v, want ErrLocked", err)
			}
			time.Sleep(2 * slow)
			if l, err := other.TryLock(t.Context(), "x"); err != nil {
				t.Errorf("after the time of HoldAtLeast: error %v", err)
			} else {
				l.Unlock(t.Context())
			}
		}
	})
}

// TestCloseKeepsTheNameOfALapsedLease closes the client in the margin between
// the end of a lease on the local clock and its end on the backend.
func TestCloseKeepsTheNameOfALapsedLease(t *testing.T) {
	forSessions(t, func(t *testing.T, s *memory.Server) {
		d := s.NewDriver()
		c, other := newClient(t, d, nil), newClient(t, s.NewDriver(), nil)
		lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(time.Hour-time.Second))
		d.Inject(memory.Fault{Delay: time.Second, On: memory.Releases})
		<-lease.Done()
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if _, err := other.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("after Close: error %v, want ErrLocked", err)
		}
		time.Sleep(time.Minute)
		if _, err := other.TryLock(t.Context(), "x"); err != nil {
			t.Errorf("after the end of the lease: error %v", err)
		}
	})
}

func TestHoldAtLeastOfAHoldThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		c, other := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
		s.Expire("x") // silently
		next := mustLock(t, other, "x")
		if err := lease.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Unlock: %v, want ErrLost", err)
		}
		if err := next.Err(); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		next.Unlock(t.Context())

		lease = mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
		if err := other.ForceUnlock(t.Context(), "x"); err != nil || lease.Err() == nil {
			t.Errorf("ForceUnlock: %v, and the lease reports %v", err, lease.Err())
		}
		mustLock(t, other, "x")
	})
}

func TestHoldAtLeastIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		hour := dsync.ExpireAfter(time.Hour)
		for _, test := range []struct {
			locker dsync.Locker
			opts   []dsync.LockOption
			want   string
			is     error
		}{
			{c, []dsync.LockOption{dsync.HoldAtLeast(time.Second)}, "needs ExpireAfter", nil},
			{c, []dsync.LockOption{dsync.HoldAtLeast(2 * time.Hour), hour}, "HoldAtLeast(2h0m0s) needs ExpireAfter", nil},
			{c, []dsync.LockOption{dsync.HoldAtLeast(-time.Second), hour}, "is negative", nil},
			{c.NewOwner(), []dsync.LockOption{dsync.HoldAtLeast(time.Second), hour}, "through an Owner", errors.ErrUnsupported},
			{c, []dsync.LockOption{dsync.HoldAtLeast(time.Second), hour, dsync.Read()}, "of a Read", errors.ErrUnsupported},
			{newStub(t, &stub{info: driver.Info{Name: "weak"}}), []dsync.LockOption{dsync.HoldAtLeast(time.Second), hour}, "backend weak cannot keep a hold", errors.ErrUnsupported},
		} {
			_, err := test.locker.Lock(t.Context(), "x", test.opts...)
			if err == nil || !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("got error %v, want %q and %v", err, test.want, test.is)
			}
		}
		lease := mustLock(t, c, "x", hour, dsync.HoldAtLeast(time.Minute))
		if err := lease.Extend(t.Context(), time.Second); err == nil || !strings.Contains(err.Error(), "HoldAtLeast keeps the name taken") {
			t.Errorf("Extend to an earlier end: %v", err)
		}
		if err := lease.Extend(t.Context(), 2*time.Hour); err != nil {
			t.Errorf("Extend: %v", err)
		}
	})
}

// TestCronJob lets three machines with different clocks try the job of each
// period. The job runs once, even if a machine is stopped in the middle.
func TestCronJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period, periods = time.Minute, 20
		s := memory.NewServer(nil)
		ran := make(chan time.Duration, 10*periods)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), periods*period+time.Second)
		defer cancel()
		for i := range 3 {
			behind := time.Duration(i) * 150 * time.Millisecond
			go func() {
				c, err := dsync.New(s.NewDriver(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { c.Close(context.WithoutCancel(ctx)) }()
				for n := 1; ; n++ {
					select {
					case <-time.After(time.Until(began.Add(time.Duration(n)*period + behind))):
					case <-ctx.Done():
						return
					}
					if n == 5+i { // a deployment in the middle of the period
						c.Close(ctx)
						if c, err = dsync.New(s.NewDriver(), nil); err != nil {
							t.Error(err)
							return
						}
					}
					err := dsync.TryDo(ctx, c, "report", func(context.Context) error {
						ran <- time.Since(began).Round(period)
						return nil
					}, dsync.ExpireAfter(period-time.Second), dsync.HoldAtLeast(period-time.Second))
					if err != nil && !errors.Is(err, dsync.ErrLocked) {
						t.Error(err)
					}
				}
			}()
		}
		<-ctx.Done()
		synctest.Wait()
		close(ran) // no more sends
		n := time.Duration(0)
		for at := range ran {
			if n++; at != n*period {
				t.Errorf("run %d was at %v, want %v", n, at, n*period)
			}
		}
		if n != periods {
			t.Errorf("the job ran %d times in %d periods", n, periods)
		}
	})
}

// gated is a driver whose Leave first waits.
type gated struct {
	*memory.Driver
	begun, open chan struct{}
}

func (d *gated) Leave(ctx context.Context, l driver.Lease, ttl time.Duration) error {
	close(d.begun)
	select {
	case <-d.open:
		return d.Driver.Leave(ctx, l, ttl)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestHoldAtLeastOutlivesACloseDuringUnlock closes the client when Unlock has
// begun and the driver does not yet know of the release.
func TestHoldAtLeastOutlivesACloseDuringUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		other := newClient(t, s.NewDriver(), nil)
		for _, opts := range [][]dsync.LockOption{nil, {dsync.Permits(1, 1)}} {
			d := &gated{s.NewDriver(), make(chan struct{}), make(chan struct{})}
			c := newClient(t, d, nil)
			lease := mustLock(t, c, "x", append(opts, dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))...)
			unlocked, closed := make(chan error, 1), make(chan error, 1)
			go func() { unlocked <- lease.Unlock(t.Context()) }()
			<-d.begun
			go func() { closed <- c.Close(t.Context()) }()
			synctest.Wait()
			close(d.open)
			if err := <-unlocked; err != nil {
				t.Errorf("Unlock: %v", err)
			}
			if err := <-closed; err != nil {
				t.Errorf("Close: %v", err)
			}
			takenUntil(t, other, "x", 50*time.Minute)
		}
	})
}

// TestCloseDuringUnlockIsBounded closes the client while a Leave hangs.
func TestCloseDuringUnlockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		d := &gated{s.NewDriver(), make(chan struct{}), make(chan struct{})}
		c := newClient(t, d, nil)
		lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(50*time.Minute))
		unlocked := make(chan error, 1)
		go func() { unlocked <- lease.Unlock(t.Context()) }()
		<-d.begun
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		c.Close(ctx)
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close with a deadline of 1 s took %v", took)
		}
		synctest.Wait()
		if _, err := d.Inspect(t.Context(), "x"); !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("after Close the driver returns %v, want ErrClosed", err)
		}
		if err := <-unlocked; !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("Unlock: %v, want ErrUnknown", err)
		}
	})
}

// TestHoldAtLeastOutlivesACloseAfterTheDeadline closes the client when the
// lease has ended locally, but the hold has not yet ended on the backend.
func TestHoldAtLeastOutlivesACloseAfterTheDeadline(t *testing.T) {
	forSessions(t, func(t *testing.T, s *memory.Server) {
		c, other := newClient(t, s.NewDriver(), nil), newClient(t, s.NewDriver(), nil)
		lease := mustLock(t, c, "x", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(time.Hour))
		time.Sleep(time.Hour - 30*time.Second) // the margin is 36 s
		if err := lease.Unlock(t.Context()); !errors.Is(err, dsync.ErrNotHeld) {
			t.Errorf("Unlock after the deadline: %v, want ErrNotHeld", err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		takenUntil(t, other, "x", 30*time.Second)
	})
}
