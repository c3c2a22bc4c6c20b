package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/contrib/natslock"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

func TestMain(m *testing.M) {
	driver.Register("natslock", openURL)
	conformance.RunWorker()
	m.Run()
}

// TestConformance runs the suite on a server in this process, which writes to
// disk.
func TestConformance(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server is not ready")
	}
	addr := s.Addr().String()
	admin := connect(t, addr)
	conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			URL: fmt.Sprintf("natslock://%s/locks", addr),
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				w := new(wire.Wire)
				tb.Cleanup(w.Close)
				through, err := w.Listen(addr)
				if err != nil {
					tb.Fatal(err)
				}
				return open(tb, connect(tb, through)), conformance.LinkOver(w)
			},
			Expire: func(tb testing.TB, name string) {
				d := open(tb, admin).(driver.ForceUnlocker)
				_ = d.ForceUnlock(tb.Context(), name) // ErrNotHeld: there is no lock
			},
			Ping: func(ctx context.Context) error {
				_, err := admin.AccountInfo(ctx)
				return err
			},
		}
	}})
}

func connect(tb testing.TB, addr string) jetstream.JetStream {
	nc, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

func open(tb testing.TB, js jetstream.JetStream) driver.Driver {
	d, err := natslock.New(tb.Context(), js, "locks", 1, true)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// openURL opens natslock://host:4222/bucket, with a user if the URL names one,
// for the checks with several processes.
func openURL(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u, replicas := c.URL, c.URL.Int("replicas", 1, 1, 5)
	bucket := strings.TrimPrefix(u.Path, "/")
	if err := u.Err(); err != nil {
		return nil, err
	}
	if len(u.Hosts) == 0 || bucket == "" {
		return nil, errors.New("natslock URL: want natslock://host:4222/bucket")
	}
	hosts := u.HostsWithPort("127.0.0.1", "4222")
	o := nats.Options{Servers: hosts, Timeout: 2 * time.Second, AllowReconnect: true, MaxReconnect: -1, ReconnectWait: 100 * time.Millisecond, ReconnectBufSize: nats.DefaultReconnectBufSize}
	if end, ok := ctx.Deadline(); ok {
		o.Timeout = min(o.Timeout, time.Until(end)/time.Duration(len(hosts)+1))
	}
	if u.User != nil {
		o.User = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	nc, err := o.Connect()
	if err != nil {
		return nil, fmt.Errorf("NATS at %s: %w", strings.Join(hosts, ", "), err)
	}
	js, _ := jetstream.New(nc)
	d, err := natslock.New(ctx, js, bucket, replicas, c.Fenced)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return owner{d, nc}, nil
}

// owner is a driver with its own connection.
type owner struct {
	*cas.Driver
	nc *nats.Conn
}

func (o owner) Close(ctx context.Context) error {
	defer o.nc.Close()
	return o.Driver.Close(ctx)
}
