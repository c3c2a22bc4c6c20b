package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var closingChecks = []check{
	{"closing/later", "After Close, every Acquire returns ErrClosed.", closedForGood},
	{"closing/waiters", "Close ends all waits with ErrClosed, and the waiters leave the queue.", closeEndsWaiters},
	{"closing/holds", "Close frees all held names.", closeEndsHolds},
	{"closing/own-waiters", "Close ends all waits before it frees names, so it grants no name to its own waiters.", closeEndsWaitersFirst},
	{"closing/leases", "A lease of a closed driver has ended: Renew fails and revives nothing, and Release does not affect other holds.", leasesAfterClose},
	{"closing/busy", "Close leaves nothing held, even while requests are under way.", closeWhileBusy},
	{"closing/hung", "If the backend does not answer, Close returns soon after its context ends.", closeWhileHung},
}

// laterClosingChecks build on the checks of modes.
var laterClosingChecks = []check{
	{"closing/modes", "Close ends all holds of its client in every mode, including several holds of one name, but no hold of another client.", closeEndsHoldsInModes},
	{"closing/behind", "When Close ends a wait for a Write or Exclusive hold, or for many permits, the requests behind it continue.", closeLetsOthersPass},
}

// shut closes d. If Close fails, the check ends.
func (d *rawDriver) shut() {
	var err error
	d.env.within("Close", func() { err = d.close(d.env.ctx) })
	if err != nil {
		d.env.endf("Close of %s: %w", d.label, err)
	}
}

// isClosed returns an error unless err is ErrClosed.
func isClosed(what string, err error) error {
	if !errors.Is(err, driver.ErrClosed) {
		return fmt.Errorf("%s returned %q, want ErrClosed", what, outcome(err))
	}
	return nil
}

func closedForGood(e *env) error {
	d, c, name := e.driver(), e.client(), e.name()
	d.hold(name).release()
	d.shut()
	for _, opts := range [][]option{nil, {noWait}} {
		if err := isClosed("Acquire after Close", d.acquire(name, opts...).err); err != nil {
			return err
		}
	}
	e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
	_, err := c.try(name)
	if err := isClosed("TryLock after Close", err); err != nil {
		return err
	}
	return e.isFree(name)
}

func closeEndsWaiters(e *env) error {
	a, b, c, name := e.driver(), e.driver(), e.client(), e.name()
	h := a.hold(name)
	waiters := []*request{b.start(name).waits(), b.start(name).waits()}
	lock := c.start(name).waits()
	b.shut()
	for _, r := range waiters {
		if err := isClosed("an Acquire that waited", r.result().err); err != nil {
			return err
		}
	}
	e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
	_, err := lock.result()
	if err := isClosed("a Lock that waited", err); err != nil {
		return err
	}
	if err := e.outsider().refused(name); err != nil {
		return err
	}
	h.release()
	return e.isFree(name)
}

func closeEndsHolds(e *env) error {
	d, c := e.driver(), e.client()
	var names []string
	for range 10 {
		names = append(names, d.hold(e.name()).Name, c.lock(e.name()).name)
	}
	d.shut()
	e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
	for _, name := range names {
		if err := e.isFree(name); err != nil {
			return err
		}
	}
	return nil
}

