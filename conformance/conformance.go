// Package conformance is a test suite that checks whether a driver keeps the
// promises of package driver. It is for authors of drivers:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Harness{
//			Backend: func(testing.TB) *conformance.Backend {
//				return &conformance.Backend{New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
//					return open(tb), nil
//				}}
//			},
//		})
//	}
//
// The promises are listed in SPEC.md, one for each check. The suite learns the
// capabilities of a driver from its [driver.Info] and from its optional
// interfaces, never from the harness. If a driver does not claim a capability,
// the suite checks that the driver returns errors.ErrUnsupported. If the
// harness cannot do something, such as cutting a connection, Run skips the
// check and reports that.
package conformance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
)

// Harness gives the suite access to a driver.
type Harness struct {
	// Backend returns the backend for one check. Each check uses fresh lock
	// names, so Backend may return the same backend every time. Checks run
	// concurrently, because most of them wait most of the time. So Backend and
	// the functions of a *Backend are called concurrently, except for the
	// functions that stop the server. With FakeTime, checks run one after the
	// other. Backend is called in the bubble of the check, and the *Backend
	// belongs to this bubble.
	Backend func(tb testing.TB) *Backend

	// FakeTime runs each check in a bubble of testing/synctest, for drivers
	// without a network. The checks then take almost no real time, and times
	// are exact.
	FakeTime bool

	// TTL is the shortest TTL with which a lease does not run out by accident
	// on this backend and machine. The default is 1 s. The suite raises TTL to
	// the minimum that Info allows. Checks that wait for the end of a lease use
	// TTL. The other checks use a long TTL.
	TTL time.Duration

	// Groups are the groups of checks to run, by the first words of their
	// names, such as "order" and "waiting". Nil runs all groups. A driver that
	// runs the suite on a second server or with other parameters can name the
	// groups whose results may differ there.
	Groups []string

	// Used in tests of the suite.
	breakOwner func(*client, locker) locker
	hangs      time.Duration // the time that counts as a hang
}

// Backend is one backend and the ways to disturb it. All fields except New are
// optional. Each function returns when it has had the effect that its comment
// describes, and fails tb if it cannot.
type Backend struct {
	// New returns an independent client of the backend, with its own
	// connections and its own identity, as another process would have. The
	// suite closes the driver. Anything else that New creates, such as a client
	// of a library, should be closed by tb.Cleanup, which runs after Close has
	// returned. The Link is nil if the connections of the driver cannot be
	// disturbed.
	New func(tb testing.TB) (driver.Driver, *Link)

	// Expire ends all holds of name, as if their TTLs had passed, without
	// notice to the holders. There may be one hold or the holds of several
	// readers. If there is no hold, Expire does nothing.
	Expire func(tb testing.TB, name string)

	// ExpireHold ends one of several readers' holds of a name in the same way.
	// driver.Request.Hold identifies the hold.
	ExpireHold func(tb testing.TB, name, hold string)

	// Freeze stops the server, with its connections open. Thaw lets it
	// continue.
	Freeze, Thaw func(tb testing.TB)

	// Refuse makes the server refuse at least every new hold while it still
	// answers, like a server that is full or read-only, or that has revoked the
	// rights of its clients. Allow ends the refusals.
	Refuse, Allow func(tb testing.TB)

	// Left returns everything that all clients have on the server at this
	// moment: keys, rows, nodes, sessions and subscriptions, each as one text.
	// It omits the data that the driver keeps for later tokens, limits, seals
	// and latches. The suite compares two results.
	Left func(tb testing.TB) []string

	// Restart kills the server and starts it again.
	Restart func(tb testing.TB)

	// Ping sends the server, or each of several servers, a small request that
	// needs the same resources as keeping a lease. It uses a separate
	// connection that no Link disturbs, and returns when all servers have
	// answered or ctx has ended. The suite calls Ping repeatedly, to find out
	// whether a server stood still when a check failed.
	Ping func(ctx context.Context) error

	// URL opens the driver in another process, by driver.Open. A driver without
	// URLs can register a scheme in its tests. The TestMain of the package must
	// call RunWorker.
	URL string
}

