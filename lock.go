package dsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// request is one call to Lock or TryLock.
type request struct {
	owner *Owner // nil for a call to the Client's own methods
	// the group of calls that share a grant: owner, or one group for all calls
	// in mode Read; nil if the call shares its grant with no other call
	group   *Owner
	ttl     time.Duration
	mode    driver.Mode
	fixed   bool
	maxHold time.Duration   // 0: no bound
	atLeast time.Duration   // HoldAtLeast
	permits int             // 0 in all modes but Permit
	limit   int             // of the permits; 0: the stored limit
	call    *telemetry.Call // nil if the call is not observed
}

// lock is the client's state of one name in one mode while the name is in use
// in this process: the hold, the calls that wait in the process, and the calls
// that send requests to the backend. The locks for different modes of the same
// name are independent: the backend keeps them apart.
//
// If the backend is FIFO across all waiters, every call sends its own request
// to the backend. Otherwise only one call at a time, the contender, sends
// requests, and the others wait in the queue here. For permits several calls
// contend, until one of them is refused. Calls of one Owner share the first
// grant to any of them, so only one of them sends requests. The same is true of
// the client's calls for Read.
type lock struct {
	client *Client
	name   string
	mode   driver.Mode
	uses   int // number of calls and holds; guarded by client.mu

	mu     sync.Mutex
	closed bool
	// the live hold: the newest if there are several, as there may be for Read
	// and Permit; nil if there is none
	hold       *hold
	releasing  *hold // the hold whose release has not returned, in modes that have one hold
	queue      waiters
	contending int       // Lock calls in the states from releasing to pausing
	trying     int       // TryLock calls that are querying the backend
	contenders []*waiter // the contenders with an Owner, whose other calls can serve them
	answers    answers   // the backend's responses
	yieldUntil moment    // until this time it is the turn of other clients
	watched    bool      // a waiting call checks whether it waits for the client's own lease
	hush       moment    // until this time no such call is reported
}

// maxAsking is the maximum number of calls for permits of a name that send
// requests at the same time.
const maxAsking = 16

// queuesHere reports whether callers wait in the queue here rather than on the
// backend. Readers also wait here, but as calls of one group.
func (k *lock) queuesHere() bool { return k.client.queues[k.mode] }

// alone reports whether a live hold excludes all other holds.
func (k *lock) alone() bool { return k.mode.Excludes(k.mode) }

// engaged reports whether calls in the queue must not ask the backend for now,
// because another call asks or the client holds the name. For permits, they
// must not ask while a refused call waits on the backend, so that calls for few
// permits do not overtake a call for many. Called with mu held.
func (k *lock) engaged() bool {
	if k.alone() {
		return k.contending > 0 || k.hold != nil
	}
	return k.answers.waiting > 0 || k.contending >= maxAsking
}

// live returns the hold, or ends a hold past its time and returns nil. Called
// with mu held.
func (k *lock) live() *hold {
	for k.hold != nil && k.client.now() >= k.hold.deadline() {
		k.hold.expire()
	}
	return k.hold
}

// reenter returns a lease of a live hold that the call can join, if there is
// one. Called with mu held.
func (k *lock) reenter(r request) *Lease {
	if r.owner == nil && r.group == nil || k.mode == driver.Permit {
		return nil
	}
	h := k.live()
	if k.mode == driver.Read {
		h = k.readable(r)
	} else if h != nil && h.ownedBy != r.group {
		h = nil
	}
	if h == nil {
		return nil
	}
	return h.join(r)
}

// readable returns a live hold that a Read can join, or nil. That is a young
// hold of any reader, or a hold of the same Owner of any age. Other Reads send
// a request to the backend, so that writers get a turn. Called with mu held.
func (k *lock) readable(r request) *hold {
	now := k.client.now()
	if r.group != nil {
		for h := k.hold; h != nil; h = h.older {
			if h.young(now) {
				return h
			}
		}
	}
	return k.leasedTo(r.owner, now)
}

