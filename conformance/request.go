package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// rawDriver is a driver that a check asks without package dsync.
type rawDriver struct {
	*connection
	mu     sync.Mutex
	serial int
	closed bool
}

// driver returns a new driver.
func (e *env) driver() *rawDriver {
	d := &rawDriver{connection: e.connect()}
	e.onClose(func(ctx context.Context) { _ = d.close(ctx) }) // the checks of Close look at the error
	return d
}

// close closes the driver, if that was not done before.
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

// request is one request to a driver, its Events, and the lease that came of it.
type request struct {
	driver.Request
	driver *rawDriver
	cancel context.CancelFunc
	called time.Time     // just before Acquire was called
	done   chan struct{} // closed when Acquire has returned lease and err, at the time returned
	lease  driver.Lease
	err    error
	at     time.Time // when Acquire returned

	mu      sync.Mutex
	waiting int
	losses  []error
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
	a := &request{driver: d, cancel: cancel, done: make(chan struct{})}
	id := fmt.Sprintf("%s-%s:%d", d.env.run, d.label, n)
	a.Request = driver.Request{Name: name, Hold: id, Owner: id, TTL: d.env.long(), Events: a}
	for _, o := range opts {
		o(&a.Request)
	}
	d.env.work.Go(func() { // ends with ctx, unless the driver is broken
		defer close(a.done)
		a.called = time.Now()
		a.lease, a.err = d.driver.Acquire(ctx, &a.Request)
		a.at = time.Now()
	})
	return a
}

// acquire is start, and waits until Acquire has returned.
func (d *rawDriver) acquire(name string, opts ...option) *request {
	return d.start(name, opts...).result()
}

// hold acquires name, which is free.
func (d *rawDriver) hold(name string, opts ...option) *request {
	return d.start(name, opts...).granted()
}

// refused returns an error unless the driver refuses name.
func (d *rawDriver) refused(name string, opts ...option) error {
	a := d.acquire(name, append(opts, noWait)...)
	if a.lease != nil {
		return fmt.Errorf("%s was granted %q while there was another hold", d.label, name)
	}
	if !errors.Is(a.err, driver.ErrLocked) {
		return fmt.Errorf("%s was told %q when there was another hold of %q, want an error that matches ErrLocked", d.label, outcome(a.err), name)
	}
	return nil
}

// result waits until Acquire has returned.
func (a *request) result() *request {
	a.driver.env.await(fmt.Sprintf("Acquire of %q by %s", a.Name, a.driver.label), a.done, nil)
	return a
}

// granted waits until Acquire has returned a lease.
func (a *request) granted() *request {
	a.result()
	if a.lease == nil {
		a.driver.env.endf("%s was not granted %q: %s", a.driver.label, a.Name, outcome(a.err))
	}
	return a
}

// waits returns when the request waits.
func (a *request) waits() *request {
	e := a.driver.env
	e.until(fmt.Sprintf("%s waits for %q", a.driver.label, a.Name), func() bool {
		select {
		case <-a.done:
			e.endf("%s does not wait for %q, of which there is another hold: %s", a.driver.label, a.Name, outcome(a.err))
		default:
		}
		return a.waited() > 0
	})
	return a
}

// release ends the hold.
func (a *request) release() {
	if err := a.tryRelease(a.driver.env.ctx); err != nil {
		a.driver.env.endf("release of %q by %s: %w", a.Name, a.driver.label, err)
	}
}

func (a *request) tryRelease(ctx context.Context) (err error) {
	a.driver.env.within(fmt.Sprintf("Release of %q by %s", a.Name, a.driver.label), func() { err = a.lease.Release(ctx) })
	return err
}

func (a *request) renew(d time.Duration) (err error) {
	e := a.driver.env
	e.within(fmt.Sprintf("Renew of %q by %s", a.Name, a.driver.label), func() { err = a.lease.Renew(e.ctx, d) })
	return err
}

// Waiting implements driver.Events.
func (a *request) Waiting() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting++
}

// Tokens implements driver.Events.
func (a *request) Tokens() int { return 1 }

// Lost implements driver.Events.
func (a *request) Lost(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.losses = append(a.losses, cause)
}

func (a *request) waited() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting
}

func (a *request) lost() []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]error(nil), a.losses...)
}

// isFree returns an error unless a new client gets name at once.
func (e *env) isFree(name string) error {
	a := e.outsider().acquire(name, noWait)
	if a.lease == nil {
		return fmt.Errorf("%q is not free: %w", name, a.err)
	}
	a.release()
	return nil
}

// awaitFree waits until others get name.
func (e *env) awaitFree(name string) {
	e.until(fmt.Sprintf("%q is free", name), func() bool { return e.isFree(name) == nil })
}

// outsider returns a driver that has nothing to do with the others of the check.
func (e *env) outsider() *rawDriver {
	e.mu.Lock()
	d := e.other
	e.mu.Unlock()
	if d == nil {
		d = e.driver()
		e.mu.Lock()
		e.other = d
		e.mu.Unlock()
	}
	return d
}
