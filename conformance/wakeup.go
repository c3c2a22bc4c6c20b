package conformance

import "time"

// The checks of waits that no message ends.
var wakeupChecks = []check{
	{"wakeup/missed", "Who was cut off when the name was released is granted it all the same, once it is connected again.", missedRelease},
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
		return nil
	})
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
