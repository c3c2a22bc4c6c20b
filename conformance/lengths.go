package conformance

import (
	"fmt"
	"time"

	"github.com/go-dsync/dsync"
)

// The checks of leases whose lengths have nothing to do with each other, as in programs that compute them.
var lengthChecks = []check{
	{"lengths/extended", "A lease that is extended to 200 times its first length goes on, also where a session with the first length carries it.", extendedFar},
	{"lengths/many", "A free name is granted for any length, also while leases of 20 other lengths are held.", manyLengths},
}

// laterLengthChecks build on the checks of Inspect.
var laterLengthChecks = []check{
	{"lengths/renewed", "A fixed lease can be renewed for any TTL that Info allows, and lasts for that time.", renewedFar},
}

// renewedFar leaves out sessions, whose ends come first, and of which Inspect tells that.
func renewedFar(e *env) error {
	i := e.driverInfo()
	if i.KeepsAlive {
		return nil
	}
	longest := i.MaxTTL
	if longest == 0 {
		longest = 365 * 24 * time.Hour
	}
	d := e.driver()
	var held []*request
	for _, t := range append(overflows(longest), e.allowed(longest)) {
		r := d.hold(e.name(), fixed)
		r.TTL = e.allowed(t)
		if err := r.renew(r.TTL); err != nil {
			return fmt.Errorf("a fixed lease was not renewed for %v, which Info allows: %w", r.TTL, err)
		}
		held = append(held, r)
	}
	e.sleep(overflown)
	for _, r := range held {
		if err := r.lasts(); err != nil {
			return fmt.Errorf("a lease that was renewed for %v: %w", r.TTL, err)
		}
		r.release()
	}
	return nil
}

// lives returns an error unless the lease is held, and was given a deadline in the future.
func (h *holding) lives(what string) error {
	if err := h.Err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if left := time.Until(h.Deadline()); left <= 0 {
		return fmt.Errorf("%s: the deadline passed %v ago", what, -left)
	}
	return nil
}

func extendedFar(e *env) error {
	first := e.ttl()
	h := e.client().lock(e.name(), dsync.ExpireAfter(first))
	if err := h.Extend(e.ctx, e.allowed(200*first)); err != nil {
		return fmt.Errorf("extension of a lease of %v to %v: %w", first, e.allowed(200*first), err)
	}
	if err := h.lives("a lease that was extended"); err != nil {
		return err
	}
	h.unlock()
	return nil
}

func manyLengths(e *env) error {
	c := e.clientWith(&dsync.Options{TTL: e.renewed()})
	longest, unit := e.allowed(2*time.Hour), max(e.driverInfo().TTLUnit, time.Millisecond)
	var held []*holding
	for i := range 20 {
		length := longest - time.Duration(i)*unit
		h, err := c.try(e.name(), dsync.ExpireAfter(length))
		if err != nil {
			return fmt.Errorf("TryLock of a free name for %v, with %d other lengths in use: %w", length, i, err)
		}
		held = append(held, h)
	}
	for i, h := range held {
		if err := h.lives(fmt.Sprintf("lease %d of %d lengths", i+1, len(held))); err != nil {
			return err
		}
		h.unlock()
	}
	return nil
}
