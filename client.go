package dsync

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/clock"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// Client locks names on one backend. Each call to its Lock or TryLock is a
// separate owner. All methods may be called concurrently.
type Client struct {
	driver driver.Driver
	info   driver.Info
	ttl    time.Duration
	note   string
	floor  uint64 // of the tokens
	id     string // of this client, on the wire
	clock  *clock.Clock
	// by mode: whether only a few callers per name query the backend while the
	// others queue in the client
	queues     [modes]bool
	readers    Owner // the group of all Read calls
	serial     atomic.Uint64
	limit      atomic.Pointer[limit] // shared by the latest releases
	watchdog   *watchdog
	releaser   releaser
	departures departures
	telemetry  *telemetry.Telemetry
	reach      reach
	latches    latches
	maxHold    time.Duration // the default; 0 means no bound
	slowHold   time.Duration // 0 means no report
	debug      bool
	forgotten  forgotten     // empty without debug
	closing    chan struct{} // closed when Close begins
	closed     chan struct{} // closed when Close is done
	closeErr   error

	mu    sync.Mutex
	ended bool
	locks [modes]map[string]*lock // by mode and name
}

// Lock waits until the client holds name. It returns a lease that is renewed in
// the background until Unlock.
//
//	lease, err := client.Lock(ctx, "orders/42", dsync.WaitAtMost(10*time.Second))
//	if err != nil {
//		return err // nothing is held
//	}
//	defer lease.Unlock(ctx)
//
// Names are valid UTF-8 without NUL, 1 to 1024 bytes.
//
// Each call is a separate owner, so a goroutine that holds name and calls Lock
// again waits for itself. If ctx belongs to the lease (see [Lease.Context]),
// Lock returns [ErrDeadlock] instead. Use an [Owner] for reentrant locks.
//
// # Options
//
//	WaitAtMost(d)       wait no longer than d
//	ExpireAfter(d)      end the lease d after the grant, without renewal
//	MaxHold(d)          renew no longer than d
//	HoldAtLeast(d)      keep the name taken for d, even after Unlock
//	Read(), Write()     share the name with readers, or exclude them
//	Permits(n, limit)   acquire n of limit permits
//
// # A context that ends
//
// ctx bounds only the wait. If ctx ends after the grant, the lease continues.
// If ctx ends before the grant, Lock returns an error that matches ctx.Err,
// nothing is held, and the caller leaves the queue. The error also gives the
// reason for the wait: it matches [ErrLocked] if another owner holds name, and
// [ErrUnavailable] or [ErrUnknown] if the backend does not answer. If ctx ends
// while a grant is on its way, Lock returns either the lease or an error, never
// both.
//
// # Errors
//
// All errors are of type [*LockError]. While the backend is out of reach or
// refuses work, Lock tries again until ctx ends. These errors return
// immediately:
//
//	ErrDeadlock             the caller's own lease holds name
//	ErrLimit                the name has a different limit of permits
//	ErrClosed               the client is closed
//	errors.ErrUnsupported   the backend does not support an option
//	fs.ErrPermission        the user lacks a right
//
// Lock also returns immediately for other refusals of the server, and for
// invalid names and options.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return c.lock(ctx, nil, name, opts, false)
}

// TryLock is like Lock, but does not wait. Its error matches [ErrLocked] if
// another owner holds name, and [ErrUnavailable] if the backend is out of
// reach.
func (c *Client) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return c.lock(ctx, nil, name, opts, true)
}

// NewOwner returns a new identity whose locks are reentrant. While the owner
// holds a name, its Lock and TryLock return additional leases of the name
// without a request, and the name is free when the last of them has ended. An
// Owner corresponds to a thread in Java's Redisson, and need not be closed.
func (c *Client) NewOwner() *Owner { return &Owner{client: c, id: c.newHoldID()} }

// Owner is an identity whose locks are reentrant. All methods may be called
// concurrently.
type Owner struct {
	client *Client
	id     string
}

// ID returns the identity, which is unique among all owners of all clients.
func (o *Owner) ID() string { return o.id }

