package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// The checks of the notice that a holder receives when its hold is lost.
var lossChecks = []check{
	{"loss/unlock", "A lease that is released properly is never reported as lost.", releaseIsNoLoss},
	{"loss/told", "A driver reports ErrRemoved within Info.Detect of the removal of a hold, or at the next renewal if Detect is 0.", removalIsTold},
	{"loss/once", "Lost is called at most once, and not after Release has returned.", toldOnce},
	{"loss/unlocked", "The driver holds no mutex while it calls a method of Events: other calls continue, and Expires, Session and Tokens of a lease return.", eventsHoldNoLock},
	{"loss/context", "Done, Err and the contexts of a lease end together and agree.", contextsEnd},
	{"loss/again", "A client that lost all of its leases can lock again, and old leases stay lost.", locksAgain},
}

// laterLossChecks come after the checks of ForceUnlock in each mode.
var laterLossChecks = []check{
	{"loss/fixed", "The holder of a fixed lease, in any mode, is notified within Info.Detect that its hold was removed. Querying the backend does not move the end of the lease.", fixedRemovalIsTold},
	{"loss/all-told", "ForceUnlock ends all holds of a name, however many there are, and notifies each holder.", allAreTold},
}

func releaseIsNoLoss(e *env) error {
	a, b, c, name := e.driver(), e.driver(), e.renewing(), e.name()
	var all []*request
	for range 3 {
		h := a.hold(name)
		h.release()
		_ = h.tryRelease(e.ctx) // a second time
		b.hold(name).release()
		all = append(all, h)
	}
	h := c.lock(name)
	if err := h.renewals(1); err != nil {
		return err
	}
	h.unlock()
	select {
	case <-h.Done():
	default:
		return errors.New("the channel of Done is not closed after Unlock")
	}
	if err := h.Err(); !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) {
		return fmt.Errorf("the Err of a lease that was unlocked is %q, want ErrNotHeld and not ErrLost", outcome(err))
	}
	a.shut()
	for _, h := range all {
		if causes := h.lost(); len(causes) > 0 {
			return fmt.Errorf("the loss of a lease that had been released was reported, with %q", causes)
		}
	}
	return nil
}

func removalIsTold(e *env) error {
	for _, waits := range []bool{false, true} {
		if err := e.punctual(func() error { return e.tellsOfRemoval(waits) }); err != nil {
			return err
		}
	}
	if e.outsider().link.Hang == nil {
		return nil
	}
	return e.tellsAfterOutage()
}

// tellsAfterOutage checks that a client detects, after an outage, that several
// of its holds were removed during it.
func (e *env) tellsAfterOutage() error {
	d, admin := e.driver(), e.client()
	held := []*request{d.hold(e.name()), d.hold(e.name()), d.hold(e.name())}
	forced := forceUnlock.claimed(admin)
	d.hang()
	for _, h := range held {
		if !forced {
			e.remove(h.Name)
		} else if err := admin.ForceUnlock(e.ctx, h.Name); !errors.Is(err, driver.ErrNotHeld) {
			// one session may carry all
			e.must(err)
		}
	}
	d.heal()
	for i, h := range held {
		what := fmt.Sprintf("%s finds out that hold %d of %d was removed in an outage", d.label, i+1, len(held))
		if e.driverInfo().Detect > 0 {
			e.until(what, func() bool { return len(h.lost()) > 0 })
		} else if err := isNotHeld("a renewal by which "+what, h.renew(e.long())); err != nil {
			return err
		}
	}
	return nil
}

// tellsOfRemoval removes a hold, with or without another client waiting for it,
// and checks that the holder is notified.
func (e *env) tellsOfRemoval(waits bool) error {
	a, name, detect := e.driver(), e.name(), e.driverInfo().Detect
	h, other := a.hold(name), a.hold(e.name())
	var next *request
	if waits {
		next = e.outsider().start(name).waits()
	}
	e.remove(name)
	removed := time.Now()
	if detect == 0 {
		return isNotHeld("the renewal of a removed hold", h.renew(e.long()))
	}
	e.until(fmt.Sprintf("%s is notified that its hold was removed", a.label), func() bool { return len(h.lost()) > 0 })
	cause := h.lost()[0]
	switch sessionLives := e.outsider().refused(other.Name) == nil; {
	case sessionLives && !errors.Is(cause, driver.ErrRemoved):
		return fmt.Errorf("%s was notified of a removed hold with the cause %q, want ErrRemoved", a.label, cause)
	case !errors.Is(cause, driver.ErrRemoved) && !errors.Is(cause, driver.ErrSessionEnded):
		return fmt.Errorf("%s was notified of a removed hold with the cause %q, want ErrRemoved or ErrSessionEnded", a.label, cause)
	}
	if waits {
		next.granted().release()
	}
	return e.late(h.lostAt.Sub(removed)-detect, "%s was notified of the loss of %q at %s, but its hold was removed at %s at the latest (a client waited: %t); Info.Detect is %v",
		a.label, name, e.events.at(h.lostAt), e.events.at(removed), waits, detect)
}

