package redisson

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/linked"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// lease is one hold: a field of the hash at the lock's name.
type lease struct {
	linked.Links[lease] // in redisdriver.Life.leases

	driver    *Driver
	request   *driver.Request
	first     uint64
	tokens    int32
	markKnown bool // the grant reported whether the name is marked
	marked    bool

	redisdriver.Hold
	doubtedAt int64 // when the first unanswered request to release the hold began
}

func (l *lease) Tokens() (first uint64, n int) { return l.first, int(l.tokens) }

func (l *lease) Expires() time.Time { return l.driver.life.At(l.Term.Expires()) }

// Release implements driver.Lease. It repeats failed requests until ctx or the
// hold ends.
func (l *lease) Release(ctx context.Context) error {
	l.Mu.Lock()
	switch l.Phase {
	case redisdriver.Held:
		l.Phase = redisdriver.Ending
	case redisdriver.Removed:
		l.Phase = redisdriver.Over
		l.Mu.Unlock()
		return nil
	case redisdriver.Over:
		l.Mu.Unlock()
		return driver.ErrNotHeld
	}
	limit := l.Term.Over()
	l.Mu.Unlock()
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
// that another attempt makes sense, and left reports that the request is still
// on its way.
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
	told, err := o.value, o.err
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
	return lifecycle.Transient(err) && ctx.Err() == nil, false, err
}

// doubt records that a request to release the hold, which began at the given
// time, may have been executed.
func (l *lease) doubt(begun int64) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if l.Phase == redisdriver.Ending {
		l.Phase, l.doubtedAt = redisdriver.Doubted, begun
	}
}

func (l *lease) leaveToCleaner() {
	l.Mu.Lock()
	g := l.ghost()
	l.Mu.Unlock()
	g.lease = l
	l.driver.ghosts.Add(g)
}

// ghost returns the information about the hold that the cleaner needs. It is
// called with Mu held.
func (l *lease) ghost() *ghost {
	return &ghost{request: l.request, until: l.Term.Over(), granted: true}
}

// released handles an answer to a request to release the hold. own is the
// number of receivers of the message that were subscriptions of this driver. A
// repeated request that finds nothing means that the unanswered request before
// it succeeded, if that request began before the hold could have expired.
func (l *lease) released(told int64, own int) error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	before := l.Phase
	l.Phase = redisdriver.Over
	switch {
	case told >= 0:
		// a Read that ended while other readers held the name notified no
		// client
		l.Awaited = l.request.Mode == driver.Read || l.driver.contended(told, own)
		return nil
	case before == redisdriver.Removed, before == redisdriver.Doubted && l.doubtedAt < l.Term.Expires():
		l.Awaited = true
		return nil
	}
	return driver.ErrNotHeld
}

// cleaned is like released, for an answer to the cleaner. If Release is called
// again, it returns the outcome.
func (l *lease) cleaned(told int64) {
	if l.released(told, 0) == nil {
		l.Mu.Lock()
		l.Phase = redisdriver.Removed
		l.Mu.Unlock()
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
		d.publishShortened(ctx, l.request)
	}
	return err
}

// overwritten reports whether a request failed because another user overwrote
// the key of a hold. The error may also be about another key that belongs to
// the lock, such as a queue. In this case the server still has the hold.
func (d *Driver) overwritten(ctx context.Context, r *driver.Request, err error) bool {
	if !isWrongType(err) {
		return false
	}
	calls, _ := d.renewCalls([]due{{lease: &lease{request: r}}})
	held, err := d.query(ctx, calls[0]).ToString()
	return err == nil && held == "0"
}

func (l *lease) gone() error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.forget()
	return driver.ErrNotHeld
}

// forget ends a lease whose hold is gone. The caller holds Mu.
func (l *lease) forget() {
	if l.Phase == redisdriver.Held {
		l.Phase = redisdriver.Over
		if l.request.Mode == driver.Permit { // some of its permits may still be held
			l.driver.ghosts.Add(l.ghost())
		}
		l.driver.life.Remove(l)
	}
}

// Leave implements driver.Leaver.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	return d.life.Abandon(ctx, granted.(*lease), ttl)
}