// Lock is like [Client.Lock], but for this owner. If the owner holds name, Lock
// returns another lease immediately.
func (o *Owner) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.client.lock(ctx, o, name, opts, false)
}

// TryLock is like [Client.TryLock], but for this owner.
func (o *Owner) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.client.lock(ctx, o, name, opts, true)
}

// Info returns the promises of the backend. If a removed lock is noticed only
// by a renewal, Detect is filled in from the TTL.
func (c *Client) Info() Info {
	info := c.info
	if info.Detect == 0 {
		info.Detect = c.ttl / 2
	}
	return info
}

// TTL returns the TTL of renewed leases.
func (c *Client) TTL() time.Duration { return c.ttl }

// Info lists the promises of a backend, as [Client.Info] returns it:
//
//	Name       string        // of the driver, such as "redisson"
//	Order      Order         // of the waiters: Unordered, FIFOByClient or FIFO
//	Fencing    Fencing       // NoTokens, VolatileTokens or DurableTokens
//	ReadWrite  Support       // Read and Write: Offered, Order, Fencing
//	Permits    Support       // Permits: Offered, Order
//	KeepsAlive bool          // whether locks belong to a session
//	MinTTL     time.Duration // the shortest TTL; 0 means no bound
//	MaxTTL     time.Duration // the longest TTL; 0 means no bound
//	TTLUnit    time.Duration // TTLs are multiples of it, if not 0
//	Detect     time.Duration // until the holder notices that its lock was removed
//	Late       time.Duration // how long after its TTL a vanished client keeps a name,
//	LatePerTTL float64       // and in addition per TTL
//	Expiry     Expiry        // how the hold of a vanished client ends
//	Poll       time.Duration // interval of a waiter's queries; 0 if it is notified
//
// Info.Check(require) returns an error if the backend promises less than
// require.
type Info = driver.Info

// Order is the order in which waiters are granted a name: Info.Order.
type Order = driver.Order

// Fencing is the kind of fencing tokens: Info.Fencing.
type Fencing = driver.Fencing

// Require lists the promises that a program needs: Options.Require. Opening a
// backend that promises less fails.
//
//	Fair    bool // an order that starves no waiter: FIFOByClient or FIFO
//	FIFO    bool // all waiters in the order of arrival
//	Fenced  bool // fencing tokens
//	RW      bool // Read and Write; Fair, FIFO and Fenced then include them
//	Permits bool // Permits; Fair and FIFO then include them
type Require = driver.Require

// The values of Info.Order.
const (
	Unordered = driver.Unordered // any waiter may be next
	// clients in the order of arrival, and callers inside a client in theirs
	FIFOByClient = driver.FIFOByClient
	FIFO         = driver.FIFO // all waiters of all clients in the order of arrival
)

// The values of Info.Fencing.
const (
	NoTokens       = driver.None     // Lease.Token is 0
	VolatileTokens = driver.Volatile // tokens rise, but may restart when the backend loses data
	// tokens rise as long as the backend keeps acknowledged data
	DurableTokens = driver.Durable
)

// Status is the state of a lock on the backend, as [Client.Inspect] returns it.
// Fields that the backend does not store are zero:
//
//	Held    bool          // whether a client holds the name
//	Mode    Mode          // ModeExclusive, ModeRead, ModeWrite or ModePermit
//	Holders int           // the number of holds: several with ModeRead and ModePermit
//	Used    int           // the number of held permits
//	Limit   int           // the limit of permits
//	Hold    string        // the identity of the hold
//	Owner   string        // Owner.ID of the holder, or of its call
//	Note    string        // Options.Note of the holder
//	Process string        // the holder's host and process id, as in "host:4711"
//	Since   time.Time     // the time of the grant
//	TTL     time.Duration // the time until the hold ends without a renewal
//	Token   uint64        // the fencing token of the hold; 0 if unknown
//	Waiters int           // the number of waiters at the backend; -1 if unknown
//	Queue   []string      // the waiters in order, where the backend has a queue
type Status = driver.Status

// Mode is the kind of a hold: Status.Mode.
type Mode = driver.Mode

