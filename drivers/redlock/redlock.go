// Package redlock is the dsync backend on N independent Redis servers: the published Redlock algorithm, with the keys and values of redsync
// and redlock-py, so that programs of all three exclude each other on the same nodes. It registers the URL schemes "redlock" and
// "redis-string":
//
//	redlock://user:password@host1:6379,host2:6379,host3:6379/0
//	redis-string://user:password@host:6379/0
//
// Give redlock an odd number of nodes, 3 or more, with nothing in common: 5 survive the loss of 2. User, password and database hold for
// every node. For redis-string see below.
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
// Redlock saves work from being done twice. Redlock is not fit to keep data from being corrupted, for the algorithm trusts clocks and has
// no fencing:
//
//   - A stopped holder (a garbage collection, a frozen virtual machine) can write after its lease has ended. The resource cannot tell,
//     since there are no tokens; Lease.Token is 0, and require=fenced is refused.
//   - The nodes end holds by their own clocks. If the clocks of a majority jump, a second client may be granted a held lock. Up to a
//     minority may jump: 2 of 5. Clocks may differ in speed by 1 %.
//   - A running node may lose data (by FLUSHALL, eviction, or the promotion of a replica behind the same address) and so forget holds, and
//     nothing shows the loss. If a majority loses data within one TTL, there are two holders.
//   - Waiters have no order: require=fair and require=fifo are refused.
//
// The modes Read and Write are not offered, and require=rw is refused. Readers would exclude writers, since any two majorities meet. But
// the value of a lock is a string with one owner, so programs on redsync and redlock-py could neither read with others nor be kept out,
// and a resource would have no token by which to refuse a late reader.
//
// The mode Permit is not offered, and require=permits is refused: a majority does not keep a limit. Of three nodes with two places each, three
// holds get a majority: on the nodes 1 and 2, 2 and 3, 1 and 3.
//
// Latches are not offered: each count-down reaches a majority of the nodes, and another one each time, so no node knows the count.
//
// If this matters, take drivers/etcd, drivers/zk or drivers/pglock, where one log keeps the order and the tokens; where one Redis is
// enough, drivers/redisson has tokens, costs a fifth and loses a lock only when the server does.
//
// # One server: redis-string
//
// On one server the same keys and values are the plain string lock of many programs: bsm/redislock, redsync on one node, and programs with
// SET NX PX and a script of their own for the deletion, with a comparison before. The scheme redis-string, and [NewSingle], are there to
// move such programs elsewhere, by drivers/migrate, one by one and without a stop: the driver excludes them, and is a [move.Sealer] and
// [move.Unsealer], so names can leave it. A new program needs drivers/redisson, with its tokens.
//
// A seal is a string, dsync:seal, with a TTL of 100 years. The seal holds against every program that takes a lock by SET with NX alone, and
// deletes and extends the key only if the value is its own. The seal does not hold against a program that deletes the key of any holder, or
// reads a time out of the value and takes the lock over (SETNX with GETSET). A program that sets a TTL on keys without one does no harm.
//
// All that is said of nodes below is true of the one: after a restart it grants nothing for MaxTTL, unless durable=true says that no
// restart loses data. The server must not be part of a cluster, nor a replica; behind an address with a fail-over, locks and seals are as
// safe as the replica's copy, so a program left behind could get a name that has moved.
//
// # Nodes that were started
//
// A restarted node may have forgotten held locks. So every new connection begins with a look at the server, and a server does not count
// until it has been up for MaxTTL, as the algorithm demands. New nodes therefore grant nothing for their first MaxTTL: Lock waits, TryLock
// returns ErrUnavailable and names the node. A renewal puts the lease back on nodes without the value, so a lease survives a restart of all
// nodes, one after the other.
//
// A replica, a node of a cluster, or a second address of the same server is refused when a driver is opened, and never counts when found
// later.
//
// # On the nodes
//
// A lock is a string under its plain name; its value is the identity of the hold, and of the attempt after the first. The value is set by
// SET NX PX, and deleted and renewed by scripts with a comparison. An attempt asks all nodes at once and is decided by the first majority
// of answers, so a slow, frozen or dead node costs nothing. A deletion goes to a node only after the node's answer to the request for the
// value; where a broken connection leaves the answer unclear, the next connection settles the question.
//
// The deletion also publishes an empty message on the channel dsync_redlock:
// followed by the name. All waiters for a name listen on one node, determined
// by the name. With a message each waiting client asks this node, and the other
// nodes only after its grant. So waiters do not share out the votes, and a
// release costs a request of each waiting client. A client that had the lock
// lets the others ask first, as long as it has not heard as many releases as
// there were waiters. Every waiter also asks one node now and then, up to 7
// times a second, because other libraries send no message and the locks of a
// dead client expire.
//
// # An example
//
// A and B lock "orders/42" with a TTL of 10 s, on the nodes N0, N1 and N2. The name determines N0 for waiters.
//
//	A locks:    SET orders/42 a3f1... NX PX 10000       to all. N0 and N1 answer OK: A holds the lock for 10 s from the time of sending.
//	B locks:    SET orders/42 77c0... NX PX 10000       to all. N0 and N1 answer nil: B is refused. N2 may have answered OK, so N2 is asked
//	                                                    to delete B's value. B listens to dsync_redlock:orders/42 on N0.
//	A renews:   PEXPIREAT, where the value is a3f1...   on all, by renew.lua. A majority is enough.
//	A unlocks:  DEL and PUBLISH dsync_redlock:orders/42 on all, by release.lua, where the value is a3f1...
//	B is told:  SET orders/42 77c0...#2 NX PX 10000     to N0, and after its OK to N1 and N2: B holds the lock. The value is that of the third
//	                                                    attempt, so that remains of an earlier one cannot pass for it.
//
// A user of the nodes needs these rights, here for names with the prefix "lk:":
//
//	~lk:* &dsync_redlock:lk:* +hello +auth +ping +info +set +get +del +pexpireat +pttl +time +evalsha +eval +script|load +publish
//	+subscribe +client|id +client|kill +client|setname
//
// beside which select serves databases other than 0. Redis 6.2 or newer is needed, or Valkey.
package redlock

