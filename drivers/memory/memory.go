// Package memory is a backend inside the process. It is the default for a
// single-process program, the backend for unit tests, and a model of the
// contract in package driver.
//
// A [Server] is one backend, and a [Driver] is one client of it. Several
// drivers of one server exclude each other like several processes that share
// one Redis server:
//
//	server := memory.NewServer(nil)
//	a, b := server.NewDriver(), server.NewDriver()
//
// Servers use the clock of package time, so in a bubble of testing/synctest
// leases end at exact times.
//
// # URLs
//
// Each Open of memory:// creates a new backend. The backend of memory://name is
// shared by all drivers in the process that open this name with the same
// parameters. It lives until its last driver is closed.
//
// # Parameters
//
// Every backend also has ttl=, require= and fenced=.
//
//	order=fifo|clients|unordered     see Options.Order
//	keepalive=true                   see Options.KeepsAlive
//
// # Faults
//
// [Driver.Cut] makes the backend unreachable, and [Driver.ForceUnlock] removes
// a holder immediately. [Driver.Inject] makes requests fail, hang, arrive late
// or lose their answers. [Server.Expire] and [Server.Flush] end holds without
// notifying the holders.
package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Options describe the behavior of a backend toward all of its drivers. The
// zero value is for applications. The other values simulate other backends, for
// tests of programs.
type Options struct {
	Order    Order // the order in which a name is granted to its waiters
	NoTokens bool  // no fencing tokens: Lease.Tokens returns 0, 0

	// KeepsAlive attaches leases to sessions, as etcd and ZooKeeper do. There
	// is one session for each driver and TTL, and the driver keeps it alive.
	// Otherwise each lease has its own TTL and is renewed.
	KeepsAlive bool
}

// Order is the order in which a backend grants a name to its waiters.
type Order int

const (
	FIFO         Order = iota // all waiters in the order of arrival
	FIFOByClient              // the drivers take turns, in the order of arrival; the waiters of one driver are in order
	Unordered                 // any waiter, chosen at random
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

// Driver is one client of a [Server]. It implements [driver.Driver],
// [driver.BatchRenewer], [driver.KeepAliveReporter], [driver.Inspector],
// [driver.Watcher], [driver.Lister], [driver.Latcher], [driver.Leaver],
// [driver.ForceUnlocker], [driver.Limiter], [move.Sealer], [move.Marker],
// [move.Unsealer] and [move.Unmarker]. All methods may be called concurrently.
type Driver struct {
	server  *Server
	life    context.Context // canceled by Close
	end     context.CancelFunc
	work    sync.WaitGroup // keep-alives under way
	onClose func()         // nil if the server is not shared by name
	told    func(error)    // called for keep-alives; nil without OnKeepAlive
	faulty  atomic.Bool    // fault != nil

	// Guarded by Server.mu.
	closed   bool
	fault    *Fault
	changed  chan struct{} // closed, and replaced, by Inject and Heal
	behind   []*lease      // holds that failed requests may have left at the server
	unheard  []loss        // losses that the server has not reported yet
	sessions map[time.Duration]*session
}

// New returns a driver with its own server. If o is nil, the default options
// are used.
func New(o *Options) *Driver { return NewServer(o).NewDriver() }

// Server returns the backend of d.
func (d *Driver) Server() *Server { return d.server }

// Info describes the backend.
func (d *Driver) Info() driver.Info {
	i := driver.Info{
		Name:    "memory",
		Order:   d.server.options.Order.driverOrder(),
		Fencing: driver.Volatile, // the count starts again with the process
		MaxTTL:  100 * 365 * 24 * time.Hour,
		Detect:  time.Millisecond, // ForceUnlock returns after the holder was notified

		KeepsAlive: d.server.options.KeepsAlive,
	}
	if d.server.options.NoTokens {
		i.Fencing = driver.None
	}
	i.ReadWrite = driver.Support{Offered: true, Order: i.Order, Fencing: i.Fencing}
	i.Permits = driver.Support{Offered: true, Order: i.Order}
	return i
}

// Acquire implements [driver.Driver].
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	for waited := false; ; waited = true {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l := &lease{d: d, r: r}
		w, err := l.request(ctx)
		if err != nil {
			return nil, err
		}
		if w == nil {
			return l, nil
		}
		if !waited {
			r.Events.Waiting()
		}
		err = w.wait()
		if err == nil {
			err = l.confirm(ctx)
		}
		if err == nil {
			return l, nil
		}
		if err != errAgain {
			return nil, err
		}
	}
}

// RenewAll implements [driver.BatchRenewer].
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	sent := d.server.now()
	lost, err := d.request(ctx, Renewals)
	for i, l := range leases {
		l := l.(*lease)
		if err != nil {
			done(i, err)
		} else {
			done(i, l.renewed(sent, l.r.TTL, lost))
		}
	}
}

// OnKeepAlive implements [driver.KeepAliveReporter].
func (d *Driver) OnKeepAlive(f func(err error)) { d.told = f }

// ForceUnlock implements [driver.ForceUnlocker]. When it returns, the holder
// has been notified, unless the holder's driver is cut off.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	lost, err := d.query(ctx, Queries)
	if err != nil {
		return err
	}
	if err := d.server.forceUnlock(name); !lost {
		return err
	}
	return driver.ErrUnknown
}

// Inspect implements [driver.Inspector].
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	lost, err := d.query(ctx, Queries)
	if err != nil {
		return driver.Status{}, err
	}
	if lost {
		return driver.Status{}, driver.ErrUnknown
	}
	return d.server.status(name), nil
}

// query is like request, but for requests that belong to no hold.
func (d *Driver) query(ctx context.Context, r Requests) (lost bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if d.life.Err() != nil {
		return false, driver.ErrClosed
	}
	return d.request(ctx, r)
}

// Close implements [driver.Driver]. The waiters of d leave the queues, then the
// holds of d end. If d is cut off, Close waits until the holds end by
// themselves, or ctx is done.
func (d *Driver) Close(ctx context.Context) error {
	s := d.server
	s.mu.Lock()
	if d.closed {
		s.mu.Unlock()
		return nil
	}
	d.closed = true
	d.end()
	s.dismiss(func(l *lease) bool { return l.d == d }, driver.ErrClosed)
	for h := range s.holds() {
		if h.d == d && !h.left {
			d.leaveBehind(h)
		}
	}
	s.mu.Unlock()
	d.work.Wait()
	if d.onClose != nil {
		d.onClose()
	}
	return d.awaitEnds(ctx)
}

// awaitEnds waits until the server has no hold of d left.
func (d *Driver) awaitEnds(ctx context.Context) error {
	s := d.server
	for {
		s.mu.Lock()
		now, last := s.now(), int64(0)
		d.endBehind(now)
		n, changed := len(d.behind), d.changed
		for _, l := range d.behind {
			last = max(last, l.end())
		}
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		t := time.NewTimer(time.Duration(last - now))
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %d holds were left behind: %w", driver.ErrUnknown, n, ctx.Err())
		}
		t.Stop()
	}
}
