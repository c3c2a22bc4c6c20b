package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of a single lease: the results of Expires, Renew and RenewAll.
var leaseChecks = []check{
	{"lease/expires", "Expires is the send time plus the TTL, without a margin, or the end of the session that carries the lease, on the monotonic clock.", expiresAfterTTL},
	{"lease/after-wait", "After a wait of any length a lease is fresh: Expires counts from the request that was granted, not from the beginning of the wait.", freshAfterWait},
	{"lease/renew", "Renew makes a fixed lease last its TTL from now, even if that is shorter than before.", renewMovesExpires},
	{"lease/over", "Once Expires has passed, it never moves, and Renew fails.", overStaysOver},
	{"lease/late-renewal", "The answer to a renewal does not move Expires if it arrives after Expires has passed.", lateRenewal},
	{"lease/renew-all", "RenewAll renews each lease. Before it returns, it calls done once for each lease, with that lease's outcome.", renewAll},
}

// expiresWithin returns an error unless r expires between from+ttl and to+ttl,
// or at the end of its session.
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
		if isMonotonic(r.called) && !isMonotonic(r.lease.Expires()) { // in fake time no time is monotonic
			return fmt.Errorf("the Expires of %s is a time of the wall clock, which can be set, instead of the monotonic clock", d.label)
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
			// the driver may poll and may have polled just when the lock was
			// released
			asked := released.Add(-r.TTL / 2)
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
		return fmt.Errorf("the expiry moved from %s to %s after it had passed", e.events.at(before), e.events.at(after))
	}
	e.awaitFree(r.Name)
	d := e.driver()
	if d.link.Delay == nil || !e.fakeTime {
		// a server counts from the arrival of the request, which is not delayed
		return nil
	}
	late := e.allowed(8 * e.ttl())
	d.delay(late / 16) // the backend may start to count later than the driver
	r = d.hold(e.name(), fixed, ttl(late))
	d.heal()
	before = e.expired(r)
	_ = r.renew(e.long())
	if after := r.lease.Expires(); !after.Equal(before) {
		return fmt.Errorf("the expiry of a lease whose grant was answered late moved from %s to %s after it had passed", e.events.at(before), e.events.at(after))
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
		return fmt.Errorf("the answer to a renewal moved Expires from %s to %s after it had passed", e.events.at(before), e.events.at(after))
	}
	_ = r.tryRelease(e.ctx)
	e.awaitFree(r.Name)
	return nil
}

// outcomes collects the outcomes that a RenewAll reports for each lease.
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

// wasRenewed returns an error unless the outcome of a renewal in a batch
// matches the lease.
func (r *request) wasRenewed(errs []error, over bool, called, returned time.Time) error {
	switch {
	case len(errs) != 1:
		return fmt.Errorf("the batch called done %d times before it returned, want once", len(errs))
	case over && !errors.Is(errs[0], driver.ErrNotHeld):
		return fmt.Errorf("it had ended, but RenewAll returned %q, want ErrNotHeld", outcome(errs[0]))
	case over:
		return nil
	case errs[0] != nil:
		return fmt.Errorf("it was held, but RenewAll returned: %w", errs[0])
	}
	return r.expiresWithin("after RenewAll", called, returned, r.TTL)
}

// The checks of leases with unrelated TTLs, as in programs that compute TTLs.
var lengthChecks = []check{
	{"lengths/extended", "A lease that is extended to 200 times its original length continues, even if a session with the original length carries it.", extendedFar},
	{"lengths/many", "A free name is granted for a lease of any length, even while leases of 20 other lengths are held.", manyLengths},
}

// laterLengthChecks build on the checks of Inspect.
var laterLengthChecks = []check{
	{"lengths/renewed", "A fixed lease can be renewed for any TTL that Info allows and then lasts that long.", renewedFar},
}

// renewedFar skips sessions, because a session ends before its leases, and
// Inspect reports the end of the session.
func renewedFar(e *env) error {
	i := e.driverInfo()
	if i.KeepsAlive {
		return nil
	}
	longest := i.MaxTTL
	if longest == 0 {
		longest = 365 * 24 * time.Hour
	}
	d := e.driver()
	var held []*request
	for _, t := range append(overflows(longest), e.allowed(longest)) {
		r := d.hold(e.name(), fixed)
		r.TTL = e.allowed(t)
		if err := r.renew(r.TTL); err != nil {
			return fmt.Errorf("a fixed lease was not renewed for %v, which Info allows: %w", r.TTL, err)
		}
		held = append(held, r)
	}
	e.sleep(overflown)
	for _, r := range held {
		if err := r.lasts(); err != nil {
			return fmt.Errorf("a lease that was renewed for %v: %w", r.TTL, err)
		}
		r.release()
	}
	return nil
}

