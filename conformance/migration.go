package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// The checks of the operations that drivers/migrate builds on. Package dsync
// does not know about migrations, so these checks call the driver.
var migrationChecks = []check{
	{"migration/seal", "After Seal, every Acquire of the name returns ErrSealed to every client, including waiters.", sealRefuses},
	{"migration/seal-over", "The lease that became a seal has ended without a loss: Renew and Release return ErrNotHeld, and the seal stays.", sealEndsLease},
	{"migration/seal-stays", "A seal outlasts forced unlocking, which returns ErrSealed, and the client that made it.", sealStays},
	{"migration/sealed", "Sealed returns to every client whether a name is sealed, and the last token that was granted. Inspect and List report a sealed name as held.", sealedTells},
	{"migration/seal-held", "Seal of a hold that has ended returns ErrNotHeld and does not affect the next holder.", sealNeedsHold},
	{"migration/seal-lost", "After a Seal whose answer was lost, Release never ends a seal, and all clients agree.", sealLost},
	{"migration/mark", "After Mark, every lease of the name is marked, whichever client gets it, even after a wait, and no lease is marked before.", markTells},
	{"migration/floor", "The tokens of a marked lease and of every later lease are above the floor, and no second Mark lowers them.", markRaises},
	{"migration/mark-held", "Mark of a hold that has ended returns ErrNotHeld and neither marks the name nor raises its tokens.", markNeedsHold},
	{"migration/mark-lost", "After a Mark whose answer was lost, either the next lease is marked and its tokens are above the floor, or it is not marked.", markLost},
	{"migration/loosen", "A seal remains a seal after Loosen, and Sealed returns the same answer. Loosen of a name that is not sealed returns ErrNotHeld.", loosenStays},
	{"migration/unseal", "Unseal with the id of the last Loosen frees the name for all clients. With another id, or a second time, it returns ErrNotHeld and leaves every seal.", unsealFrees},
	{"migration/unseal-floor", "Tokens after Unseal are above the tokens before the seal and the floors of Loosen. A refused Loosen has changed nothing.", loosenRaises},
	{"migration/unseal-lost", "After a Loosen or an Unseal whose answer was lost, repeating the request settles the outcome, and the name is not free before Unseal.", unsealLost},
	{"migration/unmark", "After Unmark, no lease of the name is marked, even after a wait, until the name is marked again, and the tokens keep rising.", unmarkTells},
	{"migration/unmark-held", "Unmark of a hold that has ended returns ErrNotHeld, and the mark stays.", unmarkNeedsHold},
	{"migration/unmark-lost", "After an Unmark whose answer was lost, all later leases agree, and the tokens keep rising.", unmarkLost},
}

// ask makes the driver change one of its own leases through an optional
// interface. If the driver does not implement the interface, the check ends.
func ask[T any](r *request, what string, f func(T, driver.Lease) error) (err error) {
	d := r.driver
	t, ok := d.tap.Driver.(T)
	if !ok {
		return errors.ErrUnsupported
	}
	d.env.within(fmt.Sprintf("%s of %q by %s", what, r.Name, d.label), func() { err = f(t, untap(r.lease).Lease) })
	return err
}

// seal makes the driver seal the name of one of its leases.
func (r *request) seal() error { return r.sealWith(r.driver.env.ctx) }

func (r *request) sealWith(ctx context.Context) error {
	err := ask(r, "Seal", func(s move.Sealer, l driver.Lease) error { return s.Seal(ctx, l) })
	untap(r.lease).add("seal: %s", outcome(err))
	return err
}

// sealed returns whether a name is sealed, and its last token.
func (d *rawDriver) sealed(name string) (last uint64, sealed bool) {
	var err error
	d.env.within(fmt.Sprintf("Sealed of %q by %s", name, d.label), func() {
		last, sealed, err = d.tap.Driver.(move.Sealer).Sealed(d.env.ctx, name)
	})
	d.env.events.add(d.label, "sealed %q: %t, %d, %s", name, sealed, last, outcome(err))
	d.env.must(err)
	return last, sealed
}

// mark makes the driver mark the name of one of its leases.
func (r *request) mark(floor uint64) error { return r.markWithin(r.driver.env.ctx, floor) }

func (r *request) markWithin(ctx context.Context, floor uint64) error {
	err := ask(r, "Mark", func(m move.Marker, l driver.Lease) error { return m.Mark(ctx, l, floor) })
	first, n := r.lease.Tokens()
	untap(r.lease).add("mark with the floor %d: %s, %d tokens from %d", floor, outcome(err), n, first)
	return err
}

