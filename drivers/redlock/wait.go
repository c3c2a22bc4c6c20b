package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

const (
	// repeats is how often a waiter, granted the first node, asks the refusing nodes again: the last holder is about to delete its value
	// there too, or another waiter is about to give up.
	repeats     = 3
	firstRepeat = 200 * time.Microsecond
)

// attempt returns a lease with a value of its own, so that remains of an earlier attempt cannot pass for this one.
func (d *Driver) attempt(r *driver.Request, number int) *lease {
	return d.newLease(r, r.Hold+attemptMark+strconv.Itoa(number))
}

const attemptMark = "#"

// wait asks one node again whenever the lock may have become free, and the other nodes only if the one grants. So waiters do not
// share out the votes until nobody has a majority, and cost little. A waiter that was woken and then cannot ask wakes another waiter of
// this process.
func (d *Driver) wait(ctx context.Context, r *driver.Request, first int, t *redistopic.Topic) (*lease, error) {
	r.Events.Waiting()
	if t == nil {
		t = d.ears[first].Join(r.Name)
	}
	pause := firstPoll
	timer := time.NewTimer(jitter(pause))
	defer timer.Stop()
	for number := 1; ; number++ {
		next := first
		select {
		case <-t.Wake:
		case <-timer.C:
			next = (first + number) % len(d.nodes) // not always the same node: its key may be stale
		case <-ctx.Done():
			t.Leave(false)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		case <-d.life.Open().Done():
			t.Leave(false)
			return nil, driver.ErrClosed
		}
		if ctx.Err() != nil {
			t.Leave(true)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
		l := d.attempt(r, number)
		err := l.askOneThenAll(ctx, next)
		if err == nil {
			t.Leave(false)
			return l, nil
		}
		if err = d.giveUp(ctx, l, err); !isRefusal(err) {
			t.Leave(true)
			return nil, err
		}
		pause = min(pause*3/2, lastPoll)
		timer.Reset(jitter(pause))
	}
}

// The pauses between polls: the lock may expire, or its holder's client may send no message.
const (
	firstPoll = 10 * time.Millisecond
	lastPoll  = 150 * time.Millisecond
)

// jitter returns a time around d, to part waiters with a common beginning.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// askOneThenAll asks one node, or the next one in reach, and all others if it grants.
func (l *lease) askOneThenAll(ctx context.Context, first int) error {
	d := l.driver
	asked := false
	for i := range l.votes {
		v := &l.votes[(first+i)%len(l.votes)]
		if v.node().impaired() {
			continue
		}
		asked = true
		l.mu.Lock()
		l.goal = decision
		v.ask()
		v.hand()
		l.mu.Unlock()
		if err, answered := l.first(ctx, v); err != nil || answered {
			if err != nil {
				return err
			}
			break
		}
	}
	if !asked {
		l.askAll() // nodes that were out of reach may be back
		return l.vote(ctx)
	}
	for i := 0; ; i++ {
		l.askAll()
		err := l.vote(ctx)
		if err == nil || !isRefusal(err) || i == repeats {
			return err
		}
		if !d.sleep(ctx, rand.N(firstRepeat<<i)) {
			return err
		}
	}
}

// first waits for the answer of the asked node. The error is ErrLocked if the node refuses, and answered false if the next node has to be
// asked.
func (l *lease) first(ctx context.Context, v *vote) (err error, answered bool) {
	d := l.driver
	limit := min(longestVote, l.ttl/2)
	reached := l.await(ctx, min(limit, 4*d.options.NodeTimeout), d.life.Open().Done())
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case v.counts():
		return nil, true
	case v.state == refused:
		return l.denied(), true
	case v.state == failed:
		return nil, false
	case reached:
		return nil, false
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err()), false
	case d.life.Open().Err() != nil:
		return driver.ErrClosed, false
	}
	v.late = true
	return nil, false
}

// firstNode is the waiters' node of a name, for listening and for the first request: one node for all waiters, and another one for other
// names.
func (d *Driver) firstNode(name string) int {
	sum := uint32(2166136261)
	for i := range len(name) {
		sum = (sum ^ uint32(name[i])) * 16777619
	}
	first := int(sum % uint32(len(d.nodes)))
	for i := range d.nodes {
		if at := (first + i) % len(d.nodes); !d.nodes[at].impaired() {
			return at
		}
	}
	return first
}
