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

// awaitLeaves waits until no Leave is queued or under way, or until ctx ends. No hold is live any more, so no further Leave begins.
func (c *Client) awaitLeaves(ctx context.Context) {
	done := make(chan struct{})
	go func() { // ends with the last Leave, which takes no longer than maxReleaseWait
		c.leaving.Wait()
		close(done)
	}()
	select {
	case <-done:
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
