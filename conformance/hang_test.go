package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// inRealTime is onMemory without the fake clock.
func inRealTime(mutate func(*memory.Driver) driver.Driver) Harness {
	h := onMemory(nil, mutate)
	h.FakeTime = false
	return h
}

func TestFailureBesideAStallOfTheServerIsInvalid(t *testing.T) {
	const ttl, stall = 400 * time.Millisecond, 800 * time.Millisecond
	var ttls []time.Duration
	once := check{"group/name", "A promise.", func(e *env) error {
		ttls = append(ttls, e.ttl())
		e.sleep(stall + stall/4)
		return errors.New("the lease ran out")
	}}
	timeless := check{"group/timeless", "A promise.", func(e *env) error {
		e.sleep(stall + stall/4)
		return errors.New("the check failed with a different error")
	}}
	h := inRealTime(good)
	h.TTL = ttl
	backend := h.Backend
	h.Backend = func(tb testing.TB) *Backend {
		b := backend(tb)
		b.Ping = func(ctx context.Context) error {
			select {
			case <-time.After(stall):
			case <-ctx.Done():
			}
			return nil
		}
		return b
	}
	r := once.result(t, h)
	if r.err == nil || !strings.HasPrefix(r.stalled, "the server stood still for ") || !slices.Equal(ttls, []time.Duration{ttl, 2 * ttl, 4 * ttl}) {
		t.Errorf("got error %v, stalled %q after runs with the TTLs %v; want an invalid check after three, each with twice the TTL", r.err, r.stalled, ttls)
	}
	var s summary
	s.add(once, r)
	if got := s.String(); !strings.Contains(got, " 0 broken, ") || !strings.Contains(got, ", 1 invalid\ninvalid: group/name (the server stood still") {
		t.Errorf("got the summary %q", got)
	}
	unanswered := check{"group/unanswered", "A promise.", func(e *env) error {
		e.sleep(stall + stall/4)
		return fmt.Errorf("it was not granted: %w", driver.ErrUnknown)
	}}
	if r := unanswered.result(t, h); r.outcome() != "invalid" {
		t.Errorf("a check of an unanswered request is %s with error %v, want invalid", r.outcome(), r.err)
	}
	if r := timeless.result(t, h); r.err == nil || r.outcome() != "broken" {
		t.Errorf("a check without short leases is %s with error %v, want broken", r.outcome(), r.err)
	}
}

// slowRenewals grants leases whose renewals get no answer within half their
// TTL.
type slowRenewals struct{ driver.Driver }

type slowRenewal struct{ driver.Lease }

func (d slowRenewals) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := d.Driver.Acquire(ctx, r)
	return slowRenewal{l}, err
}

func (slowRenewal) Renew(_ context.Context, ttl time.Duration) error {
	time.Sleep(ttl / 2)
	return fmt.Errorf("no answer: %w", driver.ErrUnknown)
}

func TestFailureAfterASlowAnswerIsInvalid(t *testing.T) {
	h := inRealTime(func(d *memory.Driver) driver.Driver { return slowRenewals{d} })
	h.TTL = 100 * time.Millisecond
	for _, test := range []struct {
		disturb func(*rawDriver)
		want    string
	}{{func(*rawDriver) {}, "invalid"}, {(*rawDriver).loseAnswers, "broken"}} {
		r := check{"group/name", "A promise.", func(e *env) error {
			d := e.driver()
			lease := d.hold(e.name())
			test.disturb(d)
			return lease.renew(e.ttl())
		}}.result(t, h)
		if r.outcome() != test.want {
			t.Errorf("the check is %s with %q (stalled: %q), want %s", r.outcome(), r.err, r.stalled, test.want)
		}
	}
}

// TestRunThatProvesNothingFails runs the suite in another process, once with a
// check that cannot be judged, and once without any check. It checks the exit
// status and output of that process.
func TestRunThatProvesNothingFails(t *testing.T) {
	const variable = "CONFORMANCE_PROVES_NOTHING"
	switch os.Getenv(variable) {
	case "invalid":
		r := result{err: errors.New("the lease ran out"), stalled: "this process stood still"}
		check{Name: "group/name", Promise: "A promise."}.report(t, r)
		return
	case "empty":
		Run(t, onMemory(nil, good))
		return
	}
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for why, says := range map[string]string{"invalid": "Raise Harness.TTL", "empty": "no check ran"} {
		cmd := exec.Command(path, "-test.run=^TestRunThatProvesNothingFails$/^nothing$")
		cmd.Env = append(os.Environ(), variable+"="+why)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("%s: the run ended with %v and printed\n%s\nwant a failure that contains %q", why, err, out, says)
		}
	}
}

func TestStalls(t *testing.T) {
	const ttl = time.Second
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	for _, test := range []struct {
		name   string
		stalls []stall
		hung   time.Duration
		want   bool
	}{
		{"none", nil, 0, false},
		{"a standstill that renewals tolerate", []stall{{at(0), ttl / 5}}, 0, false},
		{"a standstill that is too long", []stall{{at(0), ttl / 4}}, 0, true},
		{"two within a TTL", []stall{{at(0), ttl / 5}, {at(ttl / 2), ttl / 5}}, 0, true},
		{"two that are far apart", []stall{{at(0), ttl / 5}, {at(2 * ttl), ttl / 5}}, 0, false},
		{"a standstill that is too short for a hang", []stall{{at(0), ttl}}, 30 * ttl, false},
		{"standstills that are long enough for a hang", []stall{{at(0), 4 * ttl}, {at(9 * ttl), 4 * ttl}}, 30 * ttl, true},
	} {
		s := &stalls{ttl: ttl, of: []*standstill{{who: "this process"}}}
		for _, one := range test.stalls {
			s.of[0].add(ttl, one)
		}
		if why := s.explain(newEvents(), test.hung); (why != "") != test.want {
			t.Errorf("%s: got %q, want an explanation: %t", test.name, why, test.want)
		}
	}
}

