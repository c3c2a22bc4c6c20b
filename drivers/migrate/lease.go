package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// lease is a hold on one backend or on both. It keeps its backends when the
// phase of the driver changes.
type lease struct {
	d     *Driver
	a     *attempt
	r     *driver.Request
	hold  string
	m     *member // the membership with which the lease ends; nil without a gate
	parts []*part // in the order of their grants; constant once the lease is held
	first uint64
	n     int

	// Most leases have only one part, which is stored in the lease itself.
	one  part
	list [2]*part

	mu    sync.Mutex
	state state
}

type state int

const (
	asking state = iota
	held
	released // Release has been called
	lost
)

// newLease begins a way to a grant. Each way has its own Hold, the same on both
// backends.
func (a *attempt) newLease() *lease {
	l, hold := &a.only, ofProgram+a.r.Hold
	if a.again {
		l, hold = &lease{}, ofProgram+a.d.nextHold()
	}
	a.again = true
	l.d, l.a, l.r, l.hold, l.m = a.d, a, a.r, hold, a.member
	return l
}

// acquire requests the name from a backend.
func (l *lease) acquire(ctx context.Context, b *backend, tokens, noWait bool) (*part, error) {
	p := &l.one
	if p.l != nil {
		p = &part{}
	}
	p.l, p.b, p.tokens, p.request = l, b, tokens, *l.r
	p.request.Events, p.request.NoWait, p.request.Hold = p, noWait, l.hold
	if p.request.Owner == l.r.Hold { // generated
		p.request.Owner = l.hold
	}
	granted, err := b.Acquire(ctx, &p.request)
	if p.lease = granted; err == nil {
		p.carry()
	}
	if errors.Is(err, driver.ErrSealed) && b == l.d.to {
		err = ErrWrongWay
	}
	if err != nil && !errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrSealed) && !errors.Is(err, ErrWrongWay) {
		err = b.explain(err)
	}
	return p, err
}

// abandonWith arranges for a call to gone if p is lost before the lease is
// granted.
func (l *lease) abandonWith(p *part, gone context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.gone = gone
	if p.lost != nil {
		gone()
	}
}

// grant turns the parts into a held lease with the tokens of one part. If a
// part is lost, grant releases the others.
func (l *lease) grant(ctx context.Context, tokens *part, parts ...*part) (*lease, error) {
	l.parts = append(l.list[:0], parts...)
	if l.d.info.Fencing != driver.None {
		l.first, l.n = driver.Tokens(tokens.lease, tokens.b.floor)
	}
	l.mu.Lock()
	l.state = held
	for _, p := range parts {
		if p.lost != nil {
			l.state = lost
		}
	}
	if l.state == held && !l.m.carry(l) {
		l.state = lost
	}
	ok := l.state == held
	l.mu.Unlock()
	if ok {
		return l, nil
	}
	err := errAgain
	for i := len(parts) - 1; i >= 0; i-- {
		err = parts[i].undo(ctx, err)
	}
	return nil, err
}

// partLost is called when a backend reports the loss of a part.
func (l *lease) partLost(p *part, cause error) {
	p.session.Load().stop()
	l.mu.Lock()
	p.lost = cause
	was := l.state
	if was == held && slices.Contains(l.parts, p) {
		l.state = lost
	}
	now, gone := l.state, p.gone
	l.mu.Unlock()
	if was == asking && gone != nil {
		gone()
	}
	if was == held && now == lost {
		l.r.Events.Lost(cause)
		l.releaseOthers(p)
	}
}

// lose marks a held lease as lost and reports whether it was held. If p is not
// nil, lose also records the loss of p.
func (l *lease) lose(p *part, cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != held {
		return false
	}
	l.state = lost
	if p != nil {
		p.lost = cause
	}
	return true
}

// memberLost is called when the membership that the lease depends on has ended.
func (l *lease) memberLost(cause error) {
	if l.lose(nil, cause) {
		l.r.Events.Lost(cause)
		l.releaseOthers(nil)
	}
}

// releaseOthers releases the other parts of a lost lease in the background.
func (l *lease) releaseOthers(over *part) {
	for _, p := range l.parts {
		if p != over {
			l.d.spawn(func() { _ = p.undo(context.Background(), nil) })
		}
	}
	l.m.drop(l)
}

