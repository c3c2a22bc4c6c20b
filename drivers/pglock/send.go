package pglock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// group holds the operations of one request. The zero value means that no
// request is in progress.
type group struct {
	// in the order of their statements; operations of the step stamp, which
	// have no statement, at the end
	ops        []*operation
	statements int
	token      bool // a statement for the token follows the others
	own        bool // the statement of the only lock also returns the token
	blocks     bool // the group waits for a lock
	short      bool // the wait was short, so the lock counts from the request

	at    int // answered statements
	xid   uint64
	fault error // the server's error for the statement at
}

func (g *group) empty() bool { return len(g.ops) == 0 }

// drain returns the operations and empties the group.
func (g *group) drain() []*operation {
	ops := g.ops
	*g = group{}
	return ops
}

// buffers are for encoding groups.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// prepare makes a group of pending operations, if no group is in progress, and
// returns the request for write, or nil. Called with mu held.
func (s *session) prepare() (request *[]byte) {
	if s.over || !s.flight.empty() || len(s.pending) == 0 {
		return nil
	}
	n := min(len(s.pending), maxGroup)
	s.flight = makeGroup(s.pending[:n], s.d.options.Tokens != TokensNone)
	if n == len(s.pending) {
		s.pending = nil
	} else {
		s.pending = s.pending[n:]
	}
	request = buffers.Get().(*[]byte)
	*request = s.flight.encode((*request)[:0])
	s.sent = s.d.now()
	for _, op := range s.flight.ops {
		op.sent = s.sent
	}
	if len(s.flight.ops) > 1 || !s.flight.ops[0].reads {
		s.rouse()
	}
	if !s.looks && !s.flight.blocks {
		s.lookIn(answerIn)
	}
	return request
}

// write sends a request of prepare, without locks held. The server does not
// measure time between a statement and its Sync, so both are sent in one write.
func (s *session) write(request *[]byte) {
	if request == nil {
		return
	}
	_, err := s.conn.Write(*request)
	buffers.Put(request)
	if err != nil {
		s.end(err)
	}
}

// makeGroup combines operations. There are never two operations for the same
// key, because the next operation for a key is created only when the previous
// one is concluded.
func makeGroup(ops []*operation, tokens bool) group {
	g := group{ops: ops}
	wanting, last := 0, 0
	for _, op := range ops {
		switch op.step {
		case stamp:
			last++
		case try:
			wanting++
		case block:
			g.blocks = true
		}
	}
	if last > 0 {
		ordered := make([]*operation, 0, len(ops))
		var behind []*operation
		for _, op := range ops {
			if op.step == stamp {
				behind = append(behind, op)
			} else {
				ordered = append(ordered, op)
			}
		}
		g.ops = append(ordered, behind...)
	}
	g.statements = len(ops) - last
	g.own = tokens && wanting == 1 && last == 0
	g.token = tokens && !g.own && wanting+last > 0
	return g
}

// encode appends the messages of the group to buf. All grants of the group
// share one token. The token is taken last, and so after each grant.
func (g *group) encode(buf []byte) []byte {
	for _, op := range g.ops[:g.statements] {
		switch op.step {
		case try:
			name := tryName
			if g.own {
				name = grantName
			}
			buf = appendKeyed(buf, name, op)
		case block:
			buf = appendKeyed(buf, blockName, op)
		case unlock:
			if op.kept {
				buf = appendStatement(buf, pingName)
			} else {
				buf = appendKeyed(buf, unlockName, op)
			}
		case admit:
			buf = appendKeyed(buf, admitName, op)
		case ping, confirm:
			buf = appendStatement(buf, pingName)
		case keep:
			buf = appendStatement(buf, keepName)
		case query:
			buf = appendQuery(buf, op.sql, op.params)
		case unlockAll:
			buf = appendQuery(buf, unlockAllQuery, nil)
		}
	}
	if g.token {
		buf = appendStatement(buf, tokenName)
	}
	return appendSync(buf)
}

