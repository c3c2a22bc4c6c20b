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
	d.life.AwaitCalls(ctx) // none waits longer than settleFor
	return d.stop(ctx)
}

// stop ends all sessions and goroutines. The waits come first: otherwise they would be granted the locks.
func (d *Driver) stop(ctx context.Context) error {
	withdrawn := d.waitFor(ctx, func() bool { return d.withdrawals == 0 })
	d.quitAll(ctx)
	buried := d.waitFor(ctx, func() bool { return d.graves == 0 })

	d.mu.Lock()
	graves := d.graves
	d.mu.Unlock()
	d.life.End()
	d.quitAll(ctx) // the sessions which asked about the others
	finished := make(chan struct{})
	go func() { // ends with the driver's goroutines, and these wait for nothing any more
		d.life.Wait()
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

// waitFor waits until cond returns true. cond is called with mu held, at each broadcast of changed.
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

// quit gives all locks of the session back and ends the session in good order, or without the answers at the end of ctx.
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
	s.conn.Write(goodbye) // or else the server sees the end of the connection
	s.end(cause)
	for l := range leases {
		l.ended()
	}
}

var goodbye = []byte{'X', 0, 0, 0, 4} // Terminate

// disown ends the leases of a session, and does not tell their holders.
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
