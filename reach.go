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
	warnEvery = time.Minute // at most one record of an outage, and one of its end, per interval
	// if a caller abandons a request that has had no answer for this long, or
	// for TTL/6, this indicates an outage
	silentFor = time.Second

	// A probe waits for its answer for TTL/6, within these bounds. The next
	// probe follows after twice that time.
	minProbe = 50 * time.Millisecond
	maxProbe = 5 * time.Second
)

// reach tracks whether the backend is in reach, depending on whether the last
// request was answered. It counts the requests of Lock and TryLock, renewals,
// releases, and the requests by which a driver keeps sessions alive. During an
// outage without any of these requests, a probe queries the backend. It decides
// all consequences: the two log records of an outage, the state of the client
// in its metrics, and whether a loss is attributed to the outage.
type reach struct {
	client *Client
	// queries whether the backend answers; nil if the driver cannot do that
	ask func(ctx context.Context, name string) error
	out atomic.Bool // changes with mu held
	wg  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	probing bool   // probe is running
	suspect bool   // the probe must query although nothing has failed
	name    string // the name of a lock, for the probe
	failed  moment // when the last request failed
	err     error  // the error of the last failure, or nil
	since   moment // the start of the outage
	warned  bool   // the outage was logged
	quiet   moment // until this time no other outage is logged
	hush    moment // until this time no other refusal of the client is logged
}

// asker returns a function that queries, given the name of a lock, whether the
// backend of d answers. It returns nil if the driver cannot do that.
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

// answered records an answer of any kind. It costs nothing while the backend is
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

// unanswered records that a request failed with err because the backend was out
// of reach. name is the name of its lock, or empty.
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

// patience returns how long a probe waits for its response.
func (r *reach) patience() time.Duration { return min(max(r.client.ttl/6, minProbe), maxProbe) }

// sessionEnded makes the probe query the backend immediately, because the
// session of the lock of name may have ended during an outage.
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

// probe queries the backend during an outage, if nothing else does. It returns
// soon after the outage, or when the watchdog ends.
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

// next returns the next query of a probe and its time. If over is true, there
// is nothing to query.
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

// known returns the name for a query. It is a name that was in use, because the
// user may have no right to query another. Called with mu held.
func (r *reach) known() string {
	if r.name == "" {
		return "dsync"
	}
	return r.name
}

// question returns known, for a Ping.
func (r *reach) question() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known()
}

// pinged handles the outcome of a Ping and returns the result of Ping. An error
// in the query itself counts as an answer.
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

// refused records that the server accepts neither this client nor any of its
// requests.
func (r *reach) refused(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.client.clock.Plain(); now >= r.hush {
		r.hush = now + warnEvery
		r.client.telemetry.Refused(failureOf(err))
	}
}

// probed handles the outcome of a probe. An error in the query itself counts as
// an answer.
func (r *reach) probed(ctx context.Context, err error) {
	if err != nil && (ctx.Err() != nil || transient(err)) {
		r.unanswered("", err)
	} else {
		r.answered()
	}
}

// close waits for the probe. The life of the watchdog has ended, and the driver
// is closed.
func (r *reach) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}

// failedSince returns the error of the last failed request, if it failed after
// the given time.
func (r *reach) failedSince(at moment) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil || r.failed <= at {
		return nil
	}
	return r.err
}

// acquired handles the outcome of a driver's Acquire that started at began.
func (r *reach) acquired(ctx context.Context, h *hold, began moment, err error) {
	switch {
	case err == nil, errors.Is(err, driver.ErrSealed), errors.Is(err, ErrLimit):
		r.answered()
	case ctx.Err() != nil && (h.waited() || r.client.clock.Plain()-began < min(r.client.ttl/6, silentFor)):
		// The caller may have left too early for a conclusion. Or it left a
		// wait, which begins with an answer.
	case transient(err):
		r.unanswered(h.lock.name, err)
	case errors.Is(err, driver.ErrCredentials):
		r.answered()
		r.refused(err)
	case errors.Is(err, ErrLocked):
		r.answered()
	}
}

// renewed handles the outcome of a renewal in the background.
func (r *reach) renewed(h *hold, err error) {
	if err == nil || errors.Is(err, ErrNotHeld) {
		r.answered()
	} else {
		r.unanswered(h.lock.name, err)
	}
}

// extended handles the outcome of a renewal by Extend.
func (r *reach) extended(ctx context.Context, h *hold, err error) {
	if err == nil || errors.Is(err, ErrNotHeld) {
		r.answered()
	} else if ctx.Err() == nil && transient(err) {
		r.unanswered(h.lock.name, err)
	}
}

// released handles the outcome of a release. wait is how long its response may
// take.
func (r *reach) released(h *hold, wait time.Duration, err error) {
	if err == nil || errors.Is(err, ErrNotHeld) {
		r.answered()
	} else if wait >= min(r.client.ttl/6, silentFor) {
		r.unanswered(h.lock.name, err)
	}
}

// keptAlive handles the outcome of a request by which the driver keeps a
// session alive.
func (r *reach) keptAlive(err error) {
	if err == nil {
		r.answered()
		return
	}
	r.unanswered("", err)
	r.client.telemetry.NotKeptAlive()
}
