package conformance

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of one lease at a time: what Expires, Renew and RenewAll say.
var leaseChecks = []check{
	{"lease/expires", "Expires is the send time plus the TTL, without a margin, or the end of the session that carries the lease, on the monotonic clock.", expiresAfterTTL},
	{"lease/after-wait", "After a wait of any length a lease is fresh: Expires counts from the request that was granted, and not from the beginning of the wait.", freshAfterWait},
	{"lease/renew", "Renew makes a fixed lease last its TTL from now on, also if that is shorter than before.", renewMovesExpires},
	{"lease/over", "Once Expires has passed it never moves, and Renew fails.", overStaysOver},
	{"lease/late-renewal", "The answer to a renewal that arrives when Expires has passed does not move it.", lateRenewal},
	{"lease/renew-all", "RenewAll renews each lease, and calls done once for each, with the outcome of that lease, before it returns.", renewAll},
}

// expiresWithin returns an error unless r expires between from+ttl and to+ttl, or with its session.
func (r *request) expiresWithin(what string, from, to time.Time, ttl time.Duration) error {
	e, got := r.driver.env, r.lease.Expires()
	if early := from.Add(ttl).Sub(got); early > 0 && !e.driverInfo().KeepsAlive {
		return fmt.Errorf("%s: it expires at %s, %v less than the TTL of %v after the call at %s", what, e.events.at(got), early, ttl, e.events.at(from))
	}
	if late := got.Sub(to.Add(ttl)); late > 0 {
		return fmt.Errorf("%s: it expires at %s, %v more than the TTL of %v after the return at %s", what, e.events.at(got), late, ttl, e.events.at(to))
	}
	return nil
}

func expiresAfterTTL(e *env) error {
	d := e.driver()
	for _, opts := range [][]option{{fixed}, nil} {
		r := d.hold(e.name(), opts...)
		if isMonotonic(r.called) && !isMonotonic(r.lease.Expires()) { // in fake time nothing is
			return fmt.Errorf("the Expires of %s is a time of the wall clock, which can be set, and not one of the monotonic clock", d.label)
		}
		if err := r.expiresWithin("a lease after the grant", r.called, r.at, r.TTL); err != nil {
			return err
		}
		r.release()
	}
	return nil
}

func isMonotonic(t time.Time) bool { return strings.Contains(t.String(), " m=") }

func freshAfterWait(e *env) error {
	waits := [][]option{nil, {fixed}}
	e.together("waits of two TTLs", len(waits), func(i int) error {
		a, b, name := e.rival(), e.driver(), e.name()
		for t := e.brief(); ; {
			h := a.hold(name)
			r := b.wait(name, append(waits[i], ttl(t))...)
			e.sleep(2 * r.TTL)
			if r.isDone() {
				return fmt.Errorf("%s stopped waiting for %q: %s", b.label, name, outcome(r.err))
			}
			released := time.Now()
			h.release()
			if t = r.result().longer(); t > 0 {
				continue
			}
			if got := r.granted().lease.Expires(); !got.After(released) {
				return fmt.Errorf("a lease after a wait expired at %s, before the release at %s", e.events.at(got), e.events.at(released))
			}
			asked := released.Add(-r.TTL / 2) // by somebody who asks now and then, and asked when the lock was released
			return r.expiresWithin("a lease after a wait", asked, r.at, r.TTL)
		}
	})
	return nil
}

func renewMovesExpires(e *env) error {
	r := e.driver().hold(e.name(), fixed, ttl(e.long()/2))
	for _, d := range []time.Duration{e.long(), e.long() / 2, e.long()} {
		called := time.Now()
		if err := r.renew(d); err != nil {
			return fmt.Errorf("renewal of a live lease: %w", err)
		}
		if err := r.expiresWithin(fmt.Sprintf("a lease renewed for %v", d), called, time.Now(), d); err != nil {
			return err
		}
	}
	r.release()
	return nil
}