// leasedTo returns a live hold that the owner has a lease of, or nil. Called
// with mu held.
func (k *lock) leasedTo(o *Owner, now moment) *hold {
	if o == nil {
		return nil
	}
	for h := k.hold; h != nil; h = h.older {
		for l := h.views; l != nil; l = l.next {
			if l.owner == o.id && now < l.deadline() {
				return h
			}
		}
	}
	return nil
}

// tryLock sends one request to the backend.
func (k *lock) tryLock(ctx context.Context, r request) (*Lease, error) {
	for range 3 { // again if the grant was no longer useful
		k.mu.Lock()
		if l := k.reenter(r); l != nil {
			k.mu.Unlock()
			return l, nil
		}
		if k.alone() && k.live() != nil || k.mode == driver.Permit && k.answers.waiting > 0 {
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
				k.serveGroup(h)
			}
		}
		k.mu.Unlock()
		if l != nil || err != nil {
			return l, err
		}
	}
	return nil, driver.ErrUnavailable
}

// mustWait reports whether a new call must wait in the queue. Called with mu
// held.
func (k *lock) mustWait(r request) bool {
	if !k.queuesHere() {
		return k.asks(r.group)
	}
	if k.queue.first != nil {
		return true
	}
	k.live() // ends a hold past its time
	return k.engaged()
}

// asks reports whether a call of the group is already sending a request.
// Called with mu held.
func (k *lock) asks(group *Owner) bool {
	return group != nil && slices.ContainsFunc(k.contenders, func(w *waiter) bool { return w.request.group == group })
}

// contend makes a call a contender. w is nil if no other call can serve the
// call. Called with mu held.
func (k *lock) contend(w *waiter) {
	k.contending++
	if w == nil {
		return
	}
	w.contends = true
	if w.request.group != nil {
		k.contenders = append(k.contenders, w)
	}
}

// retire undoes contend. Called with mu held.
func (k *lock) retire(w *waiter) {
	k.contending--
	if i := slices.Index(k.contenders, w); i >= 0 {
		k.contenders = slices.Delete(k.contenders, i, i+1)
	}
}

// callNext lets the next call in the queue ask the backend, if it is time.
// Called with mu held.
func (k *lock) callNext() {
	if k.queuesHere() {
		for w := k.queue.head(); w != nil && !k.engaged(); w = k.queue.head() {
			k.queue.remove(w)
			k.contend(w)
			w.signal()
		}
		return
	}
	for w := k.queue.first; w != nil; { // also calls of a group whose first call has left
		next := w.next
		if !k.asks(w.request.group) {
			k.queue.remove(w)
			k.contend(w)
			w.signal()
		}
		w = next
	}
}

// askBackend calls the driver's Acquire and reports the outcome to reach.
func (k *lock) askBackend(ctx context.Context, h *hold) (driver.Lease, error) {
	began := k.client.clock.Plain()
	l, err := k.client.driver.Acquire(ctx, &h.req)
	k.client.reach.acquired(ctx, h, began, err)
	return l, err
}

// install turns the driver's grant into a live hold and returns its first
// lease. If the hold is no longer useful, install releases it and returns nil,
// nil. Called with mu held.
func (k *lock) install(h *hold, granted driver.Lease, r request, now moment) (*Lease, error) {
	h.lease = granted
	if k.closed {
		return nil, ErrClosed // the driver's Close ends the hold
	}
	if h.state == holdOver {
		return nil, nil // lost on the way
	}
	first, n := driver.Tokens(granted, k.client.floor)
	var old *hold // the hold to replace, which no longer exists on the backend
	if k.alone() {
		old = k.hold
	}
	if now >= h.deadline() || old != nil && first != 0 && first < old.token {
		h.giveBack(granted) // too late, or older than the present hold
		return nil, nil
	}
	if old != nil {
		old.lose(&lostError{cause: lossRemoved, err: driver.ErrRemoved}, false)
	}
	k.answers.ours()
	h.token, h.tokens = first, int8(min(n-1, maxHandOvers))
	h.state, h.since, h.ownedBy = holdLive, now, r.group
	h.link()
	if r.atLeast > 0 {
		h.keepUntil = now + r.atLeast
	}
	h.counted = true
	k.client.pinAgain(k)
	k.client.watchdog.watch(h)
	return h.addView(r), nil
}

