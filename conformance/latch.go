package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers with latches: driver.Latcher.
var latchChecks = []check{
	{"latch/set", "SetLatch sets a latch with its count only if there is none. At 0 the latch is gone and can be set again.", latchIsSetOnce},
	{"latch/count", "Each countdown lowers the count by one, even if many arrive simultaneously from different clients. Without a latch, a countdown has no effect.", latchCounts},
	{"latch/delete", "A deleted latch is gone and can be set again. Without a latch, a deletion has no effect.", latchIsDeleted},
	{"latch/names", "Latches of different names are independent.", latchesAreApart},
	{"latch/close", "A latch outlives the client that set it, and persists through long periods without a change. A closed client makes no further changes.", latchOutlivesClose},
	{"latch/repeat", "A change that is requested again with its id is carried out only once, and gets the same answer, even if the latch has changed in the meantime.", latchChangesOnce},
	{"latch/wide", "A count of 2^40 is stored exactly.", latchIsWide},
	{"latch/known", "The backend knows the id of a change after many other changes, and for twice driver.RepeatFor.", latchKnowsChanges},
	{"latch/lost-answers", "A change that is repeated until there is an answer is carried out only once, whatever the network does.", latchSurvivesFaults},
	{"latch/told", "A watch of a latch calls changed when it begins and after each end of the latch, by any client.", latchTellsEnds},
	{"latch/outage", "If a latch ends while the watcher cannot reach the backend, changed is called when the watcher can reach it again.", latchWatchSurvivesOutages},
	{"latch/stop", "After stop, changed is not called again, and other watches of the latch continue.", latchWatchStops},
}

// latch is a latch as one driver sees it.
type latch struct {
	d       *rawDriver
	backend driver.Latcher
	name    string
}

// latch returns the latch of a name. If the driver has no latches, the check
// ends.
func (d *rawDriver) latch(name string) *latch {
	backend, ok := d.tap.Driver.(driver.Latcher)
	if !ok {
		d.env.end(&refusedError{"to keep latches"})
	}
	return &latch{d, backend, name}
}

// latches returns the latch of a new name, as two drivers see it.
func (e *env) latches() (a, b *latch) {
	name := e.name()
	return e.driver().latch(name), e.driver().latch(name)
}

// changeID returns the id of a new change.
func (e *env) changeID() string { return fmt.Sprintf("%s:%d", e.id, e.changes.Add(1)) }

// did runs a call to the driver with a time limit. An error ends the check.
func (l *latch) did(what string, f func() error) {
	e := l.d.env
	var err error
	e.within(fmt.Sprintf("%s of %q by %s", what, l.name, l.d.label), func() { err = f() })
	e.events.add(l.d.label, "%s %q: %s", what, l.name, outcome(err))
	if err != nil {
		e.endf("%s of %q by %s: %w", what, l.name, l.d.label, err)
	}
}

// trySet tries to set the count to n.
func (l *latch) trySet(id string, n int) (set bool) {
	l.did(fmt.Sprintf("SetLatch to %d", n), func() (err error) {
		set, err = l.backend.SetLatch(l.d.env.ctx, l.name, id, n)
		return err
	})
	return set
}

// set sets the count of a latch that does not exist yet.
func (l *latch) set(n int) {
	if !l.trySet(l.d.env.changeID(), n) {
		l.d.env.endf("SetLatch of %q by %s: there is a latch, want none", l.name, l.d.label)
	}
}

func (l *latch) down(id string) {
	l.did("CountDown", func() error { return l.backend.CountDown(l.d.env.ctx, l.name, id) })
}

func (l *latch) delete(id string) {
	l.did("DeleteLatch", func() error { return l.backend.DeleteLatch(l.d.env.ctx, l.name, id) })
}

// count returns the count.
func (l *latch) count() (left int) {
	l.did("Latch", func() (err error) {
		left, err = l.backend.Latch(l.d.env.ctx, l.name)
		return err
	})
	return left
}

// has ends the check if the count is not n.
func (l *latch) has(n int, when string) {
	if left := l.count(); left != n {
		l.d.env.endf("%s: %s sees the count %d of %q, want %d", when, l.d.label, left, l.name, n)
	}
}

