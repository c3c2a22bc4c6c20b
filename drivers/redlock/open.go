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

func init() { driver.Register("redlock", open) }

// open is the driver.Opener of the scheme redlock.
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
		return nil, errors.New("redlock URL: no hosts")
	}
	var nodes []rueidis.ClientOption
	for _, address := range u.HostsWithPort("localhost", "6379") {
		client.InitAddress = []string{address}
		nodes = append(nodes, client)
	}
	d, err := New(nodes, o)
	if err != nil {
		return nil, err
	}
	if err := d.checkNodes(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("redlock: %s: %w", u, err), d.Close(ctx))
	}
	return d, nil
}
