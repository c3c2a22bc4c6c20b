package redisson

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

const (
	askNodes    = 2 * time.Second // how long nodes may take to report their slots
	topologyAge = 30 * time.Second
)

// topology records which node of a cluster has which slots. It may be out of
// date, because it is used only to separate requests to different nodes and to
// reach one node.
type topology struct {
	driver *Driver
	asking gate

	mu     sync.Mutex
	ranges []slotRange // by last slot
	read   time.Time   // zero if the ranges are known to be outdated
}

type slotRange struct {
	first, last uint16
	node        string
}

// owner returns the address of the node that has a slot, or "" if the node is
// not known.
func (t *topology) owner(slot uint16) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearchFunc(t.ranges, slot, func(r slotRange, slot uint16) int { return cmp.Compare(r.last, slot) })
	if i < len(t.ranges) && t.ranges[i].first <= slot {
		return t.ranges[i].node
	}
	return ""
}

func (t *topology) client(ctx context.Context, slot uint16) (rueidis.Client, error) {
	if err := t.refresh(ctx, topologyAge); err != nil {
		return nil, err
	}
	if node := t.driver.client.Nodes()[t.owner(slot)]; node != nil {
		return node, nil
	}
	t.Expire()
	return nil, fmt.Errorf("%w: slot %d of the cluster has no known node", driver.ErrUnavailable, slot)
}

// primaries returns a client of each node that has slots now.
func (t *topology) primaries(ctx context.Context) (clients []rueidis.Client, err error) {
	if err := t.refresh(ctx, 0); err != nil {
		return nil, err
	}
	nodes := t.driver.client.Nodes()
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := make(map[string]bool)
	for _, r := range t.ranges {
		if seen[r.node] {
			continue
		}
		seen[r.node] = true
		if nodes[r.node] == nil {
			return nil, fmt.Errorf("%w: slot %d of the cluster has no known node", driver.ErrUnavailable, r.first)
		}
		clients = append(clients, nodes[r.node])
	}
	return clients, nil
}

// Expire makes the next refresh query the nodes.
func (t *topology) Expire() {
	t.mu.Lock()
	t.read = time.Time{}
	t.mu.Unlock()
}

func (t *topology) fresh(age time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.read.IsZero() && time.Since(t.read) < age
}

// refresh queries all nodes and takes the first answer, unless the last answer
// is younger than age.
func (t *topology) refresh(ctx context.Context, age time.Duration) error {
	return t.asking.pass(ctx, func() bool { return t.fresh(age) }, func() error { return t.query(ctx) })
}

func (t *topology) query(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askNodes)
	defer cancel()
	last := error(rueidis.ErrNoSlot)
	for err := range t.driver.eachNode(ctx, t.readSlots) {
		if last = err; err == nil {
			return nil
		}
	}
	return fmt.Errorf("%w: cluster topology: %w", driver.ErrUnavailable, last)
}

// eachNode calls f for each node of a cluster, concurrently, and yields the
// errors. f returns soon after the end of ctx.
func (d *Driver) eachNode(ctx context.Context, f func(ctx context.Context, address string, node rueidis.Client) error) iter.Seq[error] {
	return func(yield func(error) bool) {
		nodes := d.client.Nodes()
		errs := make(chan error, len(nodes))
		for address, node := range nodes {
			if !d.life.Go(func() {
				err := f(ctx, address, node)
				if err != nil {
					err = fmt.Errorf("node %s: %w", address, err)
				}
				errs <- err
			}) {
				errs <- driver.ErrClosed
			}
		}
		for range nodes {
			if !yield(<-errs) {
				return
			}
		}
	}
}

