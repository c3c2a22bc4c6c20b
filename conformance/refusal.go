package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-dsync/dsync/driver"
)

// The checks of a backend that answers and refuses work: its disk is full, it
// has become read-only, or the client has lost its rights.
var refusalChecks = []check{
	{"refusal/requests", "A backend that refuses new holds does not look like a lock that another client holds: Acquire returns another error or waits, leaves nothing behind, and a waiter is served in the end.", refusalIsNoHold},
	{"refusal/holds", "A backend that refuses requests does not look like the end of a hold: no call about the hold returns ErrNotHeld, Inspect and List do not omit it, and it can be released in the end.", refusalIsNoEnd},
	{"refusal/changes", "A change of a latch or a limit that the backend refuses does not return nil, and a change that returns ErrUnavailable was not carried out.", refusalIsNoChange},
}

// whileRefused calls f while the backend refuses new holds.
func (e *env) whileRefused(f func() error) error {
	b := e.backend
	e.need(b.Refuse != nil && b.Allow != nil, "Backend.Refuse")
	e.driverInfo() // a new client may be refused
	e.mu.Lock()
	e.undo = func() { b.Allow(e.tb) }
	e.mu.Unlock()
	e.harness("Backend.Refuse", func() { b.Refuse(e.tb) })
	e.events.add("", "the backend refuses requests")
	err := f()
	e.harness("Backend.Allow", func() { b.Allow(e.tb) })
	e.mu.Lock()
	e.undo = nil
	e.mu.Unlock()
	e.events.add("", "the backend allows requests")
	return err
}

// misread returns an error if the answer to a request that the backend refused
// is about the name and not about the backend.
func misread(what string, err error, answers ...error) error {
	for _, answer := range answers {
		if errors.Is(err, answer) {
			return fmt.Errorf("%s returned %q when the backend refused requests", what, outcome(err))
		}
	}
	return nil
}

// notRefusals are errors of Acquire that say nothing about a refusal.
var notRefusals = []error{driver.ErrLocked, driver.ErrNotHeld, driver.ErrLimit, driver.ErrSealed, driver.ErrClosed}

// grantedInTheEnd waits until a request like r, which began while the backend
// refused requests, is granted.
func (r *request) grantedInTheEnd() (*request, error) {
	for r.result().lease == nil {
		if err := misread("a waiting Acquire by "+r.driver.label, r.err, notRefusals...); err != nil {
			return nil, err
		}
		r = r.driver.start(r.Name, in(r.Mode))
	}
	return r, nil
}

