package dsync

import (
	"context"
	"slices"

	"github.com/go-dsync/dsync/driver"
)

// nest serves a call under a lease of its name: a lease whose context the call has, or a lease that its Owner has in another mode. Without
// such a lease nest returns nil, nil.
//
//	the lease is      the call is for     by its Owner    by its context
//	Read              Read                joins           joins
//	Read              Write, Exclusive    ErrDeadlock     ErrDeadlock
//	Write, Exclusive  Read                joins           joins
//	Write, Exclusive  Write, Exclusive    joins           ErrDeadlock
//	Permit            Permit              -               ErrDeadlock, if the limit leaves too few beside those of the leases
//	Permit            another mode        ErrDeadlock     ErrDeadlock
//	another mode      Permit              ErrDeadlock     ErrDeadlock
//
// A call that joins is served whoever waits: otherwise the waiter would wait for the lease, and the call for the waiter. For the same reason
// there is no upgrade. A call that waits already when its Owner gets the name in another mode is not served by that grant.
func (c *Client) nest(ctx context.Context, r request, name string) (*Lease, error) {
	innermost, _ := ctx.Value(leaseContextKey{}).(*leaseContext)
	if r.mode == driver.Permit && r.limit > 0 && innermost.permits(c, name) > r.limit-r.permits {
		return nil, ErrDeadlock
	}
	for lc := innermost; lc != nil; lc = lc.outer {
		k := lc.lease.hold.lock
		if k.client != c || k.name != name || k.mode == driver.Permit && r.mode == driver.Permit {
			continue
		}
		if l, err := lc.lease.nest(r); l != nil || err != nil {
			return l, err
		}
	}
	if r.owner == nil {
		return nil, nil
	}
	for mode, k := range c.known(name) {
		if k == nil || driver.Mode(mode) == r.mode {
			continue
		}
		if l, err := k.nest(r); l != nil || err != nil {
			return l, err
		}
	}
	return nil, nil
}

// nest serves a call whose context is the lease's.
func (l *Lease) nest(r request) (*Lease, error) {
	h := l.hold
	k := h.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case l.check(k.client.now()) != nil:
		return nil, nil
	case k.mode == driver.Permit, r.mode == driver.Permit:
		return nil, ErrDeadlock
	case r.owner != nil && h.ownedBy == r.owner:
		return h.join(r), nil
	case r.mode != driver.Read:
		return nil, ErrDeadlock
	}
	nested := h.join(r)
	if r.owner == nil {
		nested.owner = l.owner
	}
	return nested, nil
}

// nest serves a call in another mode, of an Owner that may have the name in the mode of k.
func (k *lock) nest(r request) (*Lease, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mode == driver.Read || k.mode == driver.Permit || r.mode == driver.Permit {
		if k.leasedTo(r.owner, k.client.now()) != nil {
			return nil, ErrDeadlock
		}
		return nil, nil
	}
	if h := k.live(); h != nil && h.ownedBy == r.owner {
		return h.join(r), nil
	}
	return nil, nil
}

// permits returns how many permits of a name the leases have to which the context belongs.
func (c *leaseContext) permits(of *Client, name string) (n int) {
	var counted []*Lease // of one lease there may be several contexts
	for ; c != nil; c = c.outer {
		k := c.lease.hold.lock
		if k.client != of || k.name != name || k.mode != driver.Permit || slices.Contains(counted, c.lease) {
			continue
		}
		counted = append(counted, c.lease)
		k.mu.Lock()
		if c.lease.check(k.client.now()) == nil {
			n += c.lease.hold.req.Permits
		}
		k.mu.Unlock()
	}
	return n
}
