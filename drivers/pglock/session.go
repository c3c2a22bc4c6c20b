package pglock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-dsync/dsync/driver"
)

const (
	maxGroup   = 256              // operations in one request, which is then shorter than any socket buffer
	idleHub    = 30 * time.Second // how long a session without locks stays open that is not that of the usual TTL
	idleWaiter = 10 * time.Second // the same for one that was used to wait
)

var (
	errSilent   = fmt.Errorf("%w: no answer in time", driver.ErrUnavailable)
	errExpired  = errors.New("the server has not answered for the TTL")
	errSwitched = errors.New("a connection pooler gave the session to somebody else")
	errQuit     = errors.New("closed while nothing needed it")
)

// session is one connection to the server: the locks that it carries and the operations that wait for their answers.
//
// Operations that come together go in one group: one write, one implicit transaction, one answer. There is one group under way at a
// time, and what comes meanwhile makes the next. Whoever has an operation while none is under way sends it, and otherwise whoever reads
// the answers does.
//
// The server ends the session when it has heard nothing for the TTL while it waited for a request. So it holds all locks until
// expires, unless somebody ends it: the send time of the last group that was answered, plus the TTL.
type session struct {
	d        *Driver
	ttl      time.Duration
	id       string // in application_name, for this one alone
	pid      uint32 // of the server's process
	waiter   bool   // it waits for one lock and then carries that; otherwise it carries many and waits for none
	conn     net.Conn
	frontend *pgproto3.Frontend // for reading
	expires  atomic.Int64
	carried  int           // leases and attempts; guarded by Driver.mu
	buried   chan struct{} // closed when the server does not have it any more, or cannot
	gone     bool          // the server was seen not to have it; written before buried is closed

	roused   chan struct{} // buffered; signaled when the session's goroutine is to read
	farewell error         // what the server said before it ended the session; belongs to whoever reads

	mu      sync.Mutex
	over    bool
	cause   error // why it is over
	timer   *time.Timer
	leases  map[AdvisoryKey]*lease
	pending []*operation // not sent yet
	failed  []*operation // unlocks that the server refused; sent again with the next ping
	flight  group
	reader  reader
	sent    int64 // when the last group was sent
	silent  bool  // it is not answered in time
	used    int64 // when there was something to do other than to keep it alive
}

// operation is one statement, or one step of a few, and its outcome.
type operation struct {
	kind   kind
	key    AdvisoryKey
	lease  *lease   // that an answer of yes makes; nil if none
	sql    string   // of a query
	params [][]byte // of a query
	reads  bool     // whoever has it carried out calls readAnswer next
	after  func()   // is called once when it is settled, without locks, and does not block; may be nil
	done   chan struct{}

	// Guarded by session.mu until done is closed, which is after the call of after.
	settled   bool
	abandoned bool  // nobody wants the lock any more
	undo      error // the lock is being given back, because of that; then this is the outcome
	repeated  bool  // the statement was sent before and failed
	sent      int64 // when, at last; 0 if it was not
	yes       bool
	xid       uint64
	rows      [][][]byte
	err       error
}

func newOperation(k kind, key AdvisoryKey) *operation {
	return &operation{kind: k, key: key, done: make(chan struct{})}
}

// wants reports whether the operation is about to get a lock.
func (op *operation) wants() bool {
	return op.kind == try || op.kind == block || op.kind == confirm || op.kind == stamped
}

// errAbandoned is the outcome of an operation that was abandoned, when its lock is given back.
var errAbandoned = errors.New("nobody wants the lock any more")

// init makes the session ready. The locks that it will carry count from the time the last answer was asked for.
func (s *session) init(asked int64) {
	s.leases = make(map[AdvisoryKey]*lease)
	s.buried = make(chan struct{})
	s.roused = make(chan struct{}, 1)
	s.sent, s.used = asked, asked
	s.expires.Store(asked + int64(s.ttl))
}

// start lets the session be kept alive.
func (s *session) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.ttl/3, s.tick)
}

// submit lets the session carry out an operation, unless it is over.
func (s *session) submit(op *operation) bool {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return false
	}
	if op.kind != ping {
		s.used = s.d.now()
	}
	s.pending = append(s.pending, op)
	s.send() // unlocks
	return true
}

// abandon says that nobody waits for the operation any more: if it gets a lock, that is given back before it is settled. It returns
// false if it is settled already.
func (s *session) abandon(op *operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.settled {
		return false
	}
	op.abandoned = true
	return true
}

// tick keeps the session alive, ends it when its time is over, or when it has been of no use for long.
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
			s.quit(s.d.life, errQuit)
			return
		}
		s.mu.Lock()
	}
	due, turnsSilent := s.sent+int64(s.ttl/3), false
	if s.flight.empty() && now >= due {
		s.pending = append(s.pending, &operation{kind: ping})
		s.pending = append(s.pending, s.failed...)
		s.failed = nil
		due = now + int64(s.ttl/6)
	} else if !s.flight.empty() {
		if due = s.sent + int64(s.ttl/6); now >= due { // the answer is late
			due, turnsSilent, s.silent = s.expires.Load(), !s.silent, true
		}
	}
	s.timer.Reset(max(time.Millisecond, time.Duration(min(due, s.expires.Load())-now)))
	s.send() // unlocks
	if turnsSilent {
		s.d.tell(errSilent)
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
	} else if s.ttl == s.d.home {
		return false
	}
	return now-s.used > int64(limit)
}

// end ends the session, if it is not over: leases are lost, operations fail. It is called without locks.
func (s *session) end(cause error) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.over, s.cause = true, cause
	s.rouse()
	if s.timer != nil {
		s.timer.Stop()
	}
	ops := slices.Concat(s.flight.take(), s.pending, s.failed)
	leases := s.leases
	s.pending, s.failed, s.leases = nil, nil, nil
	doubt := len(leases) > 0
	for _, op := range ops {
		op.settled = true
		op.err = &endedError{cause, op.sent != 0}
		doubt = doubt || op.sent != 0
	}
	s.mu.Unlock()

	s.hangUp()
	s.d.removed(s, doubt)
	for _, op := range ops {
		op.finish()
	}
	for _, l := range leases {
		l.sessionEnded(cause)
	}
}

// hangUp closes the connection without a word, and without waiting for anything.
func (s *session) hangUp() {
	conn := s.conn
	if layered, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS would say goodbye first
		conn = layered.NetConn()
	}
	conn.Close()
}

// finish tells those who wait. It is called once the operation is settled, without locks.
func (op *operation) finish() {
	if op.after != nil {
		op.after()
	}
	if op.done != nil {
		close(op.done)
	}
}

// ask lets any session answer a query. ctx does not reach the session.
func (d *Driver) ask(ctx context.Context, sql string, params ...[]byte) ([][][]byte, error) {
	op, err := d.query(ctx, sql, params...)
	if err != nil {
		return nil, err
	}
	select {
	case <-op.done:
		return op.rows, refusal(op.err)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	}
}

// query is ask for those who wait for the answer themselves.
func (d *Driver) query(ctx context.Context, sql string, params ...[]byte) (*operation, error) {
	for range 3 {
		s, err := d.hub(ctx, d.home)
		if err != nil {
			return nil, err
		}
		op := newOperation(query, AdvisoryKey{})
		op.sql, op.params = sql, params
		op.after = func() { d.drop(s) }
		if s.submit(op) {
			return op, nil
		}
		d.drop(s)
	}
	return nil, errBreaks
}
