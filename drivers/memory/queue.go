package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// queue contains the waiters of a held name. The holds exclude the first
// waiter. Guarded by Server.mu.
type queue struct {
	waiters []*waiter // in the order of their grants, unless the order is random
	parked  []*waiter // with FIFOByClient: waiters behind another waiter of their driver, in the order of arrival
	timer   *time.Timer
}

// waiter is the place of a lease in a queue.
type waiter struct {
	l     *lease
	entry *entry
	ctx   context.Context
	ready chan error // receives one value when the waiter leaves the queue, unless by Server.leave: nil for a grant
}

// wait blocks until the lease is granted, or the context ends.
func (w *waiter) wait() error {
	select {
	case err := <-w.ready:
		return err
	case <-w.ctx.Done():
	}
	s := w.l.d.server
	s.mu.Lock()
	left := s.leave(w)
	s.mu.Unlock()
	if !left { // the grant came before the end of the context, so it counts
		return <-w.ready
	}
	return w.ended()
}

// ended returns the error of a wait whose context has ended, or nil.
func (w *waiter) ended() error {
	if err := w.ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrLocked, err)
	}
	return nil
}

// draw moves the next waiter to be granted the name to the front of a queue
// without an order: any admitted waiter, chosen at random. After readers, draw
// chooses a waiter in another mode, if there is one, so that new readers cannot
// make that waiter wait forever.
func (q *queue) draw(after driver.Mode, admitted func(*waiter) bool) {
	next := slices.IndexFunc(q.waiters, func(w *waiter) bool { return w.l.r.Mode != driver.Read })
	if after != driver.Read || next < 0 {
		next = 0
		seen := 0
		for i, w := range q.waiters {
			if admitted(w) {
				if seen++; rand.IntN(seen) == 0 {
					next = i
				}
			}
		}
	}
	q.waiters[0], q.waiters[next] = q.waiters[next], q.waiters[0]
}

// pop removes the first waiter.
func (q *queue) pop() *waiter {
	w := q.waiters[0]
	q.remove(0)
	if p := q.unpark(w.l.d); p != nil {
		q.waiters = append(q.waiters, p) // behind: the driver has had its turn
	}
	return w
}

// remove removes waiters[i]. Removing the first waiter is cheap.
func (q *queue) remove(i int) {
	if i == 0 {
		q.waiters[0] = nil
		q.waiters = q.waiters[1:]
		return
	}
	q.waiters = slices.Delete(q.waiters, i, i+1)
}

// unpark removes the first parked waiter of d from q, if there is one.
func (q *queue) unpark(d *Driver) *waiter {
	i := slices.IndexFunc(q.parked, func(w *waiter) bool { return w.l.d == d })
	if i < 0 {
		return nil
	}
	w := q.parked[i]
	q.parked = slices.Delete(q.parked, i, i+1)
	return w
}

// The methods below are called with Server.mu held.

// enqueue adds l to the queue for the name of e.
func (s *Server) enqueue(ctx context.Context, e *entry, l *lease, sent, now int64) *waiter {
	if s.options.KeepsAlive {
		l.d.join(l, sent, now)
	}
	q := e.queue
	if q == nil {
		name := l.r.Name
		q = &queue{timer: time.AfterFunc(time.Duration(e.end()-now), func() { s.expire(name) })}
		e.queue = q
	}
	w := &waiter{l: l, entry: e, ctx: ctx, ready: make(chan error, 1)}
	sameDriver := func(other *waiter) bool { return other.l.d == l.d }
	if s.options.Order == FIFOByClient && slices.ContainsFunc(q.waiters, sameDriver) {
		q.parked = append(q.parked, w)
	} else {
		q.waiters = append(q.waiters, w)
	}
	return w
}

// leave removes w from its queue and serves waiters that were waiting only for
// w. It reports whether w was still in the queue.
func (s *Server) leave(w *waiter) bool {
	if !w.entry.drop(w) {
		return false
	}
	s.serve(w.entry, w.entry.holds[0].r.Mode, s.now())
	return true
}

// dismiss removes each waiter whose lease satisfies meant from its queue. These
// waiters get err.
func (s *Server) dismiss(meant func(*lease) bool, err error) {
	for _, e := range s.names {
		left := false
		for _, w := range e.all() {
			if meant(w.l) && e.drop(w) {
				w.ready <- err
				left = true
			}
		}
		if left {
			s.serve(e, e.holds[0].r.Mode, s.now())
		}
	}
}

// watch sets the timer that grants the name to the next waiters when the holds
// end. Without waiters there is no timer.
func (s *Server) watch(e *entry, now int64) {
	if e.queue != nil {
		e.queue.timer.Reset(time.Duration(e.end() - now))
	}
}

// expire is called by the timer of a queue, without mu held. A hold may have
// been renewed since the timer was set.
func (s *Server) expire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if e := s.held(name, now); e != nil {
		s.watch(e, now)
	}
}

func (q *queue) status(o Order) (n int, owners []string) {
	n = len(q.waiters) + len(q.parked)
	if o == Unordered {
		return n, nil
	}
	for _, w := range slices.Concat(q.waiters, q.parked) {
		owners = append(owners, w.l.r.Owner)
	}
	return n, owners
}
