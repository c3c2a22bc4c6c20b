package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var faultChecks = []check{
	{"faults/cut", "An unreachable backend never looks like a held lock, and calls continue when it is reachable again.", cutOff},
	{"faults/hung-acquire", "If the backend does not answer, Acquire returns soon after its context ends and leaves nothing behind.", hungAcquire},
	{"faults/hung-wait", "If the backend does not answer, a wait returns soon after its context ends and leaves nothing behind.", hungWait},
	{"faults/hung-lease", "If the backend does not answer, Renew, RenewAll and Release return soon after their context ends.", hungLease},
	{"faults/late-answer", "Expires counts from before the request was sent, never from the arrival of the answer.", lateAnswer},
	{"faults/lost-acquire", "If the answer to an Acquire is lost, the hold that it may have made is removed. The error matches ErrUnknown unless no hold is left when Acquire returns.", lostAcquire},
	{"faults/lost-release", "A release whose answer was lost frees the name, and repeating the release does not affect the next holder.", lostRelease},
	{"faults/one-release", "An unanswered release does not end another hold of its client.", oneReleaseEndsOneHold},
	{"faults/lost-grant", "A lease that is granted after a lost answer counts from the request that was carried out: no other client gets the name before the lease's Expires.", lostGrant},
	{"faults/lost-renewal", "A renewal for a shorter time moves Expires before another client can benefit from it, even if its answer is late or lost.", lostRenewal},
	{"faults/clean-up", "Remains of failed requests are cleaned up long before their TTL ends, even if the backend is out of reach for a while.", cleanUpGoesOn},
	{"faults/many", "A bounded number of goroutines cleans up the remains of many failed requests.", fewCleanUps},
}

// oneReleaseEndsOneHold releases one of several holds twice, because the first
// release gets no answer. Package dsync may do the same.
func oneReleaseEndsOneHold(e *env) error {
	d, lasts := e.driver(), e.long()
	if e.driverInfo().KeepsAlive {
		lasts = e.allowed(2 * e.ttl())
		e.need(d.link.Hang != nil, "Link.Hang") // a session may end as soon as its connection breaks
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
		e.sleep(lasts * 5 / 4) // a session that is no longer kept alive ends
	}
	for _, other := range others {
		if err := e.outsider().refused(other.Name); err != nil {
			return fmt.Errorf("after an unanswered release of another hold of %s: %w", d.label, err)
		}
		if causes := other.lost(); len(causes) > 0 {
			return fmt.Errorf("after an unanswered release of another hold, %s was notified that it lost %q: %w", d.label, other.Name, causes[0])
		}
		if err := other.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of a hold of %s after an unanswered release of another hold: %w", d.label, err)
		}
	}
	return nil
}

// patience is the lifetime of the context of a request that gets no answer.
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
		ended := isNoAnswer(err) || errors.Is(err, context.DeadlineExceeded)
		if !ended || errors.Is(err, dsync.ErrLocked) {
			return fmt.Errorf("%s, which is cut off, got %q, want ErrUnavailable, ErrUnknown or the error of its context, but not ErrLocked", c.label, outcome(err))
		}
	}
	c.heal()
	c.lock(name).unlock()
	return e.isFree(name)
}

func hungAcquire(e *env) error {
	for i, opts := range [][]option{{noWait}, nil, {noWait}, nil} {
		d, name := e.driver(), e.name()
		d.hold(name).release() // the connection is established
		f := d.hanging(faultTimes[i/2])
		if err := f.failed(d.briefly(name, append(opts, f.of)...)); err != nil {
			return err
		}
		d.heal()
		e.sleep(patience) // requests under way arrive before any other client changes anything
		e.awaitFree(name)
	}
	return nil
}

// failed returns an error if a request was granted although it got no answer.
func (r *request) failed() error {
	if r.result().lease != nil {
		return fmt.Errorf("%s was granted %q without an answer from the backend", r.driver.label, r.Name)
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
		return fmt.Errorf("an unanswered renewal returned %q", outcome(err))
	}
	if b, ok := d.driver.(driver.BatchRenewer); ok && !e.driverInfo().KeepsAlive {
		o := &outcomes{errs: map[int][]error{}}
		e.within("RenewAll", func() { b.RenewAll(ctx, []driver.Lease{released.lease}, o.done) })
		if errs := o.of(0); len(errs) != 1 || errs[0] == nil || errors.Is(errs[0], driver.ErrNotHeld) {
			return fmt.Errorf("an unanswered RenewAll called done with %q, want one error", errs)
		}
	}
	if err := released.tryRelease(ctx); err == nil || errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("an unanswered release returned %q", outcome(err))
	}
	d.heal()
	e.awaitFree(released.Name)
	renewed.release()
	return nil
}

