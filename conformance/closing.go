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

var closingChecks = []Check{
	{"closing/later", "After Close every Acquire returns ErrClosed.", closedForGood},
	{"closing/waiters", "Close ends those who wait, with ErrClosed; they leave the queue.", closeEndsWaiters},
	{"closing/holds", "Close frees all names that are held.", closeEndsHolds},
	{"closing/own-waiters", "Close ends those who wait before it frees names: it does not grant names to its own waiters.", closeEndsWaitersFirst},
	{"closing/leases", "A lease of a closed driver is over: Renew fails and brings nothing back to life, Release does nothing to others.", leasesAfterClose},
	{"closing/busy", "Close in the middle of requests leaves nothing held.", closeWhileBusy},
	{"closing/hung", "Close returns soon after the end of its context when the backend does not answer.", closeWhileHung},
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