// row handles a row of the statement at s.flight.at.
func (s *session) row(values [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.flight
	if g.at > g.statements || g.empty() || len(values) == 0 {
		return errAnswer
	}
	v := values[0]
	if g.at == g.statements {
		if len(v) != 8 {
			return errAnswer
		}
		g.xid = binary.BigEndian.Uint64(v)
		return nil
	}
	op := g.ops[g.at]
	switch {
	case op.step == query || op.step == unlockAll:
		row := make([][]byte, len(values))
		for i, v := range values {
			row[i] = append([]byte{}, v...)
		}
		op.rows = append(op.rows, row)
		op.yes = true
	case op.step == ping || op.step == confirm || op.step == keep || op.kept:
		if len(v) != 4 {
			return errAnswer
		}
		if got := binary.BigEndian.Uint32(v); got != s.pid {
			return fmt.Errorf("%w: server process %d instead of %d", errSwitched, got, s.pid)
		}
		op.yes = true
	case op.step == block && s.d.options.Tokens == TokensNone:
		op.yes = true
	case op.step == block || g.own && op.step == try:
		if op.yes = v != nil; op.yes && len(v) != 8 {
			return errAnswer
		}
		if op.yes {
			op.xid = binary.BigEndian.Uint64(v)
		}
	default:
		if len(v) != 1 {
			return errAnswer
		}
		op.yes = v[0] != 0
	}
	return nil
}

// groupDone handles the end of the answer to a group.
func (s *session) groupDone() error {
	now := s.d.now()
	s.mu.Lock()
	if s.over || s.flight.empty() {
		s.mu.Unlock()
		return nil
	}
	if fault := s.flight.fault; isBroken(fault) {
		s.mu.Unlock()
		return fault
	}
	switch due := s.sent + int64(s.ttl/3); {
	case s.flight.blocks && now < due:
		// The time of the grant is not known here, but it is after the request.
		s.flight.short = true
		s.expires.Store(s.sent + int64(s.ttl))
		s.timer.Reset(time.Duration(due - now))
	case s.flight.blocks:
		// until the confirmation, which restarts the time of all locks of the
		// session
		s.expires.Store(now + int64(s.ttl))
	case now >= s.expires.Load():
		s.mu.Unlock()
		return errExpired // a session past its time must not be revived
	default:
		s.expires.Store(s.sent + int64(s.ttl))
	}
	g, wasSilent := s.flight, s.silent
	s.flight, s.silent = group{}, false
	var concluded, again []*operation
	for i, op := range g.ops {
		switch g.moveOn(i) {
		case conclude:
			s.conclude(op)
			concluded = append(concluded, op)
		case later:
			s.failed = append(s.failed, op)
		case giveBack:
			s.letGo(op)
			again = append(again, op)
		default:
			again = append(again, op)
		}
	}
	if len(again) > 0 {
		s.pending = append(again, s.pending...)
	}
	request := s.prepare()
	s.mu.Unlock()
	s.write(request)
	for _, op := range concluded {
		op.finish()
	}
	if wasSilent {
		s.d.reportKeepAlive(nil)
	}
	return nil
}

// conclude is called with mu held.
func (s *session) conclude(op *operation) {
	op.concluded = true
	if op.undo != nil {
		op.yes, op.err = false, op.undo
	}
	if l := op.lease; l != nil && op.yes {
		l.granted(s, op)
	}
}

const (
	// restFor is the time after the last request during which no goroutine
	// reads from an idle session. So the next caller can read its own answer,
	// and one goroutine fewer is woken. The end of the connection may be
	// noticed later by up to this time.
	restFor = 2 * time.Millisecond

	// readFor is how long a caller reads, regardless of its context. After
	// that, the caller waits for the answer.
	readFor = 5 * time.Millisecond
)

// reader identifies the goroutine that reads from a session. The session keeps
// the part of an answer that was read, so any goroutine can continue.
type reader int8

const (
	itself reader = iota // the session's own goroutine
	caller               // a caller whose operation is the only one in progress
	nobody               // none, because the session's own goroutine is resting
)

// read handles the answers until the session ends, unless the only request in
// progress belongs to a caller that reads the answer itself.
func (s *session) read() {
	timer := time.NewTimer(restFor)
	defer timer.Stop()
	for s.readOn() {
		runtime.Gosched() // let callers with answers run first
		for !s.takeOver() {
			timer.Reset(restFor)
			select {
			case <-s.roused:
			case <-timer.C:
			}
		}
	}
}

// readOn reads until no request is in progress, and reports whether the session
// continues.
func (s *session) readOn() bool {
	err := s.conn.SetReadDeadline(time.Time{}) // a caller may have set one
	for idle := false; err == nil && !idle; {
		if idle, err = s.receive(); idle {
			idle = s.stopReading()
		}
	}
	if err != nil {
		s.end(err)
	}
	return err == nil
}

// takeOver makes the session's goroutine the reader if a request is in
// progress, or if there has been none for a while, unless a caller is reading
// or about to read.
func (s *session) takeOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.d.now()-s.sent < int64(restFor)
	if s.reader == caller || s.flight.empty() && fresh && !s.over {
		return false
	}
	s.reader = itself
	return true
}

// readAnswer reads until op is concluded, for a short time, if op is the only
// operation in progress and there is no other reader.
func (s *session) readAnswer(op *operation) {
	s.mu.Lock()
	mine := s.reader == nobody && len(s.flight.ops) == 1 && s.flight.ops[0] == op
	if mine {
		s.reader = caller
	}
	s.mu.Unlock()
	if !mine {
		return
	}
	err := s.conn.SetReadDeadline(time.Now().Add(readFor))
	for err == nil {
		if _, err = s.receive(); op.isDone() {
			break
		}
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.end(err)
	}
	s.stopReading()
}

func (op *operation) isDone() bool {
	select {
	case <-op.done:
		return true
	default:
		return false
	}
}

// stopReading stops reading if no request is in progress, and then returns
// true. Otherwise the session's own goroutine continues to read.
func (s *session) stopReading() (idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle = s.flight.empty() && !s.over; idle || s.reader == caller {
		s.reader = nobody
	}
	if !idle {
		s.rouse()
	}
	return idle
}

// rouse makes the session's goroutine read, if there is no reader. Called with
// mu held.
func (s *session) rouse() {
	if s.reader != nobody {
		return
	}
	select {
	case s.roused <- struct{}{}:
	default:
	}
}

// receive handles a message and reports whether it was the end of an answer.
// One goroutine at a time calls receive.
func (s *session) receive() (answered bool, err error) {
	message, err := s.frontend.Receive()
	if err != nil {
		if s.farewell != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			err = s.farewell
		}
		return false, err
	}
	switch m := message.(type) {
	case *pgproto3.DataRow:
		err = s.row(m.Values)
	case *pgproto3.CommandComplete:
		s.mu.Lock()
		s.flight.at++
		s.mu.Unlock()
	case *pgproto3.ErrorResponse:
		fault := pgconn.ErrorResponseToPgError(m)
		if strings.EqualFold(fault.SeverityUnlocalized, "FATAL") || strings.EqualFold(fault.Severity, "FATAL") {
			s.farewell = fault
			return false, nil
		}
		s.mu.Lock()
		s.flight.fault = fault
		s.mu.Unlock()
	case *pgproto3.ReadyForQuery:
		return true, s.groupDone()
	}
	return false, err
}
