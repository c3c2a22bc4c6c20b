package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers whose holds can outlive their client: driver.Leaver.
var leavingChecks = []check{
	{"leaving/time", "A hold that was left excludes other clients for the requested time and then ends. Its tokens stay below the tokens of later leases.", leftHoldEndsInTime},
	{"leaving/close", "Close does not end a hold that was left.", leftHoldOutlivesClose},
	{"leaving/lease", "The lease of a hold that was left has ended: it renews nothing and releases nothing.", leftLeaseIsOver},
	{"leaving/bounds", "In every mode, a hold that was left ends when the requested time since the call to Leave has passed, or at most Info.LateFor later. The time may be shorter or longer than the rest of the lease, and need not be a round number. A waiter detects the end.", leftHoldEndsInBounds},
	{"leaving/readers", "Leave of one reader's hold neither changes the end of another reader's hold nor excludes other readers.", leftReaderEndsAlone},
	{"leaving/over", "Leave of a hold that has ended returns ErrNotHeld. It neither revives the hold nor affects a later hold.", leaveComesTooLate},
	{"leaving/force", "ForceUnlock ends a hold that was left and wakes a waiter.", leftHoldEndsByForce},
	{"leaving/seen", "Inspect and List report a hold that was left, and a watch reports its end.", leftHoldIsSeen},
	{"leaving/no-answer", "After an unanswered Leave, the hold ends after the requested time or at the end of its lease. The driver does not end it earlier.", leaveWithoutAnswer},
	{"leaving/outage", "A hold that was left outlasts an outage of its client and the end of the client's session.", leftHoldOutlivesOutage},
}

// leaver returns the driver as a driver.Leaver. If the driver cannot leave
// holds, the check ends.
func (d *rawDriver) leaver() driver.Leaver {
	if !d.leaves() {
		d.env.end(&refusedError{"to leave holds"})
	}
	return d.tap.Driver.(driver.Leaver)
}

// leaves reports whether the driver can leave holds.
func (d *rawDriver) leaves() bool {
	_, ok := d.tap.Driver.(driver.Leaver)
	m, may := d.tap.Driver.(driver.MayLeave)
	return ok && !(may && m.MayLeave() != nil)
}

// tryLeave leaves the hold for ttl. If Leave returns nil, tryLeave returns the
// time before which the hold must not end.
func (r *request) tryLeave(ctx context.Context, ttl time.Duration) (end time.Time, err error) {
	d := r.driver
	leaver, what := d.leaver(), fmt.Sprintf("Leave of %q by %s", r.Name, d.label)
	d.env.events.add(d.label, "leave %q for %v", r.Name, ttl)
	began := time.Now()
	end = began.Add(ttl)
	d.env.within(what, func() { err = leaver.Leave(ctx, untap(r.lease).Lease, ttl) })
	d.env.stalls.answered(began, err)
	d.env.events.add(d.label, "leave: %s", outcome(err))
	return end, err
}

// leave leaves the hold for ttl and returns the time before which the hold must
// not end. If the driver cannot leave holds, the check ends.
func (r *request) leave(ttl time.Duration) (end time.Time) {
	end, err := r.tryLeave(r.driver.env.ctx, ttl)
	if err != nil {
		r.driver.env.endf("Leave of %q by %s: %w", r.Name, r.driver.label, err)
	}
	return end
}

// endsIn leaves the hold for ttl and waits until the name is granted. It
// returns an error if that is before the end.
func (r *request) endsIn(ttl time.Duration) error { return r.endsAt(r.leave(ttl), ttl) }

// endsAt is like endsIn, but for a hold that was already left.
func (r *request) endsAt(end time.Time, left time.Duration) error {
	e := r.driver.env
	what := fmt.Sprintf("a hold (%v) with a lease of %v was left for %v, until %s", r.Mode, r.TTL, left, e.events.at(end))
	next := e.outsider().start(r.Name, in(r.Mode)).grantedAfter(what)
	defer next.release()
	if early := end.Sub(next.at); early > 0 {
		return fmt.Errorf("%s, and %q was granted %v before that", what, r.Name, early)
	}
	first, n := r.lease.Tokens()
	if token, _ := next.lease.Tokens(); n > 0 && token < first+uint64(n) {
		return fmt.Errorf("%s, with %d tokens from %d, and the next lease has the token %d", what, n, first, token)
	}
	return nil
}

func leftHoldEndsInTime(e *env) error {
	var ways []func() error
	for _, m := range e.offered(append(slices.Clone(aloneModes), driver.Permit)) {
		for _, ttls := range []struct{ lease, left time.Duration }{{e.long(), e.ttl()}, {e.ttl(), e.ttl()}} {
			ways = append(ways, func() error {
				return e.driver().hold(e.name(), in(m), fixed, ttl(ttls.lease), block(5)).endsIn(ttls.left)
			})
		}
	}
	e.together("a hold that is left", len(ways), func(i int) error { return ways[i]() })
	return nil
}

