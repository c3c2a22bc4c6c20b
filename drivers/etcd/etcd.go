// Package etcd is the etcd backend of dsync. It locks as `etcdctl lock` and the Go package concurrency of the etcd client do, key for
// key, so all three exclude each other and queue behind each other, and reads and writes as RWMutex of the client's recipes does. The
// package registers the URL scheme "etcd".
//
//	etcd://user:password@host1:2379,host2:2379/prefix
//
// Each contender for a lock puts a key below its name, NAME/<lease>-<number>, on a lease. The key with the smallest create revision has the
// lock, and the others wait in the order of their create revisions. The key of a Read is NAME/+read-<lease>-<number>, and has the lock when
// all older keys are Reads; the key of a Write is NAME/write-<lease>-<number>; for permits see below. Locks with renewal share one lease of each client and TTL,
// and the driver keeps this lease alive; a lock with an expiry of its own has a lease of its own. etcd counts TTLs in whole seconds, from
// a floor that follows from its election timeout, 2 s by default.
//
// One caller of a client asks for a name at a time, and the others wait in the process (Info.Order is driver.FIFOByClient). With
// Options.FIFO, order=fifo in the URL, each caller has a key, and all callers of all clients are served in the order of these.
//
// Use etcd 3.5.13 or newer. 3.4 works, but there a leader that was cut off from the others may confirm leases that have ended (before
// 3.4.31), and watches may stay silent, which costs a waiter up to 5 seconds. Older versions are refused.
//
// # Parameters
//
// Beside ttl=, require= and fenced=, which every backend has. The path of the URL, after its first slash, is Options.Prefix.
//
//	order=client|fifo                all callers of all clients in their order, see Options.FIFO
//	names=plain|flat                 slashes of names as they are, or as %2F, see Options.Flat
//	value=record|note                what the key says of its holder, see Options.NoteAlone
//	password_file=file               the password of the URL's user, read again for each token: see Options.Password
//	roundup=true                     TTLs that etcd cannot count become longer, see Options.RoundUp
//	tls=true                         encrypt, by TLS 1.2 or newer, and check the server's certificate
//	tls_ca=file                      the authorities for that, as PEM; those of the system by default
//	tls_cert=file, tls_key=file      the client's own certificate, as PEM, read anew for each connection
//	tls_server_name=name             the name that the server's certificate has to have, if it is not that of the host
//	tls_insecure_skip_verify=true    accept any certificate: for trials alone
//
// # An example
//
// Clients A and B, whose leases are 694d9a2c1f3e5a07 and 694d9a2c1f3e5a0b, lock "orders/42". Two callers of A come first, and one of B
// after them. The server is at revision 100.
//
//	101  A's first caller puts orders/42/694d9a2c1f3e5a07-0. No key below orders/42/ is older: it holds the lock, with token 101.
//	102  B puts orders/42/694d9a2c1f3e5a0b-0, and is told in the same answer that A's key is before it. It waits for its deletion.
//	103  A's first caller unlocks while the second waits in the process. The key is put again, with the second as its owner and
//	     "pass": 1. A's second caller holds the lock now, with token 103. B is told, and goes on waiting.
//	104  A's second caller unlocks, and nobody of A waits: the key is deleted. B is told that nothing is before its key any more, as of
//	     revision 104, and holds the lock with token 104, without having asked again.
//	105  B unlocks: its key is deleted.
//
// # Servers and connections
//
// All servers of a URL belong to one cluster. Open compares the ids of those that
// answer, and the driver compares the ids in all later answers. If they differ,
// calls fail with an error that names both ids, and all holds of the client end.
// A learner refuses locks, so requests go to another server at once.
//
// A client that Open has made closes a connection on which an answer is missing
// for 2 seconds, even to a probe, and connects again. So a connection that hangs
// delays a Lock, a waiter or a Close by less than 5 seconds where new connections
// work, whatever the TTL is. If the URL has one address and its server has lost
// the leader or is a learner, the client connects again too, because the address
// may lead to another server by then. A client that was handed to New keeps the
// connections that its user has configured.
//
// # Beside etcdctl lock and package concurrency
//
// Among clients of dsync all names are distinct locks, "orders" and "orders/42" too. The others take every key below a name for a
// contender, so for them a lock on "orders" has to wait for those on "orders/42". Where they are used too, either do not lock a name and
// one below it, or set Options.Flat (names=flat) everywhere, which writes the slashes of names as %2F. The same holds for a name whose limit of
// permits SetLimit has set: a Mutex on the name above would wait for ever.
//
// # Beside package concurrency's Election and etcdctl elect
//
// An Election on "orders" is a lock on "orders" whose key has the proposal of the leader as its value, so all of them elect one leader. Inspect
// and Observe of package dsync show the proposal as the note. With value=note a key of this driver has the note of its holder as its value, and
// nothing else: Election.Observe, Election.Leader and `etcdctl elect --listen` then show the note of a leader of dsync, where they otherwise
// show the record that Inspect reads.
//
// # Beside RWMutex
//
// The recipes' RWMutex has the keys NAME/read/<time> and NAME/write/<time>. Who waits for whom, whoever comes first:
//
//	             RWMutex.RLock      RWMutex.Lock   Mutex, etcdctl lock
//	Read         nobody             both           both
//	Write        both               both           both
//	Exclusive    this driver alone  both           both
//
// RLock looks for the keys of writers alone, and goes on beside an exclusive lock, of this driver or a Mutex: use the mode Write where
// others use RWMutex.
//
// A client of RWMutex overlooks a key before its own that is put again while it waits. So the key of a Read or Write is not put again while
// a younger key of RWMutex, or of a lock with a name below NAME/read or NAME/write, is there: to extend a lease with an expiry of its own
// then fails with errors.ErrUnsupported and changes nothing, and a Write is released where it would be passed on inside the process.
// Exclusive locks, seals and marks do not heed such keys: no client of RWMutex should wait for a name in a migration to another backend.
//
// # Permits
//
// The key of a hold of 2 of 10 permits is NAME/permits-2of10-<lease>-<number>. Keys of permits are in the queue of all others: one has its
// permits when all older keys are of permits, and these and its own together are no more than the limit. So nobody is overtaken, a name that
// is used for permits and for locks is used for one of them at a time, and other clients take the key of a permit for that of a lock.
//
// What SetLimit sets is the value of NAME\x00limit, for good. Otherwise the limit is the one in the oldest key, and is forgotten with the last.
// A call that leaves the limit open where no SetLimit made one puts its key twice, the second time with the limit that it has found.
//
// A request for permits costs what one for a lock does. One that has to wait looks when its watches have begun, and once when enough permits were
// given back, however many others wait; of those whose turn it is not, none asks. All who wait look after a SetLimit. Requests and
// looks read the keys of the name, so each takes the longer the more holds there are: with 1,000 of them, milliseconds.
//
// # Latches
//
// A latch is the key PREFIX\x00latch\x00NAME, without a lease. Its value is the count as it was set. Each count-down puts the key again as it is, so
// the count is the value less the puts since the first, which the server counts as the version of the key; the last one deletes the key. The
// keys PREFIX\x00change\x00NAME\x00ID have the ids of changes, on a lease of two hours, which each client takes once an hour. No key of a latch
// is below a name, so none is in the way of a lock of any client.
//
// # Seals and marks
//
// A seal is the key of its holder without a lease, so all contenders wait behind the key, and a record beside the contenders, NAME\x00seal.
// A mark is NAME\x00mark. NAME\x00base is the number that is added to revisions to make tokens, and stays when the mark is taken off.
// Requests for the lock read all these keys, so a user needs the right to read all keys that begin with NAME, and not only NAME/.
// Other clients fence with bare revisions, which are below the tokens of a marked name. So a name that has moved away comes back only if
// revisions have passed its tokens meanwhile, or if nobody wants tokens.
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
	usualMinTTL = 2 * time.Second // of a server with default settings
	maxTTL      = 100 * 365 * 24 * time.Hour

	// late covers the server's scan for leases that have ended, every half second, and their removal through the log. After the
	// election of a leader all leases last anew, for a whole TTL.
	late = 2 * time.Second

	// These bound a request, and a request that can simply be repeated: a frozen node must not hold up for long what another node can
	// serve.
	requestFor = 3 * time.Second
	attemptFor = time.Second
)

