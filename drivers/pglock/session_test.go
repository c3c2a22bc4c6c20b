package pglock

import (
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// TestSessionOutlastsALateAnswer has one answer come late, soon after another request and in time for the session. The server is prompt before and slow
// afterwards, and the session lasts.
func TestSessionOutlastsALateAnswer(t *testing.T) {
	const ttl = time.Second
	for _, late := range []time.Duration{ttl / 12, ttl / 6, ttl / 4, ttl / 3, ttl / 2, ttl * 3 / 4} {
		for _, at := range []time.Duration{0, ttl / 12, ttl / 6, ttl / 4, ttl * 7 / 24} { // the timer first fires at ttl / 3
			synctest.Test(t, func(t *testing.T) { outlast(t, ttl, at, late) })
		}
	}
}

// outlast makes two requests, the second of which is answered late, and then none but those of the session for ten times the TTL.
func outlast(t *testing.T, ttl, at, late time.Duration) {
	client, server := net.Pipe()
	d := &Driver{epoch: time.Now(), home: ttl, life: lifecycle.New(), classes: make(map[time.Duration]*class), sessions: make(map[*session]struct{})}
	d.changed.L = &d.mu
	s := &session{d: d, ttl: ttl, conn: client, frontend: pgproto3.NewFrontend(client, client), pid: 1}
	s.init(d.now())
	d.life.Go(func() { answerPings(server, s.pid, []time.Duration{0, late}, ttl/20) }) // ends with the connection
	d.mu.Lock()
	d.run(s)
	d.mu.Unlock()

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
	d.life.End() // so that nobody looks for the session at another connection
	s.end(errQuit)
	server.Close()
	d.life.Wait()
}

// answerPings answers groups of pings as a server does, until the connection ends. The first answers take the given times, the others the usual time.
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