// Tokens implements driver.Lease.
func (l *lease) Tokens() (first uint64, n int) { return l.first, l.n }

// Expires implements driver.Lease. It returns the time at which the first of
// the holds expires.
func (l *lease) Expires() time.Time {
	t := l.parts[0].lease.Expires()
	for _, p := range l.parts[1:] {
		t = earlier(t, p.lease.Expires())
	}
	return l.m.bound(t)
}

// Session implements driver.SessionLease. It returns the session that ends
// first. The membership counts as a session.
func (l *lease) Session() (expires time.Time, ttl time.Duration) {
	if m := l.m; m != nil && m.b != nil {
		expires, ttl = m.lease.Expires(), m.request.TTL
	}
	for _, p := range l.parts {
		s, ok := p.lease.(driver.SessionLease)
		if !ok {
			continue
		}
		if at, t := s.Session(); !at.IsZero() && (expires.IsZero() || at.Before(expires)) {
			expires, ttl = at, t
		}
	}
	return expires, ttl
}

// Contended implements driver.ContentionReporter.
func (l *lease) Contended() bool {
	for _, p := range l.parts {
		if r, ok := p.lease.(driver.ContentionReporter); !ok || r.Contended() {
			return true
		}
	}
	return false
}

// WatchRemoval implements driver.RemovalWatcher.
func (l *lease) WatchRemoval(renew func()) (stop func()) {
	var stops []func()
	for _, p := range l.parts {
		if w, ok := p.lease.(driver.RemovalWatcher); ok {
			stops = append(stops, w.WatchRemoval(renew))
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// Release implements driver.Lease.
func (l *lease) Release(ctx context.Context) error {
	return l.finish(func(p *part) error { return p.release(ctx) })
}

// MayLeave implements driver.MayLeave. With a gate a hold ends with the
// membership of its process.
func (d *Driver) MayLeave() error {
	if d.gate != nil {
		return fmt.Errorf("migrate: a migration with a gate cannot keep a hold without its client: %w", errors.ErrUnsupported)
	}
	for _, b := range []*backend{d.from, d.to} {
		if _, ok := b.Driver.(driver.Leaver); !ok {
			return fmt.Errorf("migrate: backend %s cannot keep a hold without its client: %w", b.info.Name, errors.ErrUnsupported)
		}
	}
	return nil
}

// Leave implements driver.Leaver.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	if d.begin(&d.steps) {
		defer d.steps.Done() // otherwise Close could close a backend and end the hold before Leave
	}
	return granted.(*lease).finish(func(p *part) error { return p.b.Driver.(driver.Leaver).Leave(ctx, p.lease, ttl) })
}

// finish ends the holds on the backends in reverse order.
func (l *lease) finish(end func(*part) error) error {
	l.mu.Lock()
	was := l.state
	l.state = released
	l.mu.Unlock()
	if was != held {
		return driver.ErrNotHeld
	}
	defer l.m.drop(l)
	var unclear, over error
	for i := len(l.parts) - 1; i >= 0; i-- {
		switch err := end(l.parts[i]); {
		case errors.Is(err, driver.ErrNotHeld):
			over = err
		case err != nil:
			unclear = err
		}
	}
	if over != nil {
		return over
	}
	return unclear
}

// Renew implements driver.Lease.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if !l.renewable() {
		return driver.ErrNotHeld
	}
	for _, p := range l.parts {
		if !p.renewed() || ttl == 0 && p.b.info.Detect > 0 {
			// the backend reports losses by itself, so there is nothing to
			// renew
			continue
		}
		if err := l.renewed(p, p.lease.Renew(ctx, ttl)); err != nil {
			return err
		}
	}
	return nil
}

// renewable reports whether renewing the lease makes sense. A lease that has
// expired on one backend is not renewed on the other.
func (l *lease) renewable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == held && time.Now().Before(l.Expires())
}

// renewed handles the answer to a renewal of p. If p is lost, the lease is
// lost too, and its other parts are released.
func (l *lease) renewed(p *part, err error) error {
	if errors.Is(err, driver.ErrNotHeld) && l.lose(p, err) {
		l.releaseOthers(p)
	}
	return err
}
