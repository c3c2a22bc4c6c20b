package zk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// What is known of a name for good is in the names of children, so that it comes with every look at the contenders.
const (
	sealPrefix = "dsync-seal-" // then the last token, and what the node of the holder had behind its guid
	markPrefix = "dsync-mark-" // then the base of the tokens, and markSuffix

	// A mark looks like the last of all contenders to those who take every child for one.
	markSuffix = "-" + lockInfix + "2147483647"
)

// maxFloor leaves room above it for all transactions.
const maxFloor = 1 << 62

// sealOwner is who Inspect says has a name that is sealed.
const sealOwner = "seal"

// maxMarking bounds how often a request is made that others have got in the way of.
const maxMarking = 3

var (
	_ driver.Sealer = (*Driver)(nil)
	_ driver.Marker = (*Driver)(nil)
)

// record is what is known of a name for good.
type record struct {
	seal string // the child, if it is sealed
	last uint64 // token, if it is sealed
	mark string // the child, if it is marked
	base uint64 // what is added to the tokens
}

func sealName(last uint64, node string) string {
	return sealPrefix + strconv.FormatUint(last, 10) + "-" + node[strings.LastIndex(node, lockInfix):]
}

func markName(base uint64) string { return markPrefix + strconv.FormatUint(base, 10) + markSuffix }

// record returns what the children say.
func (l listing) record() (r record) {
	for _, child := range l.children {
		if last, ok := sealOf(child); ok {
			r.seal, r.last = child, last
		} else if base, ok := numberIn(child, markPrefix); ok && isMark(child) && (r.mark == "" || base > r.base) {
			r.mark, r.base = child, base
		}
	}
	return r
}

// sealOf returns the last token of a name if a child is the seal of it.
func sealOf(child string) (last uint64, ok bool) {
	if _, contends := sequence(child); !contends {
		return 0, false
	}
	return numberIn(child, sealPrefix)
}

// numberIn returns the number in the name of a child after a prefix.
func numberIn(child, prefix string) (uint64, bool) {
	rest, ok := strings.CutPrefix(child, prefix)
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

func isMark(child string) bool {
	return strings.HasPrefix(child, markPrefix) && strings.HasSuffix(child, markSuffix)
}

// Seal implements driver.Sealer. A node that does not go with the session takes the place of the holder's: it has the same sequence
// number, and is made in the transaction that removes the other.
func (d *Driver) Seal(ctx context.Context, l driver.Lease) error {
	h := l.(*hold)
	s := h.session
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.isHeld(); err != nil {
		return err
	}
	var last uint64
	if first, n := h.Tokens(); n > 0 {
		last = first + uint64(n) - 1
	}
	seal := sealName(last, h.node)
	c := caller{ctx, d.stopping.Done()}
	if err := s.await(c); errors.Is(err, errOver) {
		return driver.ErrNotHeld
	} else if err != nil {
		return fault(ctx, s, err)
	}
	s.mu.Lock()
	again := h.sealing
	h.sealing = true
	s.mu.Unlock()
	_, err := receive(c, s, send(s, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return h.replace(c, seal) }))
	if again && errors.Is(err, gozk.ErrNoNode) { // an earlier request, which got no answer, may have done it
		var found listing
		found, err = query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, h.dir) })
		if err == nil && found.record().seal != seal {
			err = gozk.ErrNoNode
		}
	}
	switch {
	case err == nil:
		d.parents.add(h.dir)
		h.lose(nil)
		h.isGone(false)
		return nil
	case errors.Is(err, gozk.ErrNoNode):
		h.removed()
		return driver.ErrNotHeld
	case isAnswer(err):
		return fault(ctx, s, err)
	}
	return withCause(ctx, driver.ErrUnknown, err)
}

// replace puts a seal in the place of the node.
func (h *hold) replace(c *gozk.Conn, seal string) ([]gozk.MultiResponse, error) {
	d := h.driver
	text, err := json.Marshal(value{Owner: sealOwner, Host: d.host, Time: time.Now()})
	if err != nil { // of strings and a time it can be made in any case
		text = nil
	}
	return c.Multi(
		&gozk.CheckVersionRequest{Path: h.node, Version: -1},
		&gozk.CreateRequest{Path: h.dir + "/" + seal, Data: text, Acl: d.options.ACL},
		&gozk.DeleteRequest{Path: h.node, Version: -1},
	)
}