// marked returns whether the name of a lease is marked.
func (r *request) marked() (marked bool, err error) {
	err = ask(r, "Marked", func(m move.Marker, l driver.Lease) (err error) {
		marked, err = m.Marked(r.driver.env.ctx, l)
		return err
	})
	untap(r.lease).add("marked: %t, %s", marked, outcome(err))
	return marked, err
}

// isMarked returns an error unless the driver reports that the name of the
// lease is marked, or not marked, as expected.
func (r *request) isMarked(want bool) error {
	marked, err := r.marked()
	if err == nil && marked != want {
		err = fmt.Errorf("%s reports marked %t for its lease of %q, want %t", r.driver.label, marked, r.Name, want)
	}
	return err
}

// A driver that never seals or marks need not have the methods. If it has them,
// they must return an error and change nothing.
var (
	sealing = byAnswer("seals", func(c *client) error { return c.refusesHold((*request).seal) })
	marking = capability{
		name: "marks",
		claimed: func(c *client) bool {
			return !errors.Is(c.refusesHold(func(r *request) error { return r.mark(0) }), errors.ErrUnsupported)
		},
		refused: func(c *client) error {
			return c.refusesHold(func(r *request) error {
				if _, err := r.marked(); !errors.Is(err, errors.ErrUnsupported) {
					return fmt.Errorf("a driver without marks returned for a mark: %s", outcome(err))
				}
				return r.mark(0)
			})
		},
	}
)

// byAnswer is a capability that a driver claims by accepting a request for it.
func byAnswer(name string, ask func(*client) error) capability {
	return capability{name: name, claimed: func(c *client) bool { return !errors.Is(ask(c), errors.ErrUnsupported) }, refused: ask}
}

// refusesHold returns the driver's refusal of a request that would change a
// hold. The hold must still exist after the refusal.
func (c *client) refusesHold(f func(*request) error) error {
	e := c.env
	d, name := e.driver(), e.name()
	h := d.hold(name, fixed)
	err := f(h)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	e.must(e.outsider().refused(name))
	e.must(h.renew(e.long()))
	h.release()
	e.must(e.isFree(name))
	return err
}

// sealHeld acquires a name and seals it.
func (d *rawDriver) sealHeld(name string, opts ...option) *request {
	h := d.hold(name, opts...)
	if err := h.seal(); err != nil {
		d.env.endf("Seal by %s, which holds %q: %w", d.label, name, err)
	}
	return h
}

// isSealed returns an error unless the clients see that a name is sealed.
func (e *env) isSealed(name string, clients ...*rawDriver) error {
	for _, d := range clients {
		for _, opts := range [][]option{{noWait}, {noWait, fixed}, nil, {fixed}} {
			if err := d.start(name, opts...).sealed(); err != nil {
				return err
			}
		}
		if _, sealed := d.sealed(name); !sealed {
			return fmt.Errorf("%s reports %q, which is sealed, as not sealed", d.label, name)
		}
	}
	return nil
}

// sealed returns an error unless the request ends with ErrSealed.
func (r *request) sealed() error {
	r.result()
	if r.lease != nil || !errors.Is(r.err, driver.ErrSealed) {
		return fmt.Errorf("%s, which requested %q, got lease %v and %q, want an error that matches ErrSealed", r.driver.label, r.Name, r.lease, outcome(r.err))
	}
	return nil
}

// waiters returns requests that wait for a name. The requests belong to several
// clients. If the order of waiters allows it, one client has several of the
// requests.
func (e *env) waiters(name string, d *rawDriver) []*request {
	all := []*request{d.start(name).waits(), e.driver().start(name, fixed).waits()}
	if e.driverInfo().Order == driver.FIFO {
		all = append(all, d.start(name, fixed).waits(), d.start(name).waits())
	}
	return all
}

func sealRefuses(e *env) error {
	e.claims(sealing)
	for _, opts := range [][]option{nil, {fixed}} {
		a, b, name := e.driver(), e.driver(), e.name()
		h := a.hold(name, opts...)
		waiters := append(e.waiters(name, b), a.start(name, fixed).waits())
		if err := h.seal(); err != nil {
			return fmt.Errorf("the seal of a hold: %w", err)
		}
		for _, w := range waiters {
			if err := w.sealed(); err != nil {
				return err
			}
		}
		if err := e.isSealed(name, a, b, e.driver()); err != nil {
			return err
		}
	}
	return nil
}

