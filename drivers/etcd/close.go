package etcd

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/go-dsync/dsync/driver"
)

// Close implements driver.Driver. The locks that a session carries end with its lease, in one request.
func (d *Driver) Close(ctx context.Context) error {
	if !d.beginClose() {
		return driver.ErrClosed
	}
	waiting := d.awaitCalls(ctx)
	d.endHolds()
	d.spare.close()
	ghosts := d.ghosts.finish(ctx)
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.end()
	d.wg.Wait() // all requests end with d.life
	err := error(nil)
	if waiting+ghosts > 0 {
		err = fmt.Errorf("%w: %d calls and %d leases or keys were left behind: %w", driver.ErrUnknown, waiting, ghosts, ctx.Err())
	}
	if d.closeClient != nil {
		d.closeClient()
	}
	return err
}

// beginClose has every call of Acquire fail from now on.
func (d *Driver) beginClose() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.closed = true
	d.stop()
	return true
}

// awaitCalls returns how many calls of Acquire had not ended when ctx did.
func (d *Driver) awaitCalls(ctx context.Context) int {
	d.mu.Lock()
	if d.calls == 0 {
		d.mu.Unlock()
		return 0
	}
	idle := make(chan struct{})
	d.idle = idle
	d.mu.Unlock()
	select {
	case <-idle:
		return 0
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// endHolds has all leases revoked.
func (d *Driver) endHolds() {
	d.mu.Lock()
	sessions := slices.AppendSeq(slices.Collect(maps.Keys(d.retired)), maps.Values(d.sessions))
	fixed := d.fixed.take()
	d.mu.Unlock()
	for _, s := range sessions {
		select {
		case <-s.ready:
			s.close()
		default: // its grant has not been answered; nobody is on it
		}
	}
	for _, h := range fixed {
		h.mu.Lock()
		h.phase = over
		h.mu.Unlock()
		h.own.discard(d)
	}
}

// close is die for a session whose holds are not told.
func (s *session) close() {
	s.mu.Lock()
	if s.err != nil || s.dead {
		s.mu.Unlock()
		return
	}
	s.dead = true
	holds := s.holds.take()
	close(s.over)
	s.mu.Unlock()
	for _, h := range holds {
		h.mu.Lock()
		h.phase = over
		h.mu.Unlock()
	}
	s.driver.ghosts.add(&ghost{carrier: &s.carrier, revoke: true})
}
