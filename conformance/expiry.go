package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// These checks cover leases that no client releases, and the time at which
// other clients can then acquire the name.
var expiryChecks = []check{
	{"expiry/not-early", "No other client is granted a name before the lease of its holder expires, no matter how often it tries.", notBeforeExpires},
	{"expiry/waiters", "When leases end without a release, the waiters are granted the name one after the other, each only after the previous lease has ended.", expiryServesWaiters},
	{"expiry/extend", "Extend also moves the end of a lease on the backend, later or earlier, and never revives an ended lease.", extendMovesEnd},
	{"expiry/abandoned", "The lease of a vanished client ends by itself, but not before Expires.", abandonedLeaseEnds},
	{"expiry/holder-first", "A holder is notified that its lease has ended before another client is granted the name, even over a slow connection.", holderKnowsFirst},
	{"expiry/bounds", "Whatever the TTL of a lease, and however it was set, other clients get the name between the lease's Expires and Info.LateFor later.", endsInBounds},
	{"expiry/race", "If many clients try when a lease expires, at most one is granted the name, and none before its deadline.", raceAtExpiry},
}

// after returns an error if r was granted its name before h expired.
func (r *request) after(h *request) error {
	if end := h.lease.Expires(); r.at.Before(end) {
		return fmt.Errorf("%s was granted %q %v before the lease of %s expired, at %s",
			r.driver.label, r.Name, end.Sub(r.at), h.driver.label, r.driver.env.events.at(end))
	}
	return nil
}

// overBefore returns an error unless h had ended when next was granted.
func (h *holding) overBefore(next *request) error {
	if h.Err() == nil {
		return fmt.Errorf("the lease of %s still reports that it is held after %s was granted %q", h.user.label, next.driver.label, h.name)
	}
	if d := h.Deadline(); next.at.Before(d) {
		return fmt.Errorf("%s was granted %q %v before the deadline of %s", next.driver.label, h.name, d.Sub(next.at), h.user.label)
	}
	return nil
}

// first waits until one of the requests is done and returns the index of the
// request that was done first.
func (e *env) first(of []*request) int {
	done := -1
	e.until("a waiter is granted the name", func() bool {
		for i, r := range of {
			if r.isDone() && (done < 0 || r.at.Before(of[done].at)) {
				done = i
			}
		}
		return done >= 0
	})
	return done
}

func notBeforeExpires(e *env) error {
	a, b, name := e.driver(), e.rival(), e.name()
	h := a.hold(name, fixed, ttl(e.brief()))
	for {
		switch r := b.acquire(name, noWait); {
		case r.lease != nil:
			return r.after(h)
		case !errors.Is(r.err, driver.ErrLocked):
			return r.err
		case time.Since(h.lease.Expires()) > e.hangs():
			return fmt.Errorf("%q was granted to no client within %v after the lease expired", name, time.Since(h.lease.Expires()))
		}
		e.sleep(e.brief() / 100)
	}
}

func expiryServesWaiters(e *env) error {
	h, left := e.lineBehindLease()
	for len(left) > 0 {
		i := e.first(left)
		if t := left[i].longer(); t > 0 {
			left[i] = left[i].driver.start(h.Name, fixed, ttl(t))
			continue
		}
		next := left[i].granted()
		if err := next.after(h); err != nil {
			return err
		}
		h, left = next, append(left[:i:i], left[i+1:]...)
	}
	e.awaitFree(h.Name)
	return nil
}

// lineBehindLease returns a hold that no client renews and two requests for
// similar leases that are waiting for the end of the hold.
func (e *env) lineBehindLease() (*request, []*request) {
	a, b, c := e.driver(), e.driver(), e.driver()
	for d := e.ttl(); d < e.hangs(); d *= 2 {
		// until that is long enough for this machine under its current load
		h := a.hold(e.name(), fixed, ttl(e.allowed(d)))
		brief := ttl(e.allowed(d / 4))
		line := []*request{b.start(h.Name, fixed, brief), c.start(h.Name, fixed, brief)}
		if line[0].waitsBehind(h) && line[1].waitsBehind(h) {
			return h, line
		}
		for _, r := range line {
			r.cancel()
		}
	}
	e.endf("leases of all lengths ended before two clients were waiting for the end")
	return nil, nil
}

// waitsBehind reports whether r has waited for h. If not, the lease of h ended
// before r could wait.
func (r *request) waitsBehind(h *request) bool {
	if r.waitsOrEnds(); r.waited() > 0 {
		return true
	}
	if over := r.slow() || r.lease != nil && r.after(h) == nil; !over {
		r.waits() // ends the check
	}
	return false
}