import (
	"context"
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
	// MaxTTL is the longest TTL of any client, other libraries' included; 30 s if 0. A node started less than MaxTTL ago does not count,
	// since a restart may have lost held locks.
	MaxTTL time.Duration

	// Durable says that no node ever forgets its answers (appendonly yes, appendfsync always, and an honest disk), so a node counts at once
	// after its start.
	Durable bool

	// NodeTimeout is how long an undecided vote waits for the other nodes when a majority has answered; 50 ms if 0. While a majority takes long
	// for its answers, a vote waits for longer.
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

	life   *redisdriver.Life[lease, *lease]
	timers sync.Pool

	mu     sync.Mutex
	runs   []string       // of the nodes' servers
	crowds map[string]int // by name: how many others waited at the driver's last release
}

var _ driver.Driver = (*Driver)(nil)

// New returns a Driver that uses the nodes, an odd number of 3 or more. Each node is given by the options of a client, with one address in
// InitAddress. The Driver makes the clients itself, since a client cannot be made while its node is down, and because the Driver has to
// know of every connection. New asks the nodes nothing: the checks of Open are made at the first use of the nodes, and an unfit node never
// counts.
func New(nodes []rueidis.ClientOption, o *Options) (*Driver, error) {
	if err := checkNumber(len(nodes)); err != nil {
		return nil, err
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

func checkNumber(nodes int) error {
	if nodes < fewestNodes || nodes > mostNodes || nodes%2 == 0 {
		return fmt.Errorf("redlock: %d nodes, want an odd number from %d to %d: a majority has to survive the loss of a node, "+
			"and an even number survives no more than the odd one below it", nodes, fewestNodes, mostNodes)
	}
	return nil
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

// now is the time on the driver's clock.
func (d *Driver) now() int64 { return d.life.Now() }

// sleep waits, and reports whether neither ctx nor the driver ended meanwhile.
func (d *Driver) sleep(ctx context.Context, wait time.Duration) bool {
	timer := d.timer(wait)
	defer d.putTimer(timer)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-d.life.Open().Done():
	}
	return false
}

// timer returns a timer that fires after wait. Most timers are stopped before, so timers are used again.
func (d *Driver) timer(wait time.Duration) *time.Timer {
	if t, ok := d.timers.Get().(*time.Timer); ok {
		t.Reset(wait)
		return t
	}
	return time.NewTimer(wait)
}

func (d *Driver) putTimer(t *time.Timer) {
	t.Stop()
	d.timers.Put(t)
}