func overStaysOver(e *env) error {
	r := e.driver().hold(e.name(), fixed, ttl(e.brief()))
	before := e.expired(r)
	if err := r.renew(e.long()); err == nil {
		return errors.New("a renewal after Expires had passed returned nil")
	}
	if after := r.lease.Expires(); !after.Equal(before) {
		return fmt.Errorf("the Expires moved from %s to %s after it had passed", e.events.at(before), e.events.at(after))
	}
	e.awaitFree(r.Name)
	d := e.driver()
	if d.link.Delay == nil || !e.fakeTime { // a server counts from the arrival of the request, which is not late
		return nil
	}
	late := e.allowed(8 * e.ttl())
	d.delay(late / 16) // the backend may count from later than the driver
	r = d.hold(e.name(), fixed, ttl(late))
	d.heal()
	before = e.expired(r)
	_ = r.renew(e.long())
	if after := r.lease.Expires(); !after.Equal(before) {
		return fmt.Errorf("the Expires of a lease whose grant was answered late moved from %s to %s after it had passed", e.events.at(before), e.events.at(after))
	}
	return nil
}

func lateRenewal(e *env) error {
	d := e.driver()
	r := d.hold(e.name(), fixed, ttl(e.brief()))
	d.delay(r.TTL * 3 / 2)
	var err error
	renewal := e.run(func() { err = r.lease.Renew(e.ctx, e.long()) }) // sent in time
	before := e.expired(r)
	e.await("Renew", renewal)
	after := r.lease.Expires()
	d.heal()
	switch {
	case err == nil:
		return fmt.Errorf("a renewal whose answer came after the lease had expired, at %s, returned nil", e.events.at(before))
	case !after.Equal(before):
		return fmt.Errorf("the Expires moved from %s, when it had passed, to %s by the answer to a renewal", e.events.at(before), e.events.at(after))
	}
	_ = r.tryRelease(e.ctx)
	e.awaitFree(r.Name)
	return nil
}

// outcomes collects the outcomes of a RenewAll for each lease.
type outcomes struct {
	mu       sync.Mutex
	errs     map[int][]error
	returned bool
	late     bool
}

func (o *outcomes) done(i int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs[i] = append(o.errs[i], err)
	o.late = o.late || o.returned
}

func renewAll(e *env) error {
	d := e.driver()
	b, ok := d.driver.(driver.BatchRenewer)
	if !ok || e.driverInfo().KeepsAlive {
		e.end(&refusedError{"to renew leases in batches"})
	}
	over := d.hold(e.name(), ttl(e.brief()))
	e.expired(over)
	all := []*request{d.hold(e.name()), over, d.hold(e.name()), d.hold(e.name())}
	leases := make([]driver.Lease, len(all))
	for i, r := range all {
		leases[i] = r.lease
	}
	o := &outcomes{errs: map[int][]error{}}
	called := time.Now()
	e.within("RenewAll", func() { b.RenewAll(e.ctx, leases, o.done) })
	returned := time.Now()
	o.mu.Lock()
	o.returned = true
	o.mu.Unlock()
	for i, r := range all {
		if err := r.wasRenewed(o.of(i), r == over, called, returned); err != nil {
			return fmt.Errorf("lease %d of %d: %w", i, len(all), err)
		}
		if r != over {
			r.release()
		}
	}
	o.mu.Lock()
	late := o.late
	o.mu.Unlock()
	if late {
		return errors.New("the batch called done after it had returned")
	}
	return nil
}

func (o *outcomes) of(i int) []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.errs[i]
}

// wasRenewed returns an error unless the outcome of a renewal in a batch fits the lease.
func (r *request) wasRenewed(errs []error, over bool, called, returned time.Time) error {
	switch {
	case len(errs) != 1:
		return fmt.Errorf("the batch called done %d times before it returned, want once", len(errs))
	case over && !errors.Is(errs[0], driver.ErrNotHeld):
		return fmt.Errorf("it was over, and RenewAll said %q, want ErrNotHeld", outcome(errs[0]))
	case over:
		return nil
	case errs[0] != nil:
		return fmt.Errorf("it was held, and RenewAll said: %w", errs[0])
	}
	return r.expiresWithin("after RenewAll", called, returned, r.TTL)
}