func latchIsSetOnce(e *env) error {
	a, b := e.latches()
	a.has(0, "before the latch is set")
	for _, n := range []int{1, 3, 1000} {
		a.set(n)
		for _, l := range []*latch{a, b} {
			l.has(n, "after the latch was set")
			if l.trySet(e.changeID(), n+1) {
				return fmt.Errorf("%s set %q, which was set", l.d.label, l.name)
			}
			l.has(n, "after another client tried to set it")
		}
		for range min(n, 3) {
			b.down(e.changeID())
		}
		if n <= 3 {
			a.has(0, "after it was counted down to 0")
			continue
		}
		a.has(n-3, "after three countdowns")
	}
	return nil
}

func latchCounts(e *env) error {
	const clients, each = 4, 25
	name := e.name()
	all := make([]*latch, clients)
	for i := range all {
		all[i] = e.driver().latch(name)
	}
	all[0].down(e.changeID())
	all[0].has(0, "after a countdown without a latch")
	all[0].set(clients*each + 1)
	e.together("countdowns", clients, func(i int) error {
		for range each {
			all[i].down(e.changeID())
		}
		return nil
	})
	all[1].has(1, "after all countdowns but one")
	for i := range 3 {
		all[i].down(e.changeID())
		all[i].has(0, "after the last countdown and further countdowns")
	}
	for range 5 {
		all[0].set(clients)
		e.together("the last countdowns", clients, func(i int) error {
			all[i].down(e.changeID())
			return nil
		})
		all[0].has(0, "after the last countdowns, which were simultaneous")
	}
	return nil
}

func latchIsWide(e *env) error {
	a, b := e.latches()
	for _, n := range []int{1 << 15, 1 << 16, 1 << 31 & math.MaxInt, 1 << 40 & math.MaxInt} {
		if n == 0 {
			continue // if an int has 32 bits
		}
		a.set(n)
		b.has(n, "after it was set")
		b.down(e.changeID())
		a.has(n-1, "after a countdown")
		a.delete(e.changeID())
	}
	return nil
}

func latchKnowsChanges(e *env) error {
	a, b := e.latches()
	others := 80
	if e.fakeTime {
		others = 1100
	}
	set, down, began := e.changeID(), e.changeID(), time.Now()
	if !a.trySet(set, 3*others) {
		return errors.New("SetLatch returned false where there was no latch before")
	}
	a.down(down)
	for range others {
		b.down(e.changeID())
	}
	repeats := func(when string) error {
		a.down(down)
		if !a.trySet(set, 3*others) {
			return fmt.Errorf("the repeat of a SetLatch %s was answered differently than at first", when)
		}
		b.has(3*others-1-others, "after repeats "+when)
		return nil
	}
	if err := repeats("after many other changes"); err != nil || !e.fakeTime {
		return err
	}
	e.sleepUntil(began.Add(2*driver.RepeatFor - time.Minute))
	return repeats("after almost twice driver.RepeatFor")
}

func latchIsDeleted(e *env) error {
	a, b := e.latches()
	a.delete(e.changeID())
	a.set(3)
	b.delete(e.changeID())
	a.has(0, "after the latch was deleted")
	a.down(e.changeID())
	b.set(2)
	a.has(2, "after the latch was set again")
	return nil
}

func latchesAreApart(e *env) error {
	d := e.driver()
	a, b := d.latch(e.name()), d.latch(e.name())
	a.set(2)
	b.set(3)
	a.down(e.changeID())
	a.has(1, "after a countdown")
	b.has(3, "after a countdown of another latch")
	a.delete(e.changeID())
	b.has(3, "after another latch was deleted")
	return nil
}

func latchOutlivesClose(e *env) error {
	a, b := e.latches()
	a.set(3)
	a.down(e.changeID())
	a.d.shut()
	b.has(2, "after the client that set the latch was closed")
	if e.fakeTime {
		e.sleep(100 * 24 * time.Hour)
		b.has(2, "a hundred days after the last change")
	}
	b.down(e.changeID())
	b.has(1, "after a countdown by another client")
	if err := isClosed("CountDown after Close", a.backend.CountDown(e.ctx, a.name, e.changeID())); err != nil {
		return err
	}
	b.has(1, "after a countdown by a closed client")
	return nil
}

