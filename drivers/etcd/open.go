package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

// How the clients that Open makes connect.
const (
	loginFor  = 3 * time.Second
	pingEvery = 10 * time.Second // a server may hang up on those who ping much more often
	answerIn  = 3 * time.Second  // else the connection counts as dead
)

// The oldest version that will do.
const minMajor, minMinor = 3, 4

func init() { driver.Register("etcd", open) }

// open is the driver.Opener of the scheme etcd. The path after its first slash is Options.Prefix. Parameters:
//
//	names=plain|flat  see Options.Flat
//	roundup=true      see Options.RoundUp
//	tls=true          with tls_ca=, tls_cert= and tls_key= (PEM files), tls_server_name=, tls_insecure_skip_verify=true
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	o := &Options{
		Prefix:   strings.TrimPrefix(u.Path, "/"),
		Flat:     u.Choice("names", "plain", "flat") == "flat",
		RoundUp:  u.Bool("roundup", false),
		NoTokens: !c.Fenced,
	}
	config := clientv3.Config{
		Endpoints:            u.HostsWithPort("localhost", "2379"),
		DialTimeout:          loginFor,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: answerIn,
		Logger:               zap.NewNop(),
	}
	var err error
	config.TLS, err = tlsurl.Read(u)
	if u.User != nil {
		config.Username = u.User.Username()
		config.Password, _ = u.User.Password()
		if config.Username == "" || config.Password == "" {
			err = errors.Join(err, errors.New("etcd URL: user and password go together"))
		}
	}
	if err := errors.Join(u.Err(), err); err != nil {
		return nil, err
	}
	d, err := connect(ctx, config, o)
	if err != nil {
		return nil, fmt.Errorf("etcd: %s: %w", u, err)
	}
	return d, nil
}

// connect makes a client that lives until the driver is closed.
func connect(ctx context.Context, config clientv3.Config, o *Options) (*Driver, error) {
	life, end := context.WithCancel(context.Background())
	config.Context = life
	opened := context.AfterFunc(ctx, end)
	client, err := clientv3.New(config)
	if err != nil {
		opened()
		end()
		err, _ = fault(ctx, err)
		return nil, err
	}
	d, err := New(client, o)
	if err != nil {
		opened()
		end()
		return nil, errors.Join(err, client.Close())
	}
	d.closeClient = func() {
		end()
		_ = client.Close() // reports that its context has ended
	}
	err = d.probe(ctx)
	if !opened() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = d.Close(ctx) // nothing is held yet
		return nil, err
	}
	return d, nil
}

// probe finds out whether the server is one that locks can be kept on, and from which TTL it counts.
func (d *Driver) probe(ctx context.Context) error {
	status, err := pb.NewMaintenanceClient(d.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return d.probeFault(ctx, err)
	}
	if err := checkVersion(status.Version); err != nil {
		return err
	}
	// What it says of a key that nobody has tells whether it knows the user. One that may use some keys alone may be refused here.
	if _, err := d.client.Get(ctx, d.options.Prefix+"\x00", clientv3.WithCountOnly()); err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return d.probeFault(ctx, err)
	}
	lease, err := d.client.Grant(ctx, 1)
	if err != nil {
		return d.probeFault(ctx, err)
	}
	d.minTTL = time.Duration(lease.TTL) * time.Second
	c := &carrier{id: lease.ID, ttl: d.minTTL}
	c.lasts.Store(d.now() + int64(d.minTTL))
	d.ghosts.add(&ghost{carrier: c, revoke: true})
	return nil
}

// probeFault is fault for requests that belong to no hold, and of which it does not matter whether they were carried out.
func (d *Driver) probeFault(ctx context.Context, err error) error {
	if err, doubt := fault(ctx, err); !doubt {
		return err
	}
	return withCause(ctx, driver.ErrUnavailable, rpctypes.Error(err))
}

func checkVersion(version string) error {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	if err1 == nil && err2 == nil && (x < minMajor || x == minMajor && y < minMinor) {
		return fmt.Errorf("the server is etcd %s, and %d.%d is the oldest that will do: %w", version, minMajor, minMinor, errors.ErrUnsupported)
	}
	return nil
}
