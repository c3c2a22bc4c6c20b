package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// backstop is the longest wait without asking again, for messages that are lost; it is spread over a quarter of itself.
const backstop = 5 * time.Second

// moving is the pause of a waiter whose slot moves to another node of the cluster.
const moving = 250 * time.Millisecond

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.life.Enter(); err != nil {
		return nil, err
	}
	l, err := d.acquire(ctx, r)
	if err == nil && d.keep(l) {
		return l, nil
	}
	defer d.life.Leave()
	if err == nil { // granted while Close began
		err = driver.ErrClosed
		if releaseErr := l.Release(ctx); errors.Is(releaseErr, driver.ErrUnknown) {
			err = fmt.Errorf("%w: %w", err, releaseErr)
		}
	}
	return nil, err
}

func (d *Driver) acquire(ctx context.Context, r *driver.Request) (*lease, error) {
	if err := d.checkServer(ctx); err != nil {
		return nil, err
	}
	if err := d.checkName(r.Name); err != nil {
		return nil, err
	}
	if d.queues(r) && d.ghosts.Full() {
		return nil, fmt.Errorf("%w: %d places in queues are still to be given back", driver.ErrUnavailable, maxGhosts)
	}
	// Where callers of this process already wait for the name, its messages are listened to: listen before the first try, then that
	// needs no second one.
	var t *redistopic.Topic
	if !d.options.Fair {
		t = d.topics.JoinActive(r.Name)
	}
	l, left, err := d.try(ctx, r, false)
	if l != nil || err != nil || r.NoWait {
		if t != nil && err == driver.ErrSealed {
			t.LeaveForGood()
		} else if t != nil {
			t.Leave(false)
		}
		if l == nil && err == nil {
			err = driver.ErrLocked
		}
		return l, err
	}
	if d.options.Fair {
		return d.waitInLine(ctx, r, left)
	}
	return d.wait(ctx, r, t, left)
}

// wait waits for a message that the lock is free, with the topic of its name, if that is joined already.
func (d *Driver) wait(ctx context.Context, r *driver.Request, t *redistopic.Topic, left time.Duration) (*lease, error) {
	r.Events.Waiting()
	if t == nil {
		t = d.topics.Join(r.Name)
	}
	return d.ask(ctx, r, t, left)
}

// ask asks again whenever the lock may have become free. Whatever woke a caller that then could not ask is passed on to another
// one of this process.
func (d *Driver) ask(ctx context.Context, r *driver.Request, t *redistopic.Topic, left time.Duration) (*lease, error) {
	timer := time.NewTimer(pause(left))
	defer timer.Stop()
	moves := false // the slot: what woke this caller may be for another one, if this one leaves
	for {
		select {
		case <-t.Wake:
		case <-timer.C:
		case <-ctx.Done():
			t.Leave(moves)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		case <-d.life.Open().Done():
			t.Leave(false)
			return nil, driver.ErrClosed
		}
		if ctx.Err() != nil {
			t.Leave(true)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
		l, left, err := d.try(ctx, r, true)
		if moves = slotMoves(err); moves { // nothing was done, and the place in a queue is kept
			timer.Reset(moving/2 + rand.N(moving/2))
			continue
		}
		if err != nil && err == ctx.Err() { // it was not sent: the last answer is still that somebody holds the lock
			err = fmt.Errorf("%w: %w", driver.ErrLocked, err)
		}
		if err == driver.ErrSealed {
			t.LeaveForGood() // who watches the old backend of a migration must not take those who only ask for those who wait
			return nil, err
		}
		if l != nil || err != nil {
			t.Leave(l == nil)
			return l, err
		}
		timer.Reset(pause(left))
	}
}

// pause is how long to wait for a message: until the lock expires if nobody renews it, but not for ever.
func pause(left time.Duration) time.Duration {
	limit := backstop - time.Duration(rand.Int64N(int64(backstop/4)))
	if left < 0 || left > limit {
		return limit
	}
	return left + time.Millisecond // the key is there for all of its last millisecond
}

// try asks once. Without an error and a lease the lock is taken, for the time that is returned unless its holder renews it; that is
// negative if it does not expire. Again says that it asked before. What an unclear answer may have left behind is cleaned up.
func (d *Driver) try(ctx context.Context, r *driver.Request, again bool) (*lease, time.Duration, error) {
	o := d.newOp(r, nil)
	o.again = again
	if d.options.Fence != FenceNone {
		o.tokens = min(max(r.Events.Tokens(), 1), maxTokens)
		o.marks = !d.options.Fair && d.marks.Load()
	}
	if err, doubt := d.carryOut(ctx, o, d.life.Open().Done()); doubt {
		return nil, 0, fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	} else if err != nil {
		return nil, 0, err
	}
	sent, order, first, n, acks, err := o.sent, o.order, o.first, o.n, o.acks, o.err
	fenced, marks, moved := o.tokens > 0, o.marks, o.moved
	d.putOp(o)
	switch {
	case err != nil:
		err, doubt := fault(ctx, r.Name, err)
		if doubt {
			d.ghosts.Add(&ghost{name: r.Name, hold: r.Hold, until: sent + int64(r.TTL+late), order: order, place: d.queues(r)})
		}
		return nil, 0, err
	case first == sealedAnswer:
		return nil, 0, driver.ErrSealed
	case first == takenForEver:
		return nil, -1, nil
	case first < 0:
		return nil, time.Duration(-1-first) * time.Millisecond, nil
	}
	if !fenced {
		first, n = 0, 0
	}
	l := d.newLease(r, sent, uint64(first), n)
	l.markKnown, l.marked = marks, moved
	if fenced {
		l.notedUntil.Store(sent + int64(max(r.TTL, holderTTL)))
	}
	if acks < d.options.WaitReplicas {
		return nil, 0, d.undo(ctx, l, acks)
	}
	return l, 0, nil
}

// Answers of the acquire script for a lock that does not expire, for one that is sealed, and, less the token, for a grant of a name that
// is marked.
const (
	takenForEver = 0
	sealedAnswer = -4_000_000_000_000
	markedAnswer = -5_000_000_000_000
)

var errAnswer = errors.New("the server's answer makes no sense")
