// Package zk is the ZooKeeper backend of dsync. Its locks are those of Curator's InterProcessMutex and of go-zookeeper's Lock, node for
// node: all of them exclude each other and queue behind each other. Its modes Read and Write are those of Curator's
// InterProcessReadWriteLock, and its permits those of InterProcessSemaphoreV2. The URL scheme is "zk".
//
//	zk://user:password@host1:2181,host2:2181/chroot
//
// # Parameters
//
// Beside ttl=, require= and fenced=, which every backend has. The path of the URL is Options.Chroot; user and password are for the scheme
// digest.
//
//	order=client|fifo                all callers of all clients in their order, see Options.FIFO
//	node=lock-|latch-                what locks are to Curator: an InterProcessMutex, or a LeaderLatch; see Options.LeaderLatch
//	value=record|note                what a node says of its holder, see Options.NoteAlone
//	acl=open|creator                 nodes for everybody, or for the user alone, the default where there is a user; see Options.ACL
//	password_file=file               the passwords of the URL's user, one a line, read again every 10 s: see Options.Passwords
//	tls=true                         encrypt, by TLS 1.2 or newer, and check the server's certificate
//	tls_ca=file                      the authorities for that, as PEM; those of the system by default
//	tls_cert=file, tls_key=file      the client's own certificate, as PEM, read anew for each connection
//	tls_server_name=name             the name that the server's certificate has to have, if it is not that of the host
//	tls_insecure_skip_verify=true    accept any certificate: for trials alone
//
// # An example
//
// Two clients want the name "orders/42", below the chroot /app. The first makes two nodes in one transaction, and has the lock: its node
// has the lowest sequence number of all children of /app/orders/42. The second finds /app/orders/42 there, adds its node, lists the
// children, and watches the node right before its own.
//
//	/app/orders                                                          a container, which the server removes some time after its last child
//	/app/orders/42                                                       the node of the name
//	/app/orders/42/_c_5f1d0c9ae37b4e6c8a2f90d1b7c3e458-lock-0000000000   ephemeral, of client 1: the holder
//	/app/orders/42/_c_c07e2b6f4d1849a5b3e8f6a1d2907c3b-lock-0000000001   ephemeral, of client 2: watches ...0000000000
//
// Client 1 deletes its node. The server tells client 2, which lists the children again, finds no node before its own, and has the lock,
// with 256 tokens from 256 times the id of the last transaction in the answer. Client 2 is alone at its release, so the node of the name
// goes as well.
//
// A node is ephemeral: it goes with the session of its client, which the driver
// keeps alive. The locks of one TTL share a session, whose timeout is the TTL.
// A session carries nodes with paths of at most 512 KiB, because the
// transaction that ends the session lists the paths, and no server can read a
// transaction of more than twice jute.maxbuffer. Further nodes are on further
// sessions. The server bounds timeouts, usually to between 2 and 20 ticks of 2
// seconds; Info tells the bounds, and other TTLs are refused. A lock with an
// expiry of its own is on a session of its TTL or up to a quarter more, and the
// driver removes the node in time. The driver makes its own sessions, because a
// session without an answer for its TTL has to be given up for good, and a
// connection of the library tells neither the timeout that the server granted
// nor when the server last answered. To be sure that the leader keeps a session
// takes several requests: a session whose requests take more than an eighth of
// the TTL for long is given up as well.
//
// # Readers and writers
//
// In the names of their nodes __READ__ and __WRIT__ stand in place of lock-, and the nodes of all modes are in one line, by their numbers. A
// Read has the name when no node of another mode is before its own, and watches the last of those; so all Reads between two writers are
// granted together, and none passes a writer that came before. A Write is granted the name when it is the first of all, as an exclusive lock
// is, and watches the node right before its own; behind many readers it looks again when that one has gone, once for each at the most.
//
// To other libraries the modes are different locks:
//
//	held by dsync    who waits
//	Exclusive        dsync in all modes, InterProcessMutex, Lock of go-zookeeper
//	Write            dsync in all modes, InterProcessReadWriteLock, Lock of go-zookeeper
//	Read             dsync in the two other modes, who writes by InterProcessReadWriteLock, Lock of go-zookeeper
//
// InterProcessMutex and InterProcessReadWriteLock do not see each other's nodes on one path. A client of dsync waits for both, and only one
// of the two waits for that client: on names that Curator reads and writes, use Write, and no lock without a mode.
//
// A thread of Curator that writes, and goes on reading when it has given the write lock back, keeps its place since Curator 5.5.0. Before, the
// node for reading has a later number, and a writer of any library that came in between is granted the name beside the thread.
//
// # Permits
//
// The name "gpu" with a limit of 4 permits is an InterProcessSemaphoreV2 with the path /app/gpu. Here one hold has two permits, and two calls wait:
//
//	/app/gpu                                                                   a container; the limit in 4 bytes, as a SharedCount has it
//	/app/gpu/leases/_c_91d20b6c5f3e4a7780c1e2d3f4a5b6c7-lease-0000000007        a permit; says of its holder what the node of a lock does
//	/app/gpu/leases/_c_91d20b6c5f3e4a7780c1e2d3f4a5b6c7-lease-0000000008        one more of the same hold
//	/app/gpu/locks/_c_3b6f0e9d8c7b4a59a1b2c3d4e5f60718-lock-0000000003          the first in line: watches the leases
//	/app/gpu/locks/_c_e4d3c2b1a0f94e8d9c7b6a5948372615-lock-0000000004          the second: watches ...0000000003
//
// All leases of a request are made in one transaction, and granted if up to the last of them there are no more leases than the limit. Who finds
// somebody in line, or too few permits, takes the leases back and gets in line. The first in line makes its leases when there is room, and leaves
// the line when they are granted. Curator makes one lease after the other, and the first in line waits with a lease beyond the limit, which Inspect
// counts as a waiter.
//
// The first grant makes the limit, and the server removes the limit with its container, some time after the last permit. What SetLimit sets
// stays, with a child %limit. The limit of Curator is that of each InterProcessSemaphoreV2 by itself: have its programs name the same one, or
// give them a SharedCount with the path of the name, here /app/gpu. Either side may change a SharedCount, and the other one heeds that.
//
// Some 700 permits can be asked for at once, fewer of long names. Servers need containers, from ZooKeeper 3.5.1 on; before, the nodes stay.
// So does, until somebody uses it, a container whose maker gave up right after.
//
// # Order
//
// One waiting call for each client, name and mode has a node (driver.FIFOByClient); the others wait in line in the process, and hand the lock
// over there without a request. With order=fifo in the URL (Options.FIFO) each call has a node and a watch, so the order of arrival is
// that of all callers of all clients (driver.FIFO). Each caller then costs five or six requests, two of them lists of all contenders:
// with 10, 100 and 1,000 callers, 17, 9 and 12 ms for each on two busy cores, where the default takes 12, 1 and 0.2 ms.
//
// # How long a session lasts
//
// Expires counts from requests that the leader of the ensemble has certainly
// heard of while it led. Most answers say nothing of the leader: a server that
// is cut off from the others goes on answering for some ticks. So every quarter
// of the TTL the driver asks the leader twice, with at most eight requests in a
// TTL: six are syncs, which cost little, and two are transactions without a
// change, which the servers write to their logs; and the library sends three
// pings. Right after a round of requests a session lasts for three quarters of
// its TTL, and right before one for half. If a server leaves such a request
// without an answer for half of the time left, the driver goes on to the next
// server of the URL. It also does so 2 seconds after a request that a caller, a
// waiter or Close needs, if the server has said nothing since: the session goes
// on by a new connection. On slow servers this time doubles, up to 16 seconds.
// So URLs should name all servers: a client of a single server loses its locks
// when the server is cut off, and is told before anybody else is granted them.
//
// Servers have to ping each other at least four times in the shortest timeout of a session, as they do with minSessionTimeout at its
// default of two ticks, or above. With a lower one, or for clients of an observer behind a follower, TTLs should be of six ticks or more.
//
// ZooKeeper 3.5 or newer should be used.
//
// # Beside Curator and go-zookeeper
//
// The name "orders/42" is the path /orders/42 of a NewLock or an InterProcessMutex. Names that end in /locks or /leases are an exception: the path
// of "app/locks" is /app/lock%73, since /app/locks is where those stand who wait for permits of "app". For an InterProcessMutex with that path have
// /app in the URL, and the name "locks". A node of a name that the driver made goes with the
// last lock; a node by somebody else is neither changed nor removed. A contender is every child whose name ends as in Curator,
// go-zookeeper and kazoo (its Lock and ReadLock); other children are ignored. Kazoo sees the nodes of this driver only with extra_lock_patterns=["-lock-"].
//
// ZooKeeper counts the children that a node has had, and gives each one the
// last number from 2^31-1 on. A name whose node has come that far is refused
// with an error that names the node: delete the node when no client uses the
// name. A node that the driver made goes with the last lock and begins anew, so
// this concerns nodes by others, and names that always have a contender.
//
// Lock of go-zookeeper gives up, with an error of package strconv, after finding no node of the name three times in a row, as may happen
// where dsync takes and gives back a free lock all the time. Call Lock again then, or make the node beforehand.
//
// # Beside Curator's LeaderSelector and LeaderLatch
//
// A LeaderSelector is an InterProcessMutex on its path, so dsync elects one leader with it. A LeaderLatch is another lock, for which
// all clients of dsync that use its path have node=latch- in their URL: they wait for each other in either case, but a LeaderLatch waits for
// nodes like its own alone. Both write the id of a participant into its node: Inspect and Observe of package dsync show the id as the note, and
// with value=note, getLeader of Curator shows the note of a leader of dsync as the id.
//
// # Latches
//
// The latch "jobs" is the node /app/%latches/jobs with the count as set, and a child, whose version is the number of count-downs. A set of nodes
// below /app/%changes has the ids of the changes of a client for each hour of use, for one to four hours:
//
//	/app/%latches/jobs                   says "3 7f2a", the count and the child
//	/app/%latches/jobs/7f2a              changed by each count-down; called by the id of the change that set the latch
//	/app/%changes/set-0000000004/91bd    a change that was carried out
//
// Whoever begins a set removes the old ones of all clients, by the clock of the servers. Those of the last hours stay while nobody uses latches.
//
// # Seals and marks
//
// A seal is a node dsync-seal-<last token>-lock-<sequence>, not ephemeral, in the place of the holder's: all contenders wait behind the
// seal. That of a Write has __WRIT__ in place of lock-, and a Read cannot be sealed, since others may read beside it. A waiter of dsync behind a waiter of another library learns of the seal within 20 seconds, the others at once. Before a seal is
// taken back an id comes into its name, behind the token. A mark is the child dsync-mark-<number>-lock-2147483647, which looks to other
// libraries like the last contender; the number is added to transaction numbers to make tokens. dsync-base-<number>-lock-2147483647 is
// the same for a name that is not marked any more.
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

	// detect is how long a hold may go unwatched (usualCheckAfter), and a moment for the request and the event.
	detect = 2 * time.Second

	tokensPerGrant = 256

	// usualPasswordsEvery is how often a session looks for further passwords.
	usualPasswordsEvery = 10 * time.Second

	// These bound the making of a session, a request to give a place in the queue back, and one in the background.
	sessionFor = 3 * time.Second
	leaveFor   = 500 * time.Millisecond
	leaveSoon  = 50 * time.Millisecond // instead of leaveFor, after the end of the caller's context
	attemptFor = time.Second
)

