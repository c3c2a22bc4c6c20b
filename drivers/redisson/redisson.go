// Package redisson is the Redis backend of dsync. Its locks are compatible with
// Java's Redisson, versions 3.19 to 4.7, key for key and message for message:
// RLock, RFairLock, RReadWriteLock, RPermitExpirableSemaphore and
// RCountDownLatch. Go and Java programs exclude each other on one Redis 6.2 or
// later, or Valkey. The package registers the URL scheme "redisson":
//
//	redisson://user:password@host:6379/0
//	redisson://host1:26379,host2:26379/0?mode=sentinel&master=mymaster
//	redisson://host1:7000,host2:7000?mode=cluster
//
// # Parameters
//
// Every backend also has ttl=, require=, fenced= and floor=.
//
//	mode=single|sentinel|cluster     one server by default
//	master=name                      with mode=sentinel: the primary's name
//	sentinel_user=name               with mode=sentinel
//	sentinel_password=password       with mode=sentinel
//	fair=true                        the fair lock, see Options.Fair
//	order=client|fifo                with fair=true, see Options.FIFO
//	write=true                       every Lock is a Write, see Options.Write
//	fence=own|redisson               where tokens come from, see Fence
//	tenant=name                      separate tokens, see Options.Tenant
//	pubsub=auto|plain|sharded|both   messages in a cluster, see PubSub
//	waitreplicas=0                   see Options.WaitReplicas
//	waitlimit=1s                     see Options.WaitLimit
//	evict=refuse|allow               see Options.AllowEviction
//	password_file=file               the password, read for each connection
//	tls=true                         encrypt, by TLS 1.2 or later
//	tls_ca=, tls_cert=, tls_key=     PEM files: authorities, own certificate
//	tls_server_name=name             the name in the server's certificate
//	tls_insecure_skip_verify=true    accept any certificate: only for testing
//
// # An example
//
// Client A locks "orders/42" for 30 s. redis-cli then shows:
//
//	HKEYS orders/42         a3f1c0de-52b7-4c11-9d0e-6b1f2a3c4d5e:1
//	PTTL orders/42          29987
//	GET dsync_fence:{42p}   1795406400123456, the token
//
// Client B is refused, subscribes to redisson_lock__channel:{orders/42}, and
// waits. A's release deletes the field of the hash and publishes a message,
// which wakes B.
//
// # Caveats
//
// Redis acknowledges before it replicates, so a failover can forget a lock
// that was granted a moment before. The holder learns of the loss at its next
// renewal. Options.WaitReplicas narrows this window, but does not close it. If
// the server's clock jumps, holds end early or late. Tokens rise in both cases.
//
// If Java programs use RReadWriteLock, use Write or write=true, because Java's
// read-write lock does not exclude a plain lock of the same name.
//
// A server that evicts keys is refused. Names in braces ("{x}") are refused
// too.
//
// docs/backends/redis.md lists costs, limits, the least rights and the promises
// under each fault. docs/redisson.md covers use together with Java.
package redisson

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

const (
	// minTTL is well above Redis's unit of time, a millisecond, and below any
	// TTL that is long enough for a round trip and a renewal.
	minTTL = 10 * time.Millisecond

	// maxTTL prevents overflow in sums of times.
	maxTTL = 100 * 365 * 24 * time.Hour

	late             = redisdriver.Late
	maxTokens        = 64 // in one grant
	defaultWaitLimit = time.Second
)

// PubSub is the kind of message that wakes waiters. All clients of a server,
// Java's included, must agree.
type PubSub string

const (
	// as Redisson does since 3.28: sharded in a cluster of Redis 7 or newer,
	// plain elsewhere
	PubSubAuto PubSub = ""
	// PUBLISH: Redisson up to 3.21, or with shardedSubscriptionMode OFF
	PubSubPlain   PubSub = "plain"
	PubSubSharded PubSub = "sharded" // SPUBLISH
	// publish and listen in both ways: in a Redis 7 cluster with Redisson
	// before 3.28
	PubSubBoth PubSub = "both"
)