// lives returns an error unless the lease is held and has a deadline in the
// future.
func (h *holding) lives(what string) error {
	if err := h.Err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if left := time.Until(h.Deadline()); left <= 0 {
		return fmt.Errorf("%s: the deadline passed %v ago", what, -left)
	}
	return nil
}

func extendedFar(e *env) error {
	first := e.ttl()
	h := e.client().lock(e.name(), dsync.ExpireAfter(first))
	if err := h.Extend(e.ctx, e.allowed(200*first)); err != nil {
		return fmt.Errorf("extension of a lease of %v to %v: %w", first, e.allowed(200*first), err)
	}
	if err := h.lives("a lease that was extended"); err != nil {
		return err
	}
	h.unlock()
	return nil
}

func manyLengths(e *env) error {
	c := e.clientWith(&dsync.Options{TTL: e.renewed()})
	longest, unit := e.allowed(2*time.Hour), max(e.driverInfo().TTLUnit, time.Millisecond)
	var held []*holding
	for i := range 20 {
		length := longest - time.Duration(i)*unit
		h, err := c.try(e.name(), dsync.ExpireAfter(length))
		if err != nil {
			return fmt.Errorf("TryLock of a free name for %v, with %d other lengths in use: %w", length, i, err)
		}
		held = append(held, h)
	}
	for i, h := range held {
		if err := h.lives(fmt.Sprintf("lease %d of %d lengths", i+1, len(held))); err != nil {
			return err
		}
		h.unlock()
	}
	return nil
}

// The checks of RenewAll with different leases: driver.BatchRenewer.
var batchChecks = []check{
	{"batches/ttls", "RenewAll renews each lease for the TTL of its own Request, regardless of the other leases in the batch, and Expires counts from before the request was sent.", batchOfTTLs},
	{"batches/same-name", "RenewAll renews each of several Read or Permit holds of one name.", batchOfOneName},
	{"batches/many", "RenewAll renews many leases. It returns ErrNotHeld for leases whose holds were removed, and nil for the others.", batchOfMany},
	{"batches/no-answer", "If RenewAll gets no answer, it does not return nil or ErrNotHeld for any lease, and no Expires moves to a later time. The next batch renews all leases.", batchWithoutAnswer},
	{"batches/busy", "RenewAll does not return nil for a lease whose Renew is under way unless the backend has answered.", batchDuringRenew},
	{"batches/empty", "RenewAll without leases returns and does not call done.", emptyBatch},
}

// batches ends the check unless the driver renews leases in batches.
func (e *env) batches() {
	if _, ok := e.outsider().driver.(driver.BatchRenewer); !ok || e.driverInfo().KeepsAlive {
		e.end(&refusedError{"to renew leases in batches"})
	}
}

// renewAll renews leases of d in one batch and returns the outcome of each. If
// an outcome is not reported exactly once, the check ends.
func (d *rawDriver) renewAll(ctx context.Context, all ...*request) []error {
	e := d.env
	leases := make([]driver.Lease, len(all))
	for i, r := range all {
		leases[i] = r.lease
	}
	o := &outcomes{errs: map[int][]error{}}
	e.within(fmt.Sprintf("RenewAll of %d leases", len(all)), func() { d.driver.(driver.BatchRenewer).RenewAll(ctx, leases, o.done) })
	errs := make([]error, len(all))
	for i := range all {
		each := o.of(i)
		if len(each) != 1 {
			e.endf("RenewAll of %d leases called done %d times for lease %d before it returned, want once", len(all), len(each), i)
		}
		errs[i] = each[0]
	}
	if o.mu.Lock(); len(o.errs) > len(all) {
		defer o.mu.Unlock()
		e.endf("RenewAll of %d leases called done for %d", len(all), len(o.errs))
	}
	o.mu.Unlock()
	return errs
}

