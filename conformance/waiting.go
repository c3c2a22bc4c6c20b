package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var waitingChecks = []check{
	{"waiting/try", "A request that must not wait is sent once and refused with ErrLocked, without a lease and without reporting that it waits.", tryIsRefused},
	{"waiting/woken", "A waiter is granted the name when it is released.", woken},
	{"waiting/prompt", "A waiter is notified of a release, or polls at the interval of Info.Poll.", hearsOfRelease},
	{"waiting/context", "A lease continues when the context of its Acquire ends, even after a wait.", leaseOutlivesContext},
	{"waiting/event", "Events.Waiting is called exactly once before a request waits, and never if the name was free.", waitingEvent},
	{"waiting/deadline", "A wait ends at the deadline of its context, not before, with an error that matches the context's error and ErrLocked.", deadlineEndsWait},
	{"waiting/cancel", "A canceled wait leaves nothing behind and does not affect the holder.", cancelEndsWait},
	{"waiting/cancel-at-grant", "A wait that is canceled when the name is released ends with a lease, or with an error and no hold, never with both or neither.", cancelAtGrant},
	{"waiting/done-context", "A request whose context has already ended has no effect.", doneContext},
	{"waiting/queue", "Inspect counts waiters, but no waiters that have given up.", queueIsCounted},
}

func tryIsRefused(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name)
	if err := e.punctual(func() error { return b.asksOnce(name) }); err != nil {
		return err
	}
	h.release()
	return e.isFree(name)
}

// asksOnce returns an error unless a single attempt of d sends all necessary
// requests while another client holds name.
func (d *rawDriver) asksOnce(name string) error {
	asked := &countingEvents{}
	r := d.acquire(name, noWait, asked.of)
	switch {
	case r.lease != nil:
		return fmt.Errorf("a refused attempt of %s returned a lease and the error %w", d.label, r.err)
	case !errors.Is(r.err, driver.ErrLocked):
		return fmt.Errorf("an attempt of %s was refused with %q, want ErrLocked", d.label, outcome(r.err))
	case r.waited() != 0:
		return fmt.Errorf("an attempt of %s, which must not wait, reported that it waits", d.label)
	}
	if took := r.at.Sub(r.called); took > slack {
		return &lateError{fmt.Errorf("an attempt of %s, which must not wait, requested tokens %d times and was refused after %v",
			d.label, asked.tokens.Load(), took)}
	}
	return nil
}

// countingEvents counts the calls to Tokens. A driver calls Tokens before each
// request that can grant.
type countingEvents struct {
	driver.Events
	tokens atomic.Int32
}

func (c *countingEvents) of(r *driver.Request) { c.Events, r.Events = r.Events, c }

// Tokens implements driver.Events.
func (c *countingEvents) Tokens() int {
	c.tokens.Add(1)
	return c.Events.Tokens()
}

// prompt is how soon a waiter must detect a release. The check adds twenty
// times the time that it currently takes to acquire and release a free name.
const prompt = 50 * time.Millisecond

// wakes returns how long a waiter may take to detect that a name is free.
func (e *env) wakes() time.Duration { return max(prompt, e.driverInfo().Poll) }

func hearsOfRelease(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	return e.punctual(func() error {
		trips, waits := make([]time.Duration, 11), make([]time.Duration, 11)
		for i := range waits {
			begun := time.Now()
			b.hold(e.name()).release()
			trips[i] = time.Since(begun)
			h := a.hold(name)
			r := b.start(name).waits()
			e.sleep(rand.N(e.wakes()))
			released := time.Now()
			h.release()
			waits[i] = r.granted().at.Sub(released)
			r.release()
		}
		slices.Sort(trips)
		slices.Sort(waits)
		mid := len(waits) / 2
		if waits[mid] > e.wakes()+20*trips[mid] {
			return &lateError{fmt.Errorf("in half of %d attempts %s, which waited, was granted %q more than %v after its release; acquiring and releasing a free name takes %v",
				len(waits), b.label, name, waits[mid], trips[mid])}
		}
		return nil
	})
}