func extendMovesEnd(e *env) error {
	short := e.ttl()
	a, b, names := e.client(), e.driver(), []string{e.name(), e.name()}
	// done first, because on a busy machine the other lease may end before two
	// are granted
	long := a.lock(names[1], dsync.ExpireAfter(e.long()))
	held := []*holding{a.lock(names[0], dsync.ExpireAfter(short)), long}
	called := time.Now()
	for i, d := range []time.Duration{e.allowed(short * 3 / 2), short} {
		if err := held[i].Extend(e.ctx, d); err != nil {
			return fmt.Errorf("extension of a live lease: %w", err)
		}
	}
	if d := held[1].Deadline(); d.After(time.Now().Add(short)) {
		return fmt.Errorf("the deadline is %v away after a lease was set to end in %v", time.Until(d), short)
	}
	if d := held[0].Deadline(); !d.After(called.Add(short)) && !e.driverInfo().KeepsAlive {
		return fmt.Errorf("the deadline is at %s after a lease was extended by %v at %s", e.events.at(d), e.allowed(short*3/2), e.events.at(called))
	}
	waiters := []*request{b.start(names[0]), b.start(names[1])}
	for i, h := range held {
		if err := h.overBefore(waiters[i].granted()); err != nil {
			return err
		}
		if err := h.Extend(e.ctx, e.long()); !errors.Is(err, dsync.ErrLost) {
			return fmt.Errorf("extension of an expired lease returned %q, want ErrLost", outcome(err))
		}
		if err := waiters[i].keeps("Extend by the holder of the expired lease"); err != nil {
			return err
		}
	}
	return nil
}

// outages returns the ways of putting the backend out of reach of a client
// without notice to the backend.
func (c *connection) outages() []func() {
	var all []func()
	if c.link.Hang != nil {
		all = append(all, c.hang)
	}
	if c.link.Cut != nil && !c.env.driverInfo().KeepsAlive {
		// a session may end as soon as its connection breaks
		all = append(all, c.cut)
	}
	c.env.need(len(all) > 0, "Link.Hang")
	return all
}

// silences returns the ways in which answers do not arrive. These are the
// outages and, unless a session ends as soon as its connection breaks, lost
// answers.
func (c *connection) silences() []func() {
	all := c.outages()
	if c.link.LoseAnswers != nil && (!c.env.driverInfo().KeepsAlive || c.env.fakeTime) {
		all = append(all, c.loseAnswers)
	}
	return all
}

// inOutages runs f concurrently for each way of putting the backend out of
// reach of a client.
func (e *env) inOutages(f func(outage func(*connection)) error) error {
	e.together("a check of an outage", len(e.outsider().outages()), func(i int) error {
		return f(func(c *connection) { c.outages()[i]() })
	})
	return nil
}

func abandonedLeaseEnds(e *env) error {
	return e.inOutages(func(outage func(*connection)) error {
		a, b := e.driver(), e.rival()
		held := []*request{a.hold(e.name(), fixed, ttl(e.brief())), a.hold(e.name(), ttl(e.brief()))}
		outage(a.connection)
		for _, h := range held {
			next := b.start(h.Name).granted()
			if err := next.after(h); err != nil {
				return err
			}
			next.release()
		}
		return nil
	})
}

func holderKnowsFirst(e *env) error {
	// a driver that must reconnect needs some answers within a TTL
	late := []time.Duration{0, e.brief() / 8}
	e.together("a holder and a waiter", len(late), func(i int) error {
		a, b, c, name := e.client(), e.driver(), e.client(), e.name()
		before := c.lock(name)
		call := a.start(name, dsync.ExpireAfter(e.brief())).waits()
		if late[i] > 0 {
			a.delay(late[i])
		}
		before.unlock()
		h := call.granted()
		next := b.start(name).granted()
		if err := h.overBefore(next); err != nil {
			return err
		}
		next.release()
		return nil
	})
	return nil
}

func raceAtExpiry(e *env) error {
	a, clients, name := e.client(), e.clients(8), e.name()
	h := a.lock(name, dsync.ExpireAfter(e.brief()))
	start := h.Deadline().Add(-e.brief() / 10)
	granted := make([]*holding, len(clients))
	at := make([]time.Time, len(clients))
	var over atomic.Bool
	e.together("TryLock", len(clients), func(i int) error {
		e.sleepUntil(start)
		for last := false; ; last = over.Load() { // again after another client was granted the name
			l, err := clients[i].try(name)
			switch {
			case err == nil:
				granted[i], at[i] = l, time.Now()
				over.Store(true)
				return nil
			case !errors.Is(err, dsync.ErrLocked):
				return err
			case last:
				return nil
			case time.Since(h.Deadline()) > e.hangs():
				return fmt.Errorf("%s is not granted %q, whose lease ended long ago", clients[i].label, name)
			}
			e.sleep(time.Millisecond + rand.N(time.Millisecond))
		}
	})
	for i, l := range granted {
		if l != nil && at[i].Before(h.Deadline()) {
			return fmt.Errorf("%s was granted %q %v before the deadline of %s", l.user.label, name, h.Deadline().Sub(at[i]), h.user.label)
		}
	}
	return atMostOne(granted, name)
}

