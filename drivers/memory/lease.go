package memory

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// lease is one attempt to hold a name: the request that waits, the hold at the server, and what the holder knows of it.
type lease struct {
	d *Driver
	r *driver.Request

	expires atomic.Int64 // for the holder, on the clock of the server; never after the server's own end

	// Guarded by Server.mu, but for first and tokens of a lease that Acquire has returned: they stay as they are.
	since, ends int64  // on the clock of the server
	first       uint64 // of the block of tokens
	tokens      int
	queue       *queue // who waits for the name; nil if nobody does
	fate        fate
	confirmed   bool // Acquire returns it, or has
	released    bool // Release was called
	lost        bool // Events.Lost was called
	contended   bool // somebody waited when it was released
}

// fate is what has become of a lease.
type fate uint8

const (
	asking fate = iota // not granted yet
	held
	over
)

// ask sends the request. It returns the place in the queue if it has to wait, and nil if the lease was granted.
func (l *lease) ask() (*waiter, error) {
	s := l.d.server
	n := l.wanted()
	sent := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.d.closed {
		return nil, driver.ErrClosed
	}
	h := s.holder(l.r.Name, sent)
	if h == nil {
		s.sweep(sent)
		s.grant(l, sent)
		s.take(l, n)
		return nil, nil
	}
	if l.r.NoWait {
		return nil, driver.ErrLocked
	}
	return s.enqueue(h, l, sent), nil
}

// wanted asks how many tokens to reserve, where there are any.
func (l *lease) wanted() int {
	if l.d.server.options.NoTokens {
		return 0
	}
	return min(max(l.r.Events.Tokens(), 1), maxTokens)
}

// confirm reserves the tokens of a lease that was granted after a wait. It returns false if the hold is over by then.
func (l *lease) confirm() bool {
	s := l.d.server
	n := l.wanted()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.fate != held || l.end() <= s.now() {
		return false
	}
	s.take(l, n)
	return true
}

// end returns when the hold ends at the server.
func (l *lease) end() int64 { return l.ends }

// lose marks l as lost and returns whom to tell of it, or nil. The caller holds Server.mu, and tells when it has given that up.
func (l *lease) lose() driver.Events {
	if !l.confirmed || l.released || l.lost {
		return nil
	}
	l.lost = true
	return l.r.Events
}

// Tokens implements [driver.Lease].
func (l *lease) Tokens() (first uint64, n int) { return l.first, l.tokens }

// Expires implements [driver.Lease].
func (l *lease) Expires() time.Time {
	return l.d.server.start.Add(time.Duration(l.expires.Load()))
}

// Renew implements [driver.Lease].
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ttl <= 0 {
		return fmt.Errorf("renewal for %v: TTL is not positive", ttl)
	}
	s := l.d.server
	sent := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if l.fate != held || l.released || min(l.expires.Load(), l.end()) <= now {
		return driver.ErrNotHeld
	}
	l.ends = now + int64(ttl)
	l.expires.Store(sent + int64(ttl))
	s.watch(l, now)
	return nil
}

// Release implements [driver.Lease].
func (l *lease) Release(ctx context.Context) error {
	s := l.d.server
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l.released = true
	if l.fate != held {
		return driver.ErrNotHeld
	}
	wasOver := l.end() <= now
	l.contended = l.queue != nil
	s.next(l, over, now)
	if wasOver {
		return driver.ErrNotHeld
	}
	return nil
}

// Contended implements [driver.ContentionReporter].
func (l *lease) Contended() bool {
	s := l.d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.contended
}