func latchChangesOnce(e *env) error {
	a, b := e.latches()
	once, twice := e.changeID(), e.changeID()
	for range 2 {
		if !a.trySet(once, 3) {
			return errors.New("SetLatch, or its repeat, returned false where there was no latch before")
		}
	}
	if b.trySet(twice, 4) {
		return errors.New("SetLatch returned true where there was a latch")
	}
	down, remove := e.changeID(), e.changeID()
	for range 3 {
		a.down(down)
	}
	a.has(2, "after a countdown and its repeats")
	a.delete(remove)
	b.set(5)
	a.delete(remove)
	a.down(down)
	if !a.trySet(once, 3) || b.trySet(twice, 4) {
		return errors.New("the repeat of a SetLatch was answered differently after the latch had been set again")
	}
	a.has(5, "after changes of the previous latch were repeated")
	idle := e.changeID()
	b.delete(e.changeID())
	a.down(idle)
	b.set(2)
	a.down(idle)
	a.has(2, "after the repeat of a countdown that found no latch")
	b.delete(e.changeID())
	if !a.trySet(once, 3) || b.trySet(twice, 4) {
		return errors.New("the repeat of a SetLatch was answered differently when the latch was gone")
	}
	a.has(0, "after changes were repeated on a deleted latch")
	return nil
}

// latchSurvivesFaults counts down through faults and repeats each change as
// package dsync does.
func latchSurvivesFaults(e *env) error {
	var faults []func(*rawDriver)
	link := e.outsider().link
	for _, fault := range []struct {
		able   bool
		inject func(*rawDriver)
	}{
		{link.LoseAnswers != nil, func(d *rawDriver) { d.loseAnswers() }},
		{link.Cut != nil, func(d *rawDriver) { d.cut() }},
		{link.Hang != nil, func(d *rawDriver) { d.hang() }},
	} {
		if fault.able {
			faults = append(faults, fault.inject)
		}
	}
	e.need(len(faults) > 0, "Link.LoseAnswers")
	e.outsider().latch(e.name())
	e.together("changes of latches under faults", len(faults), func(i int) error {
		a, b := e.latches()
		a.has(0, "at first") // the connection is established
		a.through(faults[i], func(ctx context.Context, id string) error {
			set, err := a.backend.SetLatch(ctx, a.name, id, 9)
			if err == nil && !set {
				e.endf("a repeated SetLatch returned false where there was no latch before")
			}
			return err
		})
		b.has(9, "after a SetLatch that was repeated")
		a.through(faults[i], func(ctx context.Context, id string) error { return a.backend.CountDown(ctx, a.name, id) })
		b.has(8, "after a CountDown that was repeated")
		return a.notCarriedOut(faults[i], b)
	})
	return nil
}

// notCarriedOut counts down once, during a fault. If the driver reports that
// the countdown was not carried out, the report must be correct.
func (l *latch) notCarriedOut(fault func(*rawDriver), other *latch) error {
	e, before := l.d.env, other.count()
	fault(l.d)
	ctx, cancel := context.WithTimeout(e.ctx, e.ttl()/4)
	defer cancel()
	var err error
	e.within("CountDown", func() { err = l.backend.CountDown(ctx, l.name, e.changeID()) })
	e.events.add(l.d.label, "CountDown %q during a fault: %s", l.name, outcome(err))
	l.d.heal()
	if errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) && ctx.Err() == nil {
		other.has(before, "after a CountDown during a fault that the driver reported as not carried out")
	}
	return nil
}

// through calls f during a fault, and repeatedly after its end until it gets an
// answer.
func (l *latch) through(fault func(*rawDriver), f func(ctx context.Context, id string) error) {
	e := l.d.env
	id := e.changeID()
	fault(l.d)
	healed := e.run(func() { // ends soon
		e.sleep(e.ttl() / 4)
		l.d.heal()
	})
	e.poll(fmt.Sprintf("a change of %q by %s is answered", l.name, l.d.label), func() error {
		ctx, cancel := context.WithTimeout(e.ctx, e.ttl()/4)
		defer cancel()
		err := f(ctx, id)
		e.events.add(l.d.label, "a change of %q: %s", l.name, outcome(err))
		known := isNoAnswer(err) || ctx.Err() != nil && errors.Is(err, ctx.Err())
		if err != nil && !known {
			e.endf("a change of %q during a fault got %w, want ErrUnknown, ErrUnavailable or the error of ctx", l.name, err)
		}
		return err
	})
	e.await("the end of a fault", healed)
}

