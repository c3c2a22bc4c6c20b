package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var capabilityChecks = []check{
	{"capabilities/info", "Info is sound, constant, and the same for all clients of a backend.", infoIsConstant},
	{"capabilities/ttl", "Leases with the shortest and the longest TTL that Info allows are granted and last that long. Other TTLs are refused with errors.ErrUnsupported.", ttlBounds},
	{"capabilities/tokens", "If the driver claims fencing, leases have tokens, and the tokens of a lease never change. Otherwise leases have no tokens.", tokensAsClaimed},
	{"capabilities/inspect", "Inspect reports the holder of a name to every client, and no holder for a free name.", inspectTells},
	{"capabilities/ping", "Ping succeeds while the backend answers and fails during an outage.", pingTells},
	{"capabilities/pass", "A hold that is passed to another caller of its client has a token above the earlier and below the later tokens. Inspect shows its new holder and note, and its loss is reported.", passIsLikeAGrant},
	{"capabilities/pass-over", "An expired hold is not passed on: Pass returns ErrNotHeld and does not affect a later hold.", expiredHoldIsNotPassed},
	{"capabilities/pass-unanswered", "An unanswered Pass does not return ErrNotHeld. The new token of the hold is lower than the token of the next grant.", passWithoutAnswer},
	{"capabilities/contended", "Contended reports true for a release if another client waited.", waiterIsReported},
}

func infoIsConstant(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	want := a.tap.Info()
	switch {
	case want.Name == "":
		return errors.New("the Info has no driver name")
	case want.Order.String() == driver.Order(-1).String(), want.Fencing.String() == driver.Fencing(-1).String():
		return fmt.Errorf("the Info is not valid: %v, %v", want.Order, want.Fencing)
	case want.Expiry.String() == driver.Expiry(-1).String():
		return fmt.Errorf("the Info is not valid: expiry %v", want.Expiry)
	case want.MinTTL < 0 || want.TTLUnit < 0 || want.Detect < 0 || want.Late < 0 || want.MaxTTL < 0 || want.Poll < 0:
		return fmt.Errorf("the Info has a negative duration: %+v", want)
	case !(want.LatePerTTL >= 0) || want.Expiry == driver.Observed && want.LatePerTTL < 1:
		return fmt.Errorf("Info.LatePerTTL is %v with expiry %v, want at least 1: an observer that starts late waits a full TTL", want.LatePerTTL, want.Expiry)
	case want.MaxTTL > 0 && e.allowed(want.MinTTL) > want.MaxTTL:
		return fmt.Errorf("the Info allows no TTL: %+v", want)
	}
	h := a.hold(name)
	if err := b.refused(name); err != nil {
		return err
	}
	h.release()
	for _, d := range []*rawDriver{a, b, e.driver()} {
		if got := d.tap.Info(); got != want {
			return fmt.Errorf("the Info of %s is %+v, and the Info of %s was %+v", d.label, got, a.label, want)
		}
	}
	return nil
}

func ttlBounds(e *env) error {
	i, d, c := e.driverInfo(), e.driver(), e.client()
	longest := i.MaxTTL
	if longest == 0 {
		longest = 365 * 24 * time.Hour
	}
	shortest := i.MinTTL
	if shortest == 0 {
		shortest = e.ttl()
	}
	held := []*request{}
	for _, t := range append(overflows(longest), e.allowed(shortest), e.allowed(longest)) {
		r := d.inTime(e.name(), fixed, noWait, ttl(e.allowed(t)))
		if r.lease == nil {
			return fmt.Errorf("a lease with the TTL %v, which Info allows, was not granted: %w", r.TTL, r.err)
		}
		held = append(held, r)
	}
	e.sleep(overflown)
	for _, r := range held {
		if err := r.lasts(); err != nil {
			return err
		}
		_ = r.tryRelease(e.ctx) // the shortest TTLs may have ended
	}
	var outside []time.Duration
	if t := i.MinTTL - 1; t > 10*time.Millisecond { // every driver refuses shorter TTLs
		outside = append(outside, t)
	}
	if i.MaxTTL > 0 {
		outside = append(outside, i.MaxTTL+1)
	}
	if i.TTLUnit > 1 {
		outside = append(outside, e.long()-1)
	}
	for _, t := range outside {
		if _, err := c.try(e.name(), dsync.ExpireAfter(t)); !errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("a lease with the TTL %v, which Info does not allow, got %q, want errors.ErrUnsupported", t, outcome(err))
		}
	}
	return nil
}

