package dsync

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// request is one call of Lock or TryLock.
type request struct {
	owner *Owner // nil for a call of the Client's own methods
	ttl   time.Duration
	fixed bool
	call  *telemetry.Call // nil if nobody observes the call
}

// lock is what a client knows of one name while the name is in use here: the hold, the calls that wait in the process, the calls that ask
// the backend.
//
// Where the backend is FIFO over all waiters, every call asks the backend itself. Otherwise one at a time does, the contender, and
// the rest wait here in line. Calls of one Owner share the first grant to any of them, so one asks for all.
type lock struct {
	client *Client
	name   string
	uses   int // number of calls and holds; guarded by client.mu

	mu         sync.Mutex
	closed     bool
	hold       *hold // the live one; nil if there is none
	releasing  *hold // the one whose release has not returned
	queue      waiters
	contending int       // calls of Lock in the states from settling to pausing
	trying     int       // calls of TryLock that ask the backend
	contenders []*waiter // the ones with an Owner, whose other calls can serve them
	answers    answers   // of the backend
	yieldUntil moment    // before this time it is the turn of other clients
}

// oneContends reports whether callers wait in line here rather than at the backend.
func (k *lock) oneContends() bool { return k.client.queues }

// live returns the hold, or ends a hold past its time and returns nil. Called with mu held.
func (k *lock) live() *hold {
	if k.hold != nil && k.client.now() >= k.hold.deadline() {
		k.hold.expire()
	}
	return k.hold
}

// reenter returns a lease of the owner's own live hold, if there is one. Called with mu held.
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
	for range 3 { // a second and third time after a grant of no use
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
		granted, err := k.askBackend(ctx, h)

		k.mu.Lock()
		k.trying--
		now := k.client.now()
		k.answers.returned(h, now, err, ctx.Err() != nil)
		var l *Lease
		if err == nil {
			if l, err = k.install(h, granted, r, now); l != nil {
				k.serveOwner(h, now)
			}
		}
		k.mu.Unlock()
		if l != nil || err != nil {
			return l, err
		}
	}
	return nil, driver.ErrUnavailable
}

// mustWait reports whether a new call waits in line. Called with mu held.
func (k *lock) mustWait(r request) bool {
	if k.oneContends() {
		return k.contending > 0 || k.queue.first != nil || k.live() != nil
	}
	return k.asks(r.owner)
}

// asks reports whether a call of the owner already asks the backend. Called with mu held.
func (k *lock) asks(o *Owner) bool {
	return o != nil && slices.ContainsFunc(k.contenders, func(w *waiter) bool { return w.request.owner == o })
}

// contend makes a call a contender; w is nil if nobody else can serve the call. Called with mu held.
func (k *lock) contend(w *waiter) {
	k.contending++
	if w == nil {
		return
	}
	w.contends = true
	if w.request.owner != nil {
		k.contenders = append(k.contenders, w)
	}
}

// retire is the opposite of contend. Called with mu held.
func (k *lock) retire(w *waiter) {
	k.contending--
	if i := slices.Index(k.contenders, w); i >= 0 {
		k.contenders = slices.Delete(k.contenders, i, i+1)
	}
}

// callNext lets the next in line ask the backend, if it is time. Called with mu held.
func (k *lock) callNext() {
	if k.oneContends() {
		if w := k.queue.first; w != nil && k.contending == 0 && k.hold == nil {
			k.queue.remove(w)
			k.contend(w)
			w.signal()
		}
		return
	}
	for w := k.queue.first; w != nil; { // calls of Owners whose first call has left
		next := w.next
		if !k.asks(w.request.owner) {
			k.queue.remove(w)
			k.contend(w)
			w.signal()
		}
		w = next
	}
}

// askBackend calls the driver's Acquire, and tells reach of the outcome.
func (k *lock) askBackend(ctx context.Context, h *hold) (driver.Lease, error) {
	began := k.client.clock.plain()
	l, err := k.client.driver.Acquire(ctx, &h.req)
	k.client.reach.acquired(ctx, h, began, err)
	return l, err
}

// install makes the live hold of what the driver granted, and returns its first lease. If the hold is of no use any
// more, install gives the hold back and returns nil, nil. Called with mu held.
func (k *lock) install(h *hold, granted driver.Lease, r request, now moment) (*Lease, error) {
	h.lease = granted
	if k.closed {
		return nil, ErrClosed // the driver's Close ends the hold
	}
	if h.state == holdOver {
		return nil, nil // lost on the way
	}
	first, n := driver.Tokens(granted, k.client.floor)
	old := k.hold
	if now >= h.deadline() || old != nil && first != 0 && first < old.token {
		h.giveBack(granted) // too late, or older than the hold that we know of
		return nil, nil
	}
	if old != nil {
		old.lose(&lostError{cause: lossRemoved, err: driver.ErrRemoved}, false)
	}
	k.answers.ours()
	h.token, h.tokens = first, int32(n-1)
	h.state, h.since, h.ownedBy = holdLive, now, r.owner
	k.hold = h
	h.counted = true
	k.client.use(k)
	k.client.watchdog.watch(h)
	return h.addView(r), nil
}

// serveOwner gives a lease of h to all waiting calls of its owner. Called with mu held.
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
	for _, w := range k.contenders {
		if w.request.owner == h.ownedBy && w.lease == nil {
			serve(w)
		}
	}
}

// handOver passes a hold whose last view has ended to the first in line, without a request to the backend, within the bounds that
// keep the other clients from starving. Where no token is left for the first in line, handOver makes it the heir of the hold, if the
// driver can pass the hold, and reports false. Called with mu held.
func (k *lock) handOver(h *hold, now moment) bool {
	w := k.queue.first
	switch {
	case w == nil, !k.oneContends(), k.closed:
		return false
	case h.req.Fixed, w.request.fixed:
		return false
	case k.contending > 0, k.trying > 0, k.releasing != nil:
		return false
	case h.handOvers >= maxHandOvers, now-h.since >= min(h.ttl/3, maxHandOverFor):
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
