package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var sharingMutants = []mutant{
	{
		check:  "sharing/readers",
		breaks: "only readers of one client are admitted",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			client, _, _ := strings.Cut(r.Hold, ":")
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Read && s.Held && !strings.HasPrefix(s.Hold, client+":") {
				return nil, driver.ErrLocked
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "sharing/read-write",
		breaks: "a plain lock does not exclude readers",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Read && s.Held && s.Mode == driver.Exclusive {
				return newForged(r), nil
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "sharing/read-write",
		breaks: "a writer does not exclude plain locks",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Exclusive && s.Held && s.Mode == driver.Write {
				return newForged(r), nil
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "sharing/last-reader",
		breaks: "the release of any reader ends the holds of all",
		mutate: breakLeases(func(d *memory.Driver, l *brokenLease) {
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if err == nil && l.r.Mode == driver.Read {
					d.Server().Expire(l.r.Name)
				}
				return err
			}
		}),
	},
	{
		check:  "sharing/last-reader",
		breaks: "the last reader wakes no waiter",
		mutate: deafTo(driver.Read),
	},
	{
		check:  "sharing/all-readers",
		breaks: "only one waiting reader is woken",
		mutate: inTurn(driver.Read, ofServer),
	},
	{
		check:  "sharing/writer-waits",
		breaks: "readers ignore waiting writers",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Read && s.Mode == driver.Read && s.Waiters > 0 {
				return newForged(r), nil
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "sharing/writer-first",
		breaks: "if several clients read, further readers ignore waiting writers",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Read && s.Mode == driver.Read && s.Holders > 1 && s.Waiters > 0 {
				return newForged(r), nil
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "sharing/writer-first",
		breaks: "a waiting writer polls without being visible",
		on:     memory.Options{Order: memory.Unordered},
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.Mode == driver.Write && !r.NoWait {
				return askAgain(d, ctx, r)
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "sharing/canceled-writer",
		breaks: "a writer that gave up waiting still keeps newcomers from reading",
		mutate: barredByCanceled(),
	},
	{
		check:  "sharing/dead-reader",
		breaks: "a reader's hold ends together with the other readers' holds",
		mutate: breakAcquire(endsWithOthers(driver.Read)),
	},
	{
		check:  "sharing/own-renewal",
		breaks: "a renewal renews all of the client's Read holds of the name",
		mutate: renewsAll,
	},
	{
		check:  "sharing/shorter-reader",
		breaks: "the grant to a reader sets the end of all readers' holds, even to an earlier time",
		mutate: shortening(func(all *fellows, l *brokenLease) {
			for _, other := range all.besides(l) {
				if time.Until(other.Lease.Expires()) > l.r.TTL {
					_ = other.Lease.Renew(context.Background(), l.r.TTL)
				}
			}
		}),
	},
	{
		check:  "sharing/reader-removed",
		breaks: "the loss of a reader's hold is reported to all readers of the name in its client",
		mutate: losesAll,
	},
	{
		check:  "sharing/force-unlock",
		breaks: "ForceUnlock ends the hold of one reader",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, forceUnlock: func(ctx context.Context, name string) error {
				if s, _ := d.Inspect(ctx, name); s.Mode == driver.Read {
					d.Server().ExpireHold(s.Hold)
					return nil
				}
				return d.ForceUnlock(ctx, name)
			}}
		},
	},
	{
		check:  "sharing/tokens",
		breaks: "the token of a waiting reader is taken when the wait begins",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			s, _ := d.Inspect(ctx, r.Name)
			l, err := d.Acquire(ctx, r)
			if err != nil || r.Mode != driver.Read || !s.Held || s.Mode == driver.Read {
				return l, err
			}
			return &brokenLease{Lease: l, r: r, tokens: func() (uint64, int) { return s.Token, 1 }}, nil
		}),
	},
	{
		check:  "sharing/clean-up",
		breaks: "the cleanup after an unanswered request ends the oldest hold of the name",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if errors.Is(err, driver.ErrUnknown) && ctx.Err() == nil && (r.Mode == driver.Read || r.Mode == driver.Permit) {
				other := d.Server().NewDriver()
				if s, _ := other.Inspect(context.Background(), r.Name); s.Held && s.Hold != r.Hold {
					d.Server().ExpireHold(s.Hold)
				}
			}
			return l, err
		}),
	},
	{
		check:  "sharing/sealed",
		breaks: "a sealed name can be read",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if r.Mode == driver.Read && errors.Is(err, driver.ErrSealed) {
				return newForged(r), nil
			}
			return l, err
		}),
	},
	{
		check:  "sharing/join",
		breaks: "readers join a hold of their client, however old it is",
		owner:  joiner(),
	},
	{
		check:  "sharing/join",
		breaks: "each reader sends a request to the backend",
		owner: func(c *client, l locker) locker {
			return lockerFunc(func(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
				if isOption(opts, dsync.Read()) {
					opts = append(opts, dsync.ExpireAfter(time.Minute)) // which makes a separate hold
				}
				return l.lock(ctx, try, name, opts...)
			})
		},
	},
	{
		check:  "sharing/inspect",
		breaks: "Inspect reports the token of the first reader",
		mutate: breakStatus(func(s *driver.Status) {
			if s.Mode == driver.Read && s.Token > 0 {
				s.Token -= uint64(s.Holders - 1)
			}
		}),
	},
	{
		check:  "sharing/inspect",
		breaks: "Inspect reports all readers but the first as waiters",
		mutate: breakStatus(func(s *driver.Status) {
			if s.Mode == driver.Read {
				s.Waiters, s.Holders = s.Waiters+s.Holders-1, 1
			}
		}),
	},
	{
		check:  "sharing/list",
		breaks: "a name is listed until the first of its readers has expired",
		mutate: func(d *memory.Driver) driver.Driver {
			var over sync.Map // times, by name
			b := breakList(func(name, _ string) bool {
				at, ok := over.Load(name)
				return ok && time.Now().After(at.(time.Time))
			})(d).(*broken)
			b.lease = func(l *brokenLease) {
				if l.r.Mode == driver.Read && l.r.Fixed {
					over.LoadOrStore(l.r.Name, l.Expires())
				}
			}
			return b
		},
	},
	{
		check:  "sharing/nested",
		breaks: "a reader that tries to write waits for itself",
		owner: func(c *client, l locker) locker {
			return lockerFunc(func(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
				held, err := l.lock(ctx, try, name, opts...)
				if isOption(opts, dsync.Write()) && errors.Is(err, dsync.ErrDeadlock) {
					return c.locker.lock(ctx, try, name, opts...)
				}
				return held, err
			})
		},
	},
	{
		check:  "sharing/equal-owners",
		breaks: "a writer may read a name that its own owner reads or writes",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); s.Held && s.Owner == r.Owner && s.Mode != driver.Exclusive && r.Mode != s.Mode && r.Mode != driver.Exclusive {
				return newForged(r), nil
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "sharing/reader-waits",
		breaks: "a waiting reader is counted but has no place in the queue",
		mutate: countedReaders(),
	},
	{
		check:  "loss/all-told",
		breaks: "no more than 64 readers are admitted at the same time",
		mutate: breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if s, _ := d.Inspect(ctx, r.Name); r.Mode == driver.Read && s.Mode == driver.Read && s.Holders >= 64 {
				return nil, driver.ErrLocked
			}
			return d.Acquire(ctx, r)
		}),
	},
	{
		check:  "loss/all-told",
		breaks: "ForceUnlock notifies only one reader",
		mutate: toldOnceForEachName(),
	},
	{
		check:  "sharing/closed-writer",
		breaks: "a waiting writer whose client was closed still keeps newcomers and the waiters behind it from reading",
		mutate: barredByClosed(),
	},
}

