package dsync

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/alarm"
	"github.com/go-dsync/dsync/internal/parallel"
)

// watchdog renews the holds of a client, and ends holds past their time, with
// one goroutine for all. A held lock costs an entry in a list, but neither a
// goroutine nor a timer. The only driver method that the goroutine calls is
// Expires. Renewals run in their own goroutines, one per batch, so a slow batch
// delays no other.
type watchdog struct {
	client *Client
	life   context.Context // canceled by Close; the parent of all renewals
	stop   context.CancelFunc
	kick   chan struct{} // buffered; signaled when something is due earlier than wake
	wg     sync.WaitGroup

	mu       sync.Mutex
	running  bool
	renewals holdAlarms // of holds to be renewed
	ends     holdAlarms // of holds and re-entries without renewal, and of holds in a batch or lapsed
	wake     moment     // the time when run will next check the alarms
}

// The alarms of the watchdog, and the subject of each.
type (
	holdAlarms = alarm.Queue[watched]
	holdAlarm  = alarm.Alarm[watched]
	watched    struct {
		hold *hold
		view *Lease // nil if the alarm is for the hold
	}
)

// grains is the ratio of the TTL to the grain of the alarms. A renewal comes
// early by at most one grain.
const grains = 64

func newWatchdog(c *Client) *watchdog {
	w := &watchdog{client: c, kick: make(chan struct{}, 1)}
	w.life, w.stop = context.WithCancel(context.Background())
	w.renewals.Grain, w.ends.Grain = moment(c.ttl/grains), moment(c.ttl/grains)
	return w
}

// close ends the goroutines and waits for them.
func (w *watchdog) close() {
	w.stop()
	w.mu.Lock()
	w.running = true // from now on run cannot start
	w.mu.Unlock()
	w.wg.Wait()
}

// watch starts to renew a hold, or waits for its end if the client does not
// renew it. Called with lock.mu held.
func (w *watchdog) watch(h *hold) {
	h.alarm.Of.hold = h
	if w.renews(h) && !h.req.Fixed {
		w.set(&w.renewals, &h.alarm, h.expires()-h.ttl*2/3)
	} else {
		w.watchEnd(h, w.client.ttl/3)
	}
}

// renews reports whether the watchdog's requests detect that a hold was
// removed. For a fixed hold, these requests do not move its end.
func (w *watchdog) renews(h *hold) bool {
	if h.req.Fixed {
		return w.client.info.Detect == 0
	}
	return !w.client.info.KeepsAlive
}

// watchEnd waits for the end of a hold that the client does not renew. If the
// hold lasts longer than pause, watchEnd queries the backend for it after
// pause. Called with lock.mu held.
func (w *watchdog) watchEnd(h *hold, pause time.Duration) {
	end := h.deadline()
	if at := w.client.now() + moment(pause); at < end && w.renews(h) {
		w.set(&w.renewals, &h.alarm, at)
	} else {
		w.endAt(&h.alarm, end)
	}
}

// endAt makes the watchdog check the hold or view again at the given time.
func (w *watchdog) endAt(a *holdAlarm, at moment) { w.set(&w.ends, a, at) }

// renewNow makes the next renewal of a hold due immediately. If only renewals
// reveal a removal, the backend is queried instead, because a renewal might
// restore a hold that is being removed from several nodes. The response to a
// renewal that was sent earlier proves nothing, so another renewal follows.
// Called with lock.mu held.
func (w *watchdog) renewNow(h *hold) {
	switch {
	case h.state != holdLive || !w.renews(h):
	case h.renewing:
		h.again = true
	default:
		h.ask = w.client.info.Detect == 0
		w.set(&w.renewals, &h.alarm, w.client.now())
	}
}

