package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var faultChecks = []check{
	{"faults/cut", "A backend that is out of reach never looks like a lock that is held, and it is found again.", cutOff},
	{"faults/hung-acquire", "Acquire returns soon after the end of its context when the backend does not answer, and leaves nothing behind.", hungAcquire},
	{"faults/hung-wait", "A wait returns soon after the end of its context when the backend does not answer, and leaves nothing behind.", hungWait},
	{"faults/hung-lease", "Renew, RenewAll and Release return soon after the end of their context when the backend does not answer.", hungLease},
	{"faults/late-answer", "Expires counts from before the request was sent, never from the arrival of the answer.", lateAnswer},
	{"faults/lost-acquire", "If the answer to an Acquire is lost, the hold that it may have made is removed. Unless none is left at once, the error matches ErrUnknown.", lostAcquire},
	{"faults/lost-release", "A release whose answer was lost frees the name, and repeating it does nothing to the next holder.", lostRelease},
	{"faults/one-release", "One release that gets no answer ends no other hold of its client.", oneReleaseEndsOneHold},
	{"faults/lost-grant", "A lease that comes after a lost answer counts from the request that was carried out: nobody else gets the name before its Expires.", lostGrant},
	{"faults/lost-renewal", "A renewal for less moves Expires before anybody can profit by it, also while its answer is on the way, and if that is lost.", lostRenewal},
	{"faults/clean-up", "What failed requests left behind is cleaned up long before its TTL is over, also if the backend is out of reach for a while.", cleanUpGoesOn},
	{"faults/many", "What many failed requests left behind is cleaned up by a bounded number of goroutines.", fewCleanUps},
}

// oneReleaseEndsOneHold releases one of several holds without an answer, twice,
// as package dsync may.
func oneReleaseEndsOneHold(e *env) error {
	d, lasts := e.driver(), e.long()
	if e.driverInfo().KeepsAlive {
		lasts = e.allowed(2 * e.ttl())
		e.need(d.link.Hang != nil, "Link.Hang") // with its connection, a session may end at once
	} else {
		e.need(d.link.LoseAnswers != nil, "Link.LoseAnswers")
	}
	others := []*request{d.hold(e.name(), ttl(lasts)), d.hold(e.name(), ttl(lasts))}
	h := d.hold(e.name(), ttl(lasts))
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	if e.driverInfo().KeepsAlive {
		d.hang()
	} else {
		d.loseAnswers()
	}
	for range 2 {
		_ = h.tryRelease(ctx)
	}
	d.heal()
	e.awaitFree(h.Name)
	if e.driverInfo().KeepsAlive {
		e.sleep(lasts * 5 / 4) // a session that is not kept alive any more ends
	}
	for _, other := range others {
		if err := e.outsider().refused(other.Name); err != nil {
			return fmt.Errorf("after the release of another hold of %s, which got no answer: %w", d.label, err)
		}
		if causes := other.lost(); len(causes) > 0 {
			return fmt.Errorf("after the release of another hold, which got no answer, %s was told that it lost %q: %w", d.label, other.Name, causes[0])
		}
		if err := other.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of a hold of %s, after that of another one got no answer: %w", d.label, err)
		}
	}
	return nil
}

// patience is how long the context of a request lasts that will get no answer.
const patience = 300 * time.Millisecond

// briefly starts a request whose context ends soon.
func (d *rawDriver) briefly(name string, opts ...option) *request {
	ctx, cancel := context.WithTimeout(d.env.ctx, patience)
	return d.startWith(ctx, cancel, name, opts...)
}

func cutOff(e *env) error {
	c, name := e.client(), e.name()
	c.tryLock(name).unlock()
	c.cut()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	for _, try := range []bool{true, false} {
		_, err := c.ask(ctx, try, name)
		ended := errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
		if !ended || errors.Is(err, dsync.ErrLocked) {
			return fmt.Errorf("%s, which is cut off, got %q, want ErrUnavailable, ErrUnknown or the error of its context, and not ErrLocked", c.label, outcome(err))
		}
	}
	c.heal()
	c.lock(name).unlock()
	return e.isFree(name)
}

