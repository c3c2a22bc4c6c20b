package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	sessions "github.com/go-dsync/dsync/internal/session"
)

// carrier is an etcd lease with keys attached to it. It belongs to a session or
// to a single hold.
type carrier struct {
	id  clientv3.LeaseID
	ttl time.Duration // as granted
	// the time until which the lease is guaranteed to last: the send time of
	// the last answered request for it + ttl
	end   *sessions.End
	lasts atomic.Int64 // by then the lease has ended, even if unanswered requests were carried out
	gone  atomic.Bool  // the server reported that the lease has ended
}

func newCarrier() *carrier { return &carrier{end: new(sessions.End)} }

// The bounds of the time that a grant may take and of the pause before the next
// one, while grants fail because servers take too long.
const (
	longestGrant = 12 * time.Second // servers give up sooner
	firstPause   = 250 * time.Millisecond
	lastPause    = 8 * time.Second

	runsOut = 10 // seconds: a lease without keys and a TTL up to this is left to run out
)

// grant requests a lease. If the answer is lost, the lease is revoked in the
// background. While servers take too long, each grant gets more time than the
// previous grant and is sent after a longer pause. Canceling grants and sending
// them again would keep a server busy with unused leases.
func (d *Driver) grant(ctx context.Context, c *carrier, seconds int64) error {
	n := d.slow.Load()
	if n > 0 && !d.life.Sleep(ctx, pauseAfter(n)) {
		return lifecycle.WithCause(ctx, driver.ErrUnavailable, errNoAnswer)
	}
	bounded, cancel := withBound(ctx, min(requestFor<<n, longestGrant))
	defer cancel()
	sent := d.now()
	err := d.grantNow(bounded, c, seconds)
	if err == nil && d.now()-sent >= int64(c.ttl/2) {
		// the lease on the server is younger than the request
		bounded, cancel := withBound(ctx, requestFor)
		defer cancel()
		err = d.refreshGrant(bounded, c)
	}
	switch {
	case err != nil && (bounded.Err() != nil && ctx.Err() == nil || errors.Is(err, errNoAnswer)):
		d.slow.CompareAndSwap(n, min(n+1, 10))
	case err == nil && d.now()-sent < int64(requestFor/2):
		d.slow.Store(0)
	}
	return err
}

// pauseAfter returns the pause before a grant after n failures in a row.
func pauseAfter(n int32) time.Duration {
	longest := min(firstPause<<(n-1), lastPause)
	return longest/2 + rand.N(longest/2)
}

// refreshGrant extends a lease whose grant was answered late. No key is
// attached to the lease yet, so it may be extended even if the local clock says
// that it has expired.
func (d *Driver) refreshGrant(ctx context.Context, c *carrier) error {
	sent, err := d.prolong(ctx, c)
	if err == nil {
		c.end.Begin(max(c.end.At(), sent+int64(c.ttl)))
	}
	if d.now() < c.end.At() {
		return nil
	}
	d.ghosts.Add(&ghost{carrier: c})
	return lifecycle.WithCause(ctx, driver.ErrUnavailable, errNoAnswer)
}

// grantNow is like grant, but without a pause.
func (d *Driver) grantNow(ctx context.Context, c *carrier, seconds int64) error {
	sent := d.now()
	var answer *pb.LeaseGrantResponse
	err := d.request(ctx, func() (header *pb.ResponseHeader, err error) {
		c.id = clientv3.LeaseID(rand.Int64())
		answer, err = d.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds, ID: int64(c.id)})
		return answer.GetHeader(), err
	})
	if err != nil {
		c.lasts.Store(sent + seconds*int64(time.Second))
		err, doubt := fault(ctx, err)
		if doubt && seconds > runsOut {
			// otherwise the lease would run out before a busy server would
			// revoke it
			d.ghosts.Add(&ghost{carrier: c})
		}
		if doubt && !errors.Is(err, errClusters) {
			err = fmt.Errorf("%w: no lease: %w", driver.ErrUnavailable, unwrapUnknown(err))
		}
		return err
	}
	c.ttl = time.Duration(answer.TTL) * time.Second
	c.end.Begin(sent + int64(c.ttl))
	c.lasts.Store(sent + int64(c.ttl))
	if answer.TTL > seconds && !d.options.RoundUp {
		d.ghosts.Add(&ghost{carrier: c})
		return fmt.Errorf("TTL %ds is below this server's minimum of %ds: %w", seconds, answer.TTL, errors.ErrUnsupported)
	}
	return nil
}

// unwrapUnknown returns the error inside driver.ErrUnknown: the caller need not
// know that a lease may exist, because no key is attached to it.
func unwrapUnknown(err error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return errors.Join(list.Unwrap()[1:]...)
	}
	return err
}

