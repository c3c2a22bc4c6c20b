package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var closingChecks = []check{
	{"closing/later", "After Close every Acquire returns ErrClosed.", closedForGood},
	{"closing/waiters", "Close ends those who wait, with ErrClosed; they leave the queue.", closeEndsWaiters},
	{"closing/holds", "Close frees all names that are held.", closeEndsHolds},
	{"closing/own-waiters", "Close ends those who wait before it frees names: it does not grant names to its own waiters.", closeEndsWaitersFirst},
	{"closing/leases", "A lease of a closed driver is over: Renew fails and brings nothing back to life, Release does nothing to others.", leasesAfterClose},
	{"closing/busy", "Close in the middle of requests leaves nothing held.", closeWhileBusy},
	{"closing/hung", "Close returns soon after the end of its context when the backend does not answer.", closeWhileHung},
}

// laterClosingChecks build on the checks of modes.
var laterClosingChecks = []check{
	{"closing/modes", "Close ends all holds in every mode, several of one name too, and no hold of another client.", closeEndsHoldsInModes},
	{"closing/behind", "When Close ends a wait for a Write or Exclusive hold, or for many permits, the requests behind it go on.", closeLetsOthersPass},
}

// shut closes d. If Close fails, the check ends.
func (d *rawDriver) shut() {
	var err error
	d.env.within("Close", func() { err = d.close(d.env.ctx) })
	if err != nil {
		d.env.endf("Close of %s: %w", d.label, err)
	}
}

// isClosed returns an error unless err is ErrClosed.
func isClosed(what string, err error) error {
	if !errors.Is(err, driver.ErrClosed) {
		return fmt.Errorf("%s returned %q, want ErrClosed", what, outcome(err))
	}
	return nil
}

func closedForGood(e *env) error {
	d, c, name := e.driver(), e.client(), e.name()
	d.hold(name).release()
	d.shut()
	for _, opts := range [][]option{nil, {noWait}} {
		if err := isClosed("Acquire after Close", d.acquire(name, opts...).err); err != nil {
			return err
		}
	}
	e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
	_, err := c.try(name)
	if err := isClosed("TryLock after Close", err); err != nil {
		return err
	}
	return e.isFree(name)
}

func closeEndsWaiters(e *env) error {
	a, b, c, name := e.driver(), e.driver(), e.client(), e.name()
	h := a.hold(name)
	waiters := []*request{b.start(name).waits(), b.start(name).waits()}
	lock := c.start(name).waits()
	b.shut()
	for _, r := range waiters {
		if err := isClosed("an Acquire that waited", r.result().err); err != nil {
			return err
		}
	}
	e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
	_, err := lock.result()
	if err := isClosed("a Lock that waited", err); err != nil {
		return err
	}
	if err := e.outsider().refused(name); err != nil {
		return err
	}
	h.release()
	return e.isFree(name)
}

func closeEndsHolds(e *env) error {
	d, c := e.driver(), e.client()
	var names []string
	for range 10 {
		names = append(names, d.hold(e.name()).Name, c.lock(e.name()).name)
	}
	d.shut()
	e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
	for _, name := range names {
		if err := e.isFree(name); err != nil {
			return err
		}
	}
	return nil
}

