package redlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
)

// clientName is the name of connections in a node's CLIENT LIST.
const clientName = "dsync"

// singleScheme is the scheme of [Single].
const singleScheme = "redis-string"

func init() {
	driver.Register("redlock", open)
	driver.Register(singleScheme, open)
}

// open is the driver.Opener of both schemes.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	client, err := redisdial.ReadURL(u, clientName)
	o := &Options{
		MaxTTL:        u.Duration("maxttl", max(defaultMaxTTL, c.TTL)),
		Durable:       u.Bool("durable", false),
		NodeTimeout:   u.Duration("nodetimeout", defaultNodeTimeout),
		AllowEviction: u.Choice("evict", "refuse", "allow") == "allow",
	}
	if err := errors.Join(u.Err(), err); err != nil {
		return nil, err
	}
	if len(u.Hosts) == 0 {
		return nil, fmt.Errorf("%s URL: no hosts", u.Scheme)
	}
	var nodes []rueidis.ClientOption
	for _, address := range u.HostsWithPort("localhost", "6379") {
		client.InitAddress = []string{address}
		nodes = append(nodes, client)
	}
	if u.Scheme == singleScheme && len(nodes) != 1 {
		return nil, fmt.Errorf("%s URL: %d hosts, want one", u.Scheme, len(nodes))
	}
	construct := New
	if u.Scheme == singleScheme {
		construct = newDriver
	}
	d, err := construct(nodes, o)
	if err != nil {
		return nil, err
	}
	if err := d.checkNodes(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %s: %w", u.Scheme, u, err), d.Close(ctx))
	}
	if d.single() {
		return &Single{d}, nil
	}
	return d, nil
}
