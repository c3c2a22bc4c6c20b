package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// part is the hold of a lease on one of the backends, or the attempt to acquire
// it.
type part struct {
	l       *lease
	b       *backend
	tokens  bool // the lease has the tokens of this part
	request driver.Request
	lease   driver.Lease            // nil before the grant
	session atomic.Pointer[carried] // nil if no session of this package renews the hold
	lost    error                   // guarded by lease.mu
	gone    context.CancelFunc
	// the request was refused and had to wait; written before the backend's
	// Acquire returns
	blocked bool
}

var _ driver.Events = (*part)(nil)

// Waiting implements driver.Events.
func (p *part) Waiting() {
	p.blocked = true
	p.l.a.wait()
}

// Tokens implements driver.Events.
func (p *part) Tokens() int {
	if !p.tokens || p.l.d.info.Fencing == driver.None {
		return 1
	}
	return p.l.r.Events.Tokens()
}

// Lost implements driver.Events.
func (p *part) Lost(cause error) { p.l.partLost(p, cause) }

// renewed reports whether the hold needs calls to the lease's Renew to stay
// alive.
func (p *part) renewed() bool { return p.request.Fixed || !p.l.d.info.KeepsAlive }

// carry makes a session keep the hold alive, if the driver must keep it alive
// and the backend does not.
func (p *part) carry() {
	if p.renewed() || p.b.info.KeepsAlive {
		return
	}
	p.session.Store(p.l.d.carry(p.b, p.lease, p.request.TTL, p.worthwhile, p.Lost))
}

// worthwhile reports whether it makes sense to keep the hold alive. A lease
// that has expired on one backend is not renewed on the other.
func (p *part) worthwhile() bool {
	if !p.live() {
		return false
	}
	p.l.mu.Lock()
	granted := p.l.state == held
	p.l.mu.Unlock()
	return !granted || time.Now().Before(p.l.Expires())
}

// release ends the hold.
func (p *part) release(ctx context.Context) error {
	p.session.Load().stop()
	return p.lease.Release(ctx)
}

// live reports whether the hold certainly exists.
func (p *part) live() bool {
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	return p.lost == nil && time.Now().Before(p.lease.Expires())
}

// keep makes a session keep the hold alive until the caller leaves the session,
// if package dsync must keep the hold alive after the grant. When the hold
// ends, keep calls gone.
func (p *part) keep(gone func()) *carried {
	if !p.renewed() {
		return nil
	}
	alive := func() bool {
		live := p.live()
		if !live {
			gone()
		}
		return live
	}
	return p.l.d.carry(p.b, p.lease, p.request.TTL, alive, func(error) { gone() })
}

// check checks that the hold still exists after other requests of the Acquire.
// If these requests had to wait, check sends a request to the backend. The
// request also restarts the TTL of a fixed lease.
func (p *part) check(ctx context.Context, waited bool) error {
	if waited && (p.renewed() || p.session.Load() != nil) {
		ctx, cancel := context.WithTimeout(ctx, p.request.TTL/6)
		defer cancel()
		if err := p.lease.Renew(ctx, p.request.TTL); errors.Is(err, driver.ErrNotHeld) {
			return errAgain
		} else if err != nil {
			return p.l.a.translate(err)
		}
	}
	if !p.live() {
		return errAgain
	}
	return nil
}

// undoLimit bounds how long a failing Acquire waits for the release of its
// holds. After that the drivers of the backends clean up the remaining holds.
const undoLimit = time.Second

// undo releases the hold because the attempt cannot use it, for the reason err.
// It returns err, or a new error if the release failed.
func (p *part) undo(ctx context.Context, err error) error {
	p.l.mu.Lock()
	lost := p.lost != nil
	p.l.mu.Unlock()
	if lost {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if e := p.release(ctx); e == nil || errors.Is(e, driver.ErrNotHeld) || errors.Is(err, driver.ErrUnknown) {
		return err
	} else if errors.Is(err, errAgain) || errors.Is(err, errTaken) {
		return fmt.Errorf("%w: releasing a lock on backend %s: %v", driver.ErrUnknown, p.b.info.Name, e)
	}
	return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
}

// token returns the first token of the hold, or 0 if it has none. If the caller
// receives no token of this hold, the token is above all tokens issued for the
// name.
func (p *part) token() uint64 {
	first, _ := driver.Tokens(p.lease, p.b.floor)
	return first
}