// endsWithOthers extends the hold of a shorter lease in a mode to the end of an
// existing hold.
func endsWithOthers(m driver.Mode) func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
	return func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		s, _ := d.Inspect(ctx, r.Name)
		if r.Mode != m || s.Mode != m || s.TTL <= r.TTL {
			return d.Acquire(ctx, r)
		}
		q, sent := *r, time.Now()
		q.TTL = s.TTL
		l, err := d.Acquire(ctx, &q)
		if err != nil {
			return nil, err
		}
		return &brokenLease{Lease: l, r: r, expires: func() time.Time { return sent.Add(r.TTL) }}, nil
	}
}

// renewsAll is a mutation in which a renewal also renews all other holds that
// the client has of the name.
func renewsAll(d *memory.Driver) driver.Driver {
	var all fellows
	return &broken{Driver: d, lease: func(l *brokenLease) {
		all.add(l)
		l.renew = func(ctx context.Context, ttl time.Duration) error {
			for _, other := range all.besides(l) {
				_ = other.Lease.Renew(ctx, ttl)
			}
			return l.Lease.Renew(ctx, ttl)
		}
	}}
}

// losesAll is a mutation in which the loss of a hold is reported to the holders
// of all of the client's holds of the name.
func losesAll(d *memory.Driver) driver.Driver {
	var all fellows
	return &broken{Driver: d, lease: func(l *brokenLease) {
		all.add(l)
		l.renew = func(ctx context.Context, ttl time.Duration) error {
			err := l.Lease.Renew(ctx, ttl)
			if errors.Is(err, driver.ErrNotHeld) {
				for _, other := range all.besides(l) {
					other.r.Events.Lost(driver.ErrRemoved)
				}
			}
			return err
		}
	}}
}

