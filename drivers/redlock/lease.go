package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// lease is one attempt to acquire a lock, with its own value, and the hold
// after its grant.
type lease struct {
	linked.Links[lease] // in redisdriver.Life.leases

	driver  *Driver
	request *driver.Request
	value   string        // value of the key of the lock, on the nodes with a grant
	changed chan struct{} // receives an element when the goal may have been reached

	redisdriver.Hold
	votes    []vote
	goal     goal
	ttl      time.Duration // TTL in requests to set the value
	sent     int64         // when the attempt began
	removed  int           // nodes with a confirmed deletion of the value
	missed   int           // nodes without the value, or with the value until its TTL ends
	crowd    int           // number of other clients that listened for the end of the hold
	outvoted bool          // the attempt ended because a majority refused
	sealed   bool          // the only node refused because of a seal
	tells    bool          // the attempt was a hold, and waiters get a message about its end
}

// goal is the event that the caller of await waits for.
type goal uint8

const (
	nothing  goal = iota
	decision      // the outcome of the vote
	freedom       // a majority of the nodes is free, or cannot be freed
	silence       // no node has the value
)

func (d *Driver) newLease(r *driver.Request, value string) *lease {
	l := &lease{
		driver: d, request: r, value: value, ttl: r.TTL, sent: d.life.Now(),
		changed: make(chan struct{}, 1), votes: make([]vote, len(d.nodes)),
	}
	for i := range l.votes {
		l.votes[i].lease, l.votes[i].index = l, uint8(i)
	}
	l.Term.Extend(l.sent + int64(r.TTL))
	return l
}

func (l *lease) Tokens() (first uint64, n int) { return 0, 0 }

func (l *lease) Expires() time.Time { return l.driver.life.At(l.Term.Expires()) }

// end returns the time by which the value is gone from every node.
func (l *lease) end() int64 {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.Term.Over()
}

// tally counts the votes of an attempt: the votes for it, the votes against it,
// and the pending votes that may still arrive in time.
func (l *lease) tally() (yes, no, pending int) {
	for i := range l.votes {
		v := &l.votes[i]
		switch {
		case v.counts():
			yes++
		case v.state == refused:
			no++
		case (v.state == queued || v.state == asking) && !v.late:
			pending++
		}
	}
	return yes, no, pending
}

// denied returns why a vote was lost. The caller holds Mu.
func (l *lease) denied() error {
	if l.sealed {
		return driver.ErrSealed
	}
	return driver.ErrLocked
}

// aim sets the goal, and cancels a pending wake-up for the previous goal. The
// caller holds Mu.
func (l *lease) aim(at goal) {
	l.goal = at
	select {
	case <-l.changed:
	default:
	}
}

// check wakes the waiter if its goal has been reached. The caller holds Mu.
func (l *lease) check() {
	reached := false
	switch l.goal {
	case decision:
		yes, no, pending := l.tally()
		lost := yes+no >= l.driver.quorum && yes+pending+l.count(unasked) < l.driver.quorum
		reached = yes >= l.driver.quorum || pending == 0 || lost
	case freedom:
		reached = l.removed >= l.driver.quorum && l.told() || l.removed+l.deletions() < l.driver.quorum
	case silence:
		reached = l.deletions() == 0
	}
	if reached {
		l.pass()
	}
}

// pass wakes another waiter.
func (l *lease) pass() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// told reports whether the waiters' node has reported the number of listeners,
// or is impaired. The caller holds Mu.
func (l *lease) told() bool {
	v := &l.votes[l.driver.firstNode(l.request.Name)]
	return v.state == gone || v.node().impaired()
}

// count counts the votes in a state. The caller holds Mu.
func (l *lease) count(s state) (n int) {
	for i := range l.votes {
		if l.votes[i].state == s {
			n++
		}
	}
	return n
}

// deletions counts the nodes that may have the value. The caller holds Mu.
func (l *lease) deletions() int { return len(l.votes) - l.count(gone) }

// undo requests the deletion of the value on each node that has the value, or
// may get it. The caller holds Mu.
func (l *lease) undo() {
	if l.Phase < redisdriver.Ending {
		l.Phase = redisdriver.Ending
	}
	for i := range l.votes {
		l.votes[i].undo()
	}
}

// await waits until the goal is reached. It returns false if ctx ends, limit
// passes (0 means no limit) or stop is closed first.
func (l *lease) await(ctx context.Context, limit time.Duration, stop <-chan struct{}) bool {
	select {
	case <-l.changed:
		return true
	default:
	}
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-l.changed:
		return true
	case <-ctx.Done():
	case <-expired:
	case <-stop:
	}
	return false
}

// Release implements driver.Lease. It returns when a majority of the nodes is
// free again, including the waiters' node unless that node is late.
func (l *lease) Release(ctx context.Context) error {
	d := l.driver
	l.Mu.Lock()
	switch l.Phase {
	case redisdriver.Held:
		l.undo()
		l.tells = true
		l.votes[d.firstNode(l.request.Name)].tellWaiters()
	case redisdriver.Over:
		l.Mu.Unlock()
		return driver.ErrNotHeld
	}
	l.goal = freedom
	l.check()
	l.Mu.Unlock()
	d.life.BeginRelease(l)
	defer d.life.Leave()

	for {
		reached := l.await(ctx, d.options.NodeTimeout, nil)
		if err, done := l.released(reached); done {
			l.pass()
			d.expectOthers(l)
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
		}
	}
}

// expectOthers makes the driver listen for a while for a name that other
// clients are waiting for, and record their number (see standBack).
func (d *Driver) expectOthers(l *lease) {
	l.Mu.Lock()
	contended, crowd := l.Awaited, l.crowd
	l.Mu.Unlock()
	if !contended {
		return
	}
	d.ears[d.firstNode(l.request.Name)].Join(channel(l.request.Name), 0).Leave(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.crowds) >= maxCrowds {
		clear(d.crowds)
	}
	d.crowds[l.request.Name] = crowd
}

// maxCrowds bounds Driver.crowds, which is a hint.
const maxCrowds = 1024

// released returns the outcome of a release, if it is clear. Until the goal is
// reached, the driver may not know whether waiters listen.
func (l *lease) released(reached bool) (err error, done bool) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	switch {
	case l.Phase == redisdriver.Over:
		return driver.ErrNotHeld, true
	case l.removed >= l.driver.quorum && (!reached || l.told()):
		l.Awaited = l.Awaited || !l.told()
		l.Phase = redisdriver.Over
		return nil, true
	case l.removed+l.deletions() < l.driver.quorum:
		l.Phase = redisdriver.Over
		return driver.ErrNotHeld, true
	}
	return nil, false
}

// Leave implements driver.Leaver.
func (d *Driver) Leave(ctx context.Context, granted driver.Lease, ttl time.Duration) error {
	return d.life.Abandon(ctx, granted.(*lease), ttl)
}
