package stress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// shortElections lists the cells with an election in a short run, by backend.
// In a long run every cell has one.
var shortElections = map[string]string{"etcd": "worker-kill", "redisson": "worker-freeze"}

// longestTerm is the longest time that a leader leads.
const longestTerm = 2 * TTL

// campaign is one call to Elect. It is also the Locker of that call, so that it
// can record each attempt and each term.
type campaign struct {
	*user
	end  context.CancelFunc // cancels the ctx of Elect
	op   *history.Op        // the current term, or nil
	term history.Claim
}

// elect campaigns until it has led once and resigned. If a term is lost, it
// campaigns again.
func (u *user) elect() {
	ctx, cancel := context.WithTimeout(context.Background(), patience+longestTerm)
	defer cancel()
	c := &campaign{user: u, end: cancel}
	c.over(dsync.Elect(ctx, c, u.Election, c.lead))
	time.Sleep(u.upTo(u.Pace))
}

// Lock implements dsync.Locker.
func (c *campaign) Lock(ctx context.Context, name string, opts ...dsync.LockOption) (*dsync.Lease, error) {
	c.over(nil)
	op := c.history.Begin(history.Attempt{Client: c.label, Name: name})
	l, err := c.client.Lock(ctx, name, opts...)
	if err != nil {
		op.Returned(nil, err)
		return nil, err
	}
	c.op, c.term = op, l
	if c.Plant == plantFlag {
		c.term = believer{l}
	}
	op.Returned(c.term, nil)
	return l, nil
}

// TryLock implements dsync.Locker. Elect does not call it.
func (c *campaign) TryLock(context.Context, string, ...dsync.LockOption) (*dsync.Lease, error) {
	return nil, errors.ErrUnsupported
}

// lead writes as long as its lease reports that it is held, and then resigns.
// Every other time, it resigns because ctx ends.
func (c *campaign) lead(ctx context.Context, term *dsync.Lease) error {
	defer func() { c.op.Releasing(ctx) }() // Unlock follows
	c.once.Do(func() { fmt.Println("ready") })
	c.held.Store(term, nil)
	defer c.held.Delete(term)
	tick := time.NewTicker(TTL / 20)
	defer tick.Stop()
	lasts := c.upTo(TTL / 8)
	if c.random.IntN(3) == 0 { // so that most of the time the leader has renewed its term
		lasts = TTL/4 + c.upTo(longestTerm-TTL/4)
	}
	end := time.NewTimer(lasts)
	defer end.Stop()
	for done := ctx.Done(); !c.ended.Load(); {
		lost := c.op.Check()
		c.store.access(term.Name(), term.Token(), driver.Exclusive, c.label)
		if lost != nil {
			c.op.Lost() // the write had already started
			return nil
		}
		select {
		case <-tick.C:
		case <-done:
			done = nil // the lease reports whether it is lost
		case <-end.C:
			if c.random.IntN(2) == 0 {
				c.end()
			}
			return nil
		}
	}
	return nil
}

// over records the end of the term, if there was one. err is the error that
// Elect returned.
func (c *campaign) over(err error) {
	if c.op == nil {
		return
	}
	if failed := (*dsync.DoError)(nil); errors.Is(c.term.Err(), dsync.ErrLost) {
		err = c.term.Err()
	} else if errors.As(err, &failed) {
		err = failed.Unlock
	} else {
		err = nil
	}
	c.op.Released(err)
	c.op = nil
}

// believer is the lease of a leader that remembers that it was elected and does
// not check again.
type believer struct{ *dsync.Lease }

func (believer) Err() error { return nil }

// witness observes the election with a client as long as there are faults.
// After that, it must know the leader.
type witness struct {
	client *dsync.Client

	mu   sync.Mutex
	last dsync.Status
	err  error // why it has stopped observing
}

// observe runs until ctx ends.
func (w *witness) observe(ctx context.Context, name string) {
	for status, err := range w.client.Observe(ctx, name) {
		w.mu.Lock()
		w.last, w.err = status, err
		w.mu.Unlock()
	}
}

func (w *witness) seen() (dsync.Status, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.err
}

// testify becomes the leader and waits until the witness sees it.
func (u *user) testify(ctx context.Context, w *witness) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	op := u.history.Begin(history.Attempt{Client: u.label, Name: u.Election})
	l, err := u.client.Lock(ctx, u.Election)
	op.Returned(l, err)
	if err != nil {
		return err
	}
	defer func() { op.Released(l.Unlock(op.Releasing(ctx))) }()
	truth, err := u.client.Inspect(ctx, u.Election)
	if err != nil {
		return err
	}
	for {
		seen, err := w.seen()
		switch {
		case err != nil:
			return fmt.Errorf("the observer has stopped: %w", err)
		case truth.Held && seen.Held && seen.Hold == truth.Hold && seen.Owner == truth.Owner:
			return nil
		case !pause(ctx, 10*time.Millisecond):
			return fmt.Errorf("%+v leads, and the observer has seen %+v last", truth, seen)
		}
	}
}

// observable is a driver made by history.Tap. It adds the methods that Observe
// needs, from the driver behind the Tap.
type observable struct {
	driver.Driver
	driver.Inspector
	behind driver.Driver
}

type observableBatch struct {
	observable
	driver.BatchRenewer
}

func newObservable(d driver.Driver) driver.Driver {
	o := observable{history.Tap(d), d.(driver.Inspector), d}
	if b, ok := o.Driver.(driver.BatchRenewer); ok {
		return observableBatch{o, b}
	}
	return o
}

// Watch implements driver.Watcher, even if the driver does not.
func (o observable) Watch(name string, changed func()) (stop func(), err error) {
	if w, ok := o.behind.(driver.Watcher); ok {
		return w.Watch(name, changed)
	}
	return nil, errors.ErrUnsupported
}