// Options of a Driver. The zero value is fine.
type Options struct {
	// Prefix is put before each name as it stands, without a slash in between.
	Prefix string

	// Flat writes the slashes of names as %2F, and percent signs as %25, so that no lock is below another one for clients that take
	// every key below a name for a contender. All clients have to agree.
	Flat bool

	// NoteAlone has the key of a hold say the note of its holder and nothing else, as observers of an Election of package concurrency expect
	// it. Inspect then names the owner by the key, and knows no time.
	NoteAlone bool

	// RoundUp accepts TTLs that etcd cannot keep, and takes the next longer TTL that etcd can. The lease says which.
	RoundUp bool

	// NoTokens says that leases carry no fencing tokens.
	NoTokens bool

	// FIFO has every caller ask for itself, so that all callers of all clients are served in the order in which they came. Otherwise
	// package dsync asks for one caller of each client at a time: clients are served in that order, and the callers of a client in
	// theirs, at a fraction of the cost.
	FIFO bool

	// Password returns the password of the client's user, instead of the
	// password that the client was made with. It is called for each token that
	// the client requests. While the server refuses the password, the backend
	// counts as out of reach. New sets client.Auth for it, so call New before
	// the client is in use.
	Password func(ctx context.Context) (string, error)
}

// Driver is a driver.Driver on etcd. It implements driver.KeepAliveReporter, driver.Inspector, driver.ForceUnlocker, driver.Watcher,
// driver.Lister, driver.Limiter, driver.Latcher, driver.Leaver, move.Sealer, move.Unsealer, move.Marker and move.Unmarker too.
type Driver struct {
	client      *clientv3.Client
	leases      pb.LeaseClient
	closeClient func() // nil if the client was handed in
	options     Options
	minTTL      time.Duration
	host        string
	recorded    atomic.Bool // some name has a record
	epoch       time.Time   // times inside the driver are nanoseconds since then, on the monotonic clock
	numbers     numbers
	lines       *lines // nil if the client was handed in
	cluster     cluster
	slow        atomic.Int32 // grants in a row that servers took too long for
	onKeepAlive func(error)  // is told of attempts to keep sessions alive; nil if nobody asked

	life    *lifecycle.Lifecycle // counts Acquires as calls
	asks    bound                // requests of callers that end when Close begins
	looks   bound                // the same, of those that are repeated
	ends    bound                // requests to release a hold
	sender  *sender
	feeds   *feeds
	ghosts  *cleaner.Cleaner[*ghost]
	spare   *pool
	changes changes
	checks  *checker
	turns   [64]chan struct{} // by the hash of what the keys of a name begin with
	seed    maphash.Seed

	sessions *sessions.Pool[*session]

	mu    sync.Mutex
	fixed holdList // the holds with a lease of their own
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
	_ driver.Lister            = (*Driver)(nil)
)

