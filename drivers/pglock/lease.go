package pglock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
)

// lease is an attempt to acquire a lock, and later the hold.
type lease struct {
	linked.Links[lease] // in queue.holders

	d       *Driver
	r       *driver.Request
	key     AdvisoryKey
	queue   *localQueue
	session *session     // set by the grant
	end     atomic.Int64 // of the hold, regardless of the session
	first   uint64
	kept    atomic.Bool // KeepTokens has succeeded

	// Guarded by session.mu.
	phase  phase
	unlock *operation  // set once Release was called, or the time was up
	timer  *time.Timer // ends a fixed lease; nil for other leases
	since  time.Time

	// Guarded by Driver.mu.
	over    bool // on the server too
	counted bool // in Driver.locks, since the return of Acquire
}

// phase is the progress of the end of a lease.
type phase uint8

const (
	held    phase = iota
	ending        // Release was called
	expired       // a fixed lease whose time is up
	lost          // lost with its session
	done          // Release has returned the outcome
)

const never = math.MaxInt64

// granted turns an attempt into a hold. Called with session.mu held.
func (l *lease) granted(s *session, op *operation) {
	l.session = s
	l.since = time.Now()
	if l.d.options.Tokens != TokensNone {
		l.first = op.xid * tokensPerGrant
	}
	l.end.Store(never)
	if l.r.Fixed {
		l.end.Store(op.sent + int64(l.r.TTL))
		l.timer = time.AfterFunc(time.Duration(l.end.Load()-l.d.now()), l.expire)
	}
	s.leases[l] = struct{}{}
	if op.shared && s.shares[l.key] == 0 {
		s.shares[l.key] = 1
	}
}

// Tokens implements driver.Lease. A transaction id has room for a whole block.
func (l *lease) Tokens() (first uint64, n int) {
	if l.first == 0 {
		return 0, 0
	}
	return l.first, tokensPerGrant
}

// keepTries is how often the statement that keeps tokens is tried, since an
// administrator may cancel it.
const keepTries = 3

// keeps reports whether the tokens are as durable as Options.Tokens requires.
func (l *lease) keeps() bool { return l.d.options.Tokens != TokensDurable || l.kept.Load() }

// KeepTokens implements driver.TokenKeeper. Only the session of the lease can
// show that the server has not crashed since the grant. The session may wait
// for another lock once it has released this one, so KeepTokens uses it only
// during the lease.
func (l *lease) KeepTokens(ctx context.Context) error {
	if l.keeps() {
		return nil
	}
	s := l.session
	for tries := 1; ; tries++ {
		op := newOperation(keep, l.key)
		op.reads = true
		s.mu.Lock()
		switch {
		case l.phase != held:
			s.mu.Unlock()
			return driver.ErrNotHeld
		case s.over:
			s.mu.Unlock()
			<-s.told // so that a caller that gets no token finds out that the lease has ended
			return driver.ErrNotHeld
		}
		request := s.add(op)
		s.mu.Unlock()
		s.write(request)
		s.readAnswer(op)
		select {
		case <-op.done:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
		}
		switch ended := new(endedError); {
		case errors.As(op.err, &ended):
			<-s.told
			return driver.ErrNotHeld
		case op.err == nil:
			l.kept.Store(true)
			return nil
		case tries == keepTries:
			return refusal(op.err)
		}
	}
}

// Expires implements driver.Lease.
func (l *lease) Expires() time.Time {
	return l.d.epoch.Add(time.Duration(min(l.end.Load(), l.session.expires.Load())))
}

// Session implements driver.SessionLease. A fixed lease, which may be extended,
// may be on a session with a shorter TTL.
func (l *lease) Session() (expires time.Time, ttl time.Duration) {
	s := l.session
	return l.d.epoch.Add(time.Duration(s.expires.Load())), s.ttl
}

// Renew implements driver.Lease. The session of the lease is kept alive anyway,
// so Renew only checks that the session is still alive, and extends a fixed
// lease here.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	s := l.session
	op := newOperation(ping, l.key)
	if !s.submit(op) {
		return driver.ErrNotHeld
	}
	select {
	case <-op.done:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	}
	if ended := new(endedError); errors.As(op.err, &ended) {
		return driver.ErrNotHeld
	} else if op.err != nil {
		return refusal(op.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.d.now()
	if l.phase != held || s.over || now >= l.end.Load() {
		return driver.ErrNotHeld
	}
	if l.r.Fixed {
		l.end.Store(op.sent + int64(ttl))
		l.timer.Reset(time.Duration(l.end.Load() - now))
	}
	return nil
}

// expire ends a fixed lease when its time is up.
func (l *lease) expire() {
	s := l.session
	s.mu.Lock()
	now := l.d.now()
	if l.phase != held || s.over {
		s.mu.Unlock()
		return
	}
	if left := l.end.Load() - now; left > 0 {
		l.timer.Reset(time.Duration(left))
		s.mu.Unlock()
		return
	}
	l.phase = expired
	request := l.giveBack(false)
	s.mu.Unlock()
	s.write(request)
}

// giveBack begins an unlock and returns a request for the session's write.
// reads means that the caller will call readAnswer next. It is called with
// session.mu held, before the session has ended.
func (l *lease) giveBack(reads bool) (request *[]byte) {
	s := l.session
	l.end.Store(min(l.end.Load(), s.expires.Load())) // from now on the end does not change
	if l.timer != nil {
		l.timer.Stop()
	}
	delete(s.leases, l)
	l.unlock = newOperation(unlock, l.key)
	l.unlock.after, l.unlock.reads, l.unlock.shared = l.ended, reads, l.r.Mode == driver.Read
	s.letGo(l.unlock)
	return s.add(l.unlock)
}

// Release implements driver.Lease.
func (l *lease) Release(ctx context.Context) error {
	s := l.session
	var request *[]byte
	s.mu.Lock()
	if l.phase == held && !s.over {
		l.phase = ending
		request = l.giveBack(true)
	}
	op, over := l.unlock, l.phase != ending
	s.mu.Unlock()
	if over {
		return driver.ErrNotHeld
	}
	s.write(request)
	s.readAnswer(op)
	select {
	case <-op.done:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	}
	if op.err != nil {
		// The connection broke before the answer, so the hold has ended. It is
		// unknown whether the hold ended earlier: if another client terminated
		// the session, the name may have been granted before the request was
		// sent.
		select {
		case <-s.buried:
		case <-ctx.Done():
		}
		// the server's last message precedes the answer to the request
		refused := !op.yes && s.endedByServer()
		if s.isGone() && (refused || op.sent == 0 || op.sent >= l.end.Load()) {
			return driver.ErrNotHeld
		}
		return fmt.Errorf("%w: %w", driver.ErrUnknown, s.cause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.phase == done || !op.yes {
		return driver.ErrNotHeld
	}
	l.phase = done
	return nil
}

// sessionEnded notifies the holder, unless Release was called before.
func (l *lease) sessionEnded(cause error) {
	s := l.session
	s.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	first := l.phase == held
	if first {
		l.phase = lost
		l.end.Store(min(l.end.Load(), s.expires.Load()))
	}
	s.mu.Unlock()
	l.ended()
	if first {
		l.r.Events.Lost(fmt.Errorf("%w: %w", driver.ErrSessionEnded, cause))
	}
}

// ended lets other attempts of this driver proceed after the lease has ended.
func (l *lease) ended() {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	if l.counted {
		d.locks--
	}
	l.queue.holders.Remove(l)
	l.queue.advance()
	d.leaveQueue(l.queue)
	d.freeSession(l.session)
}
