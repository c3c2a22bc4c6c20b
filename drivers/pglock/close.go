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
	d.mu.Lock()
	if d.open.Err() != nil {
		d.mu.Unlock()
		return driver.ErrClosed
	}
	d.shut()
	calls := d.calls
	var idle chan struct{}
	if calls > 0 {
		idle = make(chan struct{})
		d.idle = idle
	}
	d.mu.Unlock()
	if calls > 0 {
		select { // they are told, and none waits longer than settleFor
		case <-idle:
		case <-ctx.Done():
		}
	}
	return d.stop(ctx)
}

// stop ends all sessions and goroutines: first the waits, else the locks would be granted to those.
func (d *Driver) stop(ctx context.Context) error {
	withdrawn := d.waitFor(ctx, func() bool { return d.withdrawals == 0 })
	d.quitAll(ctx)
	buried := d.waitFor(ctx, func() bool { return d.graves == 0 })

	d.mu.Lock()
	d.ended = true
	graves := d.graves
	d.mu.Unlock()
	d.end()
	d.quitAll(ctx) // those that asked about the others
	finished := make(chan struct{})
	go func() { // ends with the driver's goroutines, which wait for nothing any more
		d.wg.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
	}
	if !withdrawn || !buried {
		return fmt.Errorf("%w: %d sessions may be left on the server until their TTL is over: %w", driver.ErrUnknown, graves, ctx.Err())
	}
	return nil
}

// quitAll gives the locks of all sessions back, in one request each, and ends them.
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

// waitFor waits until cond holds, which is called with mu held and depends on what changes with a broadcast.
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

// quit gives all locks of the session back and ends it in good order, if that can be done before ctx ends.
func (s *session) quit(ctx context.Context, cause error) {
	leases := s.disown()
	if len(leases) > 0 {
		op := newOperation(query, AdvisoryKey{})
		op.sql = unlockAllQuery
		if s.submit(op) {
			select {
			case <-op.done:
			case <-ctx.Done():
			}
		}
	}
	s.conn.SetWriteDeadline(time.Now().Add(time.Second))
	s.conn.Write(goodbye) // or else the server sees the end of the connection
	s.end(cause)
	for _, l := range leases {
		l.ended()
	}
}

var goodbye = []byte{'X', 0, 0, 0, 4} // Terminate

// disown ends the leases of a session for their holders, who are not told.
func (s *session) disown() map[AdvisoryKey]*lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil
	}
	leases := s.leases
	s.leases = make(map[AdvisoryKey]*lease)
	for _, l := range leases {
		l.phase = done
		l.end.Store(min(l.end.Load(), s.expires.Load()))
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	return leases
}
