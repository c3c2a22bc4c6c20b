package pglock

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

// group is the operations of one request. The zero value says that nothing is under way.
type group struct {
	ops        []*operation // in the order of their statements; operations without one, of the step stamp, at the end
	statements int
	token      bool // a statement for the token follows the others
	own        bool // the statement of the only lock brings the token
	blocks     bool // the group waits for a lock
	short      bool // the wait was short: the lock counts from the request

	at    int // answered statements
	xid   uint64
	fault error // the server's error for the statement at
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

// prepare makes a group of pending operations, if no group is under way, and returns the request for write, or nil. Called with mu held.
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

// write sends a request of prepare, without locks held. The server takes no notice of time between a statement and its Sync, so both go
// in one write.
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

// makeGroup puts operations together. There are never two for one key: the next for a key is made when the one before is settled.
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

// encode appends the messages of the group to buf. One token is taken for all grants of the group, last, and so after each of them.
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

// row takes a row of the statement at s.flight.at.
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

// answered takes the end of the answer to a group.
func (s *session) answered() error {
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
		// The time of the grant is not known here, but it was after the request.
		s.flight.short = true
		s.expires.Store(s.sent + int64(s.ttl))
		s.timer.Reset(time.Duration(due - now))
	case s.flight.blocks:
		s.expires.Store(now + int64(s.ttl)) // until the confirmation, from which all locks of the session count
	case now >= s.expires.Load():
		s.mu.Unlock()
		return errExpired // nothing revives a session past its time
	default:
		s.expires.Store(s.sent + int64(s.ttl))
	}
	g, wasSilent := s.flight, s.silent
	s.flight, s.silent = group{}, false
	var settled, again []*operation
	for i, op := range g.ops {
		switch g.moveOn(i) {
		case settle:
			s.settle(op)
			settled = append(settled, op)
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
	for _, op := range settled {
		op.finish()
	}
	if wasSilent {
		s.d.tell(nil)
	}
	return nil
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
