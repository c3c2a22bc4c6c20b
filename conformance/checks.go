package conformance

import (
	"slices"
	"testing"
)

// Check is one promise of drivers, or of package dsync on top of them, and how it is checked.
//
// A check is a function of an env, in the file of its group, and an entry in the table of that group; the tables are listed in
// Checks. Its rules:
//
//   - It returns an error that says what it saw. The promise and the events around it are added by Run.
//   - It never waits for a guess of how long something takes: progress is awaited through states (waits, until), that something must
//     not happen is proved by the order of things that do happen, and times are compared in the direction that a slow machine cannot
//     falsify. What hangs is ended by the env. A loop that ends by time sleeps in it: in fake time nothing else lets time pass.
//   - It shares the process and the backend with other checks, unless it is listed in alone.
//   - What only some drivers can do begins with env.claims, what only some harnesses can do ends by itself in env.need.
//   - Each check has a mutant in mutants_<group>_test.go: a broken driver that this check catches, and none before it in the table.
//     A check without one fails TestMutants. A new promise needs `go test ./conformance -run Spec -update`.
type Check struct {
	Name    string // group/name, or group/name/mode
	Promise string // one sentence
	run     func(*env) error
}

// alone are the checks that run beside no others, and why.
var alone = map[string]string{
	"capabilities/ttl": "it takes leases of the shortest TTL, for which answers are soon too late",
	"faults/many":      "it counts the goroutines of the process",
	"scale/goroutines": "it counts the goroutines of the process",
	"scale/gone":       "it counts the goroutines of the process",
	"scale/held":       "the backend is busy, and others would be late",
	"scale/waiters":    "the backend is busy, and others would be late",
	"order/hand-overs": "the backend is busy, and others would be late",
	"storm/calm":       "the backend is busy, and others would be late",
	"storm/faults":     "the backend is busy, and others would be late",
	"storm/server":     "it stops the server",
}

// Checks returns all checks: those that others build on are first. Run begins with them in this order, but for those of alone, which
// are last.
func Checks() []Check {
	return slices.Concat(
		exclusionChecks,
		waitingChecks,
		leaseChecks,
		ownershipChecks,
		reentrancyChecks,
		contentionChecks,
		capabilityChecks,
		lengthChecks,
		deadlineChecks,
		faultChecks,
		closingChecks,
		expiryChecks,
		watchdogChecks,
		keepAliveChecks,
		lossChecks,
		wakeupChecks,
		orderChecks,
		fencingChecks,
		inspectChecks,
		migrationChecks,
		sharingChecks,
		modeChecks,
		watchingChecks,
		leavingChecks,
		namesChecks,
		scaleChecks,
		stormChecks,
		processChecks,
		urlChecks,
	)
}

// Run runs the check alone, and returns how its promise is broken. What the driver does not claim, and refuses, is not broken; if the
// harness is not able to run the check, it skips t.
func (c Check) Run(t *testing.T, h Harness) error {
	r := c.result(t, h)
	switch {
	case r.missing != "":
		t.Skip(c.unverified(r))
	case r.stalled != "" && !r.byHarness():
		t.Skip(c.invalid(r))
	}
	return r.err
}
