// Package pglock is the PostgreSQL backend of dsync: session-level advisory locks, on keys which every SQL client can compute. The URL
// scheme is "pglock".
//
//	pglock://user:password@host:5432/database?sslmode=verify-full
//
// There is no table, no DDL and no extension, and a role with the right to connect will do. Locks belong to a database: another database
// on the same server has others.
//
// # Parameters
//
// Beside ttl=, require= and fenced=, which every backend has. All others are those of a connection, as in libpq: sslmode=verify-full,
// application_name=orders. What the server does not know it refuses.
//
//	key=hash|number|pair             what a name stands for, see Options.Key
//	tokens=durable|fast              whether Lease.Token waits until the token is on disk, see Options.Tokens
//	max_locks=1000                   how many locks at a time, see Options.MaxLocks
//	max_waiters=32                   how many connections may wait, see Options.MaxWaiters
//	pooler=refuse|session            a connection pooler in session mode, see Options.SessionPooler
//	force_unlock=true                ForceUnlock may end connections of others, see Options.ForceUnlock
//
// # An example
//
// A program calls Lock for "orders/42", which is the lock of one 64-bit number:
//
//	Key("orders/42") = hashtextextended('orders/42', 0) = -5097415481565640018
//
// The driver sends one statement to a session of its own, and the answer is the lock with its token, or NULL if the lock is taken:
//
//	SELECT CASE WHEN pg_try_advisory_lock(-5097415481565640018) THEN pg_current_xact_id() END   -> 771
//
// A transaction id has room for 256 tokens: the lease gets 771 * 256 = 197376 and the following ones. The id is not on disk yet. When the
// program asks for the token, a second statement writes a message to the server's log, and its answer comes when the log is on disk:
//
//	SELECT CASE WHEN pg_logical_emit_message(true, 'dsync', '') IS NOT NULL THEN pg_backend_pid() END
//
// While the lock is held, the server shows
//
//	select pid, classid, objid, objsubid, granted from pg_locks where locktype = 'advisory'
//	4711 | 3108132768 | 1957956270 | 1 | t     -- -5097415481565640018 is 3108132768 * 2^32 + 1957956270, less 2^64
//
// and this statement in psql waits:
//
//	select pg_advisory_lock(hashtextextended('orders/42', 0))
//
// A second program asks in the same way, is answered NULL, and sends pg_advisory_lock on a session for this wait alone. Unlock sends
// SELECT pg_advisory_unlock(-5097415481565640018), and the server grants the lock to the first waiting session.
//
// # Reading and writing
//
// The mode Read is pg_advisory_lock_shared on the same key, and Write is the lock above: Write and Exclusive are one here. So programs with
//
//	select pg_advisory_lock_shared(hashtextextended('prices', 0))
//
// read the name together with clients of dsync, and with nobody who writes it. The server's queue has readers and writers in one order: a
// Read that comes when somebody waits to write waits behind the writer, and TryLock is refused.
//
// All Reads of a client with the same TTL are one lock of one session. Where a client reads a name already, a further Read takes two
// requests, since the server grants a session its own lock past all who wait: another session asks first whether the server would grant a
// Read, by a lock for the length of a statement. That is one connection more, until it has not been used for 30 s.
//
// # Connections
//
// The driver opens connections of its own and never uses those of an application. One connection carries the locks of all callers with
// the same TTL, and simultaneous requests go in one round trip. Only the first in line for a name with a foreign holder blocks on a
// connection of its own; the lock then stays on this connection. Options.MaxLocks and Options.MaxWaiters bound both.
//
// The server frees the locks of a frozen client, or of one behind a broken network, after a silence of the TTL (idle_session_timeout),
// and the locks of a client with a closed connection at once. All locks on one connection share its fate: when an administrator ends the
// connection, all of them are lost.
//
// # Connections that hang
//
// A connection may hang while new ones work, for example where a router has
// forgotten it. After a second without an answer the driver makes another
// connection, and leaves the silent one if the new one works. A connection with
// locks stays until the TTL has passed, because the connection is the lock. Other
// calls go on over the new connection. Every 1.5 s or more the driver asks
// whether the server still knows a wait, so a waiter whose grant is lost asks
// again within 5 s. The pause grows with the time that the server takes for the
// answer, which is about a millisecond with 500 connections.
//
// # Many clients that wait for one name
//
// A session that has waited for deadlock_timeout, a second by default, looks whether it is in a deadlock. That takes 0.4 ms with 200 who wait
// for the name and 19 ms with 1,000, and nobody gets or gives back a lock meanwhile: from some 700 clients on little else happens.
// Sessions of the driver that wait hold nothing, and do not look where the role may say so: superusers, and in PostgreSQL 15 and later after
//
//	GRANT SET ON PARAMETER deadlock_timeout TO locker
//
// Such waits are not among those of which log_lock_waits tells.
//
// # What is not promised
//
// A fail-over or a restart of the server is the loss of every lock. A client still connected to the old primary, which nobody told to
// stop, does not learn of its successor on the new primary. The default tokens never fall on a server with all of its acknowledged data;
// a fail-over to an asynchronous standby can lose some of the data. A wait holds a snapshot on the server, as any statement does: CREATE
// INDEX CONCURRENTLY waits for all who wait for a lock.
//
// Latches are not offered: advisory locks do not count, and end with their connections, and the driver makes no table.
//
// Connection poolers hand sessions from client to client, and locks with them. The driver refuses a pooler in transaction mode, and uses
// one in session mode if Options.SessionPooler says so. For a lock inside of a transaction of your own there is [InTx].
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
	// A server counts its timeouts in milliseconds, up to 2^31 of them. The minimum is far above a round trip and a late timer.
	minTTL = 100 * time.Millisecond
	maxTTL = 24 * 24 * time.Hour

	detect = time.Second // the server says so at once, if in reach
	late   = time.Second // the server's timer is exact to a few milliseconds, the rest is for a machine under load

	defaultTTL     = 30 * time.Second
	tokensPerGrant = 256
)

