package conformance

import (
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers that keep sessions alive and report how that goes: driver.KeepAliveReporter.
var keepAliveChecks = []Check{
	{"keepalive/outage", "A driver that says how it keeps sessions alive says that it cannot before a lease is lost for that.", outageIsTold},
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
