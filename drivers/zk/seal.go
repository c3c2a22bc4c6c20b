package zk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// maxFloor is the highest floor that leaves room for all transactions above it.
const maxFloor = 1 << 62

// maxMarking limits how many times a request is repeated because of concurrent
// changes.
const maxMarking = 3

var (
	_ move.Sealer = (*Driver)(nil)
	_ move.Marker = (*Driver)(nil)
)

// record returns the record that the children contain.
func (l listing) record() (r record) {
	for _, child := range l.children {
		if last, ok := sealOf(child); ok {
			r.seal, r.last = child, last
		} else if base, marked, ok := baseOf(child); ok && (r.child == "" || base > r.base) {
			r.marked, r.base, r.child = marked, base, child
		}
	}
	return r
}

// Seal implements move.Sealer. A node that outlasts the session replaces the
// holder's node, with the same sequence number, in one transaction.
func (d *Driver) Seal(ctx context.Context, l driver.Lease) error {
	h := l.(*hold)
	s := h.session
	if err := ctx.Err(); err != nil {
		return err
	}
	if m := h.request.Mode; m == driver.Read || m == driver.Permit {
		return errSealShared
	}
	if err := h.isHeld(); err != nil {
		return err
	}
	var last uint64
	if first, n := h.Tokens(); n > 0 {
		last = first + uint64(n) - 1
	}
	seal := sealName(last, h.node)
	c := s.caller(ctx)
	again, err := false, c.await()
	if err == nil {
		s.mu.Lock()
		again, h.sealing = h.sealing, true
		s.mu.Unlock()
		_, err = c.change(
			&gozk.CheckVersionRequest{Path: h.node, Version: -1},
			d.createSeal(h.dir, seal),
			&gozk.DeleteRequest{Path: h.node, Version: -1},
		)
	}
	if again && errors.Is(err, gozk.ErrNoNode) {
		// an earlier, unanswered request may have sealed the name
		var found listing
		found, err = c.listSynced(h.dir)
		if r := found.record(); err == nil && (r.seal == "" || sealName(r.last, r.seal) != seal) {
			err = gozk.ErrNoNode
		} else if !isAnswer(err) {
			err = undecided{err}
		}
	}
	switch {
	case err == nil:
		d.nameNodes.add(h.dir)
		h.lose(nil)
		h.forget()
		return nil
	case errors.Is(err, gozk.ErrNoNode):
		h.removed()
		return driver.ErrNotHeld
	case err == errOver: // nothing was sent
		return driver.ErrNotHeld
	}
	return c.explain(err)
}

// createSeal makes the operation for the node of a seal.
func (d *Driver) createSeal(dir, seal string) *gozk.CreateRequest {
	text, err := json.Marshal(value{Owner: sealOwner, Host: d.host, Time: time.Now()})
	if err != nil { // it never fails, because it encodes only strings and a time
		text = nil
	}
	return &gozk.CreateRequest{Path: dir + "/" + seal, Data: text, Acl: d.options.ACL}
}

// Sealed implements move.Sealer.
func (d *Driver) Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	var r record
	err = d.call(ctx, func(c caller) (err error) {
		r, err = c.record(d.dir(name))
		return err
	})
	return r.last, r.seal != "", err
}

// record reads the record of the name whose node is dir.
func (c caller) record(dir string) (record, error) {
	l, err := c.listSynced(dir)
	if errors.Is(err, gozk.ErrNoNode) {
		err = nil
	}
	return l.record(), err
}

// Mark implements move.Marker. Transaction numbers cannot be raised, so the
// mark contains the number to add to them. The number only grows.
func (d *Driver) Mark(ctx context.Context, l driver.Lease, floor uint64) error {
	h := l.(*hold)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkFloor(floor); err != nil {
		return err
	}
	h.session.mu.Lock()
	granted := h.first.Load() - h.record.base
	h.session.mu.Unlock()
	r, err := h.change(ctx, func(r record) record {
		base := r.base
		if floor > granted { // the transaction of the mark comes after the transaction of the grant
			base = max(base, floor-granted)
		}
		return r.withBase(base, true)
	})
	if err == nil {
		h.marked(r)
	}
	return err
}

func checkFloor(floor uint64) error {
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens leaves no room above it: %w", floor, errors.ErrUnsupported)
	}
	return nil
}

