package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.beginAcquire(); err != nil {
		return nil, err
	}
	l, err := d.acquire(ctx, r)
	d.endAcquire(l)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (d *Driver) acquire(ctx context.Context, r *driver.Request) (*lease, error) {
	key, err := d.key(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	l := &lease{d: d, r: r, key: key, queue: d.enterQueue(key)}
	err = d.contend(ctx, l)
	d.mu.Lock()
	d.leaveQueue(l.queue)
	d.mu.Unlock()
	if err == nil && d.life.Open().Err() != nil {
		err = driver.ErrClosed
		l.undo()
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// contend requests the lock once it is this attempt's turn in the driver. It
// waits for the lock unless the request has NoWait.
func (d *Driver) contend(ctx context.Context, l *lease) error {
	q := l.queue
	waited := false
	t := d.join(q, l.r)
	if !l.r.NoWait {
		defer d.dequeue(q, t)
	}
	if t.ready != nil {
		if !l.r.NoWait {
			waited = true
			l.r.Events.Waiting()
		}
		if err := d.await(ctx, q, t); err != nil {
			return err
		}
	}
	if t.verdict == tryNow {
		if granted, err := d.tryHub(ctx, l); err != nil || granted {
			return err
		}
	}
	if l.r.NoWait {
		return driver.ErrLocked
	}
	return d.waitAtServer(ctx, l, waited)
}

// maxClasses is the maximum number of TTLs of fixed leases that have separate
// sessions.
const maxClasses = 8

// sessionTTL returns the TTL of the session that serves a request. Usually it
// is the TTL of the request. So the server ends a fixed lease of a frozen
// client within Info.Late, and a fixed lease survives a silent network for its
// whole duration. Fixed leases of many lengths would need many sessions, so
// these leases share sessions of shorter TTLs, which the driver keeps alive
// until the lease ends here.
func (d *Driver) sessionTTL(r *driver.Request) time.Duration {
	ttl := roundUp(r.TTL)
	if !r.Fixed {
		return ttl
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.classes[ttl] != nil || len(d.classes) < maxClasses {
		return ttl
	}
	if d.home <= ttl {
		return d.home
	}
	return time.Duration(1<<(bits.Len64(uint64(r.TTL/time.Millisecond))-1)) * time.Millisecond
}

// tryHub makes one attempt, on a session of many locks. The local queue is busy
// until the attempt is concluded.
func (d *Driver) tryHub(ctx context.Context, l *lease) (granted bool, err error) {
	ttl := d.sessionTTL(l.r)
	if s := d.sharer(l, ttl); s != nil {
		l.r.Events.Tokens()
		if op, err := d.share(ctx, l, s); op != nil {
			return d.outcome(ctx, s, op)
		} else if !errors.Is(err, errLetGo) {
			d.endRequest(l.queue)
			return false, err
		}
	}
	for range 3 {
		s, err := d.hub(ctx, ttl, l.queue)
		if err != nil {
			d.endRequest(l.queue)
			return false, err
		}
		l.r.Events.Tokens() // the block of a transaction id has enough tokens for any number
		if op := d.start(s, try, l); op != nil {
			return d.outcome(ctx, s, op)
		}
	}
	d.endRequest(l.queue)
	return false, errBreaks
}

// tried records that an attempt has ended, either on a hub, for which the local
// queue was busy, or on a separate session.
func (l *lease) tried(op *operation, s *session) {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.waiter && !op.passed {
		l.queue.busy = false
	}
	op.passed = true
	switch {
	case op.err != nil || !op.yes:
		if !s.waiter || !op.abandoned { // otherwise cancelWait still uses the session
			d.freeSession(s)
		}
		d.leaveQueue(l.queue)
	case !l.over:
		l.queue.holders.Add(l)
	}
	l.queue.advance()
}

// outcome waits for the outcome of an attempt.
func (d *Driver) outcome(ctx context.Context, s *session, op *operation) (granted bool, err error) {
	s.readAnswer(op)
	if err = d.awaitAnswer(ctx, op); err == nil || !s.abandon(op) {
		<-op.done // the operation was concluded, perhaps at this very moment
		return op.yes, refusal(op.err)
	}
	if errors.Is(err, errHangs) {
		d.letNextGo(op)
	}
	return false, d.settle(op, err)
}

// awaitAnswer waits until an operation is concluded, or returns the reason why
// the wait ended first.
func (d *Driver) awaitAnswer(ctx context.Context, op *operation) error {
	select {
	case <-op.done:
		return nil
	case <-op.on.behind:
		return errHangs
	case <-ctx.Done():
		return ctx.Err()
	case <-d.life.Open().Done():
		return driver.ErrClosed
	}
}

// letNextGo lets the next attempt for the key continue on another session
// although the current attempt, on a hanging session, is not concluded.
func (d *Driver) letNextGo(op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := op.lease.queue; !op.passed {
		op.passed, q.busy = true, false
		q.advance()
	}
}

// settle waits briefly until an abandoned attempt has left nothing behind. If
// something may be left, err also becomes ErrUnknown.
func (d *Driver) settle(op *operation, err error) error {
	timer := time.NewTimer(settleFor)
	defer timer.Stop()
	select {
	case <-op.done:
		if !errors.Is(op.err, driver.ErrUnknown) {
			return err
		}
	case <-timer.C:
	}
	return fmt.Errorf("%w: %w", err, driver.ErrUnknown)
}

// start submits the request for the lock to a session. If the session has
// ended, start frees the session and returns nil.
func (d *Driver) start(s *session, first step, l *lease) *operation {
	op := newOperation(first, l.key)
	op.lease, op.reads, op.shared = l, first != block, l.r.Mode == driver.Read
	op.after = func() { l.tried(op, s) }
	d.mu.Lock()
	l.queue.uses++ // for the operation, and later for the lease
	d.mu.Unlock()
	if s.submit(op) {
		return op
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaveQueue(l.queue)
	d.freeSession(s)
	return nil
}

// undo ends the hold of a grant that Acquire does not return.
func (l *lease) undo() {
	s := l.session
	s.mu.Lock()
	if l.phase != held || s.over {
		s.mu.Unlock()
		return
	}
	l.phase = ending
	request := l.giveBack(false)
	s.mu.Unlock()
	s.write(request)
}

// Reads of one driver share the lock of one session, which the server grants
// once. The server could count the locks of a session, but a failed statement
// may have been executed, and repeating it would take the lock from another
// Read. The server would also grant a session its own lock ahead of all
// waiters. So before a Read shares a lock, another session finds out whether
// the Read would be granted now.

// errLetGo reports that the session no longer has a lock to share.
var errLetGo = errors.New("the other Reads have let go")

// sharer returns the session whose lock a Read can share, and counts the Read
// on it, as hub does. It returns nil if there is none.
func (d *Driver) sharer(l *lease, ttl time.Duration) (s *session) {
	if l.r.Mode != driver.Read {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for other := range l.queue.holders.All() {
		if !other.session.waiter && other.session.ttl == ttl && !other.session.hangs() {
			s = other.session // the last hold is expected to be the latest to release
		}
	}
	if s != nil {
		s.carried++
	}
	return s
}

// share lets a Read share the lock of a session. It returns nil and no error if
// the Read must wait.
func (d *Driver) share(ctx context.Context, l *lease, s *session) (*operation, error) {
	if admitted, err := d.admits(ctx, l); err != nil || !admitted {
		d.drop(s)
		return nil, err
	}
	if op := d.start(s, stamp, l); op != nil {
		return op, nil
	}
	return nil, errLetGo
}

// admits asks the server whether it would grant a Read.
func (d *Driver) admits(ctx context.Context, l *lease) (bool, error) {
	op := newOperation(admit, l.key)
	op.shared = true
	if err := d.submit(ctx, op, l.queue); err != nil {
		return false, err
	}
	switch err := d.awaitAnswer(ctx, op); err {
	case nil:
		return op.yes, refusal(op.err)
	case errHangs:
		return false, err
	default:
		return false, d.settle(op, err)
	}
}

// letGo makes an operation release its lock, or its share of a lock. Called
// with mu held.
func (s *session) letGo(op *operation) {
	op.step = unlock
	if !op.shared {
		return
	}
	if n := s.shares[op.key]; n > 1 {
		s.shares[op.key], op.kept = n-1, true
	} else {
		delete(s.shares, op.key)
	}
}
