//go:build unix

// Package caslock is a worked example of a driver for a backend that can do nothing but replace a value if it has not changed: no clock
// at the server, no session, no message to waiters. DynamoDB, Kubernetes, Consul's keys and object stores are of this kind.
//
// A name is one record: the holder, its TTL, and the last fencing token. A contender that has seen a record unchanged for the
// TTL in it, by its own clock, takes the name over; a holder that renews in time changes the record. So nobody compares clocks, and two
// processes exclude each other as long as their clocks run at the same rate, within the margin that package dsync keeps.
//
// Driver.change makes all changes of a record: read it, decide, replace it if it is still the same.
package caslock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

func init() {
	driver.Register("caslock", func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		poll := c.URL.Duration("poll", 20*time.Millisecond)
		if err := c.URL.Err(); err != nil {
			return nil, err
		}
		if c.URL.User != nil || len(c.URL.Hosts) > 0 {
			return nil, errors.New("caslock URL: a folder has no host, user or password, as in caslock:///var/lock/orders")
		}
		return New(Folder(c.URL.Path), poll, c.Fenced), nil
	})
}

// Driver is a client of a store, and implements driver.Driver.
type Driver struct {
	store  Store
	poll   time.Duration
	fenced bool
	life   context.Context // ends when Close begins
	end    context.CancelFunc
	calls  sync.RWMutex // read by Acquires under way
	leases sync.Map     // *lease: those that are neither released nor over

	hope     context.Context // of cleaning up: ends with the context of Close
	giveUp   context.CancelFunc
	cleaning sync.WaitGroup

	mu     sync.Mutex
	ghosts []ghost
	sights map[string]sight
}

// New returns a driver whose waiters look at the store once in a poll.
func New(s Store, poll time.Duration, fenced bool) *Driver {
	d := &Driver{store: s, poll: poll, fenced: fenced, sights: map[string]sight{}}
	d.life, d.end = context.WithCancel(context.Background())
	d.hope, d.giveUp = context.WithCancel(context.Background())
	return d
}

// Info: a contender that comes when the holder is gone waits for a whole TTL, since it has to watch the record for so long.
func (d *Driver) Info() driver.Info {
	i := driver.Info{Name: "caslock", Expiry: driver.Observed, Poll: d.poll, Late: d.poll, LatePerTTL: 1}
	if d.fenced {
		i.Fencing = driver.Durable
	}
	return i
}

// Acquire looks again and again, since no message tells that the name is free.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	d.calls.RLock()
	defer d.calls.RUnlock()
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	for waits := false; d.life.Err() == nil; waits = true {
		l, err := d.try(both, r)
		switch refused := errors.Is(err, driver.ErrLocked); {
		case err == nil:
			d.leases.Store(l, nil)
			l.forget = time.AfterFunc(r.TTL, func() { d.leases.Delete(l) })
			return l, nil
		case d.life.Err() != nil:
			return nil, fmt.Errorf("%w: %w", driver.ErrClosed, err)
		case waits && ctx.Err() != nil && !refused:
			return nil, fmt.Errorf("%w; before it was %w", err, driver.ErrLocked)
		case r.NoWait || !refused:
			return nil, err
		case !waits:
			r.Events.Waiting()
		}
		select {
		case <-time.After(d.poll):
		case <-both.Done():
		}
	}
	return nil, driver.ErrClosed
}

// try takes the name if it is free, or if its holder has not renewed it.
func (d *Driver) try(ctx context.Context, r *driver.Request) (*lease, error) {
	l := &lease{driver: d, name: r.Name, turn: make(chan struct{}, 1)}
	version, err := d.change(ctx, r.Name, func(now record) (record, error) {
		if now.Hold != "" && now.left > 0 {
			return now, driver.ErrLocked
		}
		sent := time.Now()
		l.end = sent.Add(r.TTL)
		l.record = record{Hold: r.Hold, Owner: r.Owner, Note: r.Note, Since: sent, TTL: r.TTL, Token: now.Token}
		if d.fenced {
			l.first, l.tokens = now.Token+1, r.Events.Tokens()
			l.record.Token += uint64(l.tokens)
		}
		return l.record, nil
	})
	if errors.Is(err, driver.ErrUnknown) {
		d.clean(ghost{r.Name, r.Hold, version})
	}
	return l, err
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	r, err := d.get(ctx, name)
	s := driver.Status{Token: r.Token, Waiters: -1}
	if r.Hold != "" && r.left > 0 {
		s.Held, s.Hold, s.Owner, s.Note, s.Since, s.TTL = true, r.Hold, r.Owner, r.Note, r.Since, r.left
	}
	return s, err
}

// Close ends Acquires, then holds, then waits for the ghosts to be settled.
func (d *Driver) Close(ctx context.Context) error {
	d.end()
	d.calls.Lock() // when none is under way; from now on none begins
	//lint:ignore SA2001 there is nothing to do but to wait
	d.calls.Unlock()
	slots := make(chan struct{}, 16)
	var all sync.WaitGroup
	for l := range d.leases.Range {
		slots <- struct{}{}
		all.Go(func() { // ends with ctx, as Release does
			_ = l.(*lease).Release(ctx)
			<-slots
		})
	}
	all.Wait()
	defer d.giveUp()
	defer context.AfterFunc(ctx, d.giveUp)()
	d.cleaning.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.ghosts); n > 0 {
		return fmt.Errorf("%w: %d requests without an answer: %w", driver.ErrUnknown, n, ctx.Err())
	}
	return nil
}
