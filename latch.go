package dsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Latch is a number that is set once, and then counted down to 0 by any client,
// while other clients wait for it to reach 0. It is compatible with Java's
// RCountDownLatch. A latch has no owner and does not expire, even if a client
// that counted down is gone. At 0 the latch is removed and can be set again. A
// Wait could then also wait for the next latch of the name, so use a new name
// for each round.
//
// Set, CountDown and Delete try again while the backend is out of reach, until
// ctx is done or half an hour has passed. A request whose response is lost is
// repeated, but the backend carries it out only once. If an error matches
// ErrUnknown, the backend may have carried out the request. With waitreplicas=
// on Redis, a change that too few replicas confirm returns immediately, with an
// error that matches ErrUnknown and redisson.ErrNotReplicated. Use a name for a
// latch or for a lock, not for both.
//
// Redis, etcd, ZooKeeper and memory support latches. On Redlock, PostgreSQL,
// SQL tables and migrations all methods except Name return an error that
// matches errors.ErrUnsupported.
//
// All methods may be called concurrently.
type Latch struct {
	client *Client
	name   string
}

// Latch returns the latch of a name, which need not be set. Its name
// follows the rules for names of locks.
func (c *Client) Latch(name string) *Latch { return &Latch{c, name} }

// Name returns the name of the latch.
func (l *Latch) Name() string { return l.name }

// Set sets the count to n, 1 or more. If there is a count already, Set changes
// nothing and returns false.
func (l *Latch) Set(ctx context.Context, n int) (set bool, err error) {
	if n < 1 {
		return false, &LockError{"set latch", l.name, fmt.Errorf("the count %d is less than 1", n)}
	}
	err = l.change(ctx, "set latch", func(ctx context.Context, backend driver.Latcher, id string) (err error) {
		set, err = backend.SetLatch(ctx, l.name, id, n)
		return err
	})
	return set && err == nil, err
}

// CountDown lowers the count by 1. Without a count, nothing happens.
func (l *Latch) CountDown(ctx context.Context) error {
	return l.change(ctx, "count down latch", func(ctx context.Context, backend driver.Latcher, id string) error {
		return backend.CountDown(ctx, l.name, id)
	})
}

// Delete removes the count and ends all waits. Without a count, nothing
// happens.
func (l *Latch) Delete(ctx context.Context) error {
	return l.change(ctx, "delete latch", func(ctx context.Context, backend driver.Latcher, id string) error {
		return backend.DeleteLatch(ctx, l.name, id)
	})
}

// Count returns the count, or 0 if there is none. The answer may be out of date
// on arrival.
func (l *Latch) Count(ctx context.Context) (left int, err error) {
	err = l.call("count of latch", func(backend driver.Latcher) (err error) {
		left, err = backend.Latch(ctx, l.name)
		return err
	})
	return left, err
}

// Wait returns nil when there is no count: because it reached 0, was deleted,
// or was never set. So set a latch before any client waits for it. While the
// backend is out of reach, Wait tries again until ctx is done. Its error then
// matches the context's error.
func (l *Latch) Wait(ctx context.Context) error {
	return l.call("wait for latch", func(backend driver.Latcher) error { return l.client.latches.wait(ctx, backend, l.name) })
}

// call runs f, which sends a request to the backend.
func (l *Latch) call(op string, f func(backend driver.Latcher) error) error {
	return l.client.admin(op, l.name, func() error {
		backend, ok := l.client.driver.(driver.Latcher)
		if !ok {
			return fmt.Errorf("driver %s has no latches: %w", l.client.info.Name, errors.ErrUnsupported)
		}
		return f(backend)
	})
}

// change runs f, which requests a change, repeatedly with one id, until the
// backend has answered or ctx is done. If a request may have been carried out,
// change continues only for driver.RepeatFor, because after that the backend
// may have forgotten the id.
func (l *Latch) change(ctx context.Context, op string, f func(ctx context.Context, backend driver.Latcher, id string) error) error {
	return l.call(op, func(backend driver.Latcher) error {
		c := l.client
		if ctx.Err() != nil {
			return newWaitError(ctx, nil, nil, false)
		}
		id := c.newHoldID()
		var doubt bool   // a request may have been carried out
		var until moment // the end of the repeats, if in doubt
		for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
			sent := c.now()
			err := c.patiently(ctx, func(ctx context.Context) error { return f(ctx, backend, id) })
			if err == nil {
				return nil
			}
			if !doubt && inDoubt(err) {
				doubt, until = true, sent+moment(driver.RepeatFor)
			}
			// carried out, but the backend may lose it
			unsafe := errors.Is(err, ErrUnknown) && errors.Is(err, ErrUnavailable)
			if transient(err) && !unsafe && c.pause(ctx, pause) && (!doubt || c.now() < until) {
				continue
			}
			switch {
			case ctx.Err() != nil:
				err = newWaitError(ctx, err, nil, false)
			case c.isClosed():
				err = ErrClosed
			}
			if doubt {
				err = unknown(err)
			}
			return err
		}
	})
}

// inDoubt reports whether a request that failed with err may have been carried
// out.
func inDoubt(err error) bool {
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return errors.Is(err, ErrUnknown) || ended && !errors.Is(err, ErrUnavailable)
}

// patiently calls f, which sends a request, with a timeout. If the timeout ends
// the request, the error reports whether the request may have been carried out,
// and does not match the error of a context.
func (c *Client) patiently(ctx context.Context, f func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, c.reach.patience())
	defer cancel()
	err := f(bounded)
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	kind := ErrUnavailable
	if inDoubt(err) {
		kind = ErrUnknown
	}
	return fmt.Errorf("%w: no answer within %v", kind, c.reach.patience())
}