// Sealed implements driver.Sealer.
func (d *Driver) Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	s, err := d.board(caller{ctx: ctx}, d.options.TTL)
	if err != nil {
		return 0, false, err
	}
	defer s.leave()
	c, dir := caller{ctx, d.stopping.Done()}, d.dir(name)
	l, err := query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, dir) })
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return 0, false, fault(ctx, s, err)
	}
	r := l.record()
	return r.last, r.seal != "", nil
}

// Mark implements driver.Marker. Transaction numbers cannot be raised, so the mark says what is added to them, which only grows.
func (d *Driver) Mark(ctx context.Context, l driver.Lease, floor uint64) error {
	h := l.(*hold)
	s := h.session
	if err := ctx.Err(); err != nil {
		return err
	}
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens leaves no room above it: %w", floor, errors.ErrUnsupported)
	}
	s.mu.Lock()
	r := h.record
	s.mu.Unlock()
	granted := h.first.Load() - r.base
	c := caller{ctx, d.stopping.Done()}
	for i := 0; ; i++ {
		if err := h.isHeld(); err != nil {
			return err
		}
		next := r
		if floor > granted { // the transaction of the mark comes after that of the grant
			next.base = max(r.base, floor-granted)
		}
		next.mark = markName(next.base)
		if err := s.await(c); errors.Is(err, errOver) {
			return driver.ErrNotHeld
		} else if err != nil {
			return fault(ctx, s, err)
		}
		results, err := receive(c, s, send(s, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return h.mark(c, r, next) }))
		switch {
		case err == nil:
			h.marked(next)
			return nil
		case len(results) > 0 && errors.Is(results[0].Error, gozk.ErrNoNode):
			h.removed()
			return driver.ErrNotHeld
		case !isAnswer(err):
			s.mu.Lock()
			h.marking = true
			s.mu.Unlock()
			return withCause(ctx, driver.ErrUnknown, err)
		case i == maxMarking || !errors.Is(err, gozk.ErrNoNode) && !errors.Is(err, gozk.ErrNodeExists):
			return fault(ctx, s, err)
		}
		// Somebody has changed the mark by hand, or an earlier request has, which got no answer.
		now, err := query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, h.dir) })
		if err != nil {
			return fault(ctx, s, err)
		}
		r = now.record()
	}
}

// mark replaces one mark, if there is one, by the next, provided that the node of the hold is there.
func (h *hold) mark(c *gozk.Conn, r, next record) ([]gozk.MultiResponse, error) {
	ops := []any{&gozk.CheckVersionRequest{Path: h.node, Version: -1}}
	if next.mark == r.mark { // a transaction is needed all the same, for its number
		return c.Multi(append(ops, &gozk.SetDataRequest{Path: h.dir + "/" + r.mark, Version: -1})...)
	}
	ops = append(ops, &gozk.CreateRequest{Path: h.dir + "/" + next.mark, Acl: h.driver.options.ACL})
	if r.mark != "" {
		ops = append(ops, &gozk.DeleteRequest{Path: h.dir + "/" + r.mark, Version: -1})
	}
	return c.Multi(ops...)
}

// marked takes note of a mark, and gives the hold new tokens. The node of the name stays from now on.
func (h *hold) marked(r record) {
	s := h.session
	s.mu.Lock()
	defer s.mu.Unlock()
	h.record, h.ours = r, false
	h.number()
	h.driver.parents.add(h.dir)
}

// number gives the hold the tokens of the last transaction that its session knows of. session.mu is held.
func (h *hold) number() {
	h.first.Store(h.record.base + uint64(h.session.zxid.Load())*tokensPerGrant)
}

// Marked implements driver.Marker.
func (d *Driver) Marked(_ context.Context, l driver.Lease) (bool, error) {
	h := l.(*hold)
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	return h.record.mark != "", nil
}
