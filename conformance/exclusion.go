package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

var exclusionChecks = []check{
	{"exclusion/free", "A free name is granted immediately, to any client.", free},
	{"exclusion/clients", "While one client holds a name, no other client is granted it, no matter how often it tries.", clientsExclude},
	{"exclusion/requests", "Two requests of one client for one name exclude each other.", requestsExclude},
	{"exclusion/equal-owners", "Two requests with the same Owner exclude each other: only Hold identifies a request.", equalOwnersExclude},
	{"exclusion/race", "If many clients request a free name simultaneously, at most one is granted it.", raceOfClients},
	{"exclusion/concurrent-requests", "If one client sends many simultaneous requests for a free name, at most one is granted.", raceOfRequests},
}

func free(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	for range 3 {
		for _, c := range []*client{a, b} {
			c.tryLock(name).unlock()
		}
	}
	return nil
}

func clientsExclude(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	h := a.lock(name)
	for range 20 {
		if err := b.refused(name); err != nil {
			return err
		}
	}
	h.unlock()
	return e.isFree(name)
}

func requestsExclude(e *env) error {
	d, name := e.driver(), e.name()
	h := d.hold(name)
	for range 5 {
		if err := d.refused(name); err != nil {
			return err
		}
	}
	h.release()
	return e.isFree(name)
}

func equalOwnersExclude(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name, owner("one"))
	for _, d := range []*rawDriver{a, b} {
		if err := d.refused(name, owner("one")); err != nil {
			return err
		}
	}
	h.release()
	return e.isFree(name)
}

func raceOfClients(e *env) error {
	clients := make([]*client, 16)
	for i := range clients {
		clients[i] = e.client()
	}
	for range 20 {
		name := e.name()
		granted := make([]*holding, len(clients))
		e.together("TryLock", len(clients), func(i int) (err error) {
			granted[i], err = clients[i].try(name)
			if errors.Is(err, dsync.ErrLocked) {
				return nil
			}
			return err
		})
		if err := atMostOne(granted, name); err != nil {
			return err
		}
	}
	return nil
}

// atMostOne unlocks the lease that was granted. It returns an error if there
// are several.
func atMostOne(granted []*holding, name string) error {
	var winner *holding
	for _, h := range granted {
		switch {
		case h == nil:
		case winner != nil:
			return fmt.Errorf("both %s and %s were granted %q", winner.user.label, h.user.label, name)
		default:
			winner = h
		}
	}
	if winner != nil {
		winner.unlock()
	}
	return nil
}

func raceOfRequests(e *env) error {
	d := e.driver()
	for range 20 {
		name := e.name()
		var granted atomic.Int32
		e.together("Acquire", 16, func(int) error {
			r := d.acquire(name, noWait)
			switch {
			case r.lease != nil && granted.Add(1) > 1:
				return fmt.Errorf("two requests of %s were granted %q", d.label, name)
			case r.lease == nil && !errors.Is(r.err, dsync.ErrLocked):
				return r.err
			}
			return nil
		})
	}
	return nil
}

var contentionChecks = []check{
	{"contention/clients", "Clients that contend for a name hold it one at a time, and every client acquires it.", contendingClients},
	{"contention/owners", "Owners of one client that contend for a name hold it one at a time, and every owner acquires it.", contendingOwners},
}

func contendingClients(e *env) error {
	users := make([]*user, 8)
	for i := range users {
		users[i] = &e.client().user
	}
	return e.contend(users, 15)
}

func contendingOwners(e *env) error {
	c := e.client()
	users := make([]*user, 6)
	for i := range users {
		users[i] = c.owner()
	}
	return e.contend(users, 20)
}

// contend makes each user lock one name the given number of times, and
// increment a counter that would lose concurrent updates.
func (e *env) contend(users []*user, times int) error {
	name := e.name()
	var counter atomic.Int64
	var holder atomic.Pointer[user]
	e.together("Lock and Unlock", len(users), func(i int) error {
		u := users[i]
		for range times {
			h := u.lock(name)
			if other := holder.Swap(u); other != nil {
				return fmt.Errorf("%s and %s held %q at the same time", u.label, other.label, name)
			}
			n := counter.Load()
			e.sleep(time.Millisecond) // the work that the lock protects
			counter.Store(n + 1)
			holder.Store(nil)
			h.unlock()
		}
		return nil
	})
	if got, want := counter.Load(), int64(len(users)*times); got != want {
		return fmt.Errorf("%d updates under the lock left the counter at %d", want, got)
	}
	return nil
}

