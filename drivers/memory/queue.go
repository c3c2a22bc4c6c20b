package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// queue is who waits for a name that is held. It goes from hold to hold for as long as anybody waits. Guarded by Server.mu.
type queue struct {
	waiters []*waiter // in the order in which they will be granted the name, unless that is drawn by lot
	parked  []*waiter // with FIFOByClient: those behind another waiter of their driver, in the order of arrival
	timer   *time.Timer
}

// waiter is the place of a lease in a queue.
type waiter struct {
	l     *lease
	q     *queue
	ready chan error // gets one value when the waiter leaves the queue other than by leave: nil for a grant
}

// wait blocks until the lease was granted, or ctx is done.
func (w *waiter) wait(ctx context.Context) error {
	select {
	case err := <-w.ready:
		return err
	case <-ctx.Done():
	}
	s := w.l.d.server
	s.mu.Lock()
	left := s.leave(w)
	s.mu.Unlock()
	if !left { // the answer came at this very instant, and counts
		return <-w.ready
	}
	return fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
}

// pop takes the next waiter out of q.
func (q *queue) pop(o Order) *waiter {
	i := 0
	if o == Unordered {
		i = rand.IntN(len(q.waiters))
	}
	w := q.waiters[i]
	q.remove(i)
	if p := q.unpark(w.l.d); p != nil {
		q.waiters = append(q.waiters, p) // its driver has had its turn
	}
	return w
}

// remove takes waiters[i] out. The front is cheap.
func (q *queue) remove(i int) {
	if i == 0 {
		q.waiters[0] = nil
		q.waiters = q.waiters[1:]
		return
	}
	q.waiters = slices.Delete(q.waiters, i, i+1)
}

// unpark takes the first parked waiter of d out of q, if there is one.
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

// enqueue lets l wait for the name that h holds.
func (s *Server) enqueue(h, l *lease, sent, now int64) *waiter {
	if s.options.KeepsAlive {
		l.d.join(l, sent, now)
	}
	q := h.queue
	if q == nil {
		q = &queue{}
		h.queue = q
	}
	w := &waiter{l: l, q: q, ready: make(chan error, 1)}
	sameDriver := func(other *waiter) bool { return other.l.d == l.d }
	if s.options.Order == FIFOByClient && slices.ContainsFunc(q.waiters, sameDriver) {
		q.parked = append(q.parked, w)
	} else {
		q.waiters = append(q.waiters, w)
	}
	if q.timer == nil {
		name := l.r.Name
		q.timer = time.AfterFunc(time.Duration(h.end()-now), func() { s.expire(name) })
	}
	return w
}

// leave takes w out of its queue. It returns false if w is not there any more.
func (s *Server) leave(w *waiter) bool {
	q := w.q
	if i := slices.Index(q.parked, w); i >= 0 {
		q.parked = slices.Delete(q.parked, i, i+1)
		w.l.leaveSession()
		return true
	}
	i := slices.Index(q.waiters, w)
	if i < 0 {
		return false
	}
	w.l.leaveSession()
	if p := q.unpark(w.l.d); p != nil {
		q.waiters[i] = p
		return true
	}
	q.remove(i)
	if len(q.waiters) == 0 {
		q.timer.Stop()
		s.names[w.l.r.Name].queue = nil
	}
	return true
}

// dismiss makes the waiters whose lease is meant leave, with err as the answer.
func (s *Server) dismiss(meant func(*lease) bool, err error) {
	for _, h := range s.names {
		if h.queue == nil {
			continue
		}
		for _, w := range slices.Concat(h.queue.parked, h.queue.waiters) {
			if meant(w.l) && s.leave(w) {
				w.ready <- err
			}
		}
	}
}

// watch sets the timer that gives the name to the next waiter when l ends. There is none where nobody waits.
func (s *Server) watch(l *lease, now int64) {
	if l.queue != nil {
		l.queue.timer.Reset(time.Duration(l.end() - now))
	}
}

// expire is what the timer of a queue calls, without mu held. The hold may have been renewed since the timer was set.
func (s *Server) expire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if h := s.holder(name, now); h != nil {
		s.watch(h, now)
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
