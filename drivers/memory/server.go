package memory

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// maxTokens bounds the block of tokens that one grant reserves.
const maxTokens = 1 << 16

// Server is one backend. It keeps the held names, their waiters, and the token
// count. Its drivers are its clients. All methods may be called concurrently.
type Server struct {
	options Options
	start   time.Time // zero of the server's clock, which counts nanoseconds

	mu       sync.Mutex
	names    map[string]*entry // the names that are held
	seals    map[string]seal   // of sealed names; a sealed name has no hold
	marks    map[string]bool
	watchers watchers
	latches  latches
	limits   map[string]int // of permits, set by SetLimit
	sweepAt  int            // the number of names at which sweep looks for expired holds
	token    uint64         // the last token; one count for all names, so a free name leaves nothing behind
}

// NewServer returns a backend without drivers. If o is nil, the default options
// are used.
func NewServer(o *Options) *Server {
	s := &Server{start: time.Now(),
		names: map[string]*entry{}, seals: map[string]seal{}, marks: map[string]bool{}, watchers: watchers{}, latches: newLatches(),
		limits: map[string]int{}, sweepAt: minSweep,
	}
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

// Expire ends the holds of name, if there are any, without notifying the
// holders. They learn of the loss when they renew. With Options.KeepsAlive,
// where holders do not renew, they are notified.
func (s *Server) Expire(name string) {
	s.mu.Lock()
	now := s.now()
	var losses []loss
	if e := s.held(name, now); e != nil {
		losses = s.removeAll(e, now, true)
	}
	s.mu.Unlock()
	reportLosses(losses)
}

// ExpireHold is like Expire, but ends only one hold of name, identified by its
// [driver.Request.Hold].
func (s *Server) ExpireHold(hold string) {
	s.mu.Lock()
	var losses []loss
	for h := range s.holds() {
		if h.r.Hold == hold {
			losses = append(losses, s.remove(h, s.now(), true)...)
		}
	}
	s.mu.Unlock()
	reportLosses(losses)
}

// Flush ends the holds of all names, as Expire does, and forgets latches,
// seals, marks and limits, like FLUSHALL on Redis. Waiters are granted the
// names. The token count continues.
func (s *Server) Flush() {
	s.mu.Lock()
	now := s.now()
	var losses []loss
	clear(s.limits)
	for _, e := range s.names {
		losses = append(losses, s.removeAll(e, now, true)...)
	}
	s.latches.clear()
	clear(s.seals)
	clear(s.marks)
	s.mu.Unlock()
	reportLosses(losses)
}

// forceUnlock ends the holds of name and notifies the holders.
func (s *Server) forceUnlock(name string) error {
	s.mu.Lock()
	now := s.now()
	e := s.held(name, now)
	if e == nil {
		_, sealed := s.seals[name]
		s.mu.Unlock()
		if sealed {
			return driver.ErrSealed
		}
		return driver.ErrNotHeld
	}
	losses := s.removeAll(e, now, false)
	s.mu.Unlock()
	reportLosses(losses)
	return nil
}

// status returns the status of name.
func (s *Server) status(name string) driver.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e := s.held(name, now)
	if x, sealed := s.seals[name]; sealed {
		return driver.Status{Held: true, Holders: 1, Owner: "seal", Token: x.last}
	}
	if e == nil {
		return driver.Status{Limit: s.limits[name]}
	}
	h := e.holds[0]
	st := driver.Status{
		Held:    true,
		Mode:    h.r.Mode,
		Holders: len(e.holds),
		Hold:    h.r.Hold,
		Owner:   h.r.Owner,
		Note:    h.r.Note,
		Since:   s.start.Add(time.Duration(h.since)),
		TTL:     time.Duration(h.end() - now),
		Used:    e.used,
		Limit:   s.limit(e, h.r),
	}
	for _, h := range e.holds {
		st.Token = max(st.Token, h.last())
	}
	if e.queue != nil {
		st.Waiters, st.Queue = e.queue.status(s.options.Order)
	}
	return st
}

// now returns the time on the clock of s.
func (s *Server) now() int64 { return int64(time.Since(s.start)) }

// The methods below are called with mu held.

// remove ends the hold h on behalf of a client other than its holder. It
// returns the losses to report, if any. If silent is set, a holder that renews
// is not notified.
func (s *Server) remove(h *lease, now int64, silent bool) []loss {
	s.next(h, over, now)
	if silent && h.session == nil || !h.lose() {
		return nil
	}
	h.d.unheard = append(h.d.unheard, loss{h, driver.ErrRemoved})
	return h.d.hear()
}

// removeAll is like remove, but for all holds of e.
func (s *Server) removeAll(e *entry, now int64, silent bool) (losses []loss) {
	for _, h := range slices.Clone(e.holds) {
		losses = append(losses, s.remove(h, now, silent)...)
	}
	return losses
}

const minSweep = 64

// sweep drops expired holds of clients that never came back, each time the
// number of names has doubled.
func (s *Server) sweep(now int64) {
	if len(s.names) < s.sweepAt {
		return
	}
	for h := range s.holds() {
		if h.end() <= now {
			s.next(h, over, now)
		}
	}
	s.sweepAt = max(minSweep, 2*len(s.names))
}