// pause waits for about d. It returns false if ctx is done first, or the client
// is closed.
func (c *Client) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-c.closing:
	}
	return false
}

// latches holds the waits of a client for latches, by name. All waits for a
// latch share the queries to the backend.
type latches struct {
	client *Client
	asking sync.WaitGroup // goroutines of groups

	mu     sync.Mutex
	closed bool
	groups map[string]*latchGroup
}

// latchGroup contains the waits for one latch and the goroutine that queries
// the backend for them.
type latchGroup struct {
	latches *latches
	backend driver.Latcher
	name    string
	ctx     context.Context // ends when the last wait ends
	end     context.CancelFunc
	kick    chan struct{} // has an element when it is time for a query

	// Guarded by latches.mu.
	asked   uint64 // number of queries
	waits   map[*latchWait]struct{}
	trouble error // why the last query has no answer
}

// latchWait is one call to Wait.
type latchWait struct {
	// only the answer to a later query counts, because an earlier query may
	// have been sent before the latch was set
	after uint64
	done  chan error // receives the outcome when the wait is removed from the group
}

// wait implements Latch.Wait.
func (ls *latches) wait(ctx context.Context, backend driver.Latcher, name string) error {
	if ctx.Err() != nil {
		return newWaitError(ctx, nil, nil, false)
	}
	g, w := ls.join(backend, name)
	if g == nil {
		return ErrClosed
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	case <-ls.client.closing:
	}
	trouble := g.leave(w)
	select {
	case err := <-w.done: // the latch was removed at the same moment
		return err
	default:
	}
	if ctx.Err() != nil {
		return newWaitError(ctx, nil, trouble, false)
	}
	return ErrClosed
}

// join adds a wait to the group of a latch. It creates the group if there is
// none. After close it returns nil.
func (ls *latches) join(backend driver.Latcher, name string) (*latchGroup, *latchWait) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		return nil, nil
	}
	g := ls.groups[name]
	if g == nil {
		g = &latchGroup{latches: ls, backend: backend, name: name, kick: make(chan struct{}, 1), waits: map[*latchWait]struct{}{}}
		g.ctx, g.end = context.WithCancel(context.Background())
		if ls.groups == nil {
			ls.groups = map[string]*latchGroup{}
		}
		ls.groups[name] = g
		ls.asking.Go(g.run) // ends when the last wait ends
	}
	w := &latchWait{after: g.asked, done: make(chan error, 1)}
	g.waits[w] = struct{}{}
	g.changed()
	return g, w
}

// close ends all waits and returns when no query is running.
func (ls *latches) close() {
	ls.mu.Lock()
	ls.closed = true
	for _, g := range ls.groups {
		g.endWaits(g.asked+1, ErrClosed)
	}
	ls.mu.Unlock()
	ls.asking.Wait()
}

// run queries whether the latch exists: when the driver reports that it may be
// gone, when another wait begins, and every third of the TTL. While the backend
// is out of reach, it queries more often.
func (g *latchGroup) run() {
	stop := func() {}
	defer func() { stop() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	watched := false
	for pause := minAskPause; ; {
		select {
		case <-timer.C:
		case <-g.kick:
		case <-g.ctx.Done():
			return
		}
		next := g.latches.client.ttl / 3
		if g.query() {
			pause = minAskPause
			if !watched && g.ctx.Err() == nil {
				watched = true
				if f, err := g.backend.WatchLatch(g.name, g.changed); err == nil {
					stop = f
				}
			}
		} else {
			next = min(next, pause)
			pause = min(2*pause, maxReachPause)
		}
		timer.Reset(next)
	}
}

// query queries the backend, ends the waits for which the answer counts, and
// reports whether there was an answer.
func (g *latchGroup) query() bool {
	ls := g.latches
	ls.mu.Lock()
	g.asked++
	question := g.asked
	ls.mu.Unlock()
	var left int
	err := ls.client.patiently(g.ctx, func(ctx context.Context) (err error) {
		left, err = g.backend.Latch(ctx, g.name)
		return err
	})
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if transient(err) {
		// also if the outcome is unknown, because a query changes nothing
		g.trouble = fmt.Errorf("%w: %v", ErrUnavailable, err)
		return false
	}
	g.trouble = nil
	if err != nil || left == 0 {
		g.endWaits(question, err)
	}
	return true
}

// changed makes the goroutine query the backend. The driver calls changed.
func (g *latchGroup) changed() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// leave removes a wait from the group, unless its outcome is known, and returns
// why the last query has no answer.
func (g *latchGroup) leave(w *latchWait) (trouble error) {
	g.latches.mu.Lock()
	defer g.latches.mu.Unlock()
	g.remove(w)
	return g.trouble
}

// The methods below are called with latches.mu held.

// endWaits passes the outcome of a query to the waits that began before the
// query.
func (g *latchGroup) endWaits(question uint64, err error) {
	for w := range g.waits {
		if w.after < question {
			w.done <- err
			g.remove(w)
		}
	}
}

// remove removes a wait from the group. The group ends when its last wait is
// removed.
func (g *latchGroup) remove(w *latchWait) {
	delete(g.waits, w)
	if ls := g.latches; len(g.waits) == 0 && ls.groups[g.name] == g {
		delete(ls.groups, g.name)
		g.end()
	}
}
