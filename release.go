package dsync

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// maxReleaseWait bounds the wait for the response to a release, and a Close
// whose context has no bound.
const maxReleaseWait = 5 * time.Second

// canPass reports whether the hold can be passed to another caller by a request
// when it has no token left for that caller.
func (h *hold) canPass() bool {
	_, ok := h.lease.(driver.Passer)
	return ok
}

// passesTo returns the waiter to which a release passes the hold, or nil. It
// costs nothing for holds of other drivers.
func (h *hold) passesTo() *waiter {
	if !h.canPass() {
		return nil
	}
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	if h.state != holdLive {
		return nil
	}
	return h.heir
}

// pass asks the backend to give the hold to its heir and waits for at most
// wait. It reports whether nothing is left to do; otherwise the hold must be
// released. In the meantime the hold is live and has no owner, so all calls for
// the name wait in the queue or are refused.
func (h *hold) pass(ctx context.Context, wait time.Duration, heir *waiter) (done bool, err error) {
	k := h.lock
	owner := k.client.newHoldID()
	if o := heir.request.owner; o != nil {
		owner = o.id
	}
	bounded := &releaseContext{parent: ctx, limit: k.client.limitIn(wait)}
	err = h.lease.(driver.Passer).Pass(bounded, owner, heir.request.call.Note(k.client.note))
	bounded.limit.drop()
	k.client.reach.released(h, wait, err)

	k.mu.Lock()
	defer k.mu.Unlock()
	h.heir = nil
	now := k.client.now()
	switch {
	case h.state != holdLive: // it was lost in the meantime, or the client is closed
		return true, err
	case errors.Is(err, ErrNotHeld):
		h.end(holdOver)
		k.callNext()
		return true, err
	case err == nil && heir.queued && !heir.ended() && now < h.deadline():
		first, n := driver.Tokens(h.lease, k.client.floor)
		h.token, h.tokens = first, int8(min(n-1, maxHandOvers))
		k.serveFirst(h).owner = owner
		return true, nil
	}
	h.retreat()
	return false, nil
}

// giveBack makes the releaser release a grant that is no longer useful. Called
// with lock.mu held.
func (h *hold) giveBack(granted driver.Lease) {
	h.lease = granted
	if h.state == holdPending { // it was not lost in the meantime
		h.state = holdReleased
		h.lock.client.releaser.add(h)
	}
}

// release gives the hold to its heir, or releases it on the backend. It waits
// for the response for at most wait, regardless of ctx.
func (h *hold) release(ctx context.Context, wait time.Duration) error {
	if heir := h.passesTo(); heir != nil {
		wait /= 2 // the other half is for a release that may have to follow
		if done, err := h.pass(ctx, wait, heir); done {
			return h.releaseError(err)
		}
	}
	h.releasing = releaseContext{parent: ctx, limit: h.lock.client.limitIn(wait)}
	err := h.giveUp(&h.releasing)
	h.releasing.limit.drop()
	h.lock.client.reach.released(h, wait, err)
	h.released(err)
	return h.releaseError(err)
}

// releaseError returns the error for the user when a release, or the request in
// its place, failed with err.
func (h *hold) releaseError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotHeld) && h.lock.client.isClosed() && h.keepUntil != 0:
		// the hold was lost, or Close was faster and had too little time for
		// Leave
		return unknown(ErrClosed)
	case errors.Is(err, ErrNotHeld) && h.lock.client.isClosed():
		return errClosing // Close was faster
	case errors.Is(err, ErrNotHeld):
		return lossFrom(err)
	}
	return unknown(err)
}

// released handles the outcome of a release.
func (h *hold) released(err error) {
	contended := true
	reporter, known := h.lease.(driver.ContentionReporter)
	if known && err == nil {
		contended = reporter.Contended()
	}
	k := h.lock
	k.mu.Lock()
	defer k.mu.Unlock()
	if contended && (known || k.contending > 0) && k.client.info.OrderOf(k.mode) == driver.Unordered {
		k.yieldUntil = k.client.clock.Plain() + yieldFor
	}
	if k.releasing == h {
		k.releasing = nil
	}
	if h.releaseDone != nil {
		close(h.releaseDone)
	}
	if h.departing {
		h.departing = false
		k.client.departures.end()
	}
	h.uncount()
}

// giveUp ends a hold on the backend, either immediately or when HoldAtLeast
// allows it.
func (h *hold) giveUp(ctx context.Context) error {
	c := h.lock.client
	rest := h.keepUntil - c.now()
	if rest <= 0 {
		return h.lease.Release(ctx)
	}
	rest = max(rest, c.info.MinTTL)
	if unit := c.info.TTLUnit; unit > 0 {
		rest = (rest + unit - 1) / unit * unit
	}
	return c.driver.(driver.Leaver).Leave(ctx, h.lease, rest)
}

