package redlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// longestVote bounds how long an attempt waits for a majority of the nodes. If
// half the TTL is shorter, that is the bound.
const longestVote = 2500 * time.Millisecond

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	return d.life.Acquire(ctx, r, d.acquire)
}

func (d *Driver) acquire(ctx context.Context, r *driver.Request) (*lease, error) {
	// If the driver is listening to messages for the name, other clients
	// probably want the name, so try one node first, as a waiter does.
	var t *redistopic.Topic
	first := d.firstNode(r.Name)
	if !r.NoWait && !d.ears[first].Quiet() {
		t = d.ears[first].JoinActive(channel(r.Name), 0, true)
	}
	crowd := 0
	if t != nil {
		crowd = d.crowd(r.Name)
		d.life.Sleep(ctx, standBack(crowd))
	}
	l := d.newLease(r, r.Hold)
	var err error
	if t != nil {
		err = l.askOneThenAll(ctx, first)
	} else {
		l.askAll()
		err = l.vote(ctx)
	}
	if err != nil {
		if err = d.giveUp(ctx, l, err); !r.NoWait && isRefusal(err) {
			r.Events.Waiting()
			return d.wait(ctx, r, first, t, crowd)
		}
		l = nil
	}
	if t != nil {
		t.Leave(false)
	}
	return l, err
}

// isRefusal reports whether an attempt ended only because another client holds
// the lock.
func isRefusal(err error) bool {
	return errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrClosed) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// askAll sends a request to each node that has not received one or has refused.
func (l *lease) askAll() {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.aim(decision)
	for i := range l.votes {
		if s := l.votes[i].state; s == unasked || s == refused {
			l.votes[i].prepare()
		}
	}
	for i := range l.votes {
		if v := &l.votes[i]; v.state == queued && !v.handed {
			v.hand()
		}
	}
	l.check()
}

// vote waits until the attempt is decided. If it returns no error, the lease is
// held.
func (l *lease) vote(ctx context.Context) error {
	d := l.driver
	begin := d.life.Now()
	limit := l.sent + min(int64(longestVote), int64(l.ttl/2))
	for {
		reached := l.await(ctx, d.options.NodeTimeout, d.life.Open().Done())
		if err, decided := l.decide(); decided {
			return err
		}
		switch now := d.life.Now(); {
		case ctx.Err() != nil:
			return l.unfinished(ctx.Err())
		case d.life.Open().Err() != nil:
			return driver.ErrClosed
		case now > limit:
			return l.unfinished(driver.ErrUnavailable)
		case !reached:
			if patience := int64(d.patience(d.options.NodeTimeout)); now-begin >= patience {
				l.stopWaiting(now, patience)
			}
		}
	}
}

// decide returns the outcome of the vote, if it is decided.
func (l *lease) decide() (err error, decided bool) {
	d := l.driver
	l.Mu.Lock()
	defer l.Mu.Unlock()
	yes, no, pending := l.tally()
	switch {
	case yes >= d.quorum:
		expires := l.sent + int64(l.ttl)
		if d.life.Now() >= expires-int64(drift(l.ttl)) {
			return fmt.Errorf("%w: the answers came too late", driver.ErrUnknown), true
		}
		l.goal, l.Phase = nothing, redisdriver.Held
		l.Term.Grant(expires)
		return nil, true
	case pending > 0 && (yes+pending >= d.quorum || yes+no < d.quorum):
		return nil, false
	case yes+no >= d.quorum:
		return l.denied(), true
	}
	return l.outOfReach(), true
}

// outOfReach returns the error of an attempt without a majority of answers. The
// caller holds Mu.
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
	return fmt.Errorf("%w: too few nodes answered; the last error: %w", driver.ErrUnavailable, last)
}

// unfinished returns the error of an attempt that ended before its vote was
// decided.
func (l *lease) unfinished(why error) error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	_, no, _ := l.tally()
	if why != driver.ErrUnavailable {
		if no > 0 && no > len(l.votes)-l.driver.quorum {
			return fmt.Errorf("%w: %w", driver.ErrLocked, why)
		}
		return why
	}
	return l.outOfReach()
}

// stopWaiting stops waiting for nodes that are slower than a majority of the
// others by more than the given patience.
func (l *lease) stopWaiting(now, patience int64) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	yes, no, _ := l.tally()
	if yes+no < l.driver.quorum {
		return
	}
	for i := range l.votes {
		v := &l.votes[i]
		if v.state != queued && v.state != asking {
			continue
		}
		v.late = true
		if at := v.node().flight.Load(); at != 0 && now-at >= patience {
			v.node().hung.Store(true)
		}
	}
	l.check()
}

// giveUp undoes an attempt. It returns err if the nodes have confirmed that
// nothing is left of the attempt. Otherwise it adds ErrUnknown to err.
func (d *Driver) giveUp(ctx context.Context, l *lease, err error) error {
	l.Mu.Lock()
	l.outvoted = isRefusal(err)
	l.undo()
	l.aim(silence)
	l.check()
	l.Mu.Unlock()
	if l.await(ctx, d.options.NodeTimeout, nil) || errors.Is(err, driver.ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", err, driver.ErrUnknown)
}

// drift returns the possible difference between clocks after a TTL.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }
