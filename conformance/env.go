package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// env provides a check with clients of one backend, names, and bounded ways to
// wait.
//
// If a method without an error result fails, it ends the check as if the check
// had returned the error. This applies to an env and to all values made by it.
// Such methods may be called by the goroutine of the check and by goroutines
// that the check started with run.
type env struct {
	tb       testing.TB
	backend  *Backend
	ctx      context.Context // ends when the check ends
	cancel   context.CancelFunc
	events   *events
	work     sync.WaitGroup               // goroutines of the check
	minTTL   time.Duration                // Harness.TTL
	broken   func(*client, locker) locker // Harness.breakOwner
	patience time.Duration                // Harness.hangs
	sample   bool                         // go test -short, in real time
	fakeTime bool                         // Harness.FakeTime
	stalls   *stalls                      // nil in fake time
	mode     driver.Mode                  // of the requests of the check
	changes  atomic.Uint64                // of latches
	timed    atomic.Bool                  // the check depends on the end of short leases

	mu      sync.Mutex
	err     error         // the first error, with which the check failed
	hung    time.Duration // if err is a hang: how long the check waited
	names   int
	id      string // makes names unique among runs
	closers []func(context.Context)
	links   []*Link
	labels  int
	info    *driver.Info
	undo    func()     // ends the check's effect on the backend, unless nil
	other   *rawDriver // see outsider
	taps    []*tap
}

func newEnv(tb testing.TB, h Harness) *env {
	e := &env{tb: tb, events: newEvents(), minTTL: cmp.Or(h.TTL, defaultTTL), id: rand.Text()[:10], broken: h.breakOwner, patience: h.hangs, sample: testing.Short() && !h.FakeTime, fakeTime: h.FakeTime}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.backend = h.Backend(tb)
	if !h.FakeTime {
		e.stalls = watchStalls(e.minTTL, e.backend.Ping)
	}
	return e
}

// part returns n. In a sample, it returns a quarter of n.
func (e *env) part(n int) int {
	if e.sample {
		return (n + 3) / 4
	}
	return n
}

// check runs f, in a goroutine that the methods of e can end.
func (e *env) check(f func(*env) error) result {
	finished := false
	done := make(chan struct{})
	go func() { // ends when f returns, which has no unbounded waits
		defer close(done)
		pprof.SetGoroutineLabels(pprof.WithLabels(e.ctx, pprof.Labels(checkLabel, e.id)))
		e.failed(f(e))
		finished = true
	}()
	<-done
	e.mu.Lock()
	defer e.mu.Unlock()
	r := result{events: e.events.String()}
	var refused *refusedError
	var missing *missingError
	if e.err == nil && !finished {
		e.err = &harnessError{"a function of the harness"}
	}
	switch {
	case errors.As(e.err, &refused):
		r.refused = refused.capability
	case errors.As(e.err, &missing):
		r.missing = missing.ability
	case e.err != nil:
		r.err = e.err
		if e.hung > 0 || e.timed.Load() || errors.As(e.err, new(*lateError)) || isNoAnswer(e.err) {
			r.stalled = e.stalls.explain(e.events, e.hung)
		}
	}
	return r
}

// isNoAnswer reports whether a check failed because a request got no answer in
// time.
func isNoAnswer(err error) bool {
	return errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable)
}

// harnessError ends a check in which a function of the harness failed the test.
type harnessError struct{ function string }

func (e *harnessError) Error() string {
	return e.function + " failed the test, so nothing is known about the driver"
}

// harness calls a function of the harness, which may end the goroutine by
// tb.Fatal.
func (e *env) harness(function string, f func()) {
	returned := false
	defer func() {
		if !returned {
			e.failed(&harnessError{function})
		}
	}()
	f()
	returned = true
}

