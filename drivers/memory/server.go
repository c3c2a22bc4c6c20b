package memory

import (
	"context"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// maxTokens bounds the block of tokens that one grant reserves.
const maxTokens = 1 << 16

// Server is one backend: the names that are held, who waits for them, and the count of tokens. Its drivers are its clients. All
// methods may be called concurrently.
type Server struct {
	options Options
	start   time.Time // of its clock, which counts nanoseconds

	mu      sync.Mutex
	names   map[string]*lease // the hold of each name; one that is over stays until somebody looks at it
	seals   map[string]seal   // of names that are sealed; such a name has no hold
	marks   map[string]bool
	sweepAt int    // number of names at which holds that are over are looked for
	token   uint64 // the last one given; one count for all names, so that a free name leaves nothing behind
}

// NewServer returns a backend without drivers. nil means the default options.
func NewServer(o *Options) *Server {
	s := &Server{start: time.Now(), names: map[string]*lease{}, seals: map[string]seal{}, marks: map[string]bool{}, sweepAt: minSweep}
	if o != nil {
		s.options = *o
	}
	return s
}

// NewDriver returns a new client of s.
func (s *Server) NewDriver() *Driver {
	d := &Driver{server: s, changed: make(chan struct{}), sessions: map[time.Duration]*session{}}
	d.life, d.end = context.WithCancel(context.Background())
	return d
}

// Expire ends the hold of name, if there is one, and says nothing to the holder, which learns of it when it renews. With
// Options.KeepsAlive, where nobody renews, it is told.
func (s *Server) Expire(name string) {
	s.mu.Lock()
	now := s.now()
	var losses []loss
	if h := s.holder(name, now); h != nil {
		losses = s.remove(h, now, h.session == nil)
	}
	s.mu.Unlock()
	tell(losses)
}

// Flush does what Expire does to all names, and forgets seals and marks, as FLUSHALL on a Redis. Those that wait are granted the
// names. The count of tokens goes on.
func (s *Server) Flush() {
	s.mu.Lock()
	now := s.now()
	var losses []loss
	for _, h := range s.names {
		losses = append(losses, s.remove(h, now, h.session == nil)...)
	}
	clear(s.seals)
	clear(s.marks)
	s.mu.Unlock()
	tell(losses)
}

// forceUnlock ends the hold of name and tells the holder.
func (s *Server) forceUnlock(name string) error {
	s.mu.Lock()
	now := s.now()
	h := s.holder(name, now)
	if h == nil {
		_, sealed := s.seals[name]
		s.mu.Unlock()
		if sealed {
			return driver.ErrSealed
		}
		return driver.ErrNotHeld
	}
	losses := s.remove(h, now, false)
	s.mu.Unlock()
	tell(losses)
	return nil
}

// status returns what is known of name.
func (s *Server) status(name string) driver.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	h := s.holder(name, now)
	if x, sealed := s.seals[name]; sealed {
		return driver.Status{Held: true, Owner: "seal", Token: x.last}
	}
	if h == nil {
		return driver.Status{}
	}
	st := driver.Status{
		Held:  true,
		Hold:  h.r.Hold,
		Owner: h.r.Owner,
		Note:  h.r.Note,
		Since: s.start.Add(time.Duration(h.since)),
		TTL:   time.Duration(h.end() - now),
	}
	if h.tokens > 0 {
		st.Token = h.first + uint64(h.tokens) - 1
	}
	if h.queue != nil {
		st.Waiters, st.Queue = h.queue.status(s.options.Order)
	}
	return st
}

// now returns the time on the clock of s.
func (s *Server) now() int64 { return int64(time.Since(s.start)) }

// The methods below are called with mu held.

// holder returns the hold of name, or nil. If the hold that was there is over, the next waiter has the name.
func (s *Server) holder(name string, now int64) *lease {
	h := s.names[name]
	for h != nil && h.end() <= now {
		s.next(h, over, now)
		h = s.names[name]
	}
	return h
}

// grant gives l its name, which is free. The request was sent at sent.
func (s *Server) grant(l *lease, sent, now int64) {
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
	s.names[l.r.Name] = l
}

// next ends the hold h and gives its name to the next waiter.
func (s *Server) next(h *lease, f fate, now int64) {
	h.fate = f
	if ss := h.session; ss != nil && ss.ends <= now && h.lose() {
		ss.losses = append(ss.losses, loss{h, driver.ErrSessionEnded}) // the driver finds out when its time is up as well
	} else {
		h.leaveSession()
	}
	q := h.queue
	h.queue = nil
	if q == nil {
		delete(s.names, h.r.Name)
		return
	}
	w := q.pop(s.options.Order)
	s.grant(w.l, now, now)
	if len(q.waiters) == 0 {
		q.timer.Stop()
	} else {
		w.l.queue = q
		s.watch(w.l, now)
	}
	w.ready <- nil
}

// remove ends the hold h for somebody else, and returns the losses to tell of, if any.
func (s *Server) remove(h *lease, now int64, silent bool) []loss {
	s.next(h, over, now)
	if silent || !h.lose() {
		return nil
	}
	h.d.unheard = append(h.d.unheard, loss{h, driver.ErrRemoved})
	return h.d.hear()
}

const minSweep = 64

// sweep drops the holds that are over, of clients that never came back, each time the number of names has doubled.
func (s *Server) sweep(now int64) {
	if len(s.names) < s.sweepAt {
		return
	}
	for _, h := range s.names {
		if h.end() <= now {
			s.next(h, over, now)
		}
	}
	s.sweepAt = max(minSweep, 2*len(s.names))
}