// overflown is the duration of a lease if the backend truncates its TTL, one of
// overflows, to the low-order bits.
const overflown = 20 * time.Millisecond

// overflows returns TTLs up to longest that slightly exceed 31 or 32 bits in
// the units that backends use.
func overflows(longest time.Duration) (all []time.Duration) {
	for _, unit := range []time.Duration{time.Microsecond, time.Millisecond, time.Second} {
		for _, d := range []time.Duration{unit << 31, unit << 32} {
			if d += overflown; d <= longest {
				all = append(all, d)
			}
		}
	}
	return all
}

// lasts returns an error if a fixed lease that has just been granted has
// already ended or will end before its time. Leases of the shortest TTLs may
// end.
func (r *request) lasts() error {
	e := r.driver.env
	if r.TTL < longTTL {
		return nil
	}
	if err := e.outsider().refused(r.Name); err != nil {
		return fmt.Errorf("soon after a lease of %v was granted: %w", r.TTL, err)
	}
	inspector, ok := e.outsider().driver.(driver.Inspector)
	if !ok {
		return nil
	}
	s, err := inspector.Inspect(e.ctx, r.Name)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	case err == nil && s.TTL > 0 && s.TTL < r.TTL-r.TTL/100:
		return fmt.Errorf("soon after a lease of %v was granted, Inspect reports a remaining TTL of %v", r.TTL, s.TTL)
	}
	return err
}

func pingTells(e *env) error {
	if _, ok := e.outsider().tap.Driver.(driver.Pinger); !ok {
		return nil
	}
	return e.inOutages(func(outage func(*connection)) error {
		d := e.driver()
		ping := func() (err error) {
			ctx, cancel := context.WithTimeout(e.ctx, e.brief())
			defer cancel()
			e.within("Ping", func() { err = d.tap.Driver.(driver.Pinger).Ping(ctx) })
			return err
		}
		if err := ping(); err != nil {
			return fmt.Errorf("%s: Ping: %w", d.label, err)
		}
		outage(d.connection)
		if ping() == nil {
			return fmt.Errorf("%s: Ping succeeded during an outage", d.label)
		}
		d.heal()
		e.poll("Ping by "+d.label+": Ping succeeds after the outage", ping)
		return nil
	})
}

// waiterIsReported tries several times, because a driver may report a waiting
// request before the backend lists it.
func waiterIsReported(e *env) error {
	if err := e.reportsWaiter(false); err != nil || e.mode != driver.Read {
		return err
	}
	return e.reportsWaiter(true)
}

// reportsWaiter is like waiterIsReported, but for a hold of a name that may
// have other holds.
func (e *env) reportsWaiter(others bool) error {
	a, b, name := e.driver(), e.rival(), e.name()
	const tries = 10
	for i := range tries {
		h := a.hold(name)
		var other *request
		if others {
			other = e.outsider().acquire(name, reading).granted()
		}
		c, ok := h.lease.(driver.ContentionReporter)
		if !ok {
			e.end(&refusedError{"to report contention"})
		}
		waiter := b.start(name).waits()
		e.sleep(time.Duration(i) * 10 * time.Millisecond)
		h.release()
		contended := c.Contended()
		if others {
			other.release()
		}
		waiter.granted().release()
		if contended {
			return nil
		}
	}
	return fmt.Errorf("%d times %s released %q while %s waited, but Contended reported no waiter (other holds existed: %t)", tries, a.label, name, b.label, others)
}

func tokensAsClaimed(e *env) error {
	c, d := e.client(), e.driver()
	claimed := e.driverInfo().Fencing != driver.None
	r := d.hold(e.name(), fixed)
	first, n := r.lease.Tokens()
	if claimed && (first == 0 || n < 1) || !claimed && (first != 0 || n != 0) {
		return fmt.Errorf("Info.Fencing is %v, but a lease has %d tokens from %d", e.driverInfo().Fencing, n, first)
	}
	e.must(r.renew(e.long()))
	if again, m := r.lease.Tokens(); again != first || m != n {
		return fmt.Errorf("a lease had %d tokens from %d, and then %d from %d", n, first, m, again)
	}
	r.release()
	h := c.lock(e.name())
	if claimed != (h.Token() != 0) {
		return fmt.Errorf("Info.Fencing is %v, but the token of a lease is %d", e.driverInfo().Fencing, h.Token())
	}
	h.unlock()
	e.claims(fencing)
	return nil
}