func hungAcquire(e *env) error {
	for i, opts := range [][]option{{noWait}, nil, {noWait}, nil} {
		d, name := e.driver(), e.name()
		d.hold(name).release() // the connection is there
		f := d.hanging(faultTimes[i/2])
		if err := f.failed(d.briefly(name, append(opts, f.of)...)); err != nil {
			return err
		}
		d.heal()
		e.sleep(patience) // requests on their way arrive, and nobody else has changed anything before
		e.awaitFree(name)
	}
	return nil
}

// failed returns an error if a request that was not answered was granted.
func (r *request) failed() error {
	if r.result().lease != nil {
		return fmt.Errorf("%s was granted %q without an answer of the backend", r.driver.label, r.Name)
	}
	return nil
}

func hungWait(e *env) error {
	a, b, name := e.rival(), e.driver(), e.name()
	h := a.hold(name)
	r := b.start(name).waits()
	b.hang()
	r.cancel()
	if err := r.failed(); err != nil {
		return err
	}
	h.release()
	b.heal()
	e.awaitFree(name)
	return nil
}

func hungLease(e *env) error {
	d := e.driver()
	renewed, released := d.hold(e.name(), fixed), d.hold(e.name())
	d.hang()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	var err error
	e.within("Renew", func() { err = renewed.lease.Renew(ctx, e.long()) })
	if err == nil || errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("a renewal without an answer of the backend returned %q", outcome(err))
	}
	if b, ok := d.driver.(driver.BatchRenewer); ok && !e.driverInfo().KeepsAlive {
		o := &outcomes{errs: map[int][]error{}}
		e.within("RenewAll", func() { b.RenewAll(ctx, []driver.Lease{released.lease}, o.done) })
		if errs := o.of(0); len(errs) != 1 || errs[0] == nil || errors.Is(errs[0], driver.ErrNotHeld) {
			return fmt.Errorf("RenewAll without an answer of the backend called done with %q, want one error", errs)
		}
	}
	if err := released.tryRelease(ctx); err == nil || errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("a release without an answer of the backend returned %q", outcome(err))
	}
	d.heal()
	e.awaitFree(released.Name)
	renewed.release()
	return nil
}

func lateAnswer(e *env) error {
	d := e.driver()
	d.hold(e.name()).release() // the connection is there
	const late = time.Second / 2
	d.delay(late)
	r := d.hold(e.name(), fixed)
	if took := r.at.Sub(r.called); took < late {
		return fmt.Errorf("the harness did not delay the answer to an Acquire by %v: it took %v", late, took)
	}
	check := func(what string, returned time.Time, ttl time.Duration) error {
		sent := returned.Add(-late) // at the latest
		if got := r.lease.Expires(); got.After(sent.Add(ttl)) {
			return fmt.Errorf("%s expires at %s, which is more than its TTL of %v after the request was sent, since the answer came %v late at %s",
				what, e.events.at(got), ttl, late, e.events.at(returned))
		}
		return nil
	}
	if err := check("a lease", r.at, r.TTL); err != nil {
		return err
	}
	e.must(r.renew(e.long()))
	if err := check("a renewed lease", time.Now(), e.long()); err != nil {
		return err
	}
	d.heal()
	r.release()
	return nil
}

func lostAcquire(e *env) error {
	for i, opts := range [][]option{{noWait}, nil, {noWait}, nil} {
		d, name := e.driver(), e.name()
		d.hold(name).release() // the connection is there
		f := d.losing(faultTimes[i/2], 1)
		r := d.briefly(name, append(opts, f.of)...)
		if err := f.failed(r); err != nil {
			return err
		}
		if r.err != nil && !errors.Is(r.err, driver.ErrUnknown) {
			if err := e.isFree(name); err != nil {
				return fmt.Errorf("an Acquire whose answer was lost returned %q, which does not match ErrUnknown, and left a hold: %w", outcome(r.err), err)
			}
		}
		d.heal()
		e.awaitFree(name)
	}
	return nil
}

func lostRelease(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name)
	a.loseAnswers()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	if err := h.tryRelease(ctx); errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("the release of a live lease returned %q", err)
	}
	a.heal()
	e.awaitFree(name)
	next := b.hold(name)
	if err := h.tryRelease(e.ctx); err != nil && !errors.Is(err, driver.ErrNotHeld) && !errors.Is(err, driver.ErrUnknown) {
		return fmt.Errorf("the repetition of a release returned %q, want nil, ErrNotHeld or ErrUnknown", err)
	}
	return next.keeps("the repetition of a release")
}
