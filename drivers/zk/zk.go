// Package zk is the ZooKeeper backend of dsync. It uses the same nodes as
// Curator's InterProcessMutex and go-zookeeper's Lock, so all of these exclude
// each other and share one queue. Its modes Read and Write use the nodes of
// Curator's InterProcessReadWriteLock, and its permits the nodes of
// InterProcessSemaphoreV2. The package registers the URL scheme "zk":
//
//	zk://user:password@host1:2181,host2:2181/chroot
//
// Use ZooKeeper 3.5 or later. List all servers in the URL, because a client
// that knows only one server loses its locks if that server is cut off.
//
// # Parameters
//
// Every backend also has ttl=, require=, fenced= and floor=. The path of the
// URL is Options.Chroot. User and password are for the scheme digest.
//
//	order=client|fifo               the order of callers, see Options.FIFO
//	node=lock-|latch-               see Options.LeaderLatch
//	value=record|note               the value of a node, see Options.NoteAlone
//	acl=open|creator                see Options.ACL
//	password_file=file              the passwords, one per line, read every 10 s
//	tls=true                        encrypt, by TLS 1.2 or later
//	tls_ca=, tls_cert=, tls_key=    PEM files: authorities, own certificate
//	tls_server_name=name            the name in the server's certificate
//	tls_insecure_skip_verify=true   accept any certificate: only for testing
//
// # An example
//
// Two clients lock "orders/42" with the chroot /app. Each adds an ephemeral
// node:
//
//	/app/orders/42/_c_5f1d0c9ae37b4e6c8a2f90d1b7c3e458-lock-0000000000
//	/app/orders/42/_c_c07e2b6f4d1849a5b3e8f6a1d2907c3b-lock-0000000001
//
// The node with the lowest number holds the lock. The second client watches the
// first node and holds the lock after its deletion. Tokens come from
// transaction ids.
//
// # Caveats
//
// Locks with the same TTL share a session and end with it. The server bounds
// TTLs, usually to between 4 and 40 seconds. The paths of a session's nodes may
// have a total length of at most 512 KiB, so more locks need more sessions.
// Keep jute.maxbuffer at 1 MiB, the default, or more.
//
// InterProcessMutex and InterProcessReadWriteLock do not see each other's
// nodes. Use Write for names that Curator reads and writes. Each side enforces
// only its own limit of permits, so give both sides the same limit.
//
// The name "orders/42" is the path /orders/42. In the paths of names that end
// in /locks or /leases, the last s is written as %73, because Curator keeps
// permits there.
//
// docs/backends/zookeeper.md lists costs, limits, the least rights and the
// promises under each fault.
package zk

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/lifecycle"
	sessions "github.com/go-dsync/dsync/internal/session"
)

const (
	defaultTTL = 30 * time.Second

	// detect is how long a hold may be unwatched (usualCheckAfter), plus a
	// moment for the request and the event.
	detect = 2 * time.Second

	tokensPerGrant = 256

	// usualPasswordsEvery is how often a session checks for additional
	// passwords.
	usualPasswordsEvery = 10 * time.Second

	// The time limits for creating a session, for a request that leaves the
	// queue, and for a request in the background.
	sessionFor = 3 * time.Second
	leaveFor   = 500 * time.Millisecond
	leaveSoon  = 50 * time.Millisecond // instead of leaveFor, after the end of the caller's context
	attemptFor = time.Second
)

// Options of a Driver. The zero value uses the defaults.
type Options struct {
	// Chroot is the path below which all locks are stored, such as
	// "/app/locks". Its nodes are made when they are needed.
	Chroot string

	// TTL is the usual TTL of leases. The session for them is created
	// immediately; other sessions are created when they are needed. The default
	// is 30 s, as in dsync, or the closest TTL that the server supports.
	TTL time.Duration

	// User and Password authenticate the sessions (scheme digest), if User is
	// not empty.
	User, Password string

	// Passwords returns passwords of User, instead of Password. It is called
	// when a session begins and every 10 s from then on. The session
	// authenticates with all of them, so its nodes belong to the user with any
	// of these passwords.
	Passwords func(ctx context.Context) ([]string, error)

	// ACL is the ACL of all nodes of the driver. By default everyone has all
	// rights or, if User is set, only that user has all rights.
	ACL []gozk.ACL

	// Dial connects to a server. The default is DialContext of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// TLS encrypts the connections, if not nil.
	TLS *tls.Config

	// NoTokens makes leases carry no fencing tokens.
	NoTokens bool

	// LeaderLatch makes the names of the nodes of locks without a mode contain
	// latch-, like the nodes of Curator's LeaderLatch, instead of lock-.
	// Clients of dsync with and without LeaderLatch wait for each other, and
	// Lock of go-zookeeper waits for both. A LeaderLatch ignores lock- nodes,
	// and an InterProcessMutex ignores latch- nodes.
	LeaderLatch bool

	// NoteAlone makes the data of a hold's node only its note, because
	// Curator's LeaderLatch and LeaderSelector expect the id of a participant
	// there. Inspect then reports the name of the node as the owner.
	NoteAlone bool

	// FIFO makes all callers of all clients contend individually, in one order
	// of arrival (driver.FIFO). The default is one contender for each client
	// and name (driver.FIFOByClient).
	FIFO bool
}

