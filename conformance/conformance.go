// Package conformance is the suite that tells whether a driver keeps the promises of package driver. It is for authors of drivers:
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
// The promises are listed in SPEC.md, one for each check. What a driver can do is taken from its [driver.Info] and from the optional
// interfaces that it implements, never from the harness: what it does not claim has to answer errors.ErrUnsupported, and that is
// checked instead. What the harness cannot do, such as cutting a connection, is left out, and Run says so.
package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
)

// Harness is how the suite gets at a driver.
type Harness struct {
	// Backend returns the backend that one check runs on. The names of the locks are fresh in each check, so it may be the same
	// backend every time. Checks run side by side, since most of them wait most of the time: Backend, and the functions of what it
	// returns, are called concurrently, except for those that stop the server. With FakeTime one check runs after the other; Backend
	// is called in the bubble of the check, and what it returns belongs to that bubble.
	Backend func(tb testing.TB) *Backend

	// FakeTime runs each check in a bubble of testing/synctest, for drivers without a network: in no time, and with exact times.
	FakeTime bool

	// TTL is the shortest one with which a lease does not run out by accident on this backend and machine. The default is 1 s. It is
	// raised to what Info allows. Checks that wait for the end of a lease use it; the others use a long one.
	TTL time.Duration

	// Brief makes 1,000 hand-overs where the suite makes 10,000, which is what takes longest on a backend that writes to disk. It is
	// for a further configuration of a backend, beside one that the whole suite runs on. In real time `go test
	// -short` does the same.
	Brief bool

	// In tests of the suite.
	breakOwner func(*client, locker) locker
	hangs      time.Duration // what counts as a hang
}

// Backend is one backend, and what can be done to it. Everything but New is optional. The functions fail tb when they cannot do what
// they say, and return when it is done.
type Backend struct {
	// New returns an independent client of the backend: with connections and an identity of its own, as another process would have.
	// The suite closes the driver; what was made for it besides, such as a client of a library, ends by tb.Cleanup. The Link is nil
	// if the connections of the driver cannot be disturbed.
	New func(tb testing.TB) (driver.Driver, *Link)

	// Expire ends the hold of name, as if its TTL had passed, behind the back of its holder, and all holds of those who read it. It does
	// nothing if there is none.
	Expire func(tb testing.TB, name string)

	// ExpireHold does so with one of the holds of a name that several read, by its driver.Request.Hold.
	ExpireHold func(tb testing.TB, name, hold string)

	// Freeze stops the server, with its connections open; Thaw lets it go on.
	Freeze, Thaw func(tb testing.TB)

	// Restart ends the server by force and starts it again.
	Restart func(tb testing.TB)

	// Ping asks the server for something small, over a connection of its own that no Link disturbs, and returns when the server has
	// answered or ctx is over. The suite calls it again and again, to know whether the server stood still when a check failed.
	Ping func(ctx context.Context) error

	// URL opens the driver in another process, by driver.Open. A driver that has no URLs can register a scheme in its tests. The
	// TestMain of the package has to call RunWorker.
	URL string
}

// Link is the connection of one client to the backend, and how to disturb it. Functions that are nil are what it cannot do. Each
// replaces what was in force before, and holds for requests and answers that come after it returned.
type Link struct {
	Cut         func()                // connections break and cannot be made
	Hang        func()                // connections stay open, but nothing is answered
	LoseAnswers func()                // requests are carried out, but their answers do not arrive and the connection breaks
	Delay       func(d time.Duration) // answers come at least d late
	Heal        func()                // back to normal; requests that hang may be carried out now
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
		Heal: w.Heal,
	}
}

// Run checks all promises, one subtest each, and logs a summary. A check that fails says which promise is broken, what it saw, and
// what its clients did.
func Run(t *testing.T, h Harness) { runChecks(t, h, Checks()) }

func runChecks(t *testing.T, h Harness, checks []Check) {
	if h.Backend == nil {
		t.Fatal("conformance: Harness.Backend is missing")
	}
	results := make([]*result, len(checks)) // nil for those that -run leaves out
	run := func(i int) {
		t.Run(checks[i].Name, func(t *testing.T) {
			r := checks[i].result(t, h)
			results[i] = &r
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
	t.Log(s.String())
}

// sideBySide is how many checks run at once in real time, in which most of them wait most of the time.
const sideBySide = 4

// alone reports whether the check runs beside no others of the same harness. In fake time nothing waits.
func (c Check) alone(h Harness) bool { return h.FakeTime || alone[c.Name] != "" }

// report says how the check ended.
func (c Check) report(t *testing.T, r result) {
	switch {
	case r.byHarness():
		t.Errorf("harness failed: %v; not looked at: %s\nevents:\n%s", r.err, c.Promise, r.events)
	case r.stalled != "":
		t.Skip(c.invalid(r))
	case r.err != nil:
		t.Errorf("broken promise: %s\nseen: %v\nevents:\n%s", c.Promise, r.err, r.events)
	case r.missing != "":
		t.Skip(c.unverified(r))
	case r.refused != "":
		t.Logf("the driver does not claim %s, and says so", r.refused)
	}
}

func (c Check) unverified(r result) string {
	return fmt.Sprintf("not verified, because the harness has no %s: %s", r.missing, c.Promise)
}

func (c Check) invalid(r result) string {
	return fmt.Sprintf("invalid, %d times: %s. Not verified: %s\nseen: %v\nevents:\n%s", tries, r.stalled, c.Promise, r.err, r.events)
}

// tries is how often a check is run whose failure may have come of a standstill.
const tries = 3

// result runs the check, in a bubble if the harness wants that.
func (c Check) result(t *testing.T, h Harness) result {
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
		t.Logf("%s; once more", r.stalled)
		r = run(t)
	}
	return r
}