// readSlots queries the node at address. The first answer counts.
func (t *topology) readSlots(ctx context.Context, address string, node rueidis.Client) error {
	entries, err := t.driver.doMulti(ctx, node, []rueidis.Completed{node.B().ClusterSlots().Build()})[0].ToArray()
	if err != nil {
		return err
	}
	var ranges []slotRange
	for _, entry := range entries {
		r, err := readRange(address, entry)
		if err != nil {
			return err
		}
		ranges = append(ranges, r)
	}
	if len(ranges) == 0 {
		return errors.New("no slot is assigned")
	}
	slices.SortFunc(ranges, func(a, b slotRange) int { return cmp.Compare(a.last, b.last) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() == nil {
		t.ranges, t.read = ranges, time.Now()
	}
	return nil
}

func readRange(address string, entry rueidis.RedisMessage) (r slotRange, err error) {
	fields, err := entry.ToArray()
	if err != nil || len(fields) < 3 {
		return r, redisdriver.ErrAnswer
	}
	primary, err := fields[2].ToArray()
	if err != nil || len(primary) < 2 {
		return r, redisdriver.ErrAnswer
	}
	first, err1 := fields[0].ToInt64()
	last, err2 := fields[1].ToInt64()
	port, err3 := primary[1].ToInt64()
	if err := errors.Join(err1, err2, err3); err != nil {
		return r, err
	}
	host, _ := primary[0].ToString()
	switch host {
	case "": // a node that does not know its own address has the address at which it was queried
		host, _, _ = net.SplitHostPort(address)
	case "?":
		return slotRange{first: uint16(first), last: uint16(last)}, nil
	}
	return slotRange{uint16(first), uint16(last), net.JoinHostPort(host, strconv.FormatInt(port, 10))}, nil
}

// newTopics returns the listener for the channels of names with waiters.
func newTopics(d *Driver) *redistopic.Listener {
	o := redistopic.Options{
		Life: d.life.Lifecycle,
		Kinds: func() (plain, sharded bool) {
			return d.checked.pubSub != PubSubSharded, d.checked.pubSub != PubSubPlain
		},
		Connect: d.connectTo,
		Label:   func() int { return int(d.label.Load()) },
	}
	if d.cluster {
		o.Shards = d.nodes
	}
	return redistopic.New(o)
}

// connectTo connects to a node for subscriptions.
func (d *Driver) connectTo(node string) (redistopic.Conn, bool) {
	client := d.client
	if node != "" {
		if client = client.Nodes()[node]; client == nil {
			return redistopic.Conn{}, false
		}
	}
	var stale func() bool
	if client.Mode() == rueidis.ClientModeSentinel {
		used := addresses(client)
		stale = func() bool { return addresses(client) != used }
	}
	c, _ := client.Dedicate()
	return redistopic.Conn{DedicatedClient: c, End: c.Close, Stale: stale}, true
}

// addresses returns the servers that a client of sentinels uses: the primary,
// and a replica if the program's client sends it some requests.
func addresses(client rueidis.Client) string {
	return strings.Join(slices.Sorted(maps.Keys(client.Nodes())), " ")
}

// Refresh and Node implement redistopic.Shards.
func (t *topology) Refresh(ctx context.Context) error { return t.refresh(ctx, topologyAge) }
func (t *topology) Node(channel string) string        { return t.owner(slotOf(channel)) }

// contended reports whether other clients wait. told is the number of receivers
// of a message, and own is the number of them that belong to this driver. In a
// cluster the count of a plain message covers only one node.
func (d *Driver) contended(told int64, own int) bool {
	return told > int64(own) || d.cluster && d.checked.pubSub != PubSubSharded
}

// setDatabase records the database that the client uses, because messages
// include it.
func (d *Driver) setDatabase(n int) { d.label.Store(int32(n + 1)) }

func (d *Driver) lineLabel() string { return redistopic.Label(int(d.label.Load())) }

func (d *Driver) releaseMessage() string { return redistopic.ReleaseMessage(int(d.label.Load())) }

// lookForDatabase determines the database that the program's client uses. If
// the query is not permitted, messages do not include the database.
func (d *Driver) lookForDatabase(ctx context.Context) {
	text, _ := d.do(ctx, d.client.B().ClientInfo().Build()).ToString()
	_, value, _ := strings.Cut(text, " db=")
	var n int
	if _, err := fmt.Sscan(value, &n); err == nil {
		d.setDatabase(n)
	}
}
