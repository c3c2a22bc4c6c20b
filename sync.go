// Package dsync locks names across goroutines, processes and machines, on a backend chosen by configuration.
//
//	client, err := dsync.Open(ctx, "redisson://127.0.0.1:6379", nil) // import _ ".../drivers/redisson"
//	...
//	lease, err := client.Lock(ctx, "orders/42")
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// A [Client] is one connection to a backend. Lock returns a [Lease], which is renewed in the background until its end. A lease ends by
// Unlock, or by loss: when the backend could not be reached for so long that somebody else may get the lock, or when somebody removed the
// lock. Loss is never silent: [Lease.Done], [Lease.Context] and [Lease.Err] tell of a loss before anybody else can hold the lock, as
// far as the backend's promises go.
//
// Unlock and Close ignore the cancellation of their ctx, so both are right in a defer when a canceled ctx is why a function or a program
// ends.
//
// No lock of this kind can stop a write that is already on its way when its lease ends, as after a long pause of the process. Where late
// writes matter, send [Lease.Token] with the write, and let the resource refuse smaller tokens than it has seen.
//
// Goroutines that call Lock of one Client exclude each other. Reentrancy is explicit: calls through one [Owner] share the lock.
package dsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// A Locker locks names. *Client and *Owner are Lockers. Accept a Locker where you only need to lock.
type Locker interface {
	// Lock waits until it holds name or ctx is done; a backend out of reach is asked again until then, other errors return at once. ctx
	// bounds the wait only: a later cancellation does not end the lease. After an error nothing is held, and the caller is in
	// no queue; what an unanswered request may have left is cleaned up in the background.
	//
	// Names are valid UTF-8 without NUL, 1 to 1024 bytes. Different names are different locks.
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error)

	// TryLock is Lock without the wait: if another owner holds name TryLock returns an error that matches ErrLocked, and when the
	// backend is out of reach TryLock does not try again.
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error)
}

// LockOption is an option of one Lock, TryLock, Do or TryDo.
type LockOption struct{ expireAfter, waitAtMost *time.Duration }

// ExpireAfter makes a lease that ends by itself d after the grant, and is not renewed; see Lease.Extend. A re-entry with ExpireAfter ends
// then, or with the hold that it joined, whichever is earlier.
func ExpireAfter(d time.Duration) LockOption { return LockOption{expireAfter: &d} }

// WaitAtMost bounds the wait of Lock, and nothing else: unlike a deadline of the context, WaitAtMost does not reach into the work under
// the lock. Lock then returns an error that matches context.DeadlineExceeded, and ErrLocked if another owner held the name. WaitAtMost
// bounds TryLock, too, which waits for the answer of the backend alone. d is more than 0.
func WaitAtMost(d time.Duration) LockOption { return LockOption{waitAtMost: &d} }

// Options are the options of a Client. Nil means the defaults, and so does a zero field.
type Options struct {
	// TTL is how long the backend keeps a lock whose holder is gone, and hence how long others wait after a crash. A live holder
	// renews every third of the TTL. The default is 30 s, or the nearest TTL that the backend keeps; another value outside of the
	// backend's bounds is an error. A ttl parameter in the URL takes precedence.
	TTL time.Duration // at least 10 ms

	// Require makes New and Open fail if the backend promises less. A require parameter in the URL adds to Require.
	Require driver.Require

	// Floor is added to each fencing token. A program that has moved here from another backend has a Floor above all tokens of that one,
	// so that resources which remember those do not refuse the program; `dsync migrate` tells it. All programs that lock the same names need
	// the same. A floor parameter in the URL takes precedence.
	Floor uint64

	// Note is a text for people, stored with each lock, where the backend can. The trace context of a traced holder is put behind the
	// text.
	Note string

	// TracerProvider and MeterProvider make the spans and metrics of the Client. Nil means the global ones of OpenTelemetry, also
	// if they are set later.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider

	// OmitNames and OmitOwners keep names and owners of locks out of spans and logs, and also the texts of errors, which may
	// contain either. Metrics never have them.
	OmitNames, OmitOwners bool

	// Class maps the name of a lock to one of few values, such as orders/42 to orders, which becomes the attribute dsync.lock.class
	// of the metrics. An empty value leaves the attribute out. Calls are concurrent, and must not block. Nil means no class.
	Class func(name string) string

	// Logger is told what an operator has to see: the begin and the end of an outage of the backend, once a minute at most; locks that
	// were lost, many of them in one record, or taken away by force. Nil means no logs.
	Logger *slog.Logger
}

const defaultTTL = 30 * time.Second

