package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// claiming returns a mutation of the driver's Info.
func claiming(f func(*driver.Info)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, info: func(i driver.Info) driver.Info {
			f(&i)
			return i
		}}
	}
}

// tally holds a number for each name, shared by all drivers. Names are never
// used twice.
type tally struct{ m sync.Map }

func (c *tally) add(name string) int {
	v, _ := c.m.LoadOrStore(name, new(ticker))
	return v.(*ticker).next()
}

type ticker struct {
	mu sync.Mutex
	n  int
}

func (c *ticker) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

// neverGrant returns a mutation that forgets the n-th request that waits for a
// name.
func neverGrant(n int) func(*memory.Driver) driver.Driver {
	var waiting tally
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		q := *r
		forgotten := false
		q.Events = &waitingEvents{r.Events, func() {
			if waiting.add(r.Name) == n {
				forgotten = true
				cancel()
			}
		}}
		l, err := d.Acquire(inner, &q)
		if forgotten && l == nil {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return l, err
	})
}

// forget returns a mutation that forgets a request if n-1 other requests for
// its name are waiting.
func forget(n int) func(*memory.Driver) driver.Driver {
	var mu sync.Mutex
	waiting := map[string]int{}
	add := func(name string, d int) int {
		mu.Lock()
		defer mu.Unlock()
		waiting[name] += d
		return waiting[name]
	}
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		q := *r
		waits, forgotten := false, false
		q.Events = &waitingEvents{r.Events, func() {
			waits = true
			if forgotten = add(r.Name, 1) == n; forgotten {
				cancel()
			}
		}}
		l, err := d.Acquire(inner, &q)
		if waits {
			add(r.Name, -1)
		}
		if forgotten && l == nil {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return l, err
	})
}

// requeue is a mutation in which all waiters leave the queue when one of them
// gives up, and return in reverse order.
func requeue() func(*memory.Driver) driver.Driver {
	var mu sync.Mutex
	var arrivals tally
	queues := map[string][]context.CancelFunc{}
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		arrival := arrivals.add(r.Name)
		for {
			inner, cancel := context.WithCancel(ctx)
			q := *r
			q.Events = &waitingEvents{r.Events, func() {
				mu.Lock()
				defer mu.Unlock()
				queues[r.Name] = append(queues[r.Name], cancel)
			}}
			l, err := d.Acquire(inner, &q)
			if l != nil || r.NoWait || inner.Err() == nil {
				cancel()
				return l, err
			}
			if ctx.Err() != nil {
				mu.Lock()
				for _, other := range queues[r.Name] {
					other()
				}
				queues[r.Name] = nil
				mu.Unlock()
				time.Sleep(time.Millisecond) // until they have left
				return l, err
			}
			time.Sleep(time.Second / time.Duration(arrival))
			r = &driver.Request{Name: r.Name, Hold: r.Hold + "'", Owner: r.Owner, TTL: r.TTL, Fixed: r.Fixed, Events: silent{r.Events}}
		}
	})
}

// silent prevents a second call to Waiting.
type silent struct{ driver.Events }

func (silent) Waiting() {}

// barge is a mutation in which a release grants the name to a client that is
// trying at that moment, ahead of the waiters.
func barge() func(*memory.Driver) driver.Driver {
	var mu sync.Mutex
	tries := map[string]chan driver.Lease{}
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d,
			acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				l, err := d.Acquire(ctx, r)
				if l != nil || !r.NoWait {
					return l, err
				}
				passed := make(chan driver.Lease, 1)
				mu.Lock()
				tries[r.Name] = passed
				mu.Unlock()
				defer func() {
					mu.Lock()
					delete(tries, r.Name)
					mu.Unlock()
				}()
				select {
				case l := <-passed:
					return l, nil
				case <-time.After(time.Millisecond):
					return nil, err
				}
			},
			lease: func(b *brokenLease) {
				b.release = func(ctx context.Context) error {
					<-time.After(time.Millisecond)
					mu.Lock()
					passed := tries[b.r.Name]
					delete(tries, b.r.Name)
					mu.Unlock()
					if passed != nil {
						passed <- b.Lease
						return nil
					}
					return b.Lease.Release(ctx)
				}
			},
		}
	}
}