// tenure is a way in which a lease of driver a gets its last TTL. If another
// request must wait for the name in the meantime, begin returns the waiter.
type tenure struct {
	what    string
	begin   func(a *rawDriver, name string) (h, waiter *request)
	unasked bool // no client requests the name before the lease has expired
}

// tenures returns the ways that the driver supports. The leases are those of
// raw drivers: package dsync would release a lease that the backend fails to
// end.
func (e *env) tenures() []tenure {
	d := e.crooked()
	renew := func(h *request, d time.Duration) *request {
		if err := h.renew(d); err != nil {
			e.endf("renewal of a live lease: %w", err)
		}
		return h
	}
	simply := func(f func(a *rawDriver, name string) *request) func(*rawDriver, string) (h, waiter *request) {
		return func(a *rawDriver, name string) (*request, *request) { return f(a, name), nil }
	}
	fixedLease := simply(func(a *rawDriver, name string) *request { return a.hold(name, fixed, ttl(d)) })
	all := []tenure{
		{what: "a fixed lease", begin: fixedLease},
		{what: "a fixed lease whose name no other client requested before it expired", begin: fixedLease, unasked: true},
		{what: "a fixed lease that was renewed for longer", begin: simply(func(a *rawDriver, name string) *request {
			return renew(a.hold(name, fixed, ttl(d)), e.allowed(d*9/8))
		})},
		{what: "a fixed lease that was renewed for less", begin: simply(func(a *rawDriver, name string) *request {
			return renew(a.hold(name, fixed), d)
		})},
		{what: "a fixed lease that was renewed for less while another client waited", begin: func(a *rawDriver, name string) (h, waiter *request) {
			h = a.hold(name, fixed)
			waiter = e.outsider().start(name).waits()
			return renew(h, d), waiter
		}},
		{what: "a fixed lease that was granted after a wait", begin: simply(func(a *rawDriver, name string) *request {
			before := e.outsider().hold(name)
			r := a.start(name, fixed, ttl(d)).waits()
			before.release()
			return r.granted()
		})},
	}
	if e.driverInfo().KeepsAlive { // other sessions do not end
		return all
	}
	return append(all,
		tenure{what: "a lease without renewals", begin: simply(func(a *rawDriver, name string) *request { return a.hold(name, ttl(d)) })},
		tenure{what: "a lease that was renewed", begin: simply(func(a *rawDriver, name string) *request {
			return renew(a.hold(name, ttl(d)), d)
		})},
		tenure{what: "a lease that was renewed in a batch", begin: simply(func(a *rawDriver, name string) *request {
			h := a.hold(name, ttl(d))
			if b, ok := a.driver.(driver.BatchRenewer); ok {
				e.within("RenewAll", func() { b.RenewAll(e.ctx, []driver.Lease{h.lease}, func(_ int, err error) { e.failed(err) }) })
			}
			return h
		})},
	)
}

func endsInBounds(e *env) error {
	a, all := e.driver(), e.tenures()
	e.outsider()
	e.together("leases that end", len(all), func(i int) error {
		return e.punctual(func() error {
			h, next := all[i].begin(a, e.name())
			if all[i].unasked {
				e.expired(h)
			}
			if next == nil {
				next = e.outsider().start(h.Name)
			}
			if err := next.granted().after(h); err != nil {
				return fmt.Errorf("%s: %w", all[i].what, err)
			}
			next.release()
			return next.soonAfter(h, all[i].what)
		})
	})
	return nil
}

// soonAfter returns an error if r was granted its name too late after h
// expired. The limit is Info.LateFor plus the time that a waiter needs to
// detect that the name is free.
func (r *request) soonAfter(h *request, what string) error {
	e, end := r.driver.env, h.lease.Expires()
	late := e.driverInfo().LateFor(h.TTL)
	return e.late(r.at.Sub(end)-late-e.wakes(), "%s: it expired at %s, and %s, which waited, was granted %q at %s; Info.LateFor is %v",
		what, e.events.at(end), r.driver.label, r.Name, e.events.at(r.at), late)
}
