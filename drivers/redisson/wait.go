package redisson

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// backstop is the longest time that a waiter waits before it sends another
// request, in case a message is lost.
const backstop = 5 * time.Second

// unheard is the pause between requests to read or write while the name has a
// hold of the fair lock. Only the first waiter in the queue is notified of the
// end of such a hold.
const unheard = 50 * time.Millisecond

// slotPause is the pause of a waiter while the slot of its name is moving to
// another node of the cluster.
const slotPause = 250 * time.Millisecond

// groupOf returns the group of the waiters in a mode. Waiters for permits are
// in separate groups, because one may need more permits than another.
func groupOf(m driver.Mode) int {
	if m == driver.Permit {
		return redistopic.Each
	}
	return int(m)
}

// waiting is a request that waits. The way in which it waits depends on its
// mode and the options.
type waiting struct {
	driver  *Driver
	request *driver.Request
	topic   *redistopic.Topic // nil while the request is not listening
	// for the fair lock, which has a separate channel that no caller joins
	// again
	inQueue   bool
	ticketed  bool // of all clients that wait for the plain lock
	elsewhere bool // the topic belongs to the other kind of lock
}

// listen joins the topic that reports the end of the hold in the way.
func (w *waiting) listen(elsewhere bool) {
	r := w.request
	if w.topic != nil && elsewhere != w.elsewhere {
		w.topic.Leave(true) // other waiters of this process must change the channel, too
		w.topic = nil
	}
	if w.elsewhere = elsewhere; w.topic == nil {
		channel := channelOf(r.Mode, r.Name, w.elsewhere)
		if w.inQueue {
			channel += ":" + r.Hold
		}
		w.topic = w.driver.topics.Join(channel, groupOf(r.Mode))
	}
}

// stopListening stops listening and returns l and err. A caller that was woken
// and cannot send a request passes the wake-up on. After ErrSealed it does not
// keep the subscription, so that a migration does not count the caller as a
// waiter.
func (w *waiting) stopListening(l *lease, err error, pass bool) (*lease, error) {
	switch {
	case w.topic == nil:
	case w.inQueue, err == driver.ErrSealed:
		w.topic.LeaveForGood()
	default:
		w.topic.Leave(pass)
	}
	return l, err
}

// try calls Driver.try. turn is the result of redistopic.Text, or "".
func (w *waiting) try(ctx context.Context, again bool, turn string) (*lease, answer, error) {
	l, refused, err := w.driver.try(ctx, w.request, again, turn)
	if l != nil && turn != "" {
		w.topic.Granted(w.request.TTL)
	}
	return l, refused, err
}

// wait tries again whenever the lock may have become free.
func (w *waiting) wait(ctx context.Context, refused answer) (*lease, error) {
	d, r := w.driver, w.request
	timer := time.NewTimer(pause(refused.left))
	defer timer.Stop()
	slotMoves := false // the slot: if this caller leaves, its wake-up may be for another caller
	for {
		if !slotMoves {
			w.listen(refused.code == elsewhereCode)
		}
		if refused.place.Ticket != 0 { // from now on the topic knows when to try
			timer.Stop()
			w.topic.Placed(refused.place, pause(refused.left))
			refused.place = redistopic.Place{}
		}
		if r.Mode == driver.Permit && r.Limit <= 0 && refused.limit > 0 {
			own := *r
			own.Limit = -refused.limit // for a limit that is forgotten before this caller listens
			r, w.request = &own, &own
		}
		overdue := false
		select {
		case <-w.topic.Wake:
		case <-timer.C:
			overdue = true
		case <-ctx.Done():
			return w.stopListening(nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err()), slotMoves)
		case <-d.life.Open().Done():
			return w.stopListening(nil, driver.ErrClosed, false)
		}
		if ctx.Err() != nil {
			return w.stopListening(nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err()), true)
		}
		turn := ""
		if w.ticketed && !w.elsewhere {
			ticket, due, void := w.topic.TakeTurn()
			if void && !overdue {
				continue
			}
			turn = redistopic.Text(ticket, due || overdue)
		}
		var l *lease
		var err error
		l, refused, err = w.try(ctx, true, turn)
		var demand *rueidis.RedisError
		if slotMoves = errors.As(err, &demand) && redisdial.HasCode(demand.Error(), "TRYAGAIN"); slotMoves {
			// the request was not carried out, and its place in a queue is kept
			timer.Reset(slotPause/2 + rand.N(slotPause/2))
			continue
		}
		if err != nil && err == ctx.Err() {
			// the request was not sent, so the last answer still applies: the
			// lock is taken
			err = fmt.Errorf("%w: %w", driver.ErrLocked, err)
		}
		if l != nil || err != nil {
			// other readers of this process may be granted the lock too
			return w.stopListening(l, err, l == nil || r.Mode == driver.Read)
		}
		timer.Reset(pause(refused.left))
	}
}

// pause returns the time to wait for a message: until the lock would expire
// without a renewal, but at most backstop.
func pause(left time.Duration) time.Duration {
	limit := backstop - time.Duration(rand.Int64N(int64(backstop/4)))
	if left < 0 || left > limit {
		return limit
	}
	return left + time.Millisecond // the key still exists during its last millisecond
}
