package dsync

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-dsync/dsync/driver"
)

// checkLeave returns an error if a request with HoldAtLeast cannot be kept.
func (c *Client) checkLeave(r request) error {
	_, leaves := c.driver.(driver.Leaver)
	if m, ok := c.driver.(driver.MayLeave); ok && m.MayLeave() != nil {
		return fmt.Errorf("HoldAtLeast: %w", m.MayLeave())
	}
	switch {
	case r.atLeast < 0:
		return fmt.Errorf("HoldAtLeast(%v) is negative", r.atLeast)
	case !leaves:
		return fmt.Errorf("HoldAtLeast: backend %s keeps no hold without its client: %w", c.info.Name, errors.ErrUnsupported)
	case r.owner != nil:
		return fmt.Errorf("HoldAtLeast through an Owner: %w", errors.ErrUnsupported)
	case r.mode == driver.Read:
		return fmt.Errorf("HoldAtLeast of a Read: %w", errors.ErrUnsupported)
	case !r.fixed || r.ttl < r.atLeast:
		return fmt.Errorf("HoldAtLeast(%v) needs ExpireAfter of as much or more: without its holder the backend keeps the name no longer", r.atLeast)
	}
	return nil
}

// giveUp ends a hold at the backend: at once, or when HoldAtLeast allows it.
func (h *hold) giveUp(ctx context.Context) error {
	c := h.lock.client
	rest := h.keepUntil - c.now()
	if rest <= 0 {
		return h.lease.Release(ctx)
	}
	rest = max(rest, c.info.MinTTL)
	if unit := c.info.TTLUnit; unit > 0 {
		rest = (rest + unit - 1) / unit * unit
	}
	return c.driver.(driver.Leaver).Leave(ctx, h.lease, rest)
}

// departures counts the holds of a client that HoldAtLeast keeps and whose
// release has begun. The driver's Close would end a hold of which the driver
// does not yet know that it is to be left.
type departures struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n becomes 0; nil if nobody waits
}

func (d *departures) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
}

func (d *departures) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n--; d.n == 0 && d.none != nil {
		close(d.none)
	}
}

// wait returns when all releases have returned, or when ctx ends. It is called
// once, after the last begin.
func (d *departures) wait(ctx context.Context) {
	d.mu.Lock()
	if d.n == 0 {
		d.mu.Unlock()
		return
	}
	d.none = make(chan struct{})
	d.mu.Unlock()
	select {
	case <-d.none:
	case <-ctx.Done():
	}
}

// leaveAll ends holds that the driver's Close must not free, some at a time.
func leaveAll(ctx context.Context, holds []*hold) {
	var wg sync.WaitGroup
	free := make(chan struct{}, maxReleases)
	for _, h := range holds {
		free <- struct{}{}
		wg.Go(func() {
			_ = h.giveUp(ctx) // after an error the hold ends by itself
			<-free
		})
	}
	wg.Wait()
}
