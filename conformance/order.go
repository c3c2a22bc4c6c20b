package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-dsync/dsync/driver"
)

var orderChecks = []check{
	{"order/served", "All who wait for a name are granted it in turn.", allAreServed},
	{"order/clients", "Clients that wait for a name are granted it in the order in which they came.", clientsInOrder},
	{"order/arrival", "All who wait for a name are granted it in the order in which they came.", arrivalsInOrder},
	{"order/canceled", "Who gives up waiting changes nothing in the order of the others.", cancelKeepsOrder},
	{"order/newcomers", "A newcomer does not overtake those who wait.", newcomersDoNotOvertake},
	{"order/hand-overs", "In thousands of hand-overs between clients, no wake-up is lost.", noWakeUpIsLost},
}

// next returns the index of the request that is granted first, and releases it.
func (e *env) next(left []*request) int {
	granted := -1
	e.until("one of those who wait is granted the name", func() bool {
		for i, r := range left {
			if r.isDone() {
				granted = i
			}
		}
		return granted >= 0
	})
	left[granted].granted().release()
	return granted
}

// inOrder waits until the requests are granted one after the other, and returns an error if they are granted in another order.
func (e *env) inOrder(waiters []*request) error {
	for left := waiters; len(left) > 0; left = left[1:] {
		if i := e.next(left); i != 0 {
			return fmt.Errorf("%s was granted the name before %s, which came earlier", left[i].driver.label, left[0].driver.label)
		}
	}
	return nil
}

// line returns requests of n new clients that wait for a name, in this order. A driver reports the wait when its request is on the
// way; where the backend can be asked, line sees each request in the queue before the next one comes.
func (e *env) line(name string, n int) []*request {
	drivers := make([]*rawDriver, n)
	for i := range drivers {
		drivers[i] = e.driver()
	}
	return e.lineOf(name, drivers)
}

// lineOf is line for requests of these clients.
func (e *env) lineOf(name string, drivers []*rawDriver) []*request {
	waiters := make([]*request, len(drivers))
	for i := range waiters {
		waiters[i] = drivers[i].start(name).waits().queued(i + 1)
	}
	return waiters
}

// queued returns when so many are seen to wait for the name, where the backend can be asked.
func (r *request) queued(n int) *request {
	e := r.driver.env
	inspector, ok := r.driver.driver.(driver.Inspector)
	if !ok {
		return r
	}
	e.poll(fmt.Sprintf("%d wait for %q", n, r.Name), func() error {
		s, err := inspector.Inspect(e.ctx, r.Name)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return nil
		case err == nil && s.Waiters >= 0 && s.Waiters < n:
			return fmt.Errorf("Inspect counts %d waiters", s.Waiters)
		}
		return err
	})
	return r
}

func allAreServed(e *env) error {
	a, name := e.driver(), e.name()
	h := a.hold(name)
	left := make([]*request, 10)
	for i := range left {
		left[i] = e.driver().start(name).waits()
	}
	h.release()
	for len(left) > 0 {
		i := e.next(left)
		left = append(left[:i:i], left[i+1:]...)
	}
	return e.isFree(name)
}

func clientsInOrder(e *env) error {
	e.claims(fairness)
	a, name := e.driver(), e.name()
	for _, n := range []int{8, 8, 33} {
		h := a.hold(name)
		waiters := e.line(name, n)
		h.release()
		if err := e.inOrder(waiters); err != nil {
			return fmt.Errorf("of %d that waited: %w", n, err)
		}
	}
	return nil
}

func arrivalsInOrder(e *env) error {
	e.claims(arrivalOrder)
	drivers, name := []*rawDriver{e.driver(), e.driver(), e.driver()}, e.name()
	for _, turns := range []string{"00011011", strings.Repeat("2001121", 5), strings.Repeat("01220110", 25)} {
		h := drivers[0].hold(name)
		var line []*rawDriver
		for _, i := range turns {
			line = append(line, drivers[i-'0'])
		}
		waiters := e.lineOf(name, line)
		h.release()
		if err := e.inOrder(waiters); err != nil {
			return fmt.Errorf("of %d that waited: %w", len(waiters), err)
		}
	}
	return nil
}

func cancelKeepsOrder(e *env) error {
	e.claims(fairness)
	a, name := e.driver(), e.name()
	for _, leaves := range []int{0, 3, 7} { // the first, one in the middle, the last
		h := a.hold(name)
		waiters := e.line(name, 8)
		waiters[leaves].cancel()
		if r := waiters[leaves].result(); !errors.Is(r.err, context.Canceled) {
			return fmt.Errorf("%s, which was canceled, got %q", r.driver.label, outcome(r.err))
		}
		h.release()
		if err := e.inOrder(append(waiters[:leaves:leaves], waiters[leaves+1:]...)); err != nil {
			return fmt.Errorf("after number %d of %d had given up: %w", leaves+1, len(waiters), err)
		}
	}
	return nil
}

func newcomersDoNotOvertake(e *env) error {
	e.claims(arrivalOrder)
	a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
	for range 20 {
		h := a.hold(name)
		waiting := b.start(name).waits()
		e.together("release and try", 2, func(i int) error {
			if i == 0 {
				h.release()
			} else if r := c.acquire(name, noWait); r.lease != nil {
				return fmt.Errorf("%s, which came later, was granted the name that %s waits for", c.label, b.label)
			} else if !errors.Is(r.err, driver.ErrLocked) {
				return r.err
			}
			return nil
		})
		waiting.granted().release()
	}
	return nil
}

func noWakeUpIsLost(e *env) error {
	clients, name := e.clients(4), e.name()
	handOvers := 10_000
	if e.sample {
		handOvers = 1_000
	}
	var n int // guarded by the lock
	var done progress
	all := make([]*goroutine, 2*len(clients))
	for i := range all {
		c := clients[i%len(clients)]
		all[i] = e.run(func() {
			for range handOvers / len(all) {
				l, err := c.locker.lock(e.ctx, false, name)
				if err != nil {
					e.failed(err)
					return
				}
				n++
				done.Add(1)
				if err := l.Unlock(e.ctx); err != nil {
					e.failed(err)
					return
				}
			}
		})
	}
	e.awaitAll("Lock and Unlock", all, &done)
	if n != handOvers {
		return fmt.Errorf("counted %d holds of %d: two clients held the name at once, or a call failed", n, handOvers)
	}
	return nil
}