// keepAlive extends a lease. It returns rpctypes.ErrLeaseNotFound if the lease
// has ended, and errTooLate if the answer came after c.end.
//
// The library's KeepAlive does not report when its requests were sent. It also
// counts the lease from the receipt of the answer, which is too late.
// KeepAliveOnce repeats its request without a pause while no server can be
// reached.
func (d *Driver) keepAlive(ctx context.Context, c *carrier) error {
	sent, err := d.prolong(ctx, c)
	if err == nil && !c.end.Extend(d.now(), sent+int64(c.ttl)) {
		return errTooLate
	}
	return err
}

// prolong sends a request to extend a lease and returns the send time.
func (d *Driver) prolong(ctx context.Context, c *carrier) (sent int64, err error) {
	ctx, cancel := context.WithCancel(ctx) // canceling ends the stream
	defer cancel()
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		stream, err := d.leases.LeaseKeepAlive(ctx)
		if err != nil {
			return nil, err
		}
		sent = d.now()
		c.lasts.Store(max(c.lasts.Load(), sent+int64(c.ttl)))
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(c.id)}); err != nil {
			return nil, err
		}
		answer, err := stream.Recv()
		if err == nil && answer.TTL <= 0 && d.cluster.check(answer.Header) == nil {
			err = rpctypes.ErrLeaseNotFound
		}
		return answer.GetHeader(), err
	})
	return sent, err
}

var errTooLate = errors.New("the answer came after the end of the lease")

// revoke ends a lease and all keys on it permanently: a later request to put a
// key on the lease fails.
func (d *Driver) revoke(ctx context.Context, c *carrier) error {
	err := d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err := d.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(c.id)})
		return answer.GetHeader(), err
	})
	if err == nil || isLeaseGone(err) && d.cluster.trouble() == nil {
		// errors do not identify the cluster, so trust only answers
		c.gone.Store(true)
		return nil
	}
	return err
}

// ownLease carries the key of a hold with its own expiry. etcd cannot change
// the TTL of a lease, so a renewal moves the key to another lease.
type ownLease struct {
	// the lease was just granted; a lease from the pool must be extended
	// together with the next request
	fresh    bool
	expires  atomic.Int64
	renewing chan struct{} // holds an element while a Renew is under way
	modified int64         // the last known revision of the key; belongs to the renewal under way

	mu      sync.Mutex
	seconds int64
	current *carrier
	doubted []*carrier // the key may be attached to these, because renewals were not answered
	ended   bool
}

// carrier returns the lease that carries the key, as far as is known.
func (o *ownLease) carrier() *carrier {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current
}

// giveBack puts the lease back into the pool. No key is attached to it.
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

// discard revokes all leases to which the key may be attached.
func (o *ownLease) discard(d *Driver) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.ended = true
	d.ghosts.Add(&ghost{carrier: o.current})
	o.revokeDoubted(d)
}

// revokeDoubted is called with o.mu held.
func (o *ownLease) revokeDoubted(d *Driver) {
	for _, c := range o.doubted {
		d.ghosts.Add(&ghost{carrier: c})
	}
	o.doubted = nil
}

// Renew implements driver.Lease for holds with their own expiry. Each renewal
// is conditional on the revision left by the previous renewal, so a renewal
// that was given up cannot be carried out after a later one.
func (h *hold) Renew(ctx context.Context, ttl time.Duration) error {
	d, o := h.driver, h.own
	if o == nil {
		return fmt.Errorf("the lease is kept alive by the driver: %w", errors.ErrUnsupported)
	}
	seconds, err := d.seconds(ttl)
	if err != nil {
		return err
	}
	d.life.EnterLate() // Close must know the lease to which the key is moved
	defer d.life.Leave()
	select {
	case o.renewing <- struct{}{}:
		defer func() { <-o.renewing }()
	case <-ctx.Done():
		return lifecycle.WithCause(ctx, driver.ErrUnavailable, errors.New("another renewal has not ended"))
	}
	bounded, cancel := withBound(ctx, requestFor)
	defer cancel()
	c := newCarrier()
	if h.isOver() {
		return driver.ErrNotHeld
	}
	if err := d.grantNow(bounded, c, seconds); err != nil {
		return err
	}
	if h.isOver() {
		d.ghosts.Add(&ghost{carrier: c})
		return driver.ErrNotHeld
	}
	before := o.expires.Load()
	o.expires.Store(min(before, c.end.At())) // from now on the key may be attached to either lease
	moved, err := h.move(bounded, c)
	switch {
	case err != nil:
		return o.failRenewal(ctx, d, c, before, err)
	case !moved:
		d.ghosts.Add(&ghost{carrier: c})
		h.vanish()
		return driver.ErrNotHeld
	}
	return o.renewed(d, c, seconds)
}

