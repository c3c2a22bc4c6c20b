package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of names with a limited number of permits. They call drivers,
// because package dsync would hide a driver's failures.
var permitChecks = []check{
	{"permits/fill", "Permits are granted up to the limit, and not beyond it, to holds of any sizes.", permitsFillUp},
	{"permits/at-once", "All permits of a request are granted together: a request that waits for many holds none of them, and two requests that each need more than half are granted one after the other.", permitsAtOnce},
	{"permits/limit", "Many clients with requests of different sizes are never granted more than the limit, and all are served.", limitHolds},
	{"permits/all-woken", "When permits are released, every waiter whose request now fits is granted it. If the backend has no order, this holds even while a request for more permits is waiting.", allThatFitAreWoken},
	{"permits/release", "A release returns the acquired permits once. If it is repeated, or comes after the end of the lease, it creates no permits.", releaseMakesNoPermits},
	{"permits/expired", "Permits of a lease become free by themselves when the lease has expired, but not earlier, even while other holds continue.", permitsExpire},
	{"permits/own-renewal", "A renewal keeps no other hold alive: if only one of two holds of a client is renewed, the other ends in time.", permitsOwnRenewal},
	{"permits/canceled", "A canceled wait for permits leaves no permit taken and no longer delays other clients.", canceledPermits},
	{"permits/disagree", "A request that passes a limit other than the stored one, or requests more permits than the limit, fails with ErrLimit and acquires nothing. A request without a limit uses the stored one.", limitsDisagree},
	{"permits/grow", "Raising the limit wakes the waiters that can continue.", limitGrows},
	{"permits/shrink", "A lowered limit revokes no permits, and nothing is granted until enough are released. A waiter that passed the old limit gets ErrLimit.", limitShrinks},
	{"permits/order", "If the backend has an order, requests for few permits do not overtake a waiting request for many.", manyPermitsFirst},
	{"permits/removed", "The removal of one hold of permits is reported only to its holder and frees only its permits.", permitsRemoved},
	{"permits/force-unlock", "ForceUnlock ends all holds of a name with permits and wakes the waiters.", forceUnlockPermits},
	{"permits/inspect", "Inspect returns the number of held permits and of holds, and the limit.", inspectPermits},
	{"permits/shrunk", "When more permits are held than a lowered limit allows, Inspect reports all of them, and ForceUnlock ends and reports all of them.", shrunkPermits},
	{"permits/limit-life", "A limit belongs only to its name. It persists after uses, after ForceUnlock and after the end of the client that set it, and can be set again at any time.", limitStays},
	{"permits/lost-limit", "A SetLimit whose answer was lost does not claim that the limit is unchanged. It can be repeated.", lostLimit},
	{"permits/wide", "Limits and requests of 100,000 permits are stored exactly. A driver with a bound refuses a larger request with an error that names the bound.", wideLimits},
	{"permits/wrong-limit", "A request that waited and got ErrLimit leaves no place in the queue.", wrongLimitLeavesNoPlace},
	{"permits/no-tokens", "Leases of permits have no tokens.", permitsHaveNoTokens},
	{"permits/sealed", "A sealed name is refused to requests for permits.", sealedForPermits},
}

var (
	permitting = capability{
		name:    "permits",
		claimed: func(c *client) bool { return c.tap.Info().Permits.Offered },
		refused: func(c *client) error {
			if _, err := c.try(c.env.name(), dsync.Permits(1, 1)); !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
			if err := c.dsync.SetLimit(c.env.ctx, c.env.name(), 1); !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
			return c.requires(driver.Require{Permits: true})
		},
	}
	permitOrder = capability{
		name:    "a fair order of the waiters for permits",
		claimed: func(c *client) bool { return c.tap.Info().Permits.Order != driver.Unordered },
		refused: func(c *client) error { return c.requires(driver.Require{Permits: true, Fair: true}) },
	}
)

// permits is a request option: n permits, with the given limit.
func permits(n, limit int) option {
	return func(r *driver.Request) { r.Mode, r.Permits, r.Limit = driver.Permit, n, limit }
}

