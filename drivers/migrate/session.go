package migrate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// session renews the holds on one backend when the driver of the other backend
// keeps its holds alive itself, and the driver of this backend relies on
// package dsync for that. Package dsync supports only one kind of keep-alive
// for a driver. There is one session for each backend and TTL. All its holds
// are renewed together, every third of the TTL, so the first renewal of a new
// hold may come sooner.
type session struct {
	d   *Driver
	b   *backend
	ttl time.Duration

	mu    sync.Mutex
	holds map[*carried]struct{}
	timer *time.Timer // runs while there are holds
	next  time.Time   // when the timer fires
	ended bool
}

// carried is a hold in a session.
type carried struct {
	s     *session
	lease driver.Lease
	alive func() bool // false if the hold must no longer be renewed
	lost  func(cause error)
}

type sessionKey struct {
	b   *backend
	ttl time.Duration
}

// carry keeps a hold alive until leave is called. If the hold ends first, carry
// calls lost.
func (d *Driver) carry(b *backend, l driver.Lease, ttl time.Duration, alive func() bool, lost func(cause error)) *carried {
	d.mu.Lock()
	s := d.sessions[sessionKey{b, ttl}]
	if s == nil {
		s = &session{d: d, b: b, ttl: ttl, holds: map[*carried]struct{}{}, ended: d.ended}
		d.sessions[sessionKey{b, ttl}] = s
	}
	d.mu.Unlock()
	c := &carried{s: s, lease: l, alive: alive, lost: lost}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[c] = struct{}{}
	if due := l.Expires().Add(-ttl * 2 / 3); len(s.holds) == 1 || due.Before(s.next) {
		s.renewAt(due)
	}
	return c
}

// renewAt sets the timer. It is called with mu held.
func (s *session) renewAt(t time.Time) {
	switch s.next = t; {
	case s.ended:
	case s.timer == nil:
		s.timer = time.AfterFunc(time.Until(t), s.tick)
	default:
		s.timer.Reset(time.Until(t))
	}
}

// stop stops keeping a hold alive and reports whether the hold was in the
// session.
func (c *carried) stop() bool {
	if c == nil {
		return false
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.holds[c]
	delete(s.holds, c)
	if ok && len(s.holds) == 0 && s.timer != nil {
		s.timer.Stop()
	}
	return ok
}

// end is called when the driver is closed.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// tick is called by the timer.
func (s *session) tick() { s.d.spawn(s.renew) }

// renew renews all holds once. Holds whose renewals are not answered are
// renewed again soon, until they end.
func (s *session) renew() {
	var all []*carried
	var leases []driver.Lease
	s.mu.Lock()
	holds := make([]*carried, 0, len(s.holds))
	for c := range s.holds {
		holds = append(holds, c)
	}
	s.mu.Unlock()
	for _, c := range holds {
		if c.alive() {
			all, leases = append(all, c), append(leases, c.lease)
		} else {
			c.stop()
		}
	}
	pause := s.ttl / 3
	if len(all) > 0 {
		ctx, cancel := context.WithTimeout(s.d.life, s.ttl/6)
		var mu sync.Mutex
		var failed error
		s.b.renewAll(ctx, leases, func(int) time.Duration { return s.ttl }, func(i int, err error) {
			if errors.Is(err, driver.ErrNotHeld) && all[i].stop() {
				all[i].lost(driver.ErrRemoved)
			} else if err != nil {
				mu.Lock()
				pause, failed = s.ttl/12, err
				mu.Unlock()
			}
		})
		cancel()
		s.d.keptAlive(s.b, failed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.holds) > 0 {
		s.renewAt(time.Now().Add(pause))
	}
}

// renewal is one lease of RenewAll.
type renewal struct {
	l    *lease
	mu   sync.Mutex
	left int // the number of unanswered parts
	err  error
}

// share contains the leases that RenewAll renews on one backend.
type share struct {
	leases []driver.Lease
	parts  []*part
	index  []int // in the leases of RenewAll
}

// RenewAll implements driver.BatchRenewer. It renews on the two backends
// concurrently, with few requests on a backend that renews in batches.
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	all := make([]renewal, len(leases))
	shares := map[*backend]*share{d.from: {}, d.to: {}}
	for i, x := range leases {
		l := x.(*lease)
		all[i].l = l
		if !l.renewable() {
			done(i, driver.ErrNotHeld)
			continue
		}
		for _, p := range l.parts {
			if p.renewed() {
				all[i].left++
				s := shares[p.b]
				s.leases, s.parts, s.index = append(s.leases, p.lease), append(s.parts, p), append(s.index, i)
			}
		}
		if all[i].left == 0 {
			done(i, nil)
		}
	}
	var wg sync.WaitGroup
	for b, s := range shares {
		if len(s.leases) == 0 {
			continue
		}
		wg.Go(func() {
			b.renewAll(ctx, s.leases, func(j int) time.Duration { return s.parts[j].request.TTL }, func(j int, err error) {
				x := &all[s.index[j]]
				if x.partRenewed(s.parts[j], err) {
					done(s.index[j], x.err)
				}
			})
		})
	}
	wg.Wait()
}

// partRenewed handles the answer for one part, and reports whether it was the
// last.
func (x *renewal) partRenewed(p *part, err error) bool {
	err = x.l.renewed(p, err)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left--; x.err == nil || errors.Is(err, driver.ErrNotHeld) {
		x.err = err
	}
	return x.left == 0
}

// renewAll renews leases on the backend, with few requests if the backend
// renews in batches.
func (b *backend) renewAll(ctx context.Context, leases []driver.Lease, ttl func(i int) time.Duration, done func(i int, err error)) {
	if batches, ok := b.Driver.(driver.BatchRenewer); ok {
		batches.RenewAll(ctx, leases, done)
		return
	}
	for i, l := range leases {
		done(i, l.Renew(ctx, ttl(i)))
	}
}