// New returns a Driver that uses the client and never closes it. New asks the server nothing. If KV, Lease and Watcher of the client are
// wrapped, as by package namespace, the Driver uses the wrappers.
//
// Info().MinTTL is the floor of a server with default settings. If the server's floor is higher, Acquire refuses TTLs below the server's;
// if it is lower, only a Driver opened by URL makes use of that.
func New(client *clientv3.Client, o *Options) (*Driver, error) {
	if client == nil {
		return nil, errors.New("etcd: no client")
	}
	if o == nil {
		o = &Options{}
	}
	if strings.IndexByte(o.Prefix, 0) >= 0 {
		return nil, fmt.Errorf("etcd: Options.Prefix %q has a NUL", o.Prefix)
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
	d.host, _ = os.Hostname() // for people; a lock without it is as good
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

// seconds returns a TTL as etcd counts it.
func (d *Driver) seconds(ttl time.Duration) (int64, error) {
	if ttl <= 0 || ttl > maxTTL || ttl%ttlUnit != 0 && !d.options.RoundUp {
		return 0, fmt.Errorf("TTL %v is not one of %v to %v in steps of %v: %w", ttl, d.minTTL, maxTTL, ttlUnit, errors.ErrUnsupported)
	}
	return int64((ttl + ttlUnit - 1) / ttlUnit), nil
}
