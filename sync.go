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
// A [Client] is one connection to a backend. Lock returns a [Lease], which is renewed in the background until Unlock, or until it is lost:
// because the backend could not be reached for so long that somebody else may get the lock, or because somebody removed the lock. Loss is
// never silent: [Lease.Done], [Lease.Context] and [Lease.Err] tell of it before anybody else can hold the lock, as far as the backend's
// promises go. Unlock and Close ignore the cancellation of their ctx, so both are right in a defer.
//
// No lock of this kind can stop a write that is already on its way when its lease ends, as after a long pause of the process. Where late
// writes matter, send [Lease.Token] with the write, and let the resource refuse smaller tokens than it has seen.
//
// Goroutines that call Lock of one Client exclude each other. Calls through one [Owner] share the lock. Many can [Read] a name together, and
// one [Write] it, and up to a limit can have [Permits], where the backend has locks of this kind.
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

// A Locker locks names. *Client and *Owner are Lockers, and [With] makes one with options. Accept a Locker where you only need to lock. In
// tests let it be a client of package dsynctest.
type Locker interface {
	// Lock waits until it holds name or ctx is done; a backend out of reach is
	// asked again until then, other errors return at once. ctx bounds the wait
	// only: a later cancellation does not end the lease. If ctx ends while a
	// grant is on its way, Lock returns either the lease or an error. After an
	// error nothing is held, and the caller is in no queue; what an unanswered
	// request may have left is cleaned up in the background.
	//
	// Names are valid UTF-8 without NUL, 1 to 1024 bytes. Different names are different locks.
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error)

	// TryLock is Lock without the wait: if another owner holds name TryLock returns an error that matches ErrLocked, and when the
	// backend is out of reach TryLock does not try again.
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error)
}

// LockOption is an option of one Lock, TryLock, Do or TryDo, or of all that is locked through a Locker of [With]. Of several that contradict
// each other the last one counts.
type LockOption struct {
	expireAfter, waitAtMost, maxHold, holdAtLeast *time.Duration
	mode                                          driver.Mode // Exclusive: no option
	permits, limit                                int         // of the mode Permit
}

// ExpireAfter makes a lease that ends by itself d after the grant, and is not renewed; see Lease.Extend. A re-entry with ExpireAfter ends
// then, or with the hold that it joined, whichever is earlier.
func ExpireAfter(d time.Duration) LockOption { return LockOption{expireAfter: &d} }

// WaitAtMost bounds the wait of Lock, and nothing else: unlike a deadline of the context, WaitAtMost does not reach into the work under
// the lock. Lock then returns an error that matches context.DeadlineExceeded, and ErrLocked if another owner held the name. WaitAtMost
// bounds TryLock, too, which waits for the answer of the backend alone. d is more than 0; of several the shortest counts.
func WaitAtMost(d time.Duration) LockOption { return LockOption{waitAtMost: &d} }

// HoldAtLeast keeps the name taken until d after the grant, however early the lease is unlocked and whatever becomes of the process: a
// job that takes a second is not done again by the next machine, whose clock is two seconds late.
//
//	lease, err := client.TryLock(ctx, "report", dsync.ExpireAfter(time.Hour), dsync.HoldAtLeast(59*time.Minute))
//
// HoldAtLeast goes with ExpireAfter of the same time or a longer one, which is what the backend keeps to when the process is gone. Unlock
// ends the lease at once all the same, and Close does not free the name. Backends whose holds end with the client's session (ZooKeeper,
// PostgreSQL) refuse with errors.ErrUnsupported, and so does an Owner, and Read. ForceUnlock frees the name at any time.
func HoldAtLeast(d time.Duration) LockOption { return LockOption{holdAtLeast: &d} }