// failed records that the check failed, if err is not nil.
func (e *env) failed(err error) {
	if err == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// end ends the check with an error.
func (e *env) end(err error) {
	e.failed(err)
	runtime.Goexit()
}

func (e *env) endf(format string, args ...any) { e.end(fmt.Errorf(format, args...)) }

// once returns a function that calls f at its first call. Unlike a function
// from sync.OnceFunc, it does not panic if f ends the check.
func once(f func()) func() {
	var o sync.Once
	return func() { o.Do(f) }
}

// must ends the check if err is not nil.
func (e *env) must(err error) {
	if err != nil {
		e.end(err)
	}
}

// endHung ends the check because a step has not ended after hangs. The error
// lists the requests that are still under way.
func (e *env) endHung(err error) {
	bound := e.hangs()
	what, stack, _ := strings.Cut(err.Error(), "\n")
	what += "; " + e.underWay()
	if last := strings.Fields(e.events.latest()); len(last) > 0 {
		what += "; the last event was at " + strings.Join(last, " ")
	}
	err = &hungError{err, what + word(stack != "", "\n"+stack)}
	e.mu.Lock()
	if e.err == nil {
		e.hung = bound
	}
	e.mu.Unlock()
	e.end(err)
}

// hungError is the error for a step that has not ended after hangs, with the
// requests that were under way.
type hungError struct {
	error
	text string
}

func (e *hungError) Error() string { return e.text }

func (e *hungError) Unwrap() error { return e.error }

// tap puts a tap in front of a driver of the check.
func (e *env) tap(label string, d driver.Driver) (*tap, driver.Driver) {
	t, tapped := newTap(e, label, d)
	e.mu.Lock()
	e.taps = append(e.taps, t)
	e.mu.Unlock()
	return t, tapped
}

// underWay describes the requests that have no answer yet, and counts the other
// requests for their names that have been granted.
func (e *env) underWay() string {
	e.mu.Lock()
	taps := slices.Clone(e.taps)
	e.mu.Unlock()
	granted := map[string]int{}
	var open []*tapped
	for _, t := range taps {
		t.mu.Lock()
		for name, n := range t.granted {
			granted[name] += n
		}
		for a := range t.open {
			open = append(open, a)
		}
		t.mu.Unlock()
	}
	if len(open) == 0 {
		return "no request is under way"
	}
	slices.SortFunc(open, func(a, b *tapped) int { return a.since.Compare(b.since) })
	const shown = 5
	var texts []string
	for _, a := range open[:min(len(open), shown)] {
		texts = append(texts, fmt.Sprintf("%s.%d (%s, since %s%s; grants of this name so far: %d)",
			a.tap.label, a.n, a.asks, e.events.at(a.since), word(a.isWaiting(), ", waits"), granted[a.name]))
	}
	if more := len(open) - shown; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("requests under way (%d): %s", len(open), strings.Join(texts, ", "))
}

// close ends all clients and goroutines of the check.
func (e *env) close() {
	defer e.stalls.close()
	e.cancel()
	e.mu.Lock()
	closers, links, undo := e.closers, e.links, e.undo
	e.mu.Unlock()
	ended := make(chan struct{})
	go func() { // ends soon, unless the driver or the harness is broken
		defer close(ended)
		if undo != nil {
			undo()
		}
		for _, l := range links {
			if l.Heal != nil {
				l.Heal()
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeFor)
		defer cancel()
		var all sync.WaitGroup
		for _, f := range closers {
			all.Go(func() { f(ctx) })
		}
		all.Go(e.work.Wait)
		all.Wait()
	}()
	giveUp := time.NewTimer(2 * closeFor)
	defer giveUp.Stop()
	select {
	case <-ended:
	case <-giveUp.C:
	}
}

// closeFor bounds the closing of the clients of a check. A good driver needs
// one or two round trips.
const closeFor = 2 * time.Second

// onClose registers f to be called at the end of the check.
func (e *env) onClose(f func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closers = append(e.closers, f)
}

// hangs returns the time that a step may take before it counts as hanging. This
// time is not part of the contract, because a good driver is much faster.
func (e *env) hangs() time.Duration {
	if e.patience > 0 {
		return e.patience
	}
	i := e.driverInfo()
	ttl := e.allowed(e.minTTL)
	return 30*time.Second + 5*(ttl+i.LateFor(ttl))
}

// goroutine is a goroutine of a check.
type goroutine struct {
	done chan struct{}          // closed when it has ended
	id   atomic.Pointer[string] // for stack dumps
}

// run runs f in a goroutine, which must end when all clients are closed.
func (e *env) run(f func()) *goroutine {
	g := &goroutine{done: make(chan struct{})}
	e.work.Go(func() {
		defer e.events.wake()
		defer close(g.done)
		id := goroutineID()
		g.id.Store(&id)
		f()
	})
	return g
}

// isDone reports whether g has ended.
func (g *goroutine) isDone() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// await waits until g has ended. If that takes so long that g must be hanging,
// await ends the check.
func (e *env) await(what string, g *goroutine) { e.awaitFor(e.hangs(), what, g) }

func (e *env) awaitFor(bound time.Duration, what string, g *goroutine) {
	hangs := time.NewTimer(bound)
	defer hangs.Stop()
	select {
	case <-g.done:
	case <-hangs.C:
		where := ""
		if id := g.id.Load(); id != nil {
			where = stackOf(*id)
		}
		e.endHung(fmt.Errorf("%s: still not done after %v\n%s", what, bound, where))
	}
}

// within runs f with the same bound as await.
func (e *env) within(what string, f func()) { e.await(what, e.run(f)) }

// until waits for cond to hold. Events make cond true.
func (e *env) until(what string, cond func() bool) {
	hangs := time.NewTimer(e.hangs())
	defer hangs.Stop()
	for {
		next := e.events.next()
		if cond() {
			return
		}
		select {
		case <-next:
		case <-hangs.C:
			e.endHung(fmt.Errorf("%s: still false after %v", what, e.hangs()))
		}
	}
}

// poll waits until f returns nil, for states of the backend that no event
// reports.
func (e *env) poll(what string, f func() error) {
	deadline := time.Now().Add(e.hangs())
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			e.endHung(fmt.Errorf("%s: still false after %v: %w", what, e.hangs(), err))
		}
		e.sleep(pause)
	}
}

// sleep waits for a duration.
func (e *env) sleep(d time.Duration) { time.Sleep(d) }