func sealEndsLease(e *env) error {
	e.claims(sealing)
	for _, opts := range [][]option{nil, {fixed}} {
		d, name := e.driver(), e.name()
		h := d.sealHeld(name, opts...)
		if !e.driverInfo().KeepsAlive || len(opts) > 0 {
			if err := isNotHeld("a renewal of the lease that became a seal", h.renew(e.long())); err != nil {
				return err
			}
		}
		for range 2 {
			if err := isNotHeld("a release of the lease that became a seal", h.tryRelease(e.ctx)); err != nil {
				return err
			}
		}
		if err := e.isSealed(name, d, e.driver()); err != nil {
			return err
		}
		if causes := h.lost(); len(causes) > 0 {
			return fmt.Errorf("the holder that sealed %q was notified that it lost it: %w", name, causes[0])
		}
	}
	return nil
}

func sealStays(e *env) error {
	e.claims(sealing)
	a, b := e.driver(), e.driver()
	names := []string{e.name(), e.name()}
	a.sealHeld(names[0])
	a.sealHeld(names[1], fixed)
	for _, name := range names {
		if f, ok := b.driver.(driver.ForceUnlocker); ok {
			if err := f.ForceUnlock(e.ctx, name); !errors.Is(err, driver.ErrSealed) {
				return fmt.Errorf("ForceUnlock of %q, which is sealed, returned %q, want ErrSealed", name, outcome(err))
			}
		}
	}
	var err error
	e.within("Close", func() { err = a.close(e.ctx) })
	if err != nil {
		return fmt.Errorf("the driver was closed with: %w", err)
	}
	for _, name := range names {
		if err := e.isSealed(name, b, e.driver()); err != nil {
			return fmt.Errorf("after the client that sealed %q was closed: %w", name, err)
		}
	}
	return nil
}

func sealedTells(e *env) error {
	e.claims(sealing)
	a, b, name := e.driver(), e.driver(), e.name()
	b.hold(name, block(3)).release()
	h := a.hold(name, block(5))
	for _, d := range []*rawDriver{a, b} {
		if last, sealed := d.sealed(name); sealed || last != 0 {
			return fmt.Errorf("%s reports %q, which is held, as sealed %t, with the last token %d", d.label, name, sealed, last)
		}
	}
	var want uint64
	if first, n := h.lease.Tokens(); n > 0 {
		want = first + uint64(n) - 1
	}
	e.must(h.seal())
	for _, d := range []*rawDriver{a, b, e.driver()} {
		for range 2 {
			if last, sealed := d.sealed(name); !sealed || last != want {
				return fmt.Errorf("%s reports %q as sealed %t, with the last token %d, want %d", d.label, name, sealed, last, want)
			}
			_ = d.acquire(name, noWait)
		}
		if err := d.reportsSealed(name); err != nil {
			return err
		}
		if _, sealed := d.sealed(e.name()); sealed {
			return fmt.Errorf("%s reports an unused name as sealed", d.label)
		}
	}
	return nil
}

// reportsSealed returns an error if Inspect or List reports a sealed name as
// free.
func (d *rawDriver) reportsSealed(name string) error {
	if inspection.claimed(d.env.client()) && !d.status(name).Held {
		return fmt.Errorf("Inspect by %s reports that %q, which is sealed, is free", d.label, name)
	}
	if !d.lists() {
		return nil
	}
	if got := d.list(name); !slices.Equal(got, []string{name}) {
		return fmt.Errorf("%s: List of %q, which is sealed, yields %q", d.label, name, got)
	}
	if got := d.list(name + "/"); len(got) > 0 {
		return fmt.Errorf("%s: List of %q yields %q, which does not begin with that", d.label, name+"/", got)
	}
	return nil
}

// ended creates holds of a driver that end in several ways. It calls then with
// each hold and with the next request for the name.
func (e *env) ended(a, b *rawDriver, then func(what string, h, next *request) error) error {
	released := a.hold(e.name())
	released.release()
	if err := then("was released", released, b.hold(released.Name)); err != nil {
		return err
	}
	expired := a.hold(e.name(), fixed, ttl(e.brief()))
	if err := then("ran out", expired, b.start(expired.Name).granted()); err != nil {
		return err
	}
	if !e.canRemove() {
		return nil
	}
	for _, opts := range [][]option{nil, {fixed}} {
		removed := a.hold(e.name(), opts...)
		w := b.start(removed.Name).waits()
		e.remove(removed.Name)
		if err := then("was removed", removed, w.granted()); err != nil {
			return err
		}
	}
	return nil
}

