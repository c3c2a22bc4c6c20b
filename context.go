package dsync

import (
	"context"
	"sync"
	"time"
)

// leaseContext is the context of Lease.Context. It knows its lease, and by that the leases that the work under it holds.
type leaseContext struct {
	context.Context
	lease  *Lease
	outer  *leaseContext // of the lease under whose context this one was made; may be nil
	cancel context.CancelCauseFunc
}

type leaseContextKey struct{}

func (c *leaseContext) Value(key any) any {
	if key == (leaseContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// heldUnder reports whether ctx belongs to a live lease of name that was taken through c by another owner than owner.
func heldUnder(ctx context.Context, c *Client, name string, owner *Owner) bool {
	lc, _ := ctx.Value(leaseContextKey{}).(*leaseContext)
	for ; lc != nil; lc = lc.outer {
		h := lc.lease.hold
		if k := h.lock; k.client == c && k.name == name {
			k.mu.Lock()
			held := lc.lease.check(c.now()) == nil && (owner == nil || h.ownedBy != owner)
			k.mu.Unlock()
			if held {
				return true
			}
		}
	}
	return false
}

// releaseContext bounds a release: it carries the values of its parent, but not its cancellation. Its timer is made only when
// somebody asks for Done, which a driver that pipelines its requests may never do.
type releaseContext struct {
	parent   context.Context
	deadline time.Time

	mu    sync.Mutex
	done  chan struct{} // closed by expire
	timer *time.Timer
	over  bool
}

func (c *releaseContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *releaseContext) Value(key any) any           { return c.parent.Value(key) }

func (c *releaseContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.over {
			close(c.done)
		} else {
			c.timer = time.AfterFunc(time.Until(c.deadline), c.expire)
		}
	}
	return c.done
}

func (c *releaseContext) Err() error {
	if !time.Now().Before(c.deadline) {
		c.expire()
		return context.DeadlineExceeded
	}
	return nil
}

// AfterFunc lets package context derive from c without a goroutine.
func (c *releaseContext) AfterFunc(f func()) (stop func() bool) {
	return time.AfterFunc(time.Until(c.deadline), f).Stop
}

func (c *releaseContext) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over = true
		if c.done != nil {
			close(c.done)
		}
	}
}

// stop frees the timer when the release has returned.
func (c *releaseContext) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}
