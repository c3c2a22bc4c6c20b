package dsync

import (
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// The bounds for handing over a hold inside the process. After this many
// hand-overs, or this long after the backend's grant, the lock is really
// released, so that other processes get their turn.
const (
	maxHandOvers   = 64
	maxHandOverFor = 100 * time.Millisecond
)

type holdState uint8

const (
	holdPending holdState = iota // Acquire has not returned
	holdLive                     // granted, and not known to be past its deadline
	// lost on the local clock; to be released when its time on the backend is
	// also up
	holdLapsed
	holdReleased // given to the driver to release
	holdOver     // nothing is left to do
)

// hold is one attempt to acquire a lock from the driver, and then the hold that
// the driver granted. Leases are views of a hold: first the views of its owner
// and of re-entries, and after a hand-over inside the process the views of the
// next owner. When the last view ends, it releases the hold.
type hold struct {
	lock  *lock
	req   driver.Request
	lease driver.Lease // set by the grant
	first Lease        // the first view, in the same allocation
	alarm holdAlarm    // for the next renewal, the local deadline, or the release of a lapsed hold

	releasing releaseContext // of its release

	// Guarded by lock.mu.
	older *hold // another live hold of the lock, only for Read and Permit; nil if there is none
	// the pointer to this hold in the list of live holds; nil if it is not live
	at      **hold
	views   *Lease // all views that have not ended
	ownedBy *Owner // the group that has the views and may re-enter; nil: no re-entry
	// observed call that requested the hold, and later the call of the owner's
	// first lease; may be nil
	call  *telemetry.Call
	ttl   time.Duration // as granted or last extended
	since moment        // the time of the grant by the backend, or of the last Extend
	// the name stays taken until this time, regardless of how the hold ends
	// here; 0: no longer than the hold
	keepUntil moment
	token     uint64 // of the current owner
	// if the last renewal failed: the loss to report if the hold ends now;
	// otherwise nil
	outage      *lostError
	releaseDone chan struct{} // closed when the release has returned; nil if no call waits for it
	// the waiter that receives the hold by a request in place of a release; nil
	// if there is none
	heir      *waiter
	tokens    int8 // the number of additional useful tokens that came with the grant
	handOvers int8
	state     holdState
	waits     bool // the request was refused and is waiting on the backend
	renewing  bool // in a batch of renewals
	again     bool // to be renewed after this batch
	ask       bool // query the backend instead of renewing, until it answers
	counted   bool // in lock.uses
	departing bool // in Client.departures
}

// Waiting implements driver.Events.
func (h *hold) Waiting() {
	k := h.lock
	k.mu.Lock()
	k.answers.queued(h, k.client.clock.Plain())
	call, holder := h.call, k.holder()
	k.mu.Unlock()
	k.client.reach.answered()
	call.Waits(k, holder)
}

// waited reports whether the request was refused and is waiting or has waited.
func (h *hold) waited() bool {
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	return h.waits
}

// Tokens implements driver.Events.
func (h *hold) Tokens() int {
	k := h.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.queuesHere() && k.queue.first != nil && !h.req.Fixed {
		return maxHandOvers
	}
	return 1
}

// Lost implements driver.Events.
func (h *hold) Lost(cause error) {
	k := h.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	switch h.state {
	case holdPending:
		h.state = holdOver // the driver cleans up the rest
	case holdLive, holdLapsed:
		h.lose(h.classify(cause), true)
	}
}

// deadline returns the local end of the hold. Its margin covers two errors.
// Since the request that set the end, the local clock may have run at a
// slightly different rate than the backend's. Also, time passes between reading
// the clock and acting on it. Called with lock.mu held.
func (h *hold) deadline() moment {
	end, ttl := h.ends()
	return end - ttl/100 - 5*time.Millisecond
}

// expires returns the time when the hold ends on the backend, as far as known
// here. Called with lock.mu held.
func (h *hold) expires() moment {
	end, _ := h.ends()
	return end
}

// ends returns expires, and the TTL from which it was computed: the session's
// TTL if the session ends first, and otherwise the hold's own. Time that the
// clock has missed since then is subtracted. Called with lock.mu held.
func (h *hold) ends() (end moment, ttl time.Duration) {
	clock := h.lock.client.clock
	ttl = h.ttl
	s, carried := h.lease.(driver.SessionLease)
	if !carried {
		end = h.lease.Expires().Sub(clock.Start)
		return end - clock.Missed(end-ttl), ttl
	}
	session, itsTTL := s.Session() // before Expires, which may move with the session
	end = h.lease.Expires().Sub(clock.Start)
	if at := session.Sub(clock.Start); !session.IsZero() && at <= end {
		end, ttl = at, itsTTL
	}
	return end - clock.Missed(end-ttl), ttl
}

// young reports whether the hold may still pass to other callers of the client
// without a request, within the bounds that keep other clients from starving.
// Called with lock.mu held.
func (h *hold) young(now moment) bool {
	return !h.req.Fixed && now-h.since < min(h.ttl/3, maxHandOverFor) && h.expires()-now >= h.ttl/2
}

// fits reports whether the hold satisfies a call's request. Called with lock.mu
// held.
func (h *hold) fits(r request) bool {
	return !r.fixed && r.permits == h.req.Permits && (r.limit == 0 || r.limit == h.req.Limit)
}

// join makes a lease of the hold for a call other than the first. Called with
// lock.mu held.
func (h *hold) join(r request) *Lease {
	l := h.addView(r)
	if r.fixed {
		l.setEnd(h.lock.client.now() + r.ttl)
	}
	return l
}

// addView makes a lease of the hold. Called with lock.mu held.
func (h *hold) addView(r request) *Lease {
	l := &h.first
	if l.hold == nil {
		l.owner = h.req.Owner
	} else {
		l = new(Lease)
		if r.owner != nil {
			l.owner = r.owner.id
		} else {
			l.owner = h.lock.client.newHoldID() // of the next owner, after a hand-over
		}
	}
	r.call.Granted(h.views != nil)
	l.hold, l.token, l.fixed = h, h.token, r.fixed
	if l.next, l.at = h.views, &h.views; l.next != nil {
		l.next.at = &l.next
	}
	h.views = l
	l.overdue(r)
	return l
}

func (h *hold) removeView(l *Lease) {
	if *l.at = l.next; l.next != nil {
		l.next.at = l.at
	}
	l.next, l.at = nil, nil
}

// viewEnded is called with lock.mu held when a view has ended without a loss.
// After the last view, either the hold passes to the next local waiter, or
// viewEnded returns true and the caller must release the hold. The release
// gives the hold to the heir, if there is one.
func (h *hold) viewEnded(now moment) (release bool) {
	k := h.lock
	if h.views != nil || h.state != holdLive || k.handOver(h, now) {
		return false
	}
	if h.heir == nil {
		h.retreat()
	}
	return true
}

// retreat begins the release of a live hold. Called with lock.mu held.
func (h *hold) retreat() {
	h.end(holdReleased)
	if h.lock.alone() {
		h.lock.releasing = h
	}
	h.lock.callNext()
}

// link makes the hold the newest live one. Called with lock.mu held.
func (h *hold) link() {
	k := h.lock
	if h.older = k.hold; h.older != nil {
		h.older.at = &h.older
	}
	h.at, k.hold = &k.hold, h
}

// end removes the hold from the client's tables. The lock stays in use
// until a release has returned. Called with lock.mu held.
func (h *hold) end(s holdState) {
	k := h.lock
	h.state = s
	k.client.watchdog.remove(&h.alarm)
	if h.at != nil {
		if *h.at = h.older; h.older != nil {
			h.older.at = h.at
		}
		h.older, h.at = nil, nil
	}
	switch {
	case s != holdReleased:
		h.uncount()
	case h.keepUntil > 0:
		h.departing = true
		k.client.departures.begin()
	}
}

func (h *hold) uncount() {
	if h.counted {
		h.counted = false
		h.lock.client.unpin(h.lock)
	}
}

// expire ends a hold whose local deadline has passed. Called with lock.mu held.
func (h *hold) expire() {
	loss := &lostError{cause: lossExpired}
	switch {
	case h.outage != nil:
		loss = h.outage
	case h.inFull():
		loss.asked = true
		for l := h.views; l != nil; l = l.next {
			loss.asked = loss.asked && l.fixed
		}
	case h.lock.client.info.KeepsAlive:
		if err := h.outOfReach(); err != nil {
			loss = unreachable(err)
		}
	}
	h.lose(loss, false)
}

// inFull reports whether a hold past its time is fixed and has lasted as
// requested. A hold that a session ended early has not. Such a hold ends on the
// backend before three quarters of the TTL have passed since the grant. Called
// with lock.mu held.
func (h *hold) inFull() bool {
	return h.req.Fixed && (!h.lock.client.info.KeepsAlive || h.expires() >= h.since+h.ttl*3/4)
}

// classify returns the loss for the driver's cause. If a session ended while
// the backend was out of reach, the loss is due to the outage. The end of any
// other session is recorded as such.
func (h *hold) classify(cause error) *lostError {
	loss := lossFrom(cause)
	if loss.cause == lossSession {
		if err := h.outOfReach(); err != nil {
			return unreachable(err)
		}
		h.lock.client.reach.sessionEnded(h.lock.name)
	}
	return loss
}

// outOfReach returns the error of a request that failed after the session of
// the hold was last kept alive, or nil. Called with lock.mu held.
func (h *hold) outOfReach() error {
	end, ttl := h.ends()
	return h.lock.client.reach.failedSince(end - ttl)
}

// lose ends the hold and all its views immediately and lets the next waiter
// send a request. The releaser releases the hold only after it has also expired
// on the backend, because an earlier release would give up the safety margin.
// There is no release if the hold is gone from the backend or the driver cleans
// it up. Called with lock.mu held.
func (h *hold) lose(loss *lostError, gone bool) {
	k := h.lock
	if h.state == holdLapsed && gone {
		h.end(holdOver)
	}
	if h.state != holdLive {
		return
	}
	switch {
	case gone:
		h.end(holdOver)
	case h.keepUntil > k.client.now(): // otherwise the driver's Close would end the hold
		h.keepUntil = max(h.keepUntil, h.expires())
		h.end(holdReleased)
		k.client.releaser.add(h)
	default:
		h.end(holdLapsed)
		k.client.watchdog.endAt(&h.alarm, h.expires())
	}
	err := &LockError{"lease", k.name, loss}
	first := h.views
	for h.views != nil {
		h.views.finish(err)
	}
	if first != nil { // otherwise the hold is on its way to an heir
		first.lost(loss)
	}
	k.callNext()
}

// extended records that a fixed hold was extended to d. Called with lock.mu
// held.
func (h *hold) extended(d time.Duration) {
	if h.state == holdLive {
		h.ttl, h.since = d, h.lock.client.now()
		h.lock.client.watchdog.watchEnd(h, h.lock.client.ttl/3)
	}
}