func leftHoldOutlivesClose(e *env) error {
	d := e.driver()
	h, other := d.hold(e.name(), fixed, ttl(e.long())), d.hold(e.name(), fixed, ttl(e.long()))
	end := h.leave(e.ttl())
	d.shut()
	if err := e.isFree(other.Name); err != nil {
		return err
	}
	return h.endsAt(end, e.ttl())
}

func leftLeaseIsOver(e *env) error {
	h := e.driver().hold(e.name(), fixed, ttl(e.long()))
	end := h.leave(e.ttl())
	if err := h.renew(e.long()); !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("Renew after Leave: %q, want ErrNotHeld", outcome(err))
	}
	if err := h.tryRelease(e.ctx); !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("Release after Leave: %q, want ErrNotHeld", outcome(err))
	}
	return h.endsAt(end, e.ttl())
}

// The checks of when a hold that was left ends.

// leftEnd is the interval in which a hold that was left must end on the
// backend.
type leftEnd struct {
	name     string
	mode     driver.Mode // of the hold
	from, to time.Time
}

// leftFor leaves the hold for d and returns the interval in which it must end.
func (r *request) leftFor(d time.Duration) leftEnd {
	from := r.leave(d)
	return leftEnd{r.Name, r.Mode, from, time.Now().Add(d + r.driver.env.driverInfo().LateFor(max(d, r.TTL)))}
}

// rivalOf is a request option that sets a mode excluded by a hold in mode m.
func rivalOf(m driver.Mode) option {
	if m == driver.Read {
		return writing
	}
	return in(m)
}

// meets returns an error unless next, which is waiting for the name or about to
// wait, is granted it within the interval.
func (l leftEnd) meets(next *request, what string) error {
	e := next.driver.env
	if at := next.grantedAfter(what).at; at.Before(l.from) {
		return fmt.Errorf("%s: %s was granted %q %v before its end", what, next.driver.label, l.name, l.from.Sub(at))
	}
	next.release()
	return e.late(next.at.Sub(l.to)-e.wakes(), "%s: its end was between %s and %s, and %s was granted %q at %s",
		what, e.events.at(l.from), e.events.at(l.to), next.driver.label, l.name, e.events.at(next.at))
}

// isMet is like meets, but for a request that begins now.
func (l leftEnd) isMet(e *env, what string) error {
	return l.meets(e.outsider().start(l.name, rivalOf(l.mode)), what)
}

// unheard returns how long a waiter may take to detect that a hold has become
// shorter. Info has no field for this time. If the backend does not report the
// change, the waiter polls. Drivers in fake time report it.
func (e *env) unheard() time.Duration {
	if e.fakeTime {
		return 0
	}
	return 6 * time.Second
}

func leftHoldEndsInBounds(e *env) error {
	e.outsider().leaver()
	d := e.crooked()
	var ways []func() error
	for _, m := range e.offered(allModes) {
		for _, lease := range []time.Duration{e.long(), d} { // the second ends earlier than the hold
			for _, waits := range []bool{false, true} {
				ways = append(ways, func() error {
					h := e.driver().hold(e.name(), in(m), fixed, ttl(lease))
					var next *request
					if waits {
						next = e.outsider().start(h.Name, rivalOf(m)).waits()
					}
					e.sleep(d / 3)
					what := fmt.Sprintf("a hold (%v) whose lease of %v was left for %v after %v, with a waiter: %t", m, h.TTL, d, d/3, waits)
					end := h.leftFor(d)
					if waits {
						end.to = end.to.Add(e.unheard())
						return end.meets(next, what)
					}
					return end.isMet(e, what)
				})
			}
		}
	}
	ways = append(ways, func() error {
		h := e.driver().hold(e.name(), fixed)
		return h.leftFor(e.brief()).isMet(e, fmt.Sprintf("a hold that was left for %v", e.brief()))
	})
	e.together("holds left for some time", len(ways), func(i int) error { return e.punctual(ways[i]) })
	return nil
}

