package pglock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-dsync/dsync/driver"
)

const (
	// operations in one request, so a request is shorter than any socket buffer
	maxGroup = 256
	// how long a session without locks stays open, if its TTL is not the usual
	// one
	idleHub    = 30 * time.Second
	idleWaiter = 10 * time.Second // the same for a session for waits

	// answerIn is the time without an answer after which the driver tests
	// whether a new connection works.
	answerIn = time.Second

	// hangsAfter is the time without an answer after which a connection counts
	// as hung, if a new one works. A busy server may take a second for one
	// process, and no time for another.
	hangsAfter = 5 * answerIn / 2
)

var (
	errSilent   = fmt.Errorf("%w: no answer in time", driver.ErrUnavailable)
	errExpired  = errors.New("the server has not answered within the TTL")
	errSwitched = errors.New("a connection pooler gave the session to another client")
	errQuit     = errors.New("the session was closed because it was not in use")
	errHangs    = fmt.Errorf("%w: the connection hangs, and a new one works", driver.ErrUnavailable)
)

// session is one connection to the server, with its locks and its unanswered
// operations.
//
// Simultaneous operations are sent as one group, which has one write, one
// implicit transaction and one answer. There is one group in progress at a
// time, and operations that arrive in the meantime form the next group. A
// caller sends its operation if no group is in progress; otherwise the reader
// of the answers sends the next group.
//
// The server ends the session after it has waited for a request for the TTL. So
// the session keeps all locks until expires, unless another client ends the
// session. expires is the send time of the last answered group plus the TTL.
type session struct {
	d        *Driver
	ttl      time.Duration
	id       string // in application_name, only for this session
	pid      uint32 // process id of the server's process
	waiter   bool   // for one wait and its lock; otherwise for many locks, without waits
	conn     net.Conn
	frontend *pgproto3.Frontend // for reading
	expires  atomic.Int64
	carried  int           // leases and attempts; guarded by Driver.mu
	told     chan struct{} // closed when the holders of its leases have been notified of the end
	buried   chan struct{} // closed when the session has ended on the server
	gone     bool          // the end on the server was observed; written before buried is closed
	behind   chan struct{} // closed when the session hangs; it then continues only for its leases

	roused   chan struct{} // buffered; signaled when the session's goroutine must read
	farewell error         // the last message of the server; belongs to the reader

	mu     sync.Mutex
	over   bool
	cause  error // of the end
	timer  *time.Timer
	leases map[*lease]struct{}
	// the number of holds and attempts that share a read lock, which the server
	// counts as one
	shares  map[AdvisoryKey]int
	pending []*operation // not sent yet
	failed  []*operation // unlocks, refused by the server; sent again with the next ping
	flight  group
	reader  reader
	sent    int64 // when the last group was sent
	silent  bool  // the group was not answered in time
	left    bool  // behind is closed
	looker  *time.Timer
	looks   bool  // a check is scheduled, or replace is running
	used    int64 // when the last operation other than a ping was added
}

// init makes the session ready. Its locks will count from the send time of the
// last answered request.
func (s *session) init(asked int64) {
	s.leases, s.shares = make(map[*lease]struct{}), make(map[AdvisoryKey]int)
	s.told, s.buried, s.behind = make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.roused = make(chan struct{}, 1)
	s.sent, s.used = asked, asked
	s.expires.Store(asked + int64(s.ttl))
}

// start begins to keep the session alive.
func (s *session) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.ttl/3, s.tick)
}

// submit makes the session execute an operation. It returns false if the
// session has ended, if it hangs and the operation would add work, or if it no
// longer has a lock that the operation would share.
func (s *session) submit(op *operation) bool {
	s.mu.Lock()
	if s.over || s.left && op.after != nil || op.step == stamp && s.shares[op.key] == 0 {
		s.mu.Unlock()
		return false
	}
	if op.step == stamp {
		s.shares[op.key]++
	}
	request := s.add(op)
	s.mu.Unlock()
	s.write(request)
	return true
}

// add begins an operation, and returns a request for write, or nil. It is
// called with mu held, before the session has ended.
func (s *session) add(op *operation) (request *[]byte) {
	if op.step != ping {
		s.used = s.d.now()
	}
	op.on = s
	s.pending = append(s.pending, op)
	return s.prepare()
}

// abandon records that no caller is waiting for the operation. The session
// releases the lock, if there is one, before the operation is concluded. It
// returns false if the operation is already concluded.
func (s *session) abandon(op *operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.concluded {
		return false
	}
	op.abandoned = true
	return true
}

// tick keeps the session alive and ends the session when its time is up or when
// it was unused for a long time.
func (s *session) tick() {
	now := s.d.now()
	s.mu.Lock()
	switch {
	case s.over:
		s.mu.Unlock()
		return
	case s.flight.blocks:
		s.timer.Reset(s.ttl / 3)
		s.mu.Unlock()
		return
	case now >= s.expires.Load():
		s.mu.Unlock()
		s.end(errExpired)
		return
	case s.unused(now):
		s.mu.Unlock()
		if s.d.retire(s) {
			s.quit(s.d.life.Context(), errQuit)
			return
		}
		s.mu.Lock()
	}
	due, turnsSilent := s.sent+int64(s.ttl/3), false
	if s.flight.empty() && now >= due {
		s.pending = append(s.pending, &operation{step: ping})
		s.pending = append(s.pending, s.failed...)
		s.failed = nil
		due = now + int64(s.ttl/6)
	} else if !s.flight.empty() {
		if due = s.sent + int64(s.ttl/6); now >= due {
			// the answer is late, so a ping may be due right after it
			due, turnsSilent, s.silent = now+int64(s.ttl/6), !s.silent, true
		}
	}
	s.timer.Reset(max(time.Millisecond, time.Duration(min(due, s.expires.Load())-now)))
	request := s.prepare()
	s.mu.Unlock()
	s.write(request)
	if turnsSilent {
		s.d.reportKeepAlive(errSilent)
	}
}

// unused is called with mu held.
func (s *session) unused(now int64) bool {
	if len(s.leases) > 0 || len(s.pending) > 0 || len(s.failed) > 0 || !s.flight.empty() {
		return false
	}
	limit := idleHub
	if s.waiter {
		limit = idleWaiter
	}
	return now-s.used > int64(limit)
}

// end ends the session, once: its leases are lost, and its operations fail. It
// is called without locks.
func (s *session) end(cause error) { s.finish(cause, false) }

// finish is like end, but if spare is set it does not end a session with
// leases.
func (s *session) finish(cause error, spare bool) {
	s.mu.Lock()
	if s.over || spare && len(s.leases) > 0 {
		s.mu.Unlock()
		return
	}
	s.over, s.cause = true, cause
	s.rouse()
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.looker != nil {
		s.looker.Stop()
	}
	outage := len(s.leases) > 0 && !s.silent && isOutage(cause)
	ops := slices.Concat(s.flight.drain(), s.pending, s.failed)
	leases := s.leases
	s.pending, s.failed, s.leases = nil, nil, nil
	doubt := len(leases) > 0
	for _, op := range ops {
		op.concluded = true
		op.err = &endedError{cause, op.sent != 0}
		doubt = doubt || op.mayLeave()
	}
	s.mu.Unlock()

	s.hangUp()
	s.d.removed(s, doubt)
	for _, op := range ops {
		op.finish()
	}
	if outage {
		s.d.reportKeepAlive(fmt.Errorf("%w: %w", driver.ErrUnavailable, cause))
	}
	for l := range leases {
		l.sessionEnded(cause)
	}
	close(s.told)
}

// isOutage reports whether a session ended because the server was unreachable.
// An error that the server sent is an answer.
func isOutage(cause error) bool {
	for _, own := range []error{driver.ErrClosed, errQuit, errForced, errAbandoned, errAnswer, errSwitched, errExpired} {
		if errors.Is(cause, own) {
			return false
		}
	}
	return !errors.As(cause, new(*pgconn.PgError))
}

// hangUp closes the connection without sending anything, and without waiting.
func (s *session) hangUp() {
	conn := s.conn
	if layered, ok := conn.(interface{ NetConn() net.Conn }); ok {
		// TLS would first send a closing message
		conn = layered.NetConn()
	}
	conn.Close()
}