// fellows are leases of holds that a name has at the same time.
type fellows struct {
	mu  sync.Mutex
	all []*brokenLease
}

func (a *fellows) add(l *brokenLease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, l)
}

// besides returns the leases of l's name that are held at the same time as l.
func (a *fellows) besides(l *brokenLease) (others []*brokenLease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, other := range a.all {
		if other != l && other.r.Name == l.r.Name && !other.r.Mode.Excludes(l.r.Mode) {
			others = append(others, other)
		}
	}
	return others
}

// shortening is a mutation in which a grant to a reader changes the holds of
// other readers without notice to their leases.
func shortening(granted func(all *fellows, l *brokenLease)) func(*memory.Driver) driver.Driver {
	var servers sync.Map // of fellows
	return breakLeases(func(d *memory.Driver, l *brokenLease) {
		if l.r.Mode != driver.Read {
			return
		}
		of, _ := servers.LoadOrStore(d.Server(), new(fellows))
		all := of.(*fellows)
		all.add(l)
		var end atomic.Int64
		end.Store(l.Lease.Expires().UnixNano())
		l.expires = func() time.Time { return time.Unix(0, end.Load()) }
		l.renew = func(ctx context.Context, ttl time.Duration) error {
			err := l.Lease.Renew(ctx, ttl)
			if err == nil {
				end.Store(l.Lease.Expires().UnixNano())
			}
			return err
		}
		granted(all, l)
	})
}

// deafTo is a mutation of waiting writers. They are not notified of the release
// of a hold in mode m, and try again after a minute.
func deafTo(m driver.Mode) func(*memory.Driver) driver.Driver {
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		if s, _ := d.Inspect(ctx, r.Name); r.NoWait || r.Mode != driver.Write || !s.Held || s.Mode != m {
			return d.Acquire(ctx, r)
		}
		r.Events.Waiting()
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
	})
}

func ofServer(d *memory.Driver) any { return d.Server() }
func ofClient(d *memory.Driver) any { return d }

// inTurn is a mutation that grants a name to its waiters in a mode one after
// another, either among all waiters or among each client's waiters.
func inTurn(m driver.Mode, who func(*memory.Driver) any) func(*memory.Driver) driver.Driver {
	var turns sync.Map
	return func(d *memory.Driver) driver.Driver {
		of, _ := turns.LoadOrStore(who(d), make(chan struct{}, 1))
		turn := of.(chan struct{})
		return &broken{Driver: d, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			try := *r
			try.NoWait = true
			l, err := d.Acquire(ctx, &try)
			switch {
			case r.NoWait || !errors.Is(err, driver.ErrLocked):
				return l, err
			case r.Mode != m:
				return d.Acquire(ctx, r)
			}
			r.Events.Waiting()
			select {
			case turn <- struct{}{}:
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
			}
			again := *r
			again.Events = waitsAlready{r.Events}
			if l, err = d.Acquire(ctx, &again); err != nil {
				<-turn
				return nil, err
			}
			return &brokenLease{Lease: l, r: r, release: func(ctx context.Context) error {
				defer func() { <-turn }()
				return l.Release(ctx)
			}}, nil
		}}
	}
}

// waitsAlready are the events of a request that has already called Waiting.
type waitsAlready struct{ driver.Events }

// Waiting implements driver.Events.
func (waitsAlready) Waiting() {}