func TestFailureOfTheHarnessIsNotOneOfTheDriver(t *testing.T) {
	for name, h := range map[string]Harness{"in real time": inRealTime(good), "in fake time": onMemory(nil, good)} {
		backend := h.Backend
		h.Backend = func(tb testing.TB) *Backend {
			b := backend(tb)
			b.Expire = func(testing.TB, string) { new(testing.T).FailNow() } // like tb.Fatal, but for another test
			return b
		}
		r := check{"group/name", "A promise.", func(e *env) error {
			e.harness("Backend.Expire", func() { e.backend.Expire(e.tb, e.name()) })
			return nil
		}}.result(t, h)
		if !r.byHarness() || !strings.HasPrefix(r.err.Error(), "Backend.Expire failed the test") {
			t.Errorf("%s: got %v, want a failure of Backend.Expire", name, r.err)
		}
	}
}

func TestAnswersWithoutALeaseAreToldByName(t *testing.T) {
	for want, acquire := range map[string]func() (driver.Lease, error){
		"Acquire returned neither a lease nor an error": func() (driver.Lease, error) { return nil, nil },
		"Acquire returned a nil pointer of type *conformance.brokenLease as its lease": func() (driver.Lease, error) {
			var l *brokenLease
			return l, driver.ErrLocked
		},
	} {
		h := onMemory(nil, func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, acquire: func(context.Context, *driver.Request) (driver.Lease, error) { return acquire() }}
		})
		for _, c := range allChecks()[:10] {
			if r := c.result(t, h); r.err == nil || !strings.HasPrefix(r.err.Error(), want) {
				t.Errorf("%s: got %v, want %q", c.Name, r.err, want)
			}
		}
	}
}

func TestBubbleThatDoesNotGetOnIsLeft(t *testing.T) {
	var mu sync.Mutex
	mu.Lock() // permanently: the bubble must not end after the test
	r := runInBubbleFor(t, time.Second/2, func(testing.TB) result {
		waitsForAMutex(&mu)
		return result{}
	})
	if r.err == nil || !strings.Contains(r.err.Error(), "waitsForAMutex") {
		t.Errorf("got %v, want an error with the stack of the goroutine that waits", r.err)
	}
}

func waitsForAMutex(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
}

// connectsIn returns a good driver that connects on its first request and takes
// d for that, as on a busy machine.
func connectsIn(d time.Duration) func(*memory.Driver) driver.Driver {
	return func(m *memory.Driver) driver.Driver {
		connected := sync.OnceValue(func() time.Time { return time.Now().Add(d) })
		return &broken{Driver: m, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			time.Sleep(time.Until(connected()))
			return m.Acquire(ctx, r)
		}}
	}
}

// grantsIn returns a good driver whose first five grants take d to arrive, as
// on a machine that is busy for a while. If a grant has expired on arrival, its
// outcome is unknown.
func grantsIn(d time.Duration) func(*memory.Driver) driver.Driver {
	return func(m *memory.Driver) driver.Driver {
		var late atomic.Int32
		return &broken{Driver: m, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := m.Acquire(ctx, r)
			if err != nil || late.Add(1) > 5 {
				return l, err
			}
			time.Sleep(d)
			if time.Now().Before(l.Expires()) {
				return l, nil
			}
			return nil, driver.ErrUnknown
		}}
	}
}

// givesUpOn returns a good driver whose first five requests take d to arrive.
// It waits for an answer for at most half the TTL.
func givesUpOn(d time.Duration) func(*memory.Driver) driver.Driver {
	return func(m *memory.Driver) driver.Driver {
		var late atomic.Int32
		return &broken{Driver: m, acquire: func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			if late.Add(1) <= 5 {
				time.Sleep(min(d, r.TTL/2))
				if d > r.TTL/2 {
					return nil, driver.ErrUnavailable
				}
			}
			return m.Acquire(ctx, r)
		}}
	}
}

func TestSlowDriversPass(t *testing.T) {
	slow := map[string]func(*memory.Driver) driver.Driver{}
	for _, d := range []time.Duration{defaultTTL * 2 / 3, defaultTTL * 5 / 4} {
		slow[fmt.Sprintf("it takes %v to connect", d)] = connectsIn(d)
	}
	for _, d := range []time.Duration{defaultTTL * 5 / 16, defaultTTL * 5 / 8} {
		slow[fmt.Sprintf("the first grants take %v", d)] = grantsIn(d)
	}
	slow["it gives up on its first requests"] = givesUpOn(defaultTTL * 5 / 32)
	for _, c := range allChecks() {
		for when, d := range slow {
			r := c.result(t, onMemory(nil, d))
			if r.err != nil && !errors.As(r.err, new(*lateError)) {
				t.Errorf("%s, when %s: %v\n%s", c.Name, when, r.err, r.events)
			}
		}
	}
}
