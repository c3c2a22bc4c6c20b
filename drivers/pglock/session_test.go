package pglock

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// TestSessionOutlastsALateAnswer has one answer arrive late, soon after another
// request and in time for the session. The server is prompt before and slow
// afterwards, and the session lasts.
func TestSessionOutlastsALateAnswer(t *testing.T) {
	const ttl = time.Second
	for _, late := range []time.Duration{ttl / 12, ttl / 6, ttl / 4, ttl / 3, ttl / 2, ttl * 3 / 4} {
		for _, at := range []time.Duration{0, ttl / 12, ttl / 6, ttl / 4, ttl * 7 / 24} { // the timer first fires at ttl / 3
			synctest.Test(t, func(t *testing.T) { outlast(t, ttl, at, late) })
		}
	}
}

// outlast makes two requests, the second of which is answered late. After that
// it makes no request for ten times the TTL, except the session's requests.
func outlast(t *testing.T, ttl, at, late time.Duration) {
	d, s, server := sessionOnPipe(ttl)
	d.life.Go(func() { answerPings(server, s.pid, []time.Duration{0, late}, ttl/20) }) // ends when the connection is closed

	time.Sleep(at)
	for range 2 {
		op := newOperation(ping, AdvisoryKey{})
		s.submit(op)
		<-op.done
	}
	time.Sleep(10 * ttl)
	s.mu.Lock()
	if s.over {
		t.Errorf("an answer %v late to a request after %v: the session has ended: %v", late, at, s.cause)
	}
	s.mu.Unlock()
	d.life.End() // so that the driver does not look for the session over another connection
	s.end(errQuit)
	server.Close()
	d.life.Wait()
}

// sessionOnPipe returns a session that works, with its own driver that cannot
// make a connection, and the other end of its connection.
func sessionOnPipe(ttl time.Duration) (d *Driver, s *session, server net.Conn) {
	client, server := net.Pipe()
	config, _ := pgconn.ParseConfig("postgres://user@192.0.2.1/db")
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrClosedPipe }
	d = &Driver{config: config, epoch: time.Now(), home: ttl, life: lifecycle.New(), classes: make(map[time.Duration]*class),
		sessions: make(map[*session]struct{})}
	d.changed.L = &d.mu
	s = &session{d: d, ttl: ttl, conn: client, frontend: pgproto3.NewFrontend(client, client), pid: 1}
	s.init(d.now())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.adopt(s)
	return d, s, server
}

// answerPings answers groups of pings like a server, until the connection ends.
// The first answers take the given times, the others the usual time.
func answerPings(conn net.Conn, pid uint32, first []time.Duration, usual time.Duration) {
	server := pgproto3.NewBackend(conn, conn)
	for {
		message, err := server.Receive()
		if err != nil {
			return
		}
		switch message.(type) {
		case *pgproto3.Execute:
			server.Send(&pgproto3.DataRow{Values: [][]byte{binary.BigEndian.AppendUint32(nil, pid)}})
			server.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		case *pgproto3.Sync:
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			takes := usual
			if len(first) > 0 {
				takes, first = first[0], first[1:]
			}
			time.Sleep(takes)
			if server.Flush() != nil {
				return
			}
		}
	}
}

// TestCloseWaitsForDoubtOverLocksOnly ends the connection of a session with an
// unanswered operation. Close waits for the TTL of a session that may hold a
// lock on the server. It does not wait if the operation concerns no lock, for
// example whether another session is gone.
func TestCloseWaitsForDoubtOverLocksOnly(t *testing.T) {
	const ttl = time.Second
	for _, test := range []struct {
		name   string
		step   step
		unsent bool // because an earlier operation has no answer
		waits  bool
	}{
		{"ping", ping, false, false},
		{"query", query, false, false},
		{"keep", keep, false, false},
		{"try", try, false, true},
		{"try that was not sent", try, true, false},
		{"block", block, false, true},
		{"confirm", confirm, false, true},
		{"stamp", stamp, false, true},
		{"admit", admit, false, true},
		{"unlock", unlock, false, true},
		{"unlock that was not sent", unlock, true, true},
		{"unlock of all", unlockAll, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, s, server := sessionOnPipe(ttl)
				d.life.Go(func() { _, _ = io.Copy(io.Discard, server) }) // ends when the connection is closed
				time.Sleep(ttl / 10)
				if test.unsent {
					s.submit(newOperation(ping, AdvisoryKey{}))
				}
				s.mu.Lock()
				request := s.add(newOperation(test.step, AdvisoryKey{}))
				s.mu.Unlock()
				s.write(request)
				s.end(io.ErrUnexpectedEOF)
				began := time.Now()
				if err := d.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if waited := time.Since(began); (waited >= ttl) != test.waits {
					t.Errorf("Close waited for %v after a session of a TTL of %v", waited, ttl)
				}
			})
		})
	}
}

// TestLooksAreRare checks that a client checks its wait less often if a check
// takes the server long, and that a single slow check changes little.
func TestLooksAreRare(t *testing.T) {
	var l looks
	for _, step := range []struct{ took, pause time.Duration }{
		{100 * time.Microsecond, backstop},
		{time.Second, backstop},
		{50 * time.Microsecond, backstop},
		{time.Millisecond, backstop},
		{time.Millisecond, 2 * backstop},
		{time.Millisecond, 2 * backstop},
		{100 * time.Millisecond, 4 * backstop},
		{100 * time.Millisecond, 8 * backstop},
		{100 * time.Millisecond, longBackstop},
		{50 * time.Microsecond, backstop},
	} {
		if l.took(step.took); l.pause() != step.pause {
			t.Errorf("after a look of %v: the next look in %v, want %v", step.took, l.pause(), step.pause)
		}
	}
}
