package zk

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

var (
	_ move.Unsealer = (*Driver)(nil)
	_ move.Unmarker = (*Driver)(nil)
)

// looseName returns the name of the seal of a record with another id, or the first.
func (r record) looseName(id string) string {
	return sealPrefix + strconv.FormatUint(r.last, 10) + "-" + hex.EncodeToString([]byte(id)) + "-" + withoutGUID(r.seal)
}

// Loosen implements move.Unsealer. The seal gets another name with the id, so that a request to remove the seal finds it under this
// name alone; waiters behind the seal look, and go on to wait. Other libraries have no tokens, so dsync's are raised as by a mark.
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if floor > 0 && d.options.NoTokens {
		return fmt.Errorf("there are no tokens to raise: %w", errors.ErrUnsupported)
	}
	if err := checkFloor(floor); err != nil {
		return err
	}
	dir := d.dir(name)
	return d.changeSeal(ctx, dir, func(s *session, r record) (ops []any) {
		if loose := r.looseName(id); loose != r.seal {
			ops = append(ops, d.createSeal(dir, loose), &gozk.DeleteRequest{Path: dir + "/" + r.seal, Version: -1})
		}
		next := r
		if passed := uint64(s.zxid.Load()) * tokensPerGrant; floor > passed { // whoever is granted the name comes later
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
	err := d.changeSeal(ctx, dir, func(_ *session, r record) []any {
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

// changeSeal carries out the operations that change makes of the record of a sealed name.
func (d *Driver) changeSeal(ctx context.Context, dir string, change func(*session, record) []any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := d.board(caller{ctx: ctx}, d.options.TTL)
	if err != nil {
		return err
	}
	defer s.leave()
	c := caller{ctx, d.life.Open().Done()}
	for {
		l, err := query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, dir) })
		if err != nil && !errors.Is(err, gozk.ErrNoNode) {
			return fault(ctx, s, err)
		}
		r := l.record()
		if r.seal == "" {
			return driver.ErrNotHeld
		}
		ops := change(s, r)
		if len(ops) == 0 {
			return nil
		}
		_, err = outcome(c, s, sendChange(s, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return c.Multi(ops...) }))
		switch {
		case err == nil:
			return nil
		case !isAnswer(err):
			return d.undecided(ctx, err)
		case !isOutdated(err): // others loosen or remove the seal, each of them once
			return fault(ctx, s, err)
		}
	}
}

// Unmark implements move.Unmarker. What is added to the tokens stays.
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
