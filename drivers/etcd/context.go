package etcd

import (
	"context"
	"time"
)

// request returns a context for one request, which ends with ctx, at the bound, or when Close begins.
func (d *Driver) request(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := withBound(ctx, bound)
	stop := context.AfterFunc(d.life.Open(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// background returns a context for one request that no caller waits for, or that goes on when its caller leaves.
func (d *Driver) background(bound time.Duration) (context.Context, context.CancelFunc) {
	return withBound(d.life.Context(), bound)
}

// withBound returns a context that ends by bound at the latest, but has no Deadline: gRPC sends a deadline with the request, and the server
// sets a timer for each, which costs a free lock 6 % of its time. A request whose context ends is canceled at the server.
func withBound(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	return undated{ctx}, cancel
}

// undated hides the deadline of a context.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
