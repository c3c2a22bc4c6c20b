package conformance

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/go-dsync/dsync/driver"
)

// The checks of drivers that tell of changes: driver.Watcher.
var watchingChecks = []check{
	{"watching/changes", "Who watches a name is called when the watch begins and after each end of a hold, in every mode, by whomever, and also while other holds of the name go on.", watchTellsEnds},
	{"watching/outage", "A change while the watcher was out of reach of the backend is followed by a call when it is in reach again.", watchSurvivesOutages},
	{"watching/many", "Each of several watches of a name is called after a release, also while others wait for the name, and after an outage.", allWatchesAreCalled},
	{"watching/stop", "After stop nobody is called any more, and other watches of the name go on, also when another client that watches it is closed.", watchStops},
}

// watch is a name that is watched.
type watch struct {
	d     *rawDriver
	name  string
	calls atomic.Int64
	stop  func()
}

// watch watches name, and returns when the watch has begun. If the driver tells of no changes, the check ends.
func (d *rawDriver) watch(name string) *watch {
	w := &watch{d: d, name: name}
	watcher, ok := d.tap.Driver.(driver.Watcher)
	if !ok {
		d.env.end(&refusedError{"to tell of changes"})
	}
	var err error
	d.env.within("Watch", func() { w.stop, err = watcher.Watch(name, w.changed) })
	if errors.Is(err, errors.ErrUnsupported) {
		d.env.end(&refusedError{"to tell of changes"})
	}
	d.env.must(err)
	w.told("the watch has begun", 0)
	return w
}

func (w *watch) changed() {
	w.calls.Add(1)
	w.d.env.events.add(w.d.label, "told that %q may have changed", w.name)
}

// told waits for a call after the first n.
func (w *watch) told(what string, n int64) {
	w.d.env.until(fmt.Sprintf("%s, which watches %q, is called after this: %s", w.d.label, w.name, what), func() bool { return w.calls.Load() > n })
}

// end stops the watch.
func (w *watch) end() { w.d.env.within("stop of a watch", w.stop) }

func watchTellsEnds(e *env) error {
	for _, together := range [][]driver.Mode{modes, {driver.Permit}} { // permits have names of their own
		offered := slices.DeleteFunc(slices.Clone(together), func(m driver.Mode) bool { return !e.driverInfo().Offers(m) })
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
	b.hold(name, in(offered[0])).release() // drivers may look at the server first
	w := b.watch(name)
	defer w.end()
	for _, m := range offered {
		for _, d := range []*rawDriver{a, b} {
			h := d.hold(name, in(m))
			n := w.calls.Load()
			h.release()
			w.told(fmt.Sprintf("the release of a hold that was %v, by %s", m, d.label), n)
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
			w.told(fmt.Sprintf("the release of one of two holds that were %v, by %s", m, d.label), n)
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
	all(watches, "a release while two wait", h.release)
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
	stopped.end()
	before := stopped.calls.Load()
	c := e.driver()
	c.watch(name)
	c.shut()
	for range 3 {
		h := a.hold(name)
		n := goesOn.calls.Load()
		h.release()
		goesOn.told("a release", n)
	}
	if n := stopped.calls.Load() - before; n > 0 {
		return fmt.Errorf("%s was called %d times after the watch of %q was stopped", b.label, n, name)
	}
	return nil
}
