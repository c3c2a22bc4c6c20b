package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
)

var orderChecks = []check{
	{"order/served", "All waiters for a name are granted it in turn.", allAreServed},
	{"order/clients", "Clients that wait for a name are granted it in the order of arrival, even after they have waited for longer than their TTLs.", clientsInOrder},
	{"order/arrival", "All waiters for a name are granted it in the order of arrival.", arrivalsInOrder},
	{"order/canceled", "A waiter that gives up does not change the order of the others.", cancelKeepsOrder},
	{"order/newcomers", "A newcomer does not overtake waiters.", newcomersDoNotOvertake},
	{"order/hand-overs", "In thousands of hand-overs between clients, no wake-up is lost.", noWakeUpIsLost},
}

// next releases the request that is granted first and returns its index. If a
// request fails before that, its error ends the check.
func (e *env) next(left []*request) int {
	granted := -1
	e.until("one of the waiters is granted the name", func() bool {
		granted = slices.IndexFunc(left, (*request).isDone)
		return granted >= 0
	})
	left[granted].granted().release()
	return granted
}

// inOrder waits until the requests are granted one after the other, and returns
// an error if they are granted in another order.
func (e *env) inOrder(waiters []*request) error {
	for left := waiters; len(left) > 0; left = left[1:] {
		if i := e.next(left); i != 0 {
			return fmt.Errorf("%s was granted the name before %s, which arrived earlier", left[i].driver.label, left[0].driver.label)
		}
	}
	return nil
}

// line returns requests of n new clients that wait for a name, in the order of
// their places in the queue. Drivers report the wait when the request is under
// way, which may be before it is in the queue. If the backend can be queried,
// line observes each request in the queue before the next one starts.
func (e *env) line(name string, n int) []*request {
	drivers := make([]*rawDriver, n)
	for i := range drivers {
		drivers[i] = e.driver()
	}
	return e.lineOf(name, drivers)
}

// lineOf is like line, for requests of the given clients.
func (e *env) lineOf(name string, drivers []*rawDriver) []*request {
	waiters := make([]*request, len(drivers))
	for i := range waiters {
		waiters[i] = drivers[i].start(name).waits().queued(i + 1)
	}
	return waiters
}

