package dsync

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Elect makes the caller a candidate for the leadership name, and runs lead each time that the candidate is elected: while it holds name
// through l. Of all candidates one leads at a time. The ctx of lead ends when the leadership is lost, and before anybody else can be
// elected, as far as the backend's promises go; context.Cause then returns the loss. The term's number is term.Token(): it rises from term
// to term, and lead sends the number with what it writes, so that the resource can refuse a leader who is late (see package guard).
//
// When lead returns while it still leads, Elect resigns and returns what Do would return: the error of lead as it is, or a [*DoError].
// After a loss Elect waits for lead to return, ignores its error, pauses for up to a second at random, and is a candidate again. So lead
// never runs twice at a time, and a lead that does not heed its ctx delays its own next term alone.
//
// Elect ends when ctx is over: a candidate gives up, and a leader resigns as soon as lead has returned. Elect also ends with an error of
// Lock that another try does not mend, such as ErrClosed. Calls through one [Owner] are one candidate, since its locks are reentrant.
func Elect(ctx context.Context, l Locker, name string, lead func(ctx context.Context, term *Lease) error, opts ...LockOption) error {
	election := observeElection(l, name)
	defer election.Over()
	over := func() error { return &LockError{"lock", name, newWaitError(ctx, nil, nil, false)} }
	for {
		lost := false
		err := Do(election.Campaign(ctx), l, name, func(under context.Context) error {
			if ctx.Err() != nil { // the grant crossed the end of ctx
				return over()
			}
			term := LeaseFrom(under)
			under = election.Elected(under, ctx, termOf(term))
			defer func() { election.TermOver(endOf(term)) }() // also if lead panics
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

// Observe yields who holds name, and of permits how many are held: at once, and after each change that Observe learns of, until ctx is over. Of changes in quick succession
// some may be left out, but never the last. A state may be out of date when it is yielded, and makes nobody a leader; but no state from
// before another one is yielded after it.
//
// Observe asks the backend every third of the TTL, when a hold should have run out, and on backends that tell of changes (memory) also
// at once. While the backend is out of reach Observe goes on asking, and yields nothing. Any other error is yielded, and is the end:
// errors.ErrUnsupported if the backend cannot tell who holds a name, and ErrClosed.
func (c *Client) Observe(ctx context.Context, name string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		o := &observer{client: c, name: name, changed: make(chan struct{}, 1), stop: func() {}}
		defer func() { o.stop() }()
		for {
			s, err := o.ask(ctx)
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

// observer is one call of Observe.
type observer struct {
	client  *Client
	name    string
	watched bool
	stop    func()        // ends the watch, where there is one
	changed chan struct{} // has an element when the driver told of a change
	seen    *Status       // yielded last
	pause   time.Duration // before the last question, while nobody held the name or the backend was out of reach
}

// watch has the driver tell of changes, once, if the driver can.
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

// change notes that somebody got or gave back the name. The driver calls change.
func (o *observer) change() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// ask asks the backend, and waits no longer for the answer than a third of the TTL.
func (o *observer) ask(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, o.client.ttl/3)
	defer cancel()
	return o.client.Inspect(ctx, o.name)
}

// news reports whether s tells another holder than the state that was yielded last, and a later one: an answer may come from a server that is
// behind. Tokens that are not durable may restart, and prove nothing.
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

// wait returns when it is time for another question: after a change of which the driver tells, or after a pause. The pause doubles from
// question to question while nobody holds the name, since not every backend tells of a grant, and while the backend is out of reach.
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
