package etcd

import (
	"context"
	"sync"
	"time"
)

// bound is how long requests may take. Those that begin at about the same time share a context which ends then: with one of its own each request
// would make a timer, and what it takes to end with Close.
//
// None of the contexts has a Deadline: gRPC sends a deadline with the request, and the server sets a timer for each, which costs a free lock 6 % of
// its time. A request whose context ends is canceled at the server.
type bound struct {
	life context.Context // of the requests
	time time.Duration   // that a request has, or up to an eighth less

	mu     sync.Mutex
	shared context.Context // nil at first
	began  time.Time       // when shared was made
}

// now returns the context of a request that begins.
func (b *bound) now() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.shared == nil || now.Sub(b.began) > b.time/8 {
		ctx, cancel := context.WithCancel(b.life)
		time.AfterFunc(b.time, cancel)
		b.shared, b.began = ctx, now
	}
	return b.shared
}

// with returns a context for one request, which ends at the bound, and has the values of ctx.
func (b *bound) with(ctx context.Context) context.Context { return valued{b.now(), ctx} }

// under is with, and the context ends with ctx, too.
func (b *bound) under(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return b.with(ctx), func() {}
	}
	own, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.now(), cancel)
	return undated{own}, func() {
		stop()
		cancel()
	}
}

// ending is under for the end of a hold, which goes on for the rest of the bound where ctx is canceled. Package dsync ends holds under contexts
// that are not canceled, but have a deadline.
func (b *bound) ending(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < b.time || ctx.Err() != nil {
		return b.under(ctx)
	}
	return b.with(ctx), func() {}
}

// valued is a context with the values of another one.
type valued struct {
	context.Context
	values context.Context
}

// Value implements context.Context. The values of the first context are those by which package context knows what ends with it.
func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}

// background returns a context for one request that no caller waits for, or that goes on when its caller leaves.
func (d *Driver) background(bound time.Duration) (context.Context, context.CancelFunc) {
	return withBound(d.life.Context(), bound)
}

// withBound returns a context that ends with ctx, by bound at the latest, and has no Deadline.
func withBound(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	return undated{ctx}, cancel
}

// undated hides the deadline of a context.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
