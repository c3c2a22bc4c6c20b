package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// tick is the interval at which Close checks whether the nodes are done.
const tick = 2 * time.Millisecond

// Close implements driver.Driver.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	waiting := d.life.AwaitCalls(ctx)
	d.releaseAll()
	behind := d.awaitNodes(ctx)
	d.life.End()
	for i, n := range d.nodes {
		n.end()
		d.ears[i].end()
	}
	d.life.Finish(ctx, func() { // this happens soon, because the connections are broken
		for i, n := range d.nodes {
			n.dialer.Wait()
			d.ears[i].dialer.Wait()
		}
	})
	if waiting > 0 || behind > len(d.nodes)-d.quorum {
		return fmt.Errorf("%w: %d calls and the holds on %d nodes were left behind: %w", driver.ErrUnknown, waiting, behind, ctx.Err())
	}
	return nil
}

// releaseAll requests the deletion of all leases' values.
func (d *Driver) releaseAll() {
	for _, l := range d.life.TakeAll() {
		l.Mu.Lock()
		l.undo()
		l.Mu.Unlock()
	}
}

// awaitNodes returns the number of nodes that were not done when ctx ended. It
// does not wait for an unreachable minority: the locks are free without these
// nodes, and their values expire.
func (d *Driver) awaitNodes(ctx context.Context) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, n := range d.nodes {
		d.life.Go(func() { n.ghosts.Finish(ctx) })
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		busy, impaired := 0, 0
		for _, n := range d.nodes {
			switch {
			case n.idle():
			case n.impaired(), n.stalls():
				impaired++
			default:
				busy++
			}
		}
		if busy == 0 && impaired <= len(d.nodes)-d.quorum {
			return impaired
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return busy + impaired
		}
	}
}

// stalls reports whether the node has kept an answer waiting.
func (n *node) stalls() bool {
	at := n.flight.Load()
	return at != 0 && n.driver.life.Now()-at > int64(n.driver.options.NodeTimeout)
}