// Open connects to the backend of a URL, as in "memory://" or "redisson://user:password@host:6379/0?ttl=10s". The package
// of the driver has to be imported, and registers its scheme. Open fails when the backend is not reached before ctx is done. Its
// errors do not contain the password.
//
// These parameters are common to all drivers: ttl=30s (Options.TTL), require=fair,fifo,fenced (what the backend has to promise), and
// fenced=false (no fencing tokens, and nothing kept for them on the backend).
func Open(ctx context.Context, url string, o *Options) (*Client, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	d, config, err := driver.OpenTTL(ctx, url, opts.TTL)
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

// New returns a Client of a driver built in code. Close closes the driver.
func New(d driver.Driver, o *Options) (*Client, error) {
	if o == nil {
		o = &Options{}
	}
	c := &Client{
		driver: d, info: d.Info(), note: o.Note, floor: o.Floor, id: newID(), clock: newClock(),
		locks: map[string]*lock{}, closing: make(chan struct{}), closed: make(chan struct{}),
	}
	c.queues = c.info.Order != driver.FIFO
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
	c.reach.client = c
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
	return c, nil
}

// minTTL is the shortest TTL: the margin at the end leaves something.
const minTTL = 10 * time.Millisecond

func (c *Client) checkTTL(d time.Duration) error {
	if 0 < d && d < minTTL {
		return fmt.Errorf("TTL %v is shorter than %v", d, minTTL)
	}
	return c.info.CheckTTL(d)
}

// Client takes locks on one backend. Each call of its Lock and TryLock is an owner of its own. All methods may be called concurrently.
type Client struct {
	driver    driver.Driver
	info      driver.Info
	ttl       time.Duration
	note      string
	floor     uint64 // of the tokens
	id        string // of this client, on the wire
	clock     *clock
	queues    bool // one caller per name asks the backend, and the others wait in line here
	serial    atomic.Uint64
	limit     atomic.Pointer[limit] // of the last releases
	watchdog  *watchdog
	releaser  releaser
	telemetry *telemetry.Telemetry
	reach     reach
	closing   chan struct{} // closed when Close begins
	closed    chan struct{} // closed when Close is done
	closeErr  error

	mu    sync.Mutex
	ended bool
	locks map[string]*lock
}

// Lock implements Locker.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return c.lock(ctx, nil, name, opts, false)
}

// TryLock implements Locker.
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return c.lock(ctx, nil, name, opts, true)
}

// NewOwner returns a new identity whose locks are reentrant: while one lease of a name is held, its Lock and TryLock return further
// leases of it without asking the backend, and the name is free when the last of them has ended. An Owner is what a thread is to Java's
// Redisson, and need not be closed.
func (c *Client) NewOwner() *Owner { return &Owner{client: c, id: c.newHoldID()} }

// Owner is an identity whose locks are reentrant. All methods may be called concurrently.
type Owner struct {
	client *Client
	id     string
}

// ID returns the identity, unique among all owners of all clients.
func (o *Owner) ID() string { return o.id }

// Lock implements Locker.
func (o *Owner) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.client.lock(ctx, o, name, opts, false)
}

// TryLock implements Locker.
func (o *Owner) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.client.lock(ctx, o, name, opts, true)
}

// Info returns what the backend promises. Detect is filled in for backends where only a renewal tells of a removed lock.
func (c *Client) Info() driver.Info {
	info := c.info
	if info.Detect == 0 {
		info.Detect = c.ttl / 2
	}
	return info
}

// TTL returns the TTL of renewed leases.
func (c *Client) TTL() time.Duration { return c.ttl }

// Status is what a backend knows of a lock.
type Status = driver.Status

// Inspect asks the backend for the holder of name. The answer may be out of date on arrival. If the backend cannot tell, Inspect returns
// errors.ErrUnsupported.
func (c *Client) Inspect(ctx context.Context, name string) (Status, error) {
	var s Status
	err := c.admin("inspect", name, func() (err error) {
		i, ok := c.driver.(driver.Inspector)
		if !ok {
			return errors.ErrUnsupported
		}
		if s, err = i.Inspect(ctx, name); s.Token > 0 {
			s.Token += c.floor
		}
		return err
	})
	return s, err
}

// ForceUnlock ends the hold of name, whoever has it; the holder is told within Info.Detect. ForceUnlock is meant for administrators. It
// returns ErrNotHeld if nobody held the name, and errors.ErrUnsupported if the backend has no way to do so.
func (c *Client) ForceUnlock(ctx context.Context, name string) error {
	var span telemetry.Span
	if checkName(name) == nil {
		ctx, span = c.telemetry.ForceUnlock(ctx, name)
	}
	err := c.admin("force unlock", name, func() error {
		f, ok := c.driver.(driver.ForceUnlocker)
		if !ok {
			return errors.ErrUnsupported
		}
		if err := f.ForceUnlock(ctx, name); err != nil {
			return err
		}
		c.recheck(name)
		return nil
	})
	c.telemetry.ForceUnlocked(ctx, span, name, !errors.Is(err, ErrNotHeld), failureOf(err))
	return err
}

func (c *Client) admin(op, name string, f func() error) error {
	err := checkName(name)
	if err == nil {
		if c.isClosed() {
			err = ErrClosed
		} else {
			err = f()
		}
	}
	if err != nil {
		return &opError{op, name, err}
	}
	return nil
}

