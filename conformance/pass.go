package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
)

// The checks of holds that are given to another caller of their client: driver.Passer.

func isPasser(r *request) bool {
	_, ok := r.lease.(driver.Passer)
	return ok
}

// passer returns r. If the driver cannot pass holds on, the check ends.
func (r *request) passer() *request {
	if !isPasser(r) {
		r.driver.env.end(&refusedError{"to pass holds on"})
	}
	return r
}

// passIsLikeAGrant passes a hold on while another request waits, and then removes a hold that was passed.
func passIsLikeAGrant(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	before := b.hold(name)
	last, _ := before.lease.Tokens()
	before.release()
	h := a.hold(name, note("the first note")).passer()
	inspects := inspection.claimed(e.client())
	var of string // what tells the hold from others
	if inspects {
		of = b.status(name).Hold
	}
	w := b.start(name).waits()
	for i := range 3 {
		text := fmt.Sprint("note ", i)
		if i == 1 {
			text = ""
		}
		token, err := h.pass(fmt.Sprintf("%s, holder %d", e.id, i), text)
		switch {
		case err != nil:
			return err
		case token <= last:
			return fmt.Errorf("a hold that was passed on has the token %d, after %d", token, last)
		case w.isDone():
			return fmt.Errorf("%s was granted %q while %s passed it on", b.label, name, a.label)
		}
		last = token
		if !inspects {
			continue
		}
		s, err := h.describedTo(b)
		if err == nil && s.Hold != of {
			err = fmt.Errorf("Inspect by %s reports the hold %q after Pass, and %q before", b.label, s.Hold, of)
		}
		if err != nil {
			return err
		}
	}
	h.release()
	if token, _ := w.granted().lease.Tokens(); token <= last {
		return fmt.Errorf("%s got the token %d after a hold with %d that was passed on", b.label, token, last)
	}
	w.release()
	if many := a.hold(name, block(5)); isPasser(many) {
		if _, err := many.pass("the next", ""); err != nil {
			return err
		}
		many.release()
	} else {
		many.release()
	}
	return e.passedIsLost(a.hold(name))
}

// pass gives the hold to another caller, and returns its token.
func (r *request) pass(owner, note string) (token uint64, err error) {
	r.driver.env.within(fmt.Sprintf("Pass of %q by %s", r.Name, r.driver.label), func() {
		err = r.lease.(driver.Passer).Pass(r.driver.env.ctx, owner, note)
	})
	r.Owner, r.Note = owner, note
	token, n := r.lease.Tokens()
	if err == nil && n != 1 {
		err = fmt.Errorf("a hold that was passed on has %d tokens, want 1", n)
	}
	return token, err
}

// passedIsLost removes a hold that was passed on. The new holder is told, if the driver tells by itself, and the hold cannot be passed again.
func (e *env) passedIsLost(h *request) error {
	if _, err := h.pass("the next", ""); err != nil || !e.canRemove() {
		return err
	}
	e.remove(h.Name)
	if e.driverInfo().Detect > 0 {
		e.until("the loss of a hold that was passed on is told", func() bool { return len(h.lost()) > 0 })
	}
	_, err := h.pass("the last", "")
	return isNotHeld("Pass of a hold that was removed", err)
}

func expiredHoldIsNotPassed(e *env) error {
	e.driver().hold(e.name()).passer()
	e.together("holds that have run out", 3, func(i int) error {
		if i == 2 {
			return e.punctual(e.passedEndsInTime)
		}
		a, taken := e.driver(), i == 1
		h := a.hold(e.name(), ttl(e.brief()))
		if e.driverInfo().KeepsAlive {
			a.hang()
		}
		e.expired(h)
		var next *request
		if taken {
			next = e.outsider().start(h.Name).granted()
		}
		if e.driverInfo().KeepsAlive {
			a.heal()
		}
		_, err := h.pass("the next", "")
		if err := isNotHeld("Pass of a hold that had run out", err); err != nil {
			return err
		}
		if taken {
			return next.keeps("Pass of a hold that had run out")
		}
		e.awaitFree(h.Name)
		return nil
	})
	return nil
}

// passedEndsInTime passes a hold on in the middle of its lease, and then does not
// keep it alive.
func (e *env) passedEndsInTime() error {
	a := e.driver()
	h := a.hold(e.name(), ttl(e.allowed(2*e.ttl())))
	next := e.outsider().start(h.Name).waits()
	e.sleep(e.ttl())
	if _, err := h.pass("the next", ""); err != nil {
		return err
	}
	if e.driverInfo().KeepsAlive {
		a.hang()
	}
	e.expired(h)
	if err := next.granted().after(h); err != nil {
		return fmt.Errorf("a hold that was passed on: %w", err)
	}
	return next.soonAfter(h, "a hold that was passed on")
}

func passWithoutAnswer(e *env) error {
	e.driver().hold(e.name()).passer()
	faults := func(c *connection) (all []func()) {
		for _, f := range []struct {
			able  bool
			begin func()
		}{{c.link.LoseAnswers != nil, c.loseAnswers}, {c.link.Hang != nil, c.hang}, {c.link.Cut != nil, c.cut}} {
			if f.able {
				all = append(all, f.begin)
			}
		}
		e.need(len(all) > 0, "Link.Cut")
		return all
	}
	for i := range faults(e.outsider().connection) { // one after the other: the names may share a count of tokens
		a := e.driver()
		h := a.hold(e.name())
		before, _ := h.lease.Tokens()
		faults(a.connection)[i]()
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		var err error
		e.within("Pass", func() { err = h.lease.(driver.Passer).Pass(ctx, "the next", "") })
		cancel()
		e.events.add(a.label, "pass without an answer: %s", outcome(err))
		after, n := h.lease.Tokens()
		lost := len(h.lost()) > 0 // with the connection, the session may end
		switch {
		case errors.Is(err, driver.ErrNotHeld) && !lost:
			return fmt.Errorf("a Pass without an answer of the backend returned %q, and nobody has removed the hold", err)
		case after < before, err == nil && n > 0 && after == before:
			return fmt.Errorf("after a Pass that returned %q a hold with the token %d has the token %d", outcome(err), before, after)
		}
		a.heal()
		if err := h.tryRelease(e.ctx); errors.Is(err, driver.ErrNotHeld) && !lost && len(h.lost()) == 0 {
			return fmt.Errorf("the release after a Pass without an answer: %w", err)
		}
		next := e.outsider().start(h.Name).granted()
		if token, n := next.lease.Tokens(); n > 0 && token <= after {
			return fmt.Errorf("%s got the token %d after a hold that had %d when a Pass without an answer had returned %q", next.driver.label, token, after, outcome(err))
		}
		next.release()
	}
	return nil
}