// setLimit sets the limit of the permits of name.
func (d *rawDriver) setLimit(name string, limit int) {
	e := d.env
	l, ok := d.tap.Driver.(driver.Limiter)
	if !ok {
		e.endf("the driver claims permits but is not a driver.Limiter")
	}
	e.events.add(d.label, "set limit of %q to %d", name, limit)
	e.within("SetLimit", func() { e.must(l.SetLimit(e.ctx, name, limit)) })
	e.events.add(d.label, "set limit of %q to %d: ok", name, limit)
}

// wrongLimit returns an error unless a request fails with ErrLimit.
func (r *request) wrongLimit() error {
	if r.result().lease != nil || !errors.Is(r.err, driver.ErrLimit) {
		return fmt.Errorf("%s, which requested %d permits of %d of %q, got %q, want ErrLimit", r.driver.label, r.Permits, r.Limit, r.Name, outcome(r.err))
	}
	return nil
}

// left returns an error unless exactly n permits of name can be acquired.
func (e *env) left(name string, n, limit int) error {
	d := e.outsider()
	if n < limit {
		if err := d.refused(name, permits(n+1, limit)); err != nil {
			return fmt.Errorf("of %d permits, %d should be free: %w", limit, n, err)
		}
	}
	if n == 0 {
		return nil
	}
	r := d.acquire(name, permits(n, limit), noWait)
	if r.lease == nil {
		return fmt.Errorf("of %d permits of %q, %d should be free but cannot be acquired: %w", limit, name, n, r.err)
	}
	r.release()
	return nil
}

func permitsFillUp(e *env) error {
	e.claims(permitting)
	const limit = 6
	a, b, name, free := e.driver(), e.driver(), e.name(), limit
	var held []*request
	for i, n := range []int{2, 1, 3} {
		if err := e.left(name, free, limit); err != nil {
			return err
		}
		held = append(held, []*rawDriver{a, b}[i%2].hold(name, permits(n, limit), noWait))
		free -= n
	}
	for i, r := range held {
		if err := e.left(name, free, limit); err != nil {
			return err
		}
		r.release()
		free += []int{2, 1, 3}[i]
	}
	return e.left(name, free, limit)
}

func permitsAtOnce(e *env) error {
	e.claims(permitting)
	const limit = 4
	a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
	h, other := a.hold(name, permits(2, limit)), a.hold(name, permits(2, limit))
	waiting := []*request{b.start(name, permits(3, limit)).waits(), c.start(name, permits(3, limit)).waits()}
	h.release() // two are free, too few for any of the requests
	if err := e.outsider().refused(name, permits(3, limit)); err != nil {
		return err
	}
	if watcher := e.client(); inspection.claimed(watcher) {
		s, err := watcher.inspect(e.ctx, name)
		if e.must(err); s.Used != 2 {
			return fmt.Errorf("%d permits of %q are held while one hold has 2, and two requests wait for 3 each", s.Used, name)
		}
	}
	other.release()
	for len(waiting) > 0 {
		i := e.first(waiting)
		waiting[i].granted().release()
		waiting = append(waiting[:i:i], waiting[i+1:]...)
	}
	return e.left(name, limit, limit)
}

func limitHolds(e *env) error {
	e.claims(permitting)
	const clients, limit, rounds = 33, 7, 4
	name := e.name()
	var held atomic.Int64
	e.together("clients that acquire permits", clients, func(i int) error {
		d := e.driver()
		for k := range rounds {
			n := 1 + (i+k)%3
			r := d.hold(name, permits(n, limit))
			if all := held.Add(int64(n)); all > limit {
				return fmt.Errorf("%d permits of %q are held, but the limit is %d", all, name, limit)
			}
			e.sleep(rand.N(2 * time.Millisecond))
			held.Add(-int64(n))
			r.release()
		}
		return nil
	})
	return e.left(name, limit, limit)
}

func allThatFitAreWoken(e *env) error {
	e.claims(permitting)
	const limit = 4
	a, name := e.driver(), e.name()
	h := a.hold(name, permits(limit, limit))
	var waiting []*request
	for _, n := range []int{1, 2, 1} {
		waiting = append(waiting, e.driver().start(name, permits(n, limit)).waits())
	}
	h.release()
	for _, r := range waiting {
		r.granted()
	}
	if err := e.left(name, 0, limit); err != nil {
		return err
	}
	for _, r := range waiting {
		r.release()
	}
	if err := e.left(name, limit, limit); err != nil || e.driverInfo().Permits.Order != driver.Unordered {
		return err
	}
	return e.fewAreWoken()
}

