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
	if err := d.life.Close(); err != nil {
		return err
	}
	waiting := d.life.AwaitCalls(ctx)
	d.endHolds()
	d.spare.close()
	ghosts := d.ghosts.Finish(ctx)
	d.life.End()
	d.life.Wait() // all requests end with d.life.Context()
	err := error(nil)
	if waiting+ghosts > 0 {
		err = fmt.Errorf("%w: %d calls and %d leases or keys were left behind: %w", driver.ErrUnknown, waiting, ghosts, ctx.Err())
	}
	if d.closeClient != nil {
		d.closeClient()
	}
	return err
}

// endHolds has all leases revoked.
func (d *Driver) endHolds() {
	d.mu.Lock()
	sessions, fixed := d.granted(), d.fixed.Take()
	d.mu.Unlock()
	for _, s := range sessions {
		s.close()
	}
	for _, h := range fixed {
		h.mu.Lock()
		h.phase = over
		h.mu.Unlock()
		h.own.discard(d)
	}
}

// granted returns the sessions whose lease was granted. Nobody uses the others.
// It is called with d.mu held.
func (d *Driver) granted() (sessions []*session) {
	all := slices.AppendSeq(slices.Collect(maps.Keys(d.retired)), maps.Values(d.sessions))
	return slices.DeleteFunc(all, func(s *session) bool {
		select {
		case <-s.ready:
			return s.err != nil
		default:
			return true
		}
	})
}

// close is die without a word to the holds.
func (s *session) close() {
	s.mu.Lock()
	if s.err != nil || s.dead {
		s.mu.Unlock()
		return
	}
	s.dead = true
	holds := s.holds.Take()
	close(s.over)
	s.mu.Unlock()
	for _, h := range holds {
		h.mu.Lock()
		h.phase = over
		h.mu.Unlock()
	}
	s.driver.ghosts.Add(&ghost{carrier: &s.carrier, revoke: true})
}
