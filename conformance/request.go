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

// rawDriver is a driver that a check asks without package dsync.
type rawDriver struct {
	*connection
	mode   driver.Mode // of its requests
	mu     sync.Mutex
	serial int
	closed bool
}

// driver returns a new driver.
func (e *env) driver() *rawDriver {
	d := &rawDriver{connection: e.connect(), mode: e.mode}
	e.onClose(func(ctx context.Context) { _ = d.close(ctx) }) // the checks of Close look at the error
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

	*goroutine // calls Acquire; once it is done, the other fields are set

	lease driver.Lease
	err   error
	at    time.Time // when Acquire returned

	mu      sync.Mutex
	waiting int
	losses  []error
	lostAt  time.Time // when the first was told
}

// An option of a request.
type option func(*driver.Request)

func noWait(r *driver.Request) { r.NoWait = true }
func fixed(r *driver.Request)  { r.Fixed = true }

func ttl(d time.Duration) option { return func(r *driver.Request) { r.TTL = d } }
func owner(id string) option     { return func(r *driver.Request) { r.Owner = id } }

// start begins an Acquire. Its TTL is a long one.
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
	r.goroutine = d.env.run(func() { // ends with ctx, unless the driver is broken
		r.lease, r.err = d.driver.Acquire(ctx, &r.Request)
		r.at = time.Now()
	})
	return r
}

// acquire is start, and waits until Acquire has returned.
func (d *rawDriver) acquire(name string, opts ...option) *request {
	return d.start(name, opts...).result()
}

// hold acquires name, which is free. A TTL that is too short for the machine,
// as busy as it is, becomes longer.
func (d *rawDriver) hold(name string, opts ...option) *request {
	r := d.acquire(name, opts...)
	for t := r.longer(); t > 0; t = r.longer() {
		r = d.acquire(name, append(slices.Clip(opts), ttl(t))...)
	}
	return r.granted()
}

// wait starts a request for name, which somebody has, and returns when the
// request waits. A TTL that is too short becomes longer, as in hold.
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

// longer returns twice the TTL of r, to ask again with, if r was slow. It
// returns 0 if r was not, or was with the longest TTL that is tried.
func (r *request) longer() time.Duration {
	e := r.driver.env
	if t := e.allowed(2 * r.TTL); r.slow() && t > r.TTL && t < e.hangs() {
		return t
	}
	return 0
}

// inTime is acquire, again if that was slow, and with the same TTL.
func (d *rawDriver) inTime(name string, opts ...option) *request {
	r := d.acquire(name, opts...)
	for i := 1; i < tries && r.slow(); i++ {
		r = d.acquire(name, opts...)
	}
	return r
}

// slow reports whether the request failed after a time in which drivers give up
// when the TTL is that short, as on a busy machine: when the lease would be
// over, or could not be made sure of. Acquire has returned.
func (r *request) slow() bool {
	return r.at.Sub(r.called) >= r.TTL/4 && (errors.Is(r.err, driver.ErrUnknown) || errors.Is(r.err, driver.ErrUnavailable))
}

// refused returns an error unless the driver refuses name.
func (d *rawDriver) refused(name string, opts ...option) error {
	r := d.acquire(name, append(opts, noWait)...)
	if r.lease != nil {
		return fmt.Errorf("%s was granted %q while there was another hold", d.label, name)
	}
	if !errors.Is(r.err, driver.ErrLocked) {
		return fmt.Errorf("%s was told %q when there was another hold of %q, want an error that matches ErrLocked", d.label, outcome(r.err), name)
	}
	return nil
}

// result waits until Acquire has returned.
func (r *request) result() *request { return r.resultAfter("") }

// resultAfter is result, with what was done before in the error.
func (r *request) resultAfter(what string) *request {
	r.driver.env.await(fmt.Sprintf("Acquire of %s by %s%s", asks(&r.Request), r.driver.label, word(what != "", " after "+what)), r.goroutine)
	return r
}

// granted waits until Acquire has returned a lease.
func (r *request) granted() *request { return r.grantedAfter("") }

// grantedAfter is granted, with what was done before in the error.
func (r *request) grantedAfter(what string) *request {
	r.resultAfter(what)
	if r.lease == nil {
		r.driver.env.endf("%s, which asked for %s%s, was not granted it: %w", r.driver.label, asks(&r.Request), word(what != "", " after "+what), r.err)
	}
	return r
}

// waitsOrEnds returns when the request waits, or Acquire has returned.
func (r *request) waitsOrEnds() {
	r.driver.env.until(fmt.Sprintf("%s waits for %q", r.driver.label, r.Name), func() bool { return r.isDone() || r.waited() > 0 })
}

// waits returns when the request waits.
func (r *request) waits() *request {
	e := r.driver.env
	e.until(fmt.Sprintf("%s waits for %q", r.driver.label, r.Name), func() bool {
		if r.isDone() {
			e.endf("%s does not wait for %q, of which there is another hold: %w", r.driver.label, r.Name, outcome(r.err))
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

// isFree returns an error unless a new client gets name at once.
func (e *env) isFree(name string) error {
	r := e.outsider().acquire(name, noWait)
	if r.lease == nil {
		return fmt.Errorf("a client that tries to take %q, which should be free, gets: %w", name, r.err)
	}
	r.release()
	return nil
}

// awaitFree waits until others get name.
func (e *env) awaitFree(name string) {
	e.poll(fmt.Sprintf("%q becomes free", name), func() error { return e.isFree(name) })
}

// outsider returns a driver without ties to the others of the check, whose
// requests exclude theirs.
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

// faultTime is when the network between a client and its backend begins to
// fail. A driver that reads before it writes never comes to write if the
// network fails before the read.
type faultTime int

const (
	fromStart faultTime = iota
	// from just before the first request that can grant, if the driver calls
	// Events.Tokens before
	fromGrant
)

var faultTimes = []faultTime{fromStart, fromGrant}

// timedFault is a fault of a client's network that begins at a certain point of
// its requests.
type timedFault struct {
	when  faultTime
	begin func() // once

	mu    sync.Mutex
	left  int           // requests that are not yet at the point where they can be granted
	asked bool          // one of them has
	all   chan struct{} // closed when all have
}

// losing has d lose the answers to n requests, which are made at about the same
// time.
func (d *rawDriver) losing(when faultTime, n int) *timedFault {
	d.env.need(d.link.LoseAnswers != nil, "Link.LoseAnswers")
	return newTimedFault(when, n, d.loseAnswers)
}

// hanging returns how d has no answer to one request.
func (d *rawDriver) hanging(when faultTime) *timedFault {
	d.env.need(d.link.Hang != nil, "Link.Hang")
	return newTimedFault(when, 1, d.hang)
}

func newTimedFault(when faultTime, n int, begin func()) *timedFault {
	return &timedFault{when: when, begin: sync.OnceFunc(begin), left: n, all: make(chan struct{})}
}

// of is an option of the requests.
func (f *timedFault) of(r *driver.Request) {
	if f.when == fromStart {
		f.begin()
		return
	}
	late := time.Now().Add(patience / 3)
	r.Events = &faultEvents{r.Events, sync.OnceFunc(func() { f.arrive(late) })}
}

// arrive is called for each request once, and returns when all are there, or if
// it is late.
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

// failed returns an error if a request was granted although it had no answer.
func (f *timedFault) failed(r *request) error {
	r.result()
	f.mu.Lock()
	never := f.when == fromGrant && !f.asked
	f.mu.Unlock()
	if never && r.lease != nil {
		return r.tryRelease(r.driver.env.ctx) // the driver has nothing to ask for
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