func closeEndsHoldsInModes(e *env) error {
	a, b, info := e.driver(), e.driver(), e.driverInfo()
	var free []func() error
	after := func(what string, r *request) error {
		if r.lease == nil {
			return fmt.Errorf("after Close of %s, which %s: %w", a.label, what, r.err)
		}
		r.release()
		return nil
	}
	if info.ReadWrite.Offered {
		read, shared, written := e.name(), e.name(), e.name()
		for range 3 {
			a.hold(read, reading)
			a.hold(shared, reading)
		}
		other := b.hold(shared, reading)
		a.hold(written, writing)
		free = append(free, func() error {
			return after("read the name three times", e.outsider().acquire(read, writing, noWait))
		}, func() error {
			return after("wrote the name", e.outsider().acquire(written, reading, noWait))
		}, func() error {
			if err := e.outsider().refused(shared, writing); err != nil {
				return fmt.Errorf("after Close of another reader: %w", err)
			}
			if err := other.tryRelease(e.ctx); err != nil {
				return fmt.Errorf("the release after Close of another reader: %w", err)
			}
			return after("read the name", e.outsider().acquire(shared, writing, noWait))
		})
	}
	if info.Permits.Offered {
		name := e.name()
		a.hold(name, permits(2, 5))
		a.hold(name, permits(1, 5))
		other := b.hold(name, permits(1, 5))
		free = append(free, func() error {
			if err := e.left(name, 4, 5); err != nil {
				return fmt.Errorf("after Close of %s, which had 3 of 5 permits, of which %s has one: %w", a.label, b.label, err)
			}
			other.release()
			return nil
		})
	}
	if len(free) == 0 {
		e.end(&refusedError{"other modes than Exclusive"})
	}
	a.shut()
	for _, f := range free {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func closeLetsOthersPass(e *env) error {
	info := e.driverInfo()
	var ways []func() error
	for _, m := range aloneModes {
		if !info.ReadWrite.Offered {
			continue
		}
		ways = append(ways, func() error {
			a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
			h := a.hold(name, reading)
			w := b.start(name, in(m)).waits().queued(1)
			behind := []*request{c.start(name, reading), a.start(name, reading)}
			if info.ReadWrite.Order != driver.Unordered {
				behind[0].waits()
				behind[1].waits()
			}
			b.shut()
			if err := isClosed("an Acquire that waited", w.result().err); err != nil {
				return err
			}
			for _, r := range behind {
				r.granted().release()
			}
			h.release()
			return nil
		})
	}
	if info.Permits.Offered {
		ways = append(ways, func() error {
			a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
			h := a.hold(name, permits(2, 3))
			w := b.start(name, permits(3, 3)).waits().queued(1)
			behind := c.start(name, permits(1, 3))
			if info.Permits.Order != driver.Unordered {
				behind.waits()
			}
			b.shut()
			if err := isClosed("an Acquire that waited for permits", w.result().err); err != nil {
				return err
			}
			behind.granted().release()
			h.release()
			return nil
		})
	}
	if len(ways) == 0 {
		e.end(&refusedError{"other modes than Exclusive"})
	}
	e.together("requests behind a wait that Close ends", len(ways), func(i int) error { return ways[i]() })
	return nil
}

func closeEndsWaitersFirst(e *env) error {
	d, name := e.driver(), e.name()
	d.hold(name)
	waiters := []*request{d.start(name).waits(), d.start(name).waits()}
	d.shut()
	for _, r := range waiters {
		if r.result().lease != nil {
			return fmt.Errorf("%s was granted %q by its own Close", d.label, name)
		}
		if err := isClosed("an Acquire that waited for a name of the same client", r.err); err != nil {
			return err
		}
	}
	return e.isFree(name)
}

func leasesAfterClose(e *env) error {
	a, b := e.driver(), e.driver()
	left, taken := a.hold(e.name(), fixed), a.hold(e.name(), fixed)
	a.shut()
	next := b.hold(taken.Name)
	for _, r := range []*request{left, taken} {
		if err := r.renew(e.long()); err == nil {
			return errors.New("Renew after Close returned nil")
		}
		_ = r.tryRelease(e.ctx) // the outcome does not matter any more
	}
	if err := e.isFree(left.Name); err != nil {
		return fmt.Errorf("after Renew of a closed driver: %w", err)
	}
	return next.keeps("Renew and Release of a closed driver")
}

func closeWhileBusy(e *env) error {
	for range 5 {
		c, names := e.client(), []string{e.name(), e.name()}
		busy := make([]*goroutine, 6)
		granted := make(chan struct{}, len(busy))
		for i := range busy {
			busy[i] = e.run(func() { e.failed(c.useUntilClosed(names[i%len(names)], i%3 == 0, granted)) })
		}
		<-granted
		e.sleep(rand.N(2 * time.Millisecond))
		e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
		for _, g := range busy {
			e.await("requests that were under way", g)
		}
		for _, name := range names {
			if err := e.isFree(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// useUntilClosed locks and unlocks name until the client is closed.
func (c *client) useUntilClosed(name string, try bool, granted chan<- struct{}) error {
	for {
		h, err := c.ask(c.env.ctx, try, name)
		switch {
		case errors.Is(err, dsync.ErrClosed):
			return nil
		case try && errors.Is(err, dsync.ErrLocked):
			c.env.sleep(50 * time.Microsecond)
			continue
		case err != nil:
			return err
		}
		select {
		case granted <- struct{}{}:
		default:
		}
		c.env.sleep(50 * time.Microsecond)
		if err := h.tryUnlock(c.env.ctx); err != nil && !errors.Is(err, dsync.ErrClosed) && !errors.Is(err, dsync.ErrUnknown) {
			return err
		}
	}
}

func closeWhileHung(e *env) error {
	d, name := e.driver(), e.name()
	d.hold(name)
	d.hang()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	e.within("Close", func() { _ = d.close(ctx) })
	return nil
}