// recheck renews our own hold of name now, if there is one, to see whether the backend still has it.
func (c *Client) recheck(name string) {
	c.mu.Lock()
	k := c.locks[name]
	c.mu.Unlock()
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hold != nil {
		c.watchdog.renewNow(k.hold)
	}
}

// Close ends the client: waiting calls return ErrClosed, leases end, held locks are unlocked, and goroutines end. As Unlock does, Close
// ignores the cancellation of ctx, which is often the reason why a program ends. Close returns after 5 s at most, or, if ctx has a
// deadline still to come, by this deadline, with an error that matches context.DeadlineExceeded if not all is done by then. Locks on a
// backend out of reach are free when their TTL is over. Further calls of Close wait for the first.
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
		return fmt.Errorf("dsync: close: %w", ctx.Err())
	}
}

func (c *Client) shutdown(ctx context.Context) {
	defer close(c.closed)
	c.mu.Lock()
	locks := slices.Collect(maps.Values(c.locks)) // complete: enter adds none any more
	c.mu.Unlock()
	for _, k := range locks {
		k.close()
	}
	c.watchdog.close()
	if err := c.driver.Close(ctx); err != nil {
		c.closeErr = fmt.Errorf("dsync: close: %w", err)
	}
	c.releaser.close()
	c.reach.close()
	c.telemetry.Close()
}

func (c *Client) now() moment { return c.clock.now() }

func (c *Client) isClosed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// lock is Lock and TryLock.
func (c *Client) lock(ctx context.Context, owner *Owner, name string, opts []LockOption, try bool) (*Lease, error) {
	for _, o := range opts {
		if o.waitAtMost == nil {
			continue
		}
		d := *o.waitAtMost
		if d <= 0 {
			return nil, &opError{"lock", name, fmt.Errorf("WaitAtMost(%v) is not more than 0", d)}
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, fmt.Errorf("WaitAtMost(%v)", d))
		defer cancel()
	}
	if c.telemetry.On() {
		return c.observe(ctx, owner, name, opts, try)
	}
	l, err := c.lockName(ctx, nil, owner, name, opts, try)
	if err != nil {
		return nil, &opError{"lock", name, err}
	}
	return l, nil
}

func (c *Client) lockName(ctx context.Context, call *telemetry.Call, owner *Owner, name string, opts []LockOption, try bool) (*Lease, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	r := c.newRequest(owner, opts, call)
	if r.fixed {
		if err := c.checkTTL(r.ttl); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, c.overBefore(ctx, owner, name)
	}
	if heldUnder(ctx, c, name, owner) {
		if try {
			return nil, errNested
		}
		return nil, ErrDeadlock
	}
	k, err := c.enter(name)
	if err != nil {
		return nil, err
	}
	defer c.leave(k)
	if try {
		return k.tryLock(ctx, r)
	}
	return k.lockWait(ctx, r)
}

// overBefore is the error of a call whose context was over before the call began: what is known of the name is told all the same.
func (c *Client) overBefore(ctx context.Context, owner *Owner, name string) error {
	c.mu.Lock()
	k := c.locks[name]
	c.mu.Unlock()
	if k == nil {
		return newWaitError(ctx, nil, nil, false)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.live(); owner != nil && h != nil && h.ownedBy == owner {
		return newWaitError(ctx, nil, nil, false)
	}
	return k.waitError(ctx, nil)
}

func (c *Client) newRequest(owner *Owner, opts []LockOption, call *telemetry.Call) request {
	r := request{owner: owner, ttl: c.ttl, call: call}
	for _, o := range opts {
		if o.expireAfter != nil {
			r.ttl, r.fixed = *o.expireAfter, true
		}
	}
	return r
}

// enter returns the lock of a name for one use, until leave.
func (c *Client) enter(name string) (*lock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, ErrClosed
	}
	k := c.locks[name]
	if k == nil {
		k = &lock{client: c, name: name}
		c.locks[name] = k
	}
	k.uses++
	return k, nil
}

func (c *Client) use(k *lock) {
	c.mu.Lock()
	k.uses++
	c.mu.Unlock()
}

func (c *Client) leave(k *lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.uses--; k.uses == 0 {
		delete(c.locks, k.name)
	}
}

// newHold returns an attempt to be given to the driver, with an identity of its own.
func (c *Client) newHold(k *lock, r request, noWait bool) *hold {
	h := &hold{lock: k, ttl: r.ttl, call: r.call}
	id := c.newHoldID()
	h.req = driver.Request{Name: k.name, Hold: id, Owner: id, Note: r.call.Note(c.note), TTL: r.ttl, Fixed: r.fixed, NoWait: noWait, Events: h}
	if r.owner != nil {
		h.req.Owner = r.owner.id
	}
	return h
}

func (c *Client) newHoldID() string {
	b := make([]byte, 0, 64)
	b = append(append(b, c.id...), ':')
	return string(strconv.AppendUint(b, c.serial.Add(1), 10))
}
