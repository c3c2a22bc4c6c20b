package etcd

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

var (
	_ move.Unsealer = (*Driver)(nil)
	_ move.Unmarker = (*Driver)(nil)
)

// Loosen implements move.Unsealer. The id is a key beside the record of the seal. There is nothing to raise: the number that is added to
// revisions would raise the tokens of dsync alone, while the tokens of package concurrency and of etcdctl are revisions. So Loosen refuses
// a floor that revisions have not passed.
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if floor > 0 && d.options.NoTokens {
		return fmt.Errorf("there are no tokens to raise: %w", errors.ErrUnsupported)
	}
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	dir := d.dir(name)
	if floor > 0 {
		answer, err := d.get(bounded, sealKey(dir), clientv3.WithCountOnly())
		if err != nil {
			return d.queryFault(ctx, err)
		}
		if answer.Count == 0 {
			return driver.ErrNotHeld
		}
		if passed := answer.Header.GetRevision(); floor > uint64(passed) {
			return fmt.Errorf("tokens are revisions, which are at %d and cannot be raised above %d: %w", passed, floor, errors.ErrUnsupported)
		}
	}
	isSealed := clientv3.Compare(clientv3.CreateRevision(sealKey(dir)), ">", 0)
	answer, err := d.transact(bounded, []clientv3.Cmp{isSealed}, []clientv3.Op{clientv3.OpPut(looseKey(dir), id)}, nil)
	return d.sealChanged(ctx, answer, err)
}

// sealChanged returns what the caller is told of the answer to a transaction that changes a seal.
func (d *Driver) sealChanged(ctx context.Context, answer *clientv3.TxnResponse, err error) error {
	switch {
	case err != nil:
		return d.changeFault(ctx, err)
	case !answer.Succeeded:
		return driver.ErrNotHeld
	}
	return nil
}

// Unseal implements move.Unsealer. It deletes the key that all waiters stand behind, which wakes them: the key that was written together
// with the record of the seal.
func (d *Driver) Unseal(ctx context.Context, name, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	dir := d.dir(name)
	queue, r, err := d.askFor(bounded, dir, clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithKeysOnly()))
	if err != nil {
		return d.queryFault(ctx, err)
	}
	if !r.sealed {
		return driver.ErrNotHeld
	}
	ops := []clientv3.Op{clientv3.OpDelete(sealKey(dir)), clientv3.OpDelete(looseKey(dir))}
	for _, kv := range queue.Responses[0].GetResponseRange().Kvs {
		if kv.ModRevision == r.sealedAt {
			ops = append(ops, clientv3.OpDelete(string(kv.Key)))
		}
	}
	same := []clientv3.Cmp{clientv3.Compare(clientv3.Value(looseKey(dir)), "=", id), clientv3.Compare(clientv3.ModRevision(sealKey(dir)), "=", r.sealedAt)}
	answer, err := d.transact(bounded, same, ops, nil)
	return d.sealChanged(ctx, answer, err)
}

// Unmark implements move.Unmarker. The number that is added to revisions stays.
func (d *Driver) Unmark(ctx context.Context, l driver.Lease) error {
	h := l.(*hold)
	if err := ctx.Err(); err != nil {
		return err
	}
	if h.isOver() {
		return driver.ErrNotHeld
	}
	bounded, cancel := withBound(ctx, requestFor)
	defer cancel()
	answer, err := d.transact(bounded, h.stands(), []clientv3.Op{clientv3.OpDelete(markKey(d.dir(h.request.Name))), h.putAgain()}, nil)
	if err != nil {
		err, _ = fault(ctx, err)
		return err
	}
	if !answer.Succeeded {
		h.vanish()
		return driver.ErrNotHeld
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.record.marked = false
	return nil
}