// watch watches the latch and returns when the watch has begun.
func (l *latch) watch() *watch {
	w := &watch{d: l.d, what: fmt.Sprintf("the latch %q", l.name)}
	l.has(0, "before the watch begins") // drivers may query the server first
	l.did("WatchLatch", func() (err error) {
		w.stop, err = l.backend.WatchLatch(l.name, w.changed)
		return err
	})
	w.told("the start of the watch", 0)
	return w
}

func latchTellsEnds(e *env) error {
	a, b := e.latches()
	w := b.watch()
	defer w.end()
	for _, by := range []*latch{a, b} {
		for what, end := range map[string]func(){
			"the last countdown": func() { by.down(e.changeID()) },
			"DeleteLatch":        func() { by.delete(e.changeID()) },
		} {
			by.set(1)
			n := w.calls.Load()
			end()
			w.told(fmt.Sprintf("%s by %s", what, by.d.label), n)
		}
	}
	return nil
}

func latchWatchSurvivesOutages(e *env) error {
	e.driver().latch(e.name())
	return e.inOutages(func(outage func(*connection)) error {
		a, b := e.latches()
		w := b.watch()
		defer w.end()
		a.set(1)
		outage(b.d.connection)
		a.down(e.changeID())
		e.sleep(e.brief())
		n := w.calls.Load()
		b.d.heal()
		w.told("the end of an outage, in which the count became 0", n)
		return nil
	})
}

func latchWatchStops(e *env) error {
	a, b := e.latches()
	stopped, goesOn := b.watch(), b.watch()
	defer goesOn.end()
	return goesOn.goesOn(stopped, "the last countdown", func() func() {
		a.set(1)
		return func() { a.down(e.changeID()) }
	})
}

// The checks of drivers that report changes: driver.Watcher.
var watchingChecks = []check{
	{"watching/changes", "A watch of a name calls changed when it begins and after each end of a hold, of every client and mode, even while other holds of the name continue.", watchTellsEnds},
	{"watching/outage", "If a name changes while the watcher cannot reach the backend, changed is called when the watcher can reach it again.", watchSurvivesOutages},
	{"watching/many", "If a name has several watches, changed is called for each after a release, even while other clients wait for the name, and after an outage.", allWatchesAreCalled},
	{"watching/stop", "After stop, changed is not called again. Other watches of the name continue, even when another client that watches it is closed.", watchStops},
}

// watch is a watch of a name or a latch.
type watch struct {
	d     *rawDriver
	what  string // the watched name or latch
	calls atomic.Int64
	stop  func()
}

// watch watches name and returns when the watch has begun. If the driver does
// not report changes, the check ends.
func (d *rawDriver) watch(name string) *watch {
	w := &watch{d: d, what: fmt.Sprintf("%q", name)}
	watcher, ok := d.tap.Driver.(driver.Watcher)
	if !ok {
		d.env.end(&refusedError{"to report changes"})
	}
	var err error
	d.env.within("Watch", func() { w.stop, err = watcher.Watch(name, w.changed) })
	if errors.Is(err, errors.ErrUnsupported) {
		d.env.end(&refusedError{"to report changes"})
	}
	d.env.must(err)
	w.told("the start of the watch", 0)
	return w
}

func (w *watch) changed() {
	w.calls.Add(1)
	w.d.env.events.add(w.d.label, "notified that %s may have changed", w.what)
}

// told waits until changed has been called more than n times.
func (w *watch) told(what string, n int64) {
	w.d.env.until(fmt.Sprintf("changed is called for %s, which watches %s, after %s", w.d.label, w.what, what), func() bool { return w.calls.Load() > n })
}

// end stops the watch.
func (w *watch) end() { w.d.env.within("stop of a watch", w.stop) }