// crowds contains the waiters for each name of all drivers of a mutation, in
// order of arrival.
type crowds struct {
	mu sync.Mutex
	m  map[string][]*place
}

// place is the place of a waiter.
type place struct {
	got   chan driver.Lease // receives one lease
	asked chan struct{}     // closed at the end of its own request
	err   error             // of its own request
}

// leave removes p from the crowd of name and reports whether it was there.
func (c *crowds) leave(name string, p *place) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.m[name], p)
	if i >= 0 {
		c.m[name] = slices.Delete(c.m[name], i, i+1)
	}
	return i >= 0
}

// pass hands a lease that was granted to p to the last of the crowd if the
// crowd has many waiters, and otherwise to p. If p already has another lease,
// the first of the crowd gets this one.
func (c *crowds) pass(name string, p *place, l driver.Lease, many int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	crowd := c.m[name]
	if len(crowd) == 0 {
		return false
	}
	i := max(0, slices.Index(crowd, p))
	if len(crowd) >= many {
		i = len(crowd) - 1
	}
	crowd[i].got <- l
	c.m[name] = slices.Delete(crowd, i, i+1)
	return true
}

// lastOfCrowd is a mutation that keeps the order unless a name has many
// waiters.
func lastOfCrowd(many int) func(*memory.Driver) driver.Driver {
	c := crowds{m: map[string][]*place{}}
	return breakWait(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		p := &place{got: make(chan driver.Lease, 1), asked: make(chan struct{})}
		q := *r
		q.Events = &waitingEvents{r.Events, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.m[r.Name] = append(c.m[r.Name], p)
		}}
		go func() { // ends when ctx or the driver ends
			defer close(p.asked)
			l, err := d.Acquire(ctx, &q)
			if err != nil {
				p.err = err
			} else if !c.pass(r.Name, p, l, many) {
				p.got <- l // p did not wait or is the last
			}
		}()
		select {
		case l := <-p.got:
			return l, nil
		case <-p.asked:
		}
		if p.err != nil && c.leave(r.Name, p) {
			return nil, p.err
		}
		select {
		case l := <-p.got:
			return l, nil
		case <-ctx.Done():
		}
		if !c.leave(r.Name, p) {
			return <-p.got, nil
		}
		return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
	})
}

var orderMutants = []mutant{
	{check: "order/served", breaks: "a waiter alongside eight others is forgotten", mutate: forget(9)},
	{check: "order/clients", breaks: "an order is claimed but not kept", on: memory.Options{Order: memory.Unordered},
		mutate: claiming(func(i *driver.Info) { i.Order = driver.FIFOByClient })},
	{check: "order/arrival", breaks: "a driver that keeps the order of clients claims the order of arrival", on: memory.Options{Order: memory.FIFOByClient},
		mutate: claiming(func(i *driver.Info) { i.Order = driver.FIFO })},
	{check: "order/clients", breaks: "of more than eight waiters, the newest is served first", mutate: lastOfCrowd(9)},
	{check: "order/arrival", breaks: "of more than a hundred waiters, the newest is served first", mutate: lastOfCrowd(101)},
	{check: "order/canceled", breaks: "a waiter loses its place when another gives up", mutate: requeue()},
	{check: "order/newcomers", breaks: "a client that tries at the moment of a release overtakes the waiters", mutate: barge()},
	{check: "order/hand-overs", breaks: "the thousandth waiter for a name is forgotten", mutate: neverGrant(1000)},
}

// tokensByRelease is a mutation whose token is the number of releases of the
// name.
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

// renamed is a mutation that changes names with a | on their way to the
// backend.
func renamed(f func(string) string) func(*memory.Driver) driver.Driver {
	return spelled(func(name string) string {
		if strings.Contains(name, "|") {
			return f(name)
		}
		return name
	})
}

// spelled is a mutation that requests f(name) instead of name.
func spelled(f func(string) string) func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		q := *r
		q.Name = f(r.Name)
		return d.Acquire(ctx, &q)
	})
}

// keptOneAtATime is a mutation whose leases keep their tokens for one caller at
// a time.
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

