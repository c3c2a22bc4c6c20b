package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/go-dsync/dsync/driver"
)

const (
	tendEvery  = 250 * time.Millisecond
	quietFor   = time.Second      // a connection that was quiet for this long is probed
	hangsAfter = 2 * time.Second  // a connection that does not answer for this long is closed
	hangsLast  = 16 * time.Second // the same on a server that is slow to accept connections
	renewAfter = 2 * time.Second  // the minimum time between two renewals of all connections
)

// conns are the connections of a client that Open has made. gRPC notices a dead
// connection only after 13 s, because it must not ping servers more often than
// every 10 s. While requests are on their way, or callers wait for an event,
// conns probe each quiet connection with a cheap read. They close the
// connection if no byte arrives. The library then connects again and resumes
// its watches. Closing a connection loses no lock, because locks are attached
// to leases.
//
// An overloaded server is slow to accept connections too. After a slow
// connection attempt, conns wait longer before they close the next connection.
//
// An address may lead to different servers over time. A connection stays with
// its server, even if that server has no leader or is a learner. If there is
// only one address, conns then close the connection, and the next one may lead
// to another server.
type conns struct {
	driver    *Driver
	requests  atomic.Int64 // requests on their way
	expecting atomic.Int64 // callers that wait for events
	running   atomic.Bool

	mu      sync.Mutex
	all     map[*conn]struct{}
	since   time.Time     // when run began
	hangs   time.Duration // hangsAfter or more
	probed  time.Time     // when the last probes were sent
	renewed time.Time     // when all connections were closed
}

func newConns() *conns { return &conns{all: make(map[*conn]struct{}), hangs: hangsAfter} }

// conn is a connection, below TLS.
type conn struct {
	net.Conn
	conns *conns
	began time.Time
	heard atomic.Int64 // when the last bytes arrived, since began; 0 if none
	asked atomic.Int64 // when the first bytes after these were sent
}

func (c *conn) now() int64 { return max(1, int64(time.Since(c.began))) }

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		if now := c.now(); c.heard.Swap(now) == 0 {
			c.conns.accepted(time.Duration(now))
		}
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if c.asked.Load() <= c.heard.Load() {
		c.asked.Store(c.now() + 1)
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.conns.mu.Lock()
	delete(c.conns.all, c)
	c.conns.mu.Unlock()
	return c.Conn.Close()
}

// accepted records how long a server took to send its first bytes.
func (cs *conns) accepted(took time.Duration) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if took < quietFor {
		cs.hangs = hangsAfter
	} else {
		cs.hangs = min(2*cs.hangs, hangsLast)
	}
}

// begin counts a request until end.
func (cs *conns) begin() { cs.count(func(cs *conns) *atomic.Int64 { return &cs.requests }, 1) }
func (cs *conns) end()   { cs.count(func(cs *conns) *atomic.Int64 { return &cs.requests }, -1) }

// expectEvents counts a caller that waits for events until
// stopExpecting.
func (cs *conns) expectEvents() { cs.count(func(cs *conns) *atomic.Int64 { return &cs.expecting }, 1) }
func (cs *conns) stopExpecting() {
	cs.count(func(cs *conns) *atomic.Int64 { return &cs.expecting }, -1)
}

// count does nothing for a client that was passed to New.
func (cs *conns) count(what func(*conns) *atomic.Int64, n int64) {
	if cs == nil {
		return
	}
	if what(cs).Add(n); n > 0 && cs.running.CompareAndSwap(false, true) && !cs.driver.life.Go(cs.run) {
		cs.running.Store(false)
	}
}

func (cs *conns) busy() bool { return cs.requests.Load()+cs.expecting.Load() > 0 }

// run returns when there have been no requests or waiting callers for a while,
// or when the driver is closed.
func (cs *conns) run() {
	cs.mu.Lock()
	cs.since = time.Now() // bytes sent before this need no answer
	cs.mu.Unlock()
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for idle := time.Duration(0); ; idle += tendEvery {
		select {
		case <-tick.C:
		case <-cs.driver.life.Context().Done():
			return
		}
		if cs.tend(); cs.busy() {
			idle = 0
		}
		if idle < lingerFor { // a call pauses between its attempts
			continue
		}
		cs.running.Store(false)
		if !cs.busy() || !cs.running.CompareAndSwap(false, true) {
			return
		}
	}
}

// tend closes the connections that hang and probes quiet ones.
func (cs *conns) tend() {
	cs.mu.Lock()
	quiet, waits := false, cs.expecting.Load() > 0
	var hanging []*conn
	for c := range cs.all {
		heard, asked := c.heard.Load(), c.asked.Load()
		silent := min(time.Duration(c.now()-max(heard, asked)), time.Since(cs.since))
		switch {
		case asked > heard && silent >= cs.hangs:
			hanging = append(hanging, c)
		case (asked > heard || waits) && silent >= quietFor:
			quiet = true
		}
	}
	probe := quiet && time.Since(cs.probed) >= quietFor
	if probe {
		cs.probed = time.Now()
	}
	cs.mu.Unlock()
	for _, c := range hanging {
		_ = c.Close() // the library notices the closed connection
	}
	if probe {
		for range cs.driver.client.Endpoints() { // the library uses the endpoints in turn
			cs.driver.life.Go(cs.probe)
		}
	}
}

