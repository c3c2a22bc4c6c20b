package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// loosen has the driver put an id next to a seal.
func (d *rawDriver) loosen(name, id string, floor uint64) error {
	return d.changeSeal(d.env.ctx, fmt.Sprintf("Loosen of %q with the id %q and the floor %d", name, id, floor), func(ctx context.Context, u move.Unsealer) error {
		return u.Loosen(ctx, name, id, floor)
	})
}

// unseal has the driver take a seal away.
func (d *rawDriver) unseal(name, id string) error {
	return d.changeSeal(d.env.ctx, fmt.Sprintf("Unseal of %q with the id %q", name, id), func(ctx context.Context, u move.Unsealer) error {
		return u.Unseal(ctx, name, id)
	})
}

func (d *rawDriver) changeSeal(ctx context.Context, what string, f func(context.Context, move.Unsealer) error) (err error) {
	u, ok := d.tap.Driver.(move.Unsealer)
	if !ok {
		return errors.ErrUnsupported
	}
	d.env.within(what+" by "+d.label, func() { err = f(ctx, u) })
	d.env.events.add(d.label, "%s: %s", what, outcome(err))
	return err
}

// unmark has the driver take the mark off the name of one of its leases.
func (r *request) unmark() error { return r.unmarkWith(r.driver.env.ctx) }

func (r *request) unmarkWith(ctx context.Context) error {
	err := ask(r, "Unmark", func(m move.Unmarker, l driver.Lease) error { return m.Unmark(ctx, l) })
	untap(r.lease).add("unmark: %s", outcome(err))
	return err
}

// A driver that seals or marks need not undo either.
var (
	unsealing = byAnswer("taking seals back", (*client).refusesLoosen)
	unmarking = byAnswer("taking marks back", func(c *client) error { return c.refusesHold((*request).unmark) })
)

func (c *client) refusesLoosen() error { return c.env.driver().loosen(c.env.name(), "nobody's", 0) }

// sealed returns a name that a client has sealed, and its last token.
func (e *env) sealed(d *rawDriver, opts ...option) (name string, last uint64) {
	h := d.sealHeld(e.name(), opts...)
	last, _ = d.sealed(h.Name)
	return h.Name, last
}

// loosenAndUnseal takes the seal of a name back.
func (d *rawDriver) loosenAndUnseal(name, id string) error {
	if err := d.loosen(name, id, 0); err != nil {
		return fmt.Errorf("the Loosen by %s of %q, which is sealed: %w", d.label, name, err)
	}
	if err := d.unseal(name, id); err != nil {
		return fmt.Errorf("the Unseal by %s of %q, with the id of the last Loosen: %w", d.label, name, err)
	}
	return nil
}

func loosenStays(e *env) error {
	e.claims(sealing)
	e.claims(unsealing)
	a, b, name := e.driver(), e.driver(), e.name()
	if err := isNotHeld("Loosen of a name that nobody has used", b.loosen(name, "x", 0)); err != nil {
		return err
	}
	h := a.hold(name)
	if err := isNotHeld("Loosen of a name that is held", b.loosen(name, "x", 0)); err != nil {
		return err
	}
	if err := h.keeps("a Loosen of the name"); err != nil {
		return err
	}
	for _, opts := range [][]option{nil, {fixed}} {
		name, last := e.sealed(a, opts...)
		for _, id := range []string{"x", "y", "y"} {
			if err := b.loosen(name, id, 0); err != nil {
				return fmt.Errorf("the Loosen of %q, which is sealed: %w", name, err)
			}
			if err := e.isSealed(name, a, b, e.driver()); err != nil {
				return fmt.Errorf("after Loosen: %w", err)
			}
		}
		if now, _ := a.sealed(name); now != last {
			return fmt.Errorf("after Loosen the last token of %q is %d, and it was %d", name, now, last)
		}
		if f, ok := b.driver.(driver.ForceUnlocker); ok {
			if err := f.ForceUnlock(e.ctx, name); !errors.Is(err, driver.ErrSealed) {
				return fmt.Errorf("ForceUnlock of %q after Loosen returned %q, want ErrSealed", name, outcome(err))
			}
		}
	}
	return nil
}

