package etcd

import (
	"context"
	"time"
)

// request returns a context for one request, which ends when Close begins too.
func (d *Driver) request(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := withBound(ctx, bound)
	stop := context.AfterFunc(d.life.Open(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// background returns a context for one request that no caller waits for, or whose caller cannot take it back.
func (d *Driver) background(bound time.Duration) (context.Context, context.CancelFunc) {
	return withBound(d.life.Context(), bound)
}

// withBound returns a context that ends by bound at the latest, and does not tell so: a deadline that gRPC knows of goes with the request,
// and the server sets a timer of its own for each, which costs a free lock 6 % of its time. A request that ends here is canceled there.
func withBound(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	return undated{ctx}, cancel
}

// undated is a context that does not tell when it ends.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