// Options are the options of a Client. Nil means the defaults, and so does a zero field.
type Options struct {
	// TTL is how long the backend keeps a lock whose holder is gone, and hence how long others wait after a crash. A live holder
	// renews every third of the TTL. The default is 30 s, or the nearest TTL that the backend keeps; another value outside of the
	// backend's bounds is an error. A ttl parameter in the URL takes precedence.
	TTL time.Duration // at least 10 ms

	// Require makes New and Open fail if the backend promises less. A require parameter in the URL adds to Require.
	Require Require

	// Floor is added to each fencing token. A program that has moved here from another backend has a Floor above all tokens of that one,
	// so that resources which remember those do not refuse the program; `dsync migrate` tells it. All programs that lock the same names need
	// the same. A floor parameter in the URL takes precedence.
	Floor uint64

	// Note is a text for people, stored with each lock, where the backend can. The trace context of a traced holder is put behind the
	// text.
	Note string

	// MaxHold is the default of the option MaxHold. 0 means no bound: a lease is renewed until Unlock or a loss.
	MaxHold time.Duration

	// SlowHold has the Logger told of each lease without ExpireAfter that is held for longer. 0 means none.
	SlowHold time.Duration

	// Debug looks for leases that were forgotten: when the garbage collector finds that nothing in the program refers to a Lease any more,
	// and so nobody can unlock it, the lease ends with an error that matches ErrLost, and the Logger is told who called Lock. A context of
	// Lease.Context refers to its lease, also by contexts made of that one. Debug costs some µs and 5 allocations for each lease.
	Debug bool

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

// New returns a Client of a driver built in code. Close closes the driver.
func New(d driver.Driver, o *Options) (*Client, error) {
	if o == nil {
		o = &Options{}
	}
	c := &Client{
		driver: d, info: d.Info(), note: o.Note, floor: o.Floor, id: newID(), clock: newClock(),
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
	driver     driver.Driver
	info       driver.Info
	ttl        time.Duration
	note       string
	floor      uint64 // of the tokens
	id         string // of this client, on the wire
	clock      *clock
	queues     [modes]bool // by mode: few callers per name ask the backend, and the others wait in line here
	readers    Owner       // the group of all calls that read
	serial     atomic.Uint64
	limit      atomic.Pointer[limit] // of the last releases
	watchdog   *watchdog
	releaser   releaser
	departures departures
	telemetry  *telemetry.Telemetry
	reach      reach
	latches    latches
	maxHold    time.Duration // the default; 0: no bound
	slowHold   time.Duration // 0: nobody is told
	debug      bool
	forgotten  forgotten     // empty without debug
	closing    chan struct{} // closed when Close begins
	closed     chan struct{} // closed when Close is done
	closeErr   error

	mu    sync.Mutex
	ended bool
	locks [modes]map[string]*lock // by mode and name
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
func (c *Client) Info() Info {
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

// ForceUnlock ends the hold of name, whoever has it, and where several read or have permits all of theirs; the holders are told within Info.Detect.
// ForceUnlock is meant for administrators. It returns ErrNotHeld if nobody held the name, and errors.ErrUnsupported if the backend has no
// way to do so.
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

// recheck renews our own holds of name now, if there are any, to see whether the backend still has them.
func (c *Client) recheck(name string) {
	for _, k := range c.known(name) {
		if k == nil {
			continue
		}
		k.mu.Lock()
		for h := k.hold; h != nil; h = h.older {
			c.watchdog.renewNow(h)
		}
		k.mu.Unlock()
	}
}

// known returns the locks of a name by mode, as far as there are any.
func (c *Client) known(name string) (locks [modes]*lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for mode := range locks {
		locks[mode] = c.locks[mode][name]
	}
	return locks
}

// Close ends the client: waiting calls return ErrClosed, leases end, held locks
// are unlocked, and goroutines end. As Unlock does, Close ignores the
// cancellation of ctx, which is often the reason why a program ends. Close
// returns after 5 s at most, or, if ctx has a deadline still to come, by this
// deadline. If something may be left on the backend, the error matches
// [ErrUnknown] and says how much; it matches context.DeadlineExceeded if the
// time was too short. Locks on a backend out of reach are free when their TTL
// is over. Further calls of Close wait for the first.
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

// closeMargin is how much earlier than Close the driver's Close ends, so that
// Close can return its error on a busy machine; or a fifth of the time, if
// less.
const closeMargin = 500 * time.Millisecond

func (c *Client) shutdown(ctx context.Context) {
	defer close(c.closed)
	end, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(ctx, end.Add(-min(time.Until(end)/5, closeMargin)))
	defer cancel()
	c.mu.Lock()
	var locks []*lock // complete: enter adds none any more
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
		if o.maxHold != nil && *o.maxHold < 0 {
			return nil, &opError{"lock", name, fmt.Errorf("MaxHold(%v) is less than 0", *o.maxHold)}
		}
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
	r := c.newRequest(owner, opts)
	if c.telemetry.On() {
		l, err := c.observe(ctx, r, name, try)
		return c.handOut(l), err
	}
	l, err := c.lockName(ctx, r, name, try)
	if err != nil {
		return nil, &opError{"lock", name, err}
	}
	return c.handOut(l), nil
}

func (c *Client) lockName(ctx context.Context, r request, name string, try bool) (*Lease, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if !c.info.Offers(r.mode) {
		return nil, c.info.CheckMode(r.mode)
	}
	if r.mode == driver.Permit {
		if err := checkPermits(r); err != nil {
			return nil, err
		}
	}
	if r.fixed {
		if err := c.checkTTL(r.ttl); err != nil {
			return nil, err
		}
	}
	if r.atLeast != 0 {
		if err := c.checkLeave(r); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, c.overBefore(ctx, r, name)
	}
	if l, err := c.nest(ctx, r, name); l != nil || err != nil {
		if err != nil && try {
			err = errNested
		}
		return l, err
	}
	k, err := c.enter(name, r.mode)
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
func (c *Client) overBefore(ctx context.Context, r request, name string) error {
	k := c.known(name)[r.mode]
	if k == nil {
		return newWaitError(ctx, nil, nil, false)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.live(); r.group != nil && h != nil && h.ownedBy == r.group {
		return newWaitError(ctx, nil, nil, false)
	}
	return k.waitError(ctx, nil)
}

func (c *Client) newRequest(owner *Owner, opts []LockOption) request {
	r := request{owner: owner, group: owner, ttl: c.ttl, maxHold: c.maxHold}
	for _, o := range opts {
		if o.expireAfter != nil {
			r.ttl, r.fixed = *o.expireAfter, true
		}
		if o.maxHold != nil {
			r.maxHold = *o.maxHold
		}
		if o.mode != driver.Exclusive {
			r.mode, r.permits, r.limit = o.mode, o.permits, o.limit
		}
		if o.holdAtLeast != nil {
			r.atLeast = *o.holdAtLeast
		}
	}
	switch r.mode {
	case driver.Permit:
		r.group = nil // each call has a hold of its own
	case driver.Read:
		if r.group = &c.readers; r.fixed {
			r.group = nil // its hold ends when it asked for
		}
	}
	return r
}

// enter returns the lock of a name and mode for one use, until leave.
func (c *Client) enter(name string, mode driver.Mode) (*lock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, ErrClosed
	}
	k := c.locks[mode][name]
	if k == nil {
		k = &lock{client: c, name: name, mode: mode}
		c.locks[mode][name] = k
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
		delete(c.locks[k.mode], k.name)
	}
}

// newHold returns an attempt to be given to the driver, with an identity of its own.
func (c *Client) newHold(k *lock, r request, noWait bool) *hold {
	h := &hold{lock: k, ttl: r.ttl, call: r.call}
	id := c.newHoldID()
	h.req = driver.Request{
		Name: k.name, Mode: k.mode, Permits: r.permits, Limit: r.limit, Hold: id, Owner: id, Note: r.call.Note(c.note), TTL: r.ttl,
		Fixed: r.fixed, NoWait: noWait, Events: h,
	}
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
