package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
)

// localQueue orders the requests of this driver for one key, because the server
// would grant a session its own lock again. There is one queue per key, and not
// per name, because two names may have the same key.
//
// On the shared sessions, which carry many locks, at most one request for the
// key is in progress at a time. Waiting attempts stand in the queue, and only
// the first of them sends a request to the server.
type localQueue struct {
	key  AdvisoryKey
	uses int
	// the holds, until their end on the server, as far as known; the first one
	// excludes the same modes as all of them together
	holders linked.List[lease, *lease]
	busy    bool // a request is in progress
	// attempts with NoWait: each sends one request, as soon as none is in
	// progress
	tries  attempts
	queued attempts // the other attempts; the first one sends a request, or waits on the server
}

// attempt is a request in a localQueue.
type attempt struct {
	mode    driver.Mode
	verdict verdict
	ready   chan struct{} // closed with the verdict; nil if the verdict was immediate
}

// attempts are in the order of their arrival.
type attempts []*attempt

// remove reports whether the attempt was among them.
func (all *attempts) remove(t *attempt) bool {
	i := slices.Index(*all, t)
	if i >= 0 {
		*all = slices.Delete(*all, i, i+1)
	}
	return i >= 0
}

// verdict is a localQueue's decision about an attempt.
type verdict uint8

const (
	wait verdict = iota // in the queue
	// on a session of many locks, and the queue is busy until the attempt is
	// concluded
	tryNow
	// wait on the server, behind Reads of this driver, so that the server
	// orders the attempt relative to other clients
	enqueue
	refuse // this driver holds the lock, or waits to write
)

// enterQueue returns the queue of a key, which stays in use until leaveQueue is
// called.
func (d *Driver) enterQueue(key AdvisoryKey) *localQueue {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[key]
	if q == nil {
		q = &localQueue{key: key}
		d.queues[key] = q
	}
	q.uses++
	return q
}

// leaveQueue is called with mu held.
func (d *Driver) leaveQueue(q *localQueue) {
	if q.uses--; q.uses == 0 {
		delete(d.queues, q.key)
	}
}

// join adds an attempt to the queue.
func (d *Driver) join(q *localQueue, r *driver.Request) *attempt {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &attempt{mode: r.Mode}
	if r.NoWait {
		if !q.judge(t, true) {
			t.ready = make(chan struct{})
			q.tries = append(q.tries, t)
		}
		return t
	}
	q.queued = append(q.queued, t)
	if len(q.queued) > 1 || !q.judge(t, false) {
		t.ready = make(chan struct{})
	}
	return t
}

// await waits for the verdict.
func (d *Driver) await(ctx context.Context, q *localQueue, t *attempt) error {
	var err error
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
	case <-d.life.Open().Done():
		err = driver.ErrClosed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.verdict == tryNow { // its turn came at the same moment
		q.busy = false
	}
	if q.tries.remove(t) && errors.Is(err, driver.ErrLocked) {
		err = ctx.Err() // the lock is not known to be held
	}
	q.queued.remove(t) // immediately, because otherwise an attempt that has left could get the turn
	q.advance()
	return err
}

// endRequest ends the request in progress.
func (d *Driver) endRequest(q *localQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.busy = false
	q.advance()
}

// dequeue removes an attempt from the queue.
func (d *Driver) dequeue(q *localQueue, t *attempt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.queued.remove(t)
	q.advance()
}

// advance lets the next attempts continue. It is called with Driver.mu held
// whenever anything has changed.
func (q *localQueue) advance() {
	if len(q.queued) > 0 && q.queued[0].verdict == wait {
		q.judge(q.queued[0], false)
	}
	q.tries = slices.DeleteFunc(q.tries, func(t *attempt) bool { return q.judge(t, true) })
}

// judge gives an attempt its verdict and reports whether there is one yet.
// Called with Driver.mu held.
func (q *localQueue) judge(t *attempt, noWait bool) bool {
	switch holder := q.holders.First(); {
	case noWait && t.mode == driver.Read && slices.ContainsFunc(q.queued, (*attempt).writes):
		t.verdict = refuse // a Read does not overtake a Write
	case holder == nil || !holder.r.Mode.Excludes(t.mode):
		if q.busy {
			return false
		}
		t.verdict, q.busy = tryNow, true
	case noWait:
		t.verdict = refuse
	case holder.r.Mode == driver.Read:
		t.verdict = enqueue
	default:
		return false
	}
	if t.ready != nil {
		close(t.ready)
	}
	return true
}

// writes reports whether the attempt is for a mode that no Read may overtake.
func (t *attempt) writes() bool { return t.mode != driver.Read }

// on reports whether a hold of the key is on the session. Called with Driver.mu
// held; q may be nil.
func (q *localQueue) on(s *session) bool {
	if q != nil {
		for l := range q.holders.All() {
			if l.session == s {
				return true
			}
		}
	}
	return false
}

const (
	// settleFor is how long a canceled caller waits for the release of its
	// lock, if there is one. That is enough for two short requests, after which
	// nothing is left in doubt. No caller waits longer.
	settleFor = 50 * time.Millisecond

	// backstop is the interval at which the driver checks that the server still
	// knows a wait, because the connection may hang.
	backstop = 1500 * time.Millisecond

	// Such a check costs the server about a microsecond for each of its
	// connections, so the driver checks less often if a check takes long.
	// Clients that wait together need one processor for each lookShare of them.
	// longBackstop bounds the pause.
	lookShare    = 3000
	longBackstop = 15 * time.Second
)