var ownershipChecks = []check{
	{"ownership/release-twice", "A second Release returns ErrNotHeld and does not affect the next holder.", releaseTwice},
	{"ownership/stale-release", "Release of an expired lease returns ErrNotHeld and does not affect the next holder, which may be the same client.", staleRelease},
	{"ownership/late-release", "Release of an expired lease returns ErrNotHeld, even if no client has acquired the name since.", releaseAfterEnd},
	{"ownership/stale-renew", "Renew of an expired lease returns ErrNotHeld and does not affect the next holder, which may be the same client.", staleRenew},
	{"ownership/dead-after-release", "Renew of a released lease returns ErrNotHeld and revives nothing.", deadAfterRelease},
	{"ownership/done-context", "A release whose context has ended still frees the name.", releaseWithDoneContext},
	{"ownership/force-unlock", "ForceUnlock ends the hold of any client. It returns ErrNotHeld if there is no hold.", forceUnlockEndsHold},
	{"ownership/force-unlock-tells", "The holder is notified that its hold was removed.", forceUnlockTells},
	{"ownership/force-unlock-wakes", "A waiter is granted the name when the hold is removed.", forceUnlockWakes},
}

// keeps returns an error unless r still holds its name. It then releases it.
func (r *request) keeps(what string) error {
	e := r.driver.env
	if err := e.outsider().refused(r.Name); err != nil {
		return fmt.Errorf("after %s: %w", what, err)
	}
	if err := r.tryRelease(e.ctx); err != nil {
		return fmt.Errorf("after %s, the next holder released its lease and got: %w", what, err)
	}
	return e.isFree(r.Name)
}

// isNotHeld returns an error unless err is ErrNotHeld.
func isNotHeld(what string, err error) error {
	if !errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("%s returned %q, want ErrNotHeld", what, outcome(err))
	}
	return nil
}

// areRemoved returns an error unless releasing each hold reports that the hold
// was removed. The outcome of a release may be unknown, because a session may
// end in the meantime.
func (e *env) areRemoved(holds ...*request) error {
	for _, r := range holds {
		err := r.tryRelease(e.ctx)
		if !errors.Is(err, driver.ErrNotHeld) && !errors.Is(err, driver.ErrUnknown) {
			return fmt.Errorf("the release by %s of a removed hold returned %q, want ErrNotHeld or ErrUnknown", r.driver.label, outcome(err))
		}
	}
	return nil
}

