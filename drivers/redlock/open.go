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
	"github.com/go-dsync/dsync/internal/tlsurl"
)

// How clients connect.
const (
	connectFor = 2 * time.Second // one attempt to connect, and then to log in
	pingEvery  = time.Second     // on an idle connection
	answerIn   = 3 * time.Second // else the connection counts as dead
	bufferSize = 64 << 10
	clientName = "dsync"
	maxDB      = 1 << 20
)

func init() { driver.Register("redlock", open) }

// open is the driver.Opener of the scheme redlock.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	client, err := readClient(u)
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

// readClient reads what is common to all nodes.
func readClient(u *driver.URL) (rueidis.ClientOption, error) {
	o := rueidis.ClientOption{
		ClientName: clientName, ClientSetInfo: rueidis.DisableClientSetInfo,
		ReadBufferEachConn: bufferSize, WriteBufferEachConn: bufferSize,
		BlockingPoolCleanup: time.Minute,
	}
	if u.User != nil {
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	var err error
	if o.TLSConfig, err = tlsurl.Read(u); err != nil {
		return o, err
	}
	o.SelectDB, err = readDatabase(u.Path)
	return o, err
}

func readDatabase(path string) (int, error) {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(path)
	if err != nil || n < 0 || n > maxDB || strconv.Itoa(n) != path {
		return 0, fmt.Errorf("redlock URL: path %q is not the number of a database", path)
	}
	return n, nil
}
