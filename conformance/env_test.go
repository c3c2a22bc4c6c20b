package conformance

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// checked runs f as a check on a good driver in fake time.
func checked(t *testing.T, f func(*env) error) result {
	return check{"group/name", "A promise.", f}.result(t, onMemory(nil, good))
}

func TestHangIsReportedWithItsStack(t *testing.T) {
	r := checked(t, func(e *env) error {
		d, name := e.driver(), e.name()
		d.hold(name)
		d.start(name).granted()
		return nil
	})
	if r.err == nil || !strings.Contains(r.err.Error(), "still not done") || !strings.Contains(r.err.Error(), "memory.(*Driver).Acquire") {
		t.Errorf("got %v, want an error that shows where Acquire hangs", r.err)
	}
	for _, want := range []string{"requests under way (1): A.2 (", "since 0.000000, waits; grants of this name so far: 1)", "the last event was at 0.000000 A.2 waits"} {
		if r.err != nil && !strings.Contains(r.err.Error(), want) {
			t.Errorf("got %v, want an error with %q", r.err, want)
		}
	}
	if !strings.Contains(r.events, "acquire: granted until") {
		t.Errorf("got the events %q, want the drivers' events", r.events)
	}
}

// The error of a waiter explains why the next waiter is granted the name.
func TestErrorOfAWaiterIsReported(t *testing.T) {
	i := slices.IndexFunc(allChecks(), func(c check) bool { return c.Name == "order/clients" })
	var failed atomic.Bool
	r := allChecks()[i].result(t, onMemory(nil, breakWait(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
		l, err := d.Acquire(ctx, r)
		if err == nil && failed.CompareAndSwap(false, true) {
			return nil, errors.Join(driver.ErrUnavailable, l.Release(ctx))
		}
		return l, err
	})))
	if !errors.Is(r.err, driver.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", r.err)
	}
}

// A check may end in an event of a request.
func TestCheckEndsInAnEvent(t *testing.T) {
	r := checked(t, func(e *env) error {
		a, b := e.driver(), e.driver()
		h, over := a.hold(e.name()), a.hold(e.name())
		over.release()
		h.lease = over.lease // its release fails
		return b.canceledAtEvent(h)
	})
	if !errors.Is(r.err, driver.ErrNotHeld) {
		t.Errorf("got %v, want ErrNotHeld", r.err)
	}
}

func TestGoroutineThatIsLeftBehindFailsTheCheck(t *testing.T) {
	r := checked(t, func(e *env) error {
		e.client()
		go func() { <-make(chan int) }()
		return nil
	})
	if r.err == nil || !strings.Contains(r.err.Error(), "TestGoroutineThatIsLeftBehindFailsTheCheck") {
		t.Errorf("got %v, want an error with the stack of the goroutine", r.err)
	}
}

// Two suites may run at the same time in one process.
func TestGoroutinesBesideTheCheckAreNotThoseOfTheDriver(t *testing.T) {
	i := slices.IndexFunc(allChecks(), func(c check) bool { return c.Name == "scale/goroutines" })
	var acquired atomic.Int64
	r := allChecks()[i].result(t, onMemory(nil, func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, lease: func(*brokenLease) {
			if acquired.Add(1) == many/2 {
				for range many {
					go time.Sleep(5 * time.Second)
				}
			}
		}}
	}))
	if r.err != nil {
		t.Error(r.err)
	}
}

// Other tests of the process may keep goroutines for longer than the check
// waits.
func TestGoroutinesOfTheCheckAloneCount(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(allChecks(), func(c check) bool { return c.Name == "scale/goroutines" })
	for _, ofDriver := range []bool{false, true} {
		var held, others sync.WaitGroup
		begin, end := make(chan struct{}), make(chan struct{})
		started := sync.OnceFunc(func() { close(begin) })
		others.Go(func() {
			<-begin
			for range many {
				others.Go(func() { <-end })
			}
		})
		var acquired atomic.Int64
		h := inRealTime(func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, lease: func(*brokenLease) {
				if acquired.Add(1) == many/2 {
					started()
				}
				if ofDriver {
					held.Go(func() { <-end })
				}
			}}
		})
		if ofDriver {
			h.hangs = time.Second // how long the check waits for them to end
		}
		if r := allChecks()[i].result(t, h); (r.err != nil) != ofDriver {
			t.Errorf("the driver has a goroutine for each held name: %t; got %v", ofDriver, r.err)
		}
		started()
		close(end)
		others.Wait()
		held.Wait()
	}
}