// query lets any session answer a query. ctx does not reach the session.
func (d *Driver) query(ctx context.Context, sql string, params ...[]byte) ([][][]byte, error) {
	op, err := d.startQuery(ctx, sql, params...)
	if err != nil {
		return nil, err
	}
	if err := op.wait(ctx); err != nil {
		return nil, err
	}
	return op.rows, nil
}

// startQuery is like query, without waiting for the answer.
func (d *Driver) startQuery(ctx context.Context, sql string, params ...[]byte) (*operation, error) {
	op := newOperation(query, AdvisoryKey{})
	op.sql, op.params = sql, params
	return op, d.submit(ctx, op, nil)
}

// submit makes any session execute an operation, except sessions with a hold of
// the queue apart, which may be nil.
func (d *Driver) submit(ctx context.Context, op *operation, apart *localQueue) error {
	for range 3 {
		s, err := d.hub(ctx, d.home, apart)
		if err != nil {
			return err
		}
		op.after = func() { d.drop(s) }
		if s.submit(op) {
			return nil
		}
		d.drop(s)
	}
	return errBreaks
}

// A connection may hang while new ones work: a router has forgotten it, or the
// peer of a proxy is gone. The lock is bound to the connection, so a session
// with leases continues until its time is up. All other operations leave the
// session behind once another connection has been made. The new connection
// distinguishes a hanging connection from a slow server.

// lookIn schedules a check of the session. Called with mu held.
func (s *session) lookIn(wait time.Duration) {
	s.looks = true
	if s.looker == nil {
		s.looker = time.AfterFunc(wait, s.look)
	} else {
		s.looker.Reset(wait)
	}
}

// look checks whether a request has waited for its answer for answerIn, and
// whether a session that was left behind has no more leases.
func (s *session) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = false
	switch left := s.sent + int64(answerIn) - s.d.now(); {
	case s.over:
	case s.left && len(s.leases) == 0 && s.d.now()-s.used >= int64(answerIn):
		// the answer to an unlock may still arrive
		s.d.life.Go(func() { s.finish(errHangs, true) })
	case s.left && len(s.leases) == 0:
		s.lookIn(answerIn / 4)
	case s.flight.empty() || s.flight.blocks:
	case s.left || left > 0:
		s.lookIn(max(time.Duration(left), answerIn/4))
	default:
		sent := s.sent
		// ends when an answer arrives, or when the session or the driver ends
		s.looks = s.d.life.Go(func() { s.d.replace(s, sent) })
	}
}

// replace makes another connection for a session that has not answered the
// request sent at the given time, and leaves the session behind if there is
// still no answer.
func (d *Driver) replace(s *session, sent int64) {
	ctx := d.life.Context()
	for s.waitsFor(sent) {
		fresh, err := d.dial(ctx, s.ttl, false)
		if err == nil {
			d.life.Sleep(ctx, time.Duration(sent+int64(hangsAfter)-d.now()))
			d.swap(s, fresh, sent)
		} else if !d.life.Sleep(ctx, answerIn) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && !s.left {
		s.lookIn(answerIn)
	}
}

// swap replaces a session that still hangs with a fresh session.
func (d *Driver) swap(s, fresh *session, sent int64) {
	d.mu.Lock()
	hangs := d.adopt(fresh) && s.waitsFor(sent)
	if hangs {
		c := d.class(s.ttl)
		c.remove(s)
		c.hubs = append(c.hubs, fresh)
	}
	d.mu.Unlock()
	if hangs {
		s.leaveBehind()
	} else {
		fresh.end(errQuit)
	}
}

// waitsFor reports whether the request sent at the given time has no answer
// yet.
func (s *session) waitsFor(sent int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over && !s.left && !s.flight.empty() && s.sent == sent
}

// leaveBehind lets a hanging session continue only for its leases, until it has
// none.
func (s *session) leaveBehind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.left = true
		close(s.behind)
		s.lookIn(0)
	}
}

// hangs reports whether the session was left behind.
func (s *session) hangs() bool {
	select {
	case <-s.behind:
		return true
	default:
		return false
	}
}

// endedByServer reports whether the server announced the end of the session, as
// it does after pg_terminate_backend. It is called after the session has ended.
func (s *session) endedByServer() bool {
	var answer *pgconn.PgError
	return errors.As(s.cause, &answer) && strings.HasPrefix(answer.Code, "57P") && !s.d.server.pooled
}