func leaseOutlivesContext(e *env) error {
	renewed := ttl(e.ttl())
	how := []struct {
		what  string
		opts  []option
		waits bool
	}{
		{"a fixed lease", []option{fixed}, false},
		{"a fixed lease granted after a wait", []option{fixed}, true},
		{"a lease", []option{renewed}, false},
		{"a lease granted after a wait", []option{renewed}, true},
	}
	e.together("leases after the context of their Acquire has ended", len(how), func(i int) error {
		d, name := e.driver(), e.name()
		before := e.outsider().hold(name)
		if !how[i].waits {
			before.release()
		}
		r := d.start(name, how[i].opts...)
		if how[i].waits {
			r.waits()
			before.release()
		}
		r.granted().cancel()
		switch {
		case r.Fixed:
			e.sleep(e.brief())
		case e.driverInfo().KeepsAlive:
			e.sleep(e.ttl() * 3 / 2)
		default: // no other client renews the lease
			e.sleep(e.brief())
			if err := r.renew(r.TTL); err != nil {
				return fmt.Errorf("%s, after the context of its Acquire had ended: renewal: %w", how[i].what, err)
			}
		}
		if err := r.keeps("the end of the context of its Acquire"); err != nil {
			return fmt.Errorf("%s: %w", how[i].what, err)
		}
		return nil
	})
	return nil
}

func woken(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	for range 3 {
		h := a.hold(name)
		r := b.start(name).waits()
		h.release()
		r.granted().release()
	}
	return nil
}

func waitingEvent(e *env) error {
	a, name := e.driver(), e.name()
	h := a.hold(name)
	if n := h.waited(); n != 0 {
		return fmt.Errorf("%s reported %d times that it was waiting, although the name was free", a.label, n)
	}
	waiters := make([]*request, 3)
	for i := range waiters {
		waiters[i] = e.driver().start(name).waits()
	}
	h.release()
	for left := waiters; len(left) > 0; {
		granted := -1
		e.until("a waiter is granted the name", func() bool {
			for i, r := range left {
				if r.isDone() {
					granted = i
				}
			}
			return granted >= 0
		})
		left[granted].granted().release()
		left = append(left[:granted:granted], left[granted+1:]...)
	}
	for _, r := range waiters {
		if n := r.waited(); n != 1 {
			return fmt.Errorf("%s reported %d times that it waits, want once", r.driver.label, n)
		}
	}
	return nil
}

func deadlineEndsWait(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name)
	deadline := time.Now().Add(300 * time.Millisecond)
	ctx, cancel := context.WithDeadline(e.ctx, deadline)
	defer cancel()
	r := b.startWith(ctx, cancel, name).result()
	if r.at.Before(deadline) {
		return fmt.Errorf("%s gave up %v before its deadline, with %q", b.label, deadline.Sub(r.at), outcome(r.err))
	}
	if err := r.endedBy(context.DeadlineExceeded); err != nil {
		return err
	}
	h.release()
	return e.isFreeAfter(r.err, name)
}

// endedBy returns an error unless a wait returned its context's error while
// another client held the name.
func (r *request) endedBy(ctxErr error) error {
	switch {
	case r.lease != nil:
		return fmt.Errorf("%s was granted %q while there was another hold", r.driver.label, r.Name)
	case !errors.Is(r.err, ctxErr):
		return fmt.Errorf("the wait of %s ended with %q, want an error that matches %q", r.driver.label, outcome(r.err), ctxErr)
	case r.waited() > 0 && !errors.Is(r.err, driver.ErrLocked) && !errors.Is(r.err, driver.ErrUnknown):
		// unknown: the driver had sent another request
		return fmt.Errorf("the wait of %s, which had been refused, ended with %q, want an error that also matches ErrLocked", r.driver.label, outcome(r.err))
	}
	return nil
}

// isFreeAfter returns an error if name is not free after a request for it
// failed with err. The name must be free immediately, unless the outcome was
// unknown.
func (e *env) isFreeAfter(err error, name string) error {
	if errors.Is(err, driver.ErrUnknown) {
		e.awaitFree(name)
		return nil
	}
	return e.isFree(name)
}

func cancelEndsWait(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	for range 5 {
		h := a.hold(name)
		r := b.start(name).waits()
		r.cancel()
		if err := r.result().endedBy(context.Canceled); err != nil {
			return err
		}
		if err := e.outsider().refused(name); err != nil {
			return err
		}
		h.release()
		if err := e.isFreeAfter(r.err, name); err != nil {
			return err
		}
		if errors.Is(r.err, driver.ErrUnknown) {
			name = e.name() // earlier requests may reach the server after this, and be revoked
		}
	}
	return nil
}

