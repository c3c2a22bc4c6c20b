package dsync

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// The pauses of a contender.
const (
	firstRetry = 10 * time.Millisecond // after the backend was out of reach; doubled up to lastRetry
	lastRetry  = time.Second
	yieldFor   = time.Millisecond // after our own release, where other clients may be waiting

	ownFor = 10 * time.Second // when a wait for a lease of the same client is reported
)

// lockCall is one call to Lock, as a state machine. step chooses the next state
// under lock.mu. dwell does what the state requires, without holding the mutex,
// until an event ends the state.
//
//	state     the call                              ended by                              next
//	(begin)   not a re-entry                        callers before it                     inQueue
//	                                                no call before it                     releasing, yielding or asking
//	inQueue   waits in the queue of the process     callNext: it contends                 releasing, yielding or asking
//	releasing waits for our own release to return   the return of the release             yielding or asking
//	                                                the bound of the wait                 asking
//	yielding  leaves other clients a moment         time                                  asking
//	asking    has sent a request                    a grant                               over, with a lease
//	                                                a grant of no use                     asking, and from the second on pausing
//	                                                ErrUnavailable, ErrUnknown            pausing
//	                                                another error                         over, with the error
//	pausing   waits before its next request         time                                  asking
//	over      has a lease or an error
//
// Two more events can end each state in which a call waits. Another call may
// serve it: the previous holder by handing over its lease, or a call of the
// same group by sharing its grant. Its context or the client may also end. No
// call is served after the end of its context, and a lease takes precedence
// over an error: a call that was served before its context ended returns the
// lease. If a call is granted the lock after it was served, it releases the
// grant.
//
// From releasing to pausing the call contends. lock.contending counts the
// contenders. If one contender sends requests for all calls, no other call
// starts sending requests. A queued call also contends once callNext has chosen
// it, even before the call has woken up. When a contender ends, callNext
// chooses the next.
//
// The fields belong to the goroutine of the call. The fields that other
// goroutines change are in the waiter.
type lockCall struct {
	lock    *lock
	ctx     context.Context
	request request
	// lets other calls serve this call; nil if the call has no group and was
	// never in the queue
	waiter *waiter
	state  callState
	retry  time.Duration // the next pause, approximately

	// Used by dwell, depending on the state.
	holder   *telemetry.Call // inQueue: the call of the present holder
	wait     time.Duration   // releasing, yielding, pausing: the longest wait
	released <-chan struct{} // releasing: closed when the release has returned

	// Set by dwell.
	ended  ending
	hold   *hold        // asking: the attempt
	lease  driver.Lease // and its outcome
	answer error

	// The result, when the call has ended.
	view *Lease
	err  error
}

type callState uint8

const (
	inQueue callState = iota
	releasing
	yielding
	asking
	pausing
	over
)

// ending is the event that ended a wait.
type ending uint8

const (
	byOthers  ending = iota // the waiter was signaled
	byRelease               // released was closed
	byTime
	byContext
	byClose
)

// lockWait tries to acquire the lock until it is granted or ctx ends.
func (k *lock) lockWait(ctx context.Context, r request) (*Lease, error) {
	k.mu.Lock()
	if l := k.reenter(r); l != nil {
		k.mu.Unlock()
		return l, nil
	}
	c := lockCall{lock: k, ctx: ctx, request: r, retry: firstRetry}
	c.state = c.begin()
	if own := k.soleLease(); own != nil && !k.watched {
		defer k.watchOwn(ctx, own)()
	}
	k.mu.Unlock()
	for c.state != over {
		c.dwell()
		c.step()
	}
	return c.view, c.err
}

// step moves the call to its next state.
func (c *lockCall) step() {
	k := c.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	before := c.state
	c.wait, c.released = 0, nil
	if c.state = c.next(); c.state != over {
		return
	}
	if w := c.waiter; w != nil {
		if w.lease != nil {
			c.view, c.err = w.lease, nil
		}
		k.queue.remove(w)
	}
	if before != inQueue || c.waiter.contends {
		k.retire(c.waiter)
		k.callNext()
	}
}

// next returns the next state. Called with lock.mu held.
func (c *lockCall) next() callState {
	switch {
	case c.state == asking:
		return c.handleAnswer()
	case c.served():
		return over
	case c.ended == byContext:
		c.err = c.lock.waitError(c.ctx, nil)
		return over
	case c.ended == byClose:
		c.err = ErrClosed
		return over
	case c.state == inQueue:
		return c.awaitRelease()
	case c.state == releasing && c.ended == byRelease:
		return c.yield()
	}
	return asking
}

// served reports whether another call has served the call. Called with lock.mu
// held.
func (c *lockCall) served() bool { return c.waiter != nil && c.waiter.lease != nil }

// begin returns the state of a new call that is not a re-entry. Called with
// lock.mu held.
func (c *lockCall) begin() callState {
	k := c.lock
	waits := k.mustWait(c.request)
	if waits || c.request.group != nil {
		c.waiter = &waiter{ctx: c.ctx, request: c.request, wake: make(chan struct{}, 1)}
	}
	if waits {
		k.queue.push(c.waiter)
		c.holder = k.holder()
		return inQueue
	}
	k.contend(c.waiter)
	return c.awaitRelease()
}

