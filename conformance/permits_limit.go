package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of limits that change, and of the order in which permits are granted.

func limitGrows(e *env) error {
	e.claims(permitting)
	a, name := e.driver(), e.name()
	a.setLimit(name, 2)
	held := []*request{a.hold(name, permits(2, 0))}
	small := e.driver().start(name, permits(1, 0)).waits()
	a.setLimit(name, 3)
	held = append(held, small.granted())
	many := []*request{e.driver().start(name, permits(2, 0)).waits(), e.driver().start(name, permits(2, 0)).waits()}
	a.setLimit(name, 7)
	for _, r := range append(held, many[0].granted(), many[1].granted()) {
		r.release()
	}
	return e.left(name, 7, 7)
}

func limitShrinks(e *env) error {
	e.claims(permitting)
	a, b, name := e.driver(), e.driver(), e.name()
	a.setLimit(name, 4)
	var held []*request
	for range 4 {
		held = append(held, a.hold(name, permits(1, 0), fixed))
	}
	old, many, other := b.start(name, permits(1, 4)).waits(), b.start(name, permits(3, 0)).waits(), b.start(name, permits(1, 0)).waits()
	b.setLimit(name, 2)
	for _, r := range []*request{old, many} {
		if err := r.wrongLimit(); err != nil {
			return fmt.Errorf("one that waited when the limit was lowered: %w", err)
		}
	}
	for _, r := range held {
		if err := r.renew(e.long()); err != nil {
			return fmt.Errorf("the renewal of a permit after the limit was lowered: %w", err)
		}
	}
	for i, r := range held[:2] {
		if err := b.refused(name, permits(1, 2)); err != nil {
			return fmt.Errorf("%d permits are held, and the limit was lowered to 2: %w", 4-i, err)
		}
		r.release()
	}
	if other.isDone() {
		return fmt.Errorf("%s was granted one of 2 permits while 2 others were held: %s", b.label, outcome(other.err))
	}
	if err := b.refused(name, permits(1, 2)); err != nil {
		return err
	}
	held[2].release()
	other.granted().release()
	held[3].release()
	return e.left(name, 2, 2)
}

func manyPermitsFirst(e *env) error {
	e.claims(permitting)
	e.claims(permitOrder)
	const limit = 4
	a, b, c, d, name := e.driver(), e.driver(), e.driver(), e.driver(), e.name()
	h := a.hold(name, permits(2, limit))
	many := b.start(name, permits(limit, limit)).waits().queued(1)
	for _, newcomer := range []*rawDriver{a, c} {
		if r := newcomer.acquire(name, permits(1, limit), noWait); r.lease != nil || !errors.Is(r.err, driver.ErrLocked) {
			return fmt.Errorf("%s, which came for one permit of %q when another waited for all, was told %q, want ErrLocked", newcomer.label, name, outcome(r.err))
		}
	}
	few := d.start(name, permits(1, limit)).waits().queued(2)
	h.release()
	many.granted()
	if few.isDone() {
		return fmt.Errorf("%s, which came later for one permit of %q, was not kept waiting: %s", d.label, name, outcome(few.err))
	}
	many.release()
	few.granted().release()
	return e.left(name, limit, limit)
}

func shrunkPermits(e *env) error {
	e.claims(permitting)
	a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
	a.setLimit(name, 5)
	held := []*request{a.hold(name, permits(1, 0)), b.hold(name, permits(2, 0)), a.hold(name, permits(1, 5))}
	reports := func(waiters int) error {
		if !inspection.claimed(e.client()) {
			return nil
		}
		for _, d := range []*rawDriver{a, e.outsider()} {
			s := d.status(name)
			if !s.Held || s.Used != 4 || s.Holders != 3 || s.Waiters > waiters {
				return fmt.Errorf("Inspect by %s: %d permits, by %d holds, and %d waiters; want 4 by 3, and %d", d.label, s.Used, s.Holders, s.Waiters, waiters)
			}
			if s.Limit != 0 && s.Limit != 1 {
				return fmt.Errorf("Inspect by %s: the limit is %d, want 1", d.label, s.Limit)
			}
		}
		return nil
	}
	b.setLimit(name, 1)
	if err := reports(0); err != nil {
		return err
	}
	w := c.start(name, permits(1, 0)).waits()
	if err := reports(1); err != nil {
		return err
	}
	e.claims(forceUnlock)
	e.must(e.client().ForceUnlock(e.ctx, name))
	w.granted()
	if e.driverInfo().Detect > 0 {
		for _, r := range held {
			e.until("a holder is told that ForceUnlock ended its hold", func() bool { return len(r.lost()) > 0 })
		}
	}
	if err := e.areRemoved(held...); err != nil {
		return err
	}
	if err := b.refused(name, permits(1, 1)); err != nil {
		return fmt.Errorf("the one permit is held: %w", err)
	}
	w.release()
	return e.left(name, 1, 1)
}