func (w *watchdog) set(q *holdAlarms, a *holdAlarm, at moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at = q.Set(a, w.client.now(), at)
	if !w.running {
		w.running = true
		w.wg.Go(w.run)
	} else if at < w.wake {
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

func (w *watchdog) remove(a *holdAlarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.Stop()
}

// run returns when life ends.
func (w *watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	clock := w.client.clock
	seen := clock.LastSleep()
	for w.life.Err() == nil {
		w.client.forgotten.end()
		now, until := w.client.now(), moment(0)
		if last := clock.LastSleep(); last != seen {
			seen, until = last, math.MaxInt64 // the machine has slept: everything may be due earlier
		}
		renewals, ends, next := w.due(now, max(now, until))
		for _, a := range ends {
			w.end(a)
		}
		w.renew(renewals)
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-w.kick:
		case <-w.life.Done():
		}
	}
}

// maxWait is the longest single wait of the watchdog while there is something
// to watch. Timers stand still while the machine sleeps.
const maxWait = time.Second

// due returns the alarms that are due, and the time to wait for the next alarm.
// If a renewal is due, it also returns the renewals that are due soon, so that
// they form few batches.
func (w *watchdog) due(now, until moment) (renewals []*hold, ends []*holdAlarm, next time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, ok := w.ends.Next(); ok && at <= until; at, ok = w.ends.Next() {
		ends = append(ends, w.ends.Take()...)
	}
	for at, ok := w.renewals.Next(); ok && at <= until; at, ok = w.renewals.Next() {
		for _, a := range w.renewals.Take() {
			renewals = append(renewals, a.Of.hold)
			until = max(until, now+w.client.ttl/12)
		}
	}
	w.wake = now + time.Hour
	for _, q := range []*holdAlarms{&w.renewals, &w.ends} {
		if at, ok := q.Next(); ok {
			w.wake = min(w.wake, at, now+maxWait)
		}
	}
	return renewals, ends, w.wake - now
}

// end checks a hold or lease whose time may be up.
func (w *watchdog) end(a *holdAlarm) {
	h := a.Of.hold
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	now := w.client.now()
	switch {
	case a.Of.view != nil:
		switch over := a.Of.view.check(now) != nil; {
		case over:
		case now >= a.At() && a == a.Of.view.slow:
			a.Of.view.tellSlow(now)
		default:
			w.endAt(a, a.At())
		}
	case h.state == holdLapsed && now < min(a.At(), h.expires()):
		// if the machine slept, the deadline moves earlier; it never moves
		// later, even if the session lives on
		w.endAt(a, min(a.At(), h.expires()))
	case h.state == holdLapsed:
		h.state = holdReleased
		w.client.releaser.add(h)
	case h.state != holdLive:
	case now < h.deadline():
		w.endAt(a, h.deadline())
	default:
		h.expire()
	}
}

// renew renews all live holds of due. In the meantime no hold is in a second
// batch. Each hold ends at its deadline, regardless of the batch.
func (w *watchdog) renew(due []*hold) {
	batch, leases := due[:0], make([]driver.Lease, 0, len(due))
	var asked []*hold // the fixed holds, which are queried and not extended
	for _, h := range due {
		h.lock.mu.Lock()
		if h.state == holdLive {
			if deadline := h.deadline(); w.client.now() < deadline {
				h.renewing = true
				w.endAt(&h.alarm, deadline)
				if h.req.Fixed || h.ask {
					asked = append(asked, h)
				} else {
					batch, leases = append(batch, h), append(leases, h.lease)
				}
			} else {
				h.expire()
			}
		}
		h.lock.mu.Unlock()
	}
	w.start(len(batch), func(ctx context.Context) {
		w.client.renewAll(ctx, leases, func(i int, err error) { w.renewed(batch[i], err) })
	})
	w.start(len(asked), func(ctx context.Context) {
		parallel.Each(len(asked), maxRenewals, func(i int) { w.renewed(asked[i], asked[i].lease.Renew(ctx, 0)) })
	})
}

// start runs f, which renews n holds, unless there are none.
func (w *watchdog) start(n int, f func(ctx context.Context)) {
	if n == 0 {
		return
	}
	w.wg.Go(func() { // ends when life ends, or after a sixth of the TTL
		ctx, cancel := context.WithTimeout(w.life, w.client.ttl/6)
		defer cancel()
		f(ctx)
	})
}

// renewed handles the outcome of one renewal.
func (w *watchdog) renewed(h *hold, err error) {
	w.client.reach.renewed(h, err)
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	if h.state != holdLive || w.life.Err() != nil {
		return
	}
	again := h.again
	h.renewing, h.again = false, false
	now := w.client.now()
	if now >= h.deadline() {
		h.expire() // even if the renewal succeeded, because its answer came too late to count
		return
	}
	if !h.req.Fixed || errors.Is(err, ErrNotHeld) {
		h.reportRenewal(err)
	}
	switch {
	case h.req.Fixed && err == nil:
		w.watchEnd(h, w.client.ttl/3)
	case h.req.Fixed && !errors.Is(err, ErrNotHeld):
		w.watchEnd(h, w.client.ttl/12)
	case err == nil:
		h.outage, h.ask = nil, false
		w.set(&w.renewals, &h.alarm, max(h.expires()-h.ttl*2/3, now+h.ttl/12))
	case errors.Is(err, ErrNotHeld):
		h.lose(lossFrom(err), true)
	default:
		h.outage = unreachable(err)
		if at := now + h.ttl/12; at < h.deadline() {
			w.set(&w.renewals, &h.alarm, at)
		}
	}
	if again {
		w.renewNow(h)
	}
}

// maxRenewals is the maximum number of concurrent renewals for a driver without
// batches.
const maxRenewals = 128

// renewAll calls the driver's RenewAll, or Renew once per lease.
func (c *Client) renewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	if b, ok := c.driver.(driver.BatchRenewer); ok {
		b.RenewAll(ctx, leases, done)
		return
	}
	parallel.Each(len(leases), maxRenewals, func(i int) { done(i, leases[i].Renew(ctx, c.ttl)) })
}
