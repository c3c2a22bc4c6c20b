package pglock

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// restFor is how long after the last request nobody reads from an idle session, so the next caller can read its own answer, with
	// one goroutine less to wake. The end of the connection may be noticed so much later.
	restFor = 2 * time.Millisecond

	// readFor is how long a caller reads, without regard to its context. For a later answer the caller waits.
	readFor = 5 * time.Millisecond
)

// reader says who reads from a session. The session keeps what was read of an answer, so any goroutine can go on.
type reader int8

const (
	itself reader = iota // the session's own goroutine
	caller               // one whose operation alone was under way
	nobody               // the session's own goroutine rests
)

// read takes the answers until the session ends, except where the only request under way is a caller's, who reads the answer.
func (s *session) read() {
	timer := time.NewTimer(restFor)
	defer timer.Stop()
	for s.readOn() {
		runtime.Gosched() // callers with their answers go first
		for !s.takeOver() {
			timer.Reset(restFor)
			select {
			case <-s.roused:
			case <-timer.C:
			}
		}
	}
}

// readOn reads until nothing is under way, and reports whether the session goes on.
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

// takeOver makes the session's goroutine the reader if something is under way, or nothing was for a while, unless a caller reads or is
// about to.
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

// readAnswer reads until op is settled, for a short time, if op alone is under way and nobody else reads.
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

// stopReading lets nobody read if nothing is under way, and then returns true. Otherwise the session's own goroutine reads on.
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

// rouse has the session's goroutine read, if nobody does. Called with mu held.
func (s *session) rouse() {
	if s.reader != nobody {
		return
	}
	select {
	case s.roused <- struct{}{}:
	default:
	}
}

// receive takes a message, and reports whether the message was the end of an answer. One goroutine at a time calls receive.
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
		return true, s.answered()
	}
	return false, err
}