// keptWhileHeld is a mutation whose leases lose their kept tokens after the
// release.
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
		breaks: "a lease reports a token more than it has",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			first, n := l.Lease.Tokens()
			l.tokens = func() (uint64, int) { return first, n + 1 }
		}),
	},
	{check: "fencing/loss", breaks: "only a release changes the token", mutate: tokensByRelease()},
	{check: "fencing/kept", breaks: "tokens are kept for one caller at a time", mutate: breakLeases(keptOneAtATime)},
	{check: "fencing/kept", breaks: "kept tokens are lost after the release", mutate: breakLeases(keptWhileHeld)},
	{check: "fencing/restart", breaks: "the count of tokens restarts with the server", mutate: restartedCount},
	{check: "fencing/idle", breaks: "the count of tokens is forgotten after a day without a grant", mutate: forgetful(24 * time.Hour)},
}

var namesMutants = []mutant{
	{
		check:  "names/any",
		breaks: "a name with a brace is refused with an error",
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
	{check: "names/alike", breaks: "braces around a name are not part of it", mutate: spelled(func(name string) string {
		if inner, ok := strings.CutPrefix(name, "{"); ok && strings.HasSuffix(inner, "}") {
			return strings.TrimSuffix(inner, "}")
		}
		return name
	})},
	{check: "names/alike", breaks: "leading zeros of a number are not part of it", mutate: spelled(func(name string) string {
		if strings.Trim(name, "0123456789") == "" {
			return strings.TrimLeft(name, "0")
		}
		return name
	})},
	{
		check:  "names/alike",
		breaks: "names in braces are refused in only one mode",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.Mode == driver.Permit && strings.HasPrefix(r.Name, "{") {
				return nil, errors.ErrUnsupported
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "names/alike",
		breaks: "a name in braces shares the latch of the name without braces",
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
		breaks: "each canceled wait leaves a goroutine",
		mutate: leavesGoroutines(func(err error) bool { return errors.Is(err, context.Canceled) }),
	},
	{
		check:  "scale/gone",
		breaks: "each granted wait leaves a goroutine",
		mutate: leavesGoroutines(func(err error) bool { return err == nil }),
	},
	{
		check:  "scale/waiters",
		breaks: "a waiter alongside 899 others is forgotten",
		mutate: forget(900),
	},
}

// leavesGoroutines returns a mutation in which a wait whose error matches ended
// leaves a goroutine until the driver is closed.
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

// restartedCount is a mutation that claims durable tokens. A client that
// connects after a restart of the server gets tokens from 1 on.
func restartedCount(d *memory.Driver) driver.Driver {
	b := claiming(func(i *driver.Info) { i.Fencing = driver.Durable })(d).(*broken)
	if _, ok := restarted.Load(d.Server()); ok {
		b.lease = func(l *brokenLease) {
			_, n := l.Lease.Tokens()
			l.tokens = func() (uint64, int) { return 1, n }
		}
	}
	return b
}

// forgetful returns a mutation in which tokens start again after a time without
// a grant.
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

var stormMutants = []mutant{
	{
		check:  "storm/calm",
		breaks: "the second extension of a lease counts microseconds instead of seconds",
		mutate: breakLeases(func(_ *memory.Driver, l *brokenLease) {
			var extensions ticker
			var more atomic.Int64
			l.expires = func() time.Time { return l.Lease.Expires().Add(time.Duration(more.Load())) }
			l.renew = func(ctx context.Context, ttl time.Duration) error {
				if !l.r.Fixed || l.r.Mode != driver.Exclusive || extensions.next() < 2 {
					return l.Lease.Renew(ctx, ttl)
				}
				err := l.Lease.Renew(ctx, ttl/100_000)
				if err == nil {
					more.Store(int64(ttl - ttl/100_000))
				}
				return err
			}
		}),
	},
	{
		check:  "storm/faults",
		breaks: "a release whose answer was lost is repeated for the name forever, whoever holds it",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if errors.Is(err, driver.ErrUnknown) {
					for i := range 150 {
						time.AfterFunc(time.Duration(i+1)*15*time.Millisecond, func() { d.Server().Expire(l.r.Name) })
					}
				}
				return err
			}
		}),
	},
	{
		check:  "storm/server",
		breaks: "a restarted server is no longer known",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if _, ok := restarted.Load(d.Server()); ok {
				return nil, errors.New("no matching script")
			}
			return d.Acquire(ctx, r)
		}),
	},
}