// Link contains the ways to disturb the connection between one client and the
// backend. A function is nil if the harness does not support it. Each call
// replaces the effect of the previous call. It takes effect when it returns,
// for later requests and answers.
type Link struct {
	Cut  func() // connections break, and new ones cannot be made
	Hang func() // connections stay open, but no request is answered
	// requests are carried out, but their answers do not arrive and the
	// connection breaks
	LoseAnswers func()
	Delay       func(d time.Duration) // answers arrive at least d late
	// requests and answers vanish, and connections cannot be made; Heal breaks
	// the open ones
	Drop func()
	// the next request is carried out, but its answer does not arrive and its
	// connection breaks
	LoseOne func()
	// the next request is held back until Heal, together with its connection;
	// requests on other connections overtake it
	HoldOne func()
	Heal    func() // back to normal; hung requests may be carried out now
}

// LinkOver returns the Link of a client whose connections go through w.
func LinkOver(w *wire.Wire) *Link {
	instead := func(fault func()) func() {
		return func() {
			w.Heal()
			fault()
		}
	}
	return &Link{
		Cut:         instead(w.Cut),
		Hang:        instead(func() { w.Hold(wire.Both) }),
		LoseAnswers: instead(w.LoseReplies),
		Delay: func(d time.Duration) {
			w.Heal()
			w.Delay(wire.Replies, d)
		},
		Drop:    instead(func() { w.Drop(wire.Both) }),
		LoseOne: instead(func() { w.LoseReply("") }),
		HoldOne: instead(func() { w.HoldRequest("") }),
		Heal:    w.Heal,
	}
}

// Run checks all promises, each in a subtest. It logs a summary and prints the
// first line of the summary to standard output. A check that fails reports the
// broken promise, what the check saw, and what its clients did. A check that
// proves nothing because the machine stood still also fails, and so does a run
// without any check.
//
// The flag -conformance.report of the test binary names a file to which Run
// appends a line when a check begins and a line when it has ended: the result,
// the name of the check, and the promise. If the binary dies, the file shows
// which checks were running.
func Run(t *testing.T, h Harness) {
	checks := allChecks()
	for _, name := range h.Groups {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.group() == name }) {
			t.Fatalf("conformance: Harness.Groups: unknown group %q", name)
		}
	}
	if h.Groups != nil {
		checks = slices.DeleteFunc(checks, func(c check) bool { return !slices.Contains(h.Groups, c.group()) })
	}
	runChecks(t, h, checks)
}

func runChecks(t *testing.T, h Harness, checks []check) {
	if h.Backend == nil {
		t.Fatal("conformance: Harness.Backend is missing")
	}
	results := make([]*result, len(checks)) // nil for checks that -run skips
	file := openResultFile(t)
	run := func(i int) {
		t.Run(checks[i].Name, func(t *testing.T) {
			file.write("running", t.Name(), checks[i])
			r := checks[i].result(t, h)
			results[i] = &r
			file.write(r.outcome(), t.Name(), checks[i])
			checks[i].report(t, r)
		})
	}
	var running sync.WaitGroup
	turns := make(chan struct{}, sideBySide)
	for i, c := range checks {
		if !c.alone(h) {
			turns <- struct{}{}
			running.Go(func() {
				defer func() { <-turns }()
				run(i)
			})
		}
	}
	running.Wait()
	for i, c := range checks {
		if c.alone(h) {
			run(i)
		}
	}
	var s summary
	for i, c := range checks {
		if results[i] != nil {
			s.add(c, *results[i])
		}
	}
	if len(s.groups) == 0 && h.Groups == nil {
		t.Error("conformance: no check ran: the -run pattern selects none (go test splits the pattern at slashes outside brackets)")
	}
	t.Log(s.String())
	fmt.Printf("%s: %s\n", t.Name(), s.counts())
}

// sideBySide is the number of checks that run concurrently in real time. Most
// checks wait most of the time.
const sideBySide = 8

// alone reports whether the check runs without other checks of the same
// harness, as all checks do in fake time, where they do not really wait.
func (c check) alone(h Harness) bool { return h.FakeTime || alone[c.Name] != "" }

// group returns the first word of the check's name.
func (c check) group() string {
	word, _, _ := strings.Cut(c.Name, "/")
	return word
}

// report reports how the check ended.
func (c check) report(t *testing.T, r result) {
	switch {
	case r.byHarness():
		t.Errorf("harness failed: %v; not checked: %s\nevents:\n%s", r.err, c.Promise, r.events)
	case r.stalled != "":
		t.Error(c.invalid(r))
	case r.err != nil:
		t.Errorf("broken promise: %s\nseen: %v\nevents:\n%s", c.Promise, r.err, r.events)
	case r.missing != "":
		t.Skip(c.unverified(r))
	case r.refused != "":
		t.Logf("the driver does not claim %s and refuses it", r.refused)
	}
}

