package etcd

import (
	"context"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// maxSpare is how many leases of each TTL are kept for the next lock.
const maxSpare = 64

// pool has leases without keys, for locks with an expiry of their own. To take a lease and prolong it together with the request for the
// lock costs one round trip less than a grant, and writes nothing to the log. A lease that nobody takes ends by itself.
type pool struct {
	driver *Driver

	mu     sync.Mutex
	closed bool
	spare  map[int64][]*carrier // by seconds, the freshest last
}

func newPool(d *Driver) *pool { return &pool{driver: d, spare: make(map[int64][]*carrier)} }

// take returns a lease. A lease that is not fresh was granted earlier, and has to be prolonged.
func (p *pool) take(ctx context.Context, seconds int64) (c *carrier, fresh bool, err error) {
	if c := p.pop(seconds); c != nil {
		return c, false, nil
	}
	d, lease := p.driver, new(carrier)
	var failed error // belongs to the goroutine until granted
	granted, left := make(chan struct{}), make(chan struct{})
	grant := func() { // ends with the grant, or when Close begins
		failed = d.grant(d.life.Open(), lease, seconds)
		select {
		case granted <- struct{}{}:
		case <-left:
			if failed == nil { // too late for this caller, and not for the next
				p.put(seconds, lease)
			}
		}
	}
	if !d.life.Go(grant) {
		return nil, false, driver.ErrClosed
	}
	if err := d.await(ctx, granted); err != nil {
		close(left)
		return nil, false, err
	}
	switch {
	case failed == nil:
		return lease, true, nil
	case d.life.Open().Err() != nil:
		return nil, false, driver.ErrClosed
	}
	return nil, false, failed
}

func (p *pool) pop(seconds int64) *carrier {
	p.mu.Lock()
	defer p.mu.Unlock()
	for list := p.spare[seconds]; len(list) > 0; {
		c := list[len(list)-1]
		list[len(list)-1] = nil
		list = list[:len(list)-1]
		p.spare[seconds] = list
		if left := c.expires.Load() - p.driver.now(); left > int64(c.ttl/4) {
			return c
		}
		p.driver.ghosts.Add(&ghost{carrier: c, revoke: true})
	}
	delete(p.spare, seconds)
	return nil
}

// put takes a lease back. No key hangs on it, or will.
func (p *pool) put(seconds int64, c *carrier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := c.expires.Load() - p.driver.now()
	if list := p.spare[seconds]; !p.closed && len(list) < maxSpare && left > int64(c.ttl/4) {
		p.spare[seconds] = append(list, c)
		return
	}
	p.driver.ghosts.Add(&ghost{carrier: c, revoke: true})
}

// close has all leases revoked.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.spare {
		for _, c := range list {
			p.driver.ghosts.Add(&ghost{carrier: c, revoke: true})
		}
	}
	clear(p.spare)
}

// refresh prolongs a lease in a goroutine of its own; the channel gives the outcome.
func (d *Driver) refresh(ctx context.Context, c *carrier) <-chan error {
	outcome := make(chan error, 1)
	run := func() { // ends with ctx at the latest
		ctx, cancel := withBound(ctx, min(requestFor, max(time.Duration(c.expires.Load()-d.now()), 0)))
		defer cancel()
		outcome <- d.keepAlive(ctx, c)
	}
	if !d.life.Go(run) {
		outcome <- errNoAnswer
	}
	return outcome
}
