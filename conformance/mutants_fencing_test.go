package conformance

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// tokensByRelease is a mutation whose token is the number of releases that a name has seen.
func tokensByRelease() func(*memory.Driver) driver.Driver {
	var mu sync.Mutex
	released := map[string]uint64{}
	return breakLeases(func(_ *memory.Driver, l *brokenLease) {
		mu.Lock()
		token := released[l.r.Name] + 1
		mu.Unlock()
		l.tokens = func() (uint64, int) { return token, 1 }
		l.release = func(ctx context.Context) error {
			mu.Lock()
			released[l.r.Name] = max(released[l.r.Name], token)
			mu.Unlock()
			return l.Lease.Release(ctx)
		}
	})
}

// renamed is a mutation that changes the odd names that reach the backend.
func renamed(f func(string) string) func(*memory.Driver) driver.Driver {
	return spelled(func(name string) string {
		if strings.Contains(name, "|") {
			return f(name)
		}
		return name
	})
}

// spelled is a mutation whose requests are for the names that f returns.
func spelled(f func(string) string) func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		q := *r
		q.Name = f(r.Name)
		return d.Acquire(ctx, &q)
	})
}

// keptOneAtATime is a mutation whose leases keep their tokens for one caller at a time.
func keptOneAtATime(_ *memory.Driver, l *brokenLease) {
	var busy atomic.Bool
	l.keep = func(context.Context) error {
		if busy.Swap(true) {
			return driver.ErrUnknown
		}
		time.Sleep(time.Microsecond)
		busy.Store(false)
		return nil
	}
}

// keptWhileHeld is a mutation whose leases have lost their tokens, though they were kept, after the release.
func keptWhileHeld(_ *memory.Driver, l *brokenLease) {
	var over atomic.Bool
	l.release = func(ctx context.Context) error {
		over.Store(true)
		return l.Lease.Release(ctx)
	}
	l.keep = func(context.Context) error {
		if over.Load() {
			return driver.ErrNotHeld
		}
		return nil
	}
}

var fencingMutants = []mutant{
	{
		check:  "fencing/rise",
		breaks: "all grants have the same token",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) { l.tokens = func() (uint64, int) { return 7, 1 } }),
	},
	{
		check:  "fencing/blocks",
		breaks: "more tokens are given out than were taken",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			first, n := l.Lease.Tokens()
			l.tokens = func() (uint64, int) { return first, n + 1 }
		}),
	},
	{check: "fencing/loss", breaks: "only a release moves the token", mutate: tokensByRelease()},
	{check: "fencing/kept", breaks: "tokens are kept for one caller at a time", mutate: breakLeases(keptOneAtATime)},
	{check: "fencing/kept", breaks: "tokens that were kept are none after the release", mutate: breakLeases(keptWhileHeld)},
	{check: "fencing/idle", breaks: "the count of tokens is forgotten after a day without a grant", mutate: forgetful(24 * time.Hour)},
}

var namesMutants = []mutant{
	{
		check:  "names/any",
		breaks: "a name with a brace is an error",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if strings.Contains(r.Name, "{") {
				return nil, errors.New("syntax error near {")
			}
			return d.Acquire(ctx, r)
		}),
	},
	{check: "names/distinct", breaks: "names are compared without regard to case", mutate: renamed(strings.ToLower)},
	{check: "names/distinct", breaks: "names are taken for paths", mutate: renamed(func(name string) string {
		return strings.TrimSuffix(strings.ReplaceAll(name, "//", "/"), "/")
	})},
	{check: "names/alike", breaks: "braces around a name are no part of it", mutate: spelled(func(name string) string {
		if inner, ok := strings.CutPrefix(name, "{"); ok && strings.HasSuffix(inner, "}") {
			return strings.TrimSuffix(inner, "}")
		}
		return name
	})},
	{check: "names/alike", breaks: "zeros in front of a number are no part of it", mutate: spelled(func(name string) string {
		if strings.Trim(name, "0123456789") == "" {
			return strings.TrimLeft(name, "0")
		}
		return name
	})},
	{
		check:  "names/alike",
		breaks: "names in braces are refused in one mode alone",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.Mode == driver.Permit && strings.HasPrefix(r.Name, "{") {
				return nil, errors.ErrUnsupported
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "names/alike",
		breaks: "the latch of a name in braces is that of the name",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.set = func(ctx context.Context, name, id string, n int) (bool, error) {
				return d.SetLatch(ctx, strings.Trim(name, "{}"), id, n)
			}
			b.countDown = func(ctx context.Context, name, id string) error {
				return d.CountDown(ctx, strings.Trim(name, "{}"), id)
			}
		}),
	},
}

var scaleMutants = []mutant{
	{
		check:  "scale/held",
		breaks: "a client can hold no more than 900 names",
		mutate: func(d *memory.Driver) driver.Driver {
			var held ticker
			return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				if r.Name != "" && held.next() > 900 && strings.HasPrefix(r.Name, "conformance/") && !r.Fixed && r.NoWait {
					return nil, errors.New("too many locks")
				}
				return d.Acquire(ctx, r)
			}}
		},
	},
	{
		check:  "scale/goroutines",
		breaks: "each lease has a goroutine",
		mutate: func(d *memory.Driver) driver.Driver {
			closed := make(chan struct{})
			return &broken{
				Driver: d,
				lease:  func(*brokenLease) { go func() { <-closed }() },
				close: func(ctx context.Context) error {
					close(closed)
					return d.Close(ctx)
				},
			}
		},
	},
	{
		check:  "scale/gone",
		breaks: "each wait that was given up leaves a goroutine",
		mutate: leavesGoroutines(func(err error) bool { return errors.Is(err, context.Canceled) }),
	},
	{
		check:  "scale/gone",
		breaks: "each wait that was granted leaves a goroutine",
		mutate: leavesGoroutines(func(err error) bool { return err == nil }),
	},
	{
		check:  "scale/waiters",
		breaks: "who waits beside 899 others is forgotten",
		mutate: forget(900),
	},
}

// leavesGoroutines returns a mutation in which waits that ended so leave a goroutine until the driver is closed.
func leavesGoroutines(ended func(error) bool) func(*memory.Driver) driver.Driver {
	return breakClosed(func(d *closable, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		q, waited := *r, false
		q.Events = &waitingEvents{r.Events, func() { waited = true }}
		l, err := d.Acquire(ctx, &q)
		if waited && ended(err) {
			go func() { <-d.closed }()
		}
		return l, err
	}, nil)
}

// forgetful returns a mutation in which tokens begin anew after so long without a grant.
func forgetful(after time.Duration) func(*memory.Driver) driver.Driver {
	var mu sync.Mutex
	var last time.Time
	var forgotten, count uint64
	return breakLeases(func(_ *memory.Driver, l *brokenLease) {
		mu.Lock()
		defer mu.Unlock()
		first, n := l.Lease.Tokens()
		if now := time.Now(); now.Sub(last) > after {
			forgotten = count
		}
		last, count = time.Now(), max(count, first-1)
		forgotten = min(forgotten, first-1)
		begin := first - forgotten
		l.tokens = func() (uint64, int) { return begin, n }
	})
}
