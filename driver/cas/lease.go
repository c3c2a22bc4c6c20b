package cas

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// lease is a hold that this driver wrote.
type lease struct {
	d      *Driver
	desk   *desk
	r      *driver.Request
	turn   chan struct{} // holds an element during a renewal
	forget *time.Timer   // removes the lease from Driver.leases when it has ended

	mu        sync.Mutex
	end       time.Time
	dead      bool // released
	contended bool
	first     uint64
	tokens    int

	marked bool // see move.Marker
}

// grant adds the hold of a request to a record.
func (d *Driver) grant(v *view, r *driver.Request, sent time.Time) *lease {
	l := &lease{d: d, r: r, turn: make(chan struct{}, 1), end: sent.Add(r.TTL)}
	c := newClaim(r, sent, r.TTL)
	if r.Mode == driver.Permit {
		if limit := v.limit(); limit == 0 {
			v.Limit = r.Limit
		}
	} else {
		l.assignTokens(v, &c)
	}
	v.Holds, l.marked = append(v.Holds, c), v.Marked
	return l
}

// assignTokens gives the hold of the lease new tokens, unless versions are the
// tokens.
func (l *lease) assignTokens(v *view, c *claim) {
	if l.d.NoTokens || l.d.Rising {
		return
	}
	n, first := min(max(l.r.Events.Tokens(), 1), maxTokens), v.Last+1
	v.Last += uint64(n)
	c.Token, v.Keep = v.Last, forever
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first, l.tokens = first, n
}

// number sets the token of the lease if the token is the version of the written
// record.
func (l *lease) number(v *view) {
	if token := l.d.tokenOf(v, l.r.Mode); token > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.first, l.tokens = token, 1
	}
}

// granted completes the lease when its record is written, and reports whether
// the lease is still live.
func (l *lease) granted(k *desk, v *view) bool {
	l.number(v)
	rest := time.Until(l.end)
	if rest > 0 {
		l.desk = k
		k.pin()
		l.d.leases.Store(l, nil)
		l.forget = time.AfterFunc(rest, l.drop)
	}
	return rest > 0
}

// drop forgets the lease.
func (l *lease) drop() {
	if _, ok := l.d.leases.LoadAndDelete(l); ok {
		l.desk.unpin()
	}
}

// Tokens implements [driver.Lease].
func (l *lease) Tokens() (uint64, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.tokens
}

// Expires implements [driver.Lease].
func (l *lease) Expires() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Renew implements [driver.Lease]. It carries out one renewal at a time, so the
// last answer belongs to the last request.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if err := l.d.life.Enter(); err != nil {
		return err
	}
	defer l.d.life.Leave()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if ttl == 0 { // only check the hold
		v, err := l.d.read(ctx, l.r.Name, nil)
		if err == nil && find(v.Holds, l.r.Hold) < 0 {
			return driver.ErrNotHeld
		}
		return err
	}
	until := time.Now().Add(ttl)
	if !l.move(until, false) {
		return driver.ErrNotHeld
	}
	err := l.desk.do(ctx, &job{hold: l.r.Hold, to: func(v *view) error { return l.renewed(v, ttl) }})
	if err == nil && !l.move(until, true) {
		return driver.ErrNotHeld // the answer came too late to count
	}
	return err
}

// renewed renews the hold in a record.
func (l *lease) renewed(v *view, ttl time.Duration) error {
	i := find(v.Holds, l.r.Hold)
	if i < 0 {
		return driver.ErrNotHeld
	}
	c := &v.Holds[i]
	c.TTL, c.Beat = ttl, ""
	if l.d.Rising {
		c.Token = l.first
	}
	return nil
}

// move moves the end of a lease that has not ended. Before the request is
// answered, move only makes the end earlier, because contenders may use the
// shorter TTL even if the answer never arrives.
func (l *lease) move(to time.Time, answered bool) (live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live = !l.dead && time.Now().Before(l.end)
	if live && (answered || to.Before(l.end)) {
		l.end = to
		l.forget.Reset(time.Until(to))
	}
	return live
}

// Release implements [driver.Lease]. It needs no turn: a renewal that is still
// on its way finds another version.
func (l *lease) Release(ctx context.Context) error {
	again, over := l.die()
	if again {
		return driver.ErrNotHeld
	}
	l.d.life.EnterLate()
	defer l.d.life.Leave()
	defer l.drop()
	j := &job{hold: l.r.Hold, to: func(v *view) error {
		if find(v.Holds, l.r.Hold) < 0 {
			return driver.ErrNotHeld
		}
		v.remove(l.r.Hold)
		return nil
	}}
	err := l.desk.do(ctx, j)
	switch {
	case err == nil && over:
		return driver.ErrNotHeld
	case err == nil:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.contended = l.d.Plain || len(j.v.Queue) > 0
	case !errors.Is(err, driver.ErrNotHeld):
		l.d.clean.Add(&ghost{name: l.r.Name, hold: l.r.Hold})
		if !errors.Is(err, driver.ErrUnknown) {
			return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
		}
	}
	return err
}

// over reports whether the lease has ended.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead || !time.Now().Before(l.end)
}

// MayLeave implements [driver.MayLeave]. Without a clock, no contender knows
// when a hold without a client began, and a Notifier does not report its end.
func (d *Driver) MayLeave() error {
	if _, notifies := d.store.(Notifier); notifies || !d.Clock {
		return fmt.Errorf("backend %s may not end a hold in time without its client: %w", d.Name, errors.ErrUnsupported)
	}
	return nil
}

// Leave implements [driver.Leaver].
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	l := granted.(*lease)
	if dead, over := l.die(); dead || over {
		return driver.ErrNotHeld
	}
	d.life.EnterLate()
	defer d.life.Leave()
	defer l.drop()
	err := l.desk.do(ctx, &job{hold: l.r.Hold, to: func(v *view) error { return l.renewed(v, ttl) }})
	if err == nil && !time.Now().Before(l.Expires()) { // the write may have restored the hold
		d.clean.Add(&ghost{name: l.r.Name, hold: l.r.Hold})
		return driver.ErrNotHeld
	}
	return err
}

// die ends the lease here, and reports whether it had already ended, by die or
// by its time.
func (l *lease) die() (dead, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dead, over = l.dead, !time.Now().Before(l.end)
	l.dead = true
	l.forget.Stop()
	return dead, over
}

// Contended implements [driver.ContentionReporter].
func (l *lease) Contended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.contended
}
