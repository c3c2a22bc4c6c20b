package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-dsync/dsync/driver"
)

// The check of what clients leave on the backend.
var remainsChecks = []check{
	{"closing/remains", "After Close nothing is left on the backend of a client and of the names that only this client has used, except what later tokens, limits, seals and latches need.", closeLeavesNothing},
}

// remains returns what clients have on the backend, sorted.
func (e *env) remains() (all []string) {
	e.harness("Backend.Left", func() { all = slices.Clone(e.backend.Left(e.tb)) })
	slices.Sort(all)
	return all
}

func closeLeavesNothing(e *env) error {
	e.need(e.backend.Left != nil, "Backend.Left")
	before := e.remains()
	a, b, c := e.driver(), e.driver(), e.driver()
	for m := driver.Exclusive; m <= driver.Permit; m++ {
		if a.tap.Info().Offers(m) {
			e.useInMode(a, b, m)
		}
	}
	e.loseGrants(c)
	e.useLatchAndWatch(a, b)
	a.hold(e.name(), ttl(e.brief())) // runs out, or is ended by Close
	a.hold(e.name())
	for _, d := range []*rawDriver{a, b, c} {
		d.shut()
	}
	e.poll("nothing is left of the clients, which were closed", func() error {
		left := e.remains()
		for _, one := range before {
			if i := slices.Index(left, one); i >= 0 {
				left = slices.Delete(left, i, i+1)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("there are %s", strings.Join(left, ", "))
		}
		return nil
	})
	return nil
}

// useInMode lets clients hold names, wait for them, give up, lose a hold and an
// answer, and leave a hold.
func (e *env) useInMode(a, b *rawDriver, m driver.Mode) {
	h := a.hold(e.name(), in(m))
	waits := b.start(h.Name, rivalOf(m)).waits()
	gone := b.start(h.Name, rivalOf(m)).waits()
	gone.cancel()
	gone.result()
	b.acquire(h.Name, rivalOf(m), noWait)
	if i, ok := b.driver.(driver.Inspector); ok {
		_, _ = i.Inspect(e.ctx, h.Name) // the answer does not matter here
	}
	h.release()
	waits.granted().release()
	c := e.driver() // whose session may end with the hold
	removed := c.hold(e.name(), in(m))
	if f, ok := b.driver.(driver.ForceUnlocker); ok {
		if err := f.ForceUnlock(e.ctx, removed.Name); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			e.end(err)
		}
	}
	b.start(removed.Name, rivalOf(m)) // ended by Close
	c.shut()
	if l, ok := a.tap.Driver.(driver.Leaver); ok {
		left := a.hold(e.name(), in(m), fixed, ttl(e.ttl()))
		e.must(l.Leave(e.ctx, untap(left.lease).Lease, e.brief()))
	}
}

// loseGrants lets a client be granted names in all modes, without an answer.
func (e *env) loseGrants(d *rawDriver) {
	if d.link.LoseAnswers == nil {
		return
	}
	d.hold(e.name()).release() // the connection is there
	d.loseAnswers()
	for m := driver.Exclusive; m <= driver.Permit; m++ {
		if d.tap.Info().Offers(m) {
			ctx, cancel := context.WithTimeout(e.ctx, patience)
			d.startWith(ctx, cancel, e.name(), in(m)).result()
			cancel()
		}
	}
	d.heal()
}

// useLatchAndWatch lets clients watch a name, and a latch until it is gone.
func (e *env) useLatchAndWatch(a, b *rawDriver) {
	if w, ok := a.tap.Driver.(driver.Watcher); ok {
		stop, err := w.Watch(e.name(), func() {})
		if err == nil {
			stop()
		} else if !errors.Is(err, errors.ErrUnsupported) {
			e.end(err)
		}
	}
	if _, ok := a.tap.Driver.(driver.Latcher); ok {
		own := a.latch(e.name())
		stop, err := own.backend.WatchLatch(own.name, func() {})
		e.must(err)
		own.set(1)
		b.latch(own.name).down(e.changeID())
		stop()
	}
}
