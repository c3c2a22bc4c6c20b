package conformance

import "github.com/go-dsync/dsync"

// The checks of waits that no message ends.
var wakeupChecks = []Check{
	{"wakeup/missed", "Who was cut off when the name was released is granted it all the same, once it is connected again.", missedRelease},
	{"wakeup/dead-waiter", "A waiter that is gone does not keep the name from those behind it.", deadWaiter},
}

func missedRelease(e *env) error {
	for i := range e.driver().outages() {
		for _, lasts := range []bool{false, true} { // until the session or the place in the queue is lost
			a, b, name := e.client(), e.renewing(), e.name()
			h := a.lock(name)
			waiting := b.start(name).waits()
			b.outages()[i]()
			if lasts {
				e.sleep(e.ttl() * 3 / 2)
			}
			h.unlock()
			b.heal()
			next := waiting.granted()
			if err := next.isHeld("after the release was missed"); err != nil {
				return err
			}
			next.unlock()
		}
	}
	return nil
}

func deadWaiter(e *env) error {
	for i := range e.driver().outages() {
		a, b, c, name := e.client(), e.clientWith(&dsync.Options{TTL: e.ttl()}), e.driver(), e.name()
		h := a.lock(name)
		b.start(name).waits()
		behind := c.start(name).waits()
		b.outages()[i]()
		h.unlock()
		behind.granted().release()
	}
	return nil
}