func inspectTells(e *env) error {
	e.claims(inspection)
	c, a, b, name := e.client(), e.driver(), e.driver(), e.name()
	standIns := make(map[string]*rawDriver) // for holds that the backend does not keep
	for _, holder := range []*rawDriver{nil, a, nil, b, nil} {
		var h *request
		if holder != nil {
			h = holder.hold(name)
		}
		for _, asks := range []*rawDriver{a, e.outsider()} {
			s, err := asks.inspect(e.ctx, name, h)
			if err != nil {
				return err
			}
			if h == nil || s.Hold == h.Hold {
				continue
			}
			if other := standIns[s.Hold]; other != nil && other != holder || s.Hold == "" {
				return fmt.Errorf("%s reports the identification %q for the hold of %s on %q, want one that no other hold has", asks.label, s.Hold, holder.label, name)
			}
			standIns[s.Hold] = holder
		}
		if s, err := c.inspect(e.ctx, name); err != nil || s.Held != (h != nil) {
			return fmt.Errorf("Inspect of a Client reports held %t and %q, want held %t", s.Held, outcome(err), h != nil)
		}
		if h != nil {
			h.release()
		}
	}
	return nil
}

// inspect returns an error unless Inspect reports that h holds name. A nil h
// means that no client holds it.
func (d *rawDriver) inspect(ctx context.Context, name string, h *request) (driver.Status, error) {
	s, err := d.driver.(driver.Inspector).Inspect(ctx, name)
	switch {
	case err != nil:
		err = fmt.Errorf("Inspect: %w", err)
	case h == nil && s.Held:
		err = fmt.Errorf("%s reports a holder of %q, which is free", d.label, name)
	case h != nil && !s.Held:
		err = fmt.Errorf("%s reports %q as free, which %s holds", d.label, name, h.driver.label)
	case h != nil && s.Hold == h.Hold && s.Owner != "" && s.Owner != h.Owner:
		err = fmt.Errorf("%s reports that %q is held by the owner %q, want %q", d.label, name, s.Owner, h.Owner)
	}
	return s, err
}

// The checks of holds that are passed to another caller of their client:
// driver.Passer.

func isPasser(r *request) bool {
	_, ok := r.lease.(driver.Passer)
	return ok
}

// passer returns r. If the driver cannot pass on holds, the check ends.
func (r *request) passer() *request {
	if !isPasser(r) {
		r.driver.env.end(&refusedError{"to pass holds on"})
	}
	return r
}

// passIsLikeAGrant passes on a hold while another request waits and then
// removes a hold that was passed on.
func passIsLikeAGrant(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	before := b.hold(name)
	last, _ := before.lease.Tokens()
	before.release()
	h := a.hold(name, note("the first note")).passer()
	inspects := inspection.claimed(e.client())
	var of string // distinguishes the hold from others
	if inspects {
		of = b.status(name).Hold
	}
	w := b.start(name).waits()
	for i := range 3 {
		text := fmt.Sprint("note ", i)
		if i == 1 {
			text = ""
		}
		token, err := h.pass(fmt.Sprintf("%s, holder %d", e.id, i), text)
		switch {
		case err != nil:
			return err
		case token <= last:
			return fmt.Errorf("a passed-on hold has the token %d, after %d", token, last)
		case w.isDone():
			return fmt.Errorf("%s was granted %q while %s passed it on", b.label, name, a.label)
		}
		last = token
		if !inspects {
			continue
		}
		s, err := h.describedTo(b)
		if err == nil && s.Hold != of {
			err = fmt.Errorf("Inspect by %s reports the hold %q after Pass, and %q before", b.label, s.Hold, of)
		}
		if err != nil {
			return err
		}
	}
	h.release()
	if token, _ := w.granted().lease.Tokens(); token <= last {
		return fmt.Errorf("%s got the token %d after a hold with token %d that was passed on", b.label, token, last)
	}
	w.release()
	if many := a.hold(name, block(5)); isPasser(many) {
		if _, err := many.pass("the next", ""); err != nil {
			return err
		}
		many.release()
	} else {
		many.release()
	}
	return e.passedIsLost(a.hold(name))
}

