package dsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

const (
	warnEvery = time.Minute // at most one record of an outage, and one of its end, in this time
	// a request cut off by its caller tells of an outage after so long without
	// an answer, or after TTL/6
	silentFor = time.Second

	// A probe waits for its answer for TTL/6 within these bounds, and the next
	// follows after twice that time.
	minProbe = 50 * time.Millisecond
	maxProbe = 5 * time.Second
)

// reach knows whether the backend is in reach, by the last request: answered,
// or not. It hears of the requests of Lock and TryLock, of renewals and
// releases, and of requests by which a driver keeps sessions alive. In an
// outage without any of these a probe asks the backend. All consequences are
// decided here: the two log records of an outage, the state of the client in
// its metrics, and the cause of a loss for want of the backend.
type reach struct {
	client *Client
	// whether the backend answers; nil if there is no way
	ask func(ctx context.Context, name string) error
	out atomic.Bool // changes with mu held
	wg  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	probing bool   // probe runs
	suspect bool   // the probe is to ask although nothing has failed
	name    string // of a lock, to ask for
	failed  moment // when the last request failed
	err     error  // of the last failure; nil if there was none
	since   moment // of the outage
	warned  bool   // an operator was told of the outage
	quiet   moment // until then none is told of another
	hush    moment // until then none is told that the server refuses the client
}

// asker returns what asks the backend of d whether it answers, given the name
// of a lock; nil if there is no way.
func asker(d driver.Driver) func(ctx context.Context, name string) error {
	switch d := d.(type) {
	case driver.Pinger:
		return func(ctx context.Context, _ string) error { return d.Ping(ctx) }
	case driver.Inspector:
		return func(ctx context.Context, name string) error {
			_, err := d.Inspect(ctx, name)
			return err
		}
	}
	return nil
}

// answered takes note of an answer of any kind, at no cost while the backend is
// in reach.
func (r *reach) answered() {
	if !r.out.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.out.Load() {
		return
	}
	r.turn(false)
	if r.warned {
		r.client.telemetry.InReach(r.client.clock.Plain() - r.since)
	}
}

// unanswered takes note of a request that failed for want of the backend, for
// the reason err. name is the name of its lock, or empty.
func (r *reach) unanswered(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.client.isClosed() {
		return
	}
	now := r.client.clock.Plain()
	r.failed, r.err = now, err
	if !r.out.Load() {
		r.since, r.warned = now, false
		r.turn(true)
	}
	r.startProbe(name, 2*r.patience())
	if !r.warned && now >= r.quiet {
		r.warned, r.quiet = true, now+warnEvery
		r.client.telemetry.OutOfReach(failureOf(err))
	}
}

// turn is called with mu held.
func (r *reach) turn(out bool) {
	r.out.Store(out)
	r.client.telemetry.Turned(out)
}

// patience is how long a probe waits for its answer.
func (r *reach) patience() time.Duration { return min(max(r.client.ttl/6, minProbe), maxProbe) }

// sessionEnded has the backend asked at once, since the session of the lock of
// name may have ended in an outage.
func (r *reach) sessionEnded(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed && !r.client.isClosed() && !r.out.Load() {
		r.suspect = true
		r.startProbe(name, 0)
	}
}

// startProbe is called with mu held.
func (r *reach) startProbe(name string, wait time.Duration) {
	if name != "" {
		r.name = name
	}
	if r.ask != nil && !r.probing {
		r.probing = true
		r.wg.Go(func() { r.probe(wait) })
	}
}

// probe asks the backend during an outage, if nobody else does. It ends soon
// after the outage, or with the watchdog.
func (r *reach) probe(wait time.Duration) {
	life := r.client.watchdog.life
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-life.Done():
			return
		}
		name, wait, over := r.next()
		if over {
			return
		}
		if wait <= 0 {
			ctx, cancel := context.WithTimeout(life, r.patience())
			r.probed(ctx, r.ask(ctx, name))
			cancel()
			wait = 2 * r.patience()
		}
		timer.Reset(wait)
	}
}

