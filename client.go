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

// Client takes locks on one backend. Each call of its Lock and TryLock is an owner of its own. All methods may be called concurrently.
type Client struct {
	driver     driver.Driver
	info       driver.Info
	ttl        time.Duration
	note       string
	floor      uint64 // of the tokens
	id         string // of this client, on the wire
	clock      *clock.Clock
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

// Lock waits until the client holds name, and returns a lease that is renewed in the background until Unlock. Each call is an owner of its own:
// a goroutine that holds name and calls Lock again waits for itself, unless ctx is that of the lease (see [Lease.Context]).
//
// Options: [WaitAtMost] bounds the wait, [ExpireAfter] is a lease without renewal, [MaxHold] bounds the renewal, [HoldAtLeast] keeps the
// name for a while after Unlock, [Read], [Write] and [Permits] are kinds of locks.
//
// ctx bounds only the wait. If it ends first, the error matches its error, and also [ErrLocked] if another owner holds name, or
// [ErrUnavailable] or [ErrUnknown] if the backend does not answer. A backend that is out of reach is asked again until ctx ends. Other errors
// return at once: [ErrDeadlock], [ErrLimit], [ErrClosed], errors.ErrUnsupported for what the backend does not offer, and refusals of the
// server. All errors are of type [*LockError]. After an error nothing is held.
func (c *Client) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return c.lock(ctx, nil, name, opts, false)
}

// TryLock is Lock without the wait: it returns an error that matches [ErrLocked] if another owner holds name, or [ErrUnavailable] if the backend
// is out of reach.
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

// Lock is Client.Lock for this owner. If the owner holds name, it returns a further lease at once.
func (o *Owner) Lock(ctx context.Context, name string, opts ...LockOption) (*Lease, error) {
	return o.client.lock(ctx, o, name, opts, false)
}

// TryLock is Client.TryLock for this owner.
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

// What a backend promises, and what a program asks for. The types are those of package driver, which users need not import.
type (
	Info    = driver.Info    // what a backend promises: Client.Info
	Order   = driver.Order   // Info.Order
	Fencing = driver.Fencing // Info.Fencing
	Require = driver.Require // Options.Require
)

// In which order waiters are granted a name.
const (
	Unordered    = driver.Unordered    // any waiter may be next
	FIFOByClient = driver.FIFOByClient // clients in the order of arrival, and callers inside a client in theirs
	FIFO         = driver.FIFO         // all waiters of all clients in the order of arrival
)

// Whether leases carry fencing tokens, and what makes tokens fall.
const (
	NoTokens       = driver.None     // Lease.Token is 0
	VolatileTokens = driver.Volatile // tokens rise, but may restart when the backend loses data
	DurableTokens  = driver.Durable  // tokens rise for as long as the backend keeps what was acknowledged
)

// Status is what a backend knows of a lock. Fields that it does not store are
// zero:
//
//	Held    bool          // whether a client holds the name
//	Mode    Mode          // how: ModeExclusive, ModeRead, ModeWrite or ModePermit
//	Holders int           // how many holds there are: several with ModeRead and ModePermit
//	Used    int           // permits that are held
//	Limit   int           // of the permits
//	Hold    string        // identity of the hold
//	Owner   string        // Owner.ID of the holder, or of its call
//	Note    string        // Options.Note of the holder
//	Process string        // the holder's host and process id, as in "host:4711"
//	Since   time.Time     // when it was granted
//	TTL     time.Duration // until the backend ends the hold, without a renewal
//	Token   uint64        // fencing token of the hold; 0 if unknown
//	Waiters int           // at the backend; -1 if unknown
//	Queue   []string      // the waiters in order, where the backend has a queue
type Status = driver.Status

// Mode is how a name is held: Status.Mode.
type Mode = driver.Mode

// The modes. A backend that does not tell them apart reports ModeExclusive for
// ModeWrite.
const (
	ModeExclusive = driver.Exclusive // Lock without a mode
	ModeRead      = driver.Read      // Read()
	ModeWrite     = driver.Write     // Write()
	ModePermit    = driver.Permit    // Permits(n, limit)
)

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

// SetLimit sets how many permits of name there are, 1 or more, until the next SetLimit. A limit below what is held takes nothing from
// anybody: nothing is granted until enough was given back. Calls that wait and name another limit, or ask for more, fail with [ErrLimit]. After
// ErrUnknown call SetLimit again. If the backend does not offer permits, SetLimit returns errors.ErrUnsupported.
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

// moment is a time on the clock of a client.
type moment = clock.Moment

func (c *Client) now() moment { return c.clock.Now() }

// lock is Lock and TryLock.
func (c *Client) lock(ctx context.Context, owner *Owner, name string, opts []LockOption, try bool) (*Lease, error) {
	for _, o := range opts {
		if o.waitAtMost == nil {
			continue
		}
		d := *o.waitAtMost
		if d <= 0 {
			return nil, &LockError{"lock", name, fmt.Errorf("WaitAtMost(%v) is not more than 0", d)}
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

// modes is how many modes there are.
const modes = driver.Permit + 1

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
