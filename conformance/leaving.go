package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers whose holds can go on without their client: driver.Leaver.
var leavingChecks = []check{
	{"leaving/time", "A hold that was left keeps others out until its time, and ends then. Its tokens stay below those of later leases.", leftHoldEndsInTime},
	{"leaving/close", "Close does not end a hold that was left.", leftHoldOutlivesClose},
	{"leaving/lease", "The lease of a hold that was left is over: it renews nothing and releases nothing.", leftLeaseIsOver},
	{"leaving/bounds", "A hold that was left ends its time after the call of Leave, and at the latest Info.LateFor after that, in every mode, however crooked the time is, and whether it is shorter or longer than the rest of the lease. A waiter finds out.", leftHoldEndsInBounds},
	{"leaving/readers", "Leave of one reader's hold does not change the end of another reader's hold, and keeps no other reader out.", leftReaderEndsAlone},
	{"leaving/over", "Leave of a hold that has ended returns ErrNotHeld. It does not bring the hold back, and does not touch a later hold.", leaveComesTooLate},
	{"leaving/force", "ForceUnlock ends a hold that was left, and wakes a waiter.", leftHoldEndsByForce},
	{"leaving/seen", "Inspect and List report a hold that was left, and a watch reports its end.", leftHoldIsSeen},
	{"leaving/no-answer", "After a Leave without an answer, the hold ends at its time or at the end of its lease. The driver does not end it earlier.", leaveWithoutAnswer},
	{"leaving/outage", "A hold that was left outlasts an outage of its client and the end of the client's session.", leftHoldOutlivesOutage},
}

// leaver returns the driver as a driver.Leaver. If the driver cannot leave holds, the check ends.
func (d *rawDriver) leaver() driver.Leaver {
	leaver, ok := d.tap.Driver.(driver.Leaver)
	if m, may := d.tap.Driver.(driver.MayLeave); !ok || may && m.MayLeave() != nil {
		d.env.end(&refusedError{"to leave holds"})
	}
	return leaver
}

// tryLeave leaves the hold for ttl. It returns the time before which the hold must not end if Leave returns nil.
func (r *request) tryLeave(ctx context.Context, ttl time.Duration) (end time.Time, err error) {
	d := r.driver
	leaver, what := d.leaver(), fmt.Sprintf("Leave of %q by %s", r.Name, d.label)
	d.env.events.add(d.label, "leave %q for %v", r.Name, ttl)
	end = time.Now().Add(ttl)
	d.env.within(what, func() { err = leaver.Leave(ctx, untap(r.lease).Lease, ttl) })
	d.env.events.add(d.label, "leave: %s", outcome(err))
	return end, err
}

// leave leaves the hold for ttl, and returns the time before which the hold must not end. If the driver cannot leave holds, the check ends.
func (r *request) leave(ttl time.Duration) (end time.Time) {
	end, err := r.tryLeave(r.driver.env.ctx, ttl)
	if err != nil {
		r.driver.env.endf("Leave of %q by %s: %w", r.Name, r.driver.label, err)
	}
	return end
}

// endsIn leaves the hold for ttl, and waits until the name is granted. It
// returns an error if that is before the end.
func (r *request) endsIn(ttl time.Duration) error { return r.endsAt(r.leave(ttl), ttl) }

// endsAt is endsIn for a hold that was left.
func (r *request) endsAt(end time.Time, left time.Duration) error {
	e := r.driver.env
	what := fmt.Sprintf("a hold (%v) with a lease of %v was left for %v, until %s", r.Mode, r.TTL, left, e.events.at(end))
	next := e.outsider().start(r.Name, in(r.Mode)).grantedAfter(what)
	defer next.release()
	if early := end.Sub(next.at); early > 0 {
		return fmt.Errorf("%s, and %q was granted %v before that", what, r.Name, early)
	}
	first, n := r.lease.Tokens()
	if token, _ := next.lease.Tokens(); n > 0 && token < first+uint64(n) {
		return fmt.Errorf("%s, with %d tokens from %d, and the next lease has the token %d", what, n, first, token)
	}
	return nil
}

func leftHoldEndsInTime(e *env) error {
	var ways []func() error
	for m := driver.Exclusive; m <= driver.Permit; m++ {
		if !e.driverInfo().Offers(m) || m == driver.Read {
			continue
		}
		for _, ttls := range []struct{ lease, left time.Duration }{{e.long(), e.ttl()}, {e.ttl(), e.ttl()}} {
			ways = append(ways, func() error {
				return e.driver().hold(e.name(), in(m), fixed, ttl(ttls.lease), block(5)).endsIn(ttls.left)
			})
		}
	}
	e.together("a hold that is left", len(ways), func(i int) error { return ways[i]() })
	return nil
}

func leftHoldOutlivesClose(e *env) error {
	d := e.driver()
	h, other := d.hold(e.name(), fixed, ttl(e.long())), d.hold(e.name(), fixed, ttl(e.long()))
	end := h.leave(e.ttl())
	d.shut()
	if err := e.isFree(other.Name); err != nil {
		return err
	}
	return h.endsAt(end, e.ttl())
}

func leftLeaseIsOver(e *env) error {
	h := e.driver().hold(e.name(), fixed, ttl(e.long()))
	end := h.leave(e.ttl())
	if err := h.renew(e.long()); !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("Renew after Leave: %q, want ErrNotHeld", outcome(err))
	}
	if err := h.tryRelease(e.ctx); !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("Release after Leave: %q, want ErrNotHeld", outcome(err))
	}
	return h.endsAt(end, e.ttl())
}
