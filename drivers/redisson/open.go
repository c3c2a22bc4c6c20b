package redisson

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

const (
	// the interval at which clients created by Open read the topology
	refreshing = 10 * time.Second
	maxReplica = 100
)

// clientName is the name of this process's connections in the server's CLIENT
// LIST: dsync, the host and the process id.
var clientName = "dsync-" + strings.Map(func(r rune) rune {
	switch {
	case r == ':':
		return '-'
	case r <= ' ' || r > '~': // the server refuses these characters
		return '_'
	}
	return r
}, process)

func init() { driver.Register("redisson", open) }

type target struct {
	mode   string
	option rueidis.ClientOption
}

// open is the driver.Opener of the scheme redisson.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	t, err := readTarget(u)
	o := readOptions(u, c.Fenced)
	if err := errors.Join(u.Err(), err); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if c.Require.FIFO && !o.FIFO {
		return nil, fmt.Errorf("redisson URL: require=fifo needs fair=true and order=fifo: %w", errors.ErrUnsupported)
	}
	d, err := connect(ctx, t, o)
	if err != nil {
		return nil, fmt.Errorf("redisson: %s: %w", u, err)
	}
	return d, nil
}

func readOptions(u *driver.URL, fenced bool) *Options {
	o := &Options{
		WaitReplicas:  u.Int("waitreplicas", 0, 0, maxReplica),
		WaitLimit:     u.Duration("waitlimit", defaultWaitLimit),
		Fair:          u.Bool("fair", false),
		FIFO:          u.Choice("order", "client", "fifo") == "fifo",
		Write:         u.Bool("write", false),
		AllowEviction: u.Choice("evict", "refuse", "allow") == "allow",
		Tenant:        u.Param("tenant", ""),
	}
	if mode := u.Choice("pubsub", "auto", string(PubSubPlain), string(PubSubSharded), string(PubSubBoth)); mode != "auto" {
		o.PubSub = PubSub(mode)
	}
	if fence := u.Choice("fence", "own", string(FenceRedisson)); fence != "own" {
		o.Fence = Fence(fence)
	}
	if !fenced {
		o.Fence = FenceNone
	}
	return o
}

// readTarget reads all parameters before it checks any of them, so that an
// unknown parameter is reported first.
func readTarget(u *driver.URL) (*target, error) {
	t := &target{mode: u.Choice("mode", "single", "sentinel", "cluster")}
	master, hasMaster := u.Param("master", ""), u.Has("master")
	user, password := u.Param("sentinel_user", ""), u.Param("sentinel_password", "")
	option, err := redisdial.ReadURL(u, clientName)
	if err != nil {
		return nil, err
	}
	t.option = option
	o := &t.option
	port := "6379"
	switch t.mode {
	case "single":
		if len(u.Hosts) > 1 {
			return nil, errors.New("redisson URL: mode=single takes one host (mode=sentinel and mode=cluster take several)")
		}
	case "sentinel":
		port = "26379"
		redisdial.ToSentinels(o, rueidis.SentinelOption{MasterSet: master, Username: user, Password: password})
		if master == "" {
			return nil, errors.New("redisson URL: mode=sentinel needs master=, the name of the primary")
		}
	case "cluster":
		if o.SelectDB != 0 {
			return nil, fmt.Errorf("redisson URL: database %d: a cluster has only database 0", o.SelectDB)
		}
	}
	if t.mode != "sentinel" && (hasMaster || user != "" || password != "") {
		return nil, errors.New("redisson URL: master=, sentinel_user= and sentinel_password= need mode=sentinel")
	}
	o.InitAddress = u.HostsWithPort("localhost", port)
	t.applyMode()
	return t, nil
}

// applyMode sets the options that follow from the mode.
func (t *target) applyMode() {
	o := &t.option
	switch t.mode {
	case "single":
		o.ForceSingleClient = true
	case "sentinel":
		o.Sentinel.ClientName, o.Sentinel.TopologyRefreshInterval = clientName, refreshing
	case "cluster":
		o.ClusterOption = rueidis.ClusterOption{ShardsRefreshInterval: refreshing, MaxMovedRedirections: 8}
	}
}

