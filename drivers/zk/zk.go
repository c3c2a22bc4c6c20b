// Package zk is the ZooKeeper backend of dsync. It locks as Curator's InterProcessMutex and go-zookeeper's Lock do, node for node, so
// that all of them exclude each other and queue behind each other. It registers the URL scheme "zk".
//
//	zk://user:password@host1:2181,host2:2181/chroot
//
// Who asks for a lock makes an ephemeral sequential node below its name, /chroot/NAME/_c_<guid>-lock-<sequence>; the lowest sequence
// number has the lock, and each other watches the one before it. The nodes hang on a session, which the driver keeps alive: one
// for all locks with the same TTL, which is the timeout of the session. The server bounds these timeouts, with its usual settings to
// between 2 and 20 of its ticks of 2 seconds; Info tells the bounds, and TTLs outside of them are refused.
//
// The driver makes sessions of its own, and not from a connection that is handed in: a session that did not answer for its TTL has to
// be given up for good, and the library's connection tells neither the timeout that the server granted nor when it last answered.
//
// A lock with an expiry of its own hangs on a session that is at most a quarter longer, and the driver removes its node in time.
//
// # How long a session lasts
//
// Expires counts from requests of which it is certain that the leader of the ensemble has heard of them while it led: most answers say
// nothing of that, since a server that is cut off from the others goes on answering for some ticks. So every quarter of the TTL the driver
// asks the leader twice, with at most eight requests in a TTL: six are syncs, which cost little, and two are transactions without a
// change, which the servers write to their logs; and the library sends three pings. Right after a round of these a session lasts for three
// quarters of its TTL, and right before one for half. A server over which no such request is answered in half of what is left is given
// up for the next one of the URL. So URLs should name all servers: who knows a single one loses its locks when that is cut off, and is
// told before anybody else is granted them.
//
// This takes servers that ping each other at least four times in the shortest timeout that they give a session, as they do with
// minSessionTimeout at its default of two ticks, or above. With a lower one, or for clients of an observer that follows a follower, TTLs
// should be of six ticks or more.
//
// ZooKeeper 3.5 or newer should be used.
//
// # Beside Curator and go-zookeeper
//
// The name "orders/42" is the path /orders/42 of a NewLock or an InterProcessMutex. The node of a name that the driver made goes with
// the last lock on it; one that somebody else made is neither changed nor removed. Nodes above it are containers, which the server
// removes some time after their last child. A contender is every child whose name ends as those of Curator, go-zookeeper and kazoo
// do; other children are ignored. Kazoo sees the nodes of this driver only with extra_lock_patterns=["-lock-"].
//
// Lock of go-zookeeper gives up, with an error of package strconv, when it finds no node of the name three times in a row, as it can
// where dsync takes and gives back a free lock all the time. Call it again then, or make the node beforehand.
//
// # Seals and marks
//
// A seal is a node dsync-seal-<last token>-lock-<sequence> that stays, in the place of the holder's, so all who contend wait behind it.
// A waiter of dsync that stands behind one of another library learns of it within 20 seconds, the others at once. Before a seal is taken
// back an id comes into its name, behind the token. A mark is the child dsync-mark-<number>-lock-2147483647, which looks to other
// libraries like the last contender, and says what is added to transaction numbers to make tokens; dsync-base-<number>-lock-2147483647
// says the same of a name that is not marked any more.
package zk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

const (
	defaultTTL = 30 * time.Second

	// detect is how long a hold may go unwatched (usualCheckAfter), and a moment for the request and the event.
	detect = 2 * time.Second

	tokensPerGrant = 256

	// These bound the making of a session, a request to give a place in the queue back, and one in the background.
	sessionFor = 3 * time.Second
	leaveFor   = 500 * time.Millisecond
	attemptFor = time.Second
)

// Options of a Driver. The zero value is fine.
type Options struct {
	// Chroot is the path below which all locks are, such as "/app/locks". Its nodes are made when they are needed.
	Chroot string

	// TTL is that of the leases that are expected. The session for them is made at once; others are made when they are needed. The
	// default is 30 s, that of dsync, or the next TTL that the server keeps.
	TTL time.Duration

	// User and Password are what the sessions authenticate with (scheme digest), if User is not empty.
	User, Password string

	// ACL is that of all nodes that the driver makes. The default is everything for everybody, or, with a User, everything for that
	// user alone.
	ACL []gozk.ACL

	// Dial connects to a server. The default is that of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// TLS encrypts the connections, if it is not nil.
	TLS *tls.Config

	// NoTokens says that leases carry no fencing tokens.
	NoTokens bool

	// FIFO makes the order of arrival that of all callers of all clients. The default is driver.FIFOByClient, with one contender for
	// each client and name.
	FIFO bool
}

