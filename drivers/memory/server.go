package memory

import (
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
	sweepAt int               // number of names at which holds that are over are looked for
	token   uint64            // the last one given; one count for all names, so that a free name leaves nothing behind
}

// NewServer returns a backend without drivers. nil means the default options.
func NewServer(o *Options) *Server {
	s := &Server{start: time.Now(), names: map[string]*lease{}, sweepAt: minSweep}
	if o != nil {
		s.options = *o
	}
	return s
}

// NewDriver returns a new client of s.
func (s *Server) NewDriver() *Driver { return &Driver{server: s} }

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

// grant gives l its name, which is free.
func (s *Server) grant(l *lease, now int64) {
	ttl := int64(l.r.TTL)
	l.fate, l.since, l.ends = held, now, now+ttl
	l.expires.Store(now + ttl)
	s.names[l.r.Name] = l
}

// take confirms l with a block of n tokens.
func (s *Server) take(l *lease, n int) {
	l.confirmed = true
	if l.tokens = n; n > 0 {
		l.first = s.token + 1
		s.token += uint64(n)
	}
}

// next ends the hold h and gives its name to the next waiter.
func (s *Server) next(h *lease, f fate, now int64) {
	h.fate = f
	q := h.queue
	if h.queue = nil; q == nil {
		delete(s.names, h.r.Name)
		return
	}
	w := q.pop(s.options.Order)
	s.grant(w.l, now)
	if len(q.waiters) == 0 {
		q.timer.Stop()
	} else {
		w.l.queue = q
		s.watch(w.l, now)
	}
	w.ready <- nil
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

func (s *Server) status(name string) driver.Status {
	now := s.now()
	h := s.holder(name, now)
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