func (c check) unverified(r result) string {
	return fmt.Sprintf("not verified, because the harness has no %s: %s", r.missing, c.Promise)
}

func (c check) invalid(r result) string {
	return fmt.Sprintf("invalid %d times, with up to %d times Harness.TTL: %s. Raise Harness.TTL, or run the tests on a quieter machine. "+
		"Not verified: %s\nseen: %v\nevents:\n%s", tries, 1<<(tries-1), r.stalled, c.Promise, r.err, r.events)
}

// tries is the number of times that a check is run if a standstill may have
// caused its failure. Each run doubles the TTL.
const tries = 3

// result runs the check, with FakeTime in a bubble.
func (c check) result(t *testing.T, h Harness) result {
	run := func(tb testing.TB) result {
		e := newEnv(tb, h)
		defer e.close()
		return e.check(c.run)
	}
	if h.FakeTime {
		return runInBubble(t, run)
	}
	r := run(t)
	for i := 1; i < tries && r.stalled != "" && !r.byHarness(); i++ {
		h.TTL = 2 * cmp.Or(h.TTL, defaultTTL)
		t.Logf("%s; again, with Harness.TTL %v", r.stalled, h.TTL)
		r = run(t)
	}
	return r
}

// check is one promise of drivers, or of package dsync on top of drivers, with
// the function that checks the promise.
//
// A check is a function of an env, in the file of its group, and an entry in
// the table of that group; allChecks lists the tables. The rules for checks:
//
//   - A check returns an error with what the check saw. Run adds the promise
//     and the events.
//   - A check never waits for a guessed time. It awaits progress through states
//     (waits, until), proves the absence of an event by the order of other
//     events, and compares times in the direction that a slow machine cannot
//     falsify. The env ends a check that hangs. A loop that ends at a certain
//     time sleeps in each round, because in fake time nothing else lets time
//     pass.
//   - A check shares the process and the backend with other checks, unless it
//     is listed in alone.
//   - A check of an optional ability begins with env.claims; env.need
//     ends a check that the harness cannot run.
//   - Each check has a mutant in mutants_<group>_test.go: a broken driver
//     caught by this check, and by no earlier check in the table. A check
//     without a mutant fails TestMutants. A new promise needs `go test
//     ./conformance -run Spec -update`.
type check struct {
	Name    string // group/name, or group/name/mode
	Promise string // one sentence
	run     func(*env) error
}

// alone lists the checks that must run without other checks, with the reasons.
var alone = map[string]string{
	"closing/remains":  "it looks for remains, and other checks leave some",
	"refusal/requests": "it makes the server refuse requests",
	"refusal/holds":    "it makes the server refuse requests",
	"refusal/changes":  "it makes the server refuse requests",
	"capabilities/ttl": "it uses leases of the shortest TTL, which tolerate little delay",
	"faults/many":      "it loads the backend, and other checks would be late",
	"fencing/restart":  "it restarts the server",
	"scale/goroutines": "it loads the backend, and other checks would be late",
	"scale/gone":       "it loads the backend, and other checks would be late",
	"scale/held":       "it loads the backend, and other checks would be late",
	"scale/waiters":    "it loads the backend, and other checks would be late",
	"order/hand-overs": "it loads the backend, and other checks would be late",
	"storm/calm":       "it loads the backend, and other checks would be late",
	"storm/faults":     "it loads the backend, and other checks would be late",
	"storm/server":     "it stops the server",
}

// allChecks returns all checks, each after the checks that it builds on. Run
// runs the checks in this order, with the checks in alone at the end.
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

// modeChecks are checks of earlier groups that run again in the modes other
// than Exclusive. They check behavior that a driver implements separately for
// each mode. Checks of behavior that package dsync implements in the same way
// for all modes are not repeated.
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

// moreModes are the modes other than Exclusive.
var moreModes = []driver.Mode{driver.Read, driver.Write, driver.Permit}

// rivals returns a mode whose requests exclude the requests of the check.
func (e *env) rivals() driver.Mode {
	if e.mode == driver.Read {
		return driver.Write
	}
	return e.mode
}

// rival returns a new driver whose requests exclude the requests of the check's
// other drivers.
func (e *env) rival() *rawDriver {
	d := e.driver()
	d.mode = e.rivals()
	return d
}