func refusalIsNoHold(e *env) error {
	d, o := e.driver(), e.outsider()
	d.hold(e.name()).release() // the connections are there
	h := o.hold(e.name())
	waiter := e.driver().start(h.Name).waits()
	var asked []*request
	err := e.whileRefused(func() error {
		for m := driver.Exclusive; m <= driver.Permit; m++ {
			if !e.driverInfo().Offers(m) {
				continue
			}
			for _, opts := range [][]option{{noWait}, nil} {
				ctx, cancel := context.WithTimeout(e.ctx, patience)
				defer cancel()
				r := d.startWith(ctx, cancel, e.name(), append(opts, in(m))...).result()
				asked = append(asked, r)
				what := fmt.Sprintf("Acquire of the free name %s by %s", asks(&r.Request), d.label)
				if r.lease != nil {
					return fmt.Errorf("%s was granted while the backend refused new holds", what)
				}
				if err := misread(what, r.err, notRefusals...); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range asked {
		e.poll(fmt.Sprintf("%q, whose Acquire was refused, is free", r.Name), func() error {
			next := o.acquire(r.Name, noWait, in(r.Mode))
			if next.lease != nil {
				next.release()
			}
			return next.err
		})
	}
	h.release()
	next, err := waiter.grantedInTheEnd()
	if err == nil {
		next.release()
	}
	return err
}

func refusalIsNoEnd(e *env) error {
	d, o := e.driver(), e.outsider()
	kept, released, passed := d.hold(e.name(), fixed), d.hold(e.name(), fixed), d.hold(e.name())
	waiter := o.start(released.Name).waits()
	err := e.whileRefused(func() error {
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		var err error
		e.within("Renew", func() { err = kept.lease.Renew(ctx, e.long()) })
		if err := misread("Renew by "+d.label, err, driver.ErrNotHeld); err != nil {
			return err
		}
		if p, ok := passed.lease.(driver.Passer); ok {
			e.within("Pass", func() { err = p.Pass(ctx, "the next", "") })
			if err := misread("Pass by "+d.label, err, driver.ErrNotHeld); err != nil {
				return err
			}
		}
		if err := misread("Release by "+d.label, released.tryRelease(ctx), driver.ErrNotHeld); err != nil {
			return err
		}
		return e.stillSeen(kept)
	})
	if err != nil {
		return err
	}
	next, err := waiter.grantedInTheEnd()
	if err != nil {
		return err
	}
	next.release()
	for _, h := range []*request{kept, passed} {
		if causes := h.lost(); len(causes) > 0 {
			return fmt.Errorf("%s was notified that it lost %q: %w", d.label, h.Name, causes[0])
		}
		const when = "after a time in which the backend refused requests"
		if err := o.refused(h.Name); err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		if err := h.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("Release by %s %s: %w", d.label, when, err)
		}
		if err := e.isFree(h.Name); err != nil {
			return err
		}
	}
	return nil
}

// stillSeen returns an error if Inspect or List by a client says that a name is
// free, which h holds.
func (e *env) stillSeen(h *request) error {
	for _, d := range []*rawDriver{h.driver, e.outsider()} {
		if i, ok := d.driver.(driver.Inspector); ok {
			var s driver.Status
			var err error
			e.within("Inspect", func() { s, err = i.Inspect(e.ctx, h.Name) })
			if err == nil && !s.Held {
				return fmt.Errorf("Inspect by %s reports that no client holds %q, which %s holds", d.label, h.Name, h.driver.label)
			}
		}
		if l, ok := d.tap.Driver.(driver.Lister); ok {
			var names []string
			var failed error
			e.within("List", func() {
				for name, err := range l.List(e.ctx, h.Name) {
					names, failed = append(names, name), errors.Join(failed, err)
				}
			})
			if failed == nil && !slices.Contains(names, h.Name) {
				return fmt.Errorf("the list by %s leaves out %q, which %s holds", d.label, h.Name, h.driver.label)
			}
		}
	}
	return nil
}

func refusalIsNoChange(e *env) error {
	d, o := e.driver(), e.outsider()
	d.hold(e.name()).release() // the connections are there
	type change struct {
		what string
		call func(context.Context) error
		done func() bool
		err  error
	}
	var changes []*change
	if own, ok := d.tap.Driver.(driver.Latcher); ok {
		latch := func(what string, n, after int, call func(ctx context.Context, name, id string) error) {
			seen := o.latch(e.name())
			if n > 0 {
				seen.set(n)
			}
			id := e.changeID()
			changes = append(changes, &change{
				what: what,
				call: func(ctx context.Context) error { return call(ctx, seen.name, id) },
				done: func() bool { return seen.count() == after },
			})
		}
		latch("SetLatch", 0, 3, func(ctx context.Context, name, id string) error {
			set, err := own.SetLatch(ctx, name, id, 3)
			if err == nil && !set {
				return errors.New("there is a latch, which nobody has set")
			}
			return err
		})
		latch("CountDown", 3, 2, own.CountDown)
		latch("the last CountDown", 1, 0, own.CountDown)
		latch("DeleteLatch", 3, 0, own.DeleteLatch)
	}
	own, limits := d.tap.Driver.(driver.Limiter)
	i, inspects := o.driver.(driver.Inspector)
	if limits && inspects && e.driverInfo().Offers(driver.Permit) {
		name := e.name()
		limit := func() int {
			s, err := i.Inspect(e.ctx, name)
			e.must(err)
			return s.Limit
		}
		if o.setLimit(name, 3); limit() == 3 {
			changes = append(changes, &change{
				what: "SetLimit",
				call: func(ctx context.Context) error { return own.SetLimit(ctx, name, 5) },
				done: func() bool { return limit() == 5 },
			})
		}
	}
	if len(changes) == 0 {
		e.end(&refusedError{"latches, or limits that can be seen"})
	}
	err := e.whileRefused(func() error {
		for _, c := range changes {
			ctx, cancel := context.WithTimeout(e.ctx, patience)
			e.within(c.what, func() { c.err = c.call(ctx) })
			cancel()
			e.events.add(d.label, "%s: %s", c.what, outcome(c.err))
			if err := misread(c.what+" by "+d.label, c.err, notRefusals...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range changes {
		notDone := errors.Is(c.err, driver.ErrUnavailable) && !errors.Is(c.err, driver.ErrUnknown)
		if done := c.done(); done && notDone || !done && c.err == nil {
			return fmt.Errorf("%s by %s returned %q when the backend refused requests, and carried out is %t", c.what, d.label, outcome(c.err), done)
		}
	}
	return nil
}
