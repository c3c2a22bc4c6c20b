package dsync

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Elect makes the caller a candidate for the leadership name, and runs lead
// each time the candidate is elected, while the candidate holds name through l.
// Only one candidate leads at a time. The ctx of lead ends when the leadership
// is lost. As far as the backend's promises go, it ends before another
// candidate can be elected. context.Cause then returns the loss. term.Token()
// rises from term to term. Send it with every write, so that the resource can
// refuse a late leader (see package guard).
//
// When lead returns while it still leads, Elect resigns and returns what Do
// would return: the error of lead unchanged, or a [*DoError]. After a loss
// Elect waits for lead to return and ignores its error. It pauses at random for
// up to a second, and becomes a candidate again. So two calls to lead never
// overlap, and a lead that ignores its ctx delays only its own next term.
//
// Elect returns when ctx ends: a candidate gives up, and a leader resigns as
// soon as lead has returned. Elect also returns when Lock fails with an error
// that a retry cannot fix, such as ErrClosed. Calls through one [Owner] are one
// candidate, because its locks are reentrant.
func Elect(ctx context.Context, l Locker, name string, lead func(ctx context.Context, term *Lease) error, opts ...LockOption) error {
	election := observeElection(l, name)
	defer election.Over()
	over := func() error { return &LockError{"lock", name, newWaitError(ctx, nil, nil, false)} }
	for {
		lost := false
		err := Do(election.Campaign(ctx), l, name, func(under context.Context) error {
			if ctx.Err() != nil { // the grant arrived just as ctx ended
				return over()
			}
			term := LeaseFrom(under)
			under = election.Elected(under, ctx, termOf(term))
			defer func() { election.TermOver(endOf(term)) }() // even if lead panics
			err := lead(under, term)
			lost = errors.Is(term.Err(), ErrLost)
			return err
		}, opts...)
		election.NotElected(outcomeOf(ctx, err), failureOf(err))
		if !lost || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(rand.N(time.Second)):
		case <-ctx.Done():
			return over()
		}
	}
}

// Observe yields the state of name, immediately and after each change that it
// learns of, until ctx ends. It may omit some changes in quick succession, but
// never the last. A state may be out of date when it is yielded, so it makes no
// client a leader. Observe never yields an earlier state after a later one.
//
// Observe queries the backend every third of the TTL, and when a hold should
// have expired. If the backend reports changes, Observe also queries it
// immediately after a change. While the backend is out of reach, Observe tries
// again and yields nothing. It ends with any other error, which it yields:
// errors.ErrUnsupported if the backend cannot report holders, and ErrClosed.
func (c *Client) Observe(ctx context.Context, name string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		o := &observer{client: c, name: name, changed: make(chan struct{}, 1), stop: func() {}}
		defer func() { o.stop() }()
		for {
			s, err := o.query(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				o.watch()
			}
			outOfReach := transient(err) || errors.Is(err, context.DeadlineExceeded)
			switch {
			case err == nil && o.news(s):
				if !yield(s, nil) {
					return
				}
			case err != nil && !outOfReach:
				yield(Status{}, err)
				return
			}
			o.wait(ctx, s, outOfReach)
		}
	}
}

// observer is one call to Observe.
type observer struct {
	client  *Client
	name    string
	watched bool
	stop    func()        // ends the watch, if there is one
	changed chan struct{} // has an element when the driver reported a change
	seen    *Status       // yielded last
	// before the last query, while the name was free or the backend was out of
	// reach
	pause time.Duration
}

// watch makes the driver report changes, once, if the driver supports it.
func (o *observer) watch() {
	w, ok := o.client.driver.(driver.Watcher)
	if !ok || o.watched {
		return
	}
	o.watched = true
	if stop, err := w.Watch(o.name, o.change); err == nil {
		o.stop = stop
	}
}

// change records that a client acquired or released the name. The driver calls
// change.
func (o *observer) change() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// query queries the backend and waits at most a third of the TTL for the
// response.
func (o *observer) query(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, o.client.ttl/3)
	defer cancel()
	return o.client.Inspect(ctx, o.name)
}

// news reports whether s has a different holder than the last yielded state and
// is later. A response may come from a server that lags behind. Tokens that are
// not durable may restart, so they prove nothing.
func (o *observer) news(s Status) bool {
	if last := o.seen; last != nil {
		same := s.Held == last.Held && s.Hold == last.Hold && s.Owner == last.Owner && s.Note == last.Note && s.Token == last.Token &&
			s.Used == last.Used && s.Limit == last.Limit
		behind := o.client.info.Fencing == driver.Durable && s.Token > 0 && s.Token < last.Token
		if same || behind {
			return false
		}
	}
	o.seen = &s
	return true
}

const (
	minAskPause   = 10 * time.Millisecond
	maxReachPause = 500 * time.Millisecond
)

// wait returns when the next query is due: after a change that the driver
// reports, or after a pause. The pause doubles from query to query while the
// backend is out of reach. It also doubles while the name is free, because not
// every backend reports a grant.
func (o *observer) wait(ctx context.Context, s Status, outOfReach bool) {
	pause := o.client.ttl / 3
	if s.Held {
		o.pause = 0
		if s.TTL > 0 {
			pause = min(pause, max(s.TTL, minAskPause))
		}
	} else {
		if outOfReach {
			pause = min(pause, maxReachPause)
		}
		o.pause = min(pause, max(2*o.pause, minAskPause))
		pause = o.pause
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-o.changed:
		o.pause = 0
	case <-ctx.Done():
	case <-o.client.closing:
	}
}