// A harness may, at the end of a check, remove resources that the drivers use.
func TestCheckEndsAfterTheCloseOfItsDrivers(t *testing.T) {
	var opened int
	var closed atomic.Int64
	h := onMemory(nil, func(d *memory.Driver) driver.Driver {
		number := opened
		opened++
		return &broken{Driver: d, close: func(ctx context.Context) error {
			err := d.Close(ctx)
			if number == 1 { // of the client, whose Close returns with ctx
				<-ctx.Done()
				time.Sleep(closeFor / 2) // an answer is late
			}
			closed.Add(1)
			return err
		}}
	})
	backend := h.Backend
	h.Backend = func(tb testing.TB) *Backend {
		tb.Cleanup(func() {
			if n := closed.Load(); opened != 2 || n != 2 {
				t.Errorf("of %d drivers, %d were closed when the check had ended, want 2 of 2", opened, n)
			}
		})
		return backend(tb)
	}
	r := check{"group/name", "A promise.", func(e *env) error {
		e.outsider()
		e.client()
		return nil
	}}.result(t, h)
	if r.err != nil {
		t.Error(r.err)
	}
}

func TestFailureInAGoroutineEndsTheCheck(t *testing.T) {
	r := checked(t, func(e *env) error {
		e.together("two", 2, func(i int) error {
			if i == 1 {
				e.endf("number %d", i)
			}
			return nil
		})
		return errors.New("the check went on")
	})
	if r.err == nil || r.err.Error() != "number 1" {
		t.Errorf("got %v, want the error of the goroutine", r.err)
	}
}

func TestWhatTheHarnessCannotDoIsNotVerified(t *testing.T) {
	h := onMemory(nil, good)
	backend := h.Backend
	h.Backend = func(tb testing.TB) *Backend {
		b := backend(tb)
		return &Backend{New: func(tb testing.TB) (driver.Driver, *Link) {
			d, _ := b.New(tb)
			return d, nil
		}}
	}
	var s summary
	for _, c := range faultChecks {
		r := c.result(t, h)
		if r.err != nil || !strings.HasPrefix(r.missing, "Link.") {
			t.Errorf("%s: got error %v and missing %q, want a missing function of Link", c.Name, r.err, r.missing)
		}
		s.add(c, r)
	}
	want := fmt.Sprintf("0 promises kept, 0 broken, 0 refused as unsupported, %d not verified\nnot verified: faults/cut (no Link.Cut), ", len(faultChecks))
	if got := s.String(); !strings.HasPrefix(got, want) {
		t.Errorf("got the summary %q, want %q…", got, want)
	}
}

func TestWhatIsNotClaimedHasToBeRefused(t *testing.T) {
	unclaimed := capability{name: "flying", claimed: func(*client) bool { return false }}
	for _, answer := range []error{errors.ErrUnsupported, fmt.Errorf("no: %w", errors.ErrUnsupported)} {
		unclaimed.refused = func(*client) error { return answer }
		if r := checked(t, func(e *env) error { e.claims(unclaimed); return nil }); r.err != nil || r.refused != "flying" {
			t.Errorf("answer %v: got error %v and refused %q", answer, r.err, r.refused)
		}
	}
	for _, answer := range []error{nil, errors.New("what?"), dsync.ErrLocked} {
		unclaimed.refused = func(*client) error { return answer }
		if r := checked(t, func(e *env) error { e.claims(unclaimed); return nil }); r.err == nil {
			t.Errorf("answer %v: got no error", answer)
		}
	}
	if r := checked(t, func(e *env) error { return e.client().requires(driver.Require{Fenced: true}) }); r.err == nil {
		t.Error("a requirement that the driver meets counts as refused")
	}
}

