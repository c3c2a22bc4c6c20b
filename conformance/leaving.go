package conformance

import (
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
}

// leave leaves the hold for ttl, and returns the time before which the hold must not end. If the driver cannot leave holds, the check ends.
func (r *request) leave(ttl time.Duration) (end time.Time) {
	d := r.driver
	e := d.env
	leaver, ok := d.tap.Driver.(driver.Leaver)
	if !ok {
		e.end(&refusedError{"to leave holds"})
	}
	end = time.Now().Add(ttl)
	var err error
	e.within(fmt.Sprintf("Leave of %q by %s", r.Name, d.label), func() { err = leaver.Leave(e.ctx, untap(r.lease).Lease, ttl) })
	if err != nil {
		e.endf("Leave of %q by %s: %w", r.Name, d.label, err)
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
