// Package etcd is the etcd backend of dsync. It uses the same keys as etcdctl
// lock and the Go package concurrency of the etcd client, so all of these
// exclude each other and share one queue. Reads and writes use the keys of
// RWMutex in the client's recipes. The package registers the URL scheme "etcd":
//
//	etcd://user:password@host1:2379,host2:2379/prefix
//
// Use etcd 3.5.13 or later. 3.4 works, but before 3.4.31 a leader that was cut
// off may confirm leases that have ended.
//
// # Parameters
//
// Every backend also has ttl=, require=, fenced= and floor=. The path of the
// URL, after its first slash, is Options.Prefix.
//
//	order=client|fifo               the order of callers, see Options.FIFO
//	names=plain|flat                slashes of names, see Options.Flat
//	value=record|note               the value of a key, see Options.NoteAlone
//	roundup=true                    lengthen a TTL, see Options.RoundUp
//	password_file=file              the password, read for each token
//	tls=true                        encrypt, by TLS 1.2 or later
//	tls_ca=, tls_cert=, tls_key=    PEM files: authorities, own certificate
//	tls_server_name=name            the name in the server's certificate
//	tls_insecure_skip_verify=true   accept any certificate: only for testing
//
// # An example
//
// Each contender for a name puts a key, NAME/<lease>-<number>, attached to the
// lease of its client. The key with the smallest create revision holds the
// lock, and the revision is its token. Clients A and B lock "orders/42":
//
//	101  A puts orders/42/694d9a2c1f3e5a07-0, and holds the lock, token 101.
//	102  B puts orders/42/694d9a2c1f3e5a0b-0, and watches A's key.
//	103  A unlocks: its key is deleted. B holds the lock, token 103.
//
// # Beside other clients
//
// Other clients treat every key below a name as a contender, so their lock on
// "orders" waits for the locks on "orders/42". If such clients are used, either
// set Options.Flat everywhere, or never lock both a name and a name below it.
//
// An Election on "orders" is a lock on "orders" with the proposal as its note.
// With value=note, the key's value is only the note, so other etcd clients see
// the note as the leader's proposal.
//
//	             RWMutex.RLock  RWMutex.Lock  Mutex, etcdctl lock
//	Read         may share      excluded      excluded
//	Write        excluded       excluded      excluded
//	Exclusive    see below      excluded      excluded
//
// RLock only checks for keys of writers, so it is granted even while an
// exclusive lock is held. Use mode Write if other clients use RWMutex.
//
// docs/backends/etcd.md lists costs, limits, the least rights and the promises
// under each fault.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/lifecycle"
	sessions "github.com/go-dsync/dsync/internal/session"
)

const (
	ttlUnit     = time.Second
	usualMinTTL = 2 * time.Second // the minimum of a server with default settings
	maxTTL      = 100 * 365 * 24 * time.Hour

	// late covers the server's scan for leases that have ended, every half
	// second, and their removal through the log. After the election of a
	// leader, all leases start with a full TTL again.
	late = 2 * time.Second

	// requestFor is the timeout of a request. attemptFor is the shorter timeout
	// of an attempt that can simply be repeated. It prevents a frozen node from
	// delaying a request for long when another node can serve it.
	requestFor = 3 * time.Second
	attemptFor = time.Second
)

// Options of a Driver. The zero value uses the defaults.
type Options struct {
	// Prefix is prepended to each name as it is, without a slash in between.
	Prefix string

	// Flat writes slashes in names as %2F and percent signs as %25. Then no
	// lock is below another lock for clients that treat every key below a name
	// as a contender. All clients must use the same setting.
	Flat bool

	// NoteAlone makes the value of a hold's key consist only of the note of its
	// holder, as observers of an Election of package concurrency expect.
	// Inspect then reports the key as the owner, and does not know when the
	// lock was requested.
	NoteAlone bool

	// RoundUp accepts TTLs that etcd does not support, and uses the next longer
	// TTL that it does. The lease reports the TTL in use.
	RoundUp bool

	// NoTokens makes leases carry no fencing tokens.
	NoTokens bool

	// FIFO makes every caller queue separately, so that all callers of all
	// clients are served in order of arrival. Otherwise package dsync queues
	// one caller of each client at a time: clients are served in order, and so
	// are the callers of each client, at a fraction of the cost.
	FIFO bool

	// Password returns the password of the client's user. It replaces the
	// client's original password and is called for each token that the client
	// requests. While the server refuses the password, the backend counts as
	// unreachable. New sets client.Auth for it, so call New before the client
	// is in use.
	Password func(ctx context.Context) (string, error)
}

