package conformance

import (
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

var fencingChecks = []check{
	{"fencing/rise", "The token of each grant is larger than that of every grant of the name before, whichever client it went to.", tokensRise},
	{"fencing/blocks", "Of the tokens that come with a grant, the last is smaller than the first of the next grant.", blocksRise},
	{"fencing/loss", "Tokens also rise over holds that expired, were removed, or whose wait was canceled.", tokensRiseOverLoss},
	{"fencing/kept", "The tokens of a hold can be kept, as often as asked and by many at a time; they stay the same, and so does the hold.", tokensAreKept},
	{"fencing/idle", "Tokens also rise when nobody has asked for the name, or for any, for hours and days.", tokensRiseOverTime},
}

func tokensRise(e *env) error {
	e.claims(fencing)
	clients, name := e.clients(8), e.name()
	var last uint64 // guarded by the lock, which the checks before this one have shown to exclude
	e.together("Lock and Unlock", len(clients), func(i int) error {
		for range 25 {
			h, err := clients[i].ask(e.ctx, false, name)
			if err != nil {
				return err
			}
			if h.Token() <= last {
				return fmt.Errorf("%s got the token %d after %d had been given out", clients[i].label, h.Token(), last)
			}
			last = h.Token()
			h.unlock()
		}
		return nil
	})
	return nil
}

func blocksRise(e *env) error {
	e.claims(fencing)
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	for i := range 20 {
		d := []*rawDriver{a, b}[i%2]
		h := d.hold(name, block(1+i*7%64))
		first, n := h.lease.Tokens()
		if n < 1 || first <= last || first+uint64(n) <= first {
			return fmt.Errorf("%s got %d tokens from %d after %d had been given out", d.label, n, first, last)
		}
		last = first + uint64(n) - 1
		h.release()
	}
	return nil
}

func tokensRiseOverLoss(e *env) error {
	e.claims(fencing)
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	rises := func(h *request, after string) error {
		first, _ := h.lease.Tokens()
		if first <= last {
			return fmt.Errorf("after %s, %s got the token %d, after %d", after, h.driver.label, first, last)
		}
		last = first
		return nil
	}
	for range 2 {
		h := a.hold(name)
		if err := rises(h, "a release"); err != nil {
			return err
		}
		w := b.start(name).waits()
		w.cancel()
		w.result()
		h.release()
		e.awaitFree(name)

		h = b.hold(name, fixed, ttl(e.ttl()))
		if err := rises(h, "a canceled wait"); err != nil {
			return err
		}
		next := a.start(name).granted() // when the hold has expired
		if err := rises(next, "an expiry"); err != nil {
			return err
		}
		if !e.canRemove() {
			next.release()
			continue
		}
		e.remove(name)
		h = b.start(name).granted()
		if err := rises(h, "a removal"); err != nil {
			return err
		}
		h.release()
	}
	return nil
}

func tokensRiseOverTime(e *env) error {
	e.claims(fencing)
	e.need(e.fakeTime, "FakeTime")
	a, b, name := e.driver(), e.driver(), e.name()
	var last uint64
	for i, idle := range []time.Duration{0, 16 * time.Minute, time.Hour, 25 * time.Hour, 8 * 24 * time.Hour} {
		e.sleep(idle)
		h := []*rawDriver{a, b}[i%2].hold(name)
		first, n := h.lease.Tokens()
		if first <= last {
			return fmt.Errorf("after %v in which nobody held %q, %s got the token %d, after %d", idle, name, h.driver.label, first, last)
		}
		last = first + uint64(n) - 1
		e.sleep(min(idle, e.long()/2))
		h.release()
	}
	long := a.hold(name, fixed, ttl(e.allowed(24*time.Hour)))
	first, n := long.lease.Tokens()
	e.sleep(long.TTL - long.TTL/8)
	long.release()
	next := b.hold(name)
	if token, _ := next.lease.Tokens(); token < first+uint64(n) {
		return fmt.Errorf("after a hold of %v with %d tokens from %d, %s got the token %d", long.TTL, n, first, b.label, token)
	}
	return nil
}

func tokensAreKept(e *env) error {
	e.claims(fencing)
	h := e.driver().hold(e.name())
	first, n := h.lease.Tokens()
	keep := func() error {
		if err := untap(h.lease).KeepTokens(e.ctx); err != nil {
			return fmt.Errorf("KeepTokens of a lease that is held returned %q, want nil", outcome(err))
		}
		return nil
	}
	e.together("KeepTokens", 16, func(int) error { return keep() })
	if again, m := h.lease.Tokens(); again != first || m != n {
		return fmt.Errorf("a lease had %d tokens from %d, and %d from %d when they were kept", n, first, m, again)
	}
	h.release()
	if err := untap(h.lease).KeepTokens(e.ctx); err != nil {
		return fmt.Errorf("tokens were kept, and KeepTokens returned %q after the release, want nil", outcome(err))
	}
	return nil
}

// block makes a request that could use n tokens.
func block(n int) option {
	return func(r *driver.Request) { r.Events = &blockEvents{r.Events, n} }
}

type blockEvents struct {
	driver.Events
	n int
}

// Tokens implements driver.Events.
func (b *blockEvents) Tokens() int { return b.n }
