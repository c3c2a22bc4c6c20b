package dsync

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
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
func Elect(ctx context.Context, l Locker, name string, lead func(ctx context.Context, term *Lease) error) error {
	election := observeElection(l, name)
	defer election.Over()
	over := func() error { return &opError{"lock", name, newWaitError(ctx, nil, nil, false)} }
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
		})
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
