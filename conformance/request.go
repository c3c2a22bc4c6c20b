package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// rawDriver is a driver that a check calls without package dsync.
type rawDriver struct {
	*connection
	mode   driver.Mode // the mode of its requests
	mu     sync.Mutex
	serial int
	closed bool
}

// driver returns a new driver.
func (e *env) driver() *rawDriver {
	d := &rawDriver{connection: e.connect(), mode: e.mode}
	e.onClose(func(ctx context.Context) { _ = d.close(ctx) }) // the checks of Close examine the error
	return d
}

// close closes the driver, unless it was closed before.
func (d *rawDriver) close(ctx context.Context) error {
	d.mu.Lock()
	first := !d.closed
	d.closed = true
	d.mu.Unlock()
	if !first {
		return nil
	}
	return d.driver.Close(ctx)
}

// request is one request to a driver, with its Events and its lease.
type request struct {
	driver.Request
	driver *rawDriver
	cancel context.CancelFunc
	called time.Time // just before Acquire was called

	*goroutine // calls Acquire; once Acquire has returned, the other fields are set

	lease driver.Lease
	err   error
	at    time.Time // when Acquire returned

	mu      sync.Mutex
	waiting int
	losses  []error
	lostAt  time.Time // when the first loss was reported
}

// An option changes a request.
type option func(*driver.Request)

func noWait(r *driver.Request) { r.NoWait = true }
func fixed(r *driver.Request)  { r.Fixed = true }

func ttl(d time.Duration) option { return func(r *driver.Request) { r.TTL = d } }
func owner(id string) option     { return func(r *driver.Request) { r.Owner = id } }

// start begins an Acquire with a long TTL.
func (d *rawDriver) start(name string, opts ...option) *request {
	ctx, cancel := context.WithCancel(d.env.ctx)
	return d.startWith(ctx, cancel, name, opts...)
}

func (d *rawDriver) startWith(ctx context.Context, cancel context.CancelFunc, name string, opts ...option) *request {
	d.mu.Lock()
	d.serial++
	n := d.serial
	d.mu.Unlock()
	r := &request{driver: d, cancel: cancel, called: time.Now()}
	id := fmt.Sprintf("%s-%s:%d", d.env.id, d.label, n)
	r.Request = driver.Request{Name: name, Hold: id, Owner: id, TTL: d.env.long(), Events: r}
	in(d.mode)(&r.Request)
	for _, o := range opts {
		o(&r.Request)
	}
	r.goroutine = d.env.run(func() { // ends when ctx ends, unless the driver is broken
		r.lease, r.err = d.driver.Acquire(ctx, &r.Request)
		r.at = time.Now()
	})
	return r
}

// acquire is like start, but waits until Acquire has returned.
func (d *rawDriver) acquire(name string, opts ...option) *request {
	return d.start(name, opts...).result()
}

// hold acquires name, which is free. If the TTL is too short for this busy
// machine, hold uses a longer one.
func (d *rawDriver) hold(name string, opts ...option) *request {
	r := d.acquire(name, opts...)
	for t := r.longer(); t > 0; t = r.longer() {
		r = d.acquire(name, append(slices.Clip(opts), ttl(t))...)
	}
	return r.granted()
}

// wait starts a request for name, which another client holds, and returns when
// the request is waiting. If the TTL is too short, wait uses a longer one, like
// hold.
func (d *rawDriver) wait(name string, opts ...option) *request {
	r := d.start(name, opts...)
	for {
		if r.waitsOrEnds(); !r.isDone() {
			return r
		}
		t := r.longer()
		if t == 0 {
			return r.waits() // ends the check
		}
		r = d.start(name, append(slices.Clip(opts), ttl(t))...)
	}
}

// If r was slow, longer returns twice its TTL, for another try. It returns 0 if
// r was not slow or already had the longest TTL that hold tries.
func (r *request) longer() time.Duration {
	e := r.driver.env
	if t := e.allowed(2 * r.TTL); r.slow() && t > r.TTL && t < e.hangs() {
		return t
	}
	return 0
}

// inTime is like acquire, but repeats the request with the same TTL if it was
// slow.
func (d *rawDriver) inTime(name string, opts ...option) *request {
	r := d.acquire(name, opts...)
	for i := 1; i < tries && r.slow(); i++ {
		r = d.acquire(name, opts...)
	}
	return r
}

// slow reports whether the request, whose Acquire has returned, failed because
// it took too long for its short TTL, as happens on a busy machine. Drivers
// give up at a time at which the lease would have ended, or would have been
// uncertain.
func (r *request) slow() bool {
	return r.at.Sub(r.called) >= r.TTL/4 && isNoAnswer(r.err)
}

// refused returns an error unless the driver refuses name.
func (d *rawDriver) refused(name string, opts ...option) error {
	r := d.acquire(name, append(opts, noWait)...)
	if r.lease != nil {
		return fmt.Errorf("%s was granted %q while there was another hold", d.label, name)
	}
	if !errors.Is(r.err, driver.ErrLocked) {
		return fmt.Errorf("%s got %q when there was another hold of %q, want an error that matches ErrLocked", d.label, outcome(r.err), name)
	}
	return nil
}

// result waits until Acquire has returned.
func (r *request) result() *request { return r.resultAfter("") }

// resultAfter is like result, but adds a description of the earlier steps to
// the error.
func (r *request) resultAfter(what string) *request {
	r.driver.env.await(fmt.Sprintf("Acquire of %s by %s%s", asks(&r.Request), r.driver.label, word(what != "", " after "+what)), r.goroutine)
	return r
}

// granted waits until Acquire has returned a lease.
func (r *request) granted() *request { return r.grantedAfter("") }

