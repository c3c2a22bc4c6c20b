package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var ownershipChecks = []check{
	{"ownership/release-twice", "A second Release returns ErrNotHeld, and does nothing to the next holder.", releaseTwice},
	{"ownership/stale-release", "Release of a lease that ran out returns ErrNotHeld, and does nothing to the next holder, be it another client or the same.", staleRelease},
	{"ownership/late-release", "Release of a lease that ran out returns ErrNotHeld also if nobody has taken the name since.", releaseAfterEnd},
	{"ownership/stale-renew", "Renew of a lease that ran out returns ErrNotHeld, and does nothing to the next holder, be it another client or the same.", staleRenew},
	{"ownership/dead-after-release", "Renew of a released lease returns ErrNotHeld, and brings nothing back to life.", deadAfterRelease},
	{"ownership/done-context", "A release whose context is over frees the name all the same.", releaseWithDoneContext},
	{"ownership/force-unlock", "ForceUnlock ends whoever's hold, and returns ErrNotHeld if there is none.", forceUnlockEndsHold},
	{"ownership/force-unlock-tells", "The holder learns that its hold was removed.", forceUnlockTells},
	{"ownership/force-unlock-wakes", "Who waits for a name is granted it when the hold is removed.", forceUnlockWakes},
}

// keeps returns an error unless r still holds its name; it then releases it.
func (r *request) keeps(what string) error {
	e := r.driver.env
	if err := e.outsider().refused(r.Name); err != nil {
		return fmt.Errorf("after %s: %w", what, err)
	}
	if err := r.tryRelease(e.ctx); err != nil {
		return fmt.Errorf("after %s the next holder released its lease and got: %w", what, err)
	}
	return e.isFree(r.Name)
}

// isNotHeld returns an error unless err is ErrNotHeld.
func isNotHeld(what string, err error) error {
	if !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("%s returned %q, want ErrNotHeld", what, outcome(err))
	}
	return nil
}

// areRemoved returns an error unless the releases of holds say that these were removed. They may be unknown: a session may end meanwhile.
func (e *env) areRemoved(holds ...*request) error {
	for _, r := range holds {
		err := r.tryRelease(e.ctx)
		if !errors.Is(err, driver.ErrNotHeld) && !errors.Is(err, driver.ErrUnknown) {
			return fmt.Errorf("the release by %s of a hold that was removed returned %q, want ErrNotHeld or ErrUnknown", r.driver.label, outcome(err))
		}
	}
	return nil
}

