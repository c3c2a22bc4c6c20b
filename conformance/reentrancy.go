package conformance

import (
	"fmt"

	"github.com/go-dsync/dsync"
)

var reentrancyChecks = []check{
	{"reentrancy/nested", "The locks of one Owner nest: one hold, one token, and the name is free when the last lease is unlocked.", nested},
	{"reentrancy/other-owner", "Another Owner of the same client is refused.", otherOwner},
	{"reentrancy/shorter", "A nested lease that ends by itself does not shorten the one around it.", shorterNested},
	{"reentrancy/renewal", "Unlocking a nested lease does not stop the renewal of the hold.", nestedRenewal},
	{"reentrancy/loss", "When the hold is lost, all nested leases are.", nestedLoss},
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
			return fmt.Errorf("a nested lease has the token %d, want that of the outer one, %d", h.Token(), outer.Token())
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

// isHeld returns an error unless h is held, by its own word and by that of others.
func (h *holding) isHeld(when string) error {
	e := h.user.env
	if err := h.Err(); err != nil {
		return fmt.Errorf("%s: the lease says %w", when, err)
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
	if err := outer.isHeld("after the renewal of a hold of which a nested lease was unlocked"); err != nil {
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

// remove ends the hold of name behind the back of its holder.
func (e *env) remove(name string) {
	e.need(e.canRemove(), "Backend.Expire")
	if c := e.client(); forceUnlock.claimed(c) {
		e.must(c.ForceUnlock(e.ctx, name))
		return
	}
	e.events.add("", "the hold of %q is ended behind its holder's back", name)
	e.harness("Backend.Expire", func() { e.backend.Expire(e.tb, name) })
}

func (e *env) canRemove() bool { return e.backend.Expire != nil || forceUnlock.claimed(e.client()) }
