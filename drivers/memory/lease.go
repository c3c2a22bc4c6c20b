package memory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// lease is one attempt to hold a name. It is the waiting request, the hold on
// the server, and the holder's view of the hold.
type lease struct {
	d       *Driver
	r       *driver.Request
	session *session     // nil if the lease has its own TTL
	expires atomic.Int64 // for the holder, without the session, on the clock of the server; never after ends

	// Guarded by Server.mu, except first and tokens of a lease that Acquire has
	// returned: these no longer change.
	entry       *entry // of its name, after the grant
	own         entry  // the memory of entry, if the name was free
	since, ends int64  // at the server, without the session
	first       uint64
	tokens      int32
	fate        fate
	confirmed   bool // Acquire has returned the lease, or is about to
	released    bool // Release or Leave has been called
	left        bool // Leave has been called: the hold ends by itself, and not with Close
	lost        bool // Events.Lost has been called, or is about to be
	contended   bool // there were waiters when the lease was released
	behind      bool // in Driver.behind, at most once
	leftSession bool
}

// fate is the state of a lease on the server.
type fate uint8

const (
	asking fate = iota // not granted yet
	held
	freed // ended by a Release without an answer; the next Release succeeds
	over
)

// errAgain means that Acquire must send its request again, because it has lost
// its place in the queue, or the hold that it was about to return.
var errAgain = errors.New("ask again")

// never is a time in the distant future.
const never = math.MaxInt64

// request sends the request. It returns the place in the queue if the lease
// must wait, and nil if the lease was granted.
func (l *lease) request(ctx context.Context) (*waiter, error) {
	d, s := l.d, l.d.server
	n := l.wanted()
	sent := s.now()
	now, lost := sent, false
	if d.faulty.Load() {
		var err error
		if lost, err = d.request(ctx, Acquires); err != nil {
			return nil, err
		}
		now = s.now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, sealed := s.seals[l.r.Name]
	e := s.held(l.r.Name, now)
	fits, granted := s.admits(e, l.r)
	switch {
	case d.closed:
		return nil, driver.ErrClosed
	case sealed && !lost:
		return nil, driver.ErrSealed
	case !sealed && !fits && !lost:
		return nil, driver.ErrLimit
	case !sealed && granted:
		s.sweep(now)
		if e == nil {
			e = s.open(l)
		}
		s.grant(e, l, sent, now)
		s.watch(e, now)
		if lost {
			d.leaveBehind(l)
			d.endBehind(now)
			return nil, driver.ErrUnknown
		}
		l.accept(n)
		return nil, nil
	case lost:
		return nil, driver.ErrUnknown
	case l.r.NoWait:
		return nil, driver.ErrLocked
	case d.isCut(): // d was cut off after the request was sent
		return nil, errCut
	default:
		return s.enqueue(ctx, e, l, sent, now), nil
	}
}

// wanted returns the number of tokens to reserve. It does not call
// Events.Tokens if the backend has no tokens.
func (l *lease) wanted() int {
	if l.d.server.options.NoTokens || l.r.Mode == driver.Permit {
		return 0
	}
	return min(max(l.r.Events.Tokens(), 1), maxTokens)
}

// confirm handles the arrival of a grant after a wait. The tokens are reserved
// only now, when the number of useful tokens is known.
func (l *lease) confirm(ctx context.Context) error {
	d, s := l.d, l.d.server
	lost, err := d.request(ctx, Acquires)
	n := l.wanted()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	switch {
	case l.fate != held, l.end() <= now:
		return errAgain
	case l.behind && err == nil: // the session has expired
		return errAgain
	case err == nil && !lost:
		l.accept(n)
		return nil
	}
	d.leaveBehind(l)
	d.endBehind(now)
	return unknown(err)
}

// end returns the time at which the hold ends on the server.
func (l *lease) end() int64 {
	if l.session != nil && !l.left {
		return min(l.ends, l.session.ends)
	}
	return l.ends
}

// expiry returns the time at which the hold ends for the holder.
func (l *lease) expiry() int64 {
	if l.session != nil {
		return min(l.expires.Load(), l.session.expires.Load())
	}
	return l.expires.Load()
}

// accept confirms the grant, with a block of n tokens.
func (l *lease) accept(n int) {
	s := l.d.server
	l.confirmed = true
	if l.tokens = int32(n); n > 0 {
		l.first = s.token + 1
		s.token += uint64(n)
	}
}

// lose marks l as lost and reports whether the holder must be notified.
func (l *lease) lose() bool {
	if !l.confirmed || l.released || l.lost {
		return false
	}
	l.lost = true
	return true
}

// loss is a loss that the holder must be notified of, without holding
// Server.mu.
type loss struct {
	l     *lease
	cause error
}

func reportLosses(losses []loss) {
	for _, x := range losses {
		x.l.r.Events.Lost(x.cause)
	}
}

// Tokens implements [driver.Lease].
func (l *lease) Tokens() (first uint64, n int) { return l.first, int(l.tokens) }

// Expires implements [driver.Lease].
func (l *lease) Expires() time.Time { return l.d.server.start.Add(time.Duration(l.expiry())) }

// Session implements [driver.SessionLease]. A fixed lease that is extended
// keeps its first session.
func (l *lease) Session() (expires time.Time, ttl time.Duration) {
	if ss := l.session; ss != nil {
		return l.d.server.start.Add(time.Duration(ss.expires.Load())), time.Duration(ss.ttl)
	}
	return time.Time{}, 0
}

// Renew implements [driver.Lease].
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("renewal for %v: the TTL is not positive", ttl)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	sent := l.d.server.now()
	lost, err := l.d.request(ctx, Renewals)
	if err != nil {
		return err
	}
	return l.renewed(sent, ttl, lost)
}

