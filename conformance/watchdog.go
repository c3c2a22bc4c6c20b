package conformance

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of leases that package dsync or the driver itself renews.
var watchdogChecks = []check{
	{"watchdog/keeps", "A lease stays held for many TTLs while other clients try and wait.", heldForLong},
	{"watchdog/removed", "A renewal never revives a removed hold, even if the name is free again. The holder is notified.", removedStaysRemoved},
	{"watchdog/many", "All leases of a client are renewed, however many there are, and a lost lease does not stop the others.", allAreRenewed},
	{"watchdog/transient", "A lease survives faults that are shorter than the lease.", survivesShortFaults},
	{"watchdog/unreachable", "A holder that cannot renew loses its lease before another client is granted the name.", lostWhenUnreachable},
	{"watchdog/ends", "Nothing is renewed after Unlock: the name stays free.", renewalEnds},
}

// renewing returns a client whose leases must be renewed during a check.
func (e *env) renewing() *client { return e.clientWith(&dsync.Options{TTL: e.ttl()}) }

// renewals waits until the lease was renewed n times, as its deadline shows. It
// returns an error if the lease was lost.
func (h *holding) renewals(n int) error {
	for range n {
		if err := h.lastsPast(h.Deadline()); err != nil {
			return err
		}
	}
	return nil
}

// lastsPast waits until the lease has been renewed and its deadline is after t.
func (h *holding) lastsPast(t time.Time) (lost error) {
	e := h.user.env
	e.poll(fmt.Sprintf("the lease of %s is renewed", h.user.label), func() error {
		if lost = h.Err(); lost == nil && !h.Deadline().After(t) {
			return fmt.Errorf("its deadline is at %s", e.events.at(h.Deadline()))
		}
		return nil
	})
	if lost != nil {
		return fmt.Errorf("%s lost its lease of %q, which it was renewing: %w; the deadline was at %s, and %s",
			h.user.label, h.name, lost, e.events.at(h.Deadline()), h.user.tap.lastFailure())
	}
	return nil
}

func heldForLong(e *env) error {
	a, b, c, name := e.renewing(), e.client(), e.driver(), e.name()
	h := a.lock(name)
	waiting := c.start(name).waits()
	for range 10 { // each takes a third of the TTL
		if err := h.renewals(1); err != nil {
			return err
		}
		if err := b.refused(name); err != nil {
			return err
		}
		if waiting.isDone() {
			return fmt.Errorf("%s stopped waiting for %q while %s held it: %s", c.label, name, a.label, outcome(waiting.err))
		}
	}
	h.unlock()
	waiting.granted().release()
	return nil
}

func allAreRenewed(e *env) error {
	// the first leases are renewed while the others are still being acquired,
	// which takes seconds on a busy machine
	ttl := e.renewed()
	a, b := e.clientWith(&dsync.Options{TTL: ttl}), e.driver()
	held := make([]*holding, 100)
	for i := range held {
		held[i] = a.lock(e.name())
	}
	var gone *holding
	if e.backend.Expire != nil {
		gone = a.lock(e.name())
		e.expire(gone.name)
	}
	end := time.Now().Add(2 * ttl)
	for i, h := range held {
		if err := h.lastsPast(end); err != nil {
			return fmt.Errorf("lease %d of %d: %w", i, len(held), err)
		}
	}
	for i := 0; i < len(held); i += 9 {
		if err := b.refused(held[i].name); err != nil {
			return err
		}
	}
	for _, h := range held {
		h.unlock()
	}
	if gone != nil {
		return gone.lost()
	}
	return nil
}

// expire ends the hold of name, if there is one. If the harness supports this,
// the driver is not notified.
func (e *env) expire(name string) {
	e.need(e.canRemove(), "Backend.Expire")
	if e.backend.Expire != nil {
		e.events.add("", "the hold of %q is ended without notice to its holder", name)
		e.harness("Backend.Expire", func() { e.backend.Expire(e.tb, name) })
		return
	}
	if err := e.client().ForceUnlock(e.ctx, name); !errors.Is(err, driver.ErrNotHeld) {
		e.must(err)
	}
}

