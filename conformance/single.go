package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of faults that hit one request, or of which no client is told. The request that is hit may be another one than that of the
// check, such as a keep-alive. So the promises hold in both cases.
var singleChecks = []check{
	{"single/lost-acquire", "After one lost answer to an Acquire of a free name, the name is held by the lease that Acquire returned, or it becomes free. Acquire does not find its own hold in the way.", oneLostAcquire},
	{"single/lost-renewal", "After one lost answer to a renewal, the lease and the others of the client go on and can be renewed.", oneLostRenewal},
	{"single/lost-release", "After one lost answer to a Release, the name becomes free, and the other leases of the client go on.", oneLostRelease},
	{"single/overtaken-renewal", "A renewal that arrives after a newer one does not end the hold before the Expires that the newer one has set.", overtakenRenewal},
	{"single/vanished-release", "A release that vanishes on its way, without an error, is repeated: the name becomes free long before the end of the TTL.", vanishedRelease},
}

func oneLostAcquire(e *env) error {
	how := [][]option{{noWait}, nil, {noWait, fixed}, {fixed}}
	e.together("requests of which one answer is lost", len(how), func(i int) error {
		d, name := e.driver(), e.name()
		d.hold(e.name()).release() // the connection is there
		d.loseOne()
		r := d.acquire(name, how[i]...)
		d.heal()
		switch {
		case errors.Is(r.err, driver.ErrLocked):
			return fmt.Errorf("%s was told %q of %q, which no other client holds, after one lost answer", d.label, outcome(r.err), name)
		case r.lease == nil || d.endsWithConnection(r):
			e.awaitFree(name)
			return nil
		}
		if err := e.outsider().refused(name); err != nil {
			return fmt.Errorf("after an Acquire that succeeded in spite of a lost answer: %w", err)
		}
		if err := r.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of a lease whose Acquire succeeded in spite of a lost answer: %w", err)
		}
		e.awaitFree(name)
		return nil
	})
	return nil
}

// endsWithConnection reports whether the hold of r is lost, where a session may end with its connection.
func (d *rawDriver) endsWithConnection(r *request) bool {
	return d.env.driverInfo().KeepsAlive && (len(r.lost()) > 0 || d.env.outsider().refused(r.Name) != nil)
}

func oneLostRenewal(e *env) error {
	if err := e.renewsAfterOneLost(false); err != nil {
		return err
	}
	if _, ok := e.outsider().driver.(driver.BatchRenewer); !ok || e.driverInfo().KeepsAlive {
		return nil
	}
	return e.renewsAfterOneLost(true)
}

// renewsAfterOneLost loses one answer to a renewal of a lease, or of all leases
// of the client.
func (e *env) renewsAfterOneLost(all bool) error {
	d, opt := e.driver(), fixed
	if all {
		opt = ttl(e.long())
	}
	h, other := d.hold(e.name(), opt), d.hold(e.name(), opt)
	renew := func(h *request) error {
		if all {
			return errors.Join(d.renewAll(e.ctx, h, other)...)
		}
		return h.renew(e.long())
	}
	d.loseOne()
	called := time.Now()
	err := renew(h)
	returned := time.Now()
	d.heal()
	if d.endsWithConnection(h) {
		e.awaitFree(h.Name)
		e.awaitFree(other.Name)
		return nil
	}
	switch {
	case errors.Is(err, driver.ErrNotHeld):
		return fmt.Errorf("the renewal of a live lease, of which one answer was lost, returned %q", err)
	case err == nil:
		if err := h.expiresWithin("a lease after a renewal of which one answer was lost", called, returned, e.long()); err != nil {
			return err
		}
	}
	for _, h := range []*request{h, other} {
		e.poll("a lease is renewed after one lost answer", func() error {
			err := renew(h)
			if errors.Is(err, driver.ErrNotHeld) {
				e.endf("the renewal of a live lease after one lost answer returned %q", err)
			}
			return err
		})
	}
	return errors.Join(h.keeps("a renewal of which one answer was lost"), other.keeps("a renewal of which one answer was lost"))
}

func oneLostRelease(e *env) error {
	t := e.long()
	if e.driverInfo().KeepsAlive {
		t = e.allowed(2 * e.ttl())
	}
	d := e.driver()
	h, other := d.hold(e.name(), ttl(t)), d.hold(e.name(), ttl(t))
	d.loseOne()
	err := h.tryRelease(e.ctx)
	d.heal()
	ended := d.endsWithConnection(other)
	if errors.Is(err, driver.ErrNotHeld) && !ended {
		return fmt.Errorf("the release of a live lease, of which one answer was lost, returned %q", err)
	}
	e.awaitFree(h.Name)
	if ended {
		e.awaitFree(other.Name)
		return nil
	}
	if !e.driverInfo().KeepsAlive {
		if err := other.renew(t); err != nil {
			return fmt.Errorf("the renewal of another lease after one lost answer to a release: %w", err)
		}
	} else {
		e.sleep(2 * t) // a session that nobody keeps alive ends
	}
	return other.keeps("one lost answer to the release of another lease")
}

func overtakenRenewal(e *env) error {
	d := e.driver()
	h := d.hold(e.name(), fixed)
	shorter := e.renewed()
	d.holdOne()
	briefly := func(ttl time.Duration) (err error) {
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		e.within("Renew", func() { err = h.lease.Renew(ctx, ttl) })
		return err
	}
	_ = briefly(shorter)
	sent := time.Now()
	for err := errors.New("not asked yet"); err != nil; {
		if err = briefly(e.long()); errors.Is(err, driver.ErrNotHeld) || time.Since(sent) > shorter {
			d.heal() // nothing overtakes a request of this driver
			e.awaitFreeAfter(h)
			return nil
		}
		if err != nil {
			e.sleep(patience / 10)
		}
	}
	next := e.outsider().start(h.Name).waits()
	d.heal()
	e.sleep(shorter + e.driverInfo().LateFor(shorter) + patience)
	if next.isDone() {
		if err := next.granted().after(h); err != nil {
			return fmt.Errorf("a renewal for %v, which was held back, arrived after a renewal for %v had been answered: %w", shorter, e.long(), err)
		}
		next.release()
		return nil
	}
	_ = h.tryRelease(e.ctx)
	next.granted().release()
	return nil
}

// awaitFreeAfter releases a hold that may be over, and waits until its name is free.
func (e *env) awaitFreeAfter(h *request) {
	_ = h.tryRelease(e.ctx)
	e.awaitFree(h.Name)
}

func vanishedRelease(e *env) error {
	d := e.driver()
	h := d.hold(e.name())
	d.drop()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	if err := h.tryRelease(ctx); err == nil || errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("a release that vanished on its way returned %q", outcome(err))
	}
	d.heal()
	e.awaitFree(h.Name)
	return nil
}
