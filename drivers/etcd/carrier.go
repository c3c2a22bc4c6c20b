package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// carrier is a lease of etcd with keys on it: a session's, or one hold's own.
type carrier struct {
	id      clientv3.LeaseID
	ttl     time.Duration // as granted
	expires atomic.Int64  // the lease surely lasts until then: the send time of the last answered request for it + ttl
	lasts   atomic.Int64  // the lease is over after that, even if unanswered requests were carried out
	gone    atomic.Bool   // the server said that the lease is over
}

// grant asks for a lease. If the answer is lost, the lease is revoked in the background.
func (d *Driver) grant(ctx context.Context, c *carrier, seconds int64) error {
	sent := d.now()
	c.id = clientv3.LeaseID(rand.Int64())
	answer, err := d.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds, ID: int64(c.id)})
	if err != nil {
		c.lasts.Store(sent + seconds*int64(time.Second))
		err, doubt := fault(ctx, err)
		if doubt {
			d.ghosts.Add(&ghost{carrier: c, revoke: true})
			err = fmt.Errorf("%w: no lease: %w", driver.ErrUnavailable, unwrapUnknown(err))
		}
		return err
	}
	c.ttl = time.Duration(answer.TTL) * time.Second
	c.expires.Store(sent + int64(c.ttl))
	c.lasts.Store(sent + int64(c.ttl))
	if answer.TTL > seconds && !d.options.RoundUp {
		d.ghosts.Add(&ghost{carrier: c, revoke: true})
		return fmt.Errorf("TTL %ds is below the %ds from which this server counts: %w", seconds, answer.TTL, errors.ErrUnsupported)
	}
	return nil
}

// unwrapUnknown returns what is behind driver.ErrUnknown: the caller need not know that a lease may exist, as no key hangs on it.
func unwrapUnknown(err error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return errors.Join(list.Unwrap()[1:]...)
	}
	return err
}

// keepAlive prolongs a lease. It returns rpctypes.ErrLeaseNotFound if the lease is over, and errTooLate if the answer came after
// c.expires, which then stays as it is.
//
// KeepAlive of the library does not tell when its requests were sent, and counts the lease from the receipt of the answer, which is too
// late; KeepAliveOnce repeats its request without a pause while no server can be reached.
func (d *Driver) keepAlive(ctx context.Context, c *carrier) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := d.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	sent := d.now()
	c.lasts.Store(max(c.lasts.Load(), sent+int64(c.ttl)))
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(c.id)}); err != nil {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	if answer.TTL <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	for {
		old := c.expires.Load()
		if d.now() >= old {
			return errTooLate
		}
		if c.expires.CompareAndSwap(old, max(old, sent+int64(c.ttl))) {
			return nil
		}
	}
}

var errTooLate = errors.New("the answer came after the end of the lease")

// revoke ends a lease and all keys on it, for good: a later request to put a key on the lease fails.
func (d *Driver) revoke(ctx context.Context, c *carrier) error {
	_, err := d.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(c.id)})
	if err == nil || isLeaseGone(err) {
		c.gone.Store(true)
		return nil
	}
	return err
}