// askAgain waits for a name by trying every millisecond.
func askAgain(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
	try := *r
	try.NoWait = true
	for waits := false; ; waits = true {
		l, err := d.Acquire(ctx, &try)
		if !errors.Is(err, driver.ErrLocked) {
			return l, err
		}
		if !waits {
			r.Events.Waiting()
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
	}
}

// barredByCanceled is a mutation by which a name can no longer be read after a
// waiting writer has given up.
func barredByCanceled() func(*memory.Driver) driver.Driver {
	var barred sync.Map // by name
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		if _, is := barred.Load(r.Name); is && r.Mode == driver.Read {
			return nil, driver.ErrLocked
		}
		l, err := d.Acquire(ctx, r)
		if err != nil && r.Mode == driver.Write && !r.NoWait {
			barred.Store(r.Name, true)
		}
		return l, err
	})
}

type lockerFunc func(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error)

func (f lockerFunc) lock(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
	return f(ctx, try, name, opts...)
}

func isOption(opts []dsync.LockOption, o dsync.LockOption) bool {
	return len(opts) == 1 && opts[0] == o
}

// joiner lets owners of a client share a lease for as long as one of them
// reads.
func joiner() func(*client, locker) locker {
	var shared sync.Map // of *joined, by client and name
	return func(c *client, l locker) locker {
		return lockerFunc(func(ctx context.Context, try bool, name string, opts ...dsync.LockOption) (lease, error) {
			if !isOption(opts, dsync.Read()) {
				return l.lock(ctx, try, name, opts...)
			}
			key := [2]any{c, name}
			if of, ok := shared.Load(key); ok {
				j := of.(*joined)
				j.users.Add(1)
				return j, nil
			}
			held, err := l.lock(ctx, try, name, opts...)
			if err != nil {
				return nil, err
			}
			j := &joined{lease: held, over: func() { shared.Delete(key) }}
			j.users.Store(1)
			shared.Store(key, j)
			return j, nil
		})
	}
}

// joined is a lease that several owners share.
type joined struct {
	lease
	users atomic.Int32
	over  func()
}

func (j *joined) Unlock(ctx context.Context) error {
	if j.users.Add(-1) > 0 {
		return nil
	}
	j.over()
	return j.lease.Unlock(ctx)
}

// countedReaders is a mutation by which waiting readers poll. Inspect counts
// them anyway.
func countedReaders() func(*memory.Driver) driver.Driver {
	var counts sync.Map // by name
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if r.Mode != driver.Read || r.NoWait {
				return d.Acquire(ctx, r)
			}
			n, _ := counts.LoadOrStore(r.Name, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			defer n.(*atomic.Int64).Add(-1)
			return askAgain(d, ctx, r)
		}
		b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
			s, err := d.Inspect(ctx, name)
			if n, ok := counts.Load(name); ok && s.Held {
				s.Waiters += int(n.(*atomic.Int64).Load())
			}
			return s, err
		}
		return b
	}
}

// toldOnceForEachName is a mutation by which only one of the readers of a name
// is notified of its loss.
func toldOnceForEachName() func(*memory.Driver) driver.Driver {
	var told sync.Map // by name
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		if r.Mode != driver.Read {
			return d.Acquire(ctx, r)
		}
		q := *r
		q.Events = onceTold{r.Events, func() bool {
			_, before := told.LoadOrStore(r.Name, true)
			return !before
		}}
		return d.Acquire(ctx, &q)
	})
}

type onceTold struct {
	driver.Events
	first func() bool
}

// Lost implements driver.Events.
func (o onceTold) Lost(cause error) {
	if o.first() {
		o.Events.Lost(cause)
	}
}

// barredByClosed is a mutation by which waiting readers are not granted a name
// after a client that waited for the name was closed.
func barredByClosed() func(*memory.Driver) driver.Driver {
	var barred sync.Map // by name
	return breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		s, _ := d.Inspect(ctx, r.Name)
		l, err := d.Acquire(ctx, r)
		if errors.Is(err, driver.ErrClosed) && s.Mode == driver.Read && !r.NoWait {
			barred.Store(r.Name, true)
		}
		if _, is := barred.Load(r.Name); is && err == nil && r.Mode == driver.Read && !r.NoWait {
			<-ctx.Done()
			return nil, errors.Join(ctx.Err(), driver.ErrLocked, l.Release(context.Background()))
		}
		return l, err
	})
}