// awaitRelease returns the state of a call that begins to contend. Until our
// last release of the name is answered, the backend would report that the lock
// is taken. The wait for a release that hangs is bounded by min(TTL/6, 1 s).
// Called with lock.mu held.
func (c *lockCall) awaitRelease() callState {
	k := c.lock
	if !k.queuesHere() {
		return asking
	}
	h := k.releasing
	if h == nil {
		return c.yield()
	}
	if h.releaseDone == nil {
		h.releaseDone = make(chan struct{})
	}
	c.released, c.wait = h.releaseDone, min(k.client.ttl/6, time.Second)
	return releasing
}

// yield returns the state of a contender with no release to wait for. If other
// clients may be waiting, the contender gives them a moment, because they
// receive the lock only after a message and would otherwise never win. Called
// with lock.mu held.
func (c *lockCall) yield() callState {
	if c.wait = c.lock.yieldUntil - c.lock.client.clock.Plain(); c.wait > 0 {
		return yielding
	}
	return asking
}

// handleAnswer returns the state of a call whose request has returned. Called
// with lock.mu held.
func (c *lockCall) handleAnswer() callState {
	k := c.lock
	if c.answer != nil {
		return c.refused()
	}
	now := k.client.now()
	k.answers.returned(c.hold, now, nil, false)
	if c.served() {
		c.hold.giveBack(c.lease)
		return over
	}
	c.view, c.err = k.install(c.hold, c.lease, c.request, now)
	switch {
	case c.view != nil:
		if c.waiter != nil {
			c.waiter.lease = c.view
		}
		k.serveGroup(c.hold)
		return over
	case c.err != nil:
		return over
	case c.retry == firstRetry:
		c.retry *= 2
		return asking
	}
	return c.pause() // try again: the session is about to end, or the backend is slow
}

// refused returns the state of a call whose request has failed. Called with
// lock.mu held.
func (c *lockCall) refused() callState {
	k := c.lock
	canceled := c.ctx.Err() != nil
	k.answers.returned(c.hold, k.client.clock.Plain(), c.answer, canceled)
	switch {
	case c.served():
	case canceled:
		c.err = k.waitError(c.ctx, c.answer)
	case transient(c.answer):
		return c.pause()
	default:
		c.err = c.answer
	}
	return over
}

func (c *lockCall) pause() callState {
	c.wait = c.retry/2 + rand.N(c.retry)
	c.retry = min(2*c.retry, lastRetry)
	return pausing
}

// dwell does what the state requires and returns when an event has ended the
// state.
func (c *lockCall) dwell() {
	call := c.request.call
	switch c.state {
	case asking:
		c.ask()
		return
	case inQueue:
		call.Waits(c.lock, c.holder)
	case releasing, yielding:
		call.Waits(c.lock, nil)
	case pausing:
		if c.answer != nil {
			call.Retries(errorTypeOf(c.answer))
		} else {
			call.Waits(nil, nil)
		}
	}
	c.await()
}

// await waits for the first event that ends the state.
func (c *lockCall) await() {
	var timeout <-chan time.Time
	if c.wait > 0 {
		timer := time.NewTimer(c.wait)
		defer timer.Stop()
		timeout = timer.C
	}
	var wake <-chan struct{}
	if c.waiter != nil {
		wake = c.waiter.wake
	}
	select {
	case <-wake:
		c.ended = byOthers
	case <-c.released:
		c.ended = byRelease
	case <-timeout:
		c.ended = byTime
	case <-c.ctx.Done():
		c.ended = byContext
	case <-c.lock.client.closing:
		c.ended = byClose
	}
}

// ask sends one request to the backend. The grant of another call of the same
// group ends the request.
func (c *lockCall) ask() {
	k, ctx := c.lock, c.ctx
	if c.request.group != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		k.mu.Lock()
		if c.waiter.cancel = cancel; c.served() {
			cancel()
		}
		k.mu.Unlock()
	}
	c.hold = k.client.newHold(k, c.request, false)
	c.lease, c.answer = k.askBackend(ctx, c.hold)
}

// waiter is the part of a Lock call that other calls access. Calls in the queue
// and contenders of a group have one.
type waiter struct {
	ctx     context.Context
	request request
	wake    chan struct{} // buffered; signaled when contends or lease is set

	// Guarded by lock.mu.
	contends   bool
	queued     bool
	lease      *Lease // of a call that was served or granted the lock
	cancel     func() // ends its Acquire; set only for a call of a group
	next, prev *waiter
}

// serve gives the waiter a lease. Called with lock.mu held.
func (w *waiter) serve(l *Lease) {
	w.lease = l
	w.signal()
	if w.cancel != nil {
		w.cancel()
	}
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // the previous signal is still pending
	}
}

// ended reports whether the context of the call has ended. Such a call is about
// to return and must not be served.
func (w *waiter) ended() bool { return w.ctx.Err() != nil }

// waiters is a queue in order of arrival.
type waiters struct{ first, last *waiter }

func (q *waiters) push(w *waiter) {
	w.queued = true
	if w.prev = q.last; w.prev != nil {
		w.prev.next = w
	} else {
		q.first = w
	}
	q.last = w
}

// head returns the first call whose context has not ended. Earlier calls leave
// the queue.
func (q *waiters) head() *waiter {
	for q.first != nil && q.first.ended() {
		q.remove(q.first)
	}
	return q.first
}

func (q *waiters) remove(w *waiter) {
	if !w.queued {
		return
	}
	w.queued = false
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.next, w.prev = nil, nil
}