// serveGroup gives a lease of h to all waiting calls of its group. Called with
// mu held.
func (k *lock) serveGroup(h *hold) {
	if h.ownedBy == nil {
		return
	}
	for w := k.queue.first; w != nil; {
		next := w.next
		if w.request.group == h.ownedBy && !w.ended() {
			k.queue.remove(w)
			w.serve(h.join(w.request))
		}
		w = next
	}
	for _, w := range k.contenders {
		if w.request.group == h.ownedBy && w.lease == nil && !w.ended() {
			w.serve(h.join(w.request))
		}
	}
}

// handOver passes a hold whose last lease has ended to the first call in the
// queue, without a request to the backend. It does so only within the bounds
// that keep the other clients from starving. If no token is left for that call
// and the driver can pass the hold, handOver makes the call the heir of the
// hold and returns false. Called with mu held.
func (k *lock) handOver(h *hold, now moment) bool {
	w := k.queue.head()
	switch {
	case w == nil, !k.queuesHere(), k.closed:
		return false
	case k.alone() && (k.contending > 0 || k.trying > 0 || k.releasing != nil):
		return false
	case !h.young(now), !h.fits(w.request), h.handOvers >= maxHandOvers:
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
	k.serveFirst(h)
	return true
}

// serveFirst makes the first call in the queue the owner of a live hold that
// has none, and returns its lease. Called with mu held.
func (k *lock) serveFirst(h *hold) *Lease {
	w := k.queue.first
	h.handOvers++
	h.ownedBy, h.call = w.request.group, w.request.call
	k.queue.remove(w)
	l := h.addView(w.request)
	w.serve(l)
	k.serveGroup(h)
	return l
}

// close ends the holds and their leases when the client closes. It returns the
// holds that must stay on the backend. The driver's Close releases the others.
func (k *lock) close() (left []*hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for k.hold != nil {
		h := k.hold
		h.end(holdOver)
		if h.keepUntil > k.client.now() {
			left = append(left, h)
		}
		for h.views != nil {
			h.views.finish(&LockError{"lease", k.name, errClosing})
		}
		h.endTenure().EndedWithClient()
	}
	return left
}

// answers records the backend's last responses for a name. When the context of
// a call ends, the error of the call is made from this record, even if the last
// response was for another call of the client. A request that the context
// interrupted does not matter. Guarded by lock.mu.
type answers struct {
	refused bool   // in the last response, another owner holds the name
	at      moment // the time of the last such response
	waiting int    // refused requests that wait on the backend
	trouble error  // why later requests got no response, or nil
}

// refuse records that another owner holds the name.
func (a *answers) refuse(now moment) { a.refused, a.at, a.trouble = true, now, nil }

// ours records a grant to this client.
func (a *answers) ours() { a.refused, a.trouble = false, nil }

// queued records that the request of h was refused, and from now on waits on
// the backend.
func (a *answers) queued(h *hold, now moment) {
	a.refuse(now)
	if h.state == holdPending && !h.waits {
		h.waits = true
		a.waiting++
	}
}

// returned records the end of the request of h. An error from the caller's own
// context does not count.
func (a *answers) returned(h *hold, now moment, err error, canceled bool) {
	if h.waits {
		h.waits = false
		a.waiting--
		a.at = now
	}
	switch {
	case errors.Is(err, ErrLocked):
		a.refuse(now)
	case !canceled && transient(err):
		a.trouble = err
	}
}

// locked reports whether another owner holds the name, as far as known. A
// refusal that was not confirmed for a TTL no longer counts, because the holder
// may be gone.
func (a *answers) locked(now moment, ttl time.Duration) bool {
	return a.waiting > 0 || a.refused && now-a.at < ttl
}

// waitError returns the error of a wait that ended with ctx. answer is the
// response to the caller's last request, if it made one. Called with mu held.
func (k *lock) waitError(ctx context.Context, answer error) error {
	// our own lease or release is in the way of the call
	ours := k.alone() && (k.live() != nil || k.releasing != nil)
	locked := ours || k.answers.locked(k.client.clock.Plain(), k.client.ttl)
	trouble := k.answers.trouble
	if !locked && trouble == nil && !transient(answer) && !errors.Is(answer, ErrLocked) {
		trouble = errNoAnswer
	}
	return newWaitError(ctx, answer, trouble, locked)
}

// errNoAnswer is the trouble of a call that is waiting behind another call
// whose first request has not been answered yet.
var errNoAnswer = fmt.Errorf("%w: no answer yet", ErrUnavailable)

// nest serves a call under a lease of its name: the lease of the call's
// context, or a lease that its Owner holds in another mode. If there is no such
// lease, nest returns nil, nil.
//
//	the lease is      the call is for     by its Owner    by its context
//	Read              Read                joins           joins
//	Read              Write, Exclusive    ErrDeadlock     ErrDeadlock
//	Write, Exclusive  Read                joins           joins
//	Write, Exclusive  Write, Exclusive    joins           ErrDeadlock
//	Permit            Permit              -               ErrDeadlock, if the limit leaves too few permits in addition to the leases
//	Permit            another mode        ErrDeadlock     ErrDeadlock
//	another mode      Permit              ErrDeadlock     ErrDeadlock
//
// A call that joins is served even if other calls wait. Otherwise the waiter
// would wait for the lease, and the call would wait for the waiter. For the
// same reason there is no upgrade. If a call is already waiting when its Owner
// is granted the name in another mode, that grant does not serve it.
func (c *Client) nest(ctx context.Context, r request, name string) (*Lease, error) {
	innermost, _ := ctx.Value(leaseContextKey{}).(*leaseContext)
	if r.mode == driver.Permit && r.limit > 0 && innermost.permits(c, name) > r.limit-r.permits {
		return nil, ErrDeadlock
	}
	for lc := innermost; lc != nil; lc = lc.outer {
		k := lc.lease.hold.lock
		if k.client != c || k.name != name || k.mode == driver.Permit && r.mode == driver.Permit {
			continue
		}
		if l, err := lc.lease.nest(r); l != nil || err != nil {
			return l, err
		}
	}
	if r.owner == nil {
		return nil, nil
	}
	for mode, k := range c.known(name) {
		if k == nil || driver.Mode(mode) == r.mode {
			continue
		}
		if l, err := k.nest(r); l != nil || err != nil {
			return l, err
		}
	}
	return nil, nil
}

// nest serves a call whose context belongs to the lease.
func (l *Lease) nest(r request) (*Lease, error) {
	h := l.hold
	k := h.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case l.check(k.client.now()) != nil:
		return nil, nil
	case k.mode == driver.Permit, r.mode == driver.Permit:
		return nil, ErrDeadlock
	case r.owner != nil && h.ownedBy == r.owner:
		return h.join(r), nil
	case r.mode != driver.Read:
		return nil, ErrDeadlock
	}
	nested := h.join(r)
	if r.owner == nil {
		nested.owner = l.owner
	}
	return nested, nil
}

// nest serves a call in another mode, of an Owner that may hold the name in the
// mode of k.
func (k *lock) nest(r request) (*Lease, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mode == driver.Read || k.mode == driver.Permit || r.mode == driver.Permit {
		if k.leasedTo(r.owner, k.client.now()) != nil {
			return nil, ErrDeadlock
		}
		return nil, nil
	}
	if h := k.live(); h != nil && h.ownedBy == r.owner {
		return h.join(r), nil
	}
	return nil, nil
}
