package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of calls that are under way when Close begins.
var crossingChecks = []check{
	{"crossing/changes", "A change that Close crosses returns nil or ErrUnknown if the backend has carried it out, and not nil if it has not.", closeCrossesChanges},
	{"crossing/questions", "A question that Close crosses returns a true answer or an error.", closeCrossesQuestions},
	{"crossing/requests", "A request for a hold, a renewal or a Pass that Close crosses returns, and leaves nothing held.", closeCrossesRequests},
	{"crossing/waits", "Close ends a wait for a latch at once, also during a question or a watch, and the wait returns nil only if the latch is gone.", closeCrossesWaits},
	{"crossing/leave", "Close does not end a hold whose Leave is under way, and Leave does not return ErrNotHeld then.", closeCrossesLeave},
}

// answersLate is how late answers arrive at a client that is closed during a call.
const answersLate = 100 * time.Millisecond

// crossed is a call of a driver during which the driver is closed.
type crossed struct {
	what string
	name string // that the call is about
	call func(ctx context.Context) error

	// done reports whether the backend has carried out the call, as another client sees it. It is nil if no client can see that.
	done func() bool

	ends bool // Close does the same as the call
}

// enteredContext is a context that knows whether a driver has looked at it.
type enteredContext struct {
	context.Context
	env    *env
	looked atomic.Bool
}

func (c *enteredContext) enter() {
	if !c.looked.Swap(true) {
		c.env.events.wake()
	}
}

func (c *enteredContext) Deadline() (time.Time, bool) {
	c.enter()
	return c.Context.Deadline()
}

func (c *enteredContext) Done() <-chan struct{} {
	c.enter()
	return c.Context.Done()
}

func (c *enteredContext) Err() error {
	c.enter()
	return c.Context.Err()
}

func (c *enteredContext) Value(key any) any {
	c.enter()
	return c.Context.Value(key)
}

// cross closes d while a call is under way, and returns the call's error. It begins Close when the driver has begun the call, or, with
// late, when the backend has carried out the call; carriedOut says whether it has. If no client can see that, late is a moment at which
// the answer is under way.
func (d *rawDriver) cross(c *crossed, late bool) (carriedOut bool, err error) {
	e := d.env
	ctx := &enteredContext{Context: e.ctx, env: e}
	call := e.run(func() { err = c.call(ctx) })
	e.until(d.label+" begins "+c.what, func() bool { return ctx.looked.Load() || call.isDone() })
	switch {
	case late && c.done != nil:
		e.poll(c.what+" by "+d.label+" is carried out", func() error {
			if carriedOut = c.done(); carriedOut || call.isDone() {
				return nil
			}
			return errors.New("not yet")
		})
	case late:
		e.sleep(answersLate / 2)
	}
	d.shut()
	e.await(c.what+", which Close crosses", call)
	e.events.add(d.label, "%s: %s", c.what, outcome(err))
	return carriedOut, err
}

// crossAll closes a driver during each of some calls, each with a driver of its own, and passes the outcomes to verdict. A maker returns nil
// if the driver does not offer the call.
func (e *env) crossAll(makers []func(d *rawDriver) *crossed, verdict func(d *rawDriver, c *crossed, carriedOut bool, err error) error) error {
	e.need(e.outsider().link.Delay != nil, "Link.Delay")
	var runs []func() error
	for _, maker := range makers {
		for _, late := range []bool{true, false} {
			runs = append(runs, func() error {
				d := e.driver()
				d.hold(e.name()).release() // the connection is there
				c := maker(d)
				if c == nil {
					return nil
				}
				d.delay(answersLate)
				carriedOut, err := d.cross(c, late)
				return verdict(d, c, carriedOut, err)
			})
		}
	}
	e.together("calls that Close crosses", len(runs), func(i int) error { return runs[i]() })
	return nil
}

// seemsFree reports whether name is free, as another client sees it.
func (e *env) seemsFree(name string) bool {
	o := e.outsider()
	i, ok := o.driver.(driver.Inspector)
	if !ok {
		return e.isFree(name) == nil
	}
	s, err := i.Inspect(e.ctx, name)
	if errors.Is(err, errors.ErrUnsupported) {
		return e.isFree(name) == nil
	}
	e.must(err)
	return !s.Held
}

