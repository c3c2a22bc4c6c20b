package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

// The connection parameters of the clients that Open creates.
const (
	loginFor  = 3 * time.Second
	loginPace = 250 * time.Millisecond // the pause between two attempts with the password
	pingEvery = 10 * time.Second       // a server may disconnect clients that ping much more often
	answerIn  = 3 * time.Second        // otherwise the connection counts as dead
)

// retries determines when a connection that was refused, or not made in time,
// is tried again. The library would pause for up to two minutes, so after an
// outage of half a minute a client would need another quarter of a minute to
// notice the end of the outage.
var retries = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
	MinConnectTimeout: loginFor,
}

// The oldest supported version.
const minMajor, minMinor = 3, 4

func init() { driver.Register("etcd", open) }

// open is the driver.Opener of the scheme etcd. The package comment lists the
// parameters.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	o := &Options{
		Prefix:    strings.TrimPrefix(u.Path, "/"),
		Flat:      u.Choice("names", "plain", "flat") == "flat",
		NoteAlone: u.Choice("value", "record", "note") == "note",
		RoundUp:   u.Bool("roundup", false),
		FIFO:      u.Choice("order", "client", "fifo") == "fifo",
		NoTokens:  !c.Fenced,
	}
	config := clientv3.Config{
		Endpoints:            u.HostsWithPort("localhost", "2379"),
		DialTimeout:          loginFor,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: answerIn,
		Logger:               zap.NewNop(),
		DialOptions:          []grpc.DialOption{grpc.WithConnectParams(retries)},
	}
	var err error
	config.TLS, err = tlsurl.Read(u)
	verifyName(config.TLS)
	config.Username = u.User.Username()
	password := u.Password()
	if err := errors.Join(u.Err(), err); err != nil {
		return nil, err
	}
	if password != nil {
		if config.Password, err = password(); err != nil {
			return nil, fmt.Errorf("etcd URL: parameter password_file: %w", err)
		}
	}
	if (u.User != nil || password != nil) && (config.Username == "" || config.Password == "") {
		return nil, errors.New("etcd URL: user and password must be given together")
	}
	if u.Has("password_file") {
		o.Password = func(context.Context) (string, error) { return password() }
	}
	d, err := connect(ctx, config, o)
	if err != nil {
		return nil, fmt.Errorf("etcd: %s: %w", u, err)
	}
	return d, nil
}

// connect makes a client that lives until the driver is closed.
func connect(ctx context.Context, config clientv3.Config, o *Options) (*Driver, error) {
	if config.Username != "" {
		if err := reach(ctx, config); err != nil {
			return nil, err
		}
	}
	all := newConns()
	config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(all.credentials(config.TLS)))
	client, opened, end, err := newClient(ctx, config)
	if err != nil {
		return nil, err
	}
	d, err := New(client, o)
	if err != nil {
		end()
		return nil, err
	}
	d.closeClient = end
	d.conns, all.driver = all, d
	err = d.probe(ctx)
	if !opened() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = d.Close(ctx) // nothing is held yet, so an error of Close does not matter
		return nil, err
	}
	return d, nil
}

// newClient makes a client whose context ends when ctx ends, until opened is
// called. After that, only end ends it.
func newClient(ctx context.Context, config clientv3.Config) (client *clientv3.Client, opened func() bool, end func(), err error) {
	life, cancel := context.WithCancel(context.Background())
	config.Context = life
	opened = context.AfterFunc(ctx, cancel)
	client, err = clientv3.New(config)
	if err != nil {
		opened()
		cancel()
		if ctx.Err() != nil {
			err = ctx.Err() // the reason why life has ended
		}
		return nil, nil, nil, probeFault(ctx, err)
	}
	return client, opened, func() {
		opened()
		cancel()
		_ = client.Close() // reports that its context has ended
	}, nil
}