// The values of Status.Mode. A backend that does not distinguish them reports
// ModeExclusive for ModeWrite.
const (
	ModeExclusive = driver.Exclusive // Lock without a mode
	ModeRead      = driver.Read      // Read()
	ModeWrite     = driver.Write     // Write()
	ModePermit    = driver.Permit    // Permits(n, limit)
)

// Inspect returns the state of name on the backend. The answer may be out of
// date on arrival. If the backend does not support it, Inspect returns
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

// ForceUnlock ends the hold of name, whichever client holds it. If several
// clients read the name or have permits, it ends all their holds. The holders
// are notified within Info.Detect. ForceUnlock is meant for administrators. It
// returns ErrNotHeld if the name is free, and errors.ErrUnsupported if the
// backend does not support it.
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

// SetLimit sets the number of permits of name, 1 or more, until the next
// SetLimit. A limit below the number of held permits revokes none of them, but
// no permit is granted until enough have been released. Waiting calls that pass
// a different limit, or request more permits than the limit, fail with
// [ErrLimit]. After ErrUnknown call SetLimit again. If the backend does not
// support permits, SetLimit returns errors.ErrUnsupported.
func (c *Client) SetLimit(ctx context.Context, name string, limit int) error {
	return c.admin("set limit", name, func() error {
		l, ok := c.driver.(driver.Limiter)
		switch {
		case !c.info.Offers(driver.Permit):
			return c.info.CheckMode(driver.Permit)
		case !ok:
			return errors.ErrUnsupported
		case limit < 1 || limit > maxLimit:
			return fmt.Errorf("limit %d is not between 1 and %d", limit, maxLimit)
		}
		return l.SetLimit(ctx, name, limit)
	})
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
		return &LockError{op, name, err}
	}
	return nil
}

// recheck renews the client's own holds of name now, if any, to find out
// whether they still exist on the backend.
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

// known returns the existing locks of a name, by mode.
func (c *Client) known(name string) (locks [modes]*lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for mode := range locks {
		locks[mode] = c.locks[mode][name]
	}
	return locks
}

// moment is a time on the clock of a client.
type moment = clock.Moment

func (c *Client) now() moment { return c.clock.Now() }

// lock implements Lock and TryLock.
func (c *Client) lock(ctx context.Context, owner *Owner, name string, opts []LockOption, try bool) (*Lease, error) {
	for _, o := range opts {
		if o.waitAtMost == nil {
			continue
		}
		d := *o.waitAtMost
		if d <= 0 {
			return nil, &LockError{"lock", name, fmt.Errorf("WaitAtMost(%v) is not positive", d)}
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
		return nil, &LockError{"lock", name, err}
	}
	return c.handOut(l), nil
}

func (c *Client) lockName(ctx context.Context, r request, name string, try bool) (*Lease, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := c.checkRequest(r); err != nil {
		return nil, err
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
	k, err := c.pin(name, r.mode)
	if err != nil {
		return nil, err
	}
	defer c.unpin(k)
	if try {
		return k.tryLock(ctx, r)
	}
	return k.lockWait(ctx, r)
}

// overBefore returns the error for a call whose context had ended before the
// call began. The error still includes the known state of the name.
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

// modes is the number of modes.
const modes = driver.Permit + 1

// pin returns the lock of a name and mode and keeps it until unpin is called.
func (c *Client) pin(name string, mode driver.Mode) (*lock, error) {
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

func (c *Client) pinAgain(k *lock) {
	c.mu.Lock()
	k.uses++
	c.mu.Unlock()
}

func (c *Client) unpin(k *lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.uses--; k.uses == 0 {
		delete(c.locks[k.mode], k.name)
	}
}

// newHold returns an attempt for the driver, with its own identity.
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

// newID returns a random UUID (RFC 9562, version 4).
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

const maxName = 1024

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxName:
		return fmt.Errorf("the name is %d bytes long, more than %d", len(name), maxName)
	case !utf8.ValidString(name):
		return errors.New("the name is not valid UTF-8")
	case strings.IndexByte(name, 0) >= 0:
		return errors.New("the name contains NUL")
	}
	return nil
}
