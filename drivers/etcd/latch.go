package etcd

import (
	"context"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

var _ driver.Latcher = (*Driver)(nil)

// The keys of latches have a NUL after the prefix, so they are not below any
// name and do not contend for a lock.
const (
	latchPrefix = "\x00latch\x00" // followed by the name; the value is the count as set
	// followed by the name, a NUL and the id of a change; the value is the
	// result of the change
	changePrefix = "\x00change\x00"
)

// latch is the key of a latch. Each countdown puts the key again unchanged. The
// server counts these puts in the version of the key. So concurrent countdowns
// do not conflict, whereas with a count in the value only one of them would
// succeed at a time.
type latch struct {
	key     string
	created int64 // create revision; 0 if there is no latch
	version int64 // 1 at first
	n       int64 // the count as set
}

// left returns the count.
func (l latch) left() int64 {
	if l.created == 0 {
		return 0
	}
	return l.n - (l.version - 1)
}

// latchStep is the effect of a change on a latch, with its conditions in
// addition to the latch being unchanged. Without ops nothing happens.
type latchStep struct {
	conditions []clientv3.Cmp
	ops        []clientv3.Op
}

// SetLatch implements driver.Latcher.
func (d *Driver) SetLatch(ctx context.Context, name, id string, n int) (set bool, err error) {
	return d.changeLatch(ctx, name, id, func(l latch) (s latchStep) {
		if l.created == 0 {
			s.ops = []clientv3.Op{clientv3.OpPut(l.key, strconv.Itoa(n))}
		}
		return s
	})
}

// CountDown implements driver.Latcher.
func (d *Driver) CountDown(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, name, id, func(l latch) (s latchStep) {
		switch left := l.left(); {
		case left > 1:
			// the last one deletes the key
			s.conditions = []clientv3.Cmp{clientv3.Compare(clientv3.Version(l.key), "<", l.n)}
			s.ops = []clientv3.Op{clientv3.OpPut(l.key, "", clientv3.WithIgnoreValue())}
		case left == 1:
			s.ops = []clientv3.Op{clientv3.OpDelete(l.key)}
		}
		return s
	})
	return err
}

// DeleteLatch implements driver.Latcher.
func (d *Driver) DeleteLatch(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, name, id, func(l latch) (s latchStep) {
		if l.created != 0 {
			s.ops = []clientv3.Op{clientv3.OpDelete(l.key)}
		}
		return s
	})
	return err
}

// changeLatch carries out a change, unless the key of its id exists, and
// reports whether there was something to change. The first request assumes that
// there is no latch, and reads the actual state.
func (d *Driver) changeLatch(ctx context.Context, name, id string, change func(latch) latchStep) (did bool, err error) {
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	l, known := latch{key: d.latchKey(name)}, d.options.Prefix+changePrefix+name+"\x00"+id
	for {
		carrier, err := d.changes.carrier(bounded)
		switch {
		case d.life.Open().Err() != nil:
			return false, driver.ErrClosed
		case err != nil:
			return false, err
		}
		s := change(l)
		did := len(s.ops) > 0
		note := clientv3.OpPut(known, strconv.FormatBool(did), clientv3.WithLease(carrier.id))
		same := append(s.conditions, clientv3.Compare(clientv3.CreateRevision(known), "=", 0), clientv3.Compare(clientv3.CreateRevision(l.key), "=", l.created))
		answer, err := d.transact(bounded, same, append(s.ops, note), []clientv3.Op{clientv3.OpGet(known), clientv3.OpGet(l.key)})
		switch {
		case isLeaseGone(err):
			d.changes.forget(carrier)
			continue
		case err != nil:
			return false, d.changeFault(ctx, err)
		case answer.Succeeded:
			return did, nil
		}
		if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			return strconv.ParseBool(string(kvs[0].Value))
		}
		if l, err = readLatch(l.key, answer.Responses[1].GetResponseRange().Kvs); err != nil {
			return false, err
		}
	}
}

// Latch implements driver.Latcher.
func (d *Driver) Latch(ctx context.Context, name string) (left int, err error) {
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	key := d.latchKey(name)
	answer, err := d.get(bounded, key)
	if err != nil {
		return 0, d.queryFault(ctx, err)
	}
	l, err := readLatch(key, answer.Kvs)
	return int(l.left()), err
}

// WatchLatch implements driver.Latcher.
func (d *Driver) WatchLatch(name string, changed func()) (stop func(), err error) {
	return d.watch(keyRange{dir: d.latchKey(name), ends: true}, changed)
}

func (d *Driver) latchKey(name string) string { return d.options.Prefix + latchPrefix + name }

// readLatch reads the key of a latch.
func readLatch(key string, kvs []*mvccpb.KeyValue) (latch, error) {
	if len(kvs) == 0 {
		return latch{key: key}, nil
	}
	n, err := strconv.ParseInt(string(kvs[0].Value), 10, 64)
	l := latch{key: key, created: kvs[0].CreateRevision, version: kvs[0].Version, n: n}
	if err != nil || l.left() < 1 {
		return latch{}, fmt.Errorf("key %q is not a latch: its value is %q, its version %d", key, kvs[0].Value, l.version)
	}
	return l, nil
}