// Driver is a driver.Driver on etcd. It also implements
// driver.KeepAliveReporter, driver.Inspector, driver.ForceUnlocker,
// driver.Watcher, driver.Lister, driver.Limiter, driver.Latcher, driver.Leaver,
// move.Sealer, move.Unsealer, move.Marker and move.Unmarker.
type Driver struct {
	client      *clientv3.Client
	leases      pb.LeaseClient
	closeClient func() // nil if the client was passed to New
	options     Options
	minTTL      time.Duration
	host        string
	recorded    atomic.Bool // set when some name has a record
	// times inside the driver are nanoseconds since then, on the monotonic
	// clock
	epoch       time.Time
	numbers     numbers
	conns       *conns // nil if the client was passed to New
	cluster     cluster
	slow        atomic.Int32 // consecutive grants for which servers took too long
	onKeepAlive func(error)  // called after attempts to keep sessions alive; may be nil

	life    *lifecycle.Lifecycle // counts Acquires as calls
	asks    bound                // bounds callers' requests that end when Close begins
	looks   bound                // the same for requests that are repeated
	ends    bound                // requests to release a hold
	sender  *sender
	feeds   *feeds
	ghosts  *cleaner.Cleaner[*ghost]
	spare   *pool
	changes changes
	checks  *checker
	turns   [64]chan struct{} // by the hash of a name's key prefix
	seed    maphash.Seed

	sessions *sessions.Pool[*session]

	mu    sync.Mutex
	fixed holdList // the holds with separate leases
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
	_ driver.Lister            = (*Driver)(nil)
)

// New returns a Driver that uses the client and never closes it. New sends no
// request to the server. If KV, Lease and Watcher of the client are wrapped, as
// by package namespace, the Driver uses the wrappers.
//
// Info().MinTTL is the minimum TTL of a server with default settings. If the
// server's minimum is higher, Acquire refuses TTLs below it. If it is lower,
// only a Driver opened by URL makes use of that.
func New(client *clientv3.Client, o *Options) (*Driver, error) {
	if client == nil {
		return nil, errors.New("etcd: no client")
	}
	if o == nil {
		o = &Options{}
	}
	if strings.IndexByte(o.Prefix, 0) >= 0 {
		return nil, fmt.Errorf("etcd: Options.Prefix %q contains a NUL", o.Prefix)
	}
	d := &Driver{
		client:  client,
		leases:  pb.NewLeaseClient(client.ActiveConnection()),
		options: *o,
		minTTL:  usualMinTTL,
		epoch:   time.Now(),
		seed:    maphash.MakeSeed(),
		life:    lifecycle.New(),
	}
	if o.Password != nil {
		client.Auth = &login{Auth: client.Auth, password: o.Password}
	}
	d.asks.life, d.asks.time = d.life.Open(), requestFor
	d.looks.life, d.looks.time = d.life.Open(), attemptFor
	d.ends.life, d.ends.time = d.life.Context(), attemptFor
	d.host, _ = os.Hostname() // for people; a lock also works without it
	d.sender = newSender(d)
	d.feeds = newFeeds(d)
	d.ghosts = newCleaner(d)
	d.spare = newPool(d)
	d.sessions = sessions.NewPool(d.life, d.now, func(ttl time.Duration) *session { return newSession(d, ttl) })
	d.sessions.Idle = idleFor
	d.cluster.driver = d
	d.changes = changes{driver: d, inUse: make(chan struct{}, 1)}
	d.checks = &checker{driver: d}
	for i := range d.turns {
		d.turns[i] = make(chan struct{}, maxLooks)
	}
	return d, nil
}

// Info implements driver.Driver.
func (d *Driver) Info() driver.Info {
	i := driver.Info{
		Name:       "etcd",
		Order:      driver.FIFOByClient,
		Fencing:    driver.Durable,
		KeepsAlive: true,
		MinTTL:     d.minTTL,
		MaxTTL:     maxTTL,
		TTLUnit:    ttlUnit,
		Detect:     detect,
		Late:       late,
	}
	if d.options.FIFO {
		i.Order = driver.FIFO
	}
	if d.options.NoTokens {
		i.Fencing = driver.None
	}
	i.ReadWrite = driver.Support{Offered: true, Order: i.Order, Fencing: i.Fencing}
	i.Permits = driver.Support{Offered: true, Order: i.Order}
	if d.options.RoundUp {
		i.MinTTL, i.TTLUnit = 0, 0
	}
	return i
}

// OnKeepAlive implements driver.KeepAliveReporter.
func (d *Driver) OnKeepAlive(f func(err error)) { d.onKeepAlive = f }

// now is the time since d.epoch.
func (d *Driver) now() int64 { return int64(time.Since(d.epoch)) }

// seconds converts a TTL to etcd's unit.
func (d *Driver) seconds(ttl time.Duration) (int64, error) {
	if ttl <= 0 || ttl > maxTTL || ttl%ttlUnit != 0 && !d.options.RoundUp {
		return 0, fmt.Errorf("TTL %v is not in the range from %v to %v in steps of %v: %w", ttl, d.minTTL, maxTTL, ttlUnit, errors.ErrUnsupported)
	}
	return int64((ttl + ttlUnit - 1) / ttlUnit), nil
}