func watchTellsEnds(e *env) error {
	for _, together := range [][]driver.Mode{modes, {driver.Permit}} {
		// permits need separate names
		offered := e.offered(together)
		if len(offered) == 0 {
			continue
		}
		if err := e.watchTellsEnds(offered); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) watchTellsEnds(offered []driver.Mode) error {
	a, b, name := e.driver(), e.driver(), e.name()
	b.hold(name, in(offered[0])).release() // drivers may query the server first
	w := b.watch(name)
	defer w.end()
	for _, m := range offered {
		for _, d := range []*rawDriver{a, b} {
			h := d.hold(name, in(m))
			n := w.calls.Load()
			h.release()
			w.told(fmt.Sprintf("the release of a hold (%v) by %s", m, d.label), n)
		}
		if m.Excludes(m) {
			continue
		}
		few := func(r *driver.Request) {
			if in(m)(r); m == driver.Permit {
				r.Permits = 1
			}
		}
		for _, d := range []*rawDriver{a, b} {
			stays, h := a.hold(name, few), d.hold(name, few)
			n := w.calls.Load()
			h.release()
			w.told(fmt.Sprintf("the release of one of two holds (%v) by %s", m, d.label), n)
			stays.release()
		}
	}
	if f, ok := a.driver.(driver.ForceUnlocker); ok {
		a.hold(name, in(offered[0]))
		n := w.calls.Load()
		e.within("ForceUnlock", func() { e.must(f.ForceUnlock(e.ctx, name)) })
		w.told("ForceUnlock", n)
	}
	return nil
}

func watchSurvivesOutages(e *env) error {
	e.driver().watch(e.name()).end()
	return e.inOutages(func(outage func(*connection)) error {
		a, b, name := e.driver(), e.driver(), e.name()
		b.hold(name).release()
		w := b.watch(name)
		defer w.end()
		h := a.hold(name)
		outage(b.connection)
		h.release()
		e.sleep(e.brief())
		n := w.calls.Load()
		b.heal()
		w.told("the end of an outage, in which the name became free", n)
		return nil
	})
}

func allWatchesAreCalled(e *env) error {
	e.driver().watch(e.name()).end()
	all := func(watches []*watch, what string, f func()) {
		before := make([]int64, len(watches))
		for i, w := range watches {
			before[i] = w.calls.Load()
		}
		f()
		for i, w := range watches {
			w.told(fmt.Sprintf("%s (watch %d of %d)", what, i+1, len(watches)), before[i])
		}
	}
	watchesOf := func(d *rawDriver, name string, n int) (watches []*watch) {
		for range n {
			watches = append(watches, d.watch(name))
		}
		return watches
	}
	a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
	b.hold(name).release()
	c.hold(name).release()
	many := 20
	if e.fakeTime {
		many = 100
	}
	watches := append(watchesOf(b, name, many), watchesOf(c, name, 2)...)
	h := a.hold(name)
	next := e.line(name, 2)
	all(watches, "a release while two requests wait", h.release)
	e.next(next)
	for _, w := range watches {
		w.end()
	}
	return e.inOutages(func(outage func(*connection)) error {
		a, b, x, y := e.driver(), e.driver(), e.name(), e.name()
		b.hold(x).release()
		b.hold(y).release()
		watches := append(watchesOf(b, x, 3), watchesOf(b, y, 2)...)
		held := []*request{a.hold(x), a.hold(y)}
		outage(b.connection)
		for _, h := range held {
			h.release()
		}
		e.sleep(e.brief())
		all(watches, "the end of an outage, in which the names became free", b.heal)
		for _, w := range watches {
			w.end()
		}
		return nil
	})
}

func watchStops(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	b.hold(name).release()
	stopped, goesOn := b.watch(name), b.watch(name)
	defer goesOn.end()
	c := e.driver()
	c.watch(name)
	c.shut()
	return goesOn.goesOn(stopped, "a release", func() func() { return a.hold(name).release })
}

// goesOn stops another watch of the same name or latch. It returns an error
// unless w, and only w, is still notified of changes. begin prepares a change
// and returns a function that makes it.
func (w *watch) goesOn(stopped *watch, what string, begin func() (change func())) error {
	stopped.end()
	before := stopped.calls.Load()
	for range 3 {
		change := begin()
		n := w.calls.Load()
		change()
		w.told(what, n)
	}
	if n := stopped.calls.Load() - before; n > 0 {
		return fmt.Errorf("changed was called for %s %d times after its watch of %s was stopped", w.d.label, n, w.what)
	}
	return nil
}
