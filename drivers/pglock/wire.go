package pglock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// group is what was sent in one request. The zero value is that nothing is under way.
type group struct {
	ops        []*operation // in the order of their statements; those without one, which want only a token, at the end
	statements int
	token      bool // a statement for the token follows the others
	own        bool // the only operation that wants a lock brings its token itself
	blocks     bool // it waits for a lock

	at    int // statements that were answered
	xid   uint64
	fault error // what the statement at was answered with
}

func (g *group) empty() bool { return len(g.ops) == 0 }

// take returns the operations and empties the group.
func (g *group) take() []*operation {
	ops := g.ops
	*g = group{}
	return ops
}

// buffers are for encoding groups.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// send sends what is pending, if no group is under way. It is called with mu held, and lets go of it.
func (s *session) send() {
	if s.over || !s.flight.empty() || len(s.pending) == 0 {
		s.mu.Unlock()
		return
	}
	n := min(len(s.pending), maxGroup)
	s.flight = makeGroup(s.pending[:n], s.d.options.Tokens != TokensNone)
	if n == len(s.pending) {
		s.pending = nil
	} else {
		s.pending = s.pending[n:]
	}
	buf := buffers.Get().(*[]byte)
	*buf = s.flight.encode((*buf)[:0])
	s.sent = s.d.now()
	for _, op := range s.flight.ops {
		op.sent = s.sent
	}
	if len(s.flight.ops) > 1 || !s.flight.ops[0].reads {
		s.rouse()
	}
	s.mu.Unlock()

	// The server takes no notice of time between a statement and its Sync, so both go in one write.
	_, err := s.conn.Write(*buf)
	buffers.Put(buf)
	if err != nil {
		s.end(err)
	}
}

// makeGroup puts operations together. There are never two for one key: the next for a key is made when the one before is settled.
func makeGroup(ops []*operation, tokens bool) group {
	g := group{ops: ops}
	wanting, last := 0, 0
	for _, op := range ops {
		switch op.kind {
		case stamped:
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
			if op.kind == stamped {
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

// encode appends the messages of the group to buf. The token is taken last, once for all: it is then later than each grant in it.
func (g *group) encode(buf []byte) []byte {
	for _, op := range g.ops[:g.statements] {
		switch op.kind {
		case try:
			name := tryName
			if g.own {
				name = grantName
			}
			buf = appendKeyed(buf, name, op.key)
		case block:
			buf = appendKeyed(buf, blockName, op.key)
		case unlock:
			buf = appendKeyed(buf, unlockName, op.key)
		case ping, confirm:
			buf = appendStatement(buf, pingName)
		case query:
			buf = appendQuery(buf, op.sql, op.params)
		}
	}
	if g.token {
		buf = appendStatement(buf, tokenName)
	}
	return appendSync(buf)
}

// row takes a row of the statement that is being answered.
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
	case op.kind == query:
		row := make([][]byte, len(values))
		for i, v := range values {
			row[i] = append([]byte{}, v...)
		}
		op.rows = append(op.rows, row)
		op.yes = true
	case op.kind == ping || op.kind == confirm:
		if len(v) != 4 {
			return errAnswer
		}
		if got := binary.BigEndian.Uint32(v); got != s.pid {
			return fmt.Errorf("%w: server process %d instead of %d", errSwitched, got, s.pid)
		}
		op.yes = true
	case op.kind == block && s.d.options.Tokens == TokensNone:
		op.yes = true
	case op.kind == block || g.own && op.kind == try:
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

// answered takes the end of the answer to a group.
func (s *session) answered() error {
	now := s.d.now()
	s.mu.Lock()
	if s.over || s.flight.empty() {
		s.mu.Unlock()
		return nil
	}
	if s.flight.blocks {
		// The lock was granted at a time that nobody knows here. What the session carries counts from the confirmation.
		s.expires.Store(now + int64(s.ttl))
	} else if now >= s.expires.Load() {
		s.mu.Unlock()
		return errExpired // it is past its time, and nothing revives it
	} else {
		s.expires.Store(s.sent + int64(s.ttl))
	}
	g, wasSilent := s.flight, s.silent
	s.flight, s.silent = group{}, false
	var settled, again, behind []*operation
	for i, op := range g.ops {
		switch g.outcome(i) {
		case settledOperation:
			s.settle(op)
			settled = append(settled, op)
		case repeatOperation:
			again = append(again, op)
		case repeatLater:
			behind = append(behind, op)
		}
	}
	s.failed = append(s.failed, behind...)
	if len(again) > 0 {
		s.pending = append(again, s.pending...)
	}
	s.send() // unlocks
	for _, op := range settled {
		op.finish()
	}
	if wasSilent {
		s.d.tell(nil)
	}
	return nil
}

// next is what is to be done with an operation that the server has answered, or passed over.
type next int

const (
	settledOperation next = iota
	repeatOperation
	repeatLater
)

// outcome decides about the operation at i. With a fault, the statements before g.at are done, for a session keeps its locks when a
// transaction fails, the one at g.at failed, and those behind it were passed over.
func (g *group) outcome(i int) next {
	op, failed := g.ops[i], g.fault != nil
	switch {
	case op.kind == stamped && failed && g.at < g.statements, op.kind != stamped && failed && i > g.at:
		return repeatOperation
	case failed && (i == g.at || g.at >= g.statements && op.wants() && (op.yes || op.kind == stamped)):
		return op.fail(g.fault)
	case op.kind == try && op.yes && g.token && failed:
		op.kind = stamped // it has the lock, and its token was passed over
		return repeatOperation
	case op.kind == try && op.yes && g.token:
		op.xid = g.xid
	case op.kind == stamped:
		op.kind, op.yes, op.xid = try, true, g.xid
	case op.kind == unlock && op.repeated:
		op.yes = true // the one before may have done it
	}
	if op.wants() && op.abandoned && op.yes {
		return op.giveBack(errAbandoned)
	}
	if op.kind == block {
		op.kind = confirm
		return repeatOperation
	}
	return settledOperation
}

// fail takes an error of the server. A statement that was to get a lock may have got it all the same, unless it was not permitted.
func (op *operation) fail(fault error) next {
	var answer *pgconn.PgError
	denied := errors.As(fault, &answer) && answer.Code == codePermission && (op.kind == try || op.kind == block) && !op.yes
	switch {
	case op.wants() && !denied:
		return op.giveBack(fault)
	case op.kind == unlock && !op.repeated:
		op.repeated = true
		return repeatOperation
	case op.kind == unlock:
		return repeatLater
	}
	op.err = fault
	return settledOperation
}

// giveBack makes an unlock of an operation that was to get a lock.
func (op *operation) giveBack(why error) next {
	op.kind, op.undo = unlock, why
	return repeatOperation
}

// settle is called with mu held.
func (s *session) settle(op *operation) {
	op.settled = true
	if op.undo != nil {
		op.yes, op.err = false, op.undo
	}
	if l := op.lease; l != nil && op.yes {
		l.granted(s, op)
	}
}