// Fence is the source of fencing tokens.
type Fence string

const (
	// FenceOwn uses the server's clock in microseconds, or the last token plus
	// one if that is greater. docs/backends/redis.md explains when tokens
	// continue to rise after the server has lost data or its clock has stepped
	// back.
	FenceOwn Fence = ""

	// FenceRedisson keeps a count in the key of Redisson's fenced lock
	// (RFencedLock), which Java programs share. The key never expires.
	FenceRedisson Fence = "redisson"

	// FenceNone provides no tokens and stores nothing for them.
	FenceNone Fence = "none"
)

// Options of a Driver. The zero value is ready to use.
type Options struct {
	PubSub PubSub
	Fence  Fence

	// Fair selects Redisson's fair lock (RFairLock). dsync clients and Java
	// threads are granted it in the order in which their requests reached the
	// server. A client has one place in the queue for all its callers, and
	// passes the lock on from caller to caller for up to 100 ms. All programs
	// that use a name must use the fair lock. See docs/redisson.md for dead
	// waiters.
	Fair bool

	// FIFO, with Fair, gives each caller its own place in the queue. Each
	// grant then costs two requests and a message.
	FIFO bool

	// Write makes every Lock a Write, so that it excludes readers and writers
	// of Java's RReadWriteLock too. Write and Fair exclude each other.
	Write bool

	// WaitReplicas is the number of replicas that must confirm a grant or a
	// renewal before it counts. A grant with fewer confirmations within
	// WaitLimit (1 s if 0) is undone, and fails with ErrNotReplicated. With 0,
	// the default, a replica that takes over may lack the most recent locks.
	// docs/redisson.md compares both with Redisson's default.
	WaitReplicas int
	WaitLimit    time.Duration

	// Tenant is part of the keys of the sequences of FenceOwn, so that users
	// with access to one tenant's keys cannot change the tokens of another
	// tenant. All clients that use a name must have the same Tenant.
	Tenant string

	// AllowEviction accepts a server that may evict keys, including held locks,
	// when its memory is full.
	AllowEviction bool
}

// Driver is a driver.Driver on Redis. It implements driver.BatchRenewer,
// driver.Inspector, driver.RemovalWatcher, driver.Watcher, driver.Limiter,
// driver.Lister, driver.ForceUnlocker, driver.Leaver and driver.Latcher, and
// move.Sealer, move.Marker, move.Unsealer and move.Unmarker.
type Driver struct {
	client  rueidis.Client
	dialer  *redisdial.Dialer // for a client that the driver owns, which Close closes
	cluster bool
	options Options
	severed atomic.Int64 // when Close closed all connections, on the driver's clock; 0 before that
	marks   atomic.Bool  // Marked was called, so grants report whether the name is marked
	label   atomic.Int32 // label of the database (see redistopic.Label)

	sequences string    // the prefix of the keys of token sequences
	ops       sync.Pool // of *op
	checked   server    // what the driver knows about the server

	life   *redisdriver.Life[lease, *lease]
	direct direct
	sender *sender
	topics *redistopic.Listener
	ghosts *cleaner.Cleaner[*ghost]
	nodes  *topology // nil outside of a cluster
}

var (
	_ driver.Driver        = (*Driver)(nil)
	_ driver.BatchRenewer  = (*Driver)(nil)
	_ driver.Inspector     = (*Driver)(nil)
	_ driver.ForceUnlocker = (*Driver)(nil)
	_ driver.Lister        = (*Driver)(nil)
	_ driver.Limiter       = (*Driver)(nil)
	_ driver.Latcher       = (*Driver)(nil)
	_ move.Unsealer        = (*Driver)(nil)
	_ move.Unmarker        = (*Driver)(nil)
)

