package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers that keep sessions alive and report how that goes: driver.KeepAliveReporter.
var keepAliveChecks = []Check{
	{"keepalive/outage", "A driver that says how it keeps sessions alive says that it cannot before a lease is lost for that.", outageIsTold},
	{"keepalive/cut", "A driver whose connections break reports that it cannot keep a session alive before it reports a lease lost for that.", brokenConnectionIsTold},
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
