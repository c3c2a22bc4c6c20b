package dsync

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// Pauses of a contender.
const (
	firstRetry = 10 * time.Millisecond // after the backend was out of reach; doubled up to lastRetry
	lastRetry  = time.Second
	yieldFor   = time.Millisecond // after our own release, where other clients may be waiting
)

// request is one call of Lock or TryLock.
type request struct {
	owner *Owner // nil for a call of the Client's own methods
	ttl   time.Duration
	fixed bool
	call  *telemetry.Call // nil if it is not observed
}

// lock is what a client knows of one name while it has to do with it: its hold, who waits in the process, who asks the backend.
//
// Where the backend is FIFO over all waiters, every call asks the backend itself. Otherwise one at a time does, the contender, and
// the rest wait here in line. Calls of one Owner share the first grant that any of them gets, so one asks for all.
type lock struct {
	client *Client
	name   string
	uses   int // calls and holds that need it; guarded by client.mu

	mu         sync.Mutex
	closed     bool
	hold       *hold // the live one; nil if there is none
	releasing  *hold // the one whose release has not returned
	queue      waiters
	contending int       // calls of Lock that ask the backend
	trying     int       // calls of TryLock that do
	asking     []*waiter // the contenders that have an Owner
	answers    answers   // of the backend
	yieldUntil moment    // do not ask before: it is the turn of other clients
}

// oneContends reports whether callers wait in line here rather than at the backend.
func (k *lock) oneContends() bool { return k.client.queues }

// live returns the hold if its time is not over, and ends it otherwise. It is called with mu held.
func (k *lock) live() *hold {
	if k.hold != nil && k.client.now() >= k.hold.deadline() {
		k.hold.expire()
	}
	return k.hold
}

// reenter returns a lease of the owner's own live hold, if there is one. It is called with mu held.
func (k *lock) reenter(r request) *Lease {
	if r.owner == nil {
		return nil
	}
	h := k.live()
	if h == nil || h.ownedBy != r.owner {
		return nil
	}
	l := h.addView(r)
	if r.fixed {
		l.setEnd(k.client.now() + r.ttl)
	}
	return l
}

// tryLock asks once.
func (k *lock) tryLock(ctx context.Context, r request) (*Lease, error) {
	for range 3 { // a grant that came too late, or was lost on the way, is asked for again
		k.mu.Lock()
		if l := k.reenter(r); l != nil {
			k.mu.Unlock()
			return l, nil
		}
		if k.live() != nil {
			k.mu.Unlock()
			return nil, ErrLocked
		}
		k.trying++
		k.mu.Unlock()

		h := k.client.newHold(k, r, true)
		granted, err := k.request(ctx, h)

		k.mu.Lock()
		k.trying--
		now := k.client.now()
		k.answers.returned(h, now, err, ctx.Err() != nil)
		var l *Lease
		if err == nil {
			l, err = k.grant(h, granted, r, now)
		}
		k.mu.Unlock()
		if l != nil || err != nil {
			return l, err
		}
	}
	return nil, driver.ErrUnavailable
}

// lockWait asks until it is granted or ctx is done.
func (k *lock) lockWait(ctx context.Context, r request) (*Lease, error) {
	k.mu.Lock()
	if l := k.reenter(r); l != nil {
		k.mu.Unlock()
		return l, nil
	}
	var w *waiter
	waits := k.mustWait(r)
	if waits || r.owner != nil {
		w = &waiter{request: r, wake: make(chan struct{}, 1)}
	}
	if waits {
		k.queue.push(w)
		holder := k.holder()
		k.mu.Unlock()
		r.call.Waits(k, holder)
		if l, err := k.await(ctx, w); l != nil || err != nil {
			return l, err
		}
	} else {
		k.contend(w)
		k.mu.Unlock()
	}
	return k.ask(ctx, r, w)
}

// mustWait reports whether a new call waits in line. It is called with mu held.
func (k *lock) mustWait(r request) bool {
	if k.oneContends() {
		return k.contending > 0 || k.queue.first != nil || k.live() != nil
	}
	return k.asks(r.owner)
}

// asks reports whether a call of the owner already asks the backend. It is called with mu held.
func (k *lock) asks(o *Owner) bool {
	return o != nil && slices.ContainsFunc(k.asking, func(w *waiter) bool { return w.request.owner == o })
}

// contend makes the call one that asks the backend; w is nil if it has no Owner and did not wait. It is called with mu held.
func (k *lock) contend(w *waiter) {
	k.contending++
	if w != nil && w.request.owner != nil {
		k.asking = append(k.asking, w)
	}
}

// retire is the opposite of contend. It is called with mu held.
func (k *lock) retire(w *waiter) {
	k.contending--
	if i := slices.Index(k.asking, w); i >= 0 {
		k.asking = slices.Delete(k.asking, i, i+1)
	}
}