// fewAreWoken releases one permit. At that time, one request is waiting for
// many permits, and further requests of the same client and of another client
// are each waiting for one.
func (e *env) fewAreWoken() error {
	const limit = 4
	a, b, name := e.driver(), e.driver(), e.name()
	held := []*request{a.hold(name, permits(1, limit)), a.hold(name, permits(1, limit)), a.hold(name, permits(2, limit))}
	many := b.start(name, permits(limit, limit)).waits()
	few := []*request{b.start(name, permits(1, limit)).waits(), e.driver().start(name, permits(1, limit)).waits()}
	held[0].release()
	held[1].release()
	for _, r := range few {
		r.granted()
	}
	for _, r := range append(few, held[2]) {
		r.release()
	}
	many.granted().release()
	return e.newcomerFits()
}

// newcomerFits makes a request wait for more permits than are free, and starts
// another request for the free permits.
func (e *env) newcomerFits() error {
	const limit = 4
	a, b, name := e.driver(), e.driver(), e.name()
	held := []*request{a.hold(name, permits(1, limit)), a.hold(name, permits(2, limit))}
	many := b.start(name, permits(limit, limit)).waits().queued(1)
	few := e.driver().start(name, permits(1, limit)).granted()
	for _, r := range append(held, few) {
		r.release()
	}
	many.granted().release()
	return e.left(name, limit, limit)
}

