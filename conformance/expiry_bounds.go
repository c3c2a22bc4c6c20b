package conformance

import (
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// tenure is a way in which a lease of a gets its last TTL. If somebody has to wait for the name in the meantime, begin returns the waiter.
type tenure struct {
	what    string
	begin   func(a *rawDriver, name string) (h, waiter *request)
	unasked bool // nobody asks for the name before the lease has expired
}

// tenures returns the ways that the driver has. The leases are those of raw drivers: package dsync would release a lease that the backend
// fails to end.
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
		{what: "a fixed lease that nobody else asked for before it expired", begin: fixedLease, unasked: true},
		{what: "a fixed lease that was renewed for longer", begin: simply(func(a *rawDriver, name string) *request {
			return renew(a.hold(name, fixed, ttl(d)), e.allowed(d*9/8))
		})},
		{what: "a fixed lease that was renewed for less", begin: simply(func(a *rawDriver, name string) *request {
			return renew(a.hold(name, fixed), d)
		})},
		{what: "a fixed lease that was renewed for less while somebody waited", begin: func(a *rawDriver, name string) (h, waiter *request) {
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
	if e.driverInfo().KeepsAlive { // the others do not end
		return all
	}
	return append(all,
		tenure{what: "a lease that nobody renewed", begin: simply(func(a *rawDriver, name string) *request { return a.hold(name, ttl(d)) })},
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

// soonAfter returns an error if r was granted its name later after h expired than Info.LateFor and the time for a waiter to find out allow.
func (r *request) soonAfter(h *request, what string) error {
	e, end := r.driver.env, h.lease.Expires()
	late := e.driverInfo().LateFor(h.TTL)
	return e.late(r.at.Sub(end)-late-e.wakes(), "%s: it expired at %s, and %s, which waited, was granted %q at %s; Info.LateFor is %v",
		what, e.events.at(end), r.driver.label, r.Name, e.events.at(r.at), late)
}