func leftReaderEndsAlone(e *env) error {
	e.outsider().leaver()
	e.claims(sharing)
	var ways []func() error
	for _, sameClient := range []bool{false, true} {
		readers := func(others time.Duration) (left, other *request) {
			a, name := e.driver(), e.name()
			b := a
			if !sameClient {
				b = e.driver()
			}
			return a.hold(name, reading, fixed), b.hold(name, reading, fixed, ttl(others))
		}
		ways = append(ways, func() error {
			left, other := readers(e.long())
			end := left.leftFor(e.ttl())
			e.sleepUntil(end.to)
			if err := e.outsider().refused(left.Name); err != nil {
				return fmt.Errorf("after the end of a reader's hold that was left, while %s reads: %w", other.driver.label, err)
			}
			if err := other.tryRelease(e.ctx); err != nil {
				return fmt.Errorf("%s could not release its hold after another reader's left hold had ended: %w", other.driver.label, err)
			}
			return e.isFree(left.Name)
		}, func() error {
			left, other := readers(e.long())
			end := left.leftFor(e.ttl())
			next := e.driver().acquire(left.Name, reading, noWait)
			if next.lease == nil {
				return fmt.Errorf("%s, which requested to read alongside a reader's hold that was left, got: %w", next.driver.label, next.err)
			}
			next.release()
			other.release()
			return end.isMet(e, "a reader's hold that was left, after the release of another reader")
		}, func() error {
			left, other := readers(e.brief())
			end := left.leftFor(e.allowed(2 * e.ttl()))
			e.expired(other)
			return end.isMet(e, "a reader's hold that was left, after the end of another reader's lease")
		})
	}
	e.together("readers, one of which leaves its hold", len(ways), func(i int) error { return e.punctual(ways[i]) })
	return nil
}

func leaveComesTooLate(e *env) error {
	e.outsider().leaver()
	tooLate := func(h *request, what string) error {
		_, err := h.tryLeave(e.ctx, e.long())
		return isNotHeld("Leave of a hold that "+what, err)
	}
	taken := func(h *request, what string) error {
		next := e.outsider().start(h.Name).granted()
		if err := tooLate(h, what); err != nil {
			return err
		}
		return next.keeps("Leave of a hold that " + what)
	}
	untaken := func(h *request, what string) error {
		if err := tooLate(h, what); err != nil {
			return err
		}
		if err := e.isFree(h.Name); err != nil {
			return fmt.Errorf("after Leave of a hold that %s: %w", what, err)
		}
		return nil
	}
	ways := []func() error{func() error {
		h := e.driver().hold(e.name(), fixed, ttl(e.brief()))
		e.sleepUntil(h.over())
		if err := tooLate(h, "had run out"); err != nil {
			return err
		}
		e.awaitFree(h.Name) // the backend may round the end up
		return nil
	}, func() error {
		return taken(e.driver().hold(e.name(), fixed, ttl(e.brief())), "had run out, and whose name has another holder")
	}, func() error {
		h := e.driver().hold(e.name(), fixed)
		h.release()
		return untaken(h, "was released")
	}, func() error {
		h := e.driver().hold(e.name(), fixed)
		end := h.leftFor(e.ttl())
		if err := tooLate(h, "was left before"); err != nil {
			return err
		}
		return end.isMet(e, "a hold that was left twice")
	}}
	if e.outsider().link.Hang != nil {
		ways = append(ways, func() error {
			d := e.driver()
			h := d.hold(e.name(), fixed, ttl(e.brief()))
			d.hang()
			var err error
			leave := e.run(func() { _, err = h.tryLeave(e.ctx, e.long()) })
			e.expired(h)
			e.sleepUntil(h.over())
			d.heal()
			e.await("a Leave that arrives late", leave)
			if err == nil {
				return errors.New("a Leave that arrived after the end of the hold returned nil")
			}
			e.awaitFree(h.Name)
			return nil
		})
	}
	if e.canRemove() {
		for _, f := range []func(*request, string) error{taken, untaken} {
			ways = append(ways, func() error {
				h := e.driver().hold(e.name(), fixed)
				e.remove(h.Name)
				return f(h, "was removed")
			})
		}
	}
	e.together("Leave of holds that have ended", len(ways), func(i int) error { return e.punctual(ways[i]) })
	return nil
}

func leftHoldEndsByForce(e *env) error {
	e.outsider().leaver()
	e.claims(forceUnlock)
	c := e.client()
	for _, m := range e.offered(allModes) {
		h := e.driver().hold(e.name(), in(m), fixed)
		h.leave(e.long())
		next := e.outsider().start(h.Name, rivalOf(m)).waits()
		if err := c.ForceUnlock(e.ctx, h.Name); err != nil {
			return fmt.Errorf("ForceUnlock of a hold (%v) that was left: %w", m, err)
		}
		next.granted().release()
		if r := e.outsider().acquire(h.Name, rivalOf(m), noWait); r.lease == nil {
			return fmt.Errorf("after ForceUnlock of a hold (%v) that was left, and the release of its successor: %w", m, r.err)
		}
	}
	return nil
}

func leftHoldIsSeen(e *env) error { return e.punctual(e.leftHoldIsSeen) }

