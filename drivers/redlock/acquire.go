package redlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/go-dsync/dsync/driver"
)

const (
	// longestVote bounds how long an attempt waits for a majority of the nodes; half the TTL if that is less.
	longestVote = 2500 * time.Millisecond

	// repeats is how often nodes that refused are asked again by one that got the first node: who held the lock is about to delete
	// it there too, or another one is about to give up.
	repeats     = 3
	firstRepeat = 200 * time.Microsecond
)

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	l, err := d.acquire(ctx, r)
	if err == nil && d.keep(l) {
		return l, nil
	}
	defer d.leave()
	if err == nil { // granted while Close began
		err = d.giveUp(ctx, l, driver.ErrClosed)
	}
	return nil, err
}

func (d *Driver) acquire(ctx context.Context, r *driver.Request) (*lease, error) {
	// Where messages of the name arrive already, listen before the first try: then that needs no second one.
	var t *topic
	first := d.firstNode(r.Name)
	if !r.NoWait {
		t = d.ears[first].joinActive(r.Name)
	}
	l := d.newLease(r, r.Hold)
	l.askAll()
	err := l.vote(ctx)
	if err != nil {
		if err = d.giveUp(ctx, l, err); !r.NoWait && isRefusal(err) {
			return d.wait(ctx, r, first, t)
		}
		l = nil
	}
	if t != nil {
		t.leave(false)
	}
	return l, err
}

// isRefusal reports whether an attempt ended since somebody else holds the lock, and nothing else.
func isRefusal(err error) bool {
	return errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrClosed) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// askAll asks all nodes that were not asked yet, or refused.
func (l *lease) askAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.goal = decision
	select {
	case <-l.changed: // of the goal before
	default:
	}
	for i := range l.votes {
		if s := l.votes[i].state; s == unasked || s == refused {
			l.votes[i].ask()
		}
	}
	for i := range l.votes {
		if v := &l.votes[i]; v.state == queued {
			v.hand()
		}
	}
	l.check()
}

// vote waits until the attempt is decided. Without an error the lease is held.
func (l *lease) vote(ctx context.Context) error {
	d := l.driver
	patience := d.options.NodeTimeout
	limit := l.sent + min(int64(longestVote), int64(l.ttl/2))
	for {
		reached := l.await(ctx, patience, d.closing)
		if err, decided := l.decide(); decided {
			return err
		}
		switch now := d.now(); {
		case ctx.Err() != nil:
			return l.unfinished(ctx.Err())
		case d.isClosing():
			return driver.ErrClosed
		case now > limit:
			return l.unfinished(driver.ErrUnavailable)
		case !reached:
			l.leaveBehind(now)
		}
	}
}

// decide tells how the vote has ended, if it has.
func (l *lease) decide() (err error, decided bool) {
	d := l.driver
	l.mu.Lock()
	defer l.mu.Unlock()
	yes, no, pending := l.tally()
	switch {
	case yes >= d.quorum:
		expires := l.sent + int64(l.ttl)
		if d.now() >= expires-int64(drift(l.ttl)) {
			return fmt.Errorf("%w: the answers came too late", driver.ErrUnknown), true
		}
		l.goal, l.phase = nothing, held
		l.expires.Store(expires)
		return nil, true
	case pending > 0 && (yes+pending >= d.quorum || yes+no < d.quorum):
		return nil, false
	case yes+no >= d.quorum:
		return driver.ErrLocked, true
	}
	return l.outOfReach(), true
}

// outOfReach says why there is no majority of answers. It is called with mu held.
func (l *lease) outOfReach() error {
	var last error
	forbidden := 0
	for i := range l.votes {
		v := &l.votes[i]
		switch {
		case errors.Is(v.err, fs.ErrPermission):
			forbidden++
			last = v.node().of(v.err)
		case v.err != nil && forbidden == 0:
			last = v.node().of(v.err)
		}
	}
	switch {
	case forbidden > len(l.votes)-l.driver.quorum:
		return last
	case last == nil:
		return fmt.Errorf("%w: too few nodes answered", driver.ErrUnavailable)
	}
	return fmt.Errorf("%w: too few nodes answered, the last because of: %w", driver.ErrUnavailable, last)
}

