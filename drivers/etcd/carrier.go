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

// How long a grant may take, and the pause before the next one, while grants
// fail because servers take too long.
const (
	longestGrant = 12 * time.Second // servers give up sooner
	firstPause   = 250 * time.Millisecond
	lastPause    = 8 * time.Second

	runsOut = 10 // seconds: a lease without keys and a TTL up to this is left to run out
)

// grant asks for a lease. If the answer is lost, the lease is revoked in the
// background. While servers take too long, each grant gets more time than the
// one before and is sent after a longer pause: to cut grants off and to send
// them again keeps a server busy with leases that nobody uses.
func (d *Driver) grant(ctx context.Context, c *carrier, seconds int64) error {
	n := d.slow.Load()
	if n > 0 && !d.life.Sleep(ctx, pauseAfter(n)) {
		return withCause(ctx, driver.ErrUnavailable, errNoAnswer)
	}
	bounded, cancel := withBound(ctx, min(requestFor<<n, longestGrant))
	defer cancel()
	sent := d.now()
	err := d.grantNow(bounded, c, seconds)
	if err == nil && d.now()-sent >= int64(c.ttl/2) { // the lease is younger at the server than the request
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

// refreshGrant prolongs a lease whose grant was answered late. No key hangs on
// the lease yet, so the lease may be prolonged after its expiry by the local
// clock.
func (d *Driver) refreshGrant(ctx context.Context, c *carrier) error {
	sent, err := d.prolong(ctx, c)
	if err == nil {
		c.expires.Store(max(c.expires.Load(), sent+int64(c.ttl)))
	}
	if d.now() < c.expires.Load() {
		return nil
	}
	d.ghosts.Add(&ghost{carrier: c, revoke: true})
	return withCause(ctx, driver.ErrUnavailable, errNoAnswer)
}

// grantNow is grant without a pause.
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
		if doubt && seconds > runsOut { // else it has run out by the time that a busy server has revoked it
			d.ghosts.Add(&ghost{carrier: c, revoke: true})
		}
		if doubt && !errors.Is(err, errClusters) {
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
	sent, err := d.prolong(ctx, c)
	if err != nil {
		return err
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

// prolong sends a request to prolong a lease, and returns when.
func (d *Driver) prolong(ctx context.Context, c *carrier) (sent int64, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
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

// revoke ends a lease and all keys on it, for good: a later request to put a key on the lease fails.
func (d *Driver) revoke(ctx context.Context, c *carrier) error {
	err := d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err := d.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(c.id)})
		return answer.GetHeader(), err
	})
	if err == nil || isLeaseGone(err) && d.cluster.trouble() == nil { // errors do not tell the cluster
		c.gone.Store(true)
		return nil
	}
	return err
}