// queued returns when n requests are waiting for the name, if the backend can
// be queried.
func (r *request) queued(n int) *request {
	e := r.driver.env
	inspector, ok := r.driver.driver.(driver.Inspector)
	if !ok {
		return r
	}
	e.poll(fmt.Sprintf("%d requests wait for %q", n, r.Name), func() error {
		s, err := inspector.Inspect(e.ctx, r.Name)
		switch {
		case r.isDone():
			return nil
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
			return fmt.Errorf("of %d waiters: %w", n, err)
		}
	}
	t := e.allowed(2 * e.ttl())
	h := a.hold(name)
	waiters := []*request{e.driver().start(name, ttl(t)).waits().queued(1), e.driver().start(name).waits().queued(2)}
	e.sleep(t * 3 / 2)
	h.release()
	if err := e.inOrder(waiters); err != nil {
		return fmt.Errorf("of two waiters, the first of which waited for longer than its TTL of %v: %w", t, err)
	}
	return nil
}

func arrivalsInOrder(e *env) error {
	e.claims(arrivalOrder)
	drivers, name := []*rawDriver{e.driver(), e.driver(), e.driver()}, e.name()
	for _, turns := range []string{"00011011", strings.Repeat("2001121", 5), strings.Repeat("01220110", e.part(25))} {
		h := drivers[0].hold(name)
		var line []*rawDriver
		for _, i := range turns {
			line = append(line, drivers[i-'0'])
		}
		waiters := e.lineOf(name, line)
		h.release()
		if err := e.inOrder(waiters); err != nil {
			return fmt.Errorf("of %d waiters: %w", len(waiters), err)
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
				return fmt.Errorf("%s, which arrived later, was granted the name that %s waits for", c.label, b.label)
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
		handOvers = 600
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
		return fmt.Errorf("counted %d holds of %d: two clients held the name simultaneously, or a call failed", n, handOvers)
	}
	return nil
}

var fencingChecks = []check{
	{"fencing/rise", "The token of each grant is larger than the tokens of all earlier grants of the name, of every client.", tokensRise},
	{"fencing/blocks", "The last token of a grant is smaller than the first token of the next grant.", blocksRise},
	{"fencing/loss", "Tokens also rise across holds that expired or were removed, and across canceled waits.", tokensRiseOverLoss},
	{"fencing/kept", "The tokens of a hold can be kept repeatedly and concurrently. Keeping them changes neither the tokens nor the hold.", tokensAreKept},
	{"fencing/restart", "Tokens that Info calls durable also rise across restarts of the server.", tokensRiseOverRestarts},
	{"fencing/idle", "Tokens also rise after hours and days without a request for the name, or for any name.", tokensRiseOverTime},
}

func tokensRise(e *env) error {
	e.claims(fencing)
	clients, name := e.clients(8), e.name()
	var last uint64 // guarded by the lock, whose exclusion earlier checks have verified
	e.together("Lock and Unlock", len(clients), func(i int) error {
		for range 25 {
			h, err := clients[i].ask(e.ctx, false, name)
			if err != nil {
				return err
			}
			if h.Token() <= last {
				return fmt.Errorf("%s got the token %d after the token %d had been granted", clients[i].label, h.Token(), last)
			}
			last = h.Token()
			h.unlock()
		}
		return nil
	})
	return nil
}

func blocksRise(e *env) error {
	e.claims(fencing)
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	for i := range 20 {
		d := []*rawDriver{a, b}[i%2]
		h := d.hold(name, block(1+i*7%64))
		first, n := h.lease.Tokens()
		if n < 1 || first <= last || first+uint64(n) <= first {
			return fmt.Errorf("%s got %d tokens from %d after the token %d had been granted", d.label, n, first, last)
		}
		last = first + uint64(n) - 1
		h.release()
	}
	return nil
}

func tokensRiseOverLoss(e *env) error {
	e.claims(fencing)
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	rises := func(h *request, after string) error {
		first, _ := h.lease.Tokens()
		if first <= last {
			return fmt.Errorf("after %s, %s got the token %d, want a token above %d", after, h.driver.label, first, last)
		}
		last = first
		return nil
	}
	for range 2 {
		h := a.hold(name)
		if err := rises(h, "a release"); err != nil {
			return err
		}
		w := b.start(name).waits()
		w.cancel()
		w.result()
		h.release()
		e.awaitFree(name)

		h = b.hold(name, fixed, ttl(e.ttl()))
		if err := rises(h, "a canceled wait"); err != nil {
			return err
		}
		next := a.start(name).granted() // when the hold has expired
		if err := rises(next, "an expiry"); err != nil {
			return err
		}
		if !e.canRemove() {
			next.release()
			continue
		}
		e.remove(name)
		h = b.start(name).granted()
		if err := rises(h, "a removal"); err != nil {
			return err
		}
		h.release()
	}
	return nil
}

func tokensRiseOverRestarts(e *env) error {
	e.claims(fencing)
	if e.driverInfo().Fencing != driver.Durable {
		e.end(&refusedError{"durable tokens"})
	}
	e.need(e.backend.Restart != nil, "Backend.Restart")
	e.stalls.onPurpose()
	name := e.name()
	var last uint64
	for i := range 3 {
		if i > 0 {
			e.harness("Backend.Restart", func() { e.backend.Restart(e.tb) })
		}
		d := e.driver()
		var h *request
		e.poll("a grant after a restart", func() error {
			h = d.acquire(name)
			return h.err
		})
		first, n := h.lease.Tokens()
		e.must(untap(h.lease).KeepTokens(e.ctx)) // as package dsync does before it returns a token
		if first <= last {
			return fmt.Errorf("after restart %d of the server, %s got the token %d, want a token above %d", i, d.label, first, last)
		}
		last = first + uint64(n) - 1
		h.release()
	}
	return nil
}

func tokensRiseOverTime(e *env) error {
	e.claims(fencing)
	e.need(e.fakeTime, "FakeTime")
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	for i, idle := range []time.Duration{0, 16 * time.Minute, time.Hour, 25 * time.Hour, 8 * 24 * time.Hour} {
		e.sleep(idle)
		h := []*rawDriver{a, b}[i%2].hold(name)
		first, n := h.lease.Tokens()
		if first <= last {
			return fmt.Errorf("after %v in which %q was free, %s got the token %d, want a token above %d", idle, name, h.driver.label, first, last)
		}
		last = first + uint64(n) - 1
		e.sleep(min(idle, e.long()/2))
		h.release()
	}
	long := a.hold(name, fixed, ttl(e.allowed(24*time.Hour)))
	first, n := long.lease.Tokens()
	e.sleep(long.TTL - long.TTL/8)
	long.release()
	next := b.hold(name)
	if token, _ := next.lease.Tokens(); token < first+uint64(n) {
		return fmt.Errorf("after a hold of %v with %d tokens from %d, %s got the token %d", long.TTL, n, first, b.label, token)
	}
	return nil
}

func tokensAreKept(e *env) error {
	e.claims(fencing)
	h := e.driver().hold(e.name())
	first, n := h.lease.Tokens()
	keep := func() error {
		if err := untap(h.lease).KeepTokens(e.ctx); err != nil {
			return fmt.Errorf("KeepTokens of a held lease returned %q, want nil", outcome(err))
		}
		return nil
	}
	e.together("KeepTokens", 16, func(int) error { return keep() })
	if again, m := h.lease.Tokens(); again != first || m != n {
		return fmt.Errorf("a lease had %d tokens from %d, and %d from %d when they were kept", n, first, m, again)
	}
	h.release()
	if err := untap(h.lease).KeepTokens(e.ctx); err != nil {
		return fmt.Errorf("tokens were kept, but KeepTokens returned %q after the release, want nil", outcome(err))
	}
	return nil
}

// block makes a request that can use n tokens.
func block(n int) option {
	return func(r *driver.Request) { r.Events = &blockEvents{r.Events, n} }
}

type blockEvents struct {
	driver.Events
	n int
}

// Tokens implements driver.Events.
func (b *blockEvents) Tokens() int { return b.n }

var scaleChecks = []check{
	{"scale/held", "A client can hold 1000 names at the same time, and each hold excludes other clients.", manyHeld},
	{"scale/goroutines", "A held lock costs no goroutine.", heldWithoutGoroutines},
	{"scale/waiters", "If 1000 calls wait for one name, each of them is granted it once.", manyWaiters},
	{"scale/gone", "Finished waits leave no goroutines behind: neither 1000 waits that were granted the name, nor 1000 that were canceled.", waitsAreGone},
}

const many = 1000

func manyHeld(e *env) error {
	a, b, many := e.client(), e.client(), e.part(many)
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
	c, many := e.client(), e.part(many)
	c.tryLock(e.name()).unlock() // the goroutines of the client itself
	h := c.tryLock(e.name())
	before := e.goroutines()
	for range many {
		c.tryLock(e.name())
	}
	// Goroutines of requests end eventually. Goroutines of held names would
	// not.
	e.poll("the goroutines of holds", func() error {
		if more := e.goroutines() - before; more > 100 {
			return fmt.Errorf("%d more goroutines for %d more names", more, many)
		}
		return nil
	})
	return h.Err()
}

func manyWaiters(e *env) error {
	a, b, name, many := e.client(), e.client(), e.name(), e.part(many)
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
	waiting := 1 // the other requests wait in the queue of their process
	if e.driverInfo().Order == driver.FIFO {
		waiting = many
	}
	e.until("the calls wait on the backend", func() bool { return a.tap.waits(name)+b.tap.waits(name) >= waiting })
	h.unlock()
	e.awaitAll(fmt.Sprint(many, " calls to Lock"), calls, &done)
	if granted != many {
		return fmt.Errorf("%d of %d calls were granted the name, or two calls held it simultaneously", granted, many)
	}
	return nil
}

func waitsAreGone(e *env) error {
	const names = 20
	a, b, many := e.driver(), e.driver(), e.part(many)
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
			if more := e.goroutines() - before; more > many*3/4 {
				return fmt.Errorf("%d more goroutines after %d waits", more, many)
			}
			return nil
		})
	}
	e.together("waits to be canceled", names, func(i int) error {
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
	gone("canceled waits")
	e.together("waits to be granted", names, func(i int) error {
		for range many / names {
			w := b.start(holds[i].Name).waits()
			holds[i].release()
			w.granted().release()
			holds[i] = a.start(w.Name).granted()
		}
		return nil
	})
	gone("granted waits")
	return nil
}