// move attaches the key to another lease. It returns false if the key is gone,
// or a seal.
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
		if len(kvs) == 0 || !h.isOf(kvs[0]) {
			return false, nil
		}
		if kvs[0].ModRevision == o.modified {
			return false, errOverlooked
		}
		o.modified = kvs[0].ModRevision
	}
}

// failRenewal cleans up after a renewal whose request to move the key to c
// failed with err.
func (o *ownLease) failRenewal(ctx context.Context, d *Driver, c *carrier, before int64, err error) error {
	err, doubt := fault(ctx, err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if doubt && !o.ended {
		o.doubted = append(o.doubted, c)
		return err
	}
	d.ghosts.Add(&ghost{carrier: c})
	if !doubt && d.now() < o.expires.Load() {
		o.expires.Store(before)
	}
	return err
}

// renewed makes c the lease to which the key is attached.
func (o *ownLease) renewed(d *Driver, c *carrier, seconds int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		d.ghosts.Add(&ghost{carrier: c})
		return driver.ErrNotHeld
	}
	d.spare.put(o.seconds, o.current)
	o.revokeDoubted(d)
	o.current, o.seconds = c, seconds
	if d.now() >= o.expires.Load() {
		return fmt.Errorf("%w: %w", driver.ErrUnknown, errTooLate)
	}
	o.expires.Store(c.end.At())
	return nil
}

// maxSpare is the number of leases of each TTL that are kept for the next lock.
const maxSpare = 64

// pool keeps leases without keys for locks with their own expiry. The lease is
// extended together with the request for the lock. So the lock is acquired in
// one round trip, and only its key is written to the server's log. A refused
// attempt writes nothing. An unused lease runs out.
type pool struct {
	driver *Driver

	mu     sync.Mutex
	closed bool
	spare  map[int64][]*carrier // by seconds, the freshest last
}

func newPool(d *Driver) *pool { return &pool{driver: d, spare: make(map[int64][]*carrier)} }

// take returns a lease for a hold. When ctx ends before a lease is granted,
// take fails with the error of ctx.
func (p *pool) take(ctx context.Context, seconds int64) (*ownLease, error) {
	own := &ownLease{renewing: make(chan struct{}, 1), seconds: seconds, current: p.pop(seconds)}
	if own.current != nil {
		return own, nil
	}
	d, lease := p.driver, newCarrier()
	var failed error // belongs to the goroutine until it sends on granted
	granted, left := make(chan struct{}), make(chan struct{})
	grant := func() { // ends when the lock is granted or Close begins
		failed = d.grant(d.life.Open(), lease, seconds)
		select {
		case granted <- struct{}{}:
		case <-left:
			if failed == nil { // too late for this caller, but not for the next
				p.put(seconds, lease)
			}
		}
	}
	if !d.life.Go(grant) {
		return nil, driver.ErrClosed
	}
	select {
	case <-granted:
	case <-ctx.Done():
		close(left)
		return nil, ctx.Err()
	}
	own.current, own.fresh = lease, true
	return own, failed
}

func (p *pool) pop(seconds int64) *carrier {
	p.mu.Lock()
	defer p.mu.Unlock()
	for list := p.spare[seconds]; len(list) > 0; {
		c := list[len(list)-1]
		list[len(list)-1] = nil
		list = list[:len(list)-1]
		p.spare[seconds] = list
		if left := c.end.At() - p.driver.now(); left > int64(c.ttl/4) {
			return c
		}
		p.driver.ghosts.Add(&ghost{carrier: c})
	}
	delete(p.spare, seconds)
	return nil
}

// put takes a lease back. No key is or will be attached to it.
func (p *pool) put(seconds int64, c *carrier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := c.end.At() - p.driver.now()
	if list := p.spare[seconds]; !p.closed && len(list) < maxSpare && left > int64(c.ttl/4) {
		p.spare[seconds] = append(list, c)
		return
	}
	p.driver.ghosts.Add(&ghost{carrier: c})
}

// close revokes all leases.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.spare {
		for _, c := range list {
			p.driver.ghosts.Add(&ghost{carrier: c})
		}
	}
	clear(p.spare)
}

// refresh extends a lease in its own goroutine, within a time limit. The
// returned channel receives the outcome.
func (d *Driver) refresh(ctx context.Context, c *carrier, bound time.Duration) <-chan error {
	outcome := make(chan error, 1)
	run := func() { // ends when ctx or the lease ends at the latest
		ctx, cancel := withBound(ctx, min(bound, time.Duration(c.end.At()-d.now())))
		defer cancel()
		outcome <- d.keepAlive(ctx, c)
	}
	if !d.life.Go(run) {
		outcome <- errNoAnswer
	}
	return outcome
}