func survivesShortFaults(e *env) error {
	e.together("a holder with faults", len(e.outsider().silences()), func(i int) error {
		ttl := e.allowed(3 * e.ttl()) // half of this TTL is enough for a renewal on a busy machine
		a, b, name := e.clientWith(&dsync.Options{TTL: ttl}), e.driver(), e.name()
		fault := a.silences()[i]
		h := a.lock(name)
		token := h.Token()
		for range 2 {
			if err := h.renewals(1); err != nil {
				return err
			}
			fault()
			e.sleep(ttl / 2) // a renewal is due in the meantime
			a.heal()
			if err := h.renewals(1); err != nil {
				return fmt.Errorf("after a fault that lasted half the TTL: %w", err)
			}
			if err := b.refused(name); err != nil {
				return err
			}
		}
		if h.Token() != token {
			return fmt.Errorf("the token of a lease changed from %d to %d", token, h.Token())
		}
		h.unlock()
		return nil
	})
	return nil
}

func lostWhenUnreachable(e *env) error {
	return e.inOutages(func(outage func(*connection)) error {
		a, b, name := e.renewing(), e.driver(), e.name()
		h := a.lock(name)
		waiting := b.start(name).waits()
		if err := h.renewals(1); err != nil {
			return err
		}
		outage(a.connection)
		next := waiting.granted()
		if err := h.overBefore(next); err != nil {
			return err
		}
		if err := h.lost(); err != nil {
			return err
		}
		a.heal()
		return next.keeps("the loss of the previous lease")
	})
}

func renewalEnds(e *env) error {
	a, name := e.renewing(), e.name()
	h, other := a.lock(name), a.lock(e.name())
	if err := h.renewals(1); err != nil {
		return err
	}
	h.unlock()
	for range 4 {
		if err := e.isFree(name); err != nil {
			return fmt.Errorf("after Unlock: %w", err)
		}
		if err := other.renewals(1); err != nil { // by then the other lease would be renewed, too
			return err
		}
	}
	other.unlock()
	return nil
}

func removedStaysRemoved(e *env) error {
	a, b, name := e.renewing(), e.driver(), e.name()
	h := a.lock(name)
	if err := h.renewals(1); err != nil {
		return err
	}
	e.expire(name)
	var next *request
	e.poll("the name is granted to another client", func() error {
		next = b.acquire(name, noWait)
		return next.err
	})
	next.granted().release()
	if err := h.lost(); err != nil {
		return err
	}
	if err := e.isFree(name); err != nil {
		return errors.Join(errors.New("a removed hold is held again"), err)
	}
	return nil
}

// The checks of drivers that keep sessions alive and report the outcomes:
// driver.KeepAliveReporter.
var keepAliveChecks = []check{
	{"keepalive/outage", "A driver that reports its keep-alives reports an outage before the outage costs a lease.", outageIsTold},
	{"keepalive/cut", "A driver whose connections break reports that it cannot keep a session alive before it reports a lease as lost for that reason.", brokenConnectionIsTold},
	{"keepalive/session", "The session end that a lease reports counts from before the request was sent, and the reported TTL is how long the session lasts.", sessionIsAsTold},
	{"keepalive/shared", "If a session carries several holds, the end of one hold, or of a wait, does not end the others.", sessionIsShared},
	{"keepalive/all-told", "When a session ends, each lease that it carries is reported as lost with ErrSessionEnded, even if another client already holds the name.", allOfSessionAreTold},
	{"keepalive/over", "A driver that reports its keep-alives reports the end of an outage when the backend is reachable again.", endOfOutageIsTold},
}

// OnKeepAlive implements driver.KeepAliveReporter. If the driver reports
// nothing, the tap reports nothing either.
func (t *tap) OnKeepAlive(f func(err error)) {
	r, ok := t.Driver.(driver.KeepAliveReporter)
	if !ok {
		return
	}
	r.OnKeepAlive(func(err error) {
		t.env.events.add(t.label, "keep-alive: %s", outcome(err))
		t.mu.Lock()
		t.keptAlive = append(t.keptAlive, err)
		t.mu.Unlock()
		f(err)
	})
}