func releaseTwice(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name)
	h.release()
	if err := isNotHeld("a second release", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	next := b.hold(name)
	if err := isNotHeld("a third release", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	return next.keeps("a release by the previous holder")
}

// afterExpiry lets leases run out. It calls f with each lease and the next hold
// of the name, which belongs to the same client or to another client.
func (e *env) afterExpiry(f func(old, next *request, heir string) error) error {
	a, b := e.driver(), e.driver()
	e.together("leases that run out", 2, func(i int) error {
		old, next, heir := a.hold(e.name(), fixed, ttl(e.brief())), (*request)(nil), "another client"
		d := b
		if i == 1 {
			d, heir = a, "the same client"
		}
		e.expired(old)
		e.poll("the name of an expired lease is granted to "+heir, func() error {
			next = d.acquire(old.Name, noWait, in(e.rivals()))
			return next.err
		})
		return f(old, next.granted(), heir)
	})
	return nil
}

func staleRelease(e *env) error {
	return e.afterExpiry(func(old, next *request, heir string) error {
		if err := isNotHeld("the release of an expired lease, when "+heir+" held the name,", old.tryRelease(e.ctx)); err != nil {
			return err
		}
		return next.keeps("the release of an expired lease, when " + heir + " held the name,")
	})
}

// staleRenew renews for less than the TTL of the next lease. That lease would
// end early if the backend applied the renewal to it.
func staleRenew(e *env) error {
	return e.afterExpiry(func(old, next *request, heir string) error {
		if err := isNotHeld("the renewal of an expired lease, when "+heir+" held the name,", old.renew(e.brief())); err != nil {
			return err
		}
		e.sleep(e.brief() + e.driverInfo().LateFor(e.brief()))
		return next.keeps("the renewal of an expired lease, when " + heir + " held the name,")
	})
}

// releaseAfterEnd waits until the backend reports the end of the hold. If it
// reports no ends, releaseAfterEnd waits as long as the hold may last according
// to the driver's claims.
func releaseAfterEnd(e *env) error {
	a, b := e.driver(), e.outsider()
	h := a.hold(e.name(), fixed, ttl(e.brief()))
	over := h.lease.Expires().Add(e.driverInfo().LateFor(h.TTL))
	if inspector, ok := b.driver.(driver.Inspector); ok {
		e.expired(h)
		e.poll("Inspect reports the end of an expired lease", func() error {
			s, err := inspector.Inspect(e.ctx, h.Name)
			if errors.Is(err, errors.ErrUnsupported) {
				e.sleepUntil(over)
				return nil
			}
			if err == nil && s.Held {
				return errors.New("it is held")
			}
			return err
		})
	} else {
		e.sleepUntil(over)
	}
	if err := isNotHeld("the release of an expired lease whose name no client had acquired since", h.tryRelease(e.ctx)); err != nil {
		return err
	}
	e.awaitFree(h.Name)
	return nil
}

func deadAfterRelease(e *env) error {
	a, name := e.driver(), e.name()
	h := a.hold(name, fixed)
	h.release()
	if err := isNotHeld("the renewal of a released lease", h.renew(e.long())); err != nil {
		return err
	}
	if err := e.isFree(name); err != nil {
		return fmt.Errorf("after the renewal of a released lease: %w", err)
	}
	return nil
}

func releaseWithDoneContext(e *env) error {
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	c, d, name := e.client(), e.driver(), e.name()
	h := d.hold(name)
	if err := h.tryRelease(ctx); errors.Is(err, driver.ErrNotHeld) {
		return fmt.Errorf("the release of a live lease returned %q", err)
	}
	e.awaitFree(name)
	if err := c.tryLock(name).tryUnlock(ctx); err != nil {
		return fmt.Errorf("an Unlock with an ended context: %w", err)
	}
	return e.isFree(name)
}

func forceUnlockEndsHold(e *env) error {
	e.claims(forceUnlock)
	c, d, name := e.client(), e.driver(), e.name()
	if err := isNotHeld("ForceUnlock of a free name", c.ForceUnlock(e.ctx, name)); err != nil {
		return err
	}
	h := d.hold(name)
	if err := c.ForceUnlock(e.ctx, name); err != nil {
		return err
	}
	if err := e.isFree(name); err != nil {
		return fmt.Errorf("after ForceUnlock: %w", err)
	}
	if e.driverInfo().KeepsAlive {
		// notices the loss at the latest; a release may not know whether its
		// session had ended before
		_ = h.renew(e.long())
	}
	return isNotHeld("the release of a removed hold", h.tryRelease(e.ctx))
}

func forceUnlockTells(e *env) error {
	e.claims(forceUnlock)
	a, b, name := e.clientWith(&dsync.Options{TTL: e.renewed()}), e.client(), e.name()
	h := a.lock(name)
	e.must(b.ForceUnlock(e.ctx, name))
	return h.lost()
}

// lost waits until h has been lost and returns an error unless h reports the
// loss.
func (h *holding) lost() error {
	e := h.user.env
	e.within(fmt.Sprintf("%s is notified that its hold of %q is gone", h.user.label, h.name), func() {
		select {
		case <-h.Done():
		case <-e.ctx.Done():
		}
	})
	e.events.add(h.user.label, "lease of %q has ended: %s", h.name, outcome(h.Err()))
	for what, err := range map[string]error{"Err": h.Err(), "Unlock": h.tryUnlock(e.ctx)} {
		if !errors.Is(err, dsync.ErrLost) {
			return fmt.Errorf("%s of a lease that was lost returned %q, want ErrLost", what, outcome(err))
		}
	}
	return nil
}

func forceUnlockWakes(e *env) error {
	e.claims(forceUnlock)
	a, b, c, name := e.driver(), e.driver(), e.client(), e.name()
	a.hold(name)
	r := b.start(name).waits()
	e.must(c.ForceUnlock(e.ctx, name))
	r.granted().release()
	return nil
}

var reentrancyChecks = []check{
	{"reentrancy/nested", "The locks of one Owner nest: they share one hold and one token, and the name is free when the last lease is unlocked.", nested},
	{"reentrancy/other-owner", "Another Owner of the same client is refused.", otherOwner},
	{"reentrancy/shorter", "A nested lease that ends by itself does not shorten the outer lease.", shorterNested},
	{"reentrancy/renewal", "Unlocking a nested lease does not stop the renewal of the hold.", nestedRenewal},
	{"reentrancy/loss", "If the hold is lost, all nested leases are lost.", nestedLoss},
}

func nested(e *env) error {
	a, name := e.client(), e.name()
	o := a.owner()
	outer := o.lock(name)
	inner := []*holding{o.lock(name), o.tryLock(name)}
	if n, _ := a.tap.requests(name); n != 1 {
		return fmt.Errorf("nested locks made %d requests to the driver, want 1", n)
	}
	for _, h := range inner {
		if h.Token() != outer.Token() {
			return fmt.Errorf("a nested lease has the token %d, want the token of the outer lease, %d", h.Token(), outer.Token())
		}
	}
	for _, h := range inner {
		h.unlock()
		if err := isNotHeld("a second Unlock", h.tryUnlock(e.ctx)); err != nil {
			return err
		}
		if err := outer.isHeld("after a nested lease was unlocked"); err != nil {
			return err
		}
	}
	outer.unlock()
	return e.isFree(name)
}

// isHeld returns an error unless h reports that it is held, and other clients
// see that it is.
func (h *holding) isHeld(when string) error {
	e := h.user.env
	if err := h.Err(); err != nil {
		return fmt.Errorf("%s: Err of the lease returned %w", when, err)
	}
	if err := e.outsider().refused(h.name); err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	return nil
}

func otherOwner(e *env) error {
	a, name := e.client(), e.name()
	h := a.owner().lock(name)
	for _, u := range []*user{a.owner(), &a.user} {
		if err := u.refused(name); err != nil {
			return err
		}
	}
	h.unlock()
	return e.isFree(name)
}

func shorterNested(e *env) error {
	a, name := e.client(), e.name()
	o := a.owner()
	outer := o.lock(name)
	before := outer.Deadline()
	inner := o.lock(name, dsync.ExpireAfter(e.brief()))
	e.within("a nested lease ends by itself", func() {
		select {
		case <-inner.Done():
		case <-e.ctx.Done():
		}
	})
	if after := outer.Deadline(); after.Before(before) {
		return fmt.Errorf("the deadline of the outer lease fell from %s to %s", e.events.at(before), e.events.at(after))
	}
	if err := outer.isHeld("after a nested lease ended by itself"); err != nil {
		return err
	}
	outer.unlock()
	return e.isFree(name)
}

func nestedRenewal(e *env) error {
	a, name := e.clientWith(&dsync.Options{TTL: e.renewed()}), e.name()
	o := a.owner()
	outer := o.lock(name)
	o.lock(name).unlock()
	if err := outer.renewals(1); err != nil {
		return err
	}
	if err := outer.isHeld("after the renewal of a hold whose nested lease was unlocked"); err != nil {
		return err
	}
	outer.unlock()
	return e.isFree(name)
}

func nestedLoss(e *env) error {
	a, name := e.clientWith(&dsync.Options{TTL: e.renewed()}), e.name()
	o := a.owner()
	all := []*holding{o.lock(name), o.lock(name), o.lock(name)}
	e.remove(name)
	for _, h := range all {
		if err := h.lost(); err != nil {
			return err
		}
	}
	e.awaitFree(name)
	return nil
}

// remove ends the hold of name without notice to its holder.
func (e *env) remove(name string) {
	e.need(e.canRemove(), "Backend.Expire")
	if c := e.client(); forceUnlock.claimed(c) {
		e.must(c.ForceUnlock(e.ctx, name))
		return
	}
	e.events.add("", "the hold of %q is ended without notice to its holder", name)
	e.harness("Backend.Expire", func() { e.backend.Expire(e.tb, name) })
}

func (e *env) canRemove() bool { return e.backend.Expire != nil || forceUnlock.claimed(e.client()) }
