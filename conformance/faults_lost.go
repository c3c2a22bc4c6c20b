package conformance

import (
	"context"
	"fmt"
	"time"
)

// The checks of requests whose answers are lost, apart from the requests that follow at once.

func lostGrant(e *env) error {
	how := [][]option{{noWait}, nil}
	e.together("requests whose answers are lost", len(how)*len(faultTimes), func(i int) error {
		d, name := e.driver(), e.name()
		d.hold(e.name()).release() // the connection is there
		f := d.losing(faultTimes[i/len(how)], 1)
		r := d.start(name, append(how[i%len(how)], fixed, ttl(e.ttl()), f.of)...) // the driver may ask again
		e.sleep(e.ttl() / 10)                                                     // by then the request has been carried out, as a rule
		next := e.outsider().start(name)                                          // where contenders observe a hold, from here on
		e.sleep(e.ttl() / 2)
		d.heal()
		e.until("one of two requests is granted", func() bool { return r.isDone() || next.isDone() })
		if r.isDone() && r.lease != nil {
			if err := next.granted().after(r); err != nil {
				return fmt.Errorf("after the answer to a request for a lease of %v was lost at first: %w", e.ttl(), err)
			}
			next.release()
			return nil
		}
		next.granted().release()
		if r.result().lease != nil {
			_ = r.tryRelease(e.ctx)
		}
		e.awaitFree(name)
		return nil
	})
	return nil
}

func lostRenewal(e *env) error {
	link, d := e.outsider().link, e.brief()
	var faults []func(*rawDriver)
	if link.LoseAnswers != nil && !e.driverInfo().KeepsAlive { // with its connection, a session may end at once
		faults = append(faults, func(a *rawDriver) { a.loseAnswers() })
	}
	if link.Delay != nil {
		faults = append(faults, func(a *rawDriver) { a.delay(2 * d) })
	}
	e.need(len(faults) > 0, "Link.Delay")
	carriedOut := 2 * d // by then, or not at all
	if i := e.driverInfo(); !i.KeepsAlive {
		carriedOut += i.LateFor(d)
	}
	e.together("renewals whose answers are lost", len(faults), func(i int) error {
		a, name := e.driver(), e.name()
		h := a.hold(name, fixed)
		next := e.outsider().start(name).waits()
		faults[i](a)
		renewal := e.run(func() { // ends with its context
			ctx, cancel := context.WithTimeout(e.ctx, 3*d/2)
			defer cancel()
			_ = h.lease.Renew(ctx, d)
		})
		for end := time.Now().Add(carriedOut); !next.isDone() && time.Now().Before(end); {
			e.sleep(d / 100)
		}
		if next.isDone() {
			if err := next.granted().after(h); err != nil {
				return fmt.Errorf("after a renewal for %v, whose answer has not arrived: %w", d, err)
			}
		}
		e.await("Renew", renewal)
		a.heal()
		_ = h.tryRelease(e.ctx)
		next.granted().release()
		return e.isFree(name)
	})
	return nil
}

func cleanUpGoesOn(e *env) error {
	d := e.driver()
	released := d.hold(e.name())
	d.loseAnswers()
	asked := []*request{d.briefly(e.name(), noWait), d.briefly(e.name())}
	for _, r := range asked {
		if err := r.failed(); err != nil {
			return err
		}
	}
	d.cut()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	_ = released.tryRelease(ctx)
	e.sleep(time.Second) // to try in vain
	d.heal()
	for _, r := range append(asked, released) {
		e.awaitFree(r.Name)
	}
	return nil
}

func fewCleanUps(e *env) error {
	for _, when := range faultTimes {
		if err := e.cleansUpMany(when); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) cleansUpMany(when faultTime) error {
	d := e.driver()
	d.hold(e.name()).release() // the connection is there
	names := make([]string, many)
	for i := range names {
		names[i] = e.name()
	}
	before, f := e.goroutines(), d.losing(when, many)
	e.together("requests whose answers are lost", many, func(i int) error { return f.failed(d.briefly(names[i], noWait, f.of)) })
	d.cut() // so the driver can do nothing but wait
	e.poll("the goroutines of what is to be cleaned up", func() error {
		if more := e.goroutines() - before; more > many*9/10 {
			return fmt.Errorf("%d more after %d requests that failed", more, many)
		}
		return nil
	})
	d.heal()
	for i := 0; i < many; i += many / 10 {
		e.awaitFree(names[i])
	}
	return nil
}
