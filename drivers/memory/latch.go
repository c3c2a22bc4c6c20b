package memory

import (
	"context"

	"github.com/go-dsync/dsync/driver"
)

var _ driver.Latcher = (*Driver)(nil)

// latches are the latches of a server. Guarded by Server.mu.
type latches struct {
	left     map[string]int
	changes  map[string]latchChange // by id
	sweepAt  int                    // the number of changes at which old changes are dropped
	watchers watchers
}

// latchChange is a change that was carried out.
type latchChange struct {
	did bool
	at  int64 // on the clock of the server
}

// rememberFor is how long a server remembers the id of a change.
const rememberFor = int64(2 * driver.RepeatFor)

func newLatches() latches {
	return latches{left: map[string]int{}, changes: map[string]latchChange{}, sweepAt: minSweep, watchers: watchers{}}
}

// SetLatch implements [driver.Latcher].
func (d *Driver) SetLatch(ctx context.Context, name, id string, n int) (set bool, err error) {
	return d.changeLatch(ctx, id, func(all *latches) bool {
		if all.left[name] > 0 {
			return false
		}
		all.left[name] = n
		return true
	})
}

// CountDown implements [driver.Latcher].
func (d *Driver) CountDown(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, id, func(all *latches) bool { return all.lower(name, 1) })
	return err
}

// DeleteLatch implements [driver.Latcher].
func (d *Driver) DeleteLatch(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, id, func(all *latches) bool { return all.lower(name, all.left[name]) })
	return err
}

// Latch implements [driver.Latcher].
func (d *Driver) Latch(ctx context.Context, name string) (left int, err error) {
	lost, err := d.query(ctx, Queries)
	if err != nil {
		return 0, err
	}
	if lost {
		return 0, driver.ErrUnknown
	}
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latches.left[name], nil
}

// WatchLatch implements [driver.Latcher].
func (d *Driver) WatchLatch(name string, changed func()) (stop func(), err error) {
	return d.watch(d.server.latches.watchers, name, changed), nil
}

// changeLatch carries out a change, unless an earlier request with its id was
// carried out.
func (d *Driver) changeLatch(ctx context.Context, id string, change func(*latches) bool) (did bool, err error) {
	lost, err := d.query(ctx, Latches)
	if err != nil {
		return false, err
	}
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	c, repeated := s.latches.changes[id]
	if !repeated || now-c.at >= rememberFor {
		s.latches.sweep(now)
		c = latchChange{change(&s.latches), now}
		s.latches.changes[id] = c
	}
	if lost {
		return false, driver.ErrUnknown
	}
	return c.did, nil
}

// The methods below are called with Server.mu held.

// lower lowers the count of a latch by n and reports whether the latch exists.
func (all *latches) lower(name string, n int) bool {
	left := all.left[name]
	switch {
	case left == 0:
		return false
	case left > n:
		all.left[name] = left - n
	default:
		delete(all.left, name)
		all.watchers.notify(name)
	}
	return true
}

// sweep drops old changes each time the number of changes has doubled.
func (all *latches) sweep(now int64) {
	if len(all.changes) < all.sweepAt {
		return
	}
	for id, c := range all.changes {
		if now-c.at >= rememberFor {
			delete(all.changes, id)
		}
	}
	all.sweepAt = max(minSweep, 2*len(all.changes))
}

// clear removes all latches and forgets all changes.
func (all *latches) clear() {
	clear(all.changes)
	for name, left := range all.left {
		all.lower(name, left)
	}
}