// probe sends a read that a server answers without the other servers. An error
// is also an answer.
func (cs *conns) probe() {
	d := cs.driver
	ctx, cancel := d.background(requestFor)
	defer cancel()
	_, err := pb.NewKVClient(d.client.ActiveConnection()).Range(clientv3.WithRequireLeader(ctx),
		&pb.RangeRequest{Key: []byte(d.options.Prefix + "\x00"), Serializable: true, CountOnly: true})
	cs.failed(err)
}

// failed closes all connections if a request has failed because the server has
// no leader or is a learner, and there is one address.
func (cs *conns) failed(err error) {
	if cs == nil || err == nil || !isLearner(err) && !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) {
		return
	}
	if len(cs.driver.client.Endpoints()) > 1 {
		return // the library takes the servers in turn
	}
	cs.mu.Lock()
	var all []*conn
	if time.Since(cs.renewed) >= renewAfter {
		cs.renewed = time.Now()
		for c := range cs.all {
			all = append(all, c)
		}
	}
	cs.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// tracked are credentials that make each connection a conn. A dialer could do
// that too, but it would bypass the proxies of the environment.
type tracked struct {
	credentials.TransportCredentials
	conns *conns
}

// credentials returns the credentials of a client's connections.
func (cs *conns) credentials(config *tls.Config) credentials.TransportCredentials {
	if config == nil {
		return tracked{insecure.NewCredentials(), cs}
	}
	return tracked{credentials.NewTLS(config), cs}
}

// ClientHandshake implements credentials.TransportCredentials.
func (t tracked) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	own := &conn{Conn: c, conns: t.conns, began: time.Now()}
	t.conns.mu.Lock()
	t.conns.all[own] = struct{}{}
	t.conns.mu.Unlock()
	secured, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, own)
	if err != nil {
		_ = own.Close()
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials.
func (t tracked) Clone() credentials.TransportCredentials {
	return tracked{t.TransportCredentials.Clone(), t.conns}
}

// forgetAfter is how long the driver remembers the id of a cluster that no
// longer answers. A cluster that was restored from a backup has a different id.
const forgetAfter = 15 * time.Second

// cluster checks whether all answers come from one cluster. Two clusters behind
// one client would each grant a lock.
type cluster struct {
	driver *Driver
	id     atomic.Uint64 // 0 at first
	heard  atomic.Int64  // when it last answered

	until atomic.Int64 // when the client may assume a single cluster again

	mu    sync.Mutex
	other uint64 // another cluster that has answered
}

// errClusters is the error for answers from two clusters.
var errClusters = errors.New("the servers belong to different clusters")

// check records the cluster that has sent an answer.
func (c *cluster) check(header *pb.ResponseHeader) error {
	id, now := header.GetClusterId(), c.driver.now()
	known := c.id.Load()
	switch {
	case id == 0: // the sender is not a complete etcd server
		return nil
	case id == known, known == 0 && c.id.CompareAndSwap(0, id):
		c.heard.Store(now)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.other = id
	err := c.error()
	if now-c.heard.Load() > int64(forgetAfter) {
		c.id.Store(id)
		c.heard.Store(now)
		c.other = known
	} else {
		c.until.Store(now + int64(forgetAfter))
	}
	// leases and revisions belong to the other cluster
	c.driver.life.Go(func() { c.driver.endAll(fmt.Errorf("%w: %w", driver.ErrSessionEnded, err)) })
	return err
}

// trouble returns the error about two clusters if both have answered recently.
func (c *cluster) trouble() error {
	if until := c.until.Load(); until == 0 || c.driver.now() >= until {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.error()
}

// error is called with mu held.
func (c *cluster) error() error { return differ(c.id.Load(), c.other) }

func differ(a, b uint64) error {
	return fmt.Errorf("%w: one has the id %x, another %x", errClusters, a, b)
}

// endAll ends all holds, which are lost with the given cause. Without a cause
// it notifies no holder.
func (d *Driver) endAll(cause error) {
	d.mu.Lock()
	fixed := d.fixed.Take()
	d.mu.Unlock()
	for _, s := range d.sessions.All() {
		s.Die(cause)
	}
	for _, h := range fixed {
		h.leaveToCleaner(true)
		h.lose(cause)
	}
}

// checkHosts returns an error if servers that answer belong to different
// clusters. Servers that do not answer in time are ignored.
func (d *Driver) checkHosts(ctx context.Context) error {
	hosts := d.client.Endpoints()
	if len(hosts) < 2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptFor)
	defer cancel()
	ids := make([]uint64, len(hosts))
	var all sync.WaitGroup
	for i, host := range hosts {
		all.Go(func() { // ends when ctx ends
			if answer, err := d.client.Status(ctx, host); err == nil {
				ids[i] = answer.Header.GetClusterId()
			}
		})
	}
	all.Wait()
	first := -1
	for i, id := range ids {
		switch {
		case id == 0:
		case first < 0:
			first = i
		case id != ids[first]:
			return fmt.Errorf("%w (%s and %s)", differ(ids[first], id), hosts[first], hosts[i])
		}
	}
	return nil
}