// next returns the next question of a probe and its time; over: there is
// nothing to ask.
func (r *reach) next() (name string, wait time.Duration, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out.Load() {
		wait = r.failed + 2*r.patience() - r.client.clock.Plain()
	} else if !r.suspect {
		r.probing = false
		return "", 0, true
	}
	r.suspect = false
	return r.known(), wait, false
}

// known is the name that a question is about: one that was in use, since the
// user may have no right to ask for another. Called with mu held.
func (r *reach) known() string {
	if r.name == "" {
		return "dsync"
	}
	return r.name
}

// question is known, for a Ping.
func (r *reach) question() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known()
}

// pinged takes the outcome of a Ping, and returns what Ping is to say. What is
// wrong with the question is an answer.
func (r *reach) pinged(ctx context.Context, began moment, err error) error {
	if ended := ctx.Err(); err != nil && ended != nil {
		if r.client.clock.Plain()-began >= min(r.client.ttl/6, silentFor) {
			r.unanswered("", err)
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, ended)
	}
	switch {
	case transient(err):
		r.unanswered("", err)
		return err
	case errors.Is(err, ErrClosed), errors.Is(err, errors.ErrUnsupported):
		return err
	}
	r.answered()
	if errors.Is(err, driver.ErrCredentials) {
		r.refused(err)
		return err
	}
	return nil
}

// refused takes note of a server that accepts neither this client nor any of
// its requests.
func (r *reach) refused(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.client.clock.Plain(); now >= r.hush {
		r.hush = now + warnEvery
		r.client.telemetry.Refused(failureOf(err))
	}
}

// probed takes the outcome of a probe. What is wrong with the question is an
// answer.
func (r *reach) probed(ctx context.Context, err error) {
	if err != nil && (ctx.Err() != nil || transient(err)) {
		r.unanswered("", err)
	} else {
		r.answered()
	}
}

// close waits for the probe. The life of the watchdog is over, and the driver
// is closed.
func (r *reach) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}

// failedSince returns the error of the last failed request, if the failure came
// after a time.
func (r *reach) failedSince(at moment) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil || r.failed <= at {
		return nil
	}
	return r.err
}

// acquired takes the outcome of a driver's Acquire, and when the Acquire began.
func (r *reach) acquired(ctx context.Context, h *hold, began moment, err error) {
	switch {
	case err == nil, errors.Is(err, driver.ErrSealed), errors.Is(err, ErrLimit):
		r.answered()
	case ctx.Err() != nil && (h.waited() || r.client.clock.Plain()-began < min(r.client.ttl/6, silentFor)):
		// The caller left too early to tell, or left a wait, and a wait begins
		// with an answer.
	case transient(err):
		r.unanswered(h.lock.name, err)
	case errors.Is(err, driver.ErrCredentials):
		r.answered()
		r.refused(err)
	case errors.Is(err, ErrLocked):
		r.answered()
	}
}

// renewed takes the outcome of a renewal in the background.
func (r *reach) renewed(h *hold, err error) {
	if err == nil || errors.Is(err, ErrNotHeld) {
		r.answered()
	} else {
		r.unanswered(h.lock.name, err)
	}
}

// extended takes the outcome of a renewal by Extend.
func (r *reach) extended(ctx context.Context, h *hold, err error) {
	if err == nil || errors.Is(err, ErrNotHeld) {
		r.answered()
	} else if ctx.Err() == nil && transient(err) {
		r.unanswered(h.lock.name, err)
	}
}

// released takes the outcome of a release, and the time for its answer.
func (r *reach) released(h *hold, wait time.Duration, err error) {
	if err == nil || errors.Is(err, ErrNotHeld) {
		r.answered()
	} else if wait >= min(r.client.ttl/6, silentFor) {
		r.unanswered(h.lock.name, err)
	}
}

// keptAlive takes the outcome of a request by which the driver keeps a session
// alive.
func (r *reach) keptAlive(err error) {
	if err == nil {
		r.answered()
		return
	}
	r.unanswered("", err)
	r.client.telemetry.NotKeptAlive()
}
