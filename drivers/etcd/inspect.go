package etcd

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// Inspect implements driver.Inspector. Status.Since is when the holder asked for the lock, or when it was passed to the holder.
// Status.Token is known for holders of this driver alone. Contenders that are no clients of dsync are named by the last part of their keys.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	bounded, cancel := d.request(ctx, requestFor)
	defer cancel()
	dir := d.dir(name)
	all, r, _, err := d.getQueue(bounded, dir, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return driver.Status{}, d.queryFault(ctx, err)
	}
	queue := slices.DeleteFunc(all.Kvs, func(kv *mvccpb.KeyValue) bool { return !isContender(dir, kv) })
	if r.sealed {
		return driver.Status{Held: true, Owner: sealOwner, Token: r.last, Waiters: max(0, len(queue)-1)}, nil
	}
	if len(queue) == 0 {
		return driver.Status{}, nil
	}
	first := readValue(dir, queue[0])
	status := driver.Status{
		Held:    true,
		Hold:    first.Hold,
		Owner:   first.Owner,
		Note:    first.Note,
		Since:   first.Time,
		Token:   d.tokenOf(string(queue[0].Key)),
		Waiters: len(queue) - 1,
	}
	for _, kv := range queue[1:] {
		status.Queue = append(status.Queue, readValue(dir, kv).Owner)
	}
	if lease := clientv3.LeaseID(queue[0].Lease); lease != clientv3.NoLease {
		left, err := d.client.TimeToLive(bounded, lease)
		if err != nil && !isLeaseGone(err) {
			return driver.Status{}, d.queryFault(ctx, err)
		}
		if err == nil {
			status.TTL = max(0, time.Duration(left.TTL)*time.Second)
		}
	}
	return status, nil
}

// getQueue asks for contenders, together with the record of the name.
func (d *Driver) getQueue(ctx context.Context, dir string, options ...clientv3.OpOption) (
	page *pb.RangeResponse, r record, revision int64, err error,
) {
	options = append(options, clientv3.WithPrefix())
	answer, err := d.client.Txn(ctx).Then(clientv3.OpGet(dir, options...), getRecord(dir)).Commit()
	if err != nil {
		return nil, r, 0, err
	}
	r, err = readRecord(dir, answer.Responses[1].GetResponseRange().Kvs)
	return answer.Responses[0].GetResponseRange(), r, answer.Header.Revision, err
}

// readValue takes the value of a key apart.
func readValue(dir string, kv *mvccpb.KeyValue) value {
	var v value
	if json.Unmarshal(kv.Value, &v) != nil || v.Hold == "" {
		last := string(kv.Key[len(dir):])
		return value{Owner: last, Hold: last}
	}
	return v
}

// tokenOf returns the token of a hold of this driver, or 0.
func (d *Driver) tokenOf(key string) uint64 {
	sessions, fixed, _ := d.held(d.now() + 1)
	for _, holds := range sessions {
		fixed = append(fixed, holds...)
	}
	for _, h := range fixed {
		if h.key == key {
			return h.first.Load()
		}
	}
	return 0
}

// ForceUnlock implements driver.ForceUnlocker.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	bounded, cancel := d.request(ctx, requestFor)
	defer cancel()
	dir := d.dir(name)
	first, err := d.first(bounded, dir)
	if err != nil {
		return d.queryFault(ctx, err)
	}
	if first == nil {
		return driver.ErrNotHeld
	}
	key := string(first.Key)
	answer, err := d.client.Txn(bounded).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", first.CreateRevision), notSealed(dir)).
		Then(clientv3.OpDelete(key)).
		Else(clientv3.OpGet(sealKey(dir), clientv3.WithKeysOnly())).
		Commit()
	switch {
	case err != nil:
		return d.queryFault(ctx, err)
	case !answer.Succeeded && len(answer.Responses[0].GetResponseRange().Kvs) > 0:
		return driver.ErrSealed
	case !answer.Succeeded: // it ended in between
		return driver.ErrNotHeld
	}
	return nil
}

// first returns the holder of the lock of dir, or nil.
func (d *Driver) first(ctx context.Context, dir string) (*mvccpb.KeyValue, error) {
	options := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)}
	page, err := d.client.Get(ctx, dir, append(options, clientv3.WithLimit(pageSize))...)
	if err == nil && page.More && contender(dir, page.Kvs) == nil { // a page full of names below
		page, err = d.client.Get(ctx, dir, options...)
	}
	if err != nil {
		return nil, err
	}
	return contender(dir, page.Kvs), nil
}

// queryFault is fault for requests that belong to no hold.
func (d *Driver) queryFault(ctx context.Context, err error) error {
	if d.life.Open().Err() != nil {
		return driver.ErrClosed
	}
	err, _ = fault(ctx, err)
	return err
}
