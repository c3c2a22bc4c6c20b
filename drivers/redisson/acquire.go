package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// backstop is the longest wait before asking again, in case a message is lost; it is spread over a quarter of itself.
const backstop = 5 * time.Second

// unheard is the pause of a request to read or write while the name has a hold of the fair lock: the end of this hold is told to the first
// in the queue alone.
const unheard = 50 * time.Millisecond

// moving is the pause of a waiter whose slot moves to another node of the cluster.
const moving = 250 * time.Millisecond

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
	if r.Mode == driver.Permit {
		if err := d.checkPermits(r); err != nil {
			return nil, err
		}
	}
	inQueue := d.queues(r)
	if inQueue && d.ghosts.Full() {
		return nil, fmt.Errorf("%w: %d places in queues are still to be given back", driver.ErrUnavailable, maxGhosts)
	}
	// Where callers of this process already wait for the name, its messages arrive: listen before the first try, which then need not be
	// repeated.
	var t *redistopic.Topic
	switch {
	case r.Mode != driver.Exclusive:
		t = d.topics.JoinActiveChannel(channelOf(r.Mode, r.Name, false), groupOf(r.Mode))
	case !d.options.Fair:
		t = d.topics.JoinActive(r.Name)
	}
	turn := ""
	if t != nil && !r.NoWait && r.Mode == driver.Exclusive {
		turn = redistopic.Text(t.Ticket(), false)
	}
	l, refused, err := d.try(ctx, r, false, turn)
	if l != nil && turn != "" {
		t.Granted(r.TTL)
	}
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
	r.Events.Waiting()
	l, err = d.ask(ctx, r, t, refused)
	if l != nil || !inQueue && !intends(r) || errors.Is(err, driver.ErrUnknown) { // an unknown outcome is a ghost already
		return l, err
	}
	return nil, d.depart(r, err)
}

// obstacle is why a request was refused.
type obstacle struct {
	left      time.Duration // of the hold, unless it is renewed; negative if it does not expire
	elsewhere bool          // the end of the hold is told on the channel of the other kind of lock: see channelOf
	place     redistopic.Place
	limit     int // of permits
}

// groupOf returns the group of those who wait in a mode. Of those who wait for permits one can want more than another.
func groupOf(m driver.Mode) int {
	if m == driver.Permit {
		return redistopic.Each
	}
	return int(m)
}

// ask asks again whenever the lock may have become free. T is the topic that
// the caller has joined before, if any. A caller that was woken and then cannot
// ask wakes another caller of this process. A waiter for a fair lock has a
// channel of its own, which nobody joins again.
func (d *Driver) ask(ctx context.Context, r *driver.Request, t *redistopic.Topic, refused obstacle) (*lease, error) {
	timer := time.NewTimer(pause(refused.left))
	defer timer.Stop()
	inLine := !d.options.Fair && r.Mode == driver.Exclusive
	elsewhere := false // the channel on which t listens
	moves := false     // the slot: if this caller leaves, its wake-up may be for another one
	inQueue := d.queues(r)
	leave := func(pass bool) {
		if inQueue {
			t.LeaveForGood()
		} else {
			t.Leave(pass)
		}
	}
	for {
		if t != nil && refused.elsewhere != elsewhere {
			t.Leave(true) // others of this process have to change the channel, too
			t = nil
		}
		if elsewhere = refused.elsewhere; t == nil {
			channel := channelOf(r.Mode, r.Name, elsewhere)
			if inQueue {
				channel += ":" + r.Hold
			}
			t = d.topics.JoinChannel(channel, groupOf(r.Mode))
		}
		if refused.place.Ticket != 0 { // from now on the topic knows when to ask
			timer.Stop()
			t.Placed(refused.place, pause(refused.left))
			refused.place = redistopic.Place{}
		}
		if r.Mode == driver.Permit && r.Limit <= 0 && refused.limit > 0 {
			own := *r
			own.Limit = -refused.limit // counts if the limit is forgotten before this caller listens
			r = &own
		}
		overdue := false
		select {
		case <-t.Wake:
		case <-timer.C:
			overdue = true
		case <-ctx.Done():
			leave(moves)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		case <-d.life.Open().Done():
			leave(false)
			return nil, driver.ErrClosed
		}
		if ctx.Err() != nil {
			leave(true)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
		turn := ""
		if inLine && !elsewhere {
			ticket, due, void := t.TakeTurn()
			if void && !overdue {
				continue
			}
			turn = redistopic.Text(ticket, due || overdue)
		}
		var l *lease
		var err error
		l, refused, err = d.try(ctx, r, true, turn)
		if l != nil && turn != "" {
			t.Granted(r.TTL)
		}
		if moves = slotMoves(err); moves { // nothing was done, and the place in a queue is kept
			refused.elsewhere = elsewhere
			timer.Reset(moving/2 + rand.N(moving/2))
			continue
		}
		if err != nil && err == ctx.Err() { // not sent: the last answer is still that somebody holds the lock
			err = fmt.Errorf("%w: %w", driver.ErrLocked, err)
		}
		if err == driver.ErrSealed {
			t.LeaveForGood() // whoever watches the old backend of a migration must not count callers that only ask as waiters
			return nil, err
		}
		if l != nil || err != nil {
			leave(l == nil || r.Mode == driver.Read) // other readers of this process may join
			return l, err
		}
		timer.Reset(pause(refused.left))
	}
}

// pause is how long to wait for a message: until the lock expires if nobody renews it, and at most until the backstop.
func pause(left time.Duration) time.Duration {
	limit := backstop - time.Duration(rand.Int64N(int64(backstop/4)))
	if left < 0 || left > limit {
		return limit
	}
	return left + time.Millisecond // the key is there for all of its last millisecond
}

// try asks once. Without an error and a lease the lock is taken. Again says
// that the attempt was refused before, and turn is what redistopic.Text
// returns, or "" for one that is in no line. If the answer is unclear, the
// cleaner removes what may be left.
func (d *Driver) try(ctx context.Context, r *driver.Request, again bool, turn string) (*lease, obstacle, error) {
	o := d.newOp(r, nil)
	o.again, o.turn = again, turn
	if d.options.Fence != FenceNone && r.Mode != driver.Permit {
		o.tokens = min(max(r.Events.Tokens(), 1), maxTokens)
		o.marks = !d.options.Fair && r.Mode == driver.Exclusive && d.marks.Load()
	}
	if err, doubt := d.carryOut(ctx, o, d.life.Open().Done()); doubt {
		return nil, obstacle{}, fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	} else if err != nil {
		return nil, obstacle{}, err
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
		return nil, obstacle{}, err
	case a.code == sealedCode:
		return nil, obstacle{}, driver.ErrSealed
	case a.code == limitCode:
		return nil, obstacle{}, driver.ErrLimit
	case a.code == elsewhereCode && d.options.Fair:
		if a.left < 0 || a.left > unheard {
			a.left = unheard
		}
		return nil, obstacle{left: a.left}, nil
	case a.code != grantedCode:
		return nil, obstacle{left: a.left, elsewhere: a.code == elsewhereCode, place: a.line, limit: a.limit}, nil
	}
	if !fenced {
		a.first, a.n = 0, 0
	}
	l := d.newLease(r, sent, uint64(a.first), a.n)
	l.markKnown, l.marked = marks, a.moved
	if acks < d.options.WaitReplicas {
		return nil, obstacle{}, d.undo(ctx, l, acks)
	}
	return l, obstacle{}, nil
}
