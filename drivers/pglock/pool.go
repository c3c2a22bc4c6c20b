package pglock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// locksPerSession is the number of locks after which another session is opened,
// because statements get slower with the number of locks of their session.
const locksPerSession = 1000

// class holds the sessions of one TTL. Guarded by Driver.mu.
type class struct {
	hubs    []*session // for many locks each
	idle    []*session // for waits, without a wait or a lock
	dialing *dialing   // of another hub; nil if none is needed
	waiters int        // sessions for waits, including idle ones
}

// dialing is a connection attempt in progress.
type dialing struct {
	done chan struct{}
	err  error // to be read after done
}

// remove excludes a session from the choice.
func (c *class) remove(s *session) {
	is := func(other *session) bool { return other == s }
	c.hubs = slices.DeleteFunc(c.hubs, is)
	c.idle = slices.DeleteFunc(c.idle, is)
}

func (c *class) empty() bool { return len(c.hubs) == 0 && c.waiters == 0 && c.dialing == nil }

// class is called with mu held.
func (d *Driver) class(ttl time.Duration) *class {
	c := d.classes[ttl]
	if c == nil {
		c = &class{}
		d.classes[ttl] = c
	}
	return c
}

// hub returns a session for many locks. The session has no hold of the queue
// apart, which may be nil. hub counts one more lock or attempt on the session,
// until drop or freeSession is called. It connects if necessary.
func (d *Driver) hub(ctx context.Context, ttl time.Duration, apart *localQueue) (*session, error) {
	for {
		d.mu.Lock()
		c := d.class(ttl)
		for _, s := range c.hubs {
			if s.carried < locksPerSession && !apart.on(s) {
				s.carried++
				d.mu.Unlock()
				return s, nil
			}
		}
		dl := c.dialing
		if dl == nil {
			dl = &dialing{done: make(chan struct{})}
			if !d.life.Go(func() { d.dialHub(c, dl, ttl) }) {
				d.mu.Unlock()
				return nil, driver.ErrClosed
			}
			c.dialing = dl
		}
		d.mu.Unlock()
		select {
		case <-dl.done:
			if dl.err != nil {
				return nil, dl.err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, ctx.Err())
		case <-d.life.Context().Done():
			return nil, driver.ErrClosed
		}
	}
}

// dialHub connects a hub. Its goroutine ends when the connection attempt ends.
func (d *Driver) dialHub(c *class, dl *dialing, ttl time.Duration) {
	s, err := d.dial(d.life.Context(), ttl, false)
	d.mu.Lock()
	c.dialing = nil
	dl.err = err
	alive := err == nil && d.adopt(s)
	if alive {
		c.hubs = append(c.hubs, s)
	}
	d.mu.Unlock()
	if err == nil && !alive {
		s.end(driver.ErrClosed)
	}
	close(dl.done)
	d.reportKeepAlive(err)
}

// waiter returns a session for a wait. The session is in use until freeSession
// is called. It connects if necessary.
func (d *Driver) waiter(ctx context.Context, ttl time.Duration) (*session, error) {
	d.mu.Lock()
	c := d.class(ttl)
	if n := len(c.idle); n > 0 {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		s.carried++
		d.mu.Unlock()
		return s, nil
	}
	if d.waiters >= d.options.MaxWaiters {
		spare, n, withdrawals := d.spareWaiter(), d.waiters, d.withdrawals
		d.mu.Unlock()
		switch {
		case spare != nil:
			spare.quit(ctx, errQuit)
		case withdrawals == 0:
			return nil, fmt.Errorf("%w: all %d are in use (Options.MaxWaiters)", ErrTooManyWaiters, n)
		default:
			if err := d.awaitSpare(ctx); err != nil {
				return nil, err
			}
		}
		return d.waiter(ctx, ttl)
	}
	d.waiters++
	c.waiters++
	d.mu.Unlock()

	dialContext, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(d.life.Open(), cancel)
	defer stop()
	s, err := d.dial(dialContext, ttl, true)
	d.mu.Lock()
	if err != nil {
		d.waiters--
		c.waiters--
		d.mu.Unlock()
		switch {
		case d.life.Open().Err() != nil:
			return nil, driver.ErrClosed
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		return nil, err
	}
	s.carried++
	alive := d.adopt(s)
	d.mu.Unlock()
	if !alive {
		s.end(driver.ErrClosed)
		return nil, driver.ErrClosed
	}
	return s, nil
}

// spareWaiter takes an idle session of another class. Called with mu held.
func (d *Driver) spareWaiter() *session {
	for _, c := range d.classes {
		if n := len(c.idle); n > 0 {
			s := c.idle[n-1]
			c.idle = c.idle[:n-1]
			return s
		}
	}
	return nil
}

// awaitSpare waits until a session is idle, or until no pending cancellation
// could free one.
func (d *Driver) awaitSpare(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life.Open(), cancel)()
	idle := func() bool {
		for _, c := range d.classes {
			if len(c.idle) > 0 {
				return true
			}
		}
		return d.withdrawals == 0
	}
	switch {
	case d.waitFor(ctx, idle):
		return nil
	case d.life.Open().Err() != nil:
		return driver.ErrClosed
	}
	return ctx.Err()
}

// adopt starts a session, unless the driver has ended. Called with mu held.
func (d *Driver) adopt(s *session) bool {
	s.start()
	if !d.life.Go(s.read) { // ends when the connection is closed
		return false
	}
	d.sessions[s] = struct{}{}
	return true
}

// retire excludes an unused session from the choice and reports whether it was
// unused. The last hub of the usual TTL remains.
func (d *Driver) retire(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.class(s.ttl)
	if s.carried > 0 || s.ttl == d.home && len(c.hubs) == 1 && c.hubs[0] == s {
		return false
	}
	c.remove(s)
	return true
}

// drop undoes the count that hub made.
func (d *Driver) drop(s *session) {
	d.mu.Lock()
	d.freeSession(s)
	d.mu.Unlock()
}

// freeSession is called with mu held when an attempt or a lease no longer needs
// its session.
func (d *Driver) freeSession(s *session) {
	s.carried--
	if _, alive := d.sessions[s]; alive && s.waiter && !s.hangs() {
		c := d.class(s.ttl)
		c.idle = append(c.idle, s)
	}
}