// Connect connects to servers that a URL cannot describe: with credentials, a
// TLS configuration or a dialer of the program, or the options of another
// client library (see docs/choosing.md for go-redis). The driver does not share
// the connections, and closes them. Connect fails within ctx.
//
// Connect uses these fields of server: InitAddress, Username, Password,
// AuthCredentialsFn, SelectDB, TLSConfig and DialCtxFn; and Sentinel with a
// MasterSet, for the primary that sentinels report, or ForceSingleClient, for
// one server. Without these two fields, the servers are a cluster. Everything
// else is as with a URL.
func Connect(ctx context.Context, server rueidis.ClientOption, o *Options) (*Driver, error) {
	t := &target{mode: "cluster", option: redisdial.Defaults(clientName)}
	switch {
	case server.Sentinel.MasterSet != "":
		t.mode = "sentinel"
	case server.ForceSingleClient:
		t.mode = "single"
	}
	switch n := len(server.InitAddress); {
	case n == 0:
		return nil, errors.New("redisson: no address")
	case t.mode == "single" && n > 1:
		return nil, fmt.Errorf("redisson: %d addresses for a single server, want one", n)
	case t.mode == "cluster" && server.SelectDB != 0:
		return nil, fmt.Errorf("redisson: database %d: a cluster has only database 0", server.SelectDB)
	}
	c := &t.option
	c.InitAddress, c.Username, c.Password, c.AuthCredentialsFn = server.InitAddress, server.Username, server.Password, server.AuthCredentialsFn
	c.SelectDB, c.TLSConfig, c.DialCtxFn, c.Sentinel = server.SelectDB, server.TLSConfig, server.DialCtxFn, server.Sentinel
	c.Sentinel.Dialer = c.Dialer
	t.applyMode()
	d, err := connect(ctx, t, o)
	if err != nil {
		return nil, fmt.Errorf("redisson: %s: %w", strings.Join(server.InitAddress, ","), err)
	}
	return d, nil
}

// connect makes the client. The library connects without a context, so until
// Open has returned, the dialer stops when the context of Open ends.
func connect(ctx context.Context, t *target, o *Options) (*Driver, error) {
	dialer := redisdial.New(t.option.DialCtxFn)
	opened := context.AfterFunc(ctx, dialer.End)
	defer opened()
	t.option.DialCtxFn = unsent(dialer.Dial)
	client, err := rueidis.NewClient(t.option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		dialer.End()
		return nil, openError(ctx, t, err)
	}
	d, err := newDriver(client, dialer, o)
	if err != nil {
		client.Close()
		dialer.End()
		return nil, err
	}
	d.setDatabase(t.option.SelectDB)
	if t.mode == "cluster" && !d.cluster {
		err = errors.New("the server is not in a cluster (mode=cluster)")
	} else {
		err = d.checkServer(ctx)
	}
	opened()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close(ctx))
	}
	return d, nil
}

// unsent marks the errors of dial, because the request that needed the
// connection was not sent.
func unsent(dial redisdial.Func) redisdial.Func {
	return func(ctx context.Context, addr string, nd *net.Dialer, config *tls.Config) (net.Conn, error) {
		c, err := dial(ctx, addr, nd, config)
		if err != nil {
			return nil, redisdriver.NotSent{Why: err}
		}
		return c, nil
	}
}

// openError rewords an error of the library in the terms of the URL.
func openError(ctx context.Context, t *target, err error) error {
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%w: %w", ended, err)
	}
	if answer, ok := rueidis.IsRedisErr(err); ok {
		text := strings.ToLower(answer.Error())
		switch {
		case t.mode == "sentinel" && strings.Contains(text, "unknown command"):
			return fmt.Errorf("not a sentinel (mode=sentinel): %w", err)
		case t.mode == "sentinel" && strings.Contains(text, "no such master"):
			return fmt.Errorf("the sentinels do not know a primary with this name (master=): %w", err)
		case t.mode == "cluster" && strings.Contains(text, "cluster support disabled"):
			return fmt.Errorf("the server is not in a cluster (mode=cluster): %w", err)
		}
		return redisdriver.Explain(ctx, "", err)
	}
	if hint := tlsHint(t.option.TLSConfig != nil, err); hint != "" {
		return fmt.Errorf("%w: %w (%s)", driver.ErrUnavailable, err, hint)
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}

// tlsHint returns a hint if an error suggests that only one of the server and
// the URL uses TLS, and "" otherwise. A server without TLS treats the handshake
// as a command and waits for its end. A server with TLS closes a plain
// connection.
func tlsHint(on bool, err error) string {
	var dial *net.OpError
	connected := !errors.As(err, &dial) || dial.Op != "dial"
	switch {
	case on && errors.As(err, new(tls.RecordHeaderError)), on && connected && errors.Is(err, context.DeadlineExceeded):
		return "does the server speak TLS? the URL has tls=true"
	case !on && connected && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return "does the server require TLS? use tls=true"
	}
	return ""
}