// Options of a Driver. The zero value is fine.
type Options struct {
	// Chroot is the path below which all locks are, such as "/app/locks". Its nodes are made when they are needed.
	Chroot string

	// TTL is the usual TTL of leases. The session for them is made at once; others are made when they are needed. The default is 30 s,
	// as in dsync, or the next TTL that the server keeps.
	TTL time.Duration

	// User and Password are what the sessions authenticate with (scheme digest), if User is not empty.
	User, Password string

	// Passwords returns passwords of User, instead of Password. It is called
	// when a session begins and every 10 s from then on. The session
	// authenticates with all of them, so its nodes belong to the user with any
	// of these passwords.
	Passwords func(ctx context.Context) ([]string, error)

	// ACL is the ACL of all nodes of the driver. The default is everything for everybody, or, with a User, everything for the user
	// alone.
	ACL []gozk.ACL

	// Dial connects to a server. The default is DialContext of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// TLS encrypts the connections, if not nil.
	TLS *tls.Config

	// NoTokens: leases carry no fencing tokens.
	NoTokens bool

	// LeaderLatch has the nodes of locks without a mode say latch-, as those of Curator's LeaderLatch do, and not lock-. Clients of dsync with and
	// without LeaderLatch wait for each other, and Lock of go-zookeeper for both; a LeaderLatch heeds no lock-, and an InterProcessMutex no latch-.
	LeaderLatch bool

	// NoteAlone has the node of a hold say its note and nothing else, as Curator's LeaderLatch and LeaderSelector expect the id of a participant
	// there. Inspect then names the owner by the node.
	NoteAlone bool

	// FIFO has the callers of all clients contend each for itself, in one order of arrival (driver.FIFO). The default is one contender for
	// each client and name (driver.FIFOByClient).
	FIFO bool
}

