// Package drivertest provides helpers for tests that call a driver directly, as
// package dsync does.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// HangGuard bounds every wait. It does not predict how long an operation takes.
const HangGuard = 60 * time.Second

// Guard returns a context that ends after HangGuard.
func Guard(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), HangGuard)
	tb.Cleanup(cancel)
	return ctx
}

var holds atomic.Int64

// Events records the events of a request.
type Events struct {
	waiting chan struct{} // closed by Waiting, so a second call panics
	lost    chan error
}

// Waiting implements driver.Events.
func (e *Events) Waiting() { close(e.waiting) }

// Tokens implements driver.Events.
func (e *Events) Tokens() int { return 1 }

// Lost implements driver.Events.
func (e *Events) Lost(cause error) { e.lost <- cause }

// Request returns a request with a TTL of 30 s and its own hold.
func Request(name string) *driver.Request {
	hold := fmt.Sprintf("00000000-0000-4000-8000-000000000000:%d", holds.Add(1))
	return &driver.Request{Name: name, Hold: hold, Owner: "owner of " + name, TTL: 30 * time.Second,
		Events: &Events{waiting: make(chan struct{}), lost: make(chan error, 1)}}
}

// NoWait returns a request that does not wait.
func NoWait(name string) *driver.Request {
	r := Request(name)
	r.NoWait = true
	return r
}

// WithTTL changes the TTL of a request.
func WithTTL(r *driver.Request, ttl time.Duration) *driver.Request {
	r.TTL = ttl
	return r
}

// Fixed turns r into a request without renewal.
func Fixed(r *driver.Request, ttl time.Duration) *driver.Request {
	r.TTL, r.Fixed = ttl, true
	return r
}

// LostBy waits until the driver reports the loss of a hold.
func LostBy(tb testing.TB, r *driver.Request) error {
	tb.Helper()
	select {
	case cause := <-r.Events.(*Events).lost:
		return cause
	case <-time.After(HangGuard):
		tb.Fatalf("the loss of %q is not reported", r.Name)
		return nil
	}
}

// Open opens a driver and closes it gracefully at the end of the test.
func Open(tb testing.TB, url string) driver.Driver {
	tb.Helper()
	d, _, err := driver.Open(Guard(tb), url)
	if err != nil {
		tb.Fatal(err)
	}
	CloseLater(tb, d)
	return d
}

// CloseLater closes a driver at the end of the test unless it is already
// closed.
func CloseLater(tb testing.TB, d driver.Driver) {
	tb.Cleanup(func() {
		if err := d.Close(Guard(tb)); err != nil && err != driver.ErrClosed {
			tb.Errorf("Close: %v", err)
		}
	})
}

// Acquire fails the test if the request is not granted.
func Acquire(tb testing.TB, d driver.Driver, r *driver.Request) driver.Lease {
	tb.Helper()
	l, err := d.Acquire(Guard(tb), r)
	if err != nil {
		tb.Fatalf("Acquire %q: %v", r.Name, err)
	}
	return l
}

// Release fails the test if the lease had ended.
func Release(tb testing.TB, l driver.Lease) {
	tb.Helper()
	if err := l.Release(Guard(tb)); err != nil {
		tb.Errorf("Release: %v", err)
	}
}

// Token returns the first token of a lease.
func Token(l driver.Lease) uint64 {
	first, _ := l.Tokens()
	return first
}

// Waiter is a call to Acquire in another goroutine.
type Waiter struct {
	Cancel context.CancelFunc
	Done   chan struct{} // closed when the call has returned

	lease driver.Lease
	err   error
}

// Begin begins an Acquire.
func Begin(d driver.Driver, r *driver.Request) *Waiter {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Waiter{Cancel: cancel, Done: make(chan struct{})}
	go func() { // ends when Acquire returns, which the driver's cleanup ensures
		defer close(w.Done)
		w.lease, w.err = d.Acquire(ctx, r)
	}()
	return w
}

// Wait begins an Acquire and returns when the Acquire is waiting.
func Wait(tb testing.TB, d driver.Driver, r *driver.Request) *Waiter {
	tb.Helper()
	w := Begin(d, r)
	select {
	case <-r.Events.(*Events).waiting:
	case <-w.Done:
		tb.Fatalf("Acquire of a lock that is taken: got %v, %v, want a wait", w.lease, w.err)
	case <-time.After(HangGuard):
		tb.Fatal("Acquire neither waits nor returns")
	}
	return w
}

// End waits until the Acquire has returned.
func (w *Waiter) End(tb testing.TB) (driver.Lease, error) {
	tb.Helper()
	select {
	case <-w.Done:
		return w.lease, w.err
	case <-time.After(HangGuard):
		tb.Fatal("Acquire does not return")
		return nil, nil
	}
}

// Granted waits until the Acquire is granted.
func (w *Waiter) Granted(tb testing.TB) driver.Lease {
	tb.Helper()
	l, err := w.End(tb)
	if err != nil {
		tb.Fatalf("Acquire: %v", err)
	}
	return l
}

// Waits reports whether the Acquire has not returned yet.
func (w *Waiter) Waits() bool {
	select {
	case <-w.Done:
		return false
	default:
		return true
	}
}

// WantErr fails the test unless the error matches every error of want.
func WantErr(tb testing.TB, what string, err error, want ...error) {
	tb.Helper()
	tb.Logf("%s: %v", what, err) // make test searches the output for passwords
	for _, target := range want {
		if !errors.Is(err, target) {
			tb.Errorf("%s: got %v, want an error that matches %q", what, err, target)
		}
	}
}

// WantText fails the test unless the text of the error contains all parts.
func WantText(tb testing.TB, what string, err error, parts ...string) {
	tb.Helper()
	if err == nil {
		tb.Errorf("%s: got no error", what)
		return
	}
	tb.Logf("%s: %v", what, err) // make test searches the output for passwords
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			tb.Errorf("%s: got %q, want %q in it", what, err, part)
		}
	}
}