// renewed carries out a renewal.
func (l *lease) renewed(sent int64, ttl time.Duration, lost bool) error {
	s := l.d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if l.fate != held || l.released || l.lost || min(l.expiry(), l.end()) <= now {
		return driver.ErrNotHeld
	}
	expires := sent + int64(ttl)
	if l.session == nil || l.r.Fixed {
		before := l.ends
		if l.ends = now + int64(ttl); l.ends < before { // or the timer of the queue finds out
			s.watch(l.entry, now)
		}
	} else {
		expires = never // the end of the session counts
	}
	if lost {
		l.expires.Store(min(l.expires.Load(), expires)) // the lease may have become shorter
		return driver.ErrUnknown
	}
	l.expires.Store(expires)
	return nil
}

// Release implements [driver.Lease].
func (l *lease) Release(ctx context.Context) error {
	d, s := l.d, l.d.server
	lost := false
	if d.faulty.Load() {
		s.mu.Lock()
		l.released = true
		s.mu.Unlock()
		var err error
		if lost, err = d.request(ctx, Releases); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l.fate == held && !l.left {
				d.leaveBehind(l)
				d.endBehind(s.now())
			}
			return unknown(err)
		}
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l.released = true
	if l.left {
		return driver.ErrNotHeld
	}
	ended := l.fate == freed
	if l.fate == held {
		ended = now < l.end() && !l.lost
		l.contended = l.entry.queue != nil
		s.next(l, over, now)
	}
	switch {
	case lost && ended:
		l.fate = freed
		fallthrough
	case lost:
		return driver.ErrUnknown
	case !ended:
		return driver.ErrNotHeld
	}
	l.fate = over
	return nil
}

// Leave implements [driver.Leaver].
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	l, s := granted.(*lease), d.server
	s.mu.Lock()
	over := l.released || l.fate != held || l.lost || l.end() <= s.now()
	l.leaveSession()
	l.released, l.left = true, true // before the request, so that a Close in the meantime does not end the hold
	s.mu.Unlock()
	lost, err := d.request(ctx, Releases)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	over = over || l.fate != held || l.end() <= now
	switch {
	case err != nil:
		return unknown(err)
	case !over:
		l.ends = now + int64(ttl)
		s.watch(l.entry, now)
	}
	switch {
	case lost:
		return driver.ErrUnknown
	case over:
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