func sealNeedsHold(e *env) error {
	e.claims(sealing)
	return e.ended(e.driver(), e.driver(), func(what string, h, next *request) error {
		if err := isNotHeld("Seal of a hold that "+what, h.seal()); err != nil {
			return err
		}
		if _, sealed := next.driver.sealed(h.Name); sealed {
			return fmt.Errorf("%q is sealed by a hold that %s", h.Name, what)
		}
		return next.keeps("a Seal of the previous hold, which " + what)
	})
}

// unanswered sends a request whose answer is lost. Answers to later requests
// are lost too, until d is healed.
func (d *rawDriver) unanswered(what string, f func(context.Context) error) error {
	e := d.env
	d.loseAnswers()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	var err error
	e.within(what, func() { err = f(ctx) })
	cancel()
	if err == nil || errors.Is(err, driver.ErrNotHeld) || errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%s whose answer was lost returned %q", what, outcome(err))
	}
	return nil
}

func sealLost(e *env) error {
	e.claims(sealing)
	for _, opts := range [][]option{nil, {fixed}} {
		a, b, name := e.driver(), e.driver(), e.name()
		h := a.hold(name, opts...)
		if err := a.unanswered("a Seal", h.sealWith); err != nil {
			return err
		}
		before := e.seesSeal(name)
		a.heal()
		if err := h.tryRelease(e.ctx); before && err == nil {
			return errors.New("a release of a hold that had become a seal returned nil")
		}
		if !before && !e.seesSeal(name) {
			e.awaitFree(name)
			continue
		}
		if err := e.isSealed(name, a, b); err != nil {
			return fmt.Errorf("after a Seal whose answer was lost, and a release: %w", err)
		}
	}
	return nil
}

// seesSeal reports whether a new client, independent of the others, sees that a
// name is sealed.
func (e *env) seesSeal(name string) bool {
	_, sealed := e.outsider().sealed(name)
	return sealed
}

// markHeld marks a name that a request holds. The floor is larger than the
// request's first token by delta.
func (r *request) markHeld(delta uint64) (floor uint64) {
	first, n := r.lease.Tokens()
	if n > 0 {
		floor = first + delta
	}
	if err := r.mark(floor); err != nil {
		r.driver.env.endf("Mark by %s, which holds %q: %w", r.driver.label, r.Name, err)
	}
	return floor
}

func markTells(e *env) error {
	e.claims(marking)
	a, b, name := e.driver(), e.driver(), e.name()
	h := b.hold(name)
	e.must(h.isMarked(false))
	h.release()
	h = a.hold(name)
	if err := h.isMarked(false); err != nil {
		return err
	}
	waiters := e.waiters(name, b)
	h.markHeld(0)
	if err := h.isMarked(true); err != nil {
		return err
	}
	h.release()
	for len(waiters) > 0 {
		i := e.first(waiters)
		h = waiters[i].granted()
		waiters = slices.Delete(waiters, i, i+1)
		if err := h.isMarked(true); err != nil {
			return err
		}
		h.release()
	}
	for _, d := range []*rawDriver{a, b, e.driver()} {
		h = d.hold(name, noWait)
		if err := h.isMarked(true); err != nil {
			return err
		}
		h.release()
	}
	h = b.hold(e.name())
	defer h.release()
	return h.isMarked(false)
}

func markRaises(e *env) error {
	e.claims(marking)
	e.claims(fencing)
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	rises := func(h *request, what string) error {
		first, n := h.lease.Tokens()
		if n < 1 || first <= last {
			return fmt.Errorf("%s: %s has %d tokens from %d, want tokens above %d", what, h.driver.label, n, first, last)
		}
		last = first + uint64(n) - 1
		return nil
	}
	h := a.hold(name, block(3))
	behind := b.start(name, block(2)).waits()
	for _, above := range []uint64{1 << 40, 0, 1 << 20} {
		last = max(last, h.markHeld(above))
		if err := rises(h, "the lease that was marked"); err != nil {
			return err
		}
	}
	if err := h.mark(1); err != nil {
		return fmt.Errorf("a mark with a lower floor: %w", err)
	}
	if err := rises(h, "after a mark with a lower floor"); err != nil {
		return err
	}
	h.release()
	h = behind.granted()
	if err := rises(h, "a lease that was requested before the mark"); err != nil {
		return err
	}
	h.release()
	for _, d := range []*rawDriver{e.driver(), b, a, a} {
		h = d.hold(name, block(4), noWait)
		if err := rises(h, "a later lease"); err != nil {
			return err
		}
		h.release()
	}
	return nil
}

