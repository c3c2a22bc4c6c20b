package pglock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// locksPerSession is where another session is opened: each statement gets slower with what its session holds.
const locksPerSession = 1000

// class is the sessions of one TTL. Guarded by Driver.mu.
type class struct {
	hubs    []*session // that carry many locks each
	idle    []*session // that have waited, and carry nothing
	dialing *dialing   // of another hub; nil if none is needed
	waiters int        // sessions that wait or have waited
}

// dialing is a connection on its way.
type dialing struct {
	done chan struct{}
	err  error // to be read after done
}

// remove takes a session out of those that are chosen from.
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

// hub returns a session that carries many locks, with one more counted, which drop or freeSession takes back. It connects if need be.
func (d *Driver) hub(ctx context.Context, ttl time.Duration) (*session, error) {
	for {
		d.mu.Lock()
		c := d.class(ttl)
		for _, s := range c.hubs {
			if s.carried < locksPerSession {
				s.carried++
				d.mu.Unlock()
				return s, nil
			}
		}
		dl := c.dialing
		if dl == nil {
			if d.ended {
				d.mu.Unlock()
				return nil, driver.ErrClosed
			}
			dl = &dialing{done: make(chan struct{})}
			c.dialing = dl
			d.wg.Go(func() { d.dialHub(c, dl, ttl) })
		}
		d.mu.Unlock()
		select {
		case <-dl.done:
			if dl.err != nil {
				return nil, dl.err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, ctx.Err())
		case <-d.life.Done():
			return nil, driver.ErrClosed
		}
	}
}

// dialHub ends when it is connected, or that has failed.
func (d *Driver) dialHub(c *class, dl *dialing, ttl time.Duration) {
	s, err := d.dial(d.life, ttl, false)
	d.mu.Lock()
	c.dialing = nil
	dl.err = err
	alive := err == nil && d.run(s)
	if alive {
		c.hubs = append(c.hubs, s)
	}
	d.mu.Unlock()
	if err == nil && !alive {
		s.end(driver.ErrClosed)
	}
	close(dl.done)
}

// waiter returns a session to wait on, which freeSession takes back. It connects if need be.
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
		spare := d.spareWaiter()
		if spare == nil && d.withdrawals > 0 {
			err := d.awaitSpare(ctx) // which a wait that is being ended leaves
			d.mu.Unlock()
			if err != nil {
				return nil, err
			}
			return d.waiter(ctx, ttl)
		}
		n := d.waiters
		d.mu.Unlock()
		if spare == nil {
			return nil, fmt.Errorf("%w: there are %d (Options.MaxWaiters)", ErrTooManyWaiters, n)
		}
		spare.quit(ctx, errQuit)
		return d.waiter(ctx, ttl)
	}
	d.waiters++
	c.waiters++
	d.mu.Unlock()

	dialContext, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(d.open, cancel)
	defer stop()
	s, err := d.dial(dialContext, ttl, true)
	d.mu.Lock()
	if err != nil {
		d.waiters--
		c.waiters--
		d.mu.Unlock()
		switch {
		case d.open.Err() != nil:
			return nil, driver.ErrClosed
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		return nil, err
	}
	s.carried++
	alive := d.run(s)
	d.mu.Unlock()
	if !alive {
		s.end(driver.ErrClosed)
		return nil, driver.ErrClosed
	}
	return s, nil
}

// spareWaiter takes a session of another class that waits for nothing. It is called with mu held.
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

// awaitSpare waits until there is a session that waits for nothing, or no reason to expect one. It is called with mu held, which it
// gives up meanwhile.
func (d *Driver) awaitSpare(ctx context.Context) error {
	wake := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.changed.Broadcast()
	}
	defer context.AfterFunc(ctx, wake)()
	defer context.AfterFunc(d.open, wake)()
	for d.withdrawals > 0 {
		for _, c := range d.classes {
			if len(c.idle) > 0 {
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case d.open.Err() != nil:
			return driver.ErrClosed
		}
		d.changed.Wait()
	}
	return nil
}

// run lets a session work, unless the driver has ended. It is called with mu held.
func (d *Driver) run(s *session) bool {
	if d.ended {
		return false
	}
	d.sessions[s] = struct{}{}
	s.start()
	d.wg.Go(s.read) // ends with the connection
	return true
}

// retire takes a session out of use, if nobody uses it.
func (d *Driver) retire(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.carried > 0 {
		return false
	}
	d.class(s.ttl).remove(s)
	return true
}

// drop takes back what hub counted.
func (d *Driver) drop(s *session) {
	d.mu.Lock()
	d.freeSession(s)
	d.mu.Unlock()
}

// freeSession is called with mu held when an attempt or a lease has no more need of its session.
func (d *Driver) freeSession(s *session) {
	s.carried--
	if _, alive := d.sessions[s]; alive && s.waiter {
		c := d.class(s.ttl)
		c.idle = append(c.idle, s)
	}
}
