package dsync

import (
	"context"
	"sync"
	"time"
)

// leaseContext is the context of Lease.Context. It knows its lease, and the leases under whose contexts it was made.
type leaseContext struct {
	context.Context
	lease  *Lease
	handle *Lease        // for LeaseFrom to return in place of lease; nil without Options.Debug
	outer  *leaseContext // of the lease under whose context this one was made; may be nil
	cancel context.CancelCauseFunc
	next   *leaseContext // in lease.contexts
}

type leaseContextKey struct{}

func (c *leaseContext) Value(key any) any {
	if key == (leaseContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// releaseContext bounds a release: with the values of its parent, but without the cancellation.
type releaseContext struct {
	parent context.Context
	limit  *limit
}

func (c *releaseContext) Deadline() (time.Time, bool) { return c.limit.at, true }
func (c *releaseContext) Value(key any) any           { return c.parent.Value(key) }
func (c *releaseContext) Done() <-chan struct{}       { return c.limit.done() }

func (c *releaseContext) Err() error {
	if !time.Now().Before(c.limit.at) {
		c.limit.end()
		return context.DeadlineExceeded
	}
	return nil
}

// AfterFunc lets package context derive from c without a goroutine.
func (c *releaseContext) AfterFunc(f func()) (stop func() bool) {
	return time.AfterFunc(time.Until(c.limit.at), f).Stop
}

// leaving returns the context of Close: the caller's without its cancellation, and with a bound where it has none to come.
func leaving(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if now := time.Now(); !ok || !end.After(now) {
		end = now.Add(maxReleaseWait)
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}

// limit is when releases are over. Its timer is made at the first call of done: a driver that pipelines its requests may never call done.
// Releases which begin at about the same time share a limit: a timer of its own would be the larger part of what a release costs in the
// process.
type limit struct {
	at     time.Time
	shared bool

	mu    sync.Mutex
	ended chan struct{}
	timer *time.Timer
	over  bool
}

// limitIn returns the limit of a release that may take as long as wait, or up to an eighth less.
func (c *Client) limitIn(wait time.Duration) *limit {
	at := time.Now().Add(wait)
	if wait != maxReleaseWait {
		return &limit{at: at}
	}
	last := c.limit.Load()
	if last == nil || at.Sub(last.at) > wait/8 {
		last = &limit{at: at, shared: true}
		c.limit.Store(last)
	}
	return last
}

// done returns a channel that is closed when the time is over.
func (l *limit) done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = make(chan struct{})
		if l.over {
			close(l.ended)
		} else {
			l.timer = time.AfterFunc(time.Until(l.at), l.end)
		}
	}
	return l.ended
}

// drop frees the timer, unless other releases share it.
func (l *limit) drop() {
	if !l.shared {
		l.end()
	}
}

func (l *limit) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	if l.ended != nil {
		l.timer.Stop()
		close(l.ended)
	}
}