// allRenewed returns an error unless a batch renews all of the leases.
func (d *rawDriver) allRenewed(all ...*request) error {
	called := time.Now()
	errs := d.renewAll(d.env.ctx, all...)
	returned := time.Now()
	for i, r := range all {
		if err := r.wasRenewed(errs[i:i+1], false, called, returned); err != nil {
			return fmt.Errorf("lease %d of %d, with a TTL of %v: %w", i, len(all), r.TTL, err)
		}
	}
	return nil
}

func batchOfTTLs(e *env) error {
	e.batches()
	brief, middle, long := e.allowed(2*e.ttl()), e.renewed(), e.long()
	orders := [][]time.Duration{{brief, long, middle}, {long, brief, middle}, {middle, middle, long, brief}}
	e.together("batches with several TTLs", len(orders), func(i int) error {
		return e.punctual(func() error { return e.renewsTTLs(orders[i]) })
	})
	d := e.driver()
	if d.link.Delay == nil {
		return nil
	}
	r := d.hold(e.name())
	d.delay(answersLate)
	if err := d.renewAll(e.ctx, r)[0]; err != nil {
		return fmt.Errorf("RenewAll, whose answer was %v late: %w", answersLate, err)
	}
	if end, sent := r.lease.Expires(), time.Now().Add(-answersLate); end.After(sent.Add(r.TTL)) {
		return fmt.Errorf("after RenewAll, which was sent at %s at the latest, a lease of %v expires at %s", e.events.at(sent), r.TTL, e.events.at(end))
	}
	d.heal()
	r.release()
	return nil
}

// renewsTTLs renews leases with several TTLs in one batch and waits for the
// ends of the leases with short TTLs.
func (e *env) renewsTTLs(ttls []time.Duration) error {
	d, long := e.driver(), e.long()
	all := make([]*request, len(ttls))
	for _, t := range []time.Duration{long, e.renewed(), e.allowed(2 * e.ttl())} {
		// the shortest last, because grants may be slow
		for i := range ttls {
			if ttls[i] == t {
				all[i] = d.hold(e.name(), ttl(t))
			}
		}
	}
	if err := d.allRenewed(all...); err != nil {
		return err
	}
	next := map[*request]*request{}
	for _, r := range all {
		if r.TTL < long {
			next[r] = e.outsider().start(r.Name)
		}
	}
	for r, w := range next {
		if err := w.granted().after(r); err != nil {
			return fmt.Errorf("a lease of %v that was renewed in a batch: %w", r.TTL, err)
		}
		if err := w.soonAfter(r, fmt.Sprintf("a lease of %v that was renewed in a batch", r.TTL)); err != nil {
			return err
		}
	}
	for j, r := range all {
		if r.TTL < long {
			continue
		}
		if err := r.tryRelease(e.ctx); err != nil {
			return fmt.Errorf("the release of lease %d of %d, with a TTL of %v, when shorter leases that were renewed in the same batch had ended: %w", j, len(all), r.TTL, err)
		}
	}
	return nil
}

func batchOfOneName(e *env) error {
	e.batches()
	var ways []func() error
	for _, mode := range []struct {
		offered bool
		option
	}{
		{e.driverInfo().Offers(driver.Read), reading},
		{e.driverInfo().Offers(driver.Permit), permits(1, 3)},
	} {
		for last := range 3 {
			if !mode.offered {
				continue
			}
			ways = append(ways, func() error {
				d, name := e.driver(), e.name()
				t := ttl(e.allowed(6 * e.ttl()))
				all := []*request{d.hold(name, mode.option, t), d.hold(e.name(), t), d.hold(name, mode.option, t), d.hold(name, mode.option, t)}
				e.sleep(e.ttl())
				if err := d.allRenewed(all...); err != nil {
					return err
				}
				same := []*request{all[0], all[2], all[3]}
				for i, r := range same {
					if i != last {
						r.release()
					}
				}
				next := writing
				if same[last].Mode == driver.Permit {
					next = permits(3, 3)
				}
				if err := e.outsider().start(name, next).granted().after(same[last]); err != nil {
					return fmt.Errorf("of three holds (%v) of one name that were renewed in a batch, number %d: %w", same[last].Mode, last, err)
				}
				return nil
			})
		}
	}
	if len(ways) == 0 {
		e.end(&refusedError{"several holds of a name"})
	}
	e.together("batches with several holds of a name", len(ways), func(i int) error { return ways[i]() })
	return nil
}

