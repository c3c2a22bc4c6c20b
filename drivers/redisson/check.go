package redisson

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// lookFor is the time that the nodes of a cluster may take to describe
// themselves.
const lookFor = time.Second

// server is the driver's knowledge of the server, after checkServer.
type server struct {
	known  atomic.Bool
	pubSub PubSub   // never Auto
	words  []string // the commands that wake waiters

	looking gate
}

// gate lets one caller at a time do a task until it has succeeded.
type gate chan struct{}

func (g gate) pass(ctx context.Context, done func() bool, do func() error) error {
	if done() {
		return nil
	}
	select {
	case g <- struct{}{}:
		defer func() { <-g }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if done() {
		return nil
	}
	return do()
}

// checkServer determines, before any other request, whether the server can keep
// locks.
func (d *Driver) checkServer(ctx context.Context) error {
	return d.checked.looking.pass(ctx, d.checked.known.Load, func() error { return d.look(ctx) })
}

func (d *Driver) look(ctx context.Context) error {
	c := &d.checked
	err := d.lookAtAll(ctx)
	if err != nil {
		return err
	}
	if c.pubSub, err = d.choosePubSub(ctx); err != nil {
		return err
	}
	c.words = map[PubSub][]string{PubSubPlain: {"PUBLISH"}, PubSubSharded: {"SPUBLISH"}, PubSubBoth: {"SPUBLISH", "PUBLISH"}}[c.pubSub]
	if d.dialer == nil && !d.cluster {
		d.lookForDatabase(ctx)
	}
	c.known.Store(true)
	return nil
}

// lookAtAll checks every node that answers, and returns an error if none does.
func (d *Driver) lookAtAll(ctx context.Context) error {
	if !d.cluster {
		return d.lookAt(ctx, "", d.client)
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	reached := false
	last := fmt.Errorf("%w: the cluster has no node", driver.ErrUnavailable)
	for err := range d.eachNode(ctx, d.lookAt) {
		switch {
		case err == nil:
			reached = true
		case lifecycle.Transient(err):
			last = err
		default:
			return err
		}
	}
	if reached {
		return nil
	}
	return last
}

// lookAt checks one node. If a query is not permitted, lookAt assumes that its
// answer would have been acceptable.
func (d *Driver) lookAt(ctx context.Context, _ string, node rueidis.Client) error {
	b := node.B()
	results := d.doMulti(ctx, node, []rueidis.Completed{b.Arbitrary("HELLO").Build(), b.Info().Section("memory").Build()})
	for _, result := range results {
		if err := redisdriver.Explain(ctx, "", result.Error()); lifecycle.Transient(err) || isLogin(err) {
			return err
		}
	}
	if hello, err := results[0].AsMap(); err == nil {
		if err := d.checkHello(field(hello, "version"), field(hello, "mode"), field(hello, "role")); err != nil {
			return err
		}
	}
	if info, err := results[1].ToString(); err == nil && !d.options.AllowEviction {
		_, policy, _ := strings.Cut(info, "maxmemory_policy:")
		policy, _, _ = strings.Cut(policy, "\r\n")
		return redisdriver.CheckEviction(policy)
	}
	return nil
}

func field(m map[string]rueidis.RedisMessage, name string) string {
	message := m[name]
	s, _ := message.ToString()
	return s
}

// isLogin reports whether the user is unknown to the server, and not only
// lacking a permission.
func isLogin(err error) bool {
	return errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), "NOPERM")
}

func (d *Driver) checkHello(version, mode, role string) error {
	if err := redisdriver.CheckVersion(version); err != nil {
		return err
	}
	switch {
	case mode == "cluster" && !d.cluster:
		return errors.New("the server is a node of a cluster, but the client is not a cluster client (mode=cluster)")
	case mode == "sentinel":
		return errors.New("the server is a sentinel (mode=sentinel)")
	case role == "replica" && !d.cluster:
		return fmt.Errorf("%w: the server is a replica, which grants no locks", driver.ErrUnavailable)
	}
	return nil
}

// choosePubSub chooses the kind of messages in the same way as Redisson since
// 3.28.
func (d *Driver) choosePubSub(ctx context.Context) (PubSub, error) {
	mode := d.options.PubSub
	if mode == PubSubPlain || mode == PubSubAuto && !d.cluster {
		return PubSubPlain, nil
	}
	err := d.do(ctx, d.client.B().Arbitrary("PUBSUB", "SHARDNUMSUB", shardedProbe).Build()).Error()
	if _, refused := rueidis.IsRedisErr(err); refused {
		if mode == PubSubAuto {
			return PubSubPlain, nil
		}
		return "", fmt.Errorf("pubsub=%s: the server has no sharded channels, which came with Redis 7: %w", mode, err)
	}
	if mode == PubSubAuto {
		mode = PubSubSharded
	}
	return mode, redisdriver.Explain(ctx, "", err)
}