// sleepUntil returns after t.
func (e *env) sleepUntil(t time.Time) {
	for !time.Now().After(t) {
		e.sleep(time.Until(t) + 1)
	}
}

// expired waits until a lease's Expires has passed and returns that time. Until
// then, a session may still move it.
func (e *env) expired(r *request) time.Time {
	for {
		end := r.lease.Expires()
		if time.Now().After(end) {
			return end
		}
		e.sleepUntil(end)
	}
}

// together runs f n times concurrently, with the numbers from 0, and waits
// until all calls have returned. If a call fails, the check ends.
func (e *env) together(what string, n int, f func(i int) error) {
	all := make([]*goroutine, n)
	start := make(chan struct{})
	for i := range all {
		all[i] = e.run(func() {
			<-start
			e.failed(f(i))
		})
	}
	close(start)
	for i, g := range all { // the description of a step that hangs is more useful
		e.awaitFor(e.hangs()+e.hangs()/4, fmt.Sprintf("%s (%d of %d)", what, i+1, n), g)
	}
	e.mu.Lock()
	err := e.err
	e.mu.Unlock()
	if err != nil {
		runtime.Goexit()
	}
}

// name returns the name of a lock that no client has used before.
func (e *env) name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names++
	return fmt.Sprintf("conformance/%s/%d", e.id, e.names)
}

// label returns the name of the next client in the events: A, B, …, Z, AA.
func (e *env) label() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.labels
	e.labels++
	return strings.Repeat(string(rune('A'+n%26)), 1+n/26)
}

// driverInfo returns what the driver claims.
func (e *env) driverInfo() driver.Info {
	e.mu.Lock()
	info := e.info
	e.mu.Unlock()
	if info == nil {
		return e.outsider().tap.Info()
	}
	return *info
}

// longTTL is the TTL of leases that must outlast a check.
const longTTL = 10 * time.Minute

// long returns the TTL of leases that do not run out.
func (e *env) long() time.Duration { return e.allowed(longTTL) }

// renewed returns the TTL of leases that are renewed during a check and must
// not run out, even when the machine is busy for seconds.
func (e *env) renewed() time.Duration { return e.allowed(4 * e.ttl()) }

// ttl returns the TTL for leases if the check waits for their end.
func (e *env) ttl() time.Duration {
	e.timed.Store(true)
	return e.allowed(e.minTTL)
}

// defaultTTL is the default of Harness.TTL.
const defaultTTL = time.Second

// brief returns a TTL for leases that expire during a check, at a time that
// does not matter.
func (e *env) brief() time.Duration { return e.allowed(e.ttl() / 4) }

// crooked returns a TTL that is not a round number in any unit, if the driver
// keeps such TTLs exactly.
func (e *env) crooked() time.Duration {
	e.timed.Store(true)
	return e.allowed(time.Second + 317*time.Millisecond + 400*time.Microsecond)
}

// allowed returns the TTL closest to d that the driver keeps.
func (e *env) allowed(d time.Duration) time.Duration {
	i := e.driverInfo()
	d = max(d, i.MinTTL)
	if u := i.TTLUnit; u > 0 {
		d = (d + u - 1) / u * u
	}
	if i.MaxTTL > 0 && d > i.MaxTTL {
		d = i.MaxTTL
		if i.TTLUnit > 0 {
			d -= d % i.TTLUnit
		}
	}
	return d
}

// slack is the delay of an event, beyond the driver's claim, that the suite
// tolerates in real time. In fake time, there is no slack.
const slack = 500 * time.Millisecond

// lateError is the error for an event that happened later than the driver
// claims.
type lateError struct{ error }

// late returns an error if an event happened more than slack later than the
// driver claims. The text what describes the event.
func (e *env) late(by time.Duration, what string, args ...any) error {
	if by <= 0 || by <= slack && !e.fakeTime {
		return nil
	}
	return &lateError{fmt.Errorf("%s: %v too late", fmt.Sprintf(what, args...), by)}
}

// punctual runs f. In real time, if f returns a lateError, punctual runs it
// again, up to three times in all. A machine that stands still delays one try
// but not all of them.
func (e *env) punctual(f func() error) (err error) {
	for range 3 {
		if err = f(); e.fakeTime || !errors.As(err, new(*lateError)) {
			break
		}
	}
	return err
}

// progress counts the steps that goroutines of a check complete. Many steps
// together may take long on a slow backend. The check hangs if not even one
// step completes within the bound for a hang.
type progress struct{ atomic.Int64 }

// awaitAll waits until all goroutines have ended, while p advances.
func (e *env) awaitAll(what string, all []*goroutine, p *progress) {
	last := p.Load()
	hangs := time.NewTimer(e.hangs())
	defer hangs.Stop()
	for _, g := range all {
		for !g.isDone() {
			select {
			case <-g.done:
				continue
			case <-hangs.C:
			}
			now := p.Load()
			if now == last {
				e.endf("%s: no progress for %v, after %d steps", what, e.hangs(), now)
			}
			last = now
			hangs.Reset(e.hangs())
		}
	}
}
