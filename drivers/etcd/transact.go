package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// maxElsewhere is how often a request that a learner has refused is sent again
// at once. The library takes the servers in turn, but requests of other callers
// come in between.
const maxElsewhere = 16

// request sends a request. A learner refuses it without carrying it out, and
// another server may not. An answer of a server of another cluster is an error.
func (d *Driver) request(ctx context.Context, send func() (*pb.ResponseHeader, error)) error {
	d.lines.begin()
	defer d.lines.end()
	for tries := 0; ; tries++ {
		header, err := send()
		if err == nil {
			return d.cluster.check(header)
		}
		d.lines.failed(err)
		if !isLearner(err) || tries == maxElsewhere || ctx.Err() != nil || len(d.client.Endpoints()) < 2 {
			return err
		}
	}
}

// isLearner reports whether a learner refused a request. The library has no
// name for the error that all its versions share.
func isLearner(err error) bool {
	return err != nil && strings.Contains(err.Error(), "rpc not supported for learner")
}

// transact carries out a transaction by a request of its own. An answer of another shape is errAnswer: what listens at the address need not be etcd.
func (d *Driver) transact(ctx context.Context, compare []clientv3.Cmp, then, otherwise []clientv3.Op) (answer *clientv3.TxnResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err = d.client.Txn(ctx).If(compare...).Then(then...).Else(otherwise...).Commit()
		if err != nil {
			return nil, err
		}
		return answer.Header, nil
	})
	if err == nil && !answers(answer, then, otherwise) {
		err = errAnswer
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// get reads keys by a request of its own.
func (d *Driver) get(ctx context.Context, key string, options ...clientv3.OpOption) (answer *clientv3.GetResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err = d.client.Get(ctx, key, options...)
		if err != nil {
			return nil, err
		}
		return answer.Header, nil
	})
	return answer, err
}

// delete deletes a key by a request of its own.
func (d *Driver) delete(ctx context.Context, key string) (answer *pb.DeleteRangeResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		did, err := d.client.Do(ctx, opDelete(key))
		if err != nil {
			return nil, err
		}
		answer = (*pb.DeleteRangeResponse)(did.Del())
		return answer.Header, nil
	})
	return answer, err
}

// timeToLive asks for the rest of a lease.
func (d *Driver) timeToLive(ctx context.Context, id clientv3.LeaseID, options ...clientv3.LeaseOption) (answer *clientv3.LeaseTimeToLiveResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err = d.client.TimeToLive(ctx, id, options...)
		if err != nil {
			return nil, err
		}
		return answer.ResponseHeader, nil
	})
	return answer, err
}

// answers reports whether an answer has the shape of one to a transaction.
func answers(answer *clientv3.TxnResponse, then, otherwise []clientv3.Op) bool {
	asked := then
	if !answer.Succeeded {
		asked = otherwise
	}
	if answer.Header == nil || len(answer.Responses) != len(asked) {
		return false
	}
	for i, a := range asked {
		r := answer.Responses[i]
		if a.IsGet() && r.GetResponseRange() == nil || a.IsPut() && r.GetResponsePut() == nil || a.IsDelete() && r.GetResponseDeleteRange() == nil ||
			a.IsTxn() && r.GetResponseTxn() == nil {
			return false
		}
	}
	return true
}

// forgetAfter is how long a cluster that does not answer counts as one of the
// client's. A cluster that was restored from a backup has another id.
const forgetAfter = 15 * time.Second

// cluster tells whether all answers come from one cluster. Two clusters behind
// one client would each grant a lock.
type cluster struct {
	driver *Driver
	id     atomic.Uint64 // 0 at first
	heard  atomic.Int64  // when it last answered

	until atomic.Int64 // when the client may count on one cluster again

	mu    sync.Mutex
	other uint64 // cluster that has answered too
}

// errClusters matches the error about answers of two clusters.
var errClusters = errors.New("the servers belong to different clusters")

// check takes note of the cluster that has sent an answer.
func (c *cluster) check(header *pb.ResponseHeader) error {
	id, now := header.GetClusterId(), c.driver.now()
	known := c.id.Load()
	switch {
	case id == 0: // what answers is no etcd, or a part of one
		return nil
	case id == known, known == 0 && c.id.CompareAndSwap(0, id):
		c.heard.Store(now)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.other = id
	err := c.error()
	if now-c.heard.Load() > int64(forgetAfter) {
		c.id.Store(id)
		c.heard.Store(now)
		c.other = known
	} else {
		c.until.Store(now + int64(forgetAfter))
	}
	c.driver.life.Go(func() { c.driver.endAll(fmt.Errorf("%w: %w", driver.ErrSessionEnded, err)) }) // leases and revisions are those of the other cluster
	return err
}

// trouble returns the error about two clusters if both have answered of late.
func (c *cluster) trouble() error {
	if until := c.until.Load(); until == 0 || c.driver.now() >= until {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.error()
}

// error is called with mu held.
func (c *cluster) error() error { return differ(c.id.Load(), c.other) }

func differ(a, b uint64) error {
	return fmt.Errorf("%w: one has the id %x, another %x", errClusters, a, b)
}

// endAll ends all holds by cause.
func (d *Driver) endAll(cause error) {
	d.mu.Lock()
	sessions, fixed := d.granted(), d.fixed.Take()
	d.mu.Unlock()
	for _, s := range sessions {
		s.die(cause)
	}
	for _, h := range fixed {
		h.leaveToCleaner(true)
		h.lose(cause)
	}
}

// checkHosts returns an error if servers that answer belong to different
// clusters. Servers that do not answer in time are left out.
func (d *Driver) checkHosts(ctx context.Context) error {
	hosts := d.client.Endpoints()
	if len(hosts) < 2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptFor)
	defer cancel()
	ids := make([]uint64, len(hosts))
	var all sync.WaitGroup
	for i, host := range hosts {
		all.Go(func() { // ends with ctx
			if answer, err := d.client.Status(ctx, host); err == nil {
				ids[i] = answer.Header.GetClusterId()
			}
		})
	}
	all.Wait()
	first := -1
	for i, id := range ids {
		switch {
		case id == 0:
		case first < 0:
			first = i
		case id != ids[first]:
			return fmt.Errorf("%w (%s and %s)", differ(ids[first], id), hosts[first], hosts[i])
		}
	}
	return nil
}
