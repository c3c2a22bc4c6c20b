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

// shortElections are the cells with an election in a short run, by backend. In
// a long run all cells have one.
var shortElections = map[string]string{"etcd": "worker-kill", "redisson": "worker-freeze"}

// longestTerm is how long a leader leads at most.
const longestTerm = 2 * TTL

// campaign is one call of Elect. It is the Locker of that call, too, and so
// records each attempt and each term.
type campaign struct {
	*user
	end  context.CancelFunc // of Elect's ctx
	op   *history.Op        // of the term; nil if there is none
	term history.Claim
}

// elect is a candidate until it has led once and resigned. A term that is lost
// is followed by another candidacy.
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

// TryLock implements dsync.Locker. Elect has no use for it.
func (c *campaign) TryLock(context.Context, string, ...dsync.LockOption) (*dsync.Lease, error) {
	return nil, errors.ErrUnsupported
}

// lead writes for as long as it leads by its own word, then resigns, every
// other time by the end of ctx.
func (c *campaign) lead(ctx context.Context, term *dsync.Lease) error {
	defer func() { c.op.Releasing(ctx) }() // Unlock follows
	c.once.Do(func() { fmt.Println("ready") })
	c.held.Store(term, nil)
	defer c.held.Delete(term)
	tick := time.NewTicker(TTL / 20)
	defer tick.Stop()
	lasts := c.upTo(TTL / 8)
	if c.random.IntN(3) == 0 { // so that most of the time there is a leader who has renewed
		lasts = TTL/4 + c.upTo(longestTerm-TTL/4)
	}
	end := time.NewTimer(lasts)
	defer end.Stop()
	for done := ctx.Done(); !c.ended.Load(); {
		lost := c.op.Check()
		c.store.access(term.Name(), term.Token(), driver.Exclusive, c.label)
		if lost != nil {
			c.op.Lost() // and what was written had been under way
			return nil
		}
		select {
		case <-tick.C:
		case <-done:
			done = nil // the lease says whether it is lost
		case <-end.C:
			if c.random.IntN(2) == 0 {
				c.end()
			}
			return nil
		}
	}
	return nil
}

// over records the end of the term, if there was one. err is what Elect has
// returned.
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

// believer is the word of a leader who has noted that it was elected, and looks
// no more.
type believer struct{ *dsync.Lease }

func (believer) Err() error { return nil }

// witness observes the election with a client, for as long as there are faults,
// and then has to know who leads.
type witness struct {
	client *dsync.Client

	mu   sync.Mutex
	last dsync.Status
	err  error // why it has stopped to observe
}

// observe ends with ctx.
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

// testify leads, and waits until the witness knows.
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

// observable is a driver that history.Tap has made, with what Observe needs of
// the driver behind it.
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

// Watch implements driver.Watcher, also for a driver that does not.
func (o observable) Watch(name string, changed func()) (stop func(), err error) {
	if w, ok := o.behind.(driver.Watcher); ok {
		return w.Watch(name, changed)
	}
	return nil, errors.ErrUnsupported
}