// callNext lets the next in line ask the backend, if it is time. It is called with mu held.
func (k *lock) callNext() {
	if k.oneContends() {
		if w := k.queue.first; w != nil && k.contending == 0 && k.hold == nil {
			k.queue.remove(w)
			k.contend(w)
			w.call()
		}
		return
	}
	for w := k.queue.first; w != nil; { // calls of Owners whose first call has left
		next := w.next
		if !k.asks(w.request.owner) {
			k.queue.remove(w)
			k.contend(w)
			w.call()
		}
		w = next
	}
}

// await waits in line until the call is served or called; both results are nil if it is its turn to ask the backend.
func (k *lock) await(ctx context.Context, w *waiter) (*Lease, error) {
	var err error
	select {
	case <-w.wake:
	case <-ctx.Done():
		err = ctx.Err()
	case <-k.client.closing:
		err = ErrClosed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if w.lease != nil || err == nil {
		return w.lease, nil
	}
	if err != ErrClosed {
		err = k.waitErrorNow(ctx, nil)
	}
	k.queue.remove(w)
	if w.called {
		k.retire(w)
		k.callNext()
	}
	return nil, err
}

// ask asks the backend on behalf of a contender until it is granted or ctx is done.
func (k *lock) ask(ctx context.Context, r request, w *waiter) (*Lease, error) {
	err := k.settle(ctx, r, w)
	retry := firstRetry
	for err == nil && !k.served(w) {
		h := k.client.newHold(k, r, false)
		granted, answer := k.acquire(ctx, h, w)
		if answer == nil {
			var l *Lease
			if l, err = k.granted(h, granted, r, w); l != nil {
				return l, nil
			}
			if err == nil && retry > firstRetry { // again: a session that is about to end, or a slow backend
				r.call.Waits(nil, nil)
				err = k.pause(ctx, w, retry/2+rand.N(retry))
			}
			retry = min(2*retry, lastRetry)
			continue
		}
		k.mu.Lock()
		k.answers.returned(h, k.client.clock.plain(), answer, ctx.Err() != nil)
		k.mu.Unlock()
		switch {
		case k.served(w):
		case ctx.Err() != nil:
			err = k.waitError(ctx, answer)
		case errors.Is(answer, driver.ErrUnavailable), errors.Is(answer, driver.ErrUnknown):
			r.call.Retries(errorTypeOf(answer))
			err = k.pause(ctx, w, retry/2+rand.N(retry))
			retry = min(2*retry, lastRetry)
		default:
			err = answer
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.retire(w)
	k.callNext()
	if w != nil && w.lease != nil {
		return w.lease, nil
	}
	return nil, err
}

// served reports whether another call of the same owner was granted the lock, for all of its calls.
func (k *lock) served(w *waiter) bool {
	if w == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return w.lease != nil
}

// acquire is the driver's Acquire. For a call of an Owner it ends also when another call of the owner was granted.
func (k *lock) acquire(ctx context.Context, h *hold, w *waiter) (driver.Lease, error) {
	if w == nil || w.request.owner == nil {
		return k.request(ctx, h)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.mu.Lock()
	if w.lease != nil {
		cancel()
	}
	w.cancel = cancel
	k.mu.Unlock()
	return k.request(ctx, h)
}

// request is the driver's Acquire, of which reach is told.
func (k *lock) request(ctx context.Context, h *hold) (driver.Lease, error) {
	began := k.client.clock.plain()
	granted, err := k.client.driver.Acquire(ctx, &h.req)
	k.client.reach.acquired(ctx, h, began, err)
	return granted, err
}

// granted takes what the driver granted to a contender. Both results are nil if that is of no use, and the contender goes on.
func (k *lock) granted(h *hold, granted driver.Lease, r request, w *waiter) (*Lease, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.client.now()
	k.answers.returned(h, now, nil, false)
	if w != nil && w.lease != nil {
		h.lease = granted
		k.client.releaser.add(h)
		return nil, nil
	}
	k.retire(w)
	l, err := k.grant(h, granted, r, now)
	if l == nil {
		k.contend(w)
		return nil, err
	}
	k.callNext()
	return l, nil
}

// settle waits until our own last release of the name has its answer, since asking before it would find the lock taken. A release
// that hangs is not waited for longer than min(TTL/6, 1 s). Where other clients may be waiting it then gives them a moment: they have
// a message to receive first, and would never win otherwise.
func (k *lock) settle(ctx context.Context, r request, w *waiter) error {
	if !k.oneContends() {
		return nil
	}
	k.mu.Lock()
	h := k.releasing
	if h != nil && h.settled == nil {
		h.settled = make(chan struct{})
	}
	k.mu.Unlock()
	if h != nil {
		r.call.Waits(k, nil)
		timer := time.NewTimer(min(k.client.ttl/6, time.Second))
		defer timer.Stop()
		select {
		case <-h.settled:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return k.waitError(ctx, nil)
		case <-k.client.closing:
			return ErrClosed
		}
	}
	k.mu.Lock()
	yield := k.yieldUntil - k.client.clock.plain()
	k.mu.Unlock()
	if yield <= 0 {
		return nil
	}
	r.call.Waits(k, nil)
	return k.pause(ctx, w, yield)
}

// pause waits for d, or until the call is served. If the call has to end it returns why.
func (k *lock) pause(ctx context.Context, w *waiter, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var served chan struct{}
	if w != nil {
		served = w.wake
	}
	select {
	case <-timer.C:
	case <-served:
	case <-ctx.Done():
		return k.waitError(ctx, nil)
	case <-k.client.closing:
		return ErrClosed
	}
	return nil
}

// grant makes a live hold of what the driver granted, and serves all waiting calls of its owner. It returns nil, nil if the hold is
// of no use any more; it is then given back. It is called with mu held.
func (k *lock) grant(h *hold, granted driver.Lease, r request, now moment) (*Lease, error) {
	h.lease = granted
	if k.closed {
		return nil, ErrClosed // the driver's Close ends it
	}
	if h.fault != nil {
		h.state = holdOver // what is left of it is the driver's
		return nil, nil
	}
	first, n := granted.Tokens()
	old := k.hold
	if now >= h.deadline() || old != nil && first != 0 && first < old.token {
		k.client.releaser.add(h) // it came too late, or before the hold that we know of
		return nil, nil
	}
	if old != nil {
		old.lose(&lostError{cause: lossRemoved, err: driver.ErrRemoved}, false)
	}
	k.answers.grant()
	h.token, h.tokens = first, int32(n-1)
	h.state, h.granted, h.ownedBy = holdLive, now, r.owner
	k.hold = h
	h.counted = true
	k.client.use(k)
	k.client.watchdog.watch(h)
	l := h.addView(r)
	k.serveOwner(h, now)
	return l, nil
}

// serveOwner gives a lease of h to all waiting calls of its owner. It is called with mu held.
func (k *lock) serveOwner(h *hold, now moment) {
	if h.ownedBy == nil {
		return
	}
	serve := func(w *waiter) {
		l := h.addView(w.request)
		if w.request.fixed {
			l.setEnd(now + w.request.ttl)
		}
		w.serve(l)
	}
	for w := k.queue.first; w != nil; {
		next := w.next
		if w.request.owner == h.ownedBy {
			k.queue.remove(w)
			serve(w)
		}
		w = next
	}
	for _, w := range k.asking {
		if w.request.owner == h.ownedBy && w.lease == nil {
			serve(w)
			if w.cancel != nil {
				w.cancel()
			}
		}
	}
}

// handOver passes a hold whose last view has ended to the first in line, without a request to the backend, within the bounds that
// keep the other clients from starving. Where that takes a new token it makes the first in line the heir of the hold instead, if the
// driver can pass it. It is called with mu held.
func (k *lock) handOver(h *hold, now moment) bool {
	w := k.queue.first
	switch {
	case w == nil, !k.oneContends(), k.closed:
		return false
	case h.req.Fixed, w.request.fixed:
		return false
	case k.contending > 0, k.trying > 0, k.releasing != nil:
		return false
	case h.handOvers >= maxHandOvers, now-h.granted >= min(h.ttl/3, maxHandOverFor):
		return false
	case h.expires()-now < h.ttl/2:
		return false
	}
	if h.token != 0 && h.tokens == 0 {
		if h.canPass() {
			h.heir, h.ownedBy = w, nil
		}
		return false
	}
	if h.token != 0 {
		h.token++
		h.tokens--
	}
	k.serveFirst(h, now)
	return true
}

// serveFirst makes the first in line the owner of a live hold that has none, and returns its lease. It is called with mu held.
func (k *lock) serveFirst(h *hold, now moment) *Lease {
	w := k.queue.first
	h.handOvers++
	h.ownedBy, h.call = w.request.owner, w.request.call
	k.queue.remove(w)
	l := h.addView(w.request)
	w.serve(l)
	k.serveOwner(h, now)
	return l
}

// close ends the hold and its leases on the client's way out; the driver's Close gives the lock back.
func (k *lock) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	h := k.hold
	if h == nil {
		return
	}
	h.end(holdOver)
	for h.views != nil {
		h.views.finish(&opError{"lease", k.name, errClosing})
	}
	h.endTenure().EndedWithClient()
}