func markNeedsHold(e *env) error {
	e.claims(marking)
	return e.ended(e.driver(), e.driver(), func(what string, h, next *request) error {
		first, _ := next.lease.Tokens()
		floor := first + 1<<50
		if err := isNotHeld("Mark of a hold that "+what, h.mark(floor)); err != nil {
			return err
		}
		if err := next.isMarked(false); err != nil {
			return fmt.Errorf("after a Mark of a hold that %s: %w", what, err)
		}
		next.release()
		next = next.driver.hold(h.Name)
		if first, _ := next.lease.Tokens(); first > floor {
			return fmt.Errorf("a Mark of a hold that %s raised the tokens to %d", what, first)
		}
		if err := next.isMarked(false); err != nil {
			return fmt.Errorf("after a Mark of a hold that %s: %w", what, err)
		}
		return next.keeps("a Mark of the previous hold, which " + what)
	})
}

func markLost(e *env) error {
	e.claims(marking)
	for range 2 {
		a, b, name := e.driver(), e.driver(), e.name()
		h := a.hold(name)
		first, n := h.lease.Tokens()
		floor := uint64(0)
		if n > 0 {
			floor = first + 1<<40
		}
		if err := a.unanswered("a Mark", func(ctx context.Context) error { return h.markWithin(ctx, floor) }); err != nil {
			return err
		}
		a.heal()
		_ = h.tryRelease(e.ctx)
		var was bool
		for _, d := range []*rawDriver{a, b, a} {
			e.awaitFree(name)
			next := d.hold(name)
			marked, err := next.marked()
			if err != nil {
				return err
			}
			if token, m := next.lease.Tokens(); marked && m > 0 && token <= floor {
				return fmt.Errorf("after a Mark whose answer was lost, a lease is marked and has the token %d, want a token above %d", token, floor)
			}
			if was && !marked {
				return errors.New("after a Mark whose answer was lost, one lease was marked and the next was not")
			}
			was = marked
			next.release()
		}
	}
	return nil
}

// loosen makes the driver store an id with a seal.
func (d *rawDriver) loosen(name, id string, floor uint64) error {
	return d.changeSeal(d.env.ctx, fmt.Sprintf("Loosen of %q with the id %q and the floor %d", name, id, floor), func(ctx context.Context, u move.Unsealer) error {
		return u.Loosen(ctx, name, id, floor)
	})
}

// unseal makes the driver remove a seal.
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

// unmark makes the driver remove the mark from the name of one of its leases.
func (r *request) unmark() error { return r.unmarkWith(r.driver.env.ctx) }

func (r *request) unmarkWith(ctx context.Context) error {
	err := ask(r, "Unmark", func(m move.Unmarker, l driver.Lease) error { return m.Unmark(ctx, l) })
	untap(r.lease).add("unmark: %s", outcome(err))
	return err
}

// A driver that seals names need not be able to unseal them, and a driver that
// marks names need not be able to unmark them.
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

// loosenAndUnseal removes the seal of a name, in two steps.
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
	if err := isNotHeld("Loosen of an unused name", b.loosen(name, "x", 0)); err != nil {
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
			return fmt.Errorf("after Loosen, the last token of %q is %d; before, it was %d", name, now, last)
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
		for round := range 2 { // the second time with the same ids
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
					return fmt.Errorf("after Unseal %s reports %q as sealed", d.label, name)
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
			return fmt.Errorf("the Loosen of %q, whose last token is %d, with the floor %d: %w", name, last, floor, err)
		}
		if err := b.loosen(name, "y", 1); err != nil {
			return fmt.Errorf("the Loosen of %q with a lower floor: %w", name, err)
		}
		e.must(a.unseal(name, "y"))
		for _, d := range []*rawDriver{a, e.driver(), b} {
			h := d.hold(name, block(3), noWait)
			first, n := h.lease.Tokens()
			if n < 1 || first <= last {
				return fmt.Errorf("after Unseal %s has %d tokens from %d, want tokens above %d", d.label, n, first, last)
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

// isRefusedWhole returns an error if a refused Loosen has left its id behind.
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
			return errors.New("a Loosen whose answer was lost has freed the name")
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
			return fmt.Errorf("after Unmark %s has %d tokens from %d, want tokens above %d", h.driver.label, n, first, last)
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
		return next.keeps("an Unmark of the previous hold, which " + what)
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
				return fmt.Errorf("after an Unmark whose answer was lost, a lease has the token %d, want a token above %d", token, last)
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