func closeCrossesChanges(e *env) error {
	o := e.outsider()
	makers := []func(*rawDriver) *crossed{
		func(d *rawDriver) *crossed {
			h := d.hold(e.name())
			return &crossed{what: "Release", call: h.lease.Release, done: func() bool { return e.seemsFree(h.Name) }, ends: true}
		},
		func(d *rawDriver) *crossed {
			f, ok := d.driver.(driver.ForceUnlocker)
			name := e.name()
			if !ok || errors.Is(f.ForceUnlock(e.ctx, name), errors.ErrUnsupported) {
				return nil
			}
			e.driver().hold(name)
			return &crossed{what: "ForceUnlock", call: func(ctx context.Context) error { return f.ForceUnlock(ctx, name) },
				done: func() bool { return e.seemsFree(name) }}
		},
		func(d *rawDriver) *crossed {
			l, ok := d.tap.Driver.(driver.Limiter)
			i, inspects := o.driver.(driver.Inspector)
			if !ok || !inspects || !e.driverInfo().Offers(driver.Permit) {
				return nil
			}
			name := e.name()
			limit := func() int {
				s, err := i.Inspect(e.ctx, name)
				e.must(err)
				return s.Limit
			}
			if o.setLimit(name, 3); limit() != 3 {
				return nil
			}
			return &crossed{what: "SetLimit", call: func(ctx context.Context) error { return l.SetLimit(ctx, name, 5) },
				done: func() bool { return limit() == 5 }}
		},
	}
	for _, change := range []struct {
		what       string
		count, to  int
		carriedOut func(ctx context.Context, l *latch, id string) error
	}{
		{"SetLatch", 0, 4, func(ctx context.Context, l *latch, id string) error {
			set, err := l.backend.SetLatch(ctx, l.name, id, 4)
			if err == nil && !set {
				return errors.New("false, as if there were a latch")
			}
			return err
		}},
		{"CountDown", 3, 2, func(ctx context.Context, l *latch, id string) error { return l.backend.CountDown(ctx, l.name, id) }},
		{"the last CountDown", 1, 0, func(ctx context.Context, l *latch, id string) error { return l.backend.CountDown(ctx, l.name, id) }},
		{"DeleteLatch", 3, 0, func(ctx context.Context, l *latch, id string) error { return l.backend.DeleteLatch(ctx, l.name, id) }},
	} {
		makers = append(makers, func(d *rawDriver) *crossed {
			if _, ok := d.tap.Driver.(driver.Latcher); !ok {
				return nil
			}
			name, id := e.name(), e.changeID()
			seen, own := o.latch(name), d.latch(name)
			if change.count > 0 {
				seen.set(change.count)
			}
			return &crossed{what: change.what, call: func(ctx context.Context) error { return change.carriedOut(ctx, own, id) },
				done: func() bool { return seen.count() == change.to }}
		})
	}
	return e.crossAll(makers, func(d *rawDriver, c *crossed, carriedOut bool, err error) error {
		if !c.ends {
			carriedOut = c.done()
		}
		switch {
		case carriedOut && err != nil && !errors.Is(err, driver.ErrUnknown):
			return fmt.Errorf("%s by %s was carried out, and returned %q when Close crossed it, want nil or ErrUnknown", c.what, d.label, err)
		case !carriedOut && !c.ends && err == nil:
			e.poll(c.what+" returned nil when Close crossed it, so it is carried out", func() error {
				if c.done() {
					return nil
				}
				return errors.New("it is not")
			})
		}
		return nil
	})
}

func closeCrossesQuestions(e *env) error {
	o := e.outsider()
	name, counted := e.name(), e.name()
	holder := e.driver()
	holder.hold(name)
	var makers []func(*rawDriver) *crossed
	add := func(what string, call func(d *rawDriver, ctx context.Context) error) {
		makers = append(makers, func(d *rawDriver) *crossed {
			return &crossed{what: what, call: func(ctx context.Context) error { return call(d, ctx) }}
		})
	}
	if _, ok := o.driver.(driver.Inspector); ok {
		add("Inspect", func(d *rawDriver, ctx context.Context) error {
			s, err := d.driver.(driver.Inspector).Inspect(ctx, name)
			if err == nil && !s.Held {
				return fmt.Errorf("Inspect says that %q is free, which %s holds", name, holder.label)
			}
			return nil
		})
	}
	if _, ok := o.tap.Driver.(driver.Lister); ok {
		add("List", func(d *rawDriver, ctx context.Context) error {
			var names []string
			for n, err := range d.tap.Driver.(driver.Lister).List(ctx, name) {
				if err != nil {
					return nil
				}
				names = append(names, n)
			}
			if !slices.Contains(names, name) {
				return fmt.Errorf("the driver lists %q without an error, and not %q, which %s holds", names, name, holder.label)
			}
			return nil
		})
	}
	if _, ok := o.tap.Driver.(driver.Latcher); ok {
		o.latch(counted).set(3)
		add("Latch", func(d *rawDriver, ctx context.Context) error {
			left, err := d.latch(counted).backend.Latch(ctx, counted)
			if err == nil && left != 3 {
				return fmt.Errorf("the answer of Latch says that the count of %q is %d, want 3", counted, left)
			}
			return nil
		})
	}
	if _, ok := o.tap.Driver.(driver.Watcher); ok {
		add("Watch", func(d *rawDriver, ctx context.Context) error {
			for range 20 {
				stop, err := d.tap.Driver.(driver.Watcher).Watch(name, func() {})
				if err != nil {
					return nil
				}
				e.sleep(answersLate / 20)
				stop()
			}
			return ctx.Err()
		})
	}
	if len(makers) == 0 {
		e.end(&refusedError{"to answer questions"})
	}
	return e.crossAll(makers, func(d *rawDriver, _ *crossed, _ bool, err error) error {
		if err != nil {
			return fmt.Errorf("%s, which Close crossed: %w", d.label, err)
		}
		return nil
	})
}

