package conformance

import (
	"errors"
	"fmt"

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
