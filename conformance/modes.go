package conformance

import (
	"slices"

	"github.com/go-dsync/dsync/driver"
)

// modeChecks are checks of the groups before, run again in the other modes than Exclusive: checks of what a driver does in its own way, or at
// another place of the backend, in each mode. Package dsync does the same in all modes.
var modeChecks = inModes(
	"waiting/cancel-at-grant",
	"lease/after-wait", "lease/renew", "lease/over", "lease/renew-all",
	"ownership/release-twice", "ownership/stale-release", "ownership/stale-renew",
	"faults/hung-acquire", "faults/hung-wait", "faults/lost-acquire", "faults/lost-release", "faults/lost-renewal", "faults/clean-up",
	"expiry/not-early", "expiry/abandoned", "expiry/bounds",
	"loss/told",
	"capabilities/contended",
)

func inModes(names ...string) (all []check) {
	of := slices.Concat(waitingChecks, leaseChecks, ownershipChecks, capabilityChecks, faultChecks, expiryChecks, lossChecks)
	for _, name := range names {
		c := of[slices.IndexFunc(of, func(c check) bool { return c.Name == name })]
		for _, m := range moreModes {
			all = append(all, check{name + "/" + m.String(), c.Promise, func(e *env) error {
				e.mode = m
				if m == driver.Permit {
					e.claims(permitting)
				} else {
					e.claims(sharing)
				}
				return c.run(e)
			}})
		}
	}
	return all
}

// moreModes are the modes beside Exclusive.
var moreModes = []driver.Mode{driver.Read, driver.Write, driver.Permit}

// rivals is a mode whose requests exclude those of the check.
func (e *env) rivals() driver.Mode {
	if e.mode == driver.Read {
		return driver.Write
	}
	return e.mode
}

// rival returns a new driver whose requests exclude those of the other drivers of the check.
func (e *env) rival() *rawDriver {
	d := e.driver()
	d.mode = e.rivals()
	return d
}
