package pglock

import (
	"context"
	"fmt"
	"time"
)

const (
	withdrawFor = 5 * time.Second       // then the connection is closed
	firstCancel = 5 * time.Millisecond  // until it is tried again: a cancel is lost if it comes before the statement
	lastCancel  = 80 * time.Millisecond // the same, at the end of a doubling
	digFor      = time.Second           // one attempt to see whether a session is gone
	firstDig    = 5 * time.Millisecond
	lastDig     = time.Second
)

// withdraw ends a wait at the server that was abandoned, in the background.
func (d *Driver) withdraw(w *session, op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return // all sessions are being closed
	}
	d.withdrawals++
	d.wg.Go(func() { // ends within withdrawFor, or with the driver
		d.cancelWait(w, op)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.withdrawals--
		d.changed.Broadcast()
	})
}

// cancelWait cancels the statement. The session gives back what it got all the same: it can fail while the lock is granted. It is used
// again only when every cancel has been answered, for a late one would hit what somebody else waits for.
func (d *Driver) cancelWait(w *session, op *operation) {
	ctx, cancel := context.WithTimeout(d.life, withdrawFor)
	defer cancel()
	defer d.drop(w)
	for wait := firstCancel; ctx.Err() == nil; wait = min(2*wait, lastCancel) {
		if request, err := d.query(ctx, cancelQuery, int4(w.pid)); err == nil {
			select {
			case <-request.done:
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

// removed takes a session that ended off the driver's. If the server may still have locks of it, or give it some, that is seen to.
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
	bury := doubt && !d.ended
	if bury {
		d.graves++
		d.wg.Go(func() { d.bury(s) })
	}
	d.mu.Unlock()
	if !bury {
		close(s.buried)
	}
}

// bury sees to it that the server does not have a session any more: it says so, or the session's time is over. A connection that broke
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
		ctx, cancel := context.WithTimeout(d.life, min(left, digFor))
		rows, err := d.ask(ctx, terminateQuery, int4(s.pid), []byte(s.id))
		cancel()
		if err == nil && len(rows) == 0 {
			s.gone = true
			break
		}
		if !d.sleep(d.life, wait) {
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
