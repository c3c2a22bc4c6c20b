package memory

import (
	"iter"
	"slices"

	"github.com/go-dsync/dsync/driver"
)

// entry is a held name with its waiters. Guarded by Server.mu.
type entry struct {
	holds []*lease  // one hold, or any number of Read or Permit holds; an expired hold stays until the next check of the name
	one   [1]*lease // storage of the first hold
	queue *queue    // nil without waiters
	used  int       // permits of the holds
	limit int       // limit of the permits, from the first grant; see Server.limit
}

// admits implements the rule of the modes: a request is granted unless a hold
// excludes it, or too few permits are left.
func (e *entry) admits(r *driver.Request, limit int) bool {
	return !slices.ContainsFunc(e.holds, func(h *lease) bool { return r.Mode.Excludes(h.r.Mode) }) &&
		(r.Mode != driver.Permit || e.used+r.Permits <= limit)
}

// overtakes reports whether a grant to a newcomer would overtake an earlier
// waiter: a waiter in a mode that the newcomer's mode excludes, or any waiter
// for permits.
func (e *entry) overtakes(r *driver.Request) bool {
	return slices.ContainsFunc(e.waiters(), func(w *waiter) bool { return r.Mode == driver.Permit || r.Mode.Excludes(w.l.r.Mode) })
}

// The methods below are called with Server.mu held.

// waiters returns the waiters in order. With FIFOByClient these are the first
// waiters of each driver.
func (e *entry) waiters() []*waiter {
	if e.queue == nil {
		return nil
	}
	return e.queue.waiters
}

// all returns all waiters.
func (e *entry) all() []*waiter {
	if e.queue == nil {
		return nil
	}
	return slices.Concat(e.queue.parked, e.queue.waiters)
}

// end returns the time at which the first of the holds ends.
func (e *entry) end() int64 {
	end := e.holds[0].end()
	for _, h := range e.holds[1:] {
		end = min(end, h.end())
	}
	return end
}

// heldAt reports whether any hold is still valid at now.
func (e *entry) heldAt(now int64) bool {
	return slices.ContainsFunc(e.holds, func(h *lease) bool { return h.end() > now })
}

// drop removes w from the queue and reports whether w was in it. The caller
// then calls serve.
func (e *entry) drop(w *waiter) bool {
	q := e.queue
	if q == nil {
		return false
	}
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
	} else {
		q.remove(i)
	}
	return true
}

// held returns the entry of name, or nil if the name is free. It first ends
// expired holds.
func (s *Server) held(name string, now int64) *entry {
	e := s.names[name]
	for e != nil {
		i := slices.IndexFunc(e.holds, func(h *lease) bool { return h.end() <= now })
		if i < 0 {
			break
		}
		s.next(e.holds[i], over, now)
		e = s.names[name]
	}
	return e
}

// holds yields each hold that still exists when the loop reaches its name. The
// loop may end holds.
func (s *Server) holds() iter.Seq[*lease] {
	return func(yield func(*lease) bool) {
		for _, e := range s.names {
			for _, h := range slices.Clone(e.holds) {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// open creates the entry for the name of l, which is free.
func (s *Server) open(l *lease) *entry {
	e := &l.own
	e.holds = e.one[:0]
	s.names[l.r.Name] = e
	return e
}

// grant grants the name of e to l. The request was sent at sent.
func (s *Server) grant(e *entry, l *lease, sent, now int64) {
	d, ttl := l.d, int64(l.r.TTL)
	if s.options.KeepsAlive && l.session == nil {
		d.join(l, sent, now)
	}
	l.fate, l.since, l.ends = held, now, now+ttl
	l.expires.Store(sent + ttl)
	if s.options.KeepsAlive && !l.r.Fixed {
		l.ends = never
		l.expires.Store(never)
	}
	l.entry = e
	e.holds = append(e.holds, l)
	if l.r.Mode == driver.Permit {
		e.limit = s.limit(e, l.r)
		e.used += l.r.Permits
	}
	s.watchers.notify(l.r.Name)
}

// next ends the hold h and grants its name to the next waiters.
func (s *Server) next(h *lease, f fate, now int64) {
	h.fate = f
	if ss := h.session; ss != nil && ss.ends <= now && h.lose() {
		ss.losses = append(ss.losses, loss{h, driver.ErrSessionEnded}) // reported when the driver finds out that the session has ended
	} else {
		h.leaveSession()
	}
	e := h.entry
	i := slices.Index(e.holds, h)
	e.holds = slices.Delete(e.holds, i, i+1)
	e.used -= h.r.Permits
	s.serve(e, h.r.Mode, now)
	if len(e.holds) == 0 {
		delete(s.names, h.r.Name)
	}
	s.watchers.notify(h.r.Name)
}

// serve grants the name to the waiters, one after another, for as long as the
// holds admit them. A waiter whose context has ended is granted nothing. after
// is the mode of the hold that ended last.
func (s *Server) serve(e *entry, after driver.Mode, now int64) {
	q := e.queue
	if q == nil {
		return
	}
	admitted := func(w *waiter) bool { return e.admits(w.l.r, s.limit(e, w.l.r)) }
	for len(q.waiters) > 0 {
		if s.options.Order == Unordered {
			q.draw(after, admitted)
		}
		if err := q.waiters[0].ended(); err != nil {
			w := q.pop()
			w.l.leaveSession()
			w.ready <- err
			continue
		}
		if !admitted(q.waiters[0]) {
			break
		}
		w := q.pop()
		s.grant(e, w.l, now, now)
		w.ready <- nil
	}
	if len(q.waiters) == 0 {
		q.timer.Stop()
		e.queue = nil
		return
	}
	s.watch(e, now)
}