func unsealFrees(e *env) error {
	e.claims(sealing)
	e.claims(unsealing)
	for _, opts := range [][]option{nil, {fixed}} {
		a, b := e.driver(), e.driver()
		name, _ := e.sealed(a, opts...)
		for round := range 2 { // the second time with the ids of the first
			for _, id := range []string{"", "x", "y"} {
				if err := isNotHeld("Unseal without a Loosen", b.unseal(name, id)); err != nil {
					return err
				}
			}
			e.must(a.loosen(name, "x", 0))
			e.must(b.loosen(name, "y", 0))
			if err := isNotHeld("Unseal with an id that was replaced", a.unseal(name, "x")); err != nil {
				return err
			}
			if err := e.isSealed(name, a, b); err != nil {
				return fmt.Errorf("after an Unseal that was refused: %w", err)
			}
			if err := a.unseal(name, "y"); err != nil {
				return fmt.Errorf("the Unseal of %q with the id of the last Loosen: %w", name, err)
			}
			for _, d := range []*rawDriver{a, b, e.driver()} {
				if _, sealed := d.sealed(name); sealed {
					return fmt.Errorf("after Unseal %s says of %q that it is sealed", d.label, name)
				}
				h := d.hold(name, noWait)
				w := b.start(name).waits()
				if err := isNotHeld("a second Unseal", a.unseal(name, "y")); err != nil {
					return err
				}
				h.release()
				w.granted().release()
			}
			if round == 0 {
				b.sealHeld(name, opts...)
			}
		}
	}
	return nil
}

func loosenRaises(e *env) error {
	e.claims(sealing)
	e.claims(unsealing)
	e.claims(fencing)
	a, b := e.driver(), e.driver()
	name, last := e.sealed(a)
	for _, above := range []uint64{0, 1 << 10, 1 << 40} {
		floor := last + above
		err := b.loosen(name, "x", floor)
		switch {
		case err == nil:
			last = floor
		case above > 0 && errors.Is(err, errors.ErrUnsupported):
			if err := e.isSealed(name, a); err != nil {
				return fmt.Errorf("after a Loosen that was refused: %w", err)
			}
			e.must(b.loosen(name, "x", 0))
		default:
			return fmt.Errorf("the Loosen of %q, of which the last token is %d, with the floor %d: %w", name, last, floor, err)
		}
		if err := b.loosen(name, "y", 1); err != nil {
			return fmt.Errorf("the Loosen of %q with a lower floor: %w", name, err)
		}
		e.must(a.unseal(name, "y"))
		for _, d := range []*rawDriver{a, e.driver(), b} {
			h := d.hold(name, block(3), noWait)
			first, n := h.lease.Tokens()
			if n < 1 || first <= last {
				return fmt.Errorf("after Unseal %s has %d tokens from %d, want some above %d", d.label, n, first, last)
			}
			last = first + uint64(n) - 1
			h.release()
		}
		a.sealHeld(name)
		last, _ = a.sealed(name)
	}
	if err := isRefusedWhole(e, b, name); err != nil {
		return err
	}
	return b.loosenAndUnseal(name, "z")
}

// isRefusedWhole returns an error if a refused Loosen has left its id.
func isRefusedWhole(e *env, d *rawDriver, name string) error {
	e.must(d.loosen(name, "before", 0))
	err := d.loosen(name, "refused", 1<<64-1)
	if err == nil {
		return fmt.Errorf("the Loosen of %q with a floor that leaves no token above it succeeds", name)
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("the Loosen of %q with a floor that leaves no token above it returned %q, want errors.ErrUnsupported", name, outcome(err))
	}
	if err := isNotHeld("Unseal with the id of a Loosen that was refused", d.unseal(name, "refused")); err != nil {
		return err
	}
	return e.isSealed(name, d)
}

