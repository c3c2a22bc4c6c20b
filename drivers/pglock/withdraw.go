package pglock

import (
	"context"
	"fmt"
	"time"
)

const (
	withdrawFor = 2 * time.Second       // then the connection is closed
	firstCancel = 5 * time.Millisecond  // until the next try: a cancel before its statement is lost
	lastCancel  = 80 * time.Millisecond // the same, at the end of a doubling
	digFor      = time.Second           // one attempt to see whether a session is gone
	firstDig    = 5 * time.Millisecond
	lastDig     = time.Second
)

// withdraw ends an abandoned wait at the server, in the background.
func (d *Driver) withdraw(w *session, op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	started := d.life.Go(func() { // ends within withdrawFor, or with the driver
		d.cancelWait(w, op)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.withdrawals--
		d.changed.Broadcast()
	})
	if started { // otherwise all sessions are being closed
		d.withdrawals++
	}
}

// cancelWait cancels the statement. A canceled statement can fail with the lock granted, and the session then gives the lock back. The
// session is used again only when every cancel has been answered, for a late cancel would hit the next wait.
func (d *Driver) cancelWait(w *session, op *operation) {
	ctx, cancel := context.WithTimeout(d.life.Context(), withdrawFor)
	defer cancel()
	defer d.drop(w)
	for wait := firstCancel; ctx.Err() == nil; wait = min(2*wait, lastCancel) {
		if request, err := d.query(ctx, cancelQuery, int4(w.pid)); err == nil {
			select {
			case <-request.done:
			case <-request.on.behind: // the cancel may be late
				w.end(errStuck)
				return
			case <-ctx.Done():
				w.end(errStuck)
				return
			}
		}
		again := time.NewTimer(wait)
		select {
		case <-op.done:
			again.Stop()
			return
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
	w.end(errStuck)
}

var errStuck = fmt.Errorf("a wait could not be ended: %w", errAbandoned)

// removed takes an ended session out of the driver's. If the session may still have locks at the server, or get some, bury sees to them.
func (d *Driver) removed(s *session, doubt bool) {
	d.mu.Lock()
	c := d.class(s.ttl)
	c.remove(s)
	delete(d.sessions, s)
	if s.waiter {
		d.waiters--
		c.waiters--
	}
	if c.empty() {
		delete(d.classes, s.ttl)
	}
	bury := doubt && d.life.Go(func() { d.bury(s) })
	if bury {
		d.graves++
	}
	d.mu.Unlock()
	if !bury {
		close(s.buried)
	}
}

// bury ends a session at the server: until the server says that the session is gone, or the session's time is over. A broken connection
// can leave the server waiting for more.
func (d *Driver) bury(s *session) {
	s.mu.Lock()
	until := max(s.expires.Load(), s.sent+int64(s.ttl)) + int64(late)
	s.mu.Unlock()
	for wait := firstDig; ; wait = min(2*wait, lastDig) {
		left := time.Duration(until - d.now())
		if left <= 0 {
			break
		}
		ctx, cancel := context.WithTimeout(d.life.Context(), min(left, digFor))
		rows, err := d.ask(ctx, terminateQuery, int4(s.pid), []byte(s.id))
		cancel()
		if err == nil && len(rows) == 0 {
			s.gone = true
			break
		}
		if !d.life.Sleep(d.life.Context(), wait) {
			break
		}
	}
	d.mu.Lock()
	d.graves--
	d.changed.Broadcast()
	d.mu.Unlock()
	close(s.buried)
}

// isGone reports whether the server was seen not to have the session any more.
func (s *session) isGone() bool {
	select {
	case <-s.buried:
		return s.gone
	default:
		return false
	}
}
