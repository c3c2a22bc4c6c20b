// Package pglock is the PostgreSQL backend of dsync: session-level advisory locks, on keys that every SQL client can compute. It
// registers the URL scheme "pglock".
//
//	pglock://user:password@host:5432/database?sslmode=verify-full
//
// There is no table, no DDL and no extension, and any role that can connect will do. While a Go program holds "orders/42",
//
//	select pg_advisory_lock(hashtextextended('orders/42', 0))
//
// waits in psql, and the other way round; [Key] computes the same number. Locks belong to a database: another database on the same
// server has others.
//
// # Connections
//
// The driver opens connections of its own and never uses those of an application. One carries the locks of all callers that have the
// same TTL, and requests that come together go in one round trip. Only the first in line for a name that somebody else holds blocks
// on a connection of its own, which keeps the lock that it got. Options.MaxLocks and Options.MaxWaiters bound both.
//
// The server frees the locks of a client that is frozen or cut off, when it has heard nothing for the TTL (idle_session_timeout), and
// those of one that is gone at once. All locks on one connection share its fate: when an administrator ends it, all of them are lost.
//
// # What it cannot promise
//
// A fail-over or a restart of the server is the loss of every lock. A client that was replaced by its successor on the new primary
// while it still talks to the old one, which nobody told to stop, does not learn of it. With the default tokens they never fall on a
// server that keeps what it acknowledged; a fail-over to an asynchronous standby can lose some of that. A wait holds a snapshot on
// the server, as any statement does: CREATE INDEX CONCURRENTLY waits for those who wait for a lock.
//
// Connection poolers hand sessions from client to client, and locks with them. A pooler in transaction mode is refused, one in session
// mode is used if Options.SessionPooler allows it. For a lock inside of a transaction of your own there is [InTx].
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
)

const (
	// A server counts its timeouts in milliseconds, up to 2^31 of them. The minimum is far above a round trip and a late timer.
	minTTL = 100 * time.Millisecond
	maxTTL = 24 * 24 * time.Hour

	detect = time.Second // the server says so at once, if it is in reach
	late   = time.Second // the server's timer is exact to a few milliseconds, the rest is for a machine under load

	defaultTTL     = 30 * time.Second
	tokensPerGrant = 256
)

// Tokens says what fencing tokens are made of. All of them rise from grant to grant.
type Tokens string

const (
	// TokensDurable: transaction ids that are on the server's disk before a grant is answered, at the price of one flush of the log
	// for each group of grants. Tokens do not fall when the server crashes.
	TokensDurable Tokens = ""

	// TokensFast: transaction ids without that flush. When the server crashes, it may give out those of the last moments again, so
	// that a token can be smaller than, or equal to, one of an earlier grant.
	TokensFast Tokens = "fast"

	// TokensNone: no tokens, and no transaction ids used up.
	TokensNone Tokens = "none"
)

// Options of a Driver. The zero value is fine.
type Options struct {
	Tokens Tokens

	// Key computes the advisory lock of a name, for use beside programs that have numbers of their own. The default is [HashedKey]:
	// hashtextextended(name, 0). An error is returned to the caller of Lock.
	Key func(name string) (AdvisoryKey, error)

	// MaxLocks is how many locks the driver holds or asks for at a time (1,000 if 0). The server's table of locks is shared by all
	// its clients, 6,400 locks with PostgreSQL's defaults, and a server where it is full accepts no connections any more.
	MaxLocks int

	// MaxWaiters is how many connections may wait for a lock, or hold one that they waited for, at a time (32 if 0).
	MaxWaiters int

	// SessionPooler accepts a connection pooler in session mode (pgbouncer's pool_mode=session) between here and the server.
	SessionPooler bool

	// ForceUnlock makes ForceUnlock work. It ends the session of the holder, and with it every other lock of that session, whoever
	// holds it; the session may be one of a program that does not know of dsync.
	ForceUnlock bool

	// TTL is that of the leases that are expected. The connection for them is made at once; others are made when they are needed.
	// The default is 30 s, that of dsync.
	TTL time.Duration
}

