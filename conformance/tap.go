package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// tap wraps a driver and records all calls without changing anything.
type tap struct {
	driver.Driver
	env   *env
	label string

	close  sync.Once
	closed chan struct{} // closed when a Close of the driver has returned

	mu      sync.Mutex
	asked   int            // requests
	names   map[string]int // requests for each name
	waiting map[string]int // requests for each name that are waiting
	granted map[string]int // requests for each name that were granted
	open    map[*tapped]bool
	onWait  func() // if not nil, called when a request is about to wait

	renewal   string  // the outcome of the last renewal that failed
	keptAlive []error // the driver's reports of keep-alives
	abrupt    bool    // see unannounced
}

// newTap returns a tap, and a driver for package dsync. The optional interfaces
// of this driver are BatchRenewer, Inspector and ForceUnlocker, as far as d has
// them.
func newTap(e *env, label string, d driver.Driver) (*tap, driver.Driver) {
	t := &tap{
		Driver: d, env: e, label: label, names: map[string]int{}, waiting: map[string]int{}, granted: map[string]int{}, open: map[*tapped]bool{},
		closed: make(chan struct{}),
	}
	b, canBatch := d.(driver.BatchRenewer)
	i, canInspect := d.(driver.Inspector)
	f, canForce := d.(driver.ForceUnlocker)
	batch := tapBatch{t, b}
	switch {
	case canBatch && canInspect && canForce:
		return t, struct {
			*tap
			tapBatch
			driver.Inspector
			driver.ForceUnlocker
		}{t, batch, i, f}
	case canBatch && canInspect:
		return t, struct {
			*tap
			tapBatch
			driver.Inspector
		}{t, batch, i}
	case canBatch && canForce:
		return t, struct {
			*tap
			tapBatch
			driver.ForceUnlocker
		}{t, batch, f}
	case canInspect && canForce:
		return t, struct {
			*tap
			driver.Inspector
			driver.ForceUnlocker
		}{t, i, f}
	case canBatch:
		return t, struct {
			*tap
			tapBatch
		}{t, batch}
	case canInspect:
		return t, struct {
			*tap
			driver.Inspector
		}{t, i}
	case canForce:
		return t, struct {
			*tap
			driver.ForceUnlocker
		}{t, f}
	}
	return t, t
}

// Acquire implements driver.Driver.
func (t *tap) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	q := *r
	a := t.ask(&q)
	l, err := t.Driver.Acquire(ctx, &q)
	if isNil(l) {
		if wrong := noLease(l, err); wrong != nil {
			t.env.failed(wrong)
			err = wrong
		}
		l = nil
	}
	a.answered(l, err)
	if l == nil {
		return nil, err
	}
	tl := &tapLease{Lease: l, tapped: a, mode: r.Mode, granted: time.Now()}
	c, canReport := l.(driver.ContentionReporter)
	p, canPass := l.(driver.Passer)
	switch {
	case canReport && canPass:
		return tapContendedPasser{tl, c, tapPass{a, p}}, err
	case canReport:
		return tapContended{tl, c}, err
	case canPass:
		return tapPasser{tl, tapPass{a, p}}, err
	}
	return tl, err
}

// noLease returns the error in an answer without a lease, or nil.
func noLease(l driver.Lease, err error) error {
	switch {
	case l != nil:
		return fmt.Errorf("Acquire returned a nil pointer of type %T as its lease, which is not a nil driver.Lease, and %q", l, outcome(err))
	case err == nil:
		return errors.New("Acquire returned neither a lease nor an error")
	}
	return nil
}

// isNil reports whether v is nil or holds a nil pointer.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && p.IsNil()
}

// Close implements driver.Driver.
func (t *tap) Close(ctx context.Context) error {
	t.env.events.add(t.label, "close")
	err := t.Driver.Close(ctx)
	t.close.Do(func() { close(t.closed) })
	t.env.events.add(t.label, "close: %s", outcome(err))
	return err
}

// tapped is a request through a tap. It stands between the driver and the
// Events of the request.
type tapped struct {
	driver.Events
	tap  *tap
	name string
	n    int // the number of the request at this tap

	asks  string // a description of the request
	since time.Time

	// Guarded by tap.mu.
	waits, done bool
}

