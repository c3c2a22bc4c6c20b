package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// maxFloor is the highest floor that leaves room for all revisions above it.
const maxFloor = 1 << 62

// sealOwner is the owner of a sealed name, as reported by Inspect.
const sealOwner = "seal"

var (
	_ move.Sealer = (*Driver)(nil)
	_ move.Marker = (*Driver)(nil)
)

// Seal implements move.Sealer. The key of the holder is put again without a
// lease, so it stays the oldest key forever.
func (d *Driver) Seal(ctx context.Context, l driver.Lease) error {
	h := l.(*hold)
	if err := ctx.Err(); err != nil {
		return err
	}
	if h.rule().shared {
		return fmt.Errorf("other clients may also hold the name: %w", errors.ErrUnsupported)
	}
	bounded, cancel := withBound(ctx, requestFor)
	defer cancel()
	if h.own != nil { // a renewal would attach the key to a lease again
		select {
		case h.own.renewing <- struct{}{}:
			defer func() { <-h.own.renewing }()
		case <-bounded.Done():
			return lifecycle.WithCause(ctx, driver.ErrUnavailable, errors.New("a renewal has not ended"))
		}
	}
	if !h.beginSeal() {
		return driver.ErrNotHeld
	}
	d.recorded.Store(true)
	dir := d.dir(h.request.Name)
	last, _ := h.Tokens()
	seal := value{Owner: sealOwner, Host: d.host, Time: time.Now()}
	answer, err := d.transact(bounded, h.stands(),
		[]clientv3.Op{opPut(h.key, seal.text()), clientv3.OpPut(sealKey(dir), strconv.FormatUint(last, 10)), clientv3.OpDelete(looseKey(dir))},
		[]clientv3.Op{clientv3.OpGet(h.key)})
	if err != nil {
		err, _ = fault(ctx, err)
		return err
	}
	if !answer.Succeeded && !h.isSeal(answer.Responses[0].GetResponseRange().Kvs) {
		h.vanish()
		return driver.ErrNotHeld
	}
	h.sealed()
	return nil
}

// beginSeal records that the key may become a seal, unless the hold has ended.
func (h *hold) beginSeal() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != held || h.isPast() {
		return false
	}
	h.sealing = true
	return true
}

// isSealing reports whether the key may have become a seal.
func (h *hold) isSealing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sealing
}

// isSeal reports whether an earlier, unanswered request made the key of h a
// seal. Servers omit the lease in answers with only keys, so kvs must include
// values.
func (h *hold) isSeal(kvs []*mvccpb.KeyValue) bool {
	return len(kvs) == 1 && kvs[0].CreateRevision == h.revision && kvs[0].Lease == int64(clientv3.NoLease)
}

// sealed ends a hold whose key is a seal.
func (h *hold) sealed() {
	h.mu.Lock()
	first := h.phase == held
	h.phase = over
	h.mu.Unlock()
	if first {
		h.unlist()
		h.giveLeaseBack()
	}
}

// stands returns the conditions under which the key of the hold exists and is
// not a seal.
func (h *hold) stands() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.revision), hasLease(h.key)}
}

// overlookedByNobody returns the conditions under which the key of a Read or
// Write may be put again. RWMutex waits for keys with a smaller modification
// revision than its own, so no key of RWMutex may be younger. A key that
// RWMutex puts later waits as usual.
func (h *hold) overlookedByNobody() []clientv3.Cmp {
	if !h.rule().besideRecipe {
		return nil
	}
	older := func(recipe string) clientv3.Cmp {
		return clientv3.Compare(clientv3.CreateRevision(h.dir()+recipe), "<", h.revision).WithPrefix()
	}
	return []clientv3.Cmp{older(recipeRead), older(recipeWrite)}
}

// isOver reports whether the hold is known to have ended.
func (h *hold) isOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase != held || h.isPast()
}

// hasLease is the condition that a key exists and is not a seal.
func hasLease(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.LeaseValue(key), "!=", clientv3.NoLease)
}