func unsealLost(e *env) error {
	e.claims(sealing)
	e.claims(unsealing)
	for range 2 {
		a, b := e.driver(), e.driver()
		name, _ := e.sealed(b)
		u := a.tap.Driver.(move.Unsealer)
		if err := a.unanswered("a Loosen", func(ctx context.Context) error { return u.Loosen(ctx, name, "x", 0) }); err != nil {
			return err
		}
		a.heal()
		if !e.seesSeal(name) {
			return errors.New("a Loosen whose answer was lost has set the name free")
		}
		e.poll("Loosen again", func() error { return a.loosen(name, "x", 0) })
		if err := e.isSealed(name, b); err != nil {
			return fmt.Errorf("after a Loosen whose answer was lost: %w", err)
		}
		if err := a.unanswered("an Unseal", func(ctx context.Context) error { return u.Unseal(ctx, name, "x") }); err != nil {
			return err
		}
		a.heal()
		e.poll("Unseal again", func() error {
			err := a.unseal(name, "x")
			if errors.Is(err, driver.ErrNotHeld) {
				return nil
			}
			return err
		})
		if err := e.isFree(name); err != nil {
			return fmt.Errorf("after an Unseal whose answer was lost, and another: %w", err)
		}
	}
	return nil
}

func unmarkTells(e *env) error {
	e.claims(marking)
	e.claims(unmarking)
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	is := func(h *request, marked bool) error {
		first, n := h.lease.Tokens()
		if n > 0 && first <= last {
			return fmt.Errorf("after Unmark %s has %d tokens from %d, want some above %d", h.driver.label, n, first, last)
		}
		if n > 0 {
			last = first + uint64(n) - 1
		}
		return h.isMarked(marked)
	}
	h := a.hold(name)
	e.must(h.unmark()) // there is none
	waiters := e.waiters(name, b)
	last = h.markHeld(1 << 40)
	for range 2 {
		if err := h.unmark(); err != nil {
			return fmt.Errorf("the Unmark of a hold: %w", err)
		}
	}
	if err := is(h, false); err != nil {
		return err
	}
	h.release()
	for len(waiters) > 0 {
		i := e.first(waiters)
		h = waiters[i].granted()
		waiters = slices.Delete(waiters, i, i+1)
		if err := is(h, false); err != nil {
			return err
		}
		h.release()
	}
	for _, d := range []*rawDriver{a, b, e.driver()} {
		h = d.hold(name, noWait)
		if err := is(h, false); err != nil {
			return err
		}
		h.release()
	}
	h = b.hold(name, fixed)
	e.must(h.mark(0))
	if err := is(h, true); err != nil {
		return fmt.Errorf("marked again: %w", err)
	}
	h.release()
	h = a.hold(name)
	defer h.release()
	return is(h, true)
}

func unmarkNeedsHold(e *env) error {
	e.claims(marking)
	e.claims(unmarking)
	return e.ended(e.driver(), e.driver(), func(what string, h, next *request) error {
		next.markHeld(0)
		if err := isNotHeld("Unmark of a hold that "+what, h.unmark()); err != nil {
			return err
		}
		next.release()
		next = next.driver.hold(h.Name)
		if err := next.isMarked(true); err != nil {
			return fmt.Errorf("after an Unmark of a hold that %s: %w", what, err)
		}
		return next.keeps("an Unmark of the one before, which " + what)
	})
}

func unmarkLost(e *env) error {
	e.claims(marking)
	e.claims(unmarking)
	for range 2 {
		a, b, name := e.driver(), e.driver(), e.name()
		h := a.hold(name)
		h.markHeld(1 << 40)
		last, _ := h.lease.Tokens()
		if err := a.unanswered("an Unmark", h.unmarkWith); err != nil {
			return err
		}
		a.heal()
		_ = h.tryRelease(e.ctx)
		gone := false
		for _, d := range []*rawDriver{a, b, a} {
			e.awaitFree(name)
			next := d.hold(name)
			marked, err := next.marked()
			if err != nil {
				return err
			}
			if token, n := next.lease.Tokens(); n > 0 && token <= last {
				return fmt.Errorf("after an Unmark whose answer was lost, a lease has the token %d, want one above %d", token, last)
			}
			if gone && marked {
				return errors.New("after an Unmark whose answer was lost, one lease was not marked and the next was")
			}
			gone = !marked
			next.release()
		}
	}
	return nil
}