// ask records a request and wraps the request's Events.
func (t *tap) ask(r *driver.Request) *tapped {
	t.mu.Lock()
	t.asked++
	t.names[r.Name]++
	a := &tapped{Events: r.Events, tap: t, name: r.Name, n: t.asked, asks: asks(r), since: time.Now()}
	t.open[a] = true
	t.mu.Unlock()
	r.Events = a
	a.add("acquire %s, TTL %v%s%s", a.asks, r.TTL, word(r.Fixed, ", fixed"), word(r.NoWait, ", no wait"))
	return a
}

// asks describes a request.
func asks(r *driver.Request) string {
	return fmt.Sprintf("%q%s%s", r.Name, word(r.Mode != driver.Exclusive, ", "+r.Mode.String()),
		word(r.Mode == driver.Permit, fmt.Sprintf("s %d of %d", r.Permits, r.Limit)))
}

func (a *tapped) isWaiting() bool {
	a.tap.mu.Lock()
	defer a.tap.mu.Unlock()
	return a.waits && !a.done
}

func word(is bool, w string) string {
	if is {
		return w
	}
	return ""
}

func (a *tapped) add(format string, args ...any) {
	a.tap.env.events.add(fmt.Sprintf("%s.%d", a.tap.label, a.n), format, args...)
}

func (a *tapped) answered(l driver.Lease, err error) {
	a.tap.mu.Lock()
	a.done = true
	delete(a.tap.open, a)
	if l != nil {
		a.tap.granted[a.name]++
	}
	if a.waits {
		a.tap.waiting[a.name]--
	}
	a.tap.mu.Unlock()
	if l == nil {
		a.add("acquire: %s", outcome(err))
		return
	}
	first, n := l.Tokens()
	a.add("acquire: granted until %s, %d tokens from %d%s", a.tap.env.events.at(l.Expires()), n, first, word(err != nil, ", and "+outcome(err).Error()))
}

// Waiting implements driver.Events.
func (a *tapped) Waiting() {
	a.tap.mu.Lock()
	if !a.waits && !a.done {
		a.waits = true
		a.tap.waiting[a.name]++
	}
	onWait := a.tap.onWait
	a.tap.mu.Unlock()
	if onWait != nil {
		onWait()
	}
	a.Events.Waiting()
	a.add("waits")
}

// Lost implements driver.Events.
func (a *tapped) Lost(cause error) {
	a.tap.mu.Lock()
	if n := len(a.tap.keptAlive); n == 0 || a.tap.keptAlive[n-1] == nil {
		a.tap.abrupt = true
	}
	a.tap.mu.Unlock()
	a.Events.Lost(cause)
	a.add("lost: %v", cause)
}

// lastFailure describes the last failure of a renewal, if any.
func (t *tap) lastFailure() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return cmp.Or(t.renewal, "no renewal failed")
}

// waits returns the number of requests that are waiting for name.
func (t *tap) waits(name string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting[name]
}

// requests returns the number of requests for name, and of all requests.
func (t *tap) requests(name string) (n, all int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names[name], t.asked
}

// tapLease is a lease that was granted through a tap.
type tapLease struct {
	driver.Lease
	*tapped
	mode    driver.Mode
	granted time.Time
}

// Tokens implements driver.Lease.
func (l *tapLease) Tokens() (uint64, int) { return l.Lease.Tokens() }

// KeepTokens implements driver.TokenKeeper, even for a lease without the
// interface.
func (l *tapLease) KeepTokens(ctx context.Context) error {
	if k, ok := l.Lease.(driver.TokenKeeper); ok {
		err := k.KeepTokens(ctx)
		l.add("keep tokens: %s", outcome(err))
		return err
	}
	return nil
}

// Session implements driver.SessionLease, even for a lease without the
// interface.
func (l *tapLease) Session() (time.Time, time.Duration) {
	if s, ok := l.Lease.(driver.SessionLease); ok {
		return s.Session()
	}
	return time.Time{}, 0
}

// Renew implements driver.Lease.
func (l *tapLease) Renew(ctx context.Context, ttl time.Duration) error {
	l.add("renew for %v", ttl)
	began := time.Now()
	err := l.Lease.Renew(ctx, ttl)
	l.renewed(began, err)
	return err
}

func (l *tapLease) renewed(began time.Time, err error) {
	l.tap.env.stalls.answered(began, err)
	if err != nil {
		l.tap.mu.Lock()
		l.tap.renewal = fmt.Sprintf("the last failed renewal, at %s, got %q", l.tap.env.events.at(time.Now()), err)
		l.tap.mu.Unlock()
	}
	l.add("renew: %s, until %s", outcome(err), l.tap.env.events.at(l.Expires()))
}

