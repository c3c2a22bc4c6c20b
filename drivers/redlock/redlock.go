// Package redlock is the dsync backend on N independent Redis servers: the
// published Redlock algorithm, with the keys and values of redsync and
// redlock-py, so that programs of all three exclude each other. It registers the
// URL schemes "redlock" and "redis-string":
//
//	redlock://user:password@host1:6379,host2:6379,host3:6379/0
//	redis-string://user:password@host:6379/0
//
// Give redlock an odd number of nodes, 3 or more, with nothing in common: 5
// survive the loss of 2. User, password and database hold for every node.
//
// # Parameters
//
// Beside ttl= and require=, as on every backend:
//
//	maxttl=30s                       the longest TTL of any client, see Options.MaxTTL
//	durable=true                     nodes do not forget when they are restarted, see Options.Durable
//	nodetimeout=50ms                 how long a vote waits for slow nodes, see Options.NodeTimeout
//	evict=refuse|allow               a server that evicts keys, see Options.AllowEviction
//	password_file=file               the password, read again for each connection
//	tls=true                         encrypt, by TLS 1.2 or newer, and check the server's certificate
//	tls_ca=file                      the authorities for this, as PEM; by default the system's
//	tls_cert=file, tls_key=file      the client's own certificate, as PEM, read anew for each connection
//	tls_server_name=name             the name expected in the server's certificate, if not the host's
//	tls_insecure_skip_verify=true    accept any certificate: for trials alone
//
// # What it does not promise
//
// Redlock saves work from being done twice. It cannot keep data from being
// corrupted, because it trusts clocks and has no fencing:
//
//   - A stopped holder (a garbage collection, a frozen virtual machine) can write
//     after its lease has ended. Lease.Token is 0, and require=fenced is refused.
//   - The nodes end holds by their own clocks. If those of a majority jump, a
//     second client may be granted a held lock. Clocks may differ in speed by 1 %.
//   - A running node may lose data (by FLUSHALL, eviction, or the promotion of a
//     replica behind its address), and nothing shows the loss. If a majority
//     loses data within one TTL, there are two holders.
//   - Waiters have no order: require=fair and require=fifo are refused.
//
// The modes Read, Write and Permit and latches are not offered, and require=rw
// and require=permits are refused. The value of a lock is a string with one
// owner, so redsync and redlock-py could not take part in reads, and a resource
// could not refuse a late reader without a token. A majority does not keep a
// limit: of three nodes with two places each, three holds get a majority (1 and
// 2, 2 and 3, 1 and 3). No node knows the count of a latch.
//
// If this matters, use drivers/etcd, drivers/zk or drivers/pglock, where one log
// keeps the order and the tokens. Where one Redis is enough, drivers/redisson has
// tokens, costs a fifth and loses a lock only when the server does.
//
// # One server: redis-string
//
// On one server the same keys and values are the plain string lock of many
// programs: bsm/redislock, redsync on one node, and SET NX PX by hand. The scheme
// redis-string, and [NewSingle], serve to move such programs elsewhere by
// drivers/migrate, one by one and without a stop. A new program needs
// drivers/redisson, with its tokens.
//
// A seal is a string, dsync:seal, with a TTL of 100 years. It holds against every
// program that acquires by SET with NX alone, and deletes and extends the key
// only if the value is its own. It does not hold against a program that deletes
// the key of any holder, or takes the lock over by a time in the value (SETNX
// with GETSET).
//
// What is said of nodes below is true of the one. The server must be neither in a
// cluster nor a replica. Behind an address with a fail-over, locks and seals are
// as safe as the replica's copy.
//
// # Nodes that were started
//
// A restarted node may have forgotten held locks. So every new connection begins
// with a look at the server, and a server does not count until it has been up for
// MaxTTL. New nodes therefore grant nothing for their first MaxTTL: Lock waits,
// and TryLock returns ErrUnavailable and names the node. A renewal puts the lease
// back on nodes without the value, so a lease survives a restart of all nodes,
// one after the other.
//
// A replica, a node of a cluster, or a second address of the same server is
// refused when a driver is opened, and never counts when found later.
//
// # On the nodes
//
// A lock is a string under its plain name. Its value is the identity of the hold,
// and of the attempt after the first. An attempt asks all nodes at once and is
// decided by the first majority of answers, so a slow, frozen or dead node costs
// nothing. A deletion goes to a node only after its answer to the request for the
// value. Where a broken connection leaves the answer unclear, the next connection
// settles the question.
//
// The deletion also publishes an empty message on the channel dsync_redlock:
// followed by the name. All waiters for a name listen on one node, determined by
// the name. With a message each waiting client asks this node, and the other
// nodes only after its grant, so waiters do not share out the votes. A client
// that had the lock lets the others ask first: see standBack. Every waiter also
// asks one node up to 7 times a second, because other libraries send no message
// and the locks of a dead client expire.
//
// # An example
//
// A and B lock "orders/42" with a TTL of 10 s, on the nodes N0, N1 and N2. The name determines N0 for waiters.
//
//	A locks:    SET orders/42 a3f1... NX PX 10000       to all. N0 and N1 answer OK: A holds the lock for 10 s from the time of sending.
//	B locks:    SET orders/42 77c0... NX PX 10000       to all. N0 and N1 answer nil: B is refused, and deletes its value where it
//	                                                    was set. B listens to dsync_redlock:orders/42 on N0.
//	A renews:   PEXPIREAT, where the value is a3f1...   on all, by renew.lua. A majority is enough.
//	A unlocks:  DEL and PUBLISH dsync_redlock:orders/42 on all, by release.lua, where the value is a3f1...
//	B is told:  SET orders/42 77c0...#2 NX PX 10000     to N0, and after its OK to N1 and N2: B holds the lock. The value is that of
//	                                                    an attempt, so remains of an earlier one cannot pass for it.
//
// docs/security.md lists the rights that a user of the nodes needs. Redis 6.2 or
// newer is needed, or Valkey.
package redlock

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

