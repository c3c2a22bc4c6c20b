package redisson

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// lease is one hold: a field of the hash at the lock's name.
type lease struct {
	linked.Links[lease] // in Driver.leases

	driver    *Driver
	request   *driver.Request
	first     uint64
	tokens    int32
	markKnown bool // the grant reported whether the name is marked
	marked    bool

	mu        sync.Mutex
	phase     phase
	term      redisdriver.Term // on the driver's clock
	contended bool
	doubtedAt int64 // when the first unanswered request to release the hold began
}

// phase is how far the release of a lease has come.
type phase int8

const (
	held    phase = iota
	ending        // Release was called: never renewed again
	doubted       // a request to release the hold was not answered
	removed       // by the cleaner after a failed Release
	over
)

func (l *lease) Tokens() (first uint64, n int) { return l.first, int(l.tokens) }

func (l *lease) Expires() time.Time { return l.driver.life.At(l.term.Expires()) }

func (l *lease) Contended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.contended
}

// Release implements driver.Lease. It repeats failed requests for as long as
// ctx and the hold last.
func (l *lease) Release(ctx context.Context) error {
	l.mu.Lock()
	switch l.phase {
	case held:
		l.phase = ending
	case removed:
		l.phase = over
		l.mu.Unlock()
		return nil
	case over:
		l.mu.Unlock()
		return driver.ErrNotHeld
	}
	limit := l.term.Over()
	l.mu.Unlock()
	l.driver.life.BeginRelease(l)
	defer l.driver.life.Leave()

	left := false
	err := l.driver.life.Repeat(ctx, func() (again bool, err error) {
		again, left, err = l.release(ctx)
		return again && l.driver.life.Now() <= limit, err
	})
	if err == nil || errors.Is(err, driver.ErrNotHeld) {
		return err
	}
	if !left {
		l.leaveToCleaner()
	}
	if !errors.Is(err, driver.ErrUnknown) {
		err = fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return err
}

// release sends one request to end the hold. After a failure, again reports
// that another attempt makes sense, and left that the request is still on its
// way.
func (l *lease) release(ctx context.Context) (again, left bool, _ error) {
	d := l.driver
	own, begun := d.own(l.request), d.life.Now()
	o := d.newOp(l.request, l)
	if err, doubt := d.carryOut(ctx, o, nil); doubt {
		l.doubt(begun)
		return false, true, err
	} else if err != nil {
		return false, false, err
	}
	told, err := o.first, o.err
	d.putOp(o)
	if err == nil {
		return false, false, l.released(told, min(own, d.own(l.request)))
	}
	if d.overwritten(ctx, l.request, err) {
		return false, false, l.released(-1, 0)
	}
	err, doubt := redisdriver.Fault(ctx, l.request.Name, err)
	if doubt {
		l.doubt(begun)
	}
	return redisdriver.Transient(err) && ctx.Err() == nil, false, err
}

// doubt notes that a request to release the hold, begun at that time, may have
// been executed.
func (l *lease) doubt(begun int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == ending {
		l.phase, l.doubtedAt = doubted, begun
	}
}

func (l *lease) leaveToCleaner() {
	l.mu.Lock()
	g := l.ghost()
	l.mu.Unlock()
	g.lease = l
	l.driver.ghosts.Add(g)
}

// ghost returns the information about the hold that the cleaner needs. It is
// called with mu held.
func (l *lease) ghost() *ghost {
	return &ghost{request: l.request, until: l.term.Over(), granted: true}
}

// released handles an answer to a request to release the hold. own is how many
// of the message's receivers were subscriptions of this driver. A repeated
// request that finds nothing means that the unanswered request before it
// succeeded, if that request began before the hold could have expired.
func (l *lease) released(told int64, own int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.phase
	l.phase = over
	switch {
	case told >= 0:
		// a Read that left other readers notified no client
		l.contended = l.request.Mode == driver.Read || l.driver.contended(told, own)
		return nil
	case before == removed, before == doubted && l.doubtedAt < l.term.Expires():
		l.contended = true
		return nil
	}
	return driver.ErrNotHeld
}

// cleaned is like released, for an answer to the cleaner: the next call of
// Release, if there is one, returns the outcome.
func (l *lease) cleaned(told int64) {
	if l.released(told, 0) == nil {
		l.mu.Lock()
		l.phase = removed
		l.mu.Unlock()
	}
}

func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	d := l.driver
	client, err := d.nodeOf(ctx, l.request.Name)
	if err != nil {
		return err
	}
	some := []due{{lease: l, ttl: ttl}}
	d.renewSome(ctx, client, some, func(_ int, e error) { err = e })
	if err == nil && ttl < backstop && some[0].Shortens() {
		d.tellShortened(ctx, l.request)
	}
	return err
}

// overwritten reports whether a request failed because another user overwrote
// the key of a hold. The error may also be about a key that belongs to the
// lock, such as a queue. In this case the server still has the hold.
func (d *Driver) overwritten(ctx context.Context, r *driver.Request, err error) bool {
	if !isWrongType(err) {
		return false
	}
	calls, _ := d.renewCalls([]due{{lease: &lease{request: r}}})
	held, err := d.query(ctx, calls[0]).ToString()
	return err == nil && held == "0"
}

// gone notes that the server does not have the hold.
func (l *lease) gone() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	return driver.ErrNotHeld
}

// forget ends a lease whose hold is gone. The caller holds mu.
func (l *lease) forget() {
	if l.phase == held {
		l.phase = over
		if l.request.Mode == driver.Permit { // some of its permits may be left
			l.driver.ghosts.Add(l.ghost())
		}
		l.driver.life.Remove(l)
	}
}

func (l *lease) isHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase == held
}

// Forget ends the lease in this process only.
func (l *lease) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = over
}

// Leave implements driver.Leaver.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	return d.life.Abandon(ctx, granted.(*lease), ttl)
}