// Release implements driver.Lease.
func (l *tapLease) Release(ctx context.Context) error {
	l.add("release")
	began := time.Now()
	err := l.Lease.Release(ctx)
	l.tap.env.stalls.answered(began, err)
	history.Answered(ctx, l.mode, l.granted, err)
	l.add("release: %s", outcome(err))
	return err
}

type tapContended struct {
	*tapLease
	driver.ContentionReporter
}

type tapPasser struct {
	*tapLease
	tapPass
}

type tapContendedPasser struct {
	*tapLease
	driver.ContentionReporter
	tapPass
}

// tapPass is the Pass of a lease that was granted through a tap.
type tapPass struct {
	of    *tapped
	inner driver.Passer
}

// Pass implements driver.Passer.
func (p tapPass) Pass(ctx context.Context, owner, note string) error {
	p.of.add("pass to %q", owner)
	err := p.inner.Pass(ctx, owner, note)
	p.of.add("pass: %s", outcome(err))
	return err
}

// tapBatch implements RenewAll for a tap.
type tapBatch struct {
	tap   *tap
	inner driver.BatchRenewer
}

// RenewAll implements driver.BatchRenewer.
func (b tapBatch) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	taps, inner := make([]*tapLease, len(leases)), make([]driver.Lease, len(leases))
	for i, l := range leases {
		taps[i] = untap(l)
		inner[i] = taps[i].Lease
	}
	b.tap.env.events.add(b.tap.label, "renew %d leases", len(leases))
	began := time.Now()
	b.inner.RenewAll(ctx, inner, func(i int, err error) {
		if i >= 0 && i < len(taps) {
			taps[i].renewed(began, err)
		}
		done(i, err)
	})
}

// untap returns the tapLease in l, which must come from the Acquire of a tap.
func untap(l driver.Lease) *tapLease { return l.(interface{ untap() *tapLease }).untap() }

func (l *tapLease) untap() *tapLease { return l }

// outcome describes an error in the words that events use.
func outcome(err error) error {
	if err == nil {
		return errOK
	}
	return err
}

var errOK = errors.New("ok")

// events records the actions of the clients of a check, to be shown if it
// fails.
type events struct {
	start time.Time

	mu      sync.Mutex
	first   []string // the beginning, up to keepEvents
	last    []string // a ring of the last events after these
	n       int
	changed chan struct{} // closed, and replaced, with each event
}

// keepEvents is the number of first events, and also of last events, that are
// kept.
const keepEvents = 100

func newEvents() *events { return &events{start: time.Now(), changed: make(chan struct{})} }

// add records that something happened now.
func (v *events) add(who, format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	line := fmt.Sprintf("%12.6f  %-8s %s", time.Since(v.start).Seconds(), who, fmt.Sprintf(format, args...))
	switch {
	case len(v.first) < keepEvents:
		v.first = append(v.first, line)
	case len(v.last) < keepEvents:
		v.last = append(v.last, line)
	default:
		v.last[v.n%keepEvents] = line
	}
	v.n++
	v.notify()
}

// wake makes callers that wait for events check again.
func (v *events) wake() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notify()
}

// notify is called with mu held.
func (v *events) notify() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// next returns a channel that is closed by the next event or wake.
func (v *events) next() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// latest returns the last event, or "".
func (v *events) latest() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := v.last
	switch {
	case len(lines) == keepEvents:
		return lines[(v.n+keepEvents-1)%keepEvents]
	case len(lines) == 0:
		lines = v.first
	}
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// at formats a time as String does.
func (v *events) at(t time.Time) string { return fmt.Sprintf("%.6f", t.Sub(v.start).Seconds()) }

// String returns the events, one per line, with the time in seconds since the
// beginning of the check.
func (v *events) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := append([]string(nil), v.first...)
	if left := v.n - len(v.first) - len(v.last); left > 0 {
		lines = append(lines, fmt.Sprintf("%12s  (%d more)", "", left))
	}
	oldest := 0
	if len(v.last) == keepEvents {
		oldest = v.n % keepEvents
	}
	lines = append(append(lines, v.last[oldest:]...), v.last[:oldest]...)
	return strings.Join(lines, "\n")
}
