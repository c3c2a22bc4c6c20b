package conformance

import "slices"

// check is one promise of drivers, or of package dsync on top of drivers, with
// the function that checks the promise.
//
// A check is a function of an env, in the file of its group, and an entry in
// the table of that group; allChecks lists the tables. The rules for checks:
//
//   - A check returns an error with what the check saw. Run adds the promise and the events.
//   - A check never waits for a guessed time: a check awaits progress through states (waits, until), proves by the order of other events
//     the absence of an event, and compares times in the direction that a slow machine cannot falsify. The env ends a check that
//     hangs. A loop that ends by time sleeps in each round: in fake time nothing else lets time pass.
//   - A check shares the process and the backend with other checks, unless it is listed in alone.
//   - A check of an ability of some drivers begins with env.claims; env.need ends a check that the harness cannot run.
//   - Each check has a mutant in mutants_<group>_test.go: a broken driver caught by this check, and by no earlier check in the table.
//     A check without a mutant fails TestMutants. A new promise needs `go test ./conformance -run Spec -update`.
type check struct {
	Name    string // group/name, or group/name/mode
	Promise string // one sentence
	run     func(*env) error
}

// alone has the checks to run beside no others, and the reasons.
var alone = map[string]string{
	"closing/remains":  "others leave something while it looks",
	"refusal/requests": "it makes the server refuse requests",
	"refusal/holds":    "it makes the server refuse requests",
	"refusal/changes":  "it makes the server refuse requests",
	"capabilities/ttl": "it takes leases of the shortest TTL, for which answers are soon too late",
	"faults/many":      "the backend is busy, and others would be late",
	"scale/goroutines": "the backend is busy, and others would be late",
	"scale/gone":       "the backend is busy, and others would be late",
	"scale/held":       "the backend is busy, and others would be late",
	"scale/waiters":    "the backend is busy, and others would be late",
	"order/hand-overs": "the backend is busy, and others would be late",
	"storm/calm":       "the backend is busy, and others would be late",
	"storm/faults":     "the backend is busy, and others would be late",
	"storm/server":     "it stops the server",
}

// allChecks returns all checks, each after the checks that it builds on. Run
// takes the checks in this order, with the checks in alone at the end.
func allChecks() []check {
	return slices.Concat(
		exclusionChecks,
		waitingChecks,
		leaseChecks,
		ownershipChecks,
		reentrancyChecks,
		contentionChecks,
		capabilityChecks,
		lengthChecks,
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
		permitChecks,
		modeChecks,
		laterClosingChecks,
		batchChecks,
		deadlineChecks,
		laterLengthChecks,
		laterLossChecks,
		watchingChecks,
		leavingChecks,
		latchChecks,
		crossingChecks,
		namesChecks,
		observeChecks,
		refusalChecks,
		remainsChecks,
		scaleChecks,
		stormChecks,
		singleChecks,
		processChecks,
		urlChecks,
	)
}