// Driver is a driver.Driver on PostgreSQL. It implements driver.KeepAliveReporter, driver.Inspector and driver.ForceUnlocker too.
type Driver struct {
	config  *pgconn.Config
	options Options
	epoch   time.Time // times inside the driver are nanoseconds since then, on the monotonic clock
	label   string    // of this process, in application_name
	keys    keyMaker

	open   context.Context // ends when Close begins
	shut   context.CancelFunc
	life   context.Context // ends with Close, after all that has to be done
	end    context.CancelFunc
	wg     sync.WaitGroup // goroutines of the driver
	server serverFacts    // what the server is like; written before New returns

	told atomic.Pointer[func(error)] // see OnKeepAlive; nil if nobody asked

	mu       sync.Mutex
	ended    bool          // no goroutine may be started any more
	calls    int           // unfinished Acquires
	idle     chan struct{} // closed by the last of them, once Close waits for it
	gates    map[AdvisoryKey]*gate
	classes  map[time.Duration]*class
	home     time.Duration // the TTL of the class whose session stays open without locks
	locks    int           // held or asked for
	waiters  int           // sessions that wait, or hold what they waited for, or may be used for that
	sessions map[*session]struct{}

	graves      int       // sessions that ended and that the server may still have
	withdrawals int       // waits that are being ended
	changed     sync.Cond // broadcast when either becomes less
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
)

// New connects to the server that config describes (pgx.ParseConfig makes one) and checks it: PostgreSQL 14 or newer, no read
// replica, no connection pooler. It fails within ctx. What config says beyond how to connect, such as a tracer, is not used.
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
		gates:    make(map[AdvisoryKey]*gate),
		classes:  make(map[time.Duration]*class),
		sessions: make(map[*session]struct{}),
	}
	d.changed.L = &d.mu
	if err := d.options.check(); err != nil {
		return nil, err
	}
	d.label = processLabel(d.config.RuntimeParams["application_name"])
	d.home = roundUp(d.options.TTL)
	d.life, d.end = context.WithCancel(context.Background())
	d.open, d.shut = context.WithCancel(d.life)
	if err := d.connectFirst(ctx); err != nil {
		d.shut()
		return nil, errors.Join(err, d.stop(ctx))
	}
	return d, nil
}

// check refuses nonsense and fills in the defaults.
func (o *Options) check() error {
	switch o.Tokens {
	case TokensDurable, TokensFast, TokensNone:
	default:
		return fmt.Errorf("pglock: Options.Tokens is %q", o.Tokens)
	}
	if o.MaxLocks < 0 || o.MaxWaiters < 0 {
		return fmt.Errorf("pglock: Options.MaxLocks is %d and Options.MaxWaiters %d", o.MaxLocks, o.MaxWaiters)
	}
	if o.TTL != 0 && (o.TTL < minTTL || o.TTL > maxTTL) {
		return fmt.Errorf("pglock: TTL %v is outside of %v to %v: %w", o.TTL, minTTL, maxTTL, errors.ErrUnsupported)
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
	return i
}

// OnKeepAlive implements driver.KeepAliveReporter.
func (d *Driver) OnKeepAlive(f func(err error)) { d.told.Store(&f) }

// tell says whether a session is kept alive, unless the driver ends.
func (d *Driver) tell(err error) {
	if told := d.told.Load(); told != nil && d.open.Err() == nil {
		(*told)(err)
	}
}

// now is the time since d.epoch.
func (d *Driver) now() int64 { return int64(time.Since(d.epoch)) }

// enter counts a call of Acquire that wants a lock, unless the driver is closed or has enough of them.
func (d *Driver) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open.Err() != nil {
		return driver.ErrClosed
	}
	if d.locks >= d.options.MaxLocks {
		return fmt.Errorf("%w: %d are held or asked for (Options.MaxLocks)", ErrTooManyLocks, d.locks)
	}
	d.calls++
	d.locks++
	return nil
}

// leave ends what enter began. The lock stays counted for as long as it is held.
func (d *Driver) leave(granted *lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if granted != nil && !granted.over {
		granted.counted = true
	} else {
		d.locks--
	}
	if d.calls--; d.calls == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// sleep waits, and reports whether neither ctx nor the driver ended meanwhile.
func (d *Driver) sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-d.life.Done():
	}
	return false
}
