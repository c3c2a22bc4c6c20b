package conformance

import (
	"fmt"
	"runtime"
)

var scaleChecks = []Check{
	{"scale/held", "A client holds 1000 names at once, each of them excludes others.", manyHeld},
	{"scale/goroutines", "What is held costs no goroutine of its own.", heldWithoutGoroutines},
	{"scale/waiters", "Of 1000 calls that wait for one name each is granted it once.", manyWaiters},
}

const many = 1000

func manyHeld(e *env) error {
	a, b := e.client(), e.client()
	held := make([]*holding, many)
	for i := range held {
		held[i] = a.tryLock(e.name())
	}
	for i := 0; i < many; i += 97 {
		if err := b.refused(held[i].name); err != nil {
			return err
		}
	}
	for i, h := range held {
		if err := h.Err(); err != nil {
			return fmt.Errorf("lease %d of %d: %w", i, many, err)
		}
	}
	for _, h := range held {
		h.unlock()
	}
	return b.tryLock(held[many-1].name).tryUnlock(e.ctx)
}

func heldWithoutGoroutines(e *env) error {
	c := e.client()
	c.tryLock(e.name()).unlock() // what a client needs for itself
	h := c.tryLock(e.name())
	before := runtime.NumGoroutine()
	for range many {
		c.tryLock(e.name())
	}
	if more := runtime.NumGoroutine() - before; more > many/10 {
		return fmt.Errorf("%d more goroutines for %d more names that are held", more, many)
	}
	return h.Err()
}

func manyWaiters(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	h := a.lock(name)
	calls := make([]*goroutine, many)
	var granted int // guarded by the lock
	for i := range calls {
		c := []*client{a, b}[i%2]
		calls[i] = e.run(func() {
			l, err := c.locker.lock(e.ctx, false, name)
			if err != nil {
				e.failed(err)
				return
			}
			granted++
			if err := l.Unlock(e.ctx); err != nil {
				e.failed(err)
			}
		})
	}
	e.until("the second client waits", func() bool { return b.tap.waits(name) > 0 })
	h.unlock()
	for _, g := range calls {
		e.await("one of 1000 calls of Lock", g)
	}
	if granted != many {
		return fmt.Errorf("%d of %d calls were granted the name, or two held it at once", granted, many)
	}
	return nil
}