// removeKey deletes the key of a contender. If sealing is set, it does not
// delete a key that has become a seal.
func (d *Driver) removeKey(ctx context.Context, key string, sealing bool) (removed bool, err error) {
	if !sealing {
		answer, err := d.delete(ctx, key)
		return err == nil && answer.Deleted > 0, err
	}
	answer, err := d.transact(ctx, []clientv3.Cmp{hasLease(key)}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	return err == nil && answer.Succeeded, err
}

// Sealed implements move.Sealer.
func (d *Driver) Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	dir := d.dir(name)
	answer, err := d.get(bounded, sealKey(dir))
	if err != nil {
		return 0, false, d.queryFault(ctx, err)
	}
	r, err := readRecord(dir, answer.Kvs)
	return r.last, r.sealed, err
}

// Mark implements move.Marker. Revisions cannot be raised, so the record has a
// number that is added to them. The number only grows.
func (d *Driver) Mark(ctx context.Context, l driver.Lease, floor uint64) error {
	h := l.(*hold)
	if err := ctx.Err(); err != nil {
		return err
	}
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens leaves no room for revisions above it: %w", floor, errors.ErrUnsupported)
	}
	bounded, cancel := withBound(ctx, requestFor)
	defer cancel()
	d.recorded.Store(true)
	dir, r := d.dir(h.request.Name), h.record
	for {
		if h.isOver() {
			return driver.ErrNotHeld
		}
		if granted := uint64(h.token); floor > granted {
			// the revision of the mark is above the revision of the grant
			r.base = max(r.base, floor-granted)
		}
		answer, err := d.transact(bounded,
			append(h.stands(), clientv3.Compare(clientv3.ModRevision(baseKey(dir)), "=", r.raised)),
			[]clientv3.Op{clientv3.OpPut(baseKey(dir), strconv.FormatUint(r.base, 10)), clientv3.OpPut(markKey(dir), ""), h.putAgain()},
			[]clientv3.Op{clientv3.OpGet(h.key), getRecord(dir)})
		if err != nil {
			err, _ = fault(ctx, err)
			return err
		}
		if answer.Succeeded {
			r.marked, r.raised = true, answer.Header.Revision
			h.tokenFrom(r, answer.Header.Revision)
			return nil
		}
		kvs := answer.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || !h.isOf(kvs[0]) {
			h.vanish()
			return driver.ErrNotHeld
		}
		if r, err = readRecord(dir, answer.Responses[1].GetResponseRange().Kvs); err != nil {
			return err
		}
	}
}

// tokenFrom gives the hold the token of a revision.
func (h *hold) tokenFrom(r record, revision int64) {
	h.record, h.token = r, revision
	h.first.Store(r.base + uint64(revision))
}

// Marked implements move.Marker.
func (d *Driver) Marked(_ context.Context, l driver.Lease) (bool, error) {
	h := l.(*hold)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.record.marked, nil
}

var (
	_ move.Unsealer = (*Driver)(nil)
	_ move.Unmarker = (*Driver)(nil)
)

// Loosen implements move.Unsealer. The id is a key next to the record of the
// seal. No token can be raised here: the number added to revisions would raise
// only the tokens of dsync, while the tokens of package concurrency and of
// etcdctl are revisions. So Loosen refuses a floor that revisions have not
// passed.
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if floor > 0 && d.options.NoTokens {
		return fmt.Errorf("no tokens to raise: %w", errors.ErrUnsupported)
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

// sealChanged converts the answer to a transaction that changes a seal into the
// result of the call.
func (d *Driver) sealChanged(ctx context.Context, answer *clientv3.TxnResponse, err error) error {
	switch {
	case err != nil:
		return d.changeFault(ctx, err)
	case !answer.Succeeded:
		return driver.ErrNotHeld
	}
	return nil
}

// Unseal implements move.Unsealer. It deletes the key that was written together
// with the record of the seal. All waiters wait for that key, so the deletion
// wakes them.
func (d *Driver) Unseal(ctx context.Context, name, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	dir := d.dir(name)
	queue, r, err := d.readQueue(bounded, dir, clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithKeysOnly()))
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