// silent reports whether the driver does not report keep-alives.
func (t *tap) silent() bool {
	_, tells := t.Driver.(driver.KeepAliveReporter)
	return !tells || !t.Info().KeepsAlive
}

// lastKeepAlive returns the driver's last report, and whether there was one.
func (t *tap) lastKeepAlive() (err error, said bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.keptAlive) == 0 {
		return nil, false
	}
	return t.keptAlive[len(t.keptAlive)-1], true
}

// unannounced reports whether a loss was reported while the last keep-alive was
// reported as successful, or no keep-alive was reported.
func (t *tap) unannounced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.abrupt
}

func outageIsTold(e *env) error {
	a := e.renewing()
	if a.tap.silent() {
		return nil
	}
	return e.inOutages(func(outage func(*connection)) error {
		b := e.renewing()
		h := b.lock(e.name())
		if err := h.renewals(1); err != nil {
			return err
		}
		if err, said := b.tap.lastKeepAlive(); err != nil && said {
			return fmt.Errorf("%s reported %q for the keep-alive of a session that was kept alive", b.label, outcome(err))
		}
		outage(b.connection)
		e.within("the end of a lease that cannot be kept alive", func() { <-h.Done() })
		if err, _ := b.tap.lastKeepAlive(); err == nil {
			return fmt.Errorf("%s lost a lease (%w), but had not reported before that it could not keep the lease alive", b.label, h.Err())
		}
		return nil
	})
}

func brokenConnectionIsTold(e *env) error {
	d := e.driver()
	if d.tap.silent() {
		return nil
	}
	e.need(d.link.Cut != nil, "Link.Cut")
	d.tap.OnKeepAlive(func(error) {})
	h := d.hold(e.name(), ttl(e.ttl()))
	d.cut()
	// The driver does not report outcomes for a lease that package dsync must
	// renew.
	late := d.tap.Info().LateFor(e.ttl())
	for end := e.expired(h).Add(e.ttl() + late); len(h.lost()) == 0 && time.Now().Before(end); {
		e.sleep(e.ttl() / 20)
	}
	if d.tap.unannounced() {
		return fmt.Errorf("%s reported a lost lease (%w), but had not reported before that it could not keep the lease alive", d.label, h.lost()[0])
	}
	return nil
}

func endOfOutageIsTold(e *env) error {
	a := e.renewing()
	if a.tap.silent() {
		return nil
	}
	return e.inOutages(func(outage func(*connection)) error {
		b := e.renewing()
		b.lock(e.name())
		outage(b.connection)
		e.poll(b.label+" reports that it cannot keep its session alive", func() error {
			if err, _ := b.tap.lastKeepAlive(); err == nil {
				return errors.New("it has not")
			}
			return nil
		})
		b.heal()
		b.lock(e.name()) // the session may have ended, so that there is none to keep alive
		e.poll(b.label+" reports that it can keep its session alive again", func() error {
			err, _ := b.tap.lastKeepAlive()
			return err
		})
		return nil
	})
}

// sessions ends the check unless the driver's locks belong to sessions.
func (e *env) sessions() {
	if !e.driverInfo().KeepsAlive {
		e.end(&refusedError{"that sessions carry its locks"})
	}
}