// unfinished is the error of an attempt that ended for another reason than its votes.
func (l *lease) unfinished(why error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, no, _ := l.tally()
	if why != driver.ErrUnavailable {
		if no > 0 && no > len(l.votes)-l.driver.quorum {
			return fmt.Errorf("%w: %w", driver.ErrLocked, why)
		}
		return why
	}
	return l.outOfReach()
}

// leaveBehind gives up waiting for nodes that are slower than a majority of the others by more than NodeTimeout.
func (l *lease) leaveBehind(now int64) {
	d := l.driver
	l.mu.Lock()
	defer l.mu.Unlock()
	yes, no, _ := l.tally()
	if yes+no < d.quorum {
		return
	}
	for i := range l.votes {
		v := &l.votes[i]
		if v.state != queued && v.state != asking {
			continue
		}
		v.late = true
		if at := v.node().flight.Load(); at != 0 && now-at >= int64(d.options.NodeTimeout) {
			v.node().hung.Store(true)
		}
	}
	l.check()
}

// giveUp undoes an attempt and returns err, after the nodes said that nothing is left of it, or else with ErrUnknown.
func (d *Driver) giveUp(ctx context.Context, l *lease, err error) error {
	l.mu.Lock()
	l.undo()
	l.goal = silence
	select {
	case <-l.changed:
	default:
	}
	l.check()
	l.mu.Unlock()
	if l.await(ctx, d.options.NodeTimeout, nil) || errors.Is(err, driver.ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", err, driver.ErrUnknown)
}

// drift is what clocks may differ by during a TTL.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// attempt is a lease with a value of its own: what is left of an attempt before must not be taken for it.
func (d *Driver) attempt(r *driver.Request, number int) *lease {
	return d.newLease(r, r.Hold+attemptMark+strconv.Itoa(number))
}

const attemptMark = "#"

// wait asks one node again whenever the lock may have become free, and the others only if that grants it. So those who wait do not
// share the votes out among them until nobody has a majority, and cost little. Whatever woke a caller that then could not ask is
// passed on to another one of this process.
func (d *Driver) wait(ctx context.Context, r *driver.Request, first int, t *topic) (*lease, error) {
	r.Events.Waiting()
	if t == nil {
		t = d.ears[first].join(r.Name)
	}
	pause := firstPoll
	timer := time.NewTimer(jitter(pause))
	defer timer.Stop()
	for number := 1; ; number++ {
		next := first
		select {
		case <-t.wake:
		case <-timer.C:
			next = (first + number) % len(d.nodes) // not always the same: its key may be stale
		case <-ctx.Done():
			t.leave(false)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		case <-d.closing:
			t.leave(false)
			return nil, driver.ErrClosed
		}
		if ctx.Err() != nil {
			t.leave(true)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
		l := d.attempt(r, number)
		err := l.askOneThenAll(ctx, next)
		if err == nil {
			t.leave(false)
			return l, nil
		}
		if err = d.giveUp(ctx, l, err); !isRefusal(err) {
			t.leave(true)
			return nil, err
		}
		pause = min(pause*3/2, lastPoll)
		timer.Reset(jitter(pause))
	}
}

// How long to wait without a message: the lock may be held by a client that sends none, or expire.
const (
	firstPoll = 10 * time.Millisecond
	lastPoll  = 150 * time.Millisecond
)

// jitter returns a time around d, so that those who began together do not go on together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// askOneThenAll asks one node, or the one after it that can be asked, and all others if that grants.
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
		l.askAll() // those that are out of reach may be back
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

// first waits for the answer of the one node that was asked. It returns ErrLocked if the node refuses, and not answered if another
// one is to be asked.
func (l *lease) first(ctx context.Context, v *vote) (err error, answered bool) {
	d := l.driver
	limit := min(longestVote, l.ttl/2)
	reached := l.await(ctx, min(limit, 4*d.options.NodeTimeout), d.closing)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case v.counts():
		return nil, true
	case v.state == refused:
		return driver.ErrLocked, true
	case v.state == failed:
		return nil, false
	case reached:
		return nil, false
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err()), false
	case d.isClosing():
		return driver.ErrClosed, false
	}
	v.late = true
	return nil, false
}

// firstNode is where those who wait for a name begin, and listen: one node for all of them, and another one for other names.
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