// Driver is a driver.Driver on ZooKeeper. It implements driver.KeepAliveReporter, driver.Inspector, driver.ForceUnlocker,
// move.Sealer, move.Unsealer, move.Marker and move.Unmarker too.
type Driver struct {
	hosts   []string
	options Options
	minTTL  time.Duration
	maxTTL  time.Duration
	host    string
	epoch   time.Time // times inside the driver are nanoseconds since then, on the monotonic clock

	life    *lifecycle.Lifecycle // counts Acquires as calls
	ghosts  *cleaner
	parents parents

	told       atomic.Pointer[func(error)] // see OnKeepAlive; nil if nobody asked
	checkAfter atomic.Int64                // see usualCheckAfter
	nudgeAfter atomic.Int64                // see usualNudgeAfter

	mu       sync.Mutex
	sessions map[time.Duration]*session
	all      map[*session]struct{} // those that are not buried
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
)

// New connects to one of the hosts ("host:port") and asks for the bounds of its session timeouts. It fails within ctx.
func New(ctx context.Context, hosts []string, o *Options) (*Driver, error) {
	if o == nil {
		o = &Options{}
	}
	d := &Driver{
		hosts:    slices.Clone(hosts),
		options:  *o,
		epoch:    time.Now(),
		life:     lifecycle.New(),
		sessions: make(map[time.Duration]*session),
		all:      make(map[*session]struct{}),
	}
	if err := d.options.check(); err != nil {
		return nil, err
	}
	if len(hosts) == 0 {
		return nil, errors.New("zk: no hosts")
	}
	d.host, _ = os.Hostname() // for people; a lock without it is as good
	d.ghosts = newCleaner(d)
	d.checkAfter.Store(int64(usualCheckAfter))
	d.nudgeAfter.Store(int64(usualNudgeAfter))
	if err := d.connect(ctx); err != nil {
		_ = d.Close(ctx) // nothing is held yet
		return nil, err
	}
	return d, nil
}

// check refuses nonsense and fills in the defaults.
func (o *Options) check() error {
	o.Chroot = strings.TrimSuffix(o.Chroot, "/")
	if err := checkChroot(o.Chroot); err != nil {
		return err
	}
	if o.User == "" && o.Password != "" {
		return errors.New("zk: a password without a user")
	}
	if strings.Contains(o.User, ":") {
		return errors.New("zk: the user has a colon")
	}
	if o.TTL < 0 {
		return fmt.Errorf("zk: Options.TTL is %v", o.TTL)
	}
	switch {
	case o.ACL != nil:
		o.ACL = slices.Clone(o.ACL)
	case o.User != "":
		o.ACL = gozk.AuthACL(gozk.PermAll)
	default:
		o.ACL = gozk.WorldACL(gozk.PermAll)
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	return nil
}

// connect finds out what the server keeps, and makes the session for the TTL that is expected.
func (d *Driver) connect(ctx context.Context) error {
	var err error
	if d.minTTL, d.maxTTL, err = d.limits(ctx); err != nil {
		return err
	}
	if d.options.TTL == 0 {
		d.options.TTL = min(max(defaultTTL, d.minTTL), d.maxTTL)
	}
	if err := d.Info().CheckTTL(d.options.TTL); err != nil {
		return fmt.Errorf("%w (minSessionTimeout and maxSessionTimeout of the server)", err)
	}
	s, err := d.board(caller{ctx: ctx}, d.options.TTL)
	if err != nil {
		return err
	}
	defer s.leave()
	return d.mayUse(ctx, s)
}

// mayUse finds out whether the user may read the chroot. One that is not there yet may be made later.
func (d *Driver) mayUse(ctx context.Context, s *session) error {
	path := d.options.Chroot
	if path == "" {
		path = "/"
	}
	_, err := query(caller{ctx: ctx}, s, func(c *gozk.Conn) ([]byte, error) {
		text, _, err := c.Get(path)
		return text, err
	})
	if err == nil || errors.Is(err, gozk.ErrNoNode) {
		return nil
	}
	return fault(ctx, s, fmt.Errorf("%s: %w", path, err))
}

// OnKeepAlive implements driver.KeepAliveReporter. The requests are those that confirm a session; the library's pings tell nothing.
func (d *Driver) OnKeepAlive(f func(err error)) { d.told.Store(&f) }

// tell says whether a session is kept alive, unless the driver ends.
func (d *Driver) tell(err error) {
	if told := d.told.Load(); told != nil && d.life.Open().Err() == nil {
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
	return i
}

// late covers that a server counts sessions in whole ticks, of which the shortest timeout usually has two, and that the session of a
// fixed lease may be longer than its TTL. After the election of a leader all sessions last anew, for a whole timeout.
func (d *Driver) late() time.Duration { return d.minTTL + d.maxTTL/fixedExtra + time.Second }

// now is the time since d.epoch.
func (d *Driver) now() int64 { return int64(time.Since(d.epoch)) }
