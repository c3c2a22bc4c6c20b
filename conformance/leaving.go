package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers whose holds can go on without their client: driver.Leaver.
var leavingChecks = []Check{
	{"leaving/time", "A hold that was left keeps others out until its time, and ends then.", leftHoldEndsInTime},
	{"leaving/close", "Close does not end a hold that was left.", leftHoldOutlivesClose},
	{"leaving/lease", "The lease of a hold that was left is over: it renews nothing and releases nothing.", leftLeaseIsOver},
	{"leaving/bounds", "A hold that was left ends its time after the call of Leave, and at the latest Info.LateFor after that, in every mode, however crooked the time is, and whether it is shorter or longer than the rest of the lease. A waiter finds out.", leftHoldEndsInBounds},
	{"leaving/readers", "Leave of one reader's hold does not change the end of another reader's hold.", leftReaderEndsAlone},
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

// endsAt waits until name, whose hold was left, is granted, and returns an error if that is before end.
func (e *env) endsAt(name string, end time.Time, opts ...option) error {
	next := e.outsider().start(name, opts...).granted()
	defer next.release()
	if early := end.Sub(next.at); early > 0 {
		return fmt.Errorf("%q was granted %v before the end of a hold that was left", name, early)
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
				h := e.driver().hold(e.name(), in(m), fixed, ttl(ttls.lease))
				return e.endsAt(h.Name, h.leave(ttls.left), in(m))
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
	return e.endsAt(h.Name, end)
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
	return e.endsAt(h.Name, end)
}
