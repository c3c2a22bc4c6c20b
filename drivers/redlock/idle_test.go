package redlock

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestIdleConnectionsAreRead: the library reads the connections that no request
// uses, and so notices their end without a ping. Close of a driver whose
// callers read could hang: see redisdial.Prepare.
func TestIdleConnectionsAreRead(t *testing.T) {
	s := testenv.Redis(t)
	var open atomic.Int64
	o := rueidis.ClientOption{InitAddress: []string{s.Addr}, Dialer: net.Dialer{KeepAlive: time.Hour}}
	o.DialCtxFn = func(ctx context.Context, addr string, nd *net.Dialer, _ *tls.Config) (net.Conn, error) {
		c, err := nd.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		return testenv.OnClose(c, sync.OnceFunc(func() { open.Add(-1) })), nil
	}
	d, err := newDriver([]rueidis.ClientOption{o}, &Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	release(t, acquire(t, d, request("x")))
	topic := d.ears[0].Join(channel("x"), 0)
	defer topic.Leave(false)
	<-topic.Wake // the server has confirmed the subscription
	if got := open.Load(); got != 3 {
		t.Fatalf("%d connections, want 3: one for requests, and two of the client for messages", got)
	}
	s.Do("CLIENT", "KILL", "TYPE", "normal")
	testenv.Eventually(t, func() bool { return open.Load() == 1 }, "the driver has noticed that two connections were closed")

	var made uint64 // connections, before the request is sent
	done := make(chan error, 1)
	p := question{
		func(b rueidis.Builder) rueidis.Completed {
			made = d.nodes[0].dialer.Made()
			return b.Ping().Build()
		},
		func(_ *node, _ rueidis.RedisResult, err error) { done <- err },
	}
	testenv.Eventually(t, func() bool {
		d.nodes[0].add(p)
		return <-done == nil // not while the library is still closing the connection
	}, "the node answers")
	if d.nodes[0].dialer.Made() != made {
		t.Error("a request opened its own connection, so the server behind it was not checked")
	}
}
