package conformance

import (
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

var scaleChecks = []check{
	{"scale/held", "A client holds 1000 names at once, each of them excludes others.", manyHeld},
	{"scale/goroutines", "What is held costs no goroutine of its own.", heldWithoutGoroutines},
	{"scale/waiters", "Of 1000 calls that wait for one name each is granted it once.", manyWaiters},
	{"scale/gone", "Waits that are over leave no goroutines behind: neither 1000 that were granted the name, nor 1000 that were given up.", waitsAreGone},
}

const many = 1000

func manyHeld(e *env) error {
	a, b := e.client(), e.client()
	old := e.driver().hold(e.name(), fixed, ttl(e.allowed(100*24*time.Hour)))
	if e.fakeTime {
		e.sleep(old.TTL * 9 / 10)
	}
	held := make([]*holding, many)
	for i := range held {
		held[i] = a.tryLock(e.name())
	}
	if err := e.outsider().refused(old.Name); err != nil {
		return fmt.Errorf("a hold of %v is older than %d others: %w", old.TTL, many, err)
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
	c.tryLock(e.name()).unlock() // the goroutines of the client itself
	h := c.tryLock(e.name())
	before := e.goroutines()
	for range many {
		c.tryLock(e.name())
	}
	// Goroutines of requests end some time; goroutines of names that are held would not.
	e.poll("the goroutines of what is held", func() error {
		if more := e.goroutines() - before; more > many/10 {
			return fmt.Errorf("%d more for %d more names", more, many)
		}
		return nil
	})
	return h.Err()
}

func manyWaiters(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	h := a.lock(name)
	calls := make([]*goroutine, many)
	var granted int // guarded by the lock
	var done progress
	for i := range calls {
		c := []*client{a, b}[i%2]
		calls[i] = e.run(func() {
			l, err := c.locker.lock(e.ctx, false, name)
			if err != nil {
				e.failed(err)
				return
			}
			granted++
			done.Add(1)
			if err := l.Unlock(e.ctx); err != nil {
				e.failed(err)
			}
		})
	}
	waiting := 1 // the others wait in line in their process
	if e.driverInfo().Order == driver.FIFO {
		waiting = many
	}
	e.until("those who wait at the backend do", func() bool { return a.tap.waits(name)+b.tap.waits(name) >= waiting })
	h.unlock()
	e.awaitAll("1000 calls of Lock", calls, &done)
	if granted != many {
		return fmt.Errorf("%d of %d calls were granted the name, or two held it at once", granted, many)
	}
	return nil
}

func waitsAreGone(e *env) error {
	const names = 20
	a, b := e.driver(), e.driver()
	holds := make([]*request, names)
	for i := range holds {
		holds[i] = a.hold(e.name())
		w := b.start(holds[i].Name).waits() // the goroutines of the client itself
		w.cancel()
		w.result()
	}
	before := e.goroutines()
	gone := func(what string) {
		e.poll("the goroutines of "+what, func() error {
			if more := e.goroutines() - before; more > many/2 {
				return fmt.Errorf("%d more after %d waits", more, many)
			}
			return nil
		})
	}
	e.together("waits that are given up", names, func(i int) error {
		waiters := make([]*request, many/names)
		for n := range waiters {
			waiters[n] = b.start(holds[i].Name).waits()
		}
		for _, w := range waiters {
			w.cancel()
			w.result()
		}
		return nil
	})
	gone("waits that were given up")
	e.together("waits that are granted", names, func(i int) error {
		for range many / names {
			w := b.start(holds[i].Name).waits()
			holds[i].release()
			w.granted().release()
			holds[i] = a.start(w.Name).granted()
		}
		return nil
	})
	gone("waits that were granted")
	return nil
}
