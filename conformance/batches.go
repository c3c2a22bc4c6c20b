package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of RenewAll with leases that are not alike: driver.BatchRenewer.
var batchChecks = []check{
	{"batches/ttls", "RenewAll renews each lease for the TTL of its own Request, whatever the other leases of the batch have, and Expires counts from before the request was sent.", batchOfTTLs},
	{"batches/same-name", "RenewAll renews each of several Read or Permit holds of one name.", batchOfOneName},
	{"batches/many", "Of many leases RenewAll renews all, but for those whose holds were removed: it returns ErrNotHeld for these, and nil for the others.", batchOfMany},
	{"batches/no-answer", "If RenewAll gets no answer, the outcome of no lease is nil or ErrNotHeld, and no Expires moves to later. The next batch renews all of them.", batchWithoutAnswer},
	{"batches/busy", "RenewAll does not return nil for a lease whose Renew is under way unless the backend has answered.", batchDuringRenew},
	{"batches/empty", "RenewAll of no lease returns, and calls done for none.", emptyBatch},
}

// batches ends the check unless the driver renews leases in batches.
func (e *env) batches() {
	if _, ok := e.outsider().driver.(driver.BatchRenewer); !ok || e.driverInfo().KeepsAlive {
		e.end(&refusedError{"to renew leases in batches"})
	}
}

// renewAll renews leases of d in one batch, and returns the outcome of each. If an outcome is not reported once, the check ends.
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

// renewsTTLs renews leases with some TTLs in one batch, and awaits the ends of those that are not long.
func (e *env) renewsTTLs(ttls []time.Duration) error {
	d, long := e.driver(), e.long()
	all := make([]*request, len(ttls))
	for _, t := range []time.Duration{long, e.renewed(), e.allowed(2 * e.ttl())} { // the shortest at last, since grants may be slow
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
			return fmt.Errorf("the release of lease %d of %d, with a TTL of %v, when shorter ones that were renewed in the same batch had ended: %w", j, len(all), r.TTL, err)
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
					return fmt.Errorf("of three holds (%v) of one name that were renewed in a batch, the one with number %d: %w", same[last].Mode, last, err)
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

// batchSize returns how many leases a large batch has.
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
			err = isNotHeld("a renewal in a batch, for a hold that was removed,", errs[i])
		} else {
			err = r.wasRenewed(errs[i:i+1], false, called, returned)
		}
		if err != nil {
			return fmt.Errorf("lease %d of %d: %w", i, len(all), err)
		}
	}
	for i := range removed {
		if err := e.isFree(names[i]); err != nil {
			return fmt.Errorf("after a batch with a hold that was removed: %w", err)
		}
	}
	return nil
}

func batchWithoutAnswer(e *env) error {
	e.batches()
	faults := func(c *connection) []func() {
		all := c.outages()
		if c.link.LoseAnswers != nil {
			all = append(all, c.loseAnswers)
		}
		return all
	}
	e.together("batches without an answer", len(faults(e.outsider().connection)), func(i int) error {
		d := e.driver()
		all := make([]*request, 5)
		for j := range all {
			all[j] = d.hold(e.name())
		}
		before := make([]time.Time, len(all))
		for j, r := range all {
			before[j] = r.lease.Expires()
		}
		faults(d.connection)[i]()
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		for j, err := range d.renewAll(ctx, all...) {
			if err == nil || errors.Is(err, driver.ErrNotHeld) {
				return fmt.Errorf("lease %d of %d: a batch without an answer of the backend returned %q", j, len(all), outcome(err))
			}
			if moved := all[j].lease.Expires().Sub(before[j]); moved > 0 {
				return fmt.Errorf("lease %d of %d: Expires moved by %v in a batch without an answer of the backend", j, len(all), moved)
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
	renewal := e.run(func() { // ends with its context
		ctx, cancel := context.WithTimeout(e.ctx, 2*patience)
		defer cancel()
		_ = busy.lease.Renew(ctx, busy.TTL)
	})
	e.sleep(patience / 3) // the renewal is under way
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	for i, err := range d.renewAll(ctx, busy, other) {
		if err == nil || errors.Is(err, driver.ErrNotHeld) {
			return fmt.Errorf("lease %d of 2, of which the first is being renewed: a batch without an answer of the backend returned %q", i, outcome(err))
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
		e.within("RenewAll of no lease", func() {
			d.driver.(driver.BatchRenewer).RenewAll(e.ctx, leases, func(int, error) { called++ })
		})
		if called > 0 {
			return fmt.Errorf("RenewAll of no lease called done %d times", called)
		}
	}
	if err := d.allRenewed(h); err != nil {
		return fmt.Errorf("after RenewAll of no lease: %w", err)
	}
	return nil
}