func cancelAtGrant(e *env) error {
	a, b, name := e.rival(), e.driver(), e.name()
	rounds := e.part(100)
	granted := 0
	for range rounds {
		h := a.hold(name)
		if rand.N(4) == 0 {
			if err := b.canceledAtEvent(h); err != nil {
				return err
			}
			continue
		}
		r := b.start(name).waits()
		switch early := rand.N(time.Millisecond); rand.N(8) {
		case 0:
			r.cancel() // the release begins before the waiter notices the end of its context
			h.release()
		case 1:
			h.release()
			r.cancel() // the context ends before the waiter notices the grant
		default:
			e.together("release and cancel", 2, func(i int) error {
				if i == 0 {
					e.sleep(early)
					r.cancel()
				} else {
					e.sleep(rand.N(early + 1))
					h.release()
				}
				return nil
			})
		}
		if r.result().lease != nil {
			granted++
			if r.err != nil {
				return fmt.Errorf("%s returned a lease and the error %w", b.label, r.err)
			}
			if err := e.outsider().refused(name); err != nil {
				return fmt.Errorf("after a grant that coincided with a cancellation: %w", err)
			}
			r.release()
		} else if !errors.Is(r.err, context.Canceled) {
			return fmt.Errorf("%s was canceled and got %q", b.label, outcome(r.err))
		}
		e.awaitFree(name)
	}
	e.events.add("", "%d of %d were granted", granted, rounds)
	return nil
}

// canceledAtEvent requests a name that h holds. Before the driver begins to
// wait, it releases h and cancels the context of the request.
func (d *rawDriver) canceledAtEvent(h *request) error {
	ctx, cancel := context.WithCancel(d.env.ctx)
	r := d.startWith(ctx, cancel, h.Name, func(r *driver.Request) {
		r.Events = &waitingEvents{r.Events, once(func() {
			h.release()
			cancel()
		})}
	}).result()
	if r.lease != nil {
		r.release()
	}
	d.env.awaitFree(h.Name)
	return nil
}

// waitingEvents calls f before the request begins to wait.
type waitingEvents struct {
	driver.Events
	f func()
}

// Waiting implements driver.Events.
func (w *waitingEvents) Waiting() {
	w.f()
	w.Events.Waiting()
}

func doneContext(e *env) error {
	c, d, name := e.client(), e.driver(), e.name()
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	for _, opts := range [][]option{nil, {noWait}} {
		r := d.startWith(ctx, cancel, name, opts...).result()
		if r.lease != nil || !errors.Is(r.err, context.Canceled) {
			return fmt.Errorf("%s, whose context had ended, got lease %v and %q, want the error of the context", d.label, r.lease, outcome(r.err))
		}
		if err := e.isFreeAfter(r.err, name); err != nil {
			return err
		}
	}
	for _, try := range []bool{false, true} {
		_, before := c.tap.requests(name)
		if _, err := c.ask(ctx, try, name); !errors.Is(err, context.Canceled) || errors.Is(err, dsync.ErrLocked) {
			return fmt.Errorf("%s, whose context had ended, got %q, want only the error of the context", c.label, outcome(err))
		}
		if _, after := c.tap.requests(name); after != before {
			return fmt.Errorf("%s called the driver although its context had ended", c.label)
		}
	}
	return nil
}

func queueIsCounted(e *env) error {
	e.claims(inspection)
	c, a, name := e.client(), e.driver(), e.name()
	h := a.hold(name)
	waiters := make([]*request, 3)
	for i := range waiters {
		waiters[i] = e.driver().start(name).waits()
	}
	if s, err := c.inspect(e.ctx, name); err != nil {
		return err
	} else if s.Waiters < 0 {
		e.end(&refusedError{"to count waiters"})
	}
	for left := len(waiters); ; left-- {
		e.poll(fmt.Sprintf("Inspect counts %d waiters", left), func() error {
			s, err := c.inspect(e.ctx, name)
			if err == nil && s.Waiters != left {
				return fmt.Errorf("Inspect counts %d waiters, want %d", s.Waiters, left)
			}
			return err
		})
		if left == 0 {
			break
		}
		r := waiters[left-1]
		r.cancel()
		r.result()
	}
	h.release()
	return e.isFree(name)
}

// The checks of waits that no message ends.
var wakeupChecks = []check{
	{"wakeup/missed", "A waiter that was disconnected when the name was released is granted it after it reconnects. It reports once that it waits, and does not get a lease that has ended.", missedRelease},
	{"wakeup/dead-waiter", "A vanished waiter keeps the name from the waiters behind it for at most its TTL and Info.LateFor, or 15 s if that is longer.", deadWaiter},
}

