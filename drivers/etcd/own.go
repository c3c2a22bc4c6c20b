package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// ownLease carries the key of a hold with an expiry of its own. etcd cannot change the TTL of a lease, so a renewal moves the key to
// another lease.
type ownLease struct {
	expires  atomic.Int64
	renewing chan struct{} // holds an element while a Renew is under way
	modified int64         // the last known revision of the key; belongs to the renewal under way

	mu      sync.Mutex
	seconds int64
	current *carrier
	doubted []*carrier // the key may hang on these, as answers to renewals are missing
	ended   bool
}

func newOwnLease(c *carrier, seconds int64) *ownLease {
	return &ownLease{renewing: make(chan struct{}, 1), seconds: seconds, current: c}
}

// carrier returns the lease that carries the key, as far as is known.
func (o *ownLease) carrier() *carrier {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current
}

// giveBack puts the lease back into the pool. No key hangs on it any more.
func (o *ownLease) giveBack(d *Driver) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.ended = true
	d.spare.put(o.seconds, o.current)
	o.revokeDoubted(d)
}

// discard has all leases revoked that the key may hang on.
func (o *ownLease) discard(d *Driver) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.ended = true
	d.ghosts.Add(&ghost{carrier: o.current, revoke: true})
	o.revokeDoubted(d)
}

// revokeDoubted is called with o.mu held.
func (o *ownLease) revokeDoubted(d *Driver) {
	for _, c := range o.doubted {
		d.ghosts.Add(&ghost{carrier: c, revoke: true})
	}
	o.doubted = nil
}

// Renew implements driver.Lease for holds with an expiry of their own. Each renewal is conditional on the revision that the renewal before
// left, so a renewal that was given up cannot be carried out after a later one.
func (h *hold) Renew(ctx context.Context, ttl time.Duration) error {
	d, o := h.driver, h.own
	if o == nil {
		return fmt.Errorf("the lease is kept alive by the driver: %w", errors.ErrUnsupported)
	}
	seconds, err := d.seconds(ttl)
	if err != nil {
		return err
	}
	d.life.EnterLate() // Close has to know the lease that the key is moved to
	defer d.life.Leave()
	select {
	case o.renewing <- struct{}{}:
		defer func() { <-o.renewing }()
	case <-ctx.Done():
		return withCause(ctx, driver.ErrUnavailable, errors.New("another renewal has not ended"))
	}
	bounded, cancel := withBound(ctx, requestFor)
	defer cancel()
	c := new(carrier)
	if !h.isHeld() {
		return driver.ErrNotHeld
	}
	if err := d.grantNow(bounded, c, seconds); err != nil {
		return err
	}
	if !h.isHeld() {
		d.ghosts.Add(&ghost{carrier: c, revoke: true})
		return driver.ErrNotHeld
	}
	before := o.expires.Load()
	o.expires.Store(min(before, c.expires.Load())) // from here on the key may hang on either lease
	moved, err := h.move(bounded, c)
	switch {
	case err != nil:
		return o.failRenewal(ctx, d, c, before, err)
	case !moved:
		d.ghosts.Add(&ghost{carrier: c, revoke: true})
		h.vanish()
		return driver.ErrNotHeld
	}
	return o.renewed(d, c, seconds)
}

func (h *hold) isHeld() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == held && h.driver.now() < h.own.expires.Load()
}

// move hangs the key on another lease. It returns false if the key is gone, or a seal.
func (h *hold) move(ctx context.Context, c *carrier) (bool, error) {
	o := h.own
	for {
		answer, err := h.driver.transact(ctx,
			append(h.overlookedByNobody(), clientv3.Compare(clientv3.ModRevision(h.key), "=", o.modified)),
			[]clientv3.Op{clientv3.OpPut(h.key, "", clientv3.WithLease(c.id), clientv3.WithIgnoreValue())},
			[]clientv3.Op{clientv3.OpGet(h.key)})
		if err != nil {
			return false, err
		}
		if answer.Succeeded {
			o.modified = answer.Header.Revision
			return true, nil
		}
		kvs := answer.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || kvs[0].CreateRevision != h.revision || h.isSeal(kvs) {
			return false, nil
		}
		if kvs[0].ModRevision == o.modified {
			return false, errOverlooked
		}
		o.modified = kvs[0].ModRevision
	}
}

// failRenewal settles what is left of a renewal whose request to move the key to c failed with err.
func (o *ownLease) failRenewal(ctx context.Context, d *Driver, c *carrier, before int64, err error) error {
	err, doubt := fault(ctx, err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if doubt && !o.ended {
		o.doubted = append(o.doubted, c)
		return err
	}
	d.ghosts.Add(&ghost{carrier: c, revoke: true})
	if !doubt && d.now() < o.expires.Load() {
		o.expires.Store(before)
	}
	return err
}

// renewed makes c the lease that the key hangs on.
func (o *ownLease) renewed(d *Driver, c *carrier, seconds int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		d.ghosts.Add(&ghost{carrier: c, revoke: true})
		return driver.ErrNotHeld
	}
	d.spare.put(o.seconds, o.current)
	o.revokeDoubted(d)
	o.current, o.seconds = c, seconds
	if d.now() >= o.expires.Load() {
		return fmt.Errorf("%w: %w", driver.ErrUnknown, errTooLate)
	}
	o.expires.Store(c.expires.Load())
	return nil
}