func fixedRemovalIsTold(e *env) error {
	info := e.renewing().dsync.Info()
	detect := info.Detect
	modes := [][]dsync.LockOption{nil}
	if info.ReadWrite.Offered {
		modes = append(modes, []dsync.LockOption{dsync.Read()}, []dsync.LockOption{dsync.Write()})
	}
	if info.Permits.Offered {
		modes = append(modes, []dsync.LockOption{dsync.Permits(2, 3)})
	}
	var ways []func() error
	for _, opts := range modes {
		ways = append(ways, func() error {
			// from separate clients, because all holds of one client may end
			// with its session
			c, name := e.renewing(), e.name()
			h := c.lock(name, append(opts, dsync.ExpireAfter(e.allowed(e.long()+2*detect)))...)
			e.remove(name)
			removed := time.Now()
			e.within(fmt.Sprintf("the end of a fixed lease of %q whose hold was removed", name), func() { <-h.Done() })
			if err := h.Err(); !errors.Is(err, dsync.ErrLost) {
				return fmt.Errorf("the Err of a lease whose hold was removed is %q, want ErrLost", outcome(err))
			}
			return e.late(time.Since(removed)-detect, "%s was notified that its hold of %q was removed; Info.Detect is %v", c.label, name, detect)
		})
	}
	if e.driverInfo().Detect == 0 {
		ways = append(ways, func() error {
			name, lasts := e.name(), e.allowed(2*e.ttl())
			h := e.renewing().lock(name, dsync.ExpireAfter(lasts))
			before := h.Deadline()
			next := e.outsider().start(name).waits().granted()
			defer next.release()
			if moved := h.Deadline().Sub(before); moved != 0 {
				return fmt.Errorf("the deadline of a fixed lease moved by %v", moved)
			}
			end := before.Add(lasts/100 + 5*time.Millisecond + info.LateFor(lasts) + e.wakes())
			return e.late(next.at.Sub(end), "a fixed lease of %q ended", name)
		})
	}
	e.together("fixed leases", len(ways), func(i int) error { return e.punctual(ways[i]) })
	return nil
}

