package dsync_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// records is a log that can be read while it is being written.
type records struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *records) logger() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

func TestMaxHoldEndsALease(t *testing.T) {
	for name, option := range map[string]struct {
		options dsync.Options
		opts    []dsync.LockOption
		held    time.Duration // 0: until the end of the test
	}{
		"option":               {opts: []dsync.LockOption{dsync.MaxHold(time.Minute)}, held: time.Minute},
		"default":              {options: dsync.Options{MaxHold: time.Minute}, held: time.Minute},
		"longer than default":  {options: dsync.Options{MaxHold: time.Second}, opts: []dsync.LockOption{dsync.MaxHold(time.Minute)}, held: time.Minute},
		"no bound by option":   {options: dsync.Options{MaxHold: time.Second}, opts: []dsync.LockOption{dsync.MaxHold(0)}},
		"shorter than the TTL": {opts: []dsync.LockOption{dsync.MaxHold(time.Second)}, held: time.Second},
		"ExpireAfter has its own end": {options: dsync.Options{MaxHold: time.Second},
			opts: []dsync.LockOption{dsync.ExpireAfter(100 * time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, memory.New(nil), &option.options)
				lease := mustLock(t, c, "x", option.opts...)
				began := time.Now()
				if option.held == 0 {
					time.Sleep(time.Hour)
					if err := lease.Err(); err != nil {
						t.Error(err)
					}
					return
				}
				next := mustLock(t, c, "x", dsync.MaxHold(0)) // waits
				if got := time.Since(began); got != option.held {
					t.Errorf("the lock was free after %v, want %v", got, option.held)
				}
				for _, err := range []error{lease.Err(), lease.Unlock(t.Context())} {
					if !errors.Is(err, dsync.ErrLost) || !strings.Contains(err.Error(), "MaxHold") {
						t.Errorf("got %v, want a loss by MaxHold", err)
					}
				}
				if err := next.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestMaxHoldOfLeasesOfOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		o := c.NewOwner()
		outer := mustLock(t, o, "x")
		inner := mustLock(t, o, "x", dsync.MaxHold(time.Minute))
		<-inner.Done()
		if err := outer.Err(); err != nil {
			t.Errorf("the outer lease has ended with the inner lease: %v", err)
		}
		if _, err := c.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock: %v, want ErrLocked", err)
		}
	})
}

func TestNegativeMaxHold(t *testing.T) {
	if _, err := newStub(t, &stub{}).Lock(t.Context(), "x", dsync.MaxHold(-1)); err == nil {
		t.Error("Lock with MaxHold(-1) succeeded")
	}
	for _, o := range []dsync.Options{{MaxHold: -1}, {SlowHold: -1}} {
		if _, err := dsync.New(&stub{}, &o); err == nil {
			t.Errorf("New with %+v succeeded", o)
		}
	}
}

func TestSlowHoldTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log records
		c := newClient(t, memory.New(nil), &dsync.Options{SlowHold: time.Minute, Logger: log.logger()})
		slow, quick := mustLock(t, c, "slow"), mustLock(t, c, "quick")
		fixed := mustLock(t, c, "fixed", dsync.ExpireAfter(time.Hour))
		time.Sleep(59 * time.Second)
		if err := quick.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if got := log.String(); got != "" {
			t.Errorf("a record too early: %s", got)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		got := log.String()
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "dsync.lock.name=slow") {
			t.Errorf("got the records\n%swant one WARN about the name slow", got)
		}
		for _, l := range []*dsync.Lease{slow, fixed} {
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestWaitForAnOwnLease lets calls wait for a lease of their own client.
func TestWaitForAnOwnLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log records
		c := newClient(t, memory.New(nil), &dsync.Options{Debug: true, Logger: log.logger()})
		lease := mustLock(t, c, "twice")
		tryFor := func(d time.Duration) {
			t.Helper()
			if l, err := c.Lock(t.Context(), "twice", dsync.WaitAtMost(d)); !errors.Is(err, dsync.ErrLocked) {
				t.Errorf("Lock of a name that is held: %v, %v", l, err)
			}
			synctest.Wait()
		}
		tryFor(9 * time.Second)
		if got := log.String(); got != "" {
			t.Errorf("a record of a short wait: %s", got)
		}
		tryFor(30 * time.Second)
		tryFor(15 * time.Second)
		got := log.String()
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "dsync.lock.name=twice") || !strings.Contains(got, "TestWaitForAnOwnLease") {
			t.Errorf("got the records\n%swant one WARN that names the caller", got)
		}
		for range 3 { // the first waits are for a lease that does not last
			time.Sleep(time.Minute)
			granted := make(chan *dsync.Lease)
			go func() { granted <- mustLock(t, c, "twice") }()
			time.Sleep(9 * time.Second)
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			lease = <-granted
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if again := log.String(); again != got {
			t.Errorf("records of leases that did not last: %s", strings.TrimPrefix(again, got))
		}
	})
}