func (e *env) leftHoldIsSeen() error {
	e.outsider().leaver()
	o := e.outsider()
	if err := e.leftLongerIsSeen(); err != nil {
		return err
	}
	h := e.driver().hold(e.name(), fixed)
	end := h.leftFor(e.ttl())
	if _, ok := o.driver.(driver.Inspector); ok {
		s, err := o.driver.(driver.Inspector).Inspect(e.ctx, h.Name)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
		case err != nil:
			return err
		case !s.Held && time.Now().Before(end.from):
			return fmt.Errorf("Inspect by %s reports that no client holds %q, whose hold was left until %s", o.label, h.Name, e.events.at(end.from))
		case s.TTL > e.ttl()+e.driverInfo().LateFor(h.TTL)+statusUnit:
			return fmt.Errorf("Inspect by %s reports that a hold which was left for %v ends in %v", o.label, e.ttl(), s.TTL)
		}
	}
	if o.lists() && !slices.Contains(o.list(h.Name), h.Name) && time.Now().Before(end.from) {
		return fmt.Errorf("the list by %s omits %q, whose hold was left until %s", o.label, h.Name, e.events.at(end.from))
	}
	if _, ok := o.tap.Driver.(driver.Watcher); ok && e.fakeTime {
		// some servers do not report the end of a TTL
		w := o.watch(h.Name)
		defer w.end()
		n := w.calls.Load()
		e.sleepUntil(end.to)
		// a backend may end a hold when a client queries it, and a grant would
		// be reported
		_ = o.status(h.Name)
		w.told("the end of a hold that was left", n)
		return nil
	}
	return end.isMet(e, "a hold that was left and reported")
}

// leftLongerIsSeen inspects a hold that was left for longer than its lease.
func (e *env) leftLongerIsSeen() error {
	if !inspection.claimed(e.client()) {
		return nil
	}
	h := e.driver().hold(e.name(), fixed, ttl(e.renewed()))
	before := e.outsider().status(h.Name)
	if e.fakeTime {
		e.sleep(h.TTL / 2)
	}
	end := h.leave(e.long())
	after := e.outsider().status(h.Name)
	switch {
	case after.TTL != 0 && after.TTL < time.Until(end)-statusUnit:
		return fmt.Errorf("Inspect reports that a hold that was left for %v ends in %v", e.long(), after.TTL)
	case after.Hold == before.Hold && !after.Since.Equal(before.Since):
		return fmt.Errorf("Inspect reports a grant at %s before Leave and at %s after it", e.events.at(before.Since), e.events.at(after.Since))
	}
	return nil
}

func leaveWithoutAnswer(e *env) error {
	e.outsider().leaver()
	n := len(e.outsider().silences())
	e.together("an unanswered Leave", 2*n, func(i int) error {
		closes := i >= n
		return e.punctual(func() error {
			d, left := e.driver(), e.allowed(2*e.ttl())
			h := d.hold(e.name(), fixed, ttl(left))
			next := e.outsider().start(h.Name).waits()
			// the hold may end with its lease, or with the Leave
			end := leftEnd{name: h.Name, from: h.lease.Expires()}
			d.silences()[i%n]()
			ctx, cancel := context.WithTimeout(e.ctx, patience)
			defer cancel()
			_, err := h.tryLeave(ctx, left)
			if err == nil || errors.Is(err, driver.ErrNotHeld) {
				return fmt.Errorf("an unanswered Leave returned %q", outcome(err))
			}
			d.heal()
			if closes {
				d.shut()
			}
			// a request that was under way may arrive at this point
			end.to = time.Now().Add(left + e.driverInfo().LateFor(left))
			return end.meets(next, fmt.Sprintf("a hold after an unanswered Leave (followed by Close: %t)", closes))
		})
	})
	return nil
}

func leftHoldOutlivesOutage(e *env) error {
	e.outsider().leaver()
	return e.inOutages(func(outage func(*connection)) error {
		e.together("holds that were left before an outage", 3, func(i int) error {
			return e.punctual(func() error {
				d, lease := e.driver(), e.allowed(2*e.ttl())
				h := d.hold(e.name(), fixed, ttl(lease))
				if i > 0 {
					d.hold(e.name(), ttl(lease)) // in the same session, if sessions carry leases
				}
				end := h.leftFor(e.allowed(3 * lease))
				outage(d.connection)
				if i == 2 { // the driver finds out that its session has ended
					e.sleep(2 * lease)
					d.heal()
				}
				if err := end.isMet(e, "a hold that was left before an outage of its client"); err != nil {
					return err
				}
				if causes := h.lost(); len(causes) > 0 {
					return fmt.Errorf("%s was notified that it lost a hold that it had left: %w", d.label, causes[0])
				}
				return nil
			})
		})
		return nil
	})
}