const (
	// minTTL leaves room for a round trip to a majority and the margin for the drift of clocks.
	minTTL = 20 * time.Millisecond

	// defaultMaxTTL is the longest TTL by default, and how long a newly started node does not count.
	defaultMaxTTL = 30 * time.Second

	// highestMaxTTL keeps sums of times far from the largest time.Duration.
	highestMaxTTL = 10 * 365 * 24 * time.Hour

	defaultNodeTimeout = 50 * time.Millisecond
	fewestNodes        = 3
	mostNodes          = 99
)

// Options of a Driver. The zero value is fine. MaxTTL and Durable have to be the same for all clients of the nodes.
type Options struct {
	// MaxTTL is the longest TTL of any client, other libraries' included; 30 s if
	// 0. A node started less than MaxTTL ago does not count.
	MaxTTL time.Duration

	// Durable says that no node ever forgets its answers (appendonly yes,
	// appendfsync always, and an honest disk), so a node counts at once.
	Durable bool

	// NodeTimeout is how long an undecided vote waits for the other nodes when a
	// majority has answered; 50 ms if 0. It is longer while nodes are slow.
	NodeTimeout time.Duration

	// AllowEviction accepts nodes configured to evict keys, and so held locks, when their memory is full.
	AllowEviction bool
}

// Driver is a driver.Driver on N independent Redis servers.
type Driver struct {
	nodes   []*node
	ears    []*ear // of the nodes
	quorum  int
	options Options

	life *redisdriver.Life[lease, *lease]

	mu     sync.Mutex
	runs   []string       // of the nodes' servers
	crowds map[string]int // by name: how many others waited at the driver's last release
}

var (
	_ driver.BatchRenewer       = (*Driver)(nil)
	_ driver.Inspector          = (*Driver)(nil)
	_ driver.ForceUnlocker      = (*Driver)(nil)
	_ driver.ContentionReporter = (*lease)(nil)
)

// New returns a Driver that uses the nodes, an odd number of 3 or more. Each node
// is given by the options of a client, with one address in InitAddress. The
// Driver makes the clients itself, at the first use of each node. An unfit node
// never counts.
func New(nodes []rueidis.ClientOption, o *Options) (*Driver, error) {
	if n := len(nodes); n < fewestNodes || n > mostNodes || n%2 == 0 {
		return nil, fmt.Errorf("redlock: %d nodes, want an odd number from %d to %d: a majority has to survive the loss of a node, "+
			"and an even number survives no more than the odd one below it", n, fewestNodes, mostNodes)
	}
	return newDriver(nodes, o)
}

func newDriver(nodes []rueidis.ClientOption, o *Options) (*Driver, error) {
	if o == nil {
		o = &Options{}
	}
	d := &Driver{
		quorum:  len(nodes)/2 + 1,
		options: *o,
		life:    redisdriver.NewLife[lease](),
		runs:    make([]string, len(nodes)),
		crowds:  make(map[string]int),
	}
	if err := d.options.check(); err != nil {
		return nil, err
	}
	var addresses []string
	for i, option := range nodes {
		if len(option.InitAddress) != 1 {
			return nil, fmt.Errorf("redlock: node %d has %d addresses, want 1", i, len(option.InitAddress))
		}
		if slices.Contains(addresses, option.InitAddress[0]) {
			return nil, fmt.Errorf("redlock: node %s is given twice", option.InitAddress[0])
		}
		addresses = append(addresses, option.InitAddress[0])
	}
	for i, option := range nodes {
		option = withDefaults(option)
		d.nodes = append(d.nodes, newNode(d, i, option))
		d.ears = append(d.ears, newEar(d, option))
	}
	for _, n := range d.nodes {
		d.life.Go(n.run) // until Close
	}
	return d, nil
}

// withDefaults sets what the driver demands of a client.
func withDefaults(o rueidis.ClientOption) rueidis.ClientOption {
	redisdial.Prepare(&o)
	o.ForceSingleClient = true
	if o.RingScaleEachConn == 0 {
		o.RingScaleEachConn = 4 // one batch at a time is under way; the default has 2^10 slots, of 300 bytes each
	}
	return o
}

// check refuses nonsense and fills in the defaults.
func (o *Options) check() error {
	switch {
	case o.MaxTTL < 0, o.MaxTTL > highestMaxTTL, o.MaxTTL > 0 && o.MaxTTL < minTTL:
		return fmt.Errorf("redlock: Options.MaxTTL is %v, want %v to %v", o.MaxTTL, minTTL, highestMaxTTL)
	case o.NodeTimeout < 0:
		return fmt.Errorf("redlock: Options.NodeTimeout is %v", o.NodeTimeout)
	}
	if o.MaxTTL == 0 {
		o.MaxTTL = defaultMaxTTL
	}
	if o.NodeTimeout == 0 {
		o.NodeTimeout = defaultNodeTimeout
	}
	return nil
}

// Info implements driver.Driver.
func (d *Driver) Info() driver.Info {
	name := "redlock"
	if d.single() {
		name = singleScheme
	}
	return driver.Info{Name: name, Order: driver.Unordered, Fencing: driver.None, MinTTL: minTTL, MaxTTL: d.options.MaxTTL, Late: redisdriver.Late,
		Permits: driver.Support{Why: "a majority of the nodes does not keep a limit"}}
}