func toldOnce(e *env) error {
	a, name := e.driver(), e.name()
	h := a.hold(name, fixed)
	e.remove(name)
	_ = h.renew(e.long()) // notices the loss at the latest
	if err := isNotHeld("the release of a removed hold", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	all := []*request{h}
	for range 20 {
		h := a.hold(name)
		e.together("remove and release", 2, func(i int) error {
			if i == 0 {
				e.expire(name)
			} else if err := h.tryRelease(e.ctx); err != nil && !errors.Is(err, driver.ErrNotHeld) && !errors.Is(err, driver.ErrUnknown) {
				return err // unknown: the session may be ended while its server reads the release
			}
			return nil
		})
		e.awaitFree(name)
		all = append(all, h)
	}
	a.hold(e.name()).release()
	if l := e.outsider().link; e.driverInfo().KeepsAlive && l.LoseAnswers != nil {
		all = append(all, e.lostAndRemoved())
	}
	for _, h := range all {
		if causes := h.lost(); len(causes) > 1 {
			return fmt.Errorf("the loss of one hold was reported %d times, with %q", len(causes), causes)
		}
	}
	return nil
}

// lostAndRemoved makes a client lose its session and then removes the hold. The
// session may still exist on the backend.
func (e *env) lostAndRemoved() *request {
	d := e.driver()
	h := d.hold(e.name(), ttl(e.ttl()))
	d.loseAnswers()
	e.sleep(h.TTL * 5 / 4)
	if left := time.Until(h.lease.Expires()); left > 0 {
		e.endf("the Expires of a lease keeps moving while no answer arrives: %v are left after 5/4 of its TTL of %v", left, h.TTL)
	}
	e.expire(h.Name)
	d.heal()
	if r := d.acquire(e.name()); r.lease != nil { // by then a second loss would have been reported
		_ = r.tryRelease(e.ctx)
	}
	return h
}

// askingEvents calls methods of the lease in each event. Package dsync calls
// the same methods while it holds mutexes that its own events also lock.
type askingEvents struct {
	driver.Events
	lease driver.Lease
	// receives one value when a loss is reported: whether a call that began
	// during the event is waiting for a mutex
	lost  chan bool
	call  func() // a call to the driver, from Tokens
	start func() *request
}

func (a *askingEvents) of(r *driver.Request) { a.Events, r.Events = r.Events, a }

func (a *askingEvents) ask() {
	a.lease.Expires()
	a.lease.Tokens()
	a.lease.(driver.SessionLease).Session()
}

// Waiting implements driver.Events.
func (a *askingEvents) Waiting() {
	a.ask()
	a.Events.Waiting()
}

// Tokens implements driver.Events.
func (a *askingEvents) Tokens() int {
	a.ask()
	a.call()
	return a.Events.Tokens()
}

// Lost implements driver.Events.
func (a *askingEvents) Lost(cause error) {
	a.ask()
	a.Events.Lost(cause)
	r := a.start()
	select {
	case a.lost <- r.driver.env.waitsForLock(r.goroutine):
	default:
	}
}

// waitsForLock reports whether a goroutine has begun to wait for a mutex. It
// does not wait for the goroutine to end, because the end may depend on the
// caller.
func (e *env) waitsForLock(g *goroutine) bool {
	pause := runtime.Gosched // fake time stands still for a goroutine that waits for a mutex
	if !e.fakeTime {
		pause = func() { e.sleep(time.Millisecond) }
	}
	waits := false
	for range 20 {
		for range 10 {
			pause()
		}
		id := g.id.Load()
		if g.isDone() || id == nil {
			continue
		}
		state, _, _ := strings.Cut(stackOf(*id), "\n")
		waits = strings.Contains(state, "[sync.Mutex") || strings.Contains(state, "[sync.RWMutex")
		if !waits && !strings.Contains(state, "[run") { // running, runnable
			return false
		}
	}
	return waits && !g.isDone()
}

func eventsHoldNoLock(e *env) error { return e.punctual(e.eventsHoldNoLock) }

func (e *env) eventsHoldNoLock() error {
	a, name := e.driver(), e.name()
	other := a.hold(e.name())
	call := func() {
		g := e.run(func() { a.acquire(e.name(), noWait, fixed) })
		select {
		case <-g.done:
		case <-time.After(e.hangs()):
			e.failed(errors.New("an Acquire that began during Events.Tokens does not return: the driver holds a mutex during the event"))
		}
	}
	asks := func() *askingEvents {
		return &askingEvents{lease: other.lease, lost: make(chan bool, 1), call: call, start: func() *request { return a.start(e.name(), noWait, fixed) }}
	}
	first := asks()
	h := a.hold(name, first.of)
	next := a.start(name, asks().of).waits()
	next.cancel()
	next.result()
	held := e.driver().hold(e.name())
	waiter := a.start(held.Name, asks().of).waits()
	held.release()
	waiter.granted().release()
	e.remove(name)
	locked := false
	e.within("Events.Lost, in which Expires, Session and Tokens of a lease are called", func() {
		if e.driverInfo().Detect == 0 {
			_ = h.lease.Renew(e.ctx, h.TTL) // which may call Lost
			return
		}
		select {
		case locked = <-first.lost:
		case <-e.ctx.Done():
		}
	})
	if locked { // perhaps by another call, so try again
		return &lateError{errors.New("an Acquire that began during Events.Lost waits for a mutex: the driver holds a mutex during the event")}
	}
	return nil
}

// contextual is a lease with a context that ends when the lease ends.
type contextual interface {
	Context(parent context.Context) (context.Context, context.CancelFunc)
}

func contextsEnd(e *env) error {
	o, name := e.renewing().owner(), e.name()
	for _, lose := range []bool{false, true} {
		h := o.lock(name)
		ctx, cancel := h.lease.(contextual).Context(e.ctx)
		defer cancel()
		if lose {
			e.expire(name)
		} else {
			h.unlock()
		}
		e.within("the lease ends", func() {
			select {
			case <-h.Done():
			case <-e.ctx.Done():
			}
		})
		if ctx.Err() == nil {
			return fmt.Errorf("a context of a lease continues after the end of the lease, with %q", outcome(h.Err()))
		}
		if cause, err := context.Cause(ctx), h.Err(); cause != err || !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) != lose {
			return fmt.Errorf("a lease ended with %q, and its context with %q, want the same error, which matches ErrLost: %t", outcome(err), outcome(cause), lose)
		}
		e.awaitFree(name)
	}
	return nil
}

func locksAgain(e *env) error {
	a, b := e.renewing(), e.driver()
	old := make([]*holding, 10)
	for i := range old {
		old[i] = a.lock(e.name())
	}
	a.outages()[0]()
	for _, h := range old {
		next := b.start(h.name).granted()
		if err := h.overBefore(next); err != nil {
			return err
		}
		next.release()
	}
	a.heal()
	for _, h := range old {
		again := a.lock(h.name)
		if err := h.lost(); err != nil {
			return err
		}
		if err := again.isHeld("after the previous lease was lost and unlocked"); err != nil {
			return err
		}
		again.unlock()
	}
	return nil
}
