package redisson

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if d.options.Write && r.Mode == driver.Exclusive {
		written := *r
		written.Mode, r = driver.Write, &written
	}
	return d.life.Acquire(ctx, r, d.acquire)
}

func (d *Driver) acquire(ctx context.Context, r *driver.Request) (*lease, error) {
	if err := d.checkServer(ctx); err != nil {
		return nil, err
	}
	if err := d.checkName(r.Name); err != nil {
		return nil, err
	}
	if r.Mode == driver.Permit && r.Permits > maxPermits {
		return nil, fmt.Errorf("%d permits in one request, want at most %d: %w", r.Permits, maxPermits, errors.ErrUnsupported)
	}
	exclusive := r.Mode == driver.Exclusive
	w := &waiting{driver: d, request: r, inQueue: d.queues(r), ticketed: exclusive && !d.options.Fair && !r.NoWait}
	if w.inQueue && d.ghosts.Full() {
		return nil, fmt.Errorf("%w: %d abandoned places in queues are not yet removed", driver.ErrUnavailable, maxGhosts)
	}
	// If callers of this process are already waiting for the name, listen
	// before the first attempt, which then need not be repeated.
	if !(exclusive && d.options.Fair || d.topics.Quiet()) {
		w.topic = d.topics.JoinActive(channelOf(r.Mode, r.Name, false), groupOf(r.Mode), false)
	}
	turn := ""
	if w.topic != nil && w.ticketed {
		turn = redistopic.Text(w.topic.Ticket(), false)
	}
	l, refused, err := w.try(ctx, false, turn)
	if l == nil && err == nil && r.NoWait {
		err = driver.ErrLocked
	}
	if l != nil || err != nil {
		return w.stopListening(l, err, false)
	}
	r.Events.Waiting()
	l, err = w.wait(ctx, refused)
	if l != nil || !w.inQueue && !intends(r) || errors.Is(err, driver.ErrUnknown) {
		// if the outcome is unknown, there is already a ghost
		return l, err
	}
	return nil, d.depart(r, err)
}

// try sends one request. If it returns neither an error nor a lease, the lock
// is taken. again reports that the attempt was refused before, and turn is the
// result of redistopic.Text, or "" for an attempt without a ticket. If the
// answer is unclear, the cleaner removes what may be left.
func (d *Driver) try(ctx context.Context, r *driver.Request, again bool, turn string) (*lease, answer, error) {
	o := d.newOp(r, nil)
	o.again, o.turn = again, turn
	if d.options.Fence != FenceNone && r.Mode != driver.Permit {
		o.tokens = min(max(r.Events.Tokens(), 1), maxTokens)
		o.marks = !d.options.Fair && r.Mode == driver.Exclusive && d.marks.Load()
	}
	if err, doubt := d.carryOut(ctx, o, d.life.Open().Done()); doubt {
		return nil, answer{}, fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	} else if err != nil {
		return nil, answer{}, err
	}
	sent, order, a, acks, err := o.sent, o.order, o.answer, o.acks, o.err
	fenced, marks := o.tokens > 0, o.marks
	d.putOp(o)
	switch {
	case err != nil:
		err, doubt := redisdriver.Fault(ctx, r.Name, err)
		if doubt {
			d.ghosts.Add(&ghost{request: r, until: sent + int64(r.TTL+late), order: order, place: d.queues(r)})
		}
		return nil, answer{}, err
	case a.code == sealedCode:
		return nil, answer{}, driver.ErrSealed
	case a.code == limitCode:
		return nil, answer{}, driver.ErrLimit
	case a.code == elsewhereCode && d.options.Fair:
		if a.code = heldCode; a.left < 0 || a.left > unheard {
			a.left = unheard
		}
		return nil, a, nil
	case a.code != grantedCode:
		return nil, a, nil
	}
	if !fenced {
		a.value, a.n = 0, 0
	}
	l := &lease{driver: d, request: r, Hold: redisdriver.Hold{Phase: redisdriver.Held}, first: uint64(a.value), tokens: int32(a.n), markKnown: marks, marked: a.marked}
	l.Term.Grant(sent + int64(r.TTL))
	if acks < d.options.WaitReplicas {
		return nil, answer{}, d.undo(ctx, l, acks)
	}
	return l, answer{}, nil
}