// reach checks, without a password, whether there is a server: the library
// reports that a password is wrong, but not why it could not reach the server.
func reach(ctx context.Context, config clientv3.Config) error {
	config.Username, config.Password = "", ""
	client, _, end, err := newClient(ctx, config)
	if err != nil {
		return err
	}
	defer end()
	_, err = pb.NewMaintenanceClient(client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err = probeFault(ctx, err); errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// login is the Auth of a client whose password may change.
type login struct {
	clientv3.Auth
	password func(context.Context) (string, error)
}

// Authenticate tries the current password repeatedly for a while, because the
// server and the source of the password do not change at the same moment. A
// refusal counts as an outage, because the password may be corrected soon.
func (l *login) Authenticate(ctx context.Context, user, _ string) (*clientv3.AuthenticateResponse, error) {
	var refused error
	for began := time.Now(); ; {
		password, err := l.password(ctx)
		if err == nil && password == "" {
			err = errors.New("no password")
		}
		if err == nil {
			var answer *clientv3.AuthenticateResponse
			answer, err = l.Auth.Authenticate(ctx, user, password)
			if err == nil || rpctypes.Error(err) != rpctypes.ErrAuthFailed && !isContextError(err) {
				return answer, err
			}
		}
		if refused == nil || !isContextError(err) {
			refused = err
		}
		pause := time.NewTimer(loginPace)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		if ctx.Err() != nil || time.Since(began) > loginFor {
			// another attempt may be accepted
			return nil, fmt.Errorf("%w: user %q: %v", errNotSent, user, refused)
		}
	}
}

// probe checks that the server can keep locks, and determines its minimum TTL.
func (d *Driver) probe(ctx context.Context) error {
	var status *pb.StatusResponse
	err := d.request(ctx, func() (header *pb.ResponseHeader, err error) {
		status, err = pb.NewMaintenanceClient(d.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
		return status.GetHeader(), err
	})
	if err != nil {
		return probeFault(ctx, err)
	}
	if err := checkVersion(status.Version); err != nil {
		return err
	}
	// The answer for a key that does not exist shows whether the server knows
	// the user. A user with rights to only some keys may be refused.
	if _, err := d.get(ctx, d.options.Prefix+"\x00", clientv3.WithCountOnly()); err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return probeFault(ctx, err)
	}
	var lease *clientv3.LeaseGrantResponse
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		lease, err = d.client.Grant(ctx, 1)
		if err != nil {
			return nil, err
		}
		return lease.ResponseHeader, nil
	})
	if err != nil {
		return probeFault(ctx, err)
	}
	d.minTTL = time.Duration(lease.TTL) * time.Second
	c := &carrier{id: lease.ID, ttl: d.minTTL}
	c.lasts.Store(d.now() + int64(d.minTTL))
	d.ghosts.Add(&ghost{carrier: c})
	return d.checkHosts(ctx)
}

// probeFault is like fault, but for requests by Open. They belong to no hold,
// and it does not matter whether they were carried out.
func probeFault(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if err, doubt := fault(ctx, err); !doubt || errors.Is(err, errClusters) {
		return err
	}
	return lifecycle.WithCause(ctx, driver.ErrUnavailable, rpctypes.Error(err))
}

// verifyName checks the server's certificate against tls.Config.ServerName,
// because the client would use the name of the host instead.
func verifyName(config *tls.Config) {
	if config == nil || config.ServerName == "" || config.InsecureSkipVerify {
		return
	}
	name, roots := config.ServerName, config.RootCAs
	config.InsecureSkipVerify = true // VerifyConnection does the same check with another name
	config.VerifyConnection = func(state tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: name})
		return err
	}
}

func checkVersion(version string) error {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(major)
	y, err2 := strconv.Atoi(minor)
	if err1 == nil && err2 == nil && (x < minMajor || x == minMajor && y < minMinor) {
		return fmt.Errorf("the server is etcd %s, and the oldest supported version is %d.%d: %w", version, minMajor, minMinor, errors.ErrUnsupported)
	}
	return nil
}
