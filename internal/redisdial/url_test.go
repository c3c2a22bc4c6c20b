package redisdial_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestIdleConnectionIsRead: the library reads a connection that no request uses, and so notices its end without a ping. Close of a client whose callers
// read could hang, which is too rare for a test: see Prepare.
func TestIdleConnectionIsRead(t *testing.T) {
	s := testenv.Redis(t)
	closed := make(chan struct{}, 10)
	o := redisdial.Defaults("idle")
	o.InitAddress, o.Dialer.KeepAlive = []string{s.Addr}, time.Hour
	o.DialCtxFn = func(ctx context.Context, addr string, nd *net.Dialer, _ *tls.Config) (net.Conn, error) {
		c, err := nd.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return testenv.OnClose(c, func() { closed <- struct{}{} }), nil
	}
	client, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s.Do("CLIENT", "KILL", "TYPE", "normal")
	select {
	case <-closed:
	case <-time.After(hangGuard):
		t.Error("the client has not noticed that its connection was closed")
	}
}
