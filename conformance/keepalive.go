package conformance

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers that keep sessions alive and report how that goes: driver.KeepAliveReporter.
var keepAliveChecks = []check{
	{"keepalive/outage", "A driver that says how it keeps sessions alive says that it cannot before a lease is lost for that.", outageIsTold},
	{"keepalive/cut", "A driver whose connections break reports that it cannot keep a session alive before it reports a lease lost for that.", brokenConnectionIsTold},
	{"keepalive/session", "The end of its session that a lease reports counts from before the request was sent, and the TTL that it reports is how long the session lasts.", sessionIsAsTold},
	{"keepalive/shared", "Where a session carries several holds, the end of one of them, or of a wait, does not end the others.", sessionIsShared},
	{"keepalive/all-told", "When a session ends, each lease that it carries is reported as lost, with ErrSessionEnded, whether or not another client has the name by then.", allOfSessionAreTold},
	{"keepalive/over", "It says that it can again when the backend is in reach again.", endOfOutageIsTold},
}

// OnKeepAlive implements driver.KeepAliveReporter. If the driver reports nothing, so does the tap.
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

// silent reports whether the driver says nothing of keep-alives.
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
// reported to have succeeded, or none was reported.
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
			return fmt.Errorf("%s said %q of the keep-alive of a session that was kept alive", b.label, outcome(err))
		}
		outage(b.connection)
		e.within("the end of a lease that cannot be kept alive", func() { <-h.Done() })
		if err, _ := b.tap.lastKeepAlive(); err == nil {
			return fmt.Errorf("%s lost a lease (%w), and has not said before that it cannot keep it alive", b.label, h.Err())
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
	// A lease that package dsync has to renew is not reported.
	late := d.tap.Info().LateFor(e.ttl())
	for end := e.expired(h).Add(e.ttl() + late); len(h.lost()) == 0 && time.Now().Before(end); {
		e.sleep(e.ttl() / 20)
	}
	if d.tap.unannounced() {
		return fmt.Errorf("%s reported a lost lease (%w), and had not reported before that it could not keep it alive", d.label, h.lost()[0])
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
		e.poll(b.label+" says that it cannot keep its session alive", func() error {
			if err, _ := b.tap.lastKeepAlive(); err == nil {
				return errors.New("it has not")
			}
			return nil
		})
		b.heal()
		b.lock(e.name()) // its session may be over, and then there is none to keep alive
		e.poll(b.label+" says that it can again", func() error {
			err, _ := b.tap.lastKeepAlive()
			return err
		})
		return nil
	})
}

// sessions ends the check unless sessions carry the locks of the driver.
func (e *env) sessions() {
	if !e.driverInfo().KeepsAlive {
		e.end(&refusedError{"that sessions carry its locks"})
	}
}

// sessionIsAsTold looks at a session that is new, of a client whose answers are
// late.
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
		return fmt.Errorf("%s reports a session of %v that ends at %s; it began after %s, so that it lasts for less", d.label, lasts, e.events.at(expires), e.events.at(before))
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
			return fmt.Errorf("%s reports a session of %v that ends at %s, and the last request that was answered was sent at %s at the latest",
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
		return fmt.Errorf("%s lost a hold when others of its session had ended: %w", a.label, causes[0])
	}
	if err := e.outsider().refused(h.Name); err != nil {
		return fmt.Errorf("after the end of other holds of its session: %w", err)
	}
	return h.tryRelease(e.ctx)
}

func allOfSessionAreTold(e *env) error {
	e.sessions()
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
				return nil // package dsync has to renew the leases, and sees their ends
			}
		}
		for i, h := range all {
			e.until(fmt.Sprintf("%s is told that it lost lease %d of %d of a session that has ended", d.label, i+1, len(all)), func() bool { return len(h.lost()) > 0 })
			if cause := h.lost()[0]; !errors.Is(cause, driver.ErrSessionEnded) || errors.Is(cause, driver.ErrRemoved) {
				return fmt.Errorf("%s was told that it lost lease %d of %d, whose session has ended, with the cause %q, want ErrSessionEnded", d.label, i+1, len(all), cause)
			}
		}
		return nil
	})
}