func TestDriversNeedNotSealOrMark(t *testing.T) {
	never := func(context.Context, driver.Lease) error { return fmt.Errorf("never: %w", errors.ErrUnsupported) }
	unmarked := func(context.Context, driver.Lease, uint64) error { return errors.ErrUnsupported }
	for what, mutate := range map[string]func(*memory.Driver) driver.Driver{
		"without the methods": func(d *memory.Driver) driver.Driver { return struct{ driver.Driver }{d} },
		"that refuses to seal and mark": func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, seal: never, mark: unmarked,
				marked: func(context.Context, driver.Lease) (bool, error) { return false, errors.ErrUnsupported }}
		},
	} {
		for _, c := range migrationChecks {
			if r := c.result(t, onMemory(nil, mutate)); r.err != nil || r.refused != "seals" && r.refused != "marks" {
				t.Errorf("%s on a driver %s: got error %v and refused %q, want seals or marks to be refused", c.Name, what, r.err, r.refused)
			}
		}
	}
	half := func(d *memory.Driver) driver.Driver { return &broken{Driver: d, mark: unmarked} }
	if r := (check{"migration/mark", "", markTells}).result(t, onMemory(nil, half)); r.err == nil {
		t.Error("a driver that never marks, and whose Marked does not report that, passes")
	}
}

func TestEventsKeepTheBeginningAndTheEnd(t *testing.T) {
	for _, n := range []int{0, 1, keepEvents, keepEvents + 7, 2 * keepEvents, 2*keepEvents + 1, 5*keepEvents + 13} {
		v := newEvents()
		for i := range n {
			v.add("A", "event %d.", i)
		}
		got := v.String()
		for _, i := range []int{0, keepEvents - 1, n - keepEvents, n - 1} {
			if i >= 0 && i < n && strings.Count(got, fmt.Sprintf(" event %d.", i)) != 1 {
				t.Errorf("of %d events, number %d does not occur exactly once", n, i)
			}
		}
		if lines := strings.Count(got, "\n") + 1; n > 2*keepEvents && lines != 2*keepEvents+1 {
			t.Errorf("%d events make %d lines", n, lines)
		}
		if last := got[strings.LastIndex(got, "\n")+1:]; n > 0 && !strings.HasSuffix(last, fmt.Sprintf("event %d.", n-1)) {
			t.Errorf("of %d events, the last line is %q", n, last)
		}
	}
}

// interfaces are all interfaces of package driver, and whether a driver or a
// lease may implement them for package dsync. Package dsync does not use
// Sealer, Marker and related interfaces, but drivers/migrate does.
var interfaces = map[string]struct {
	optional bool
	of       reflect.Type
}{
	"Driver":             {},
	"Lease":              {},
	"Events":             {},
	"PhaseReporter":      {}, // only for telemetry
	"KeepAliveReporter":  {}, // taps and their leases always have these three and report nothing if the driver does not
	"SessionLease":       {},
	"TokenKeeper":        {}, // tapped leases always have it, too: a lease without it keeps all its tokens
	"Watcher":            {}, // the groups watching and leaving call the driver behind the tap
	"Leaver":             {},
	"MayLeave":           {},
	"Pinger":             {}, // in place of Inspector; its check calls the driver behind the tap
	"Lister":             {}, // only for humans: the check uses the driver behind the tap
	"Limiter":            {}, // the groups permits and latch call the driver behind the tap
	"Latcher":            {},
	"Sealer":             {},
	"Marker":             {},
	"Unsealer":           {},
	"Unmarker":           {},
	"RemovalWatcher":     {}, // the test of `dsync run` uses it on all backends
	"BatchRenewer":       {true, reflect.TypeFor[driver.BatchRenewer]()},
	"Inspector":          {true, reflect.TypeFor[driver.Inspector]()},
	"ForceUnlocker":      {true, reflect.TypeFor[driver.ForceUnlocker]()},
	"ContentionReporter": {true, reflect.TypeFor[driver.ContentionReporter]()},
	"Passer":             {true, reflect.TypeFor[driver.Passer]()},
}

// If a tap hid an interface, the suite would test less than users use.
func TestTapsKnowAllInterfaces(t *testing.T) {
	files, err := filepath.Glob("../driver/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no files of package driver: ", err)
	}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if _, ok := spec.Type.(*ast.InterfaceType); ok {
				if _, known := interfaces[spec.Name.Name]; !known {
					t.Errorf("the taps do not know driver.%s", spec.Name)
				}
			}
			return false
		})
	}
}

