// Package redlock is the dsync backend on a majority of independent Redis
// servers: the published Redlock algorithm, with the keys and values of redsync
// and redlock-py. Programs of all three exclude each other on the same nodes.
// The package registers the URL schemes "redlock" and "redis-string":
//
//	redlock://user:password@host1:6379,host2:6379,host3:6379/0
//	redis-string://user:password@host:6379/0
//
// Use an odd number of independent nodes, 3 or more, with Redis 6.2 or later,
// or Valkey. User, password and database must be the same on every node.
//
// The scheme redis-string and [NewSingle] lock on one server, in the form of
// bsm/redislock, redsync with one node and SET NX PX. They exclude such
// programs and can move their names to another backend with drivers/migrate.
// New programs should use drivers/redisson.
//
// # Parameters
//
// Every backend also has ttl= and require=.
//
//	maxttl=30s                      the longest TTL of any client
//	durable=true                    nodes keep their data at a restart
//	nodetimeout=50ms                how long a vote waits for slow nodes
//	evict=refuse|allow              see Options.AllowEviction
//	password_file=file              the password, read for each connection
//	tls=true                        encrypt, by TLS 1.2 or later
//	tls_ca=, tls_cert=, tls_key=    PEM files: authorities, own certificate
//	tls_server_name=name            the name in the server's certificate
//	tls_insecure_skip_verify=true   accept any certificate: only for testing
//
// # An example
//
// Clients A and B lock "orders/42" with a TTL of 10 s on three nodes:
//
//	A locks    SET orders/42 a3f1... NX PX 10000 on all nodes. Two answer OK:
//	           A holds the lock for 10 s from the time of sending.
//	B locks    SET orders/42 77c0... NX PX 10000. Two answer nil, so B is
//	           refused. It deletes its value from the third, and listens.
//	A unlocks  DEL and PUBLISH dsync_redlock:orders/42 on all nodes.
//	B locks    SET orders/42 77c0...#2 NX PX 10000
//
// # Caveats
//
// Redlock prevents work from being done twice. It does not protect data,
// because it trusts the clocks of its nodes and has no fencing tokens:
// Lease.Token is
// 0. There are two holders if a majority of nodes loses its data, or if a
// majority of clocks jumps, within one TTL. Waiters have no order. Read, Write,
// Permits and latches are not offered.
//
// A restarted node may have forgotten locks, so it does not count until it has
// been up for Options.MaxTTL. New nodes grant nothing for that time.
//
// docs/backends/redlock.md lists costs, the least rights and the promises under
// each fault.
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
	// minTTL leaves room for a round trip to a majority and the margin for the
	// drift of clocks.
	minTTL = 20 * time.Millisecond

	// defaultMaxTTL is the longest TTL by default. A newly started node does
	// not count for this time.
	defaultMaxTTL = 30 * time.Second

	// highestMaxTTL prevents overflow in sums of times.
	highestMaxTTL = 10 * 365 * 24 * time.Hour

	defaultNodeTimeout = 50 * time.Millisecond
	fewestNodes        = 3
	mostNodes          = 99
)

// Options of a Driver. The zero value is ready to use. MaxTTL and Durable must
// be the same for all clients of the nodes.
type Options struct {
	// MaxTTL is the longest TTL of any client, including clients of other
	// libraries. The default is 30 s. A node started less than MaxTTL ago does
	// not count.
	MaxTTL time.Duration

	// Durable promises that no node ever forgets its answers (appendonly yes,
	// appendfsync always, and an honest disk), so a node counts as soon as it
	// has started.
	Durable bool

	// NodeTimeout is how long an undecided vote waits for the other nodes after
	// a majority has answered; 50 ms if 0. The wait is longer while nodes are
	// slow.
	NodeTimeout time.Duration

	// AllowEviction accepts nodes that may evict keys, including held locks,
	// when their memory is full.
	AllowEviction bool
}

// Driver is a driver.Driver on N independent Redis servers.
type Driver struct {
	nodes   []*node
	ears    []*ear // listeners, one per node
	quorum  int
	options Options

	life *redisdriver.Life[lease, *lease]

	mu   sync.Mutex
	runs []string // ids of the nodes' servers
	// by name: the number of other clients that waited at the driver's last
	// release
	crowds map[string]int
}

var (
	_ driver.BatchRenewer       = (*Driver)(nil)
	_ driver.Inspector          = (*Driver)(nil)
	_ driver.ForceUnlocker      = (*Driver)(nil)
	_ driver.ContentionReporter = (*lease)(nil)
)

// New returns a Driver that uses the nodes, an odd number of 3 or more. Each
// node is given by the options of a client, with one address in InitAddress.
// The Driver creates the clients itself, at the first use of each node. An
// unfit node never counts.
func New(nodes []rueidis.ClientOption, o *Options) (*Driver, error) {
	if n := len(nodes); n < fewestNodes || n > mostNodes || n%2 == 0 {
		return nil, fmt.Errorf("redlock: %d nodes, want an odd number from %d to %d: a majority must survive the loss of a node, "+
			"and an even number survives no more than the odd number below it", n, fewestNodes, mostNodes)
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
		d.life.Go(n.run) // runs until Close
	}
	return d, nil
}

// withDefaults sets the driver's requirements for a client.
func withDefaults(o rueidis.ClientOption) rueidis.ClientOption {
	redisdial.Prepare(&o)
	o.ForceSingleClient = true
	if o.RingScaleEachConn == 0 {
		// one batch at a time is in progress; the default has 2^10 slots, of
		// 300 bytes each
		o.RingScaleEachConn = 4
	}
	return o
}

// check rejects invalid options and fills in the defaults.
func (o *Options) check() error {
	switch {
	case o.MaxTTL < 0, o.MaxTTL > highestMaxTTL, o.MaxTTL > 0 && o.MaxTTL < minTTL:
		return fmt.Errorf("redlock: Options.MaxTTL is %v, want %v to %v", o.MaxTTL, minTTL, highestMaxTTL)
	case o.NodeTimeout < 0:
		return fmt.Errorf("redlock: Options.NodeTimeout is %v, want 0 or more", o.NodeTimeout)
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