func releaseMakesNoPermits(e *env) error {
	e.claims(permitting)
	const limit = 3
	a, b, name := e.driver(), e.driver(), e.name()
	brief := a.hold(name, permits(1, limit), fixed, ttl(e.brief()))
	h, other := a.hold(name, permits(1, limit)), b.hold(name, permits(1, limit))
	h.release()
	if err := isNotHeld("the second release of permits", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	// including the permit of the lease that runs out
	next := b.start(name, permits(2, limit)).granted()
	if err := isNotHeld("the release of expired permits", brief.tryRelease(e.ctx)); err != nil {
		return err
	}
	if err := e.left(name, 0, limit); err != nil {
		return err
	}
	next.release()
	other.release()
	return e.left(name, limit, limit)
}

func permitsExpire(e *env) error {
	e.claims(permitting)
	const limit = 4
	name := e.name()
	long := e.driver().hold(name, permits(1, limit))
	brief := e.driver().hold(name, permits(2, limit), fixed, ttl(e.brief()))
	e.driver().hold(name, permits(1, limit))
	next := e.driver().start(name, permits(2, limit)).granted()
	if err := next.after(brief); err != nil {
		return err
	}
	if err := e.left(name, 0, limit); err != nil {
		return err
	}
	long.release()
	if err := e.left(name, 1, limit); err != nil {
		return err
	}
	next.release()
	return e.left(name, 3, limit)
}

func permitsOwnRenewal(e *env) error {
	e.claims(permitting)
	const limit = 3
	d, name := e.driver(), e.name()
	renewed := d.hold(name, permits(1, limit), fixed)
	other := d.hold(name, permits(2, limit), fixed, ttl(e.brief()))
	if err := renewed.renewUntil(other.over()); err != nil {
		return err
	}
	e.poll(fmt.Sprintf("expired permits of %q are free while other permits are renewed", name), func() error { return e.left(name, 2, limit) })
	if err := isNotHeld("the release of expired permits while others were renewed", other.tryRelease(e.ctx)); err != nil {
		return err
	}
	renewed.release()
	return e.left(name, limit, limit)
}

func canceledPermits(e *env) error {
	e.claims(permitting)
	const limit = 4
	a, b, name := e.driver(), e.driver(), e.name()
	for i := range 30 {
		h := a.hold(name, permits(2, limit))
		r := b.start(name, permits(3, limit)).waits()
		canceled := e.run(func() {
			e.sleep(rand.N(time.Millisecond))
			r.cancel()
		})
		if i%2 == 0 {
			e.sleep(rand.N(time.Millisecond))
			h.release()
		}
		if r.result(); r.lease != nil {
			r.release()
		} else if err := r.endedBy(context.Canceled); err != nil {
			return err
		}
		e.await("the cancellation", canceled)
		used := 0
		if i%2 != 0 {
			used = 2
		}
		e.poll(fmt.Sprintf("%d of %d permits of %q are free after a wait was canceled", limit-used, limit, name), func() error { return e.left(name, limit-used, limit) })
		if used > 0 {
			h.release()
		}
	}
	return nil
}

func limitsDisagree(e *env) error {
	e.claims(permitting)
	const limit = 3
	a, b, name := e.driver(), e.driver(), e.name()
	if err := b.start(name, permits(1, 0)).wrongLimit(); err != nil {
		return fmt.Errorf("of a name without a limit: %w", err)
	}
	h := a.hold(name, permits(1, limit))
	for range 2 { // while permits are free, and while none is free
		for _, wrong := range []option{permits(1, limit-1), permits(1, limit+1), permits(limit+1, 0)} {
			for _, d := range []*rawDriver{a, b} {
				for _, opts := range [][]option{{wrong, noWait}, {wrong}} {
					if err := d.start(name, opts...).wrongLimit(); err != nil {
						return err
					}
				}
			}
		}
		r := b.acquire(name, permits(2, 0), noWait)
		if r.lease == nil {
			continue // the second time
		}
		if err := e.left(name, 0, limit); err != nil {
			return err
		}
		defer r.release()
	}
	if err := b.refused(name, permits(1, 0)); err != nil {
		return err
	}
	h.release()
	return e.left(name, 1, limit)
}

func permitsRemoved(e *env) error {
	e.claims(permitting)
	e.need(e.backend.ExpireHold != nil, "Backend.ExpireHold")
	const limit = 4
	a, b, name, detect := e.driver(), e.driver(), e.name(), e.driverInfo().Detect
	removed := a.hold(name, permits(2, limit), fixed)
	others := []*request{a.hold(name, permits(1, limit), fixed), b.hold(name, permits(1, limit), fixed)}
	e.events.add("", "one hold of %q is ended without notice to its holder", name)
	e.harness("Backend.ExpireHold", func() { e.backend.ExpireHold(e.tb, name, removed.Hold) })
	if err := isNotHeld("the renewal of permits that were removed", removed.renew(e.long())); err != nil {
		return err
	}
	e.sleep(detect)
	for _, r := range others {
		if causes := r.lost(); len(causes) > 0 {
			return fmt.Errorf("%s was notified that it lost permits of %q when another hold was removed: %w", r.driver.label, name, causes[0])
		}
	}
	if err := e.left(name, 2, limit); err != nil {
		return err
	}
	for _, r := range others {
		if err := r.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of permits after another hold was removed: %w", err)
		}
	}
	return e.left(name, limit, limit)
}

func forceUnlockPermits(e *env) error {
	e.claims(permitting)
	e.claims(forceUnlock)
	const limit = 3
	a, b, c, admin, name := e.driver(), e.driver(), e.driver(), e.client(), e.name()
	held := []*request{a.hold(name, permits(1, limit)), b.hold(name, permits(1, limit)), a.hold(name, permits(1, limit))}
	w := c.start(name, permits(limit, limit)).waits()
	e.must(admin.ForceUnlock(e.ctx, name))
	w.granted().release()
	if err := e.areRemoved(held...); err != nil {
		return err
	}
	if err := admin.ForceUnlock(e.ctx, name); !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("ForceUnlock of a name without held permits returned %q, want ErrNotHeld", outcome(err))
	}
	return e.left(name, limit, limit)
}