func closeEndsHoldsInModes(e *env) error {
	a, b, info := e.driver(), e.driver(), e.driverInfo()
	var free []func() error
	after := func(what string, r *request) error {
		if r.lease == nil {
			return fmt.Errorf("after Close of %s, which %s: %w", a.label, what, r.err)
		}
		r.release()
		return nil
	}
	if info.ReadWrite.Offered {
		read, shared, written := e.name(), e.name(), e.name()
		for range 3 {
			a.hold(read, reading)
			a.hold(shared, reading)
		}
		other := b.hold(shared, reading)
		a.hold(written, writing)
		free = append(free, func() error {
			return after("read the name three times", e.outsider().acquire(read, writing, noWait))
		}, func() error {
			return after("wrote the name", e.outsider().acquire(written, reading, noWait))
		}, func() error {
			if err := e.outsider().refused(shared, writing); err != nil {
				return fmt.Errorf("after Close of another reader: %w", err)
			}
			if err := other.tryRelease(e.ctx); err != nil {
				return fmt.Errorf("the release after Close of another reader: %w", err)
			}
			return after("read the name", e.outsider().acquire(shared, writing, noWait))
		})
	}
	if info.Permits.Offered {
		name := e.name()
		a.hold(name, permits(2, 5))
		a.hold(name, permits(1, 5))
		other := b.hold(name, permits(1, 5))
		free = append(free, func() error {
			if err := e.left(name, 4, 5); err != nil {
				return fmt.Errorf("after Close of %s, which held 3 of 5 permits while %s held another: %w", a.label, b.label, err)
			}
			other.release()
			return nil
		})
	}
	if len(free) == 0 {
		e.end(&refusedError{"other modes than Exclusive"})
	}
	a.shut()
	for _, f := range free {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func closeLetsOthersPass(e *env) error {
	info := e.driverInfo()
	var ways []func() error
	for _, m := range aloneModes {
		if !info.ReadWrite.Offered {
			continue
		}
		ways = append(ways, func() error {
			a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
			h := a.hold(name, reading)
			w := b.start(name, in(m)).waits().queued(1)
			behind := []*request{c.start(name, reading), a.start(name, reading)}
			if info.ReadWrite.Order != driver.Unordered {
				behind[0].waits()
				behind[1].waits()
			}
			b.shut()
			if err := isClosed("an Acquire that waited", w.result().err); err != nil {
				return err
			}
			for _, r := range behind {
				r.granted().release()
			}
			h.release()
			return nil
		})
	}
	if info.Permits.Offered {
		ways = append(ways, func() error {
			a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
			h := a.hold(name, permits(2, 3))
			w := b.start(name, permits(3, 3)).waits().queued(1)
			behind := c.start(name, permits(1, 3))
			if info.Permits.Order != driver.Unordered {
				behind.waits()
			}
			b.shut()
			if err := isClosed("an Acquire that waited for permits", w.result().err); err != nil {
				return err
			}
			behind.granted().release()
			h.release()
			return nil
		})
	}
	if len(ways) == 0 {
		e.end(&refusedError{"other modes than Exclusive"})
	}
	e.together("requests behind a wait that Close ended", len(ways), func(i int) error { return ways[i]() })
	return nil
}

func closeEndsWaitersFirst(e *env) error {
	d, name := e.driver(), e.name()
	d.hold(name)
	waiters := []*request{d.start(name).waits(), d.start(name).waits()}
	d.shut()
	for _, r := range waiters {
		if r.result().lease != nil {
			return fmt.Errorf("%s was granted %q by its own Close", d.label, name)
		}
		if err := isClosed("an Acquire that waited for a name of the same client", r.err); err != nil {
			return err
		}
	}
	return e.isFree(name)
}

func leasesAfterClose(e *env) error {
	a, b := e.driver(), e.driver()
	left, taken := a.hold(e.name(), fixed), a.hold(e.name(), fixed)
	a.shut()
	next := b.hold(taken.Name)
	for _, r := range []*request{left, taken} {
		if err := r.renew(e.long()); err == nil {
			return errors.New("Renew after Close returned nil")
		}
		_ = r.tryRelease(e.ctx) // the outcome no longer matters
	}
	if err := e.isFree(left.Name); err != nil {
		return fmt.Errorf("after Renew of a closed driver: %w", err)
	}
	return next.keeps("Renew and Release of a closed driver")
}

func closeWhileBusy(e *env) error {
	for range 5 {
		c, names := e.client(), []string{e.name(), e.name()}
		busy := make([]*goroutine, 6)
		granted := make(chan struct{}, len(busy))
		for i := range busy {
			busy[i] = e.run(func() { e.failed(c.useUntilClosed(names[i%len(names)], i%3 == 0, granted)) })
		}
		<-granted
		e.sleep(rand.N(2 * time.Millisecond))
		e.within("Close", func() { e.must(c.dsync.Close(e.ctx)) })
		for _, g := range busy {
			e.await("requests that were under way", g)
		}
		for _, name := range names {
			if err := e.isFree(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// useUntilClosed locks and unlocks name until the client is closed.
func (c *client) useUntilClosed(name string, try bool, granted chan<- struct{}) error {
	for {
		h, err := c.ask(c.env.ctx, try, name)
		switch {
		case errors.Is(err, dsync.ErrClosed):
			return nil
		case try && errors.Is(err, dsync.ErrLocked):
			c.env.sleep(50 * time.Microsecond)
			continue
		case err != nil:
			return err
		}
		select {
		case granted <- struct{}{}:
		default:
		}
		c.env.sleep(50 * time.Microsecond)
		if err := h.tryUnlock(c.env.ctx); err != nil && !errors.Is(err, dsync.ErrClosed) && !errors.Is(err, dsync.ErrUnknown) {
			return err
		}
	}
}

func closeWhileHung(e *env) error {
	d, name := e.driver(), e.name()
	d.hold(name)
	d.hang()
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	e.within("Close", func() { _ = d.close(ctx) })
	return nil
}

// The check of remains that clients leave on the backend.
var remainsChecks = []check{
	{"closing/remains", "After Close, the backend stores nothing of a client, or of names that only this client has used, except the state that later tokens, limits, seals and latches need.", closeLeavesNothing},
}

// remains returns everything that clients have on the backend, sorted.
func (e *env) remains() (all []string) {
	e.harness("Backend.Left", func() { all = slices.Clone(e.backend.Left(e.tb)) })
	slices.Sort(all)
	return all
}

func closeLeavesNothing(e *env) error {
	e.need(e.backend.Left != nil, "Backend.Left")
	before := e.remains()
	a, b, c := e.driver(), e.driver(), e.driver()
	for _, m := range e.offered(allModes) {
		e.useInMode(a, b, m)
	}
	e.loseGrants(c)
	e.useLatchAndWatch(a, b)
	a.hold(e.name(), ttl(e.brief())) // runs out or is ended by Close
	a.hold(e.name())
	for _, d := range []*rawDriver{a, b, c} {
		d.shut()
	}
	e.poll("nothing is left of the closed clients", func() error {
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

// useInMode makes clients hold names, wait for names, give up, lose a hold,
// lose an answer, and leave a hold.
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
	if a.leaves() {
		a.hold(e.name(), in(m), fixed, ttl(e.ttl())).leave(e.brief())
	}
}

// loseGrants makes the backend grant names to a client in all modes and loses
// the answers.
func (e *env) loseGrants(d *rawDriver) {
	if d.link.LoseAnswers == nil {
		return
	}
	d.hold(e.name()).release() // the connection is established
	d.loseAnswers()
	for _, m := range e.offered(allModes) {
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		d.startWith(ctx, cancel, e.name(), in(m)).result()
		cancel()
	}
	d.heal()
}

// useLatchAndWatch makes clients watch a name, and a latch until it is deleted.
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

// The checks of calls that are under way when Close begins.
var crossingChecks = []check{
	{"crossing/changes", "A change during which Close begins returns nil or ErrUnknown if the backend has carried it out, and does not return nil otherwise.", closeCrossesChanges},
	{"crossing/questions", "A query during which Close begins returns a true answer or an error.", closeCrossesQuestions},
	{"crossing/requests", "A request for a hold, a renewal or a Pass during which Close begins returns and leaves nothing held.", closeCrossesRequests},
	{"crossing/waits", "Close ends a wait for a latch immediately, even during a query or a watch. The wait returns nil only if the latch is gone.", closeCrossesWaits},
	{"crossing/leave", "Close does not end a hold whose Leave is under way, and Leave then does not return ErrNotHeld.", closeCrossesLeave},
}

// answersLate is the delay of answers to a client that is closed during a call.
const answersLate = 100 * time.Millisecond

// crossed is a call to a driver that is closed during the call.
type crossed struct {
	what string
	name string // the name that the call is about
	call func(ctx context.Context) error

	// done reports whether the backend has carried out the call, as seen by
	// another client. It is nil if other clients cannot see that.
	done func() bool

	ends bool // Close does the same as the call
}

// enteredContext is a context that records whether a driver has used it.
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

// cross closes d while a call is under way, and returns the call's error. It
// begins Close when the driver has begun the call or, if late is set, when the
// backend has carried out the call. carriedOut reports whether the backend has
// done so. If no client can see that, and late is set, Close begins when the
// answer is on its way.
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
	e.await(c.what+", during which Close begins", call)
	e.events.add(d.label, "%s: %s", c.what, outcome(err))
	return carriedOut, err
}

// crossAll closes a driver during each of several calls, each on a separate
// driver, and passes the outcomes to verdict. A maker returns nil if the driver
// does not offer the call.
func (e *env) crossAll(makers []func(d *rawDriver) *crossed, verdict func(d *rawDriver, c *crossed, carriedOut bool, err error) error) error {
	e.need(e.outsider().link.Delay != nil, "Link.Delay")
	var runs []func() error
	for _, maker := range makers {
		for _, late := range []bool{true, false} {
			runs = append(runs, func() error {
				d := e.driver()
				d.hold(e.name()).release() // the connection is established
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
	e.together("calls during which Close begins", len(runs), func(i int) error { return runs[i]() })
	return nil
}

// seemsFree reports whether name is free, as seen by another client.
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
				return errors.New("false, as if the latch were set")
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
			return fmt.Errorf("%s by %s was carried out but returned %q when Close began during it, want nil or ErrUnknown", c.what, d.label, err)
		case !carriedOut && !c.ends && err == nil:
			e.poll(c.what+" returned nil when Close began during it, so it must be carried out", func() error {
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
				return fmt.Errorf("Inspect reports that %q is free, which %s holds", name, holder.label)
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
				return fmt.Errorf("the driver returns the list %q without an error, but %q, which %s holds, is missing", names, name, holder.label)
			}
			return nil
		})
	}
	if _, ok := o.tap.Driver.(driver.Latcher); ok {
		o.latch(counted).set(3)
		add("Latch", func(d *rawDriver, ctx context.Context) error {
			left, err := d.latch(counted).backend.Latch(ctx, counted)
			if err == nil && left != 3 {
				return fmt.Errorf("the latch %q reports the count %d, want 3", counted, left)
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
		e.end(&refusedError{"to answer queries"})
	}
	return e.crossAll(makers, func(d *rawDriver, _ *crossed, _ bool, err error) error {
		if err != nil {
			return fmt.Errorf("%s, during which Close began: %w", d.label, err)
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
			return fmt.Errorf("after a Close of %s that began during %s: %w", d.label, c.what, err)
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
		_, err = c.Latch(seen.name).Count(e.ctx) // the connection is established
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
		e.await("Wait, during which Close begins", wait)
		e.await("Close during Wait", closing)
		switch {
		case err == nil && !gone:
			return fmt.Errorf("a Wait by %s for the latch %q, which is set, returned nil when Close began during it", conn.label, seen.name)
		case err != nil && !errors.Is(err, dsync.ErrClosed):
			return fmt.Errorf("a Wait by %s returned %q when Close began during it, want ErrClosed", conn.label, err)
		case closed != nil:
			return fmt.Errorf("during a Wait: %w", closed)
		}
		return nil
	}
	e.together("waits during which Close begins", 4, func(i int) error { return cross(i&1 == 0, i&2 == 0) })
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
		return fmt.Errorf("a call to Leave by %s, which held the name, returned %q when Close began during it", d.label, err)
	case len(h.lost()) > 0:
		return fmt.Errorf("%s was notified of the loss of a hold that it was leaving: %w", d.label, h.lost()[0])
	}
	if err := e.isFree(other.Name); err != nil {
		return err
	}
	if err := e.outsider().refused(h.Name); err != nil {
		return fmt.Errorf("after a Close that began during Leave: %w", err)
	}
	return nil
}
