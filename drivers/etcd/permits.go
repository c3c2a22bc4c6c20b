package etcd

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

var _ driver.Limiter = (*Driver)(nil)

// permitsIn adds up the permits of kvs. It also returns the limit that applies
// to them, or 0 if there is none.
func permitsIn(dir string, kvs []*mvccpb.KeyValue, r record) (used, limit int) {
	limit = r.limit
	for oldest := int64(math.MaxInt64); len(kvs) > 0; kvs = kvs[1:] {
		if !isContender(dir, kvs[0]) {
			continue
		}
		n, named := permitsOf(kvs[0].Key)
		used += n
		if r.limit == 0 && named > 0 && kvs[0].CreateRevision < oldest {
			limit, oldest = named, kvs[0].CreateRevision
		}
	}
	return used, limit
}

// missing returns the number of permits that must be released before the key
// can be granted its own. kvs are the keys before it. In other modes missing
// returns 0. The error is driver.ErrLimit, or errAgain if the key must contain
// a different limit.
func (h *hold) missing(dir string, kvs []*mvccpb.KeyValue, r record) (int, error) {
	if !h.rule().adds {
		return 0, nil
	}
	used, limit := permitsIn(dir, kvs, r)
	if limit == 0 {
		limit = h.limit
	}
	switch asked := h.request.Limit; {
	case limit == 0, asked > 0 && asked != limit, h.request.Permits > limit:
		return 0, driver.ErrLimit
	case r.limit == 0 && h.limit != limit:
		// otherwise the limit would be forgotten while the hold lasts
		h.limit = limit
		return 0, errAgain
	}
	return used + h.request.Permits - limit, nil
}

// atMost limits the number of keys in an answer. A request for permits counts
// all keys.
func (h *hold) atMost(keys int64) clientv3.OpOption {
	if h.rule().adds {
		keys = 0
	}
	return clientv3.WithLimit(keys)
}

// SetLimit implements driver.Limiter. It makes all waiters for permits of the
// name read the queue again.
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if limit < 1 {
		return fmt.Errorf("limit %d is not 1 or more", limit)
	}
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	dir := d.dir(name)
	answer, err := d.transact(bounded, []clientv3.Cmp{notSealed(dir)}, []clientv3.Op{clientv3.OpPut(limitKey(dir), strconv.Itoa(limit))}, nil)
	switch {
	case err != nil:
		return d.changeFault(ctx, err)
	case !answer.Succeeded:
		return driver.ErrSealed
	}
	return nil
}