func inspectPermits(e *env) error {
	e.claims(permitting)
	e.claims(inspection)
	d, c, name := e.driver(), e.client(), e.name()
	d.setLimit(name, 5)
	var held []*request
	for i, n := range []int{0, 2, 1} {
		used := 0
		if n > 0 {
			held = append(held, d.hold(name, permits(n, 0)))
		}
		for _, r := range held {
			used += r.Permits
		}
		s, err := c.inspect(e.ctx, name)
		e.must(err)
		if s.Held != (used > 0) || s.Used != used || s.Limit != 5 || s.Holders != i || used > 0 && s.Mode != driver.Permit {
			return fmt.Errorf("Inspect: held %t, in mode %v, %d of %d permits, by %d holds; want %d of 5 by %d", s.Held, s.Mode, s.Used, s.Limit, s.Holders, used, i)
		}
	}
	for _, r := range held {
		r.release()
	}
	return e.left(name, 5, 5)
}

func permitsHaveNoTokens(e *env) error {
	e.claims(permitting)
	d, name := e.driver(), e.name()
	if f := e.driverInfo().Permits.Fencing; f != driver.None {
		return fmt.Errorf("Info.Permits.Fencing is %v, want none", f)
	}
	h := d.hold(name, permits(1, 1))
	w := e.driver().start(name, permits(1, 1)).waits()
	h.release()
	for _, r := range []*request{h, w.granted()} {
		if first, n := r.lease.Tokens(); first != 0 || n != 0 {
			return fmt.Errorf("%s was granted a permit with %d tokens, beginning with %d, want none", r.driver.label, n, first)
		}
	}
	w.release()
	return nil
}

func sealedForPermits(e *env) error {
	e.claims(permitting)
	e.claims(sealing)
	a, name := e.driver(), e.name()
	if err := a.hold(name).seal(); err != nil {
		return fmt.Errorf("the seal of a hold: %w", err)
	}
	for _, d := range []*rawDriver{a, e.driver()} {
		for _, opts := range [][]option{{noWait}, nil} {
			if err := d.start(name, append(opts, permits(1, 1))...).sealed(); err != nil {
				return err
			}
		}
	}
	return nil
}

// The checks of changing limits, and of the order in which permits are granted.

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
			return fmt.Errorf("a request that waited when the limit was lowered: %w", err)
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
			return fmt.Errorf("%s, which requested one permit of %q while another client waited for all, got %q, want ErrLocked", newcomer.label, name, outcome(r.err))
		}
	}
	few := d.start(name, permits(1, limit)).waits().queued(2)
	h.release()
	many.granted()
	if few.isDone() {
		return fmt.Errorf("%s, which arrived later for one permit of %q, was not kept waiting: %s", d.label, name, outcome(few.err))
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
			e.until("a holder is notified that ForceUnlock ended its hold", func() bool { return len(r.lost()) > 0 })
		}
	}
	if err := e.areRemoved(held...); err != nil {
		return err
	}
	if err := b.refused(name, permits(1, 1)); err != nil {
		return fmt.Errorf("the only permit is held: %w", err)
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
		for range 2 { // each time acquires and releases all permits
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

// bounded reports whether a request was refused because it needs more permits
// than the driver can grant together. The error must name the bound.
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
			return fmt.Errorf("%s requested %d permits while %d of %d were held, and got %q, want ErrLocked", b.label, r.Permits, size.first, limit, outcome(r.err))
		}
		b.acquire(name, permits(size.second/8, limit), noWait).granted().release()
		second := b.acquire(name, permits(size.second, limit), noWait).granted()
		if err := a.refused(name, permits(1, limit)); err != nil {
			return fmt.Errorf("%d and %d permits of %d are held: %w", size.first, size.second, limit, err)
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
	const soon = 5 * time.Second // long before a place in a queue would expire
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
		if err := e.late(right.at.Sub(released)-soon-e.driverInfo().Poll, "%s waited for a permit behind %s, which got ErrLimit; the permits were released at %s, and %s was granted one at %s",
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
	e.events.add(a.label, "set limit of %q to 3, unanswered: %s", name, outcome(err))
	a.heal()
	set := e.outsider().acquire(name, permits(1, 3), noWait)
	if set.lease != nil {
		set.release()
		if err == nil || errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			return fmt.Errorf("an unanswered SetLimit that was carried out returned %q, want ErrUnknown or the error of its context", outcome(err))
		}
	}
	a.setLimit(name, 3)
	return e.left(name, 3, 3)
}