func closeCrossesRequests(e *env) error {
	acquire := func(opts ...option) func(*rawDriver) *crossed {
		return func(d *rawDriver) *crossed {
			name := e.name()
			return &crossed{what: "Acquire", name: name, call: func(ctx context.Context) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				return d.startWith(ctx, cancel, name, opts...).result().err
			}}
		}
	}
	makers := []func(*rawDriver) *crossed{
		acquire(), acquire(noWait), acquire(fixed), acquire(fixed, noWait),
		func(d *rawDriver) *crossed {
			h := d.hold(e.name(), fixed)
			return &crossed{what: "Renew", name: h.Name, call: func(ctx context.Context) error { return h.lease.Renew(ctx, e.long()) }}
		},
		func(d *rawDriver) *crossed {
			h := d.hold(e.name())
			p, ok := h.lease.(driver.Passer)
			if !ok {
				return nil
			}
			return &crossed{what: "Pass", name: h.Name, call: func(ctx context.Context) error { return p.Pass(ctx, e.id+", the next", "") }}
		},
	}
	return e.crossAll(makers, func(d *rawDriver, c *crossed, _ bool, _ error) error {
		if err := e.isFree(c.name); err != nil {
			return fmt.Errorf("after a Close of %s that crossed %s: %w", d.label, c.what, err)
		}
		return nil
	})
}

func closeCrossesWaits(e *env) error {
	o := e.outsider()
	e.need(o.link.Delay != nil, "Link.Delay")
	if _, ok := o.tap.Driver.(driver.Latcher); !ok {
		e.end(&refusedError{"to keep latches"})
	}
	cross := func(asked, gone bool) error {
		seen, conn := o.latch(e.name()), e.connect()
		seen.set(1)
		c, err := dsync.New(struct {
			*tap
			driver.Latcher
		}{conn.tap, conn.tap.Driver.(driver.Latcher)}, &dsync.Options{TTL: e.long()})
		e.must(err)
		e.onClose(func(ctx context.Context) { _ = c.Close(ctx) })
		_, err = c.Latch(seen.name).Count(e.ctx) // the connection is there
		e.must(err)
		conn.delay(answersLate)
		ctx := &enteredContext{Context: e.ctx, env: e}
		wait := e.run(func() { err = c.Latch(seen.name).Wait(ctx) })
		e.until(conn.label+" begins to wait", ctx.looked.Load)
		if asked {
			e.sleep(3 * answersLate / 2) // the first answer has arrived, and a watch begins
		}
		if gone {
			seen.down(e.changeID())
		}
		var closed error
		closing := e.run(func() { closed = c.Close(e.ctx) })
		e.await("Wait, which Close crosses", wait)
		e.await("Close during Wait", closing)
		switch {
		case err == nil && !gone:
			return fmt.Errorf("a Wait of %s for the latch %q, which is set, returned nil when Close crossed it", conn.label, seen.name)
		case err != nil && !errors.Is(err, dsync.ErrClosed):
			return fmt.Errorf("a Wait of %s returned %q when Close crossed it, want ErrClosed", conn.label, err)
		case closed != nil:
			return fmt.Errorf("during a Wait: %w", closed)
		}
		return nil
	}
	e.together("waits that Close crosses", 4, func(i int) error { return cross(i&1 == 0, i&2 == 0) })
	return nil
}

func closeCrossesLeave(e *env) error {
	e.need(e.outsider().link.Delay != nil, "Link.Delay")
	d := e.driver()
	leaver := d.leaver()
	h, other := d.hold(e.name(), fixed), d.hold(e.name(), fixed)
	l := untap(h.lease).Lease
	d.delay(answersLate)
	_, err := d.cross(&crossed{what: "Leave", call: func(ctx context.Context) error { return leaver.Leave(ctx, l, e.long()) }}, true)
	switch {
	case errors.Is(err, driver.ErrNotHeld):
		return fmt.Errorf("a call of Leave by %s, which had the hold, returned %q when Close crossed it", d.label, err)
	case len(h.lost()) > 0:
		return fmt.Errorf("%s was told that a hold which it was leaving is lost: %w", d.label, h.lost()[0])
	}
	if err := e.isFree(other.Name); err != nil {
		return err
	}
	if err := e.outsider().refused(h.Name); err != nil {
		return fmt.Errorf("after a Close that crossed Leave: %w", err)
	}
	return nil
}