// forget acquires a lock and keeps no reference to its lease.
//
//go:noinline
func forget(t *testing.T, c *dsync.Client) { mustLock(t, c, "forgotten") }

func TestDebugEndsForgottenLeases(t *testing.T) {
	var log records
	c := newClient(t, memory.New(nil), &dsync.Options{Debug: true, Logger: log.logger()})
	forget(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	granted := make(chan error, 1)
	go func() { // ends when ctx ends
		lease, err := c.Lock(ctx, "forgotten")
		if err == nil {
			err = lease.Unlock(ctx)
		}
		granted <- err
	}()
	for {
		runtime.GC()
		select {
		case err := <-granted:
			if err != nil {
				t.Fatalf("the forgotten lock is not free: %v", err)
			}
			if err := c.Close(t.Context()); err != nil { // everything is logged
				t.Error(err)
			}
			if got := log.String(); !strings.Contains(got, "dsync.loss.cause=forgotten") || !strings.Contains(got, "dsync_test.forget (forgotten_test.go:") {
				t.Errorf("the log does not name the forgotten lock and its caller: %s", got)
			}
			return
		case <-time.After(10 * time.Millisecond): // the collector works in the background
		}
	}
}

// TestDebugLeavesLeasesInUse keeps references that a program may keep: the
// lease, its context, and a context derived from it.
func TestDebugLeavesLeasesInUse(t *testing.T) {
	var log records
	c := newClient(t, memory.New(nil), &dsync.Options{Debug: true, Logger: log.logger()})
	lease := mustLock(t, c, "lease")
	under, cancel := mustLock(t, c, "context").Context(t.Context())
	defer cancel()
	below, cancel := mustLock(t, c, "below").Context(t.Context())
	defer cancel()
	derived, cancel := context.WithCancel(below)
	defer cancel()
	below = nil
	if _, err := c.TryLock(under, "context"); !errors.Is(err, dsync.ErrLocked) {
		t.Errorf("TryLock under the context of the lock: %v, want ErrLocked", err)
	}
	if _, err := c.Lock(under, "context"); !errors.Is(err, dsync.ErrDeadlock) {
		t.Errorf("Lock under the context of the lock: %v, want ErrDeadlock", err)
	}
	forget(t, c) // the end of this lease shows that the collector has run
	for began := time.Now(); strings.Count(log.String(), "forgotten") == 0; {
		if time.Since(began) > time.Minute {
			t.Fatal("the collector finds no lease")
		}
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // as above
	}
	for name, l := range map[string]*dsync.Lease{"lease": lease, "context": dsync.LeaseFrom(under), "below": dsync.LeaseFrom(derived)} {
		if l.Name() != name || l.Token() == 0 || l.Deadline().IsZero() {
			t.Errorf("the lease of %s has the name %s, token %d and deadline %v", name, l.Name(), l.Token(), l.Deadline())
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Errorf("a lease in use has ended: %v", err)
		}
	}
	if err := context.Cause(derived); !errors.Is(err, dsync.ErrNotHeld) {
		t.Errorf("the cause of a context after the Unlock: %v, want ErrNotHeld", err)
	}
}

// The cleanup of a handle runs outside of the bubble, where channels of the
// bubble must not be closed.
func TestDebugInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), &dsync.Options{Debug: true})
		done := forgetDone(t, c)
		for ended := false; !ended; {
			runtime.GC()
			time.Sleep(time.Second)
			select {
			case <-done:
				ended = true
			default:
			}
		}
		if err := mustLock(t, c, "forgotten").Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

//go:noinline
func forgetDone(t *testing.T, c *dsync.Client) <-chan struct{} {
	return mustLock(t, c, "forgotten").Done()
}

func TestNoLease(t *testing.T) {
	for name, l := range map[string]*dsync.Lease{"nil": nil, "zero": {}, "from a context without": dsync.LeaseFrom(t.Context())} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := l.Context(t.Context())
			defer cancel()
			for what, err := range map[string]error{
				"Err": l.Err(), "Unlock": l.Unlock(t.Context()), "Extend": l.Extend(t.Context(), time.Second), "Context": context.Cause(ctx),
			} {
				if !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) {
					t.Errorf("%s: %v, want ErrNotHeld", what, err)
				}
			}
			<-l.Done()
			if l.Name() != "" || l.Owner() != "" || l.Token() != 0 || !l.Deadline().IsZero() {
				t.Errorf("name %q, owner %q, token %d, deadline %v; want none", l.Name(), l.Owner(), l.Token(), l.Deadline())
			}
		})
	}
}