func releaseTwice(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name)
	h.release()
	if err := isNotHeld("a second release", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	next := b.hold(name)
	if err := isNotHeld("a third release", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	return next.keeps("a release by the one before")
}

// afterExpiry lets leases run out, and calls f with each and with the next hold of the name: another client's, and the same client's.
func (e *env) afterExpiry(f func(old, next *request, heir string) error) error {
	a, b := e.driver(), e.driver()
	e.together("leases that run out", 2, func(i int) error {
		old, next, heir := a.hold(e.name(), fixed, ttl(e.brief())), (*request)(nil), "another client"
		d := b
		if i == 1 {
			d, heir = a, "the same client"
		}
		e.expired(old)
		e.poll("the name of a lease that ran out is granted to "+heir, func() error {
			next = d.acquire(old.Name, noWait, in(e.rivals()))
			return next.err
		})
		return f(old, next.granted(), heir)
	})
	return nil
}

func staleRelease(e *env) error {
	return e.afterExpiry(func(old, next *request, heir string) error {
		if err := isNotHeld("the release of a lease that ran out, when "+heir+" had the name,", old.tryRelease(e.ctx)); err != nil {
			return err
		}
		return next.keeps("the release of a lease that ran out, when " + heir + " had the name,")
	})
}

// staleRenew renews for less than the TTL of the next lease, which would end early if the renewal were taken for one of the next lease.
func staleRenew(e *env) error {
	return e.afterExpiry(func(old, next *request, heir string) error {
		if err := isNotHeld("the renewal of a lease that ran out, when "+heir+" had the name,", old.renew(e.brief())); err != nil {
			return err
		}
		e.sleep(e.brief() + e.driverInfo().LateFor(e.brief()))
		return next.keeps("the renewal of a lease that ran out, when " + heir + " had the name,")
	})
}

// releaseAfterEnd waits until the backend says that the hold has ended, or otherwise for as long as the driver claims that this takes.
func releaseAfterEnd(e *env) error {
	a, b := e.driver(), e.outsider()
	h := a.hold(e.name(), fixed, ttl(e.brief()))
	over := h.lease.Expires().Add(e.driverInfo().LateFor(h.TTL))
	if inspector, ok := b.driver.(driver.Inspector); ok {
		e.expired(h)
		e.poll("Inspect says that a lease which ran out is over", func() error {
			s, err := inspector.Inspect(e.ctx, h.Name)
			if errors.Is(err, errors.ErrUnsupported) {
				e.sleepUntil(over)
				return nil
			}
			if err == nil && s.Held {
				return errors.New("it is held")
			}
			return err
		})
	} else {
		e.sleepUntil(over)
	}
	if err := isNotHeld("the release of a lease that ran out, when nobody had taken the name since,", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	e.awaitFree(h.Name)
	return nil
}

func deadAfterRelease(e *env) error {
	a, name := e.driver(), e.name()
	h := a.hold(name, fixed)
	h.release()
	if err := isNotHeld("the renewal of a released lease", h.renew(e.long())); err != nil {
		return err
	}
	if err := e.isFree(name); err != nil {
		return fmt.Errorf("after the renewal of a released lease: %w", err)
	}
	return nil
}

func releaseWithDoneContext(e *env) error {
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	c, d, name := e.client(), e.driver(), e.name()
	h := d.hold(name)
	if err := h.tryRelease(ctx); errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("the release of a live lease returned %q", err)
	}
	e.awaitFree(name)
	if err := c.tryLock(name).tryUnlock(ctx); err != nil {
		return fmt.Errorf("an Unlock with a context that is over: %w", err)
	}
	return e.isFree(name)
}

func forceUnlockEndsHold(e *env) error {
	e.claims(forceUnlock)
	c, d, name := e.client(), e.driver(), e.name()
	if err := isNotHeld("ForceUnlock of a free name", c.ForceUnlock(e.ctx, name)); err != nil {
		return err
	}
	h := d.hold(name)
	if err := c.ForceUnlock(e.ctx, name); err != nil {
		return err
	}
	if err := e.isFree(name); err != nil {
		return fmt.Errorf("after ForceUnlock: %w", err)
	}
	if e.driverInfo().KeepsAlive {
		_ = h.renew(e.long()) // notices, at the latest; a release may not know whether its session ended before
	}
	return isNotHeld("the release of a hold that was removed", h.tryRelease(e.ctx))
}

func forceUnlockTells(e *env) error {
	e.claims(forceUnlock)
	a, b, name := e.clientWith(&dsync.Options{TTL: e.renewed()}), e.client(), e.name()
	h := a.lock(name)
	e.must(b.ForceUnlock(e.ctx, name))
	return h.lost()
}

// lost waits until h is lost, and returns an error unless it says so.
func (h *holding) lost() error {
	e := h.user.env
	e.within(fmt.Sprintf("%s learns that its hold of %q is gone", h.user.label, h.name), func() {
		select {
		case <-h.Done():
		case <-e.ctx.Done():
		}
	})
	e.events.add(h.user.label, "lease of %q is over: %s", h.name, outcome(h.Err()))
	for what, err := range map[string]error{"Err": h.Err(), "Unlock": h.tryUnlock(e.ctx)} {
		if !errors.Is(err, dsync.ErrLost) {
			return fmt.Errorf("%s of a lease that was lost returned %q, want ErrLost", what, outcome(err))
		}
	}
	return nil
}

func forceUnlockWakes(e *env) error {
	e.claims(forceUnlock)
	a, b, c, name := e.driver(), e.driver(), e.client(), e.name()
	a.hold(name)
	r := b.start(name).waits()
	e.must(c.ForceUnlock(e.ctx, name))
	r.granted().release()
	return nil
}