// change replaces the record of the name, provided that the node of the hold
// exists, and returns the new record.
func (h *hold) change(ctx context.Context, change func(record) record) (next record, err error) {
	s := h.session
	if h.request.Mode == driver.Permit {
		return record{}, errMarkPermits
	}
	s.mu.Lock()
	r := h.record
	s.mu.Unlock()
	c := s.caller(ctx)
	for i := 0; ; i++ {
		if err := h.isHeld(); err != nil {
			return r, err
		}
		next = change(r)
		results, err := c.change(append([]any{&gozk.CheckVersionRequest{Path: h.node, Version: -1}}, s.driver.changeBase(h.dir, r, next)...)...)
		switch {
		case err == nil:
			return next, nil
		case len(results) > 0 && errors.Is(results[0].Error, gozk.ErrNoNode):
			h.removed()
			return r, driver.ErrNotHeld
		case err == errOver: // nothing was sent
			return r, driver.ErrNotHeld
		case i == maxMarking || !isOutdated(err):
			return r, c.explain(err)
		}
		// The child has been changed by hand, or by an earlier request without
		// an answer.
		now, err := c.listSynced(h.dir)
		if err != nil {
			return r, c.explain(err)
		}
		r = now.record()
	}
}

// changeBase returns the operations that replace the child with the base of the
// tokens, if there is one, with the child of next.
func (d *Driver) changeBase(dir string, r, next record) (ops []any) {
	if next.child == r.child {
		if r.child != "" { // a transaction is needed anyway, for its number
			ops = append(ops, &gozk.SetDataRequest{Path: dir + "/" + r.child, Version: -1})
		}
		return ops
	}
	if next.child != "" {
		ops = append(ops, &gozk.CreateRequest{Path: dir + "/" + next.child, Acl: d.options.ACL})
	}
	if r.child != "" {
		ops = append(ops, &gozk.DeleteRequest{Path: dir + "/" + r.child, Version: -1})
	}
	return ops
}

// marked records a mark and gives the hold new tokens. From now on, the node of
// the name is permanent.
func (h *hold) marked(r record) {
	s := h.session
	s.mu.Lock()
	defer s.mu.Unlock()
	h.record, h.ours = r, false
	h.number()
	s.driver.nameNodes.add(h.dir)
}

// number gives the hold the tokens of the last transaction known to its
// session. session.mu is held.
func (h *hold) number() {
	h.first.Store(h.record.base + uint64(h.session.zxid.Load())*tokensPerGrant)
}

// Marked implements move.Marker.
func (d *Driver) Marked(_ context.Context, l driver.Lease) (bool, error) {
	h := l.(*hold)
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	return h.record.marked, nil
}

var (
	_ move.Unsealer = (*Driver)(nil)
	_ move.Unmarker = (*Driver)(nil)
)

// Loosen implements move.Unsealer. It gives the seal a name that contains the
// id. A request to remove the seal finds it only under this name. Waiters
// behind the seal check it and keep waiting. A floor raises dsync's tokens as a
// mark does. Other libraries have no tokens.
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if floor > 0 && d.options.NoTokens {
		return fmt.Errorf("no tokens to raise: %w", errors.ErrUnsupported)
	}
	if err := checkFloor(floor); err != nil {
		return err
	}
	dir := d.dir(name)
	return d.changeSeal(ctx, dir, func(c caller, r record) (ops []any) {
		if loose := r.looseName(id); loose != r.seal {
			ops = append(ops, d.createSeal(dir, loose), &gozk.DeleteRequest{Path: dir + "/" + r.seal, Version: -1})
		}
		next := r
		if passed := uint64(c.session.zxid.Load()) * tokensPerGrant; floor > passed {
			// the next holder is granted the name later
			next = r.withBase(max(r.base, floor-passed), r.marked)
		}
		if next.child != r.child {
			ops = append(ops, d.changeBase(dir, r, next)...)
		}
		return ops
	})
}

// Unseal implements move.Unsealer.
func (d *Driver) Unseal(ctx context.Context, name, id string) error {
	dir, absent := d.dir(name), false
	err := d.changeSeal(ctx, dir, func(_ caller, r record) []any {
		if absent = r.seal != r.looseName(id); absent {
			return nil
		}
		return []any{&gozk.DeleteRequest{Path: dir + "/" + r.seal, Version: -1}}
	})
	if err == nil && absent {
		return driver.ErrNotHeld
	}
	return err
}

// changeSeal carries out the operations that change returns for the record of a
// sealed name.
func (d *Driver) changeSeal(ctx context.Context, dir string, change func(caller, record) []any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.call(ctx, func(c caller) error {
		for {
			r, err := c.record(dir)
			if err != nil {
				return err
			}
			if r.seal == "" {
				return driver.ErrNotHeld
			}
			ops := change(c, r)
			if len(ops) == 0 {
				return nil
			}
			if _, err = c.change(ops...); !isOutdated(err) {
				// other clients loosen or remove the seal, each of them once
				return err
			}
		}
	})
}

// Unmark implements move.Unmarker. The number added to the tokens stays.
func (d *Driver) Unmark(ctx context.Context, l driver.Lease) error {
	h := l.(*hold)
	if err := ctx.Err(); err != nil {
		return err
	}
	r, err := h.change(ctx, func(r record) record { return r.withBase(r.base, false) })
	if err == nil {
		h.session.mu.Lock()
		defer h.session.mu.Unlock()
		h.record = r
	}
	return err
}
