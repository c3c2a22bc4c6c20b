package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of leases that are renewed, by package dsync or by the driver itself.
var watchdogChecks = []check{
	{"watchdog/keeps", "A lease is held for many TTLs, whoever tries or waits meanwhile.", heldForLong},
	{"watchdog/removed", "A renewal never revives a hold that was removed, although the name is free again, and the holder is told.", removedStaysRemoved},
	{"watchdog/many", "All leases of a client are renewed, however many, and one that is gone does not stop the others.", allAreRenewed},
	{"watchdog/transient", "A lease survives faults that are shorter than it.", survivesShortFaults},
	{"watchdog/unreachable", "A holder that cannot renew loses its lease before anybody else is granted the name.", lostWhenUnreachable},
	{"watchdog/ends", "Nothing is renewed after Unlock: the name stays free.", renewalEnds},
}

// renewing returns a client whose leases have to be renewed during a check.
func (e *env) renewing() *client { return e.clientWith(&dsync.Options{TTL: e.ttl()}) }

// renewals waits until the lease was renewed so many times, by its deadline. It returns an error if the lease was lost.
func (h *holding) renewals(n int) error {
	for range n {
		if err := h.lastsPast(h.Deadline()); err != nil {
			return err
		}
	}
	return nil
}

// lastsPast waits until the lease was renewed to last longer than until t.
func (h *holding) lastsPast(t time.Time) (lost error) {
	e := h.user.env
	e.poll(fmt.Sprintf("the lease of %s is renewed", h.user.label), func() error {
		if lost = h.Err(); lost == nil && !h.Deadline().After(t) {
			return fmt.Errorf("its deadline is at %s", e.events.at(h.Deadline()))
		}
		return nil
	})
	if lost != nil {
		return fmt.Errorf("%s lost its lease of %q, which it was renewing: %w; the deadline was at %s, and %s",
			h.user.label, h.name, lost, e.events.at(h.Deadline()), h.user.tap.lastFailure())
	}
	return nil
}

func heldForLong(e *env) error {
	a, b, c, name := e.renewing(), e.client(), e.driver(), e.name()
	h := a.lock(name)
	waiting := c.start(name).waits()
	for range 10 { // each a third of the TTL
		if err := h.renewals(1); err != nil {
			return err
		}
		if err := b.refused(name); err != nil {
			return err
		}
		if waiting.isDone() {
			return fmt.Errorf("%s stopped waiting for %q while %s held it: %s", c.label, name, a.label, outcome(waiting.err))
		}
	}
	h.unlock()
	waiting.granted().release()
	return nil
}

func allAreRenewed(e *env) error {
	ttl := e.renewed() // the first leases are renewed while the others are still taken, which takes a busy machine seconds
	a, b := e.clientWith(&dsync.Options{TTL: ttl}), e.driver()
	held := make([]*holding, 100)
	for i := range held {
		held[i] = a.lock(e.name())
	}
	var gone *holding
	if e.backend.Expire != nil {
		gone = a.lock(e.name())
		e.expire(gone.name)
	}
	end := time.Now().Add(2 * ttl)
	for i, h := range held {
		if err := h.lastsPast(end); err != nil {
			return fmt.Errorf("lease %d of %d: %w", i, len(held), err)
		}
	}
	for i := 0; i < len(held); i += 9 {
		if err := b.refused(held[i].name); err != nil {
			return err
		}
	}
	for _, h := range held {
		h.unlock()
	}
	if gone != nil {
		return gone.lost()
	}
	return nil
}

// expire ends the hold of name, if there is one, in a way that leaves the driver to find out, if the harness has such a way.
func (e *env) expire(name string) {
	e.need(e.canRemove(), "Backend.Expire")
	if e.backend.Expire != nil {
		e.events.add("", "the hold of %q is ended behind its holder's back", name)
		e.harness("Backend.Expire", func() { e.backend.Expire(e.tb, name) })
		return
	}
	if err := e.client().ForceUnlock(e.ctx, name); !errors.Is(err, driver.ErrNotHeld) {
		e.must(err)
	}
}

func survivesShortFaults(e *env) error {
	faults := e.outsider().outages()
	if e.outsider().link.LoseAnswers != nil && (!e.driverInfo().KeepsAlive || e.fakeTime) { // with its connection, a session may end at once
		faults = append(faults, e.outsider().loseAnswers)
	}
	e.together("a holder with faults", len(faults), func(i int) error {
		ttl := e.allowed(3 * e.ttl()) // half of this TTL is enough for a renewal on a busy machine
		a, b, name := e.clientWith(&dsync.Options{TTL: ttl}), e.driver(), e.name()
		fault := a.loseAnswers
		if all := a.outages(); i < len(all) {
			fault = all[i]
		}
		h := a.lock(name)
		token := h.Token()
		for range 2 {
			if err := h.renewals(1); err != nil {
				return err
			}
			fault()
			e.sleep(ttl / 2) // a renewal is due in the meantime
			a.heal()
			if err := h.renewals(1); err != nil {
				return fmt.Errorf("after a fault that lasted half the TTL: %w", err)
			}
			if err := b.refused(name); err != nil {
				return err
			}
		}
		if h.Token() != token {
			return fmt.Errorf("the token of a lease changed from %d to %d", token, h.Token())
		}
		h.unlock()
		return nil
	})
	return nil
}

func lostWhenUnreachable(e *env) error {
	return e.inOutages(func(outage func(*connection)) error {
		a, b, name := e.renewing(), e.driver(), e.name()
		h := a.lock(name)
		waiting := b.start(name).waits()
		if err := h.renewals(1); err != nil {
			return err
		}
		outage(a.connection)
		next := waiting.granted()
		if err := h.overBefore(next); err != nil {
			return err
		}
		if err := h.lost(); err != nil {
			return err
		}
		a.heal()
		return next.keeps("the loss of the one before")
	})
}

func renewalEnds(e *env) error {
	a, name := e.renewing(), e.name()
	h, other := a.lock(name), a.lock(e.name())
	if err := h.renewals(1); err != nil {
		return err
	}
	h.unlock()
	for range 4 {
		if err := e.isFree(name); err != nil {
			return fmt.Errorf("after Unlock: %w", err)
		}
		if err := other.renewals(1); err != nil { // by then the other would have been, too
			return err
		}
	}
	other.unlock()
	return nil
}

func removedStaysRemoved(e *env) error {
	a, b, name := e.renewing(), e.driver(), e.name()
	h := a.lock(name)
	if err := h.renewals(1); err != nil {
		return err
	}
	e.expire(name)
	var next *request
	e.poll("the name is granted to another client", func() error {
		next = b.acquire(name, noWait)
		return next.err
	})
	next.granted().release()
	if err := h.lost(); err != nil {
		return err
	}
	if err := e.isFree(name); err != nil {
		return errors.Join(errors.New("a hold that was removed is held again"), err)
	}
	return nil
}
