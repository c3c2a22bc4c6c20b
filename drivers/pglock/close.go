package pglock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Close implements driver.Driver.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	d.life.AwaitCalls(ctx) // no call waits for longer than settleFor
	return d.stop(ctx)
}

// stop ends all sessions and goroutines. The waits are canceled first, because
// otherwise the waits would be granted the locks.
func (d *Driver) stop(ctx context.Context) error {
	withdrawn := d.waitFor(ctx, func() bool { return d.withdrawals == 0 })
	d.quitAll(ctx)
	buried := d.waitFor(ctx, func() bool { return d.graves == 0 })

	d.mu.Lock()
	graves := d.graves
	d.mu.Unlock()
	d.life.End()
	d.quitAll(ctx) // also ends the sessions that queried the other sessions
	d.life.Finish(ctx, func() {})
	if !withdrawn || !buried {
		return fmt.Errorf("%w: %d sessions may stay on the server until the end of their TTL: %w", driver.ErrUnknown, graves, ctx.Err())
	}
	return nil
}

// quitAll releases the locks of all sessions, in one request each, and ends the
// sessions.
func (d *Driver) quitAll(ctx context.Context) {
	d.mu.Lock()
	sessions := slices.Collect(maps.Keys(d.sessions))
	d.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range sessions {
		all.Go(func() { s.quit(ctx, driver.ErrClosed) })
	}
	all.Wait()
}

// waitFor waits until cond returns true. cond is called with mu held, at each
// broadcast of changed.
func (d *Driver) waitFor(ctx context.Context, cond func() bool) bool {
	stop := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.changed.Broadcast()
	})
	defer stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for !cond() {
		if ctx.Err() != nil {
			return false
		}
		d.changed.Wait()
	}
	return true
}

// quit releases all locks of the session and ends the session cleanly, or
// without waiting for the answers when ctx ends.
func (s *session) quit(ctx context.Context, cause error) {
	leases := s.disown()
	if len(leases) > 0 {
		op := newOperation(unlockAll, AdvisoryKey{})
		if s.submit(op) {
			select {
			case <-op.done:
			case <-ctx.Done():
			}
		}
	}
	s.conn.SetWriteDeadline(time.Now().Add(time.Second))
	s.conn.Write(goodbye) // otherwise the server sees the end of the connection
	s.end(cause)
	for l := range leases {
		l.ended()
	}
}

var goodbye = []byte{'X', 0, 0, 0, 4} // Terminate

// disown ends the leases of a session without notifying their holders.
func (s *session) disown() map[*lease]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil
	}
	leases := s.leases
	s.leases = make(map[*lease]struct{})
	for l := range leases {
		l.phase = done
		l.end.Store(min(l.end.Load(), s.expires.Load()))
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	return leases
}

// removed removes an ended session from the driver's sessions. If the session
// may still have or get locks on the server, bury ends it there.
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

// bury ends a session on the server. It repeats the request until the server
// reports that the session is gone, or until the session's TTL has passed. If a
// connection breaks, the server may continue to wait for a request.
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
		rows, err := d.query(ctx, terminateQuery, int4(s.pid), []byte(s.id))
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

// isGone reports whether the driver knows that the server has ended the
// session.
func (s *session) isGone() bool {
	select {
	case <-s.buried:
		return s.gone
	default:
		return false
	}
}