func lateAnswer(e *env) error {
	d := e.driver()
	d.hold(e.name()).release() // the connection is established
	const late = time.Second / 2
	d.delay(late)
	r := d.hold(e.name(), fixed)
	if took := r.at.Sub(r.called); took < late {
		return fmt.Errorf("the harness did not delay the answer to an Acquire by %v: Acquire took %v", late, took)
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
		d.hold(name).release() // the connection is established
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

// grantDoesNotArrive loses the answer that grants a name to a waiter. If
// followed is set, another request waits behind the waiter.
func (e *env) grantDoesNotArrive(followed bool) error {
	a, b, name := e.rival(), e.driver(), e.name()
	h := a.hold(name)
	r := b.start(name).waits()
	var next *request
	if followed {
		next = e.rival().start(name).waits()
	}
	b.loseAnswers()
	h.release()
	e.sleep(patience) // the name is granted
	r.cancel()
	if err := r.failed(); err != nil {
		return err
	}
	b.heal()
	if followed {
		next.grantedAfter("a grant whose answer did not arrive").release()
	}
	e.awaitFree(name)
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

// The checks of requests with lost answers, except for checks in which further
// requests follow immediately.

func lostGrant(e *env) error {
	how := [][]option{{noWait}, nil}
	e.together("requests whose answers are lost", len(how)*len(faultTimes), func(i int) error {
		d, name := e.driver(), e.name()
		d.hold(e.name()).release() // the connection is established
		f := d.losing(faultTimes[i/len(how)], 1)
		// the driver may send the request again
		r := d.start(name, append(how[i%len(how)], fixed, ttl(e.ttl()), f.of)...)
		// by then the request has usually been carried out
		e.sleep(e.ttl() / 10)
		// if contenders observe a hold, they start here
		next := e.outsider().start(name)
		e.sleep(e.ttl() / 2)
		d.heal()
		e.until("one of two requests is granted", func() bool { return r.isDone() || next.isDone() })
		if r.isDone() && r.lease != nil {
			if err := next.granted().after(r); err != nil {
				return fmt.Errorf("after the answer to a request for a lease of %v was lost at first: %w", e.ttl(), err)
			}
			next.release()
			return nil
		}
		next.granted().release()
		if r.result().lease != nil {
			_ = r.tryRelease(e.ctx)
		}
		e.awaitFree(name)
		return nil
	})
	return nil
}

func lostRenewal(e *env) error {
	link, d := e.outsider().link, e.brief()
	var faults []func(*rawDriver)
	if link.LoseAnswers != nil && !e.driverInfo().KeepsAlive {
		// a session may end as soon as its connection breaks
		faults = append(faults, func(a *rawDriver) { a.loseAnswers() })
	}
	if link.Delay != nil {
		faults = append(faults, func(a *rawDriver) { a.delay(2 * d) })
	}
	e.need(len(faults) > 0, "Link.Delay")
	carriedOut := 2 * d // by then or never
	if i := e.driverInfo(); !i.KeepsAlive {
		carriedOut += i.LateFor(d)
	}
	e.together("renewals whose answers are lost", len(faults), func(i int) error {
		a, name := e.driver(), e.name()
		h := a.hold(name, fixed)
		next := e.outsider().start(name).waits()
		faults[i](a)
		renewal := e.run(func() { // ends when its context ends
			ctx, cancel := context.WithTimeout(e.ctx, 3*d/2)
			defer cancel()
			_ = h.lease.Renew(ctx, d)
		})
		for end := time.Now().Add(carriedOut); !next.isDone() && time.Now().Before(end); {
			e.sleep(d / 100)
		}
		if next.isDone() {
			if err := next.granted().after(h); err != nil {
				return fmt.Errorf("after a renewal for %v, whose answer has not arrived: %w", d, err)
			}
		}
		e.await("Renew", renewal)
		a.heal()
		_ = h.tryRelease(e.ctx)
		next.granted().release()
		return e.isFree(name)
	})
	return nil
}

func cleanUpGoesOn(e *env) error {
	d := e.driver()
	released := d.hold(e.name())
	d.loseAnswers()
	asked := []*request{d.briefly(e.name(), noWait), d.briefly(e.name())}
	for _, r := range asked {
		if err := r.failed(); err != nil {
			return err
		}
	}
	d.cut()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	_ = released.tryRelease(ctx)
	e.sleep(time.Second) // to try without success
	d.heal()
	for _, r := range append(asked, released) {
		e.awaitFree(r.Name)
	}
	for _, followed := range []bool{false, true} {
		if err := e.grantDoesNotArrive(followed); err != nil {
			return err
		}
	}
	return nil
}

func fewCleanUps(e *env) error {
	for _, when := range faultTimes {
		if err := e.cleansUpMany(when); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) cleansUpMany(when faultTime) error {
	d := e.driver()
	d.hold(e.name()).release() // the connection is established
	names := make([]string, many)
	for i := range names {
		names[i] = e.name()
	}
	before, f := e.goroutines(), d.losing(when, many)
	e.together("requests whose answers are lost", many, func(i int) error { return f.failed(d.briefly(names[i], noWait, f.of)) })
	d.cut() // so the driver can only wait
	e.poll("the goroutines of cleanups", func() error {
		if more := e.goroutines() - before; more > many*9/10 {
			return fmt.Errorf("%d more goroutines after %d failed requests", more, many)
		}
		return nil
	})
	d.heal()
	for i := 0; i < many; i += many / 10 {
		e.awaitFree(names[i])
	}
	return nil
}

// The checks of faults that affect one request, or that happen without notice
// to any client. A fault may affect another request, such as a keep-alive,
// instead of the check's request, so the promises cover both cases.
var singleChecks = []check{
	{"single/lost-acquire", "After one lost answer to an Acquire of a free name, either the lease that Acquire returned holds the name, or the name becomes free. Acquire does not mistake its own hold for another client.", oneLostAcquire},
	{"single/lost-renewal", "After one lost answer to a renewal, the lease and the other leases of the client continue and can be renewed.", oneLostRenewal},
	{"single/lost-release", "After one lost answer to a Release, the name becomes free, and the other leases of the client continue.", oneLostRelease},
	{"single/overtaken-renewal", "A renewal that arrives after a newer one does not end the hold before the Expires that the newer one has set.", overtakenRenewal},
	{"single/vanished-release", "A release that vanishes on its way, without an error, is repeated, so the name becomes free long before the TTL ends.", vanishedRelease},
}

func oneLostAcquire(e *env) error {
	how := [][]option{{noWait}, nil, {noWait, fixed}, {fixed}}
	e.together("requests that each lose one answer", len(how), func(i int) error {
		d, name := e.driver(), e.name()
		d.hold(e.name()).release() // the connection is established
		d.loseOne()
		r := d.acquire(name, how[i]...)
		d.heal()
		switch {
		case errors.Is(r.err, driver.ErrLocked):
			return fmt.Errorf("after one lost answer, %s got %q for %q, which no other client holds", d.label, outcome(r.err), name)
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

// endsWithConnection reports whether the hold of r is lost, on a backend where
// a session may end with its connection.
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
	renew := func(h *request) []error {
		if all {
			return d.renewAll(e.ctx, h, other)
		}
		return []error{h.renew(e.long())}
	}
	before := h.lease.Expires()
	e.sleep(patience / 10) // the renewal would move Expires
	d.loseOne()
	called := time.Now()
	errs := renew(h)
	err := errs[0] // the lost answer may be for the lease of other
	returned := time.Now()
	d.heal()
	if d.endsWithConnection(h) {
		e.awaitFree(h.Name)
		e.awaitFree(other.Name)
		return nil
	}
	switch moved := h.lease.Expires().Sub(before); {
	case errors.Is(errors.Join(errs...), driver.ErrNotHeld):
		return fmt.Errorf("the renewal of a live lease returned %q after one lost answer", errors.Join(errs...))
	case err != nil && moved > 0 && !e.driverInfo().KeepsAlive:
		return fmt.Errorf("after one lost answer, a renewal returned %q but moved Expires by %v", err, moved)
	case err == nil:
		if err := h.expiresWithin("a lease after a renewal that lost one answer", called, returned, e.long()); err != nil {
			return err
		}
	}
	for _, h := range []*request{h, other} {
		e.poll("a lease is renewed after one lost answer", func() error {
			err := errors.Join(renew(h)...)
			if errors.Is(err, driver.ErrNotHeld) {
				e.endf("after one lost answer, the next renewal of a live lease returned %q", err)
			}
			return err
		})
	}
	return errors.Join(h.keeps("a renewal that lost one answer"), other.keeps("a renewal that lost one answer"))
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
		return fmt.Errorf("the release of a live lease returned %q after one lost answer", err)
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
		e.sleep(2 * t) // a session that is not kept alive ends
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
	for err := errors.New("no request sent yet"); err != nil; {
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
			return fmt.Errorf("a delayed renewal for %v arrived after a renewal for %v had been answered: %w", shorter, e.long(), err)
		}
		next.release()
		return nil
	}
	_ = h.tryRelease(e.ctx)
	next.granted().release()
	return nil
}

// awaitFreeAfter releases a hold that may have ended, and waits until its name
// is free.
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

// The checks of a backend that answers but refuses work because its disk is
// full, it has become read-only, or the client has lost its rights.
var refusalChecks = []check{
	{"refusal/requests", "A backend that refuses new holds does not look like a lock that another client holds: Acquire returns a different error or waits, and leaves nothing behind. A waiter is granted the name eventually.", refusalIsNoHold},
	{"refusal/holds", "A backend that refuses requests does not look like the end of a hold: no call about the hold returns ErrNotHeld, Inspect and List do not omit the hold, and it can be released eventually.", refusalIsNoEnd},
	{"refusal/changes", "A change of a latch or a limit does not return nil if the backend refuses it. A change that returns ErrUnavailable was not carried out.", refusalIsNoChange},
}

// whileRefused calls f while the backend refuses new holds.
func (e *env) whileRefused(f func() error) error {
	b := e.backend
	e.need(b.Refuse != nil && b.Allow != nil, "Backend.Refuse")
	e.driverInfo() // a new client may be refused
	e.mu.Lock()
	e.undo = func() { b.Allow(e.tb) }
	e.mu.Unlock()
	e.harness("Backend.Refuse", func() { b.Refuse(e.tb) })
	e.events.add("", "the backend refuses requests")
	err := f()
	e.harness("Backend.Allow", func() { b.Allow(e.tb) })
	e.mu.Lock()
	e.undo = nil
	e.mu.Unlock()
	e.events.add("", "the backend allows requests")
	return err
}

// misread returns an error if the answer to a request that the backend refused
// concerns the name instead of the backend.
func misread(what string, err error, answers ...error) error {
	for _, answer := range answers {
		if errors.Is(err, answer) {
			return fmt.Errorf("%s returned %q when the backend refused requests", what, outcome(err))
		}
	}
	return nil
}

// notRefusals are errors of Acquire that do not indicate a refusal.
var notRefusals = []error{driver.ErrLocked, driver.ErrNotHeld, driver.ErrLimit, driver.ErrSealed, driver.ErrClosed}

// grantedInTheEnd repeats r, which was first sent while the backend was
// refusing requests, until it is granted.
func (r *request) grantedInTheEnd() (*request, error) {
	for r.result().lease == nil {
		if err := misread("a waiting Acquire by "+r.driver.label, r.err, notRefusals...); err != nil {
			return nil, err
		}
		r = r.driver.start(r.Name, in(r.Mode))
	}
	return r, nil
}

func refusalIsNoHold(e *env) error {
	d, o := e.driver(), e.outsider()
	d.hold(e.name()).release() // the connections are established
	h := o.hold(e.name())
	waiter := e.driver().start(h.Name).waits()
	var asked []*request
	err := e.whileRefused(func() error {
		for _, m := range e.offered(allModes) {
			for _, opts := range [][]option{{noWait}, nil} {
				ctx, cancel := context.WithTimeout(e.ctx, patience)
				defer cancel()
				r := d.startWith(ctx, cancel, e.name(), append(opts, in(m))...).result()
				asked = append(asked, r)
				what := fmt.Sprintf("Acquire of the free name %s by %s", asks(&r.Request), d.label)
				if r.lease != nil {
					return fmt.Errorf("%s was granted while the backend refused new holds", what)
				}
				if err := misread(what, r.err, notRefusals...); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range asked {
		e.poll(fmt.Sprintf("%q, whose Acquire was refused, is free", r.Name), func() error {
			next := o.acquire(r.Name, noWait, in(r.Mode))
			if next.lease != nil {
				next.release()
			}
			return next.err
		})
	}
	h.release()
	next, err := waiter.grantedInTheEnd()
	if err == nil {
		next.release()
	}
	return err
}

func refusalIsNoEnd(e *env) error {
	d, o := e.driver(), e.outsider()
	kept, released, passed := d.hold(e.name(), fixed), d.hold(e.name(), fixed), d.hold(e.name())
	waiter := o.start(released.Name).waits()
	err := e.whileRefused(func() error {
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		var err error
		e.within("Renew", func() { err = kept.lease.Renew(ctx, e.long()) })
		if err := misread("Renew by "+d.label, err, driver.ErrNotHeld); err != nil {
			return err
		}
		if p, ok := passed.lease.(driver.Passer); ok {
			e.within("Pass", func() { err = p.Pass(ctx, "the next", "") })
			if err := misread("Pass by "+d.label, err, driver.ErrNotHeld); err != nil {
				return err
			}
		}
		if err := misread("Release by "+d.label, released.tryRelease(ctx), driver.ErrNotHeld); err != nil {
			return err
		}
		return e.stillSeen(kept)
	})
	if err != nil {
		return err
	}
	next, err := waiter.grantedInTheEnd()
	if err != nil {
		return err
	}
	next.release()
	for _, h := range []*request{kept, passed} {
		if causes := h.lost(); len(causes) > 0 {
			return fmt.Errorf("%s was notified that it lost %q: %w", d.label, h.Name, causes[0])
		}
		const when = "after the backend had refused requests for a while"
		if err := o.refused(h.Name); err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		if err := h.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("Release by %s %s: %w", d.label, when, err)
		}
		if err := e.isFree(h.Name); err != nil {
			return err
		}
	}
	return nil
}

// stillSeen returns an error if Inspect or List of a client reports that a name
// is free while h holds it.
func (e *env) stillSeen(h *request) error {
	for _, d := range []*rawDriver{h.driver, e.outsider()} {
		if i, ok := d.driver.(driver.Inspector); ok {
			var s driver.Status
			var err error
			e.within("Inspect", func() { s, err = i.Inspect(e.ctx, h.Name) })
			if err == nil && !s.Held {
				return fmt.Errorf("Inspect by %s reports that no client holds %q, which %s holds", d.label, h.Name, h.driver.label)
			}
		}
		if l, ok := d.tap.Driver.(driver.Lister); ok {
			var names []string
			var failed error
			e.within("List", func() {
				for name, err := range l.List(e.ctx, h.Name) {
					names, failed = append(names, name), errors.Join(failed, err)
				}
			})
			if failed == nil && !slices.Contains(names, h.Name) {
				return fmt.Errorf("the list by %s omits %q, which %s holds", d.label, h.Name, h.driver.label)
			}
		}
	}
	return nil
}

func refusalIsNoChange(e *env) error {
	d, o := e.driver(), e.outsider()
	d.hold(e.name()).release() // the connections are established
	type change struct {
		what string
		call func(context.Context) error
		done func() bool
		err  error
	}
	var changes []*change
	if own, ok := d.tap.Driver.(driver.Latcher); ok {
		latch := func(what string, n, after int, call func(ctx context.Context, name, id string) error) {
			seen := o.latch(e.name())
			if n > 0 {
				seen.set(n)
			}
			id := e.changeID()
			changes = append(changes, &change{
				what: what,
				call: func(ctx context.Context) error { return call(ctx, seen.name, id) },
				done: func() bool { return seen.count() == after },
			})
		}
		latch("SetLatch", 0, 3, func(ctx context.Context, name, id string) error {
			set, err := own.SetLatch(ctx, name, id, 3)
			if err == nil && !set {
				return errors.New("there is a latch that no client has set")
			}
			return err
		})
		latch("CountDown", 3, 2, own.CountDown)
		latch("the last CountDown", 1, 0, own.CountDown)
		latch("DeleteLatch", 3, 0, own.DeleteLatch)
	}
	own, limits := d.tap.Driver.(driver.Limiter)
	i, inspects := o.driver.(driver.Inspector)
	if limits && inspects && e.driverInfo().Offers(driver.Permit) {
		name := e.name()
		limit := func() int {
			s, err := i.Inspect(e.ctx, name)
			e.must(err)
			return s.Limit
		}
		if o.setLimit(name, 3); limit() == 3 {
			changes = append(changes, &change{
				what: "SetLimit",
				call: func(ctx context.Context) error { return own.SetLimit(ctx, name, 5) },
				done: func() bool { return limit() == 5 },
			})
		}
	}
	if len(changes) == 0 {
		e.end(&refusedError{"latches, or limits that can be seen"})
	}
	err := e.whileRefused(func() error {
		for _, c := range changes {
			ctx, cancel := context.WithTimeout(e.ctx, patience)
			e.within(c.what, func() { c.err = c.call(ctx) })
			cancel()
			e.events.add(d.label, "%s: %s", c.what, outcome(c.err))
			if err := misread(c.what+" by "+d.label, c.err, notRefusals...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range changes {
		notDone := errors.Is(c.err, driver.ErrUnavailable) && !errors.Is(c.err, driver.ErrUnknown)
		if done := c.done(); done && notDone || !done && c.err == nil {
			return fmt.Errorf("%s by %s returned %q when the backend refused requests, and was carried out: %t", c.what, d.label, outcome(c.err), done)
		}
	}
	return nil
}
