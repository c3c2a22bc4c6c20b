package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

func equalOwnersExcludeInAllModes(e *env) error {
	e.claims(sharing)
	a, b := e.driver(), e.driver()
	same := owner("the same " + e.id)
	for _, held := range modes {
		for _, asked := range modes {
			if !held.Excludes(asked) {
				continue
			}
			name := e.name()
			h := a.hold(name, in(held), same)
			for _, d := range []*rawDriver{a, b} {
				if err := d.refused(name, in(asked), same); err != nil {
					return fmt.Errorf("the hold is %v, the request %v, and their owner is the same: %w", held, asked, err)
				}
			}
			w := b.start(name, in(asked), same).waits()
			h.release()
			w.granted().release()
		}
	}
	return nil
}

func writersDoNotOvertake(e *env) error {
	e.claims(sharing)
	e.claims(sharingOrder)
	for _, m := range aloneModes {
		a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
		h := a.hold(name, in(m))
		r := b.start(name, reading).waits().queued(1)
		w := c.start(name, in(m)).waits().queued(2)
		h.release()
		e.until("one of two that wait is granted the name", func() bool { return r.isDone() || w.isDone() })
		if !r.isDone() || w.isDone() {
			return fmt.Errorf("%s, which came to have %q as %v when %s waited to read it, was granted it first, or beside %s: %s",
				c.label, name, m, b.label, b.label, outcome(w.result().err))
		}
		r.granted()
		if err := e.outsider().refused(name); err != nil {
			return err
		}
		r.release()
		w.granted().release()
	}
	drivers, name := make([]*rawDriver, 8), e.name()
	for i := range drivers {
		drivers[i] = e.driver()
		drivers[i].mode = driver.Write
	}
	h := e.driver().hold(name, writing)
	waiters := e.lineOf(name, drivers)
	h.release()
	if err := e.inOrder(waiters); err != nil {
		return fmt.Errorf("of %d that waited to write: %w", len(waiters), err)
	}
	return nil
}

// readersCleanUp lets a reader's request lose its answer, beside another reader.
func readersCleanUp(e *env) error {
	e.claims(sharing)
	a, b := e.driver(), e.driver()
	e.need(b.link.LoseAnswers != nil, "Link.LoseAnswers")
	b.hold(e.name()).release() // the connection is there
	h := a.hold(e.name(), reading, fixed)
	b.loseAnswers()
	r := b.briefly(h.Name, reading, noWait).result()
	b.heal()
	if r.lease != nil {
		r.release()
	}
	next := e.outsider().start(h.Name, writing).waits()
	e.poll("nothing is left of a request to read whose answer was lost", func() error { return e.oneHolds(h, next) })
	if causes := h.lost(); len(causes) > 0 {
		return fmt.Errorf("%s, which reads, lost its hold after the answer to a request of %s was lost: %w", a.label, b.label, causes[0])
	}
	if next.isDone() {
		return fmt.Errorf("%s was granted %q beside %s, after the answer to a request of %s was lost", next.driver.label, h.Name, a.label, b.label)
	}
	if err := h.tryRelease(e.ctx); err != nil {
		return fmt.Errorf("the release by %s after the answer to a request of %s was lost: %w", a.label, b.label, err)
	}
	next.granted().release()
	return nil
}

// oneHolds returns an error while Inspect counts other holds than one, until
// next is granted.
func (e *env) oneHolds(h, next *request) error {
	o := e.outsider()
	i, ok := o.driver.(driver.Inspector)
	if !ok || next.isDone() {
		return nil
	}
	s, err := i.Inspect(e.ctx, h.Name)
	if err == nil && s.Holders != 1 && s.Held {
		err = fmt.Errorf("Inspect counts %d holds", s.Holders)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// allAreTold has many holds of a name: 300 in fake time, where they cost little.
func allAreTold(e *env) error {
	e.claims(sharing)
	e.claims(forceUnlock)
	n := 9
	if e.fakeTime {
		n = 300
	}
	shared := []driver.Mode{driver.Read}
	if e.driverInfo().Offers(driver.Permit) {
		shared = append(shared, driver.Permit)
	}
	admin := e.client()
	e.together("ForceUnlock of many holds", len(shared), func(i int) error {
		m, name := shared[i], e.name()
		by := []*rawDriver{e.driver(), e.driver(), e.driver()}
		held := make([]*request, n)
		e.together("holds of one name", n, func(i int) error {
			opts := []option{in(m)}
			if m == driver.Permit {
				opts = append(opts, permits(1, n))
			}
			held[i] = by[i%len(by)].hold(name, opts...)
			return nil
		})
		e.must(admin.ForceUnlock(e.ctx, name))
		if e.driverInfo().Detect > 0 {
			told := func() (n int) {
				for _, r := range held {
					if len(r.lost()) > 0 {
						n++
					}
				}
				return n
			}
			deadline := time.Now().Add(e.hangs() / 2)
			e.poll(fmt.Sprintf("all of %d holders in the mode %v are notified of ForceUnlock", n, m), func() error {
				if got := told(); got < n && time.Now().After(deadline) {
					e.endf("of %d holders of %q in the mode %v, %d were notified of ForceUnlock within %v", n, name, m, got, e.hangs()/2)
				} else if got < n {
					return fmt.Errorf("%d were", got)
				}
				return nil
			})
		}
		if err := e.areRemoved(held...); err != nil {
			return fmt.Errorf("after ForceUnlock of a name with %d holds in the mode %v: %w", n, m, err)
		}
		if s := by[0]; m == driver.Read {
			return e.isFree(name)
		} else if r := s.acquire(name, permits(n, n), noWait); r.lease == nil {
			return fmt.Errorf("%d of %d permits cannot be acquired after ForceUnlock: %w", n, n, r.err)
		}
		return nil
	})
	return nil
}

func closedWriter(e *env) error {
	e.claims(sharing)
	ordered := e.driverInfo().ReadWrite.Order != driver.Unordered
	for _, m := range aloneModes {
		a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
		h := a.hold(name, reading)
		first := b.start(name, in(m)).waits().queued(1)
		r := c.start(name, reading)
		if ordered {
			r.waits().queued(2)
		}
		last := b.start(name, in(m)).waits()
		b.shut()
		for _, w := range []*request{first, last} {
			if err := isClosed("a wait of a client that was closed", w.result().err); err != nil {
				return err
			}
		}
		r.granted().release()
		h.release()
		e.awaitFree(name)
	}
	return nil
}