func optional(v any) (names []string) {
	for name, i := range interfaces {
		if i.optional && reflect.TypeOf(v).Implements(i.of) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestTapsHaveTheInterfacesOfWhatIsBehind(t *testing.T) {
	m := memory.New(nil)
	type bare struct{ driver.Driver }
	for _, d := range []driver.Driver{
		m,
		bare{m},
		struct {
			bare
			driver.BatchRenewer
		}{bare{m}, m},
		struct {
			bare
			driver.Inspector
		}{bare{m}, m},
		struct {
			bare
			driver.ForceUnlocker
		}{bare{m}, m},
		struct {
			bare
			driver.BatchRenewer
			driver.Inspector
		}{bare{m}, m, m},
		struct {
			bare
			driver.BatchRenewer
			driver.ForceUnlocker
		}{bare{m}, m, m},
		struct {
			bare
			driver.Inspector
			driver.ForceUnlocker
		}{bare{m}, m, m},
	} {
		if _, tapped := newTap(nil, "A", d); !slices.Equal(optional(tapped), optional(d)) {
			t.Errorf("the tap has the interfaces %v, want %v", optional(tapped), optional(d))
		}
	}
}

func TestTapsOfLeasesReportContention(t *testing.T) {
	r := checked(t, func(e *env) error {
		d := e.driver()
		h := d.hold(e.name())
		if _, ok := h.lease.(driver.ContentionReporter); !ok {
			return errors.New("the tap hides driver.ContentionReporter")
		}
		w := e.driver().start(h.Name).waits()
		h.release()
		w.granted()
		if !h.lease.(driver.ContentionReporter).Contended() {
			return errors.New("a client waited, but the tap reports no waiter")
		}
		return nil
	})
	if r.err != nil {
		t.Error(r.err)
	}
}

// passable is a lease with a Pass method.
type passable struct{ driver.Lease }

func (passable) Pass(context.Context, string, string) error { return nil }

// passableBoth can also report contention.
type passableBoth struct {
	passable
	driver.ContentionReporter
}

func TestTapsOfLeasesHaveTheInterfacesOfWhatIsBehind(t *testing.T) {
	type bare struct{ driver.Lease }
	for _, wrap := range []func(l driver.Lease) driver.Lease{
		func(l driver.Lease) driver.Lease { return bare{l} },
		func(l driver.Lease) driver.Lease { return l },
		func(l driver.Lease) driver.Lease { return passable{bare{l}} },
		func(l driver.Lease) driver.Lease {
			return passableBoth{passable{bare{l}}, l.(driver.ContentionReporter)}
		},
	} {
		var got, want []string
		h := onMemory(nil, breakAcquire(func(d *memory.Driver, ctx context.Context, r *driver.Request) (driver.Lease, error) {
			l, err := d.Acquire(ctx, r)
			if err != nil {
				return nil, err
			}
			l = wrap(l)
			want = optional(l)
			return l, nil
		}))
		r := check{"group/name", "A promise.", func(e *env) error {
			h := e.driver().hold(e.name())
			got = optional(h.lease)
			h.release()
			return nil
		}}.result(t, h)
		if r.err != nil {
			t.Error(r.err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the tap has the interfaces %v, want %v", got, want)
		}
	}
}

func TestLinkThatHangsDoesNotHoldUpTheNextCheck(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	s := memory.NewServer(nil)
	h := Harness{Backend: func(testing.TB) *Backend {
		return &Backend{New: func(testing.TB) (driver.Driver, *Link) {
			return s.NewDriver(), &Link{Heal: func() { <-hang }}
		}}
	}}
	want := errors.New("what was seen")
	done := make(chan error, 1)
	go func() { // ends when the check or the test ends
		done <- check{"group/name", "A promise.", func(e *env) error {
			e.driver()
			return want
		}}.result(t, h).err
	}()
	select {
	case err := <-done:
		if err != want {
			t.Errorf("got %v, want %v", err, want)
		}
	case <-time.After(time.Minute):
		t.Fatal("the check does not end")
	}
}