// Tokens says what fencing tokens are made of. All of them rise from grant to grant.
type Tokens string

const (
	// TokensDurable: transaction ids, on the server's disk before anybody gets to know the token, so tokens do not fall when the server
	// crashes. The first Lease.Token of a hold, and nothing else, costs a request and a flush of the log; calls at the same time share a
	// flush. A lease that ends before that has no token, which is 0.
	TokensDurable Tokens = ""

	// TokensFast: transaction ids without the flush. After a crash the server may give out the ids of the last moments again, so a
	// token can be smaller than, or equal to, one of an earlier grant.
	TokensFast Tokens = "fast"

	// TokensNone: no tokens, and no transaction ids used up.
	TokensNone Tokens = "none"
)

// Options of a Driver. The zero value is fine.
type Options struct {
	Tokens Tokens

	// Key computes the advisory lock of a name, for use beside programs with numbers of their own. The default is [HashedKey]:
	// hashtextextended(name, 0). An error is returned to the caller of Lock.
	// Names with the same key are one lock, so a function should refuse all
	// spellings of a name but one, as [NumberKey] does: LockAll of two such
	// names waits for itself until its context ends.
	Key func(name string) (AdvisoryKey, error)

	// MaxLocks is how many locks the driver holds or asks for at a time (1,000 if 0). The server's table of locks is shared by all
	// its clients, 6,400 locks with PostgreSQL's defaults, and a server with a full table accepts no connections any more.
	MaxLocks int

	// MaxWaiters is how many connections may wait for a lock, or hold a lock after a wait, at a time (32 if 0).
	MaxWaiters int

	// Password, if not nil, is called for each connection and returns its
	// password in place of the configuration's. It may be called concurrently.
	Password func(ctx context.Context) (string, error)

	// SessionPooler accepts a connection pooler in session mode (pgbouncer's pool_mode=session) between here and the server.
	SessionPooler bool

	// ForceUnlock makes ForceUnlock work: the method ends the session of the holder, and with the session every other lock on it,
	// whoever the holder is; the session may belong to a program without dsync.
	ForceUnlock bool

	// TTL is the expected TTL of leases. The connection for these leases is made at once, others when needed. The default is 30 s, as
	// in dsync.
	TTL time.Duration
}

// Driver is a driver.Driver on PostgreSQL, and implements driver.KeepAliveReporter, driver.Inspector, driver.ForceUnlocker and
// driver.Lister too.
type Driver struct {
	config  *pgconn.Config
	options Options
	epoch   time.Time // times inside the driver are nanoseconds since then, on the monotonic clock
	label   string    // of this process, in application_name
	keys    keyMaker

	life   *lifecycle.Lifecycle // counts Acquires as calls
	server serverFacts          // what the server is like; written before New returns

	onKeepAlive atomic.Pointer[func(error)] // see OnKeepAlive; nil if nobody asked
	looks       looks
	refused     atomic.Bool // the server refused the last new connection

	mu       sync.Mutex
	queues   map[AdvisoryKey]*localQueue
	classes  map[time.Duration]*class
	home     time.Duration // the TTL of the class whose session stays open without locks
	locks    int           // held or asked for
	waiters  int           // sessions for waits: in a wait, with the lock of a wait, or idle
	sessions map[*session]struct{}

	graves      int       // ended sessions, which the server may still have
	withdrawals int       // abandoned waits that are being ended
	changed     sync.Cond // broadcast when either becomes less
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
	_ driver.Lister            = (*Driver)(nil)
)

// New connects to the server of config (pgx.ParseConfig makes one), and checks the server: PostgreSQL 14 or newer, no read replica, no
// connection pooler. New fails within ctx. Parts of config other than how to connect, such as a tracer, are not used.
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
	i.ReadWrite = driver.Support{Offered: true, Order: i.Order, Fencing: i.Fencing}
	i.Permits = driver.Support{Why: "advisory locks do not count"}
	return i
}

// OnKeepAlive implements driver.KeepAliveReporter.
func (d *Driver) OnKeepAlive(f func(err error)) { d.onKeepAlive.Store(&f) }

// reportKeepAlive says whether a session is kept alive, unless the driver ends.
func (d *Driver) reportKeepAlive(err error) {
	if report := d.onKeepAlive.Load(); report != nil && d.life.Open().Err() == nil {
		(*report)(err)
	}
}

// now is the time since d.epoch.
func (d *Driver) now() int64 { return int64(time.Since(d.epoch)) }

// enter counts a call of Acquire and a lock for the call, unless the driver is closed or has enough locks.
func (d *Driver) enter() error {
	if err := d.life.Enter(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locks >= d.options.MaxLocks {
		d.life.Leave()
		return fmt.Errorf("%w: %d are held or asked for (Options.MaxLocks)", ErrTooManyLocks, d.locks)
	}
	d.locks++
	return nil
}

// leave ends what enter began. A granted lock stays counted until its end.
func (d *Driver) leave(granted *lease) {
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
