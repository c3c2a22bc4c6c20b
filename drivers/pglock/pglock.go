// Package pglock is the PostgreSQL backend of dsync: session-level advisory
// locks, on keys that every SQL client can compute. The package registers the
// URL scheme "pglock":
//
//	pglock://user:password@host:5432/database?sslmode=verify-full
//
// There is no table, no DDL and no extension. A role with the right to connect
// to the database is enough. Locks belong to a database, and exist on
// PostgreSQL 14 or later.
//
// # Parameters
//
// Every backend also has ttl=, require=, fenced= and floor=. All other
// parameters are passed to the libpq connection, such as sslmode= and
// application_name=.
//
//	key=hash|number|pair     how a name becomes a key, see Options.Key
//	tokens=durable|fast      see Options.Tokens
//	max_locks=1000           see Options.MaxLocks
//	max_waiters=32           see Options.MaxWaiters
//	password_file=file       the password, read for each connection
//	pooler=refuse|session    see Options.SessionPooler
//	force_unlock=true        see Options.ForceUnlock
//
// # An example
//
// Locking "orders/42" sends one statement, and its transaction id becomes the
// token:
//
//	Key("orders/42") = hashtextextended('orders/42', 0) = -5097415481565640018
//
//	SELECT CASE WHEN pg_try_advisory_lock(-5097415481565640018)
//	       THEN pg_current_xact_id() END
//
// The first waiter of a process calls pg_advisory_lock on a separate
// connection, like psql:
//
//	select pg_advisory_lock(hashtextextended('orders/42', 0))
//	select pg_advisory_lock_shared(hashtextextended('orders/42', 0)) -- a reader
//
// # Caveats
//
// The driver opens its own connections: one for all locks of one TTL, and one
// for each name that it waits for. All locks on a connection are lost with it.
//
// A restart or a failover of the server loses every lock. A client that is
// still connected to the old primary does not notice the new one.
//
// A pooler in transaction mode is refused, because it passes locks from client
// to client. Use [InTx] there for a lock inside a transaction, or
// drivers/sqllock.
//
// About 700 clients can wait for one name, unless their role may set
// deadlock_timeout. A wait holds a snapshot, so CREATE INDEX CONCURRENTLY waits
// for it. Permits and latches are not offered.
//
// docs/backends/postgres.md lists costs, limits, the least rights and the
// promises under each fault.
package pglock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

const (
	// A server counts its timeouts in milliseconds, up to 2^31. The minimum is
	// far above a round trip and a late timer.
	minTTL = 100 * time.Millisecond
	maxTTL = 24 * 24 * time.Hour

	detect = time.Second // the server reports it immediately, if reachable
	// the server's timer is exact to a few milliseconds; the rest is a margin
	// for a machine under load
	late = time.Second

	defaultTTL     = 30 * time.Second
	tokensPerGrant = 256
)

// Tokens is the source of fencing tokens. All of them rise from grant to grant.
type Tokens string

const (
	// TokensDurable uses transaction ids, which are on the server's disk before
	// any caller learns the token, so tokens do not fall when the server
	// crashes. Only the first Lease.Token of a hold costs a request and a flush
	// of the log; concurrent calls share a flush. A lease that ends before that
	// has no token: Lease.Token returns 0.
	TokensDurable Tokens = ""

	// TokensFast uses transaction ids without the flush. After a crash the
	// server may reuse the most recent ids, so a token can be smaller than, or
	// equal to, a token of an earlier grant.
	TokensFast Tokens = "fast"

	// TokensNone provides no tokens and uses no transaction ids.
	TokensNone Tokens = "none"
)

// Options of a Driver. The zero value is ready to use.
type Options struct {
	Tokens Tokens

	// Key computes the advisory lock of a name, for use together with programs
	// that have their own numbers. The default is [HashedKey]:
	// hashtextextended(name, 0). Lock returns the error of Key to the caller.
	// Names with the same key are one lock, so a function should accept only
	// one spelling of a name, as [NumberKey] does: otherwise LockAll of two
	// such names waits for itself until its context ends.
	Key func(name string) (AdvisoryKey, error)

	// MaxLocks is the maximum number of locks that the driver holds or requests
	// at a time (1,000 if 0). All clients of a server share its lock table. It
	// has 6,400 entries with PostgreSQL's defaults, and a server with a full
	// table accepts no more connections.
	MaxLocks int

	// MaxWaiters is the maximum number of connections that wait for a lock, or
	// hold a lock after a wait, at a time (32 if 0).
	MaxWaiters int

	// Password, if not nil, is called for each connection and returns its
	// password in place of the configuration's. It may be called concurrently.
	Password func(ctx context.Context) (string, error)

	// SessionPooler accepts a connection pooler in session mode (pgbouncer's
	// pool_mode=session) between the driver and the server.
	SessionPooler bool

	// ForceUnlock enables the method ForceUnlock. The method ends the session
	// of the holder, even of a program without dsync. This also releases every
	// other lock on the session.
	ForceUnlock bool

	// TTL is the expected TTL of leases. The connection for these leases is
	// made immediately, other connections when needed. The default is 30 s, as
	// in dsync.
	TTL time.Duration
}