// New returns a Driver that uses the client, regardless of its topology (single
// server, sentinel or cluster), and never closes it. The first Acquire runs the
// checks of Open. Set a short ConnWriteTimeout and Dialer.KeepAlive (such as 3
// s and 1 s) to limit how long a dead connection is used. Client-side caching
// is not used.
func New(client rueidis.Client, o *Options) (*Driver, error) {
	if client == nil {
		return nil, fmt.Errorf("redisson: no client")
	}
	return newDriver(client, nil, o)
}

func newDriver(client rueidis.Client, dialer *redisdial.Dialer, o *Options) (*Driver, error) {
	if o == nil {
		o = &Options{}
	}
	d := &Driver{
		client:  client,
		dialer:  dialer,
		cluster: client.Mode() == rueidis.ClientModeCluster,
		options: *o,
		life:    redisdriver.NewLife[lease](),
	}
	if err := d.options.check(); err != nil {
		return nil, err
	}
	if d.sequences = fencePrefix + ":"; d.options.Tenant != "" {
		d.sequences += d.options.Tenant + ":"
	}
	d.direct.answered.Store(never)
	d.checked.looking = make(gate, 1)
	d.ops.New = func() any { return &op{done: make(chan struct{}, 1)} }
	d.sender = &sender{driver: d}
	d.ghosts = newCleaner(d)
	if d.cluster {
		d.nodes = &topology{driver: d, asking: make(gate, 1)}
	}
	d.topics = newTopics(d)
	return d, nil
}

// check rejects invalid options and fills in the defaults.
func (o *Options) check() error {
	switch o.PubSub {
	case PubSubAuto, PubSubPlain, PubSubSharded, PubSubBoth:
	default:
		return fmt.Errorf("redisson: invalid Options.PubSub: %q", o.PubSub)
	}
	switch o.Fence {
	case FenceOwn, FenceRedisson, FenceNone:
	default:
		return fmt.Errorf("redisson: invalid Options.Fence: %q", o.Fence)
	}
	if strings.ContainsAny(o.Tenant, "{}") || o.Tenant != "" && o.Fence != FenceOwn {
		return fmt.Errorf("redisson: Options.Tenant (tenant=) is %q: a tenant has no braces, and needs the tokens of FenceOwn", o.Tenant)
	}
	if o.Fair && o.Write {
		return fmt.Errorf("redisson: Options.Fair (fair=true) and Options.Write (write=true) exclude each other: %w", errors.ErrUnsupported)
	}
	if o.FIFO && !o.Fair {
		return errors.New("redisson: Options.FIFO (order=fifo) needs Options.Fair (fair=true)")
	}
	if o.WaitReplicas < 0 || o.WaitLimit < 0 {
		return fmt.Errorf("redisson: Options.WaitReplicas is %d and Options.WaitLimit is %v, want 0 or more", o.WaitReplicas, o.WaitLimit)
	}
	if o.WaitLimit == 0 {
		o.WaitLimit = defaultWaitLimit
	}
	return nil
}

// Info implements driver.Driver.
func (d *Driver) Info() driver.Info {
	fencing := driver.Volatile
	if d.options.Fence == FenceNone {
		fencing = driver.None
	}
	order := driver.Unordered
	switch {
	case d.options.FIFO:
		order = driver.FIFO
	case d.options.Fair:
		order = driver.FIFOByClient
	}
	return driver.Info{Name: "redisson", Order: order, Fencing: fencing, MinTTL: minTTL, MaxTTL: maxTTL, Late: late,
		ReadWrite: driver.Support{Offered: true, Order: driver.Unordered, Fencing: fencing},
		Permits:   driver.Support{Offered: true, Order: driver.Unordered}}
}

// tokenKey returns the key of the sequence of tokens of a name, or "".
func (d *Driver) tokenKey(name string) string {
	switch d.options.Fence {
	case FenceOwn:
		return d.sequenceOf(name)
	case FenceRedisson:
		return prefixName(tokenPrefix, name)
	}
	return ""
}
