// Package memory is the backend that lives in the process itself: the embedded default, the one for unit tests, and the model that
// the contract in package driver is read by.
//
// A [Server] is one such backend, a [Driver] is one client of it. Several drivers of one server exclude each other as several
// processes with one Redis do:
//
//	server := memory.NewServer(nil)
//	a, b := server.NewDriver(), server.NewDriver()
//
// It runs on the clock of package time, hence also in a bubble of testing/synctest, where leases end at exact times.
//
// # URLs
//
// memory:// is a backend of its own for each Open. memory://name is one that all who open it under that name in this process
// share; it lives until the last of them is closed. The parameters, beside those of every driver, are order=fifo (the default),
// clients or unordered, and keepalive=true; see [Options]. All who share a backend have to ask for the same.
package memory

import (
	"context"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Options say how a backend behaves, to all of its drivers alike. The zero value is what an application wants; the rest is there to
// test programs under what other backends do.
type Options struct {
	Order    Order // in which waiters are granted a name
	NoTokens bool  // no fencing tokens: those of a lease are 0, 0
}

// Order is the order in which a backend grants a name to its waiters.
type Order int

const (
	FIFO         Order = iota // all waiters in the order of arrival
	FIFOByClient              // the drivers take turns, in the order of arrival; the waiters of one driver are in order
	Unordered                 // any waiter, drawn by lot
)

func (o Order) driverOrder() driver.Order {
	switch o {
	case Unordered:
		return driver.Unordered
	case FIFOByClient:
		return driver.FIFOByClient
	}
	return driver.FIFO
}

// Driver is one client of a [Server]. It implements [driver.Driver], [driver.BatchRenewer], [driver.Inspector] and
// [driver.ForceUnlocker].
type Driver struct {
	server  *Server
	onClose func() // nil if the server is not shared by name

	closed bool // guarded by Server.mu
}

// New returns a driver with a server of its own. nil means the default options.
func New(o *Options) *Driver { return NewServer(o).NewDriver() }

// Server returns the backend that d is a client of.
func (d *Driver) Server() *Server { return d.server }

// Info describes the backend.
func (d *Driver) Info() driver.Info {
	i := driver.Info{
		Name:    "memory",
		Order:   d.server.options.Order.driverOrder(),
		Fencing: driver.Volatile, // the count starts again with the process
		MaxTTL:  100 * 365 * 24 * time.Hour,
		Detect:  time.Millisecond, // ForceUnlock returns after the holder was told
	}
	if d.server.options.NoTokens {
		i.Fencing = driver.None
	}
	return i
}

// Acquire implements [driver.Driver].
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	for waited := false; ; waited = true {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l := &lease{d: d, r: r}
		w, err := l.ask()
		if err != nil {
			return nil, err
		}
		if w == nil {
			return l, nil
		}
		if !waited {
			r.Events.Waiting()
		}
		if err := w.wait(ctx); err != nil {
			return nil, err
		}
		if l.confirm() {
			return l, nil
		}
	}
}

// RenewAll implements [driver.BatchRenewer].
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	for i, l := range leases {
		l := l.(*lease)
		done(i, l.Renew(ctx, l.r.TTL))
	}
}

// ForceUnlock implements [driver.ForceUnlocker]. When it returns, the holder has been told.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := d.server
	s.mu.Lock()
	if d.closed {
		s.mu.Unlock()
		return driver.ErrClosed
	}
	now := s.now()
	h := s.holder(name, now)
	if h == nil {
		s.mu.Unlock()
		return driver.ErrNotHeld
	}
	s.next(h, over, now)
	events := h.lose()
	s.mu.Unlock()
	if events != nil {
		events.Lost(driver.ErrRemoved)
	}
	return nil
}

// Inspect implements [driver.Inspector].
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	if err := ctx.Err(); err != nil {
		return driver.Status{}, err
	}
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.closed {
		return driver.Status{}, driver.ErrClosed
	}
	return s.status(name), nil
}

// Close implements [driver.Driver]: the waiters of d leave the queues, then its holds end.
func (d *Driver) Close(ctx context.Context) error {
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	s.dismiss(d, driver.ErrClosed)
	now := s.now()
	for _, h := range s.names {
		if h.d == d {
			s.next(h, over, now)
		}
	}
	if d.onClose != nil {
		d.onClose()
	}
	return nil
}
