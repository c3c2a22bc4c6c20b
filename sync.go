// Package dsync locks names across goroutines, processes and machines, on a
// backend chosen by configuration.
//
//	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
//	defer cancel()
//	client, err := dsync.Open(ctx, "redisson://127.0.0.1:6379", nil) // import _ ".../drivers/redisson"
//	...
//	lease, err := client.Lock(ctx, "orders/42")
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// A [Client] is one connection to a backend. Lock returns a [Lease], which is
// renewed in the background until Unlock or until the lease is lost. A lease is
// lost if the backend is out of reach for too long, or if another client
// removes the lock. [Lease.Done], [Lease.Context] and [Lease.Err] report the
// loss before another client can acquire the lock, as far as the backend's
// promises go. Unlock and Close ignore the cancellation of their ctx, so both
// can be deferred.
//
// A lock with a lease cannot stop a write that is already on its way when the
// lease ends, as after a long pause of the process. If late writes matter, send
// [Lease.Token] with the write, and let the resource refuse a token that is
// smaller than the largest one it has seen. Package guard does so.
//
// Goroutines that call Lock of one Client exclude each other. Calls through one
// [Owner] share the lock. [Read] and [Write] make a name a read-write lock, and
// [Permits] allows a limited number of holders, if the backend supports them.
package dsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/clock"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// A Locker locks names. *Client and *Owner are Lockers, and [With] makes a
// Locker with options. Accept a Locker in functions that only lock. Tests can
// pass a client of package dsynctest.
type Locker interface {
	// Lock waits until it holds name or ctx is done. ctx bounds only the wait:
	// its cancellation after the grant does not end the lease. While the
	// backend is out of reach, Lock tries again. Other errors return
	// immediately.
	//
	// If ctx ends while a grant is on its way, Lock returns either the lease or
	// an error. After an error nothing is held, and the caller is not in a
	// queue. The remains of an unanswered request are cleaned up in the
	// background.
	//
	// Names are valid UTF-8 without NUL, 1 to 1024 bytes. Different names are
	// different locks.
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error)

	// TryLock is like Lock, but does not wait. If another owner holds name, the
	// error matches ErrLocked. If the backend is out of reach, TryLock does not
	// try again.
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error)
}

const defaultTTL = 30 * time.Second

// New returns a Client of a driver that the program has created. Close closes
// the driver.
func New(d driver.Driver, o *Options) (*Client, error) {
	if o == nil {
		o = &Options{}
	}
	c := &Client{
		driver: d, info: d.Info(), note: o.Note, floor: o.Floor, id: newID(), clock: clock.New(),
		maxHold: o.MaxHold, slowHold: o.SlowHold, debug: o.Debug,
		closing: make(chan struct{}), closed: make(chan struct{}),
	}
	for mode := range c.locks {
		c.locks[mode] = map[string]*lock{}
		c.queues[mode] = driver.Mode(mode) != driver.Read && c.info.OrderOf(driver.Mode(mode)) != driver.FIFO
	}
	if err := errors.Join(c.info.Check(o.Require), c.info.CheckFloor(o.Floor)); err != nil {
		return nil, fmt.Errorf("dsync: open: %w", err)
	}
	if c.ttl = o.TTL; c.ttl == 0 {
		c.ttl = max(defaultTTL, c.info.MinTTL)
		if c.info.MaxTTL > 0 {
			c.ttl = min(c.ttl, c.info.MaxTTL)
		}
	}
	if err := c.checkTTL(c.ttl); err != nil {
		return nil, fmt.Errorf("dsync: open: %w", err)
	}
	if o.MaxHold < 0 || o.SlowHold < 0 {
		return nil, fmt.Errorf("dsync: open: MaxHold %v or SlowHold %v is negative", o.MaxHold, o.SlowHold)
	}
	c.reach.client, c.reach.ask, c.latches.client = c, asker(d), c
	c.watchdog = newWatchdog(c)
	c.releaser = releaser{life: c.watchdog.life, info: c.info}
	var err error
	if c.telemetry, err = newTelemetry(c, o); err != nil {
		return nil, fmt.Errorf("dsync: open: %w", err)
	}
	c.telemetry.Begin()
	if r, ok := d.(driver.KeepAliveReporter); ok {
		r.OnKeepAlive(c.reach.keptAlive)
	}
	if r, ok := d.(driver.PhaseReporter); ok {
		r.OnPhase(c.telemetry.Phase)
	}
	return c, nil
}

// minTTL is the shortest TTL that leaves time to use the lock before the margin
// at its end.
const minTTL = 10 * time.Millisecond

func (c *Client) checkTTL(d time.Duration) error {
	if 0 < d && d < minTTL {
		return fmt.Errorf("TTL %v is shorter than %v", d, minTTL)
	}
	return c.info.CheckTTL(d)
}