// sessionIsAsTold checks a new session of a client whose answers are late.
func sessionIsAsTold(e *env) error {
	const late = time.Second / 2
	e.sessions()
	before := time.Now()
	d := e.driver()
	if d.link.Delay != nil {
		d.delay(late)
	}
	h := d.hold(e.name(), ttl(e.renewed()))
	s, ok := untap(h.lease).Lease.(driver.SessionLease)
	if !ok {
		e.end(&refusedError{"to report sessions"})
	}
	expires, lasts := s.Session()
	if expires.IsZero() {
		e.end(&refusedError{"to report sessions"})
	}
	sent := h.at
	if d.link.Delay != nil {
		sent = sent.Add(-late) // at the latest
	}
	if lasts <= 0 || expires.After(sent.Add(lasts)) {
		return fmt.Errorf("%s reports a session of %v that ends at %s, which is more than its TTL after the last request, sent at %s at the latest",
			d.label, lasts, e.events.at(expires), e.events.at(sent))
	}
	if expires.Before(before.Add(lasts * 3 / 4)) {
		return fmt.Errorf("%s reports a session of %v that ends at %s; the session began after %s, so it is shorter", d.label, lasts, e.events.at(expires), e.events.at(before))
	}
	if end := h.lease.Expires(); end.After(expires) {
		now, _ := s.Session() // kept alive in the meantime
		if end.After(now) {
			return fmt.Errorf("a lease of %s expires at %s, and its session at %s", d.label, e.events.at(end), e.events.at(now))
		}
	}
	if d.link.Delay == nil {
		h.release()
		return nil
	}
	for end := time.Now().Add(lasts/2 + late); time.Now().Before(end); e.sleep(late / 20) {
		expires, _ := s.Session()
		if sent := time.Now().Add(-late); expires.After(sent.Add(lasts)) {
			return fmt.Errorf("%s reports a session of %v that ends at %s, but the last answered request was sent at %s at the latest",
				d.label, lasts, e.events.at(expires), e.events.at(sent))
		}
	}
	d.heal()
	_ = h.tryRelease(e.ctx) // late answers may have ended the session
	return nil
}

func sessionIsShared(e *env) error {
	e.sessions()
	a, b, t := e.driver(), e.driver(), ttl(e.renewed())
	h, taken := a.hold(e.name(), t), b.hold(e.name())
	for range 2 {
		w := a.start(taken.Name, t).waits()
		w.cancel()
		w.result()
		if err := a.refused(taken.Name, t); err != nil {
			return err
		}
		other := a.hold(e.name(), t)
		other.release()
		_ = other.tryRelease(e.ctx) // a second time
	}
	w := a.start(taken.Name, t).waits()
	taken.release()
	w.granted().release()
	e.sleep(2*h.TTL + e.driverInfo().LateFor(h.TTL))
	if causes := h.lost(); len(causes) > 0 {
		return fmt.Errorf("%s lost a hold when other holds of its session had ended: %w", a.label, causes[0])
	}
	if err := e.outsider().refused(h.Name); err != nil {
		return fmt.Errorf("after the end of other holds of its session: %w", err)
	}
	return h.tryRelease(e.ctx)
}

func allOfSessionAreTold(e *env) error {
	e.sessions()
	times := 1
	if e.fakeTime {
		times = 10 // whether the driver or the backend comes first is random
	}
	e.together("ends of sessions", times, func(int) error { return e.endOfSessionIsTold() })
	return nil
}

func (e *env) endOfSessionIsTold() error {
	return e.inOutages(func(outage func(*connection)) error {
		d, t := e.driver(), ttl(e.ttl())
		d.tap.OnKeepAlive(func(error) {})
		all := []*request{d.hold(e.name(), t), d.hold(e.name(), t), d.hold(e.name(), t), d.hold(e.name(), fixed, t)}
		extended := all[len(all)-1]
		if err := extended.renew(e.long()); err != nil {
			return fmt.Errorf("renewal of a fixed lease: %w", err)
		}
		next := e.outsider().start(all[0].Name).waits()
		outage(d.connection)
		next.granted()
		if time.Now().Before(extended.lease.Expires()) {
			all = all[:len(all)-1] // another session carries it
		}
		d.heal()
		told := func() bool {
			return slices.ContainsFunc(all, func(h *request) bool { return len(h.lost()) > 0 })
		}
		for end := time.Now().Add(2*e.ttl() + d.tap.Info().LateFor(e.ttl())); !told(); e.sleep(e.ttl() / 20) {
			if time.Now().After(end) {
				return nil // package dsync must renew the leases and sees their ends
			}
		}
		for i, h := range all {
			e.until(fmt.Sprintf("%s is notified that it lost lease %d of %d of a session that has ended", d.label, i+1, len(all)), func() bool { return len(h.lost()) > 0 })
			if cause := h.lost()[0]; !errors.Is(cause, driver.ErrSessionEnded) || errors.Is(cause, driver.ErrRemoved) {
				return fmt.Errorf("%s was notified that it lost lease %d of %d, whose session has ended, with the cause %q, want ErrSessionEnded", d.label, i+1, len(all), cause)
			}
		}
		return nil
	})
}