func missedRelease(e *env) error {
	return e.inOutages(func(outage func(*connection)) error {
		a := e.client()
		e.together("a waiter that is cut off", 2, func(i int) error {
			b, name := e.renewing(), e.name()
			h := a.lock(name)
			waiting := b.start(name).waits()
			outage(b.connection)
			if i == 1 {
				e.sleep(e.ttl() * 3 / 2) // the backend has dropped the waiter
			}
			h.unlock()
			b.heal()
			next := waiting.granted()
			if err := next.isHeld("after the client missed the release"); err != nil {
				return err
			}
			_ = next.tryUnlock(e.ctx) // its session may be about to end
			return nil
		})
		e.together("a request that is cut off for longer than its TTL", 2, func(i int) error {
			return e.outwaits(i == 0, outage)
		})
		return nil
	})
}

// outwaits makes a request wait through an outage that is longer than its TTL,
// so that its place in the queue, or the hold that it was granted, is lost.
func (e *env) outwaits(granted bool, outage func(*connection)) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name)
	w := b.start(name, ttl(e.ttl())).waits()
	outage(b.connection)
	if granted {
		h.release()
	}
	e.sleep(e.ttl() * 3 / 2)
	b.heal()
	if !granted {
		e.sleep(e.ttl() / 2) // the driver sends the request again
		h.release()
	}
	w.result()
	switch {
	case w.waited() > 1:
		return fmt.Errorf("%s reported %d times that it waits, want once, in an outage that was longer than its TTL", b.label, w.waited())
	case w.lease == nil && !errors.Is(w.err, driver.ErrUnavailable) && !errors.Is(w.err, driver.ErrUnknown):
		return fmt.Errorf("%s, which waited in an outage that was longer than its TTL, got: %w", b.label, w.err)
	case w.lease == nil:
	case !w.lease.Expires().After(w.at):
		return fmt.Errorf("%s was granted %q at %s by a lease that had expired at %s", b.label, name, e.events.at(w.at), e.events.at(w.lease.Expires()))
	default:
		_ = w.tryRelease(e.ctx) // its session may be about to end
	}
	e.awaitFree(name)
	return nil
}

func deadWaiter(e *env) error {
	return e.inOutages(func(outage func(*connection)) error {
		return e.punctual(func() error { return e.deadWaiterLeaves(outage) })
	})
}

// vanishedWaiter is how long the request of a vanished client may keep its
// place, whatever its TTL is. Queues that their waiters keep alive need some
// seconds.
const vanishedWaiter = 15 * time.Second

// deadWaiterLeaves lets a waiter vanish. The waiter's TTL counts from then on.
func (e *env) deadWaiterLeaves(outage func(*connection)) error {
	a, b, c, name := e.client(), e.renewing(), e.driver(), e.name()
	h := a.lock(name)
	b.start(name).waits()
	behind := c.start(name).waits()
	outage(b.connection)
	h.unlock()
	last := time.Now()
	behind.granted().release()
	t := e.ttl()
	late := e.driverInfo().LateFor(t)
	return e.late(behind.at.Sub(last)-max(t+late, vanishedWaiter)-e.wakes(), "%s, whose TTL is %v, was out of reach and the name was free at %s, but %s, which waited behind it, was granted the name at %s; Info.LateFor is %v",
		b.label, t, e.events.at(last), c.label, e.events.at(behind.at), late)
}

// The checks of calls to Lock whose contexts end, at any moment, while another
// client holds the name.
var deadlineChecks = []check{
	{"deadlines/held", "If the context of a Lock ends after its client was refused the name, the error also matches ErrLocked, whatever request is interrupted.", deadlineTellsLocked},
	{"deadlines/silent", "WaitAtMost, a deadline and a cancellation end a Lock on time, even if the backend falls silent during the wait.", silenceIsBounded},
}

// deadlines is the number of waits that a check starts. Each ends at a random
// moment.
const deadlines = 40

// endsWithin calls Lock for a held name with a random deadline and returns the
// error.
func (u *user) endsWithin(name string) (after time.Duration, err error) {
	after = time.Millisecond + rand.N(60*time.Millisecond)
	ctx, cancel := context.WithTimeout(u.env.ctx, after)
	defer cancel()
	h, err := u.ask(ctx, false, name)
	switch {
	case err == nil:
		return after, fmt.Errorf("%s was granted %q, which is held", h.user.label, name)
	case !errors.Is(err, context.DeadlineExceeded):
		return after, fmt.Errorf("a Lock with a deadline of %v returned %q, want an error that matches the deadline", after, outcome(err))
	}
	return after, err
}