// Driver is a driver.Driver on ZooKeeper. It implements driver.KeepAliveReporter, driver.Inspector, driver.Watcher,
// driver.ForceUnlocker, driver.Lister, driver.Limiter, driver.Latcher, move.Sealer, move.Unsealer, move.Marker and move.Unmarker too.
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

	onKeepAlive    atomic.Pointer[func(error)] // see OnKeepAlive; nil if nobody asked
	checkAfter     atomic.Int64                // see usualCheckAfter
	nudgeAfter     atomic.Int64                // see usualNudgeAfter
	hangAfter      atomic.Int64                // see usualHangAfter
	passwordsEvery atomic.Int64                // see usualPasswordsEvery
	cutOff         atomic.Int32                // requests for sessions that were cut off, since one was answered soon; see welcomeFor

	watchMu sync.Mutex
	watched map[string]*nameWatch // by node
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.Watcher           = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
	_ driver.Lister            = (*Driver)(nil)
)

// OnKeepAlive implements driver.KeepAliveReporter. The requests are the ones of keep; the library's pings tell nothing.
func (d *Driver) OnKeepAlive(f func(err error)) { d.onKeepAlive.Store(&f) }

// reportKeepAlive reports whether a session is kept alive, unless the driver ends.
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

// late covers a server that counts sessions in whole ticks, of which the shortest timeout usually has two. Also, the session of a
// fixed lease may be longer than its TTL. After the election of a leader all sessions last anew, for a whole timeout.
func (d *Driver) late() time.Duration { return d.minTTL + d.maxTTL/fixedExtra + time.Second }

// now is the time since d.epoch.
func (d *Driver) now() int64 { return int64(time.Since(d.epoch)) }

// dir returns the path of a name. The path is the name itself, as far as ZooKeeper can keep the name: percent signs, what may not be in a
// path, and slashes without something on both sides are written as %XX. So is the last letter of what looks like a contender, and of a last part
// that is called as the line or the leases of a name with permits: a name below another must not be one of its contenders, nor have contenders
// among those.
func (d *Driver) dir(name string) string { return encode(d.options.Chroot, name) }

// infix returns what stands in the names of new nodes of a mode.
func (o *Options) infix(mode driver.Mode) string {
	if o.LeaderLatch && mode == driver.Exclusive {
		return leaderLatchInfix
	}
	return infixes[mode].text
}
