//go:build unix

// Package caslock is a worked example of a driver for a backend that can do nothing but replace a value if it has not changed: no clock
// at the server, no session, no message to those who wait. DynamoDB, Kubernetes, Consul's keys and object stores are of this kind.
//
// A name is one record: who holds it, for how long, and the last fencing token. A contender that has seen a record unchanged for the
// TTL in it, on its own clock, takes the name over; a holder that renews in time changes it. So nobody compares clocks, and two
// processes exclude each other as long as their clocks run at the same rate, within the margin that package dsync keeps.
package caslock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

func init() {
	driver.Register("caslock", func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		poll := c.URL.Duration("poll", 20*time.Millisecond)
		switch {
		case c.URL.User != nil || len(c.URL.Hosts) > 0:
			return nil, errors.New("caslock URL: a folder has no host, user or password, as in caslock:///var/lock/orders")
		case poll <= 0:
			return nil, errors.New("caslock URL: poll is not positive")
		}
		if err := c.URL.Err(); err != nil {
			return nil, err
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
	calls  sync.WaitGroup // Acquires under way
	leases sync.Map       // *lease: those that nobody has released
	grants atomic.Int64
	sights sights
	sweeper
}

// New returns a driver whose waiters look at the store once in a poll.
func New(s Store, poll time.Duration, fenced bool) *Driver {
	d := &Driver{store: s, poll: poll, fenced: fenced}
	d.life, d.end = context.WithCancel(context.Background())
	d.sweeper.life, d.sweeper.end = context.WithCancel(context.Background())
	d.settle = d.exorcise
	return d
}

// Info: whoever comes when the holder is gone waits for a TTL of his own, since nobody has watched the record for him.
func (d *Driver) Info() driver.Info {
	i := driver.Info{Name: "caslock", Expiry: driver.Observed, Poll: d.poll, Late: d.poll, LatePerTTL: 1}
	if d.fenced {
		i.Fencing = driver.Durable
	}
	return i
}

// Acquire looks again and again: nobody tells it that the name is free.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if !d.begin() {
		return nil, driver.ErrClosed
	}
	defer d.calls.Done()
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	for waits := false; ; waits = true {
		l, err := d.try(both, r)
		if err == nil {
			d.keep(l)
			return l, nil
		}
		switch refused := errors.Is(err, driver.ErrLocked); {
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
}

func (d *Driver) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life.Err() != nil {
		return false
	}
	d.calls.Add(1)
	return true
}

// keep remembers a lease for Close. A lease that ran out long ago is forgotten: nobody releases such a lease after an outage.
func (d *Driver) keep(l *lease) {
	d.leases.Store(l, nil)
	if d.grants.Add(1)%1000 != 0 {
		return
	}
	for old := range d.leases.Range {
		if time.Since(old.(*lease).Expires()) > time.Hour {
			d.leases.Delete(old)
		}
	}
}

// try takes the name if it is free, or if its holder has not renewed it.
func (d *Driver) try(ctx context.Context, r *driver.Request) (*lease, error) {
	for {
		now, version, err := d.get(ctx, r.Name)
		if err != nil {
			return nil, err
		}
		if now.Hold != "" && d.sights.left(r.Name) > 0 {
			return nil, driver.ErrLocked
		}
		sent := time.Now()
		l := &lease{driver: d, name: r.Name, turn: make(chan struct{}, 1), end: sent.Add(r.TTL)}
		l.record = record{Hold: r.Hold, Owner: r.Owner, Note: r.Note, Since: sent, TTL: r.TTL, Token: now.Token}
		if d.fenced {
			l.first, l.tokens = now.Token+1, r.Events.Tokens()
			l.record.Token += uint64(l.tokens)
		}
		l.version, err = d.put(ctx, r.Name, l.record, version)
		switch {
		case err == nil:
			return l, nil
		case !errors.Is(err, errConflict):
			d.clean(ghost{r.Name, r.Hold, version})
			return nil, err
		}
	}
}

// Inspect implements driver.Inspector.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	r, _, err := d.get(ctx, name)
	s := driver.Status{Token: r.Token, Waiters: -1}
	if left := d.sights.left(name); err == nil && r.Hold != "" && left > 0 {
		s.Held, s.Hold, s.Owner, s.Note, s.Since, s.TTL = true, r.Hold, r.Owner, r.Note, r.Since, left
	}
	return s, err
}

// Close ends Acquires, then holds, then waits for what is being cleaned up.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.end() // from now on no call begins
	d.mu.Unlock()
	d.calls.Wait()
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
	return d.sweeper.close(ctx)
}
