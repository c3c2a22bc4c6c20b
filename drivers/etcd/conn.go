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
	quietFor   = time.Second      // a line that has been quiet for this long is probed
	hangsAfter = 2 * time.Second  // a line that has not answered for this long is closed
	hangsLast  = 16 * time.Second // the same on a server that is slow to accept lines
	renewAfter = 2 * time.Second  // the minimum time between two renewals of all lines
)

// lines are the connections of a client that Open has created. gRPC notices a
// dead connection only after 13 s, because it must not ping servers more often
// than every 10 s. While requests are on their way, or callers wait for an
// event, lines probe each quiet connection with a cheap read. They close the
// connection if no byte arrives. The library then connects again and resumes
// its watches. Closing a connection loses no lock, because locks are attached
// to leases.
//
// An overloaded server is slow to accept connections too. After a slow
// connection attempt, lines wait longer before they close the next connection.
//
// An address may lead to different servers over time. A connection stays with
// its server, even if that server has no leader or is a learner. If there is
// only one address, lines then close the connection, and the next one may lead
// to another server.
type lines struct {
	driver  *Driver
	asking  atomic.Int64 // requests on their way
	waiting atomic.Int64 // callers that wait for events
	running atomic.Bool

	mu      sync.Mutex
	all     map[*line]struct{}
	since   time.Time     // when run began
	hangs   time.Duration // hangsAfter or more
	probed  time.Time     // when the last probes were sent
	renewed time.Time     // when all lines were closed
}

func newLines() *lines { return &lines{all: make(map[*line]struct{}), hangs: hangsAfter} }

// line is a connection, below TLS.
type line struct {
	net.Conn
	lines *lines
	began time.Time
	heard atomic.Int64 // when the last bytes arrived, since began; 0 if none
	asked atomic.Int64 // when the first bytes after these were sent
}

func (l *line) now() int64 { return max(1, int64(time.Since(l.began))) }

// Read implements net.Conn.
func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		if now := l.now(); l.heard.Swap(now) == 0 {
			l.lines.accepted(time.Duration(now))
		}
	}
	return n, err
}

// Write implements net.Conn.
func (l *line) Write(b []byte) (int, error) {
	if l.asked.Load() <= l.heard.Load() {
		l.asked.Store(l.now() + 1)
	}
	return l.Conn.Write(b)
}

// Close implements net.Conn.
func (l *line) Close() error {
	l.lines.mu.Lock()
	delete(l.lines.all, l)
	l.lines.mu.Unlock()
	return l.Conn.Close()
}

// accepted records how long a server took to send its first bytes.
func (ls *lines) accepted(took time.Duration) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if took < quietFor {
		ls.hangs = hangsAfter
	} else {
		ls.hangs = min(2*ls.hangs, hangsLast)
	}
}

// begin counts a request until end.
func (ls *lines) begin() { ls.count(func(ls *lines) *atomic.Int64 { return &ls.asking }, 1) }
func (ls *lines) end()   { ls.count(func(ls *lines) *atomic.Int64 { return &ls.asking }, -1) }

// wait counts a caller that waits for events until stop.
func (ls *lines) wait() { ls.count(func(ls *lines) *atomic.Int64 { return &ls.waiting }, 1) }
func (ls *lines) stop() { ls.count(func(ls *lines) *atomic.Int64 { return &ls.waiting }, -1) }

// count does nothing for a client that was passed to New.
func (ls *lines) count(what func(*lines) *atomic.Int64, n int64) {
	if ls == nil {
		return
	}
	if what(ls).Add(n); n > 0 && ls.running.CompareAndSwap(false, true) && !ls.driver.life.Go(ls.run) {
		ls.running.Store(false)
	}
}

func (ls *lines) busy() bool { return ls.asking.Load()+ls.waiting.Load() > 0 }

// run returns when there have been no requests or waiting callers for a while,
// or when the driver is closed.
func (ls *lines) run() {
	ls.mu.Lock()
	ls.since = time.Now() // bytes sent earlier need no answer
	ls.mu.Unlock()
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for idle := time.Duration(0); ; idle += tendEvery {
		select {
		case <-tick.C:
		case <-ls.driver.life.Context().Done():
			return
		}
		if ls.tend(); ls.busy() {
			idle = 0
		}
		if idle < lingerFor { // a call pauses between its attempts
			continue
		}
		ls.running.Store(false)
		if !ls.busy() || !ls.running.CompareAndSwap(false, true) {
			return
		}
	}
}

// tend closes lines that hang and probes quiet lines.
func (ls *lines) tend() {
	ls.mu.Lock()
	quiet, waits := false, ls.waiting.Load() > 0
	var hanging []*line
	for l := range ls.all {
		heard, asked := l.heard.Load(), l.asked.Load()
		silent := min(time.Duration(l.now()-max(heard, asked)), time.Since(ls.since))
		switch {
		case asked > heard && silent >= ls.hangs:
			hanging = append(hanging, l)
		case (asked > heard || waits) && silent >= quietFor:
			quiet = true
		}
	}
	probe := quiet && time.Since(ls.probed) >= quietFor
	if probe {
		ls.probed = time.Now()
	}
	ls.mu.Unlock()
	for _, l := range hanging {
		_ = l.Close() // the library notices
	}
	if probe {
		for range ls.driver.client.Endpoints() { // the library takes them in turn
			ls.driver.life.Go(ls.probe)
		}
	}
}

// probe sends a read that a server answers without the other servers. An error
// is also an answer.
func (ls *lines) probe() {
	d := ls.driver
	ctx, cancel := d.background(requestFor)
	defer cancel()
	_, err := pb.NewKVClient(d.client.ActiveConnection()).Range(clientv3.WithRequireLeader(ctx),
		&pb.RangeRequest{Key: []byte(d.options.Prefix + "\x00"), Serializable: true, CountOnly: true})
	ls.failed(err)
}

// failed closes all lines if a request has failed because the server has no
// leader or is a learner, and there is one address.
func (ls *lines) failed(err error) {
	if ls == nil || err == nil || !isLearner(err) && !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) {
		return
	}
	if len(ls.driver.client.Endpoints()) > 1 {
		return // the library takes the servers in turn
	}
	ls.mu.Lock()
	var all []*line
	if time.Since(ls.renewed) >= renewAfter {
		ls.renewed = time.Now()
		for l := range ls.all {
			all = append(all, l)
		}
	}
	ls.mu.Unlock()
	for _, l := range all {
		_ = l.Close()
	}
}

// tracked is a type of credentials that make each connection a line. A dialer
// could do that too, but it would bypass the proxies of the environment.
type tracked struct {
	credentials.TransportCredentials
	lines *lines
}

// credentials returns the credentials of a client's connections.
func (ls *lines) credentials(config *tls.Config) credentials.TransportCredentials {
	if config == nil {
		return tracked{insecure.NewCredentials(), ls}
	}
	return tracked{credentials.NewTLS(config), ls}
}

// ClientHandshake implements credentials.TransportCredentials.
func (t tracked) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	l := &line{Conn: c, lines: t.lines, began: time.Now()}
	t.lines.mu.Lock()
	t.lines.all[l] = struct{}{}
	t.lines.mu.Unlock()
	secured, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, l)
	if err != nil {
		_ = l.Close()
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials.
func (t tracked) Clone() credentials.TransportCredentials {
	return tracked{t.TransportCredentials.Clone(), t.lines}
}

// forgetAfter is how long the driver remembers the id of a cluster that no
// longer answers. A cluster that was restored from a backup has another id.
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
	case id == 0: // the sender is not an etcd server, or only a part of one
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
// clusters. Servers that do not answer in time are left out.
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