// batchSize returns the number of leases in a large batch.
func (e *env) batchSize() int {
	if e.fakeTime {
		return 1000
	}
	return 300
}

func batchOfMany(e *env) error {
	e.batches()
	e.need(e.canRemove(), "Backend.Expire")
	d := e.driver()
	all := make([]*request, e.batchSize())
	names := make([]string, len(all))
	for i := range names {
		names[i] = e.name()
	}
	const side = 20
	e.together("requests for the leases of a batch", side, func(i int) error {
		for ; i < len(all); i += side {
			all[i] = d.hold(names[i])
		}
		return nil
	})
	if err := d.allRenewed(all...); err != nil {
		return err
	}
	removed := map[int]bool{1: true, len(all) / 2: true, 256: true, len(all) - 1: true}
	for i := range removed {
		e.remove(names[i])
	}
	called := time.Now()
	errs := d.renewAll(e.ctx, all...)
	returned := time.Now()
	for i, r := range all {
		var err error
		if removed[i] {
			err = isNotHeld("a renewal in a batch, for a removed hold,", errs[i])
		} else {
			err = r.wasRenewed(errs[i:i+1], false, called, returned)
		}
		if err != nil {
			return fmt.Errorf("lease %d of %d: %w", i, len(all), err)
		}
	}
	for i := range removed {
		if err := e.isFree(names[i]); err != nil {
			return fmt.Errorf("after a batch with a removed hold: %w", err)
		}
	}
	return nil
}

func batchWithoutAnswer(e *env) error {
	e.batches()
	e.together("unanswered batches", len(e.outsider().silences()), func(i int) error {
		d := e.driver()
		all := make([]*request, 5)
		for j := range all {
			all[j] = d.hold(e.name())
		}
		before := make([]time.Time, len(all))
		for j, r := range all {
			before[j] = r.lease.Expires()
		}
		d.silences()[i]()
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		for j, err := range d.renewAll(ctx, all...) {
			if err == nil || errors.Is(err, driver.ErrNotHeld) {
				return fmt.Errorf("lease %d of %d: an unanswered batch returned %q", j, len(all), outcome(err))
			}
			if moved := all[j].lease.Expires().Sub(before[j]); moved > 0 {
				return fmt.Errorf("lease %d of %d: Expires moved by %v in an unanswered batch", j, len(all), moved)
			}
		}
		d.heal()
		e.poll("leases are renewed in a batch after an outage", func() error {
			for j, err := range d.renewAll(e.ctx, all...) {
				if errors.Is(err, driver.ErrNotHeld) {
					e.endf("lease %d of %d: a batch after an outage: %w", j, len(all), err)
				}
				if err != nil {
					return fmt.Errorf("lease %d of %d: %w", j, len(all), err)
				}
			}
			return nil
		})
		for _, r := range all {
			r.release()
		}
		return nil
	})
	return nil
}

func batchDuringRenew(e *env) error {
	e.batches()
	d := e.driver()
	busy, other := d.hold(e.name()), d.hold(e.name())
	d.hang()
	renewal := e.run(func() { // ends when its context ends
		ctx, cancel := context.WithTimeout(e.ctx, 2*patience)
		defer cancel()
		_ = busy.lease.Renew(ctx, busy.TTL)
	})
	e.sleep(patience / 3) // the renewal is under way
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	for i, err := range d.renewAll(ctx, busy, other) {
		if err == nil || errors.Is(err, driver.ErrNotHeld) {
			return fmt.Errorf("lease %d of 2, the first of which is being renewed: an unanswered batch returned %q", i, outcome(err))
		}
	}
	e.await("Renew", renewal)
	d.heal()
	e.poll("leases are renewed in a batch after an outage", func() error { return errors.Join(d.renewAll(e.ctx, busy, other)...) })
	busy.release()
	other.release()
	return nil
}

func emptyBatch(e *env) error {
	e.batches()
	d := e.driver()
	h := d.hold(e.name())
	for _, leases := range [][]driver.Lease{nil, {}} {
		called := 0
		e.within("RenewAll without leases", func() {
			d.driver.(driver.BatchRenewer).RenewAll(e.ctx, leases, func(int, error) { called++ })
		})
		if called > 0 {
			return fmt.Errorf("RenewAll without leases called done %d times", called)
		}
	}
	if err := d.allRenewed(h); err != nil {
		return fmt.Errorf("after RenewAll without leases: %w", err)
	}
	return nil
}