func deadlineTellsLocked(e *env) error {
	c, name := e.client(), e.name()
	held := e.client().lock(name)
	o := c.owner()
	var refused atomic.Bool
	c.tap.mu.Lock()
	c.tap.onWait = func() { refused.Store(true) }
	c.tap.mu.Unlock()
	for range deadlines {
		refused.Store(false)
		after, err := o.endsWithin(name)
		if refused.Load() && !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("a Lock that was refused, with a deadline of %v, returned %q, want an error that matches ErrLocked", after, outcome(err))
		}
	}
	first := c.start(name).waits()
	for range deadlines {
		if after, err := o.endsWithin(name); !errors.Is(err, dsync.ErrLocked) {
			return fmt.Errorf("a Lock behind a waiting one, with a deadline of %v, returned %q, want an error that matches ErrLocked", after, outcome(err))
		}
	}
	held.unlock()
	first.granted().unlock()
	return nil
}

// overrun is how far a Lock may exceed its bound if the backend is silent.
// Drivers that wait for an answer before they give up take half a second or
// more.
const overrun = 250 * time.Millisecond

// waitBound is the length of the waits that a check bounds.
const waitBound = 200 * time.Millisecond

// bounds are the ways to bound a call to Lock by waitBound.
var bounds = map[string]func(u *user, name string, opts ...dsync.LockOption) *call{
	"WaitAtMost": func(u *user, name string, opts ...dsync.LockOption) *call {
		return u.start(name, append(opts, dsync.WaitAtMost(waitBound))...)
	},
	"a deadline": func(u *user, name string, opts ...dsync.LockOption) *call {
		ctx, cancel := context.WithTimeout(u.env.ctx, waitBound)
		return u.startWith(ctx, cancel, name, opts...)
	},
	"a cancellation": func(u *user, name string, opts ...dsync.LockOption) *call {
		ctx, cancel := context.WithCancel(u.env.ctx)
		time.AfterFunc(waitBound, cancel)
		return u.startWith(ctx, cancel, name, opts...)
	},
}

func silenceIsBounded(e *env) error {
	e.need(e.outsider().link.Hang != nil, "Link.Hang")
	var runs []func() error
	for what, bound := range bounds {
		for m, opts := range map[driver.Mode][]dsync.LockOption{
			driver.Exclusive: nil, driver.Write: {dsync.Write()}, driver.Read: {dsync.Read()}, driver.Permit: {dsync.Permits(2, 2)},
		} {
			if e.driverInfo().Offers(m) {
				runs = append(runs, func() error { return e.boundedInSilence(what, bound, m, opts) })
			}
		}
	}
	e.together("bounded waits while the backend is silent", len(runs), func(i int) error { return runs[i]() })
	return nil
}

// boundedInSilence makes several attempts, because a busy machine is sometimes
// late.
func (e *env) boundedInSilence(what string, bound func(*user, string, ...dsync.LockOption) *call, m driver.Mode, opts []dsync.LockOption) error {
	holder, name := e.driver(), e.name()
	other := m
	if m == driver.Read {
		other = driver.Write
	}
	h := holder.hold(name, in(other))
	c := e.client()
	took := func(silent bool) (time.Duration, error) {
		began := time.Now()
		w := bound(&c.user, name, opts...)
		e.until("a call waits, or has returned", func() bool { return w.isDone() || c.tap.waits(name) > 0 })
		if silent {
			c.hang()
			defer c.heal()
		}
		if _, err := w.result(); err == nil {
			return 0, fmt.Errorf("%s was granted %q, which is held", c.label, name)
		}
		return time.Since(began), nil
	}
	var usual, silent time.Duration
	for range tries {
		var err error
		if usual, err = took(false); err == nil {
			silent, err = took(true)
		}
		if err != nil {
			return err
		}
		if silent <= max(usual, waitBound)+overrun {
			h.release()
			e.outsider().start(name, in(other)).granted().release() // no wait is left
			return nil
		}
	}
	return &lateError{fmt.Errorf("a Lock (%v) that %s limited to %v took %v when the backend fell silent, and %v otherwise", m, what, waitBound, silent, usual)}
}