// Open connects to the backend of a URL, such as "memory://" or
// "redisson://user:password@host:6379/0?ttl=10s". The program imports the
// package of the driver, which registers its scheme. Errors of Open do not
// contain the password.
//
// While the backend is out of reach, Open tries again until ctx is done, and
// logs this once. So give ctx a deadline: without a deadline and without a
// Logger, the record goes to slog.Default. Other errors, such as a wrong
// password, return immediately.
//
// All drivers have these parameters:
//
//	ttl=30s          Options.TTL
//	require=fair     Options.Require: a list of fair, fifo, fenced, rw, permits
//	fenced=false     no fencing tokens, and nothing stored for them
//	floor=1000       Options.Floor
func Open(ctx context.Context, url string, o *Options) (*Client, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	d, config, err := openDriver(ctx, url, &opts)
	if err != nil {
		return nil, fmt.Errorf("dsync: open: %w", err)
	}
	opts.TTL = config.TTL
	if config.URL.Has("floor") {
		opts.Floor = config.Floor
	}
	c, err := New(d, &opts)
	if err != nil {
		return nil, errors.Join(err, d.Close(ctx))
	}
	return c, nil
}

// openDriver tries until the backend is in reach, or ctx is done.
func openDriver(ctx context.Context, url string, o *Options) (driver.Driver, *driver.Config, error) {
	var trouble error // of the attempt before
	for pause := 10 * firstRetry; ; pause = min(2*pause, lastRetry) {
		d, config, err := driver.OpenTTL(ctx, url, o.TTL)
		switch {
		case err == nil:
			return d, config, nil
		case ctx.Err() != nil && trouble != nil:
			return nil, nil, fmt.Errorf("%w; before that: %w", ctx.Err(), trouble)
		case ctx.Err() != nil || !transient(err):
			return nil, nil, err
		case trouble == nil:
			logger := o.Logger
			if _, bounded := ctx.Deadline(); logger == nil && !bounded {
				logger = slog.Default()
			}
			if logger != nil {
				telemetry.LogOpen(ctx, logger, err, o.OmitNames || o.OmitOwners)
			}
		}
		trouble = err
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, fmt.Errorf("%w; before that: %w", ctx.Err(), trouble)
		}
	}
}

// Ping sends a request to the backend and returns nil if the backend answers.
// Use it for the readiness probe of a program that cannot work without its
// locks. Ping waits until ctx is done, and 5 s at most. If the backend does not
// support it, Ping returns errors.ErrUnsupported.
//
// Ping also fails if the server does not accept the user or its password. The
// error then matches fs.ErrPermission, and the Logger reports it, once a
// minute. Success does not mean that the user has the rights that a lock needs.
func (c *Client) Ping(ctx context.Context) error {
	switch {
	case c.isClosed():
		return fmt.Errorf("dsync: ping: %w", ErrClosed)
	case c.reach.ask == nil:
		return fmt.Errorf("dsync: ping: %w", errors.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, maxReleaseWait)
	defer cancel()
	began := c.clock.Plain()
	err := c.reach.ask(ctx, c.reach.question())
	if err := c.reach.pinged(ctx, began, err); err != nil {
		return fmt.Errorf("dsync: ping: %w", err)
	}
	return nil
}

// Close ends the client: waiting calls return ErrClosed, leases end, held locks
// are unlocked, and goroutines end. Like Unlock, Close ignores the cancellation
// of ctx, which is often the reason why a program ends. Close returns by the
// deadline of ctx, or within 5 s if ctx has no deadline in the future.
//
// If a lock may be left on the backend, the error matches [ErrUnknown] and
// reports how many locks. It also matches context.DeadlineExceeded if the time
// was too short. Such a lock is free after its TTL. Later calls to Close wait
// for the first.
func (c *Client) Close(ctx context.Context) error {
	ctx, cancel := leaving(ctx)
	defer cancel()
	c.mu.Lock()
	first := !c.ended
	c.ended = true
	c.mu.Unlock()
	if first {
		close(c.closing)
		go c.shutdown(ctx) // ends soon after ctx at the latest, as the driver's Close does
	}
	select {
	case <-c.closed:
		return c.closeErr
	case <-ctx.Done():
	}
	select {
	case <-c.closed:
		return c.closeErr
	default:
		return fmt.Errorf("dsync: close: %w", unknown(ctx.Err()))
	}
}

// closeMargin is the time reserved after the driver's Close, so that Close can
// still return its error on a busy machine. It is at most a fifth of the time
// for Close.
const closeMargin = 500 * time.Millisecond

func (c *Client) shutdown(ctx context.Context) {
	defer close(c.closed)
	end, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(ctx, end.Add(-min(time.Until(end)/5, closeMargin)))
	defer cancel()
	c.mu.Lock()
	var locks []*lock // complete: pin no longer adds any
	for _, names := range c.locks {
		locks = slices.AppendSeq(locks, maps.Values(names))
	}
	c.mu.Unlock()
	var left []*hold
	for _, k := range locks {
		left = append(left, k.close()...)
	}
	leaveAll(ctx, left)
	c.departures.wait(ctx)
	c.watchdog.close()
	if err := c.driver.Close(ctx); err != nil {
		if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", err, ended)
		}
		c.closeErr = fmt.Errorf("dsync: close: %w", err)
	}
	c.releaser.close()
	c.latches.close()
	c.reach.close()
	c.telemetry.Close()
}

func (c *Client) isClosed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// leaving returns the context of Close. It is the caller's context without the
// cancellation, but with a bound if there is no future deadline.
func leaving(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if now := time.Now(); !ok || !end.After(now) {
		end = now.Add(maxReleaseWait)
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}