// grantedAfter is like granted, but adds a description of the earlier steps to
// the error.
func (r *request) grantedAfter(what string) *request {
	r.resultAfter(what)
	if r.lease == nil {
		r.driver.env.endf("%s, which requested %s%s, was not granted it: %w", r.driver.label, asks(&r.Request), word(what != "", " after "+what), r.err)
	}
	return r
}

// waitsOrEnds returns when the request is waiting or Acquire has returned.
func (r *request) waitsOrEnds() {
	r.driver.env.until(fmt.Sprintf("%s waits for %q", r.driver.label, r.Name), func() bool { return r.isDone() || r.waited() > 0 })
}

// waits returns when the request is waiting.
func (r *request) waits() *request {
	e := r.driver.env
	e.until(fmt.Sprintf("%s waits for %q", r.driver.label, r.Name), func() bool {
		if r.isDone() {
			e.endf("%s does not wait for %q, which has another hold: %w", r.driver.label, r.Name, outcome(r.err))
		}
		return r.waited() > 0
	})
	return r
}

// release ends the hold.
func (r *request) release() {
	if err := r.tryRelease(r.driver.env.ctx); err != nil {
		r.driver.env.endf("release of %q by %s: %w", r.Name, r.driver.label, err)
	}
}

func (r *request) tryRelease(ctx context.Context) (err error) {
	r.driver.env.within(fmt.Sprintf("Release of %q by %s", r.Name, r.driver.label), func() { err = r.lease.Release(ctx) })
	return err
}

func (r *request) renew(d time.Duration) (err error) {
	e := r.driver.env
	e.within(fmt.Sprintf("Renew of %q by %s", r.Name, r.driver.label), func() { err = r.lease.Renew(e.ctx, d) })
	return err
}

// Waiting implements driver.Events.
func (r *request) Waiting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting++
}

// Tokens implements driver.Events.
func (r *request) Tokens() int { return 1 }

// Lost implements driver.Events.
func (r *request) Lost(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.losses = append(r.losses, cause); len(r.losses) == 1 {
		r.lostAt = time.Now()
	}
}

func (r *request) waited() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

func (r *request) lost() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.losses...)
}

// isFree returns an error unless a new client can acquire name immediately.
func (e *env) isFree(name string) error {
	r := e.outsider().acquire(name, noWait)
	if r.lease == nil {
		return fmt.Errorf("a client that tries to acquire %q, which should be free, gets: %w", name, r.err)
	}
	r.release()
	return nil
}

// awaitFree waits until other clients can acquire name.
func (e *env) awaitFree(name string) {
	e.poll(fmt.Sprintf("%q becomes free", name), func() error { return e.isFree(name) })
}

// outsider returns a driver that is independent of the other drivers of the
// check. Its requests and the requests of the other drivers exclude each other.
func (e *env) outsider() *rawDriver {
	e.mu.Lock()
	d := e.other
	e.mu.Unlock()
	if d == nil {
		d = e.rival()
		e.mu.Lock()
		e.other = d
		e.mu.Unlock()
	}
	return d
}

// faultTime is the moment at which the network between a client and its backend
// begins to fail. If the network fails before a driver's read, a driver that
// reads before it writes never writes.
type faultTime int

const (
	fromStart faultTime = iota
	// just before the first request that can grant, if the driver calls
	// Events.Tokens before it
	fromGrant
)

var faultTimes = []faultTime{fromStart, fromGrant}

// timedFault is a fault of a client's network that begins at a certain point in
// its requests.
type timedFault struct {
	when  faultTime
	begin func() // once

	mu    sync.Mutex
	left  int           // requests that have not reached the point at which they can be granted
	asked bool          // whether one of them has
	all   chan struct{} // closed when all of them have reached it
}

// losing makes d lose the answers to n requests that are made at about the same
// time.
func (d *rawDriver) losing(when faultTime, n int) *timedFault {
	d.env.need(d.link.LoseAnswers != nil, "Link.LoseAnswers")
	return newTimedFault(when, n, d.loseAnswers)
}

// hanging returns the fault in which d gets no answer to one request.
func (d *rawDriver) hanging(when faultTime) *timedFault {
	d.env.need(d.link.Hang != nil, "Link.Hang")
	return newTimedFault(when, 1, d.hang)
}

func newTimedFault(when faultTime, n int, begin func()) *timedFault {
	return &timedFault{when: when, begin: once(begin), left: n, all: make(chan struct{})}
}

// of is the option for requests that the fault affects.
func (f *timedFault) of(r *driver.Request) {
	if f.when == fromStart {
		f.begin()
		return
	}
	late := time.Now().Add(patience / 3)
	r.Events = &faultEvents{r.Events, once(func() { f.arrive(late) })}
}

// arrive is called once for each request. It returns when all requests have
// arrived, or at the time late.
func (f *timedFault) arrive(late time.Time) {
	f.mu.Lock()
	f.asked = true
	if f.left--; f.left == 0 {
		close(f.all)
	}
	f.mu.Unlock()
	timer := time.NewTimer(time.Until(late))
	defer timer.Stop()
	select {
	case <-f.all:
	case <-timer.C:
	}
	f.begin()
}

// failed returns an error if a request was granted although it got no answer.
func (f *timedFault) failed(r *request) error {
	r.result()
	f.mu.Lock()
	never := f.when == fromGrant && !f.asked
	f.mu.Unlock()
	if never && r.lease != nil {
		return r.tryRelease(r.driver.env.ctx) // the driver has no request to send
	}
	return r.failed()
}

type faultEvents struct {
	driver.Events
	arrive func()
}

// Tokens implements driver.Events.
func (v *faultEvents) Tokens() int {
	v.arrive()
	return v.Events.Tokens()
}
