package conformance

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of how the hold of one reader ends while others read.

// over returns when the hold of r, which nobody renews, is over at the backend.
func (r *request) over() time.Time {
	return r.lease.Expires().Add(r.driver.env.driverInfo().LateFor(r.TTL))
}

// renewUntil renews a lease again and again until a moment has passed.
func (r *request) renewUntil(over time.Time) error {
	e := r.driver.env
	for {
		last := time.Now().After(over)
		if err := r.renew(e.long()); err != nil {
			return fmt.Errorf("the renewal of a reader's live lease: %w", err)
		}
		if b, ok := r.driver.driver.(driver.BatchRenewer); ok && !e.driverInfo().KeepsAlive {
			e.within("RenewAll", func() { b.RenewAll(e.ctx, []driver.Lease{r.lease}, func(_ int, err error) { e.failed(err) }) })
		}
		if last {
			return nil
		}
		e.sleep(e.brief() / 5)
	}
}

func deadReader(e *env) error {
	e.claims(sharing)
	return e.inOutages(func(outage func(*connection)) error {
		a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
		live := b.hold(name, reading, fixed)
		dead := a.hold(name, reading, ttl(e.brief()))
		outage(a.connection)
		w := c.start(name, writing).waits()
		if err := live.renewUntil(dead.over()); err != nil {
			return err
		}
		live.release()
		if err := w.granted().after(dead); err != nil {
			return err
		}
		w.release()
		return nil
	})
}

func ownRenewal(e *env) error {
	e.claims(sharing)
	d, name := e.driver(), e.name()
	renewed := d.hold(name, reading, fixed)
	other := d.hold(name, reading, fixed, ttl(e.brief()))
	if err := renewed.renewUntil(other.over()); err != nil {
		return err
	}
	renewed.release()
	e.awaitFree(name)
	return isNotHeld("the release of a reader's lease that ran out while another one was renewed", other.tryRelease(e.ctx))
}

func shorterReader(e *env) error {
	e.claims(sharing)
	how := []struct {
		what  string
		other func(d *rawDriver, name string) *request // nil if the hold is released
	}{
		{"the grant of a shorter lease", func(d *rawDriver, name string) *request { return d.hold(name, reading, fixed, ttl(e.brief())) }},
		{"the renewal of another lease for less", func(d *rawDriver, name string) *request {
			r := d.hold(name, reading, fixed)
			e.must(r.renew(e.brief()))
			return r
		}},
		{"the release of another lease", func(d *rawDriver, name string) *request {
			d.hold(name, reading, fixed).release()
			return nil
		}},
	}
	e.together("readers of whom one goes on", len(how), func(i int) error {
		a, b, name := e.driver(), e.driver(), e.name()
		h := a.hold(name, reading, fixed)
		if other := how[i].other(b, name); other != nil {
			e.sleepUntil(other.lease.Expires().Add(e.driverInfo().LateFor(e.brief())))
		}
		if err := e.outsider().refused(name); err != nil {
			return fmt.Errorf("after %s: %w", how[i].what, err)
		}
		if err := h.renew(e.long()); err != nil {
			return fmt.Errorf("the renewal of a lease after %s: %w", how[i].what, err)
		}
		if err := h.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of a lease after %s: %w", how[i].what, err)
		}
		e.awaitFree(name)
		return nil
	})
	return nil
}

func readerRemoved(e *env) error {
	e.claims(sharing)
	e.need(e.backend.ExpireHold != nil, "Backend.ExpireHold")
	a, b, name, detect := e.driver(), e.driver(), e.name(), e.driverInfo().Detect
	removed, others := a.hold(name, reading, fixed), []*request{a.hold(name, reading, fixed), b.hold(name, reading, fixed)}
	e.events.add("", "one hold of %q is ended behind its holder's back", name)
	e.harness("Backend.ExpireHold", func() { e.backend.ExpireHold(e.tb, name, removed.Hold) })
	if err := isNotHeld("the renewal of a reader's hold that was removed", removed.renew(e.long())); err != nil {
		return err
	}
	e.sleep(detect)
	for _, r := range others {
		if causes := r.lost(); len(causes) > 0 {
			return fmt.Errorf("%s was told that it lost %q when the hold of another reader was removed: %w", r.driver.label, name, causes[0])
		}
		if err := e.outsider().refused(name); err != nil {
			return fmt.Errorf("after the removal of another reader's hold: %w", err)
		}
		if err := r.renew(e.long()); err != nil {
			return fmt.Errorf("the renewal of a reader's lease after the removal of another reader's hold: %w", err)
		}
		if err := r.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of a reader's lease after the removal of another reader's hold: %w", err)
		}
	}
	return e.isFree(name)
}

func forceUnlockReaders(e *env) error {
	e.claims(sharing)
	e.claims(forceUnlock)
	a, b, c, d, name := e.driver(), e.driver(), e.driver(), e.client(), e.name()
	readers := []*request{a.hold(name, reading), b.hold(name, reading), a.hold(name, reading)}
	w := c.start(name, writing).waits()
	e.must(d.ForceUnlock(e.ctx, name))
	w.granted()
	e.must(d.ForceUnlock(e.ctx, name))
	if err := e.areRemoved(append(readers, w)...); err != nil {
		return err
	}
	if err := d.ForceUnlock(e.ctx, name); !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("ForceUnlock of a free name returned %q, want ErrNotHeld", outcome(err))
	}
	return e.isFree(name)
}

func inspectReaders(e *env) error {
	e.claims(sharing)
	e.claims(inspection)
	readers, name := []*rawDriver{e.driver(), e.driver(), e.driver()}, e.name()
	var last uint64
	for i, d := range readers { // a backend may know of one of several holds of a client
		h := d.hold(name, reading)
		if first, n := h.lease.Tokens(); n > 0 {
			last = first + uint64(n) - 1
		}
		for _, asks := range append(readers, e.outsider()) {
			s := asks.status(name)
			if !s.Held || s.Mode != driver.Read || s.Holders != i+1 || s.Waiters > 0 {
				return fmt.Errorf("Inspect by %s: held %t, %v, %d holds and %d waiters, want %d that read and none that waits",
					asks.label, s.Held, s.Mode, s.Holders, s.Waiters, i+1)
			}
			if s.Token != 0 && s.Token != last {
				return fmt.Errorf("Inspect by %s: the token is %d, want %d, which is that of the last grant, or 0", asks.label, s.Token, last)
			}
		}
	}
	return nil
}

func listReaders(e *env) error {
	e.claims(sharing)
	a, b, name := e.driver(), e.driver(), e.name()
	listed := func(want bool, when string) error {
		for _, d := range []*rawDriver{a, e.outsider()} {
			if got := slices.Contains(d.list(name), name); got != want {
				return fmt.Errorf("%s: List by %s yields %q: %t, want %t", when, d.label, name, got, want)
			}
		}
		return nil
	}
	first := a.hold(name, reading, fixed, ttl(e.brief()))
	last, released := b.hold(name, reading, fixed), a.hold(name, reading, fixed)
	released.release()
	if err := listed(true, "after the release of one of three readers"); err != nil {
		return err
	}
	e.expired(first)
	if err := listed(true, "after the end of one of two readers"); err != nil {
		return err
	}
	last.release()
	e.poll("a name that nobody reads any more is not listed", func() error { return listed(false, "after the last release") })
	return nil
}