// Driver is a driver.Driver on PostgreSQL that also implements
// driver.KeepAliveReporter, driver.Inspector, driver.ForceUnlocker and
// driver.Lister.
type Driver struct {
	config  *pgconn.Config
	options Options
	epoch   time.Time // times inside the driver are nanoseconds since then, on the monotonic clock
	label   string    // of this process, in application_name
	keys    keyMaker

	life   *lifecycle.Lifecycle // counts Acquires as calls
	server serverFacts          // properties of the server; written before New returns

	onKeepAlive atomic.Pointer[func(error)] // see OnKeepAlive; nil without a callback
	looks       looks
	refused     atomic.Bool // the server refused the last new connection

	mu       sync.Mutex
	queues   map[AdvisoryKey]*localQueue
	classes  map[time.Duration]*class
	home     time.Duration // the TTL of the class whose session stays open without locks
	locks    int           // locks that are held or requested
	waiters  int           // sessions that wait, hold the lock of a wait, or are idle
	sessions map[*session]struct{}

	graves      int       // ended sessions that may still exist on the server
	withdrawals int       // abandoned waits that are being ended
	changed     sync.Cond // broadcast when either decreases
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
	_ driver.Lister            = (*Driver)(nil)
)

// New connects to the server of config (pgx.ParseConfig makes one) and checks
// the server: PostgreSQL 14 or newer, no read replica, no connection pooler.
// New fails within ctx. Parts of config that do not concern the connection,
// such as a tracer, are not used.
func New(ctx context.Context, config *pgx.ConnConfig, o *Options) (*Driver, error) {
	if config == nil {
		return nil, errors.New("pglock: no configuration")
	}
	if o == nil {
		o = &Options{}
	}
	d := &Driver{
		config:   config.Config.Copy(),
		options:  *o,
		epoch:    time.Now(),
		life:     lifecycle.New(),
		queues:   make(map[AdvisoryKey]*localQueue),
		classes:  make(map[time.Duration]*class),
		sessions: make(map[*session]struct{}),
	}
	d.changed.L = &d.mu
	if err := d.options.check(); err != nil {
		return nil, err
	}
	d.label = processLabel(d.config.RuntimeParams["application_name"])
	d.home = roundUp(d.options.TTL)
	if err := d.connectFirst(ctx); err != nil {
		return nil, errors.Join(err, d.Close(ctx))
	}
	return d, nil
}

// check rejects invalid options and fills in the defaults.
func (o *Options) check() error {
	switch o.Tokens {
	case TokensDurable, TokensFast, TokensNone:
	default:
		return fmt.Errorf("pglock: invalid Options.Tokens: %q", o.Tokens)
	}
	if o.MaxLocks < 0 || o.MaxWaiters < 0 {
		return fmt.Errorf("pglock: Options.MaxLocks is %d and Options.MaxWaiters is %d, want 0 or more", o.MaxLocks, o.MaxWaiters)
	}
	if o.TTL != 0 && (o.TTL < minTTL || o.TTL > maxTTL) {
		return fmt.Errorf("pglock: TTL %v is outside the range from %v to %v: %w", o.TTL, minTTL, maxTTL, errors.ErrUnsupported)
	}
	if o.MaxLocks == 0 {
		o.MaxLocks = 1000
	}
	if o.MaxWaiters == 0 {
		o.MaxWaiters = 32
	}
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	return nil
}

// Info implements driver.Driver.
func (d *Driver) Info() driver.Info {
	i := driver.Info{
		Name:       "pglock",
		Order:      driver.FIFOByClient,
		Fencing:    driver.Durable,
		KeepsAlive: true,
		MinTTL:     minTTL,
		MaxTTL:     maxTTL,
		Detect:     detect,
		Late:       late,
	}
	switch d.options.Tokens {
	case TokensFast:
		i.Fencing = driver.Volatile
	case TokensNone:
		i.Fencing = driver.None
	}
	i.ReadWrite = driver.Support{Offered: true, Order: i.Order, Fencing: i.Fencing}
	i.Permits = driver.Support{Why: "advisory locks do not count"}
	return i
}

// OnKeepAlive implements driver.KeepAliveReporter.
func (d *Driver) OnKeepAlive(f func(err error)) { d.onKeepAlive.Store(&f) }

// reportKeepAlive reports whether a session is kept alive, unless the driver is
// closing.
func (d *Driver) reportKeepAlive(err error) {
	if report := d.onKeepAlive.Load(); report != nil && d.life.Open().Err() == nil {
		(*report)(err)
	}
}

// now returns the time since d.epoch.
func (d *Driver) now() int64 { return int64(time.Since(d.epoch)) }

// beginAcquire counts a call to Acquire and a lock for the call, unless the
// driver is closed or has enough locks.
func (d *Driver) beginAcquire() error {
	if err := d.life.Enter(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locks >= d.options.MaxLocks {
		d.life.Leave()
		return fmt.Errorf("%w: %d are held or requested (Options.MaxLocks)", ErrTooManyLocks, d.locks)
	}
	d.locks++
	return nil
}

// endAcquire ends what beginAcquire began. A granted lock stays counted until
// its end.
func (d *Driver) endAcquire(granted *lease) {
	defer d.life.Leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	if granted != nil && !granted.over {
		granted.counted = true
	} else {
		d.locks--
	}
}

func roundUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}