// Driver is a driver.Driver on ZooKeeper. It also implements
// driver.KeepAliveReporter, driver.Inspector, driver.Watcher,
// driver.ForceUnlocker, driver.Lister, driver.Limiter, driver.Latcher,
// move.Sealer, move.Unsealer, move.Marker and move.Unmarker.
type Driver struct {
	hosts   []string
	options Options
	minTTL  time.Duration
	maxTTL  time.Duration
	host    string
	epoch   time.Time // times inside the driver are nanoseconds since then, on the monotonic clock

	life      *lifecycle.Lifecycle // counts Acquires as calls
	sessions  *sessions.Pool[*session]
	ghosts    *cleaner.Cleaner[*ghost]
	nameNodes nameNodes
	changes   changes

	onKeepAlive    atomic.Pointer[func(error)] // see OnKeepAlive; may be nil
	checkAfter     atomic.Int64                // see usualCheckAfter
	nudgeAfter     atomic.Int64                // see usualNudgeAfter
	hangAfter      atomic.Int64                // see usualHangAfter
	passwordsEvery atomic.Int64                // see usualPasswordsEvery
	// canceled requests for sessions since the last prompt answer; see
	// welcomeFor
	cutOff atomic.Int32

	watchMu sync.Mutex
	watched map[string]*nameWatch // by node of the name
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.Watcher           = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
	_ driver.Lister            = (*Driver)(nil)
)

// OnKeepAlive implements driver.KeepAliveReporter. It reports the requests of
// keep, because the library's pings prove nothing.
func (d *Driver) OnKeepAlive(f func(err error)) { d.onKeepAlive.Store(&f) }

// reportKeepAlive reports whether a session is kept alive, unless the driver
// has ended.
func (d *Driver) reportKeepAlive(err error) {
	if told := d.onKeepAlive.Load(); told != nil && d.life.Open().Err() == nil {
		(*told)(err)
	}
}

// Info implements driver.Driver.
func (d *Driver) Info() driver.Info {
	i := driver.Info{
		Name:       "zk",
		Order:      driver.FIFOByClient,
		Fencing:    driver.Durable,
		KeepsAlive: true,
		MinTTL:     d.minTTL,
		MaxTTL:     d.maxTTL,
		TTLUnit:    time.Millisecond,
		Detect:     detect,
		Late:       d.late(),
	}
	if d.options.FIFO {
		i.Order = driver.FIFO
	}
	if d.options.NoTokens {
		i.Fencing = driver.None
	}
	i.ReadWrite = driver.Support{Offered: true, Order: i.Order, Fencing: i.Fencing}
	i.Permits = driver.Support{Offered: true, Order: i.Order}
	return i
}

// late covers a server that counts sessions in whole ticks. The shortest
// timeout usually has two ticks. Also, the session of a fixed lease may be
// longer than its TTL. After the election of a leader, all sessions start with
// a full timeout again.
func (d *Driver) late() time.Duration { return d.minTTL + d.maxTTL/fixedExtra + time.Second }

// now is the time since d.epoch.
func (d *Driver) now() int64 { return int64(time.Since(d.epoch)) }

// dir returns the path of a name. The path is the name itself, as far as
// ZooKeeper supports it. Percent signs, characters that are not allowed in a
// path, and slashes that do not separate two parts are written as %XX. The
// last letter of some parts is also written as %XX. These are parts that look
// like a contender, and a last part with the name of the queue or of the leases
// of permits. Otherwise a name below another name could be one of its
// contenders, or have contenders among them.
func (d *Driver) dir(name string) string { return encode(d.options.Chroot, name) }

// infix returns the infix in the names of new nodes of a mode.
func (o *Options) infix(mode driver.Mode) string {
	if o.LeaderLatch && mode == driver.Exclusive {
		return leaderLatchInfix
	}
	return infixes[mode].text
}