// waitAtServer waits in the server's queue for the key, on a separate session.
func (d *Driver) waitAtServer(ctx context.Context, l *lease, waited bool) error {
	w, op, err := d.enqueue(ctx, l)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", driver.ErrLocked, err)
		}
		return err
	}
	if !waited {
		// the statement is sent, so from now on the call has its place in the
		// server's queue
		l.r.Events.Waiting()
	}
	err = d.watch(ctx, w, op)
	if err == nil {
		return refusal(op.err)
	}
	if !w.abandon(op) {
		<-op.done
		return refusal(op.err)
	}
	d.withdraw(w, op)
	return d.settle(op, err)
}

// enqueue begins a wait on the server.
func (d *Driver) enqueue(ctx context.Context, l *lease) (*session, *operation, error) {
	for range 3 {
		w, err := d.waiter(ctx, d.sessionTTL(l.r))
		if err != nil {
			return nil, nil, err
		}
		if op := d.start(w, block, l); op != nil {
			return w, op, nil
		}
	}
	return nil, nil, errBreaks
}

// watch waits until the operation is concluded, or returns the reason why the
// wait ended first. It ends a session whose wait the server does not know,
// because the connection may hang and the server may have granted the lock
// without the client's knowledge.
func (d *Driver) watch(ctx context.Context, w *session, op *operation) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(d.looks.pause())
	defer timer.Stop()
	looked := make(chan bool, 1)
	for missing := false; ; {
		select {
		case <-op.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		case <-d.life.Open().Done():
			return driver.ErrClosed
		case <-timer.C:
			d.life.Go(func() { looked <- d.stillWaits(ctx, w) }) // ends when ctx ends
		case waits := <-looked:
			switch {
			case waits:
				missing = false
				timer.Reset(d.looks.pause())
			case !missing: // the wait still exists, or it was granted at this moment
				missing = true
				timer.Reset(answerIn)
			default:
				w.end(errors.New("the server does not know the wait"))
				d.dropIdle()
			}
		}
	}
}

// stillWaits reports whether w is still waiting for a lock. It queries the
// server over other sessions until a query succeeds.
func (d *Driver) stillWaits(ctx context.Context, w *session) bool {
	for pause := firstDig; ; pause = min(2*pause, lastDig) {
		rows, err := d.query(ctx, waitsQuery, int4(w.pid), []byte(w.id))
		if err == nil && len(rows) == 1 && len(rows[0]) == 2 && len(rows[0][1]) == 8 {
			d.looks.took(time.Duration(binary.BigEndian.Uint64(rows[0][1])) * time.Microsecond)
			return rows[0][0][0] != 0
		}
		if !d.life.Sleep(ctx, pause) {
			return true
		}
	}
}

// looks measures the time that the server takes to check a wait.
type looks struct{ cost atomic.Int64 }

// took records the time of a check. A single slow check, on a busy machine,
// means little, so the known cost at most doubles.
func (l *looks) took(cost time.Duration) {
	l.cost.Store(min(int64(cost), max(2*l.cost.Load(), int64(backstop/lookShare))))
}

// pause returns the time until the next check.
func (l *looks) pause() time.Duration {
	return min(max(time.Duration(l.cost.Load()*lookShare), backstop), longBackstop)
}

// dropIdle ends the unused sessions for waits, because they may hang too.
func (d *Driver) dropIdle() {
	for {
		d.mu.Lock()
		s := d.spareWaiter()
		d.mu.Unlock()
		if s == nil {
			return
		}
		s.end(errQuit)
	}
}

const (
	withdrawFor = 2 * time.Second // after that the connection is closed
	// until the next try, because a cancel that arrives before its statement is
	// lost
	firstCancel = 5 * time.Millisecond
	lastCancel  = 80 * time.Millisecond // the same, after doubling
	digFor      = time.Second           // the bound of one attempt to check whether a session is gone
	firstDig    = 5 * time.Millisecond
	lastDig     = time.Second
)

// withdraw ends an abandoned wait on the server, in the background.
func (d *Driver) withdraw(w *session, op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	started := d.life.Go(func() { // ends within withdrawFor, or with the driver
		d.cancelWait(w, op)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.withdrawals--
		d.changed.Broadcast()
	})
	if started { // otherwise all sessions are being closed
		d.withdrawals++
	}
}

// cancelWait cancels the statement. A canceled statement can fail with the lock
// granted, and the session then releases the lock. The session is used again
// only when every cancel has been answered, because a late cancel would hit the
// next wait.
func (d *Driver) cancelWait(w *session, op *operation) {
	ctx, cancel := context.WithTimeout(d.life.Context(), withdrawFor)
	defer cancel()
	defer d.drop(w)
	for wait := firstCancel; ctx.Err() == nil; wait = min(2*wait, lastCancel) {
		if request, err := d.startQuery(ctx, cancelQuery, int4(w.pid)); err == nil {
			select {
			case <-request.done:
			case <-request.on.behind: // the cancel may be late
				w.end(errStuck)
				return
			case <-ctx.Done():
				w.end(errStuck)
				return
			}
		}
		again := time.NewTimer(wait)
		select {
		case <-op.done:
			again.Stop()
			return
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
	w.end(errStuck)
}

var errStuck = fmt.Errorf("could not cancel a wait: %w", errAbandoned)