func limitStays(e *env) error {
	e.claims(permitting)
	a, b, x, y, used := e.driver(), e.driver(), e.name(), e.name(), e.name()
	a.setLimit(x, 3)
	b.setLimit(y, 5)
	b.hold(used, permits(1, 2)).release()
	a.setLimit(used, 4)
	has := func(when string) error {
		for range 2 { // each time takes all permits and gives them back
			for name, limit := range map[string]int{x: 3, y: 5, used: 4} {
				if err := e.outsider().start(name, permits(1, limit+1), noWait).wrongLimit(); err != nil {
					return fmt.Errorf("%s: %w", when, err)
				}
				if err := e.left(name, limit, limit); err != nil {
					return fmt.Errorf("%s: %w", when, err)
				}
			}
		}
		return nil
	}
	if err := has("after three limits were set"); err != nil {
		return err
	}
	for range 2 {
		for _, d := range []*rawDriver{a, b} {
			d.setLimit(x, 3)
		}
	}
	h := a.hold(y, permits(2, 0))
	b.setLimit(y, 7)
	b.setLimit(y, 5)
	if err := e.left(y, 3, 5); err != nil {
		return fmt.Errorf("after the limit was raised and lowered again while 2 permits were held: %w", err)
	}
	h.release()
	if err := has("after each limit was set again"); err != nil {
		return err
	}
	if admin := e.client(); forceUnlock.claimed(admin) {
		for _, name := range []string{x, y, used} {
			a.hold(name, permits(2, 0))
			e.must(admin.ForceUnlock(e.ctx, name))
		}
		if err := has("after ForceUnlock"); err != nil {
			return err
		}
	}
	a.shut()
	return has("after the end of the client that set the limits")
}

// bounded reports whether a request was refused since it wants more than the
// driver is able to grant at once. The error must name the bound.
func (r *request) bounded() bool {
	if r.result().lease != nil || !errors.Is(r.err, errors.ErrUnsupported) {
		return false
	}
	own := fmt.Sprintf("%q %d %d", r.Name, r.Permits, r.Limit)
	said := r.err.Error()
	for _, field := range strings.Fields(own) {
		said = strings.ReplaceAll(said, field, "")
	}
	if !strings.ContainsAny(said, "0123456789") {
		r.driver.env.endf("a request for %d of %d permits is refused with an error that does not name the bound: %w", r.Permits, r.Limit, r.err)
	}
	return true
}

func wideLimits(e *env) error {
	e.claims(permitting)
	a, b := e.driver(), e.driver()
	for _, size := range []struct{ first, second int }{{60_000, 40_000}, {20_000, 20_000}, {300, 400}, {100, 100}} {
		name, limit := e.name(), size.first+size.second
		first := a.acquire(name, permits(size.first, limit), noWait)
		if first.bounded() {
			continue
		}
		first.granted()
		if r := b.acquire(name, permits(size.second+1, limit), noWait); !r.bounded() && (r.lease != nil || !errors.Is(r.err, driver.ErrLocked)) {
			return fmt.Errorf("%s asked for %d permits while %d of %d were held, and was told %q, want ErrLocked", b.label, r.Permits, size.first, limit, outcome(r.err))
		}
		b.acquire(name, permits(size.second/8, limit), noWait).granted().release()
		second := b.acquire(name, permits(size.second, limit), noWait).granted()
		if err := a.refused(name, permits(1, limit)); err != nil {
			return fmt.Errorf("%d and %d permits are held of %d: %w", size.first, size.second, limit, err)
		}
		first.release()
		second.release()
		b.acquire(name, permits(size.first, limit), noWait).granted().release()
	}
	name := e.name()
	a.setLimit(name, 100_000)
	h := a.hold(name, permits(3, 100_000))
	if err := b.start(name, permits(1, 100_000-1<<16), noWait).wrongLimit(); err != nil {
		return fmt.Errorf("the limit is 100,000: %w", err)
	}
	h.release()
	return nil
}

func wrongLimitLeavesNoPlace(e *env) error {
	e.claims(permitting)
	const soon = 5 * time.Second // long before a place in a queue would end by itself
	return e.punctual(func() error {
		a, name := e.driver(), e.name()
		a.setLimit(name, 4)
		h := a.hold(name, permits(4, 0))
		wrong := e.driver().start(name, permits(1, 4)).waits().queued(1)
		right := e.driver().start(name, permits(1, 0)).waits().queued(2)
		a.setLimit(name, 2)
		if err := wrong.wrongLimit(); err != nil {
			return fmt.Errorf("a request that waited when the limit was lowered: %w", err)
		}
		h.release()
		released := time.Now()
		right.granted()
		if err := e.late(right.at.Sub(released)-soon-e.driverInfo().Poll, "%s waited for a permit behind %s, which got ErrLimit; the permits were given back at %s, and %s was granted one at %s",
			right.driver.label, wrong.driver.label, e.events.at(released), right.driver.label, e.events.at(right.at)); err != nil {
			return err
		}
		right.release()
		e.poll(fmt.Sprintf("2 permits of %q are free", name), func() error {
			err := e.left(name, 2, 2)
			return err
		})
		return e.late(time.Since(right.at)-soon-e.driverInfo().Poll, "the permits of %q were free after all requests had ended", name)
	})
}

func lostLimit(e *env) error {
	e.claims(permitting)
	a, name := e.driver(), e.name()
	e.need(a.link.LoseAnswers != nil, "Link.LoseAnswers")
	a.setLimit(name, 2)
	a.loseAnswers()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	var err error
	e.within("SetLimit", func() { err = a.tap.Driver.(driver.Limiter).SetLimit(ctx, name, 3) })
	e.events.add(a.label, "set limit of %q to 3, without an answer: %s", name, outcome(err))
	a.heal()
	set := e.outsider().acquire(name, permits(1, 3), noWait)
	if set.lease != nil {
		set.release()
		if err == nil || errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			return fmt.Errorf("SetLimit, which was carried out and got no answer, returned %q, want ErrUnknown or the error of its context", outcome(err))
		}
	}
	a.setLimit(name, 3)
	return e.left(name, 3, 3)
}
