package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of waits that no message ends.
var wakeupChecks = []check{
	{"wakeup/missed", "Who was cut off when the name was released is granted it all the same, once it is connected again. It says once that it waits, and gets no lease that is over.", missedRelease},
	{"wakeup/dead-waiter", "A waiter that is gone keeps the name from those behind it for its TTL and Info.LateFor at most, or for 15 s where that is longer.", deadWaiter},
}

func missedRelease(e *env) error {
	return e.inOutages(func(outage func(*connection)) error {
		a := e.client()
		e.together("a waiter that is cut off", 2, func(i int) error {
			b, name := e.renewing(), e.name()
			h := a.lock(name)
			waiting := b.start(name).waits()
			outage(b.connection)
			if i == 1 {
				e.sleep(e.ttl() * 3 / 2) // what the backend kept of the waiter is gone
			}
			h.unlock()
			b.heal()
			next := waiting.granted()
			if err := next.isHeld("after the release was missed"); err != nil {
				return err
			}
			_ = next.tryUnlock(e.ctx) // its session may be about to end
			return nil
		})
		e.together("a request that is cut off for longer than its TTL", 2, func(i int) error {
			return e.outwaits(i == 0, outage)
		})
		return nil
	})
}

// outwaits lets a request wait in an outage that is longer than its TTL, so that
// its place in the queue, or the hold that it was granted, is gone.
func (e *env) outwaits(granted bool, outage func(*connection)) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name)
	w := b.start(name, ttl(e.ttl())).waits()
	outage(b.connection)
	if granted {
		h.release()
	}
	e.sleep(e.ttl() * 3 / 2)
	b.heal()
	if !granted {
		e.sleep(e.ttl() / 2) // the request asks again
		h.release()
	}
	w.result()
	switch {
	case w.waited() > 1:
		return fmt.Errorf("%s said %d times that it waits, want once, in an outage that was longer than its TTL", b.label, w.waited())
	case w.lease == nil && !errors.Is(w.err, driver.ErrUnavailable) && !errors.Is(w.err, driver.ErrUnknown):
		return fmt.Errorf("%s, which waited in an outage that was longer than its TTL, got: %w", b.label, w.err)
	case w.lease == nil:
	case !w.lease.Expires().After(w.at):
		return fmt.Errorf("%s was granted %q at %s by a lease that had expired at %s", b.label, name, e.events.at(w.at), e.events.at(w.lease.Expires()))
	default:
		_ = w.tryRelease(e.ctx) // its session may be about to end
	}
	e.awaitFree(name)
	return nil
}

func deadWaiter(e *env) error {
	return e.inOutages(func(outage func(*connection)) error {
		return e.punctual(func() error { return e.deadWaiterLeaves(outage) })
	})
}

// vanishedWaiter is how long the request of a vanished client may keep its place
// with any TTL. Queues that their waiters keep alive need some seconds.
const vanishedWaiter = 15 * time.Second

// deadWaiterLeaves lets a waiter vanish. From then on its TTL counts.
func (e *env) deadWaiterLeaves(outage func(*connection)) error {
	a, b, c, name := e.client(), e.renewing(), e.driver(), e.name()
	h := a.lock(name)
	b.start(name).waits()
	behind := c.start(name).waits()
	outage(b.connection)
	h.unlock()
	last := time.Now()
	behind.granted().release()
	t := e.ttl()
	late := e.driverInfo().LateFor(t)
	return e.late(behind.at.Sub(last)-max(t+late, vanishedWaiter)-e.wakes(), "%s, whose TTL is %v, was out of reach and the name free at %s, and %s, which waited behind it, was granted it at %s; Info.LateFor is %v",
		b.label, t, e.events.at(last), c.label, e.events.at(behind.at), late)
}