// departures counts the client's holds that HoldAtLeast keeps taken and whose
// release has begun. The driver's Close would end such a hold if the driver did
// not know yet that it must be left.
type departures struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n becomes 0; nil if no goroutine waits
}

func (d *departures) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
}

func (d *departures) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n--; d.n == 0 && d.none != nil {
		close(d.none)
	}
}

// wait returns when all releases have returned, or when ctx ends. It is called
// once, after the last begin.
func (d *departures) wait(ctx context.Context) {
	d.mu.Lock()
	if d.n == 0 {
		d.mu.Unlock()
		return
	}
	d.none = make(chan struct{})
	d.mu.Unlock()
	select {
	case <-d.none:
	case <-ctx.Done():
	}
}

// leaveAll ends the holds that the driver's Close must not free, a few at a
// time.
func leaveAll(ctx context.Context, holds []*hold) {
	var wg sync.WaitGroup
	free := make(chan struct{}, maxReleases)
	for _, h := range holds {
		free <- struct{}{}
		wg.Go(func() {
			_ = h.giveUp(ctx) // after an error the hold ends by itself
			<-free
		})
	}
	wg.Wait()
}

// maxReleases is the maximum number of concurrent releases in the background.
const maxReleases = 16

// releaser releases holds for which no caller waits: holds that were lost on
// the local clock, were granted too late, or ended by
// themselves.
type releaser struct {
	life context.Context // of the watchdog
	info driver.Info
	wg   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	holds   []*hold
	workers int
}

// add is called with the lock.mu of h held. The hold has its lease, and is
// either in the state holdReleased or live with an heir.
func (r *releaser) add(h *hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return // the driver's Close ends the hold
	}
	r.holds = append(r.holds, h)
	if r.workers < maxReleases {
		r.workers++
		r.wg.Go(r.work)
	}
}

// work returns when nothing is left to release, or when life ends.
func (r *releaser) work() {
	for {
		r.mu.Lock()
		if len(r.holds) == 0 || r.closed {
			r.workers--
			r.mu.Unlock()
			return
		}
		h := r.holds[0]
		r.holds[0], r.holds = nil, r.holds[1:]
		r.mu.Unlock()
		if h.gone(r.info) {
			h.released(nil)
		} else {
			_ = h.release(r.life, maxReleaseWait) // on an error the driver cleans up
		}
	}
}

// close waits for the pending releases.
func (r *releaser) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}

// gone reports whether the backend can no longer have anything that a request
// for the hold has left. This is true one TTL after the hold expired, because
// the last renewal was sent before that and cannot have lasted for longer than
// a TTL. For a hold on a session, only the driver knows, because it keeps the
// session alive and the server may have slept together with this machine.
func (h *hold) gone(info driver.Info) bool {
	if info.KeepsAlive {
		return false
	}
	now := h.lock.client.now()
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	return now > h.expires()+h.ttl+info.LateFor(h.ttl)
}

// releaseContext is the bounded context of a release. It has the values of its
// parent, but not its cancellation.
type releaseContext struct {
	parent context.Context
	limit  *limit
}

func (c *releaseContext) Deadline() (time.Time, bool) { return c.limit.at, true }

func (c *releaseContext) Value(key any) any { return c.parent.Value(key) }

func (c *releaseContext) Done() <-chan struct{} { return c.limit.done() }

func (c *releaseContext) Err() error {
	if !time.Now().Before(c.limit.at) {
		c.limit.end()
		return context.DeadlineExceeded
	}
	return nil
}

// AfterFunc lets package context derive from c without a goroutine.
func (c *releaseContext) AfterFunc(f func()) (stop func() bool) {
	return time.AfterFunc(time.Until(c.limit.at), f).Stop
}

// limit is the time by which releases must end. Its timer is made at the first
// call to done, because a driver that pipelines its requests may never call
// done. Releases that begin at about the same time share a limit, because
// separate timers would be most of the cost of a release in the process.
type limit struct {
	at     time.Time
	shared bool

	mu    sync.Mutex
	ended chan struct{}
	timer *time.Timer
	over  bool
}

// limitIn returns the limit of a release that may take as long as wait, or up
// to an eighth less.
func (c *Client) limitIn(wait time.Duration) *limit {
	at := time.Now().Add(wait)
	if wait != maxReleaseWait {
		return &limit{at: at}
	}
	last := c.limit.Load()
	if last == nil || at.Sub(last.at) > wait/8 {
		last = &limit{at: at, shared: true}
		c.limit.Store(last)
	}
	return last
}

// done returns a channel that is closed when the time is up.
func (l *limit) done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = make(chan struct{})
		if l.over {
			close(l.ended)
		} else {
			l.timer = time.AfterFunc(time.Until(l.at), l.end)
		}
	}
	return l.ended
}

// drop frees the timer, unless other releases share it.
func (l *limit) drop() {
	if !l.shared {
		l.end()
	}
}

func (l *limit) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	if l.ended != nil {
		l.timer.Stop()
		close(l.ended)
	}
}