// pass passes the hold to another caller and returns its token.
func (r *request) pass(owner, note string) (token uint64, err error) {
	r.driver.env.within(fmt.Sprintf("Pass of %q by %s", r.Name, r.driver.label), func() {
		err = r.lease.(driver.Passer).Pass(r.driver.env.ctx, owner, note)
	})
	r.Owner, r.Note = owner, note
	token, n := r.lease.Tokens()
	if err == nil && n != 1 {
		err = fmt.Errorf("a passed-on hold has %d tokens, want 1", n)
	}
	return token, err
}

// passedIsLost removes a hold that was passed on. The new holder is notified,
// if the driver notifies by itself, and the hold cannot be passed again.
func (e *env) passedIsLost(h *request) error {
	if _, err := h.pass("the next", ""); err != nil || !e.canRemove() {
		return err
	}
	e.remove(h.Name)
	if e.driverInfo().Detect > 0 {
		e.until("the loss of a passed-on hold is reported", func() bool { return len(h.lost()) > 0 })
	}
	_, err := h.pass("the last", "")
	return isNotHeld("Pass of a removed hold", err)
}

func expiredHoldIsNotPassed(e *env) error {
	e.driver().hold(e.name()).passer()
	e.together("holds that have run out", 3, func(i int) error {
		if i == 2 {
			return e.punctual(e.passedEndsInTime)
		}
		a, taken := e.driver(), i == 1
		h := a.hold(e.name(), ttl(e.brief()))
		if e.driverInfo().KeepsAlive {
			a.hang()
		}
		e.expired(h)
		var next *request
		if taken {
			next = e.outsider().start(h.Name).granted()
		}
		if e.driverInfo().KeepsAlive {
			a.heal()
		}
		_, err := h.pass("the next", "")
		if err := isNotHeld("Pass of an expired hold", err); err != nil {
			return err
		}
		if taken {
			return next.keeps("Pass of an expired hold")
		}
		e.awaitFree(h.Name)
		return nil
	})
	return nil
}

// passedEndsInTime passes on a hold in the middle of its lease and then does
// not renew it.
func (e *env) passedEndsInTime() error {
	a := e.driver()
	h := a.hold(e.name(), ttl(e.allowed(2*e.ttl())))
	next := e.outsider().start(h.Name).waits()
	e.sleep(e.ttl())
	if _, err := h.pass("the next", ""); err != nil {
		return err
	}
	if e.driverInfo().KeepsAlive {
		a.hang()
	}
	e.expired(h)
	if err := next.granted().after(h); err != nil {
		return fmt.Errorf("a passed-on hold: %w", err)
	}
	return next.soonAfter(h, "a passed-on hold")
}

func passWithoutAnswer(e *env) error {
	e.driver().hold(e.name()).passer()
	faults := func(c *connection) (all []func()) {
		for _, f := range []struct {
			able  bool
			begin func()
		}{{c.link.LoseAnswers != nil, c.loseAnswers}, {c.link.Hang != nil, c.hang}, {c.link.Cut != nil, c.cut}} {
			if f.able {
				all = append(all, f.begin)
			}
		}
		e.need(len(all) > 0, "Link.Cut")
		return all
	}
	for i := range faults(e.outsider().connection) {
		// one after the other, because the names may share a counter for tokens
		a := e.driver()
		h := a.hold(e.name())
		before, _ := h.lease.Tokens()
		faults(a.connection)[i]()
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		var err error
		e.within("Pass", func() { err = h.lease.(driver.Passer).Pass(ctx, "the next", "") })
		cancel()
		e.events.add(a.label, "unanswered pass: %s", outcome(err))
		after, n := h.lease.Tokens()
		lost := len(h.lost()) > 0 // with the connection, the session may end
		switch {
		case errors.Is(err, driver.ErrNotHeld) && !lost:
			return fmt.Errorf("an unanswered Pass returned %q, but no client has removed the hold", err)
		case after < before, err == nil && n > 0 && after == before:
			return fmt.Errorf("after a Pass that returned %q, a hold with the token %d has the token %d", outcome(err), before, after)
		}
		a.heal()
		if err := h.tryRelease(e.ctx); errors.Is(err, driver.ErrNotHeld) && !lost && len(h.lost()) == 0 {
			return fmt.Errorf("the release after an unanswered Pass: %w", err)
		}
		next := e.outsider().start(h.Name).granted()
		if token, n := next.lease.Tokens(); n > 0 && token <= after {
			return fmt.Errorf("%s got the token %d after a hold with token %d whose unanswered Pass had returned %q", next.driver.label, token, after, outcome(err))
		}
		next.release()
	}
	return nil
}
