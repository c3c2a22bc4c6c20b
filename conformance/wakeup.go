package conformance

// The checks of waits that no message ends.
var wakeupChecks = []check{
	{"wakeup/missed", "Who was cut off when the name was released is granted it all the same, once it is connected again.", missedRelease},
	{"wakeup/dead-waiter", "A waiter that is gone does not keep the name from those behind it.", deadWaiter},
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
		a, b, c, name := e.client(), e.renewing(), e.driver(), e.name()
		h := a.lock(name)
		b.start(name).waits()
		behind := c.start(name).waits()
		outage(b.connection)
		h.unlock()
		behind.granted().release()
		return nil
	})
}
