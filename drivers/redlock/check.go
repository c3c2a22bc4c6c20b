package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// never is the time from which answers from an unfit node would count.
const never = int64(1<<63 - 1)

// lookAgain is the interval at which an unfit server is checked again, because
// it may have become fit.
const lookAgain = time.Second

// identity is the identity that a server reports.
type identity struct {
	run  string // changes at each start of the server
	conn uint64 // the connection, by Dialer.Made
	id   int64  // the server's number for the connection; 0 if unknown
	err  error  // why the server is not fit for locks
}

// look queries the identity of the server behind the current connection, and
// loads the scripts. The node's goroutine calls it before any other request
// over a new connection.
func (n *node) look() error {
	err := n.connect()
	if err != nil {
		return n.lookFailed(err)
	}
	b := n.client.B()
	results := n.client.DoMulti(context.Background(), append(n.loads(b), b.ClientId().Build(), b.Info().Build())...)
	if err := n.transportError(results); err != nil {
		return n.lookFailed(err)
	}
	last := len(results) - 1
	for i, result := range results {
		if err := result.Error(); err != nil && i != last-1 {
			return n.lookFailed(refusal(err))
		}
	}
	id, _ := results[last-1].ToInt64() // not permitted: 0
	text, _ := results[last].ToString()
	info := fields(text)
	before, now := n.server, identity{run: info["run_id"], conn: n.dialer.Made(), id: id}
	n.bury(before, now)
	n.server = now
	n.lookedAt = n.driver.life.Now()
	n.judge(info)
	n.known = now.conn
	n.trouble.Store(false)
	n.hung.Store(false)
	n.down, n.downUntil, n.downErr = 0, 0, nil
	return nil
}

// bury ensures that requests sent over the previous connection can no longer
// arrive. The connection is broken on this side, but perhaps not yet on the
// server's.
func (n *node) bury(before, now identity) {
	switch {
	case before.conn == 0 || before.conn == now.conn:
		return
	case before.run == now.run:
		if before.id == 0 {
			return
		}
		kill := n.client.B().ClientKill().Id(before.id).Build()
		if err := n.client.Do(context.Background(), kill).Error(); err != nil {
			return
		}
	}
	n.cleared = before.conn
}

func (n *node) lookFailed(err error) error {
	n.known = 0
	n.fail(err)
	return err
}

// judge determines the time from which answers from a server count.
func (n *node) judge(info map[string]string) {
	d := n.driver
	now := d.life.Now()
	n.server.err = d.unfit(info)
	if n.server.err == nil {
		n.server.err = d.claimRun(n, n.server.run)
	}
	if n.server.err != nil {
		n.counts.Store(never)
		return
	}
	uptime, err := strconv.ParseInt(info["uptime_in_seconds"], 10, 64)
	if err != nil || d.options.Durable {
		n.counts.Store(now)
		return
	}
	// The server reports whole seconds, by a clock with whole seconds.
	started := now - uptime*int64(time.Second) + int64(time.Second)
	n.counts.Store(started + int64(d.options.MaxTTL))
}

// countsNow returns an error if answers from the node do not count.
func (n *node) countsNow() error {
	from := n.counts.Load()
	switch now := n.driver.life.Now(); {
	case now >= from:
		return nil
	case from == never:
		return n.server.err
	default:
		left := time.Duration(from - now).Round(time.Millisecond)
		return fmt.Errorf("%w: it was started less than the longest TTL (%v) ago and may have forgotten locks; it counts in %v",
			driver.ErrUnavailable, n.driver.options.MaxTTL, left)
	}
}

// unfit returns why a server cannot keep locks.
func (d *Driver) unfit(info map[string]string) error {
	if err := redisdriver.CheckVersion(info["redis_version"]); err != nil {
		return err
	}
	switch {
	case info["redis_mode"] == "cluster":
		return errors.New("the server is a node of a Redis Cluster, not an independent one")
	case info["redis_mode"] == "sentinel":
		return errors.New("the server is a sentinel")
	case info["role"] == "slave":
		return fmt.Errorf("the server is a replica of %s:%s, not an independent one", info["master_host"], info["master_port"])
	case d.options.AllowEviction:
		return nil
	}
	return redisdriver.CheckEviction(info["maxmemory_policy"])
}

// claimRun returns an error if another node is the same server.
func (d *Driver) claimRun(n *node, run string) error {
	if run == "" {
		return errors.New("INFO does not contain the run id of the server")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs[n.index] = ""
	for i, other := range d.runs {
		if other == run {
			return fmt.Errorf("the server is the same as that of node %s", d.nodes[i].address())
		}
	}
	d.runs[n.index] = run
	return nil
}

// fields reads the answer to INFO.
func fields(info string) map[string]string {
	m := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

// checkNodes waits until the nodes were checked, except for late nodes beyond a
// majority. It fails if too few can be reached or a node is not fit.
func (d *Driver) checkNodes(ctx context.Context) error {
	replies, err := d.askEach(ctx, redisdial.ConnectFor, func(b rueidis.Builder) rueidis.Completed { return b.Ping().Build() })
	var last error
	reached := 0
	for _, r := range replies {
		switch {
		case r.err != nil:
			last = r.node.of(refusal(r.err))
		case r.unfit != nil:
			return r.node.of(r.unfit)
		default:
			reached++
		}
	}
	if err != nil || reached < d.quorum {
		return errors.Join(err, last)
	}
	return nil
}
