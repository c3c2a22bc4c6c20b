package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestBehindOneAddress: replicas take over the addresses of two of three nodes,
// or of the only one, and open connections stay with the old servers. Holders,
// waiters and new calls reach the new servers.
func TestBehindOneAddress(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		var options []rueidis.ClientOption
		var moves []func()
		for i := range n {
			old := testenv.Redis(t)
			var current atomic.Pointer[testenv.RedisServer]
			current.Store(old)
			options = append(options, rueidis.ClientOption{
				InitAddress: []string{string(rune('a'+i)) + ":6379"},
				DialCtxFn: func(ctx context.Context, _ string, nd *net.Dialer, _ *tls.Config) (net.Conn, error) {
					return nd.DialContext(ctx, "tcp", current.Load().Addr)
				},
			})
			if i == 2 {
				continue
			}
			heir := testenv.Redis(t)
			host, port, _ := strings.Cut(old.Addr, ":")
			heir.Do("REPLICAOF", host, port)
			moves = append(moves, func() {
				old.AwaitReplicas(1)
				current.Store(heir)
				heir.Do("REPLICAOF", "NO", "ONE")
				host, port, _ := strings.Cut(heir.Addr, ":")
				old.Do("REPLICAOF", host, port)
			})
		}
		d, err := newDriver(options, &Options{Durable: true})
		if err != nil {
			t.Fatal(err)
		}
		closeLater(t, d)
		r := request("x")
		r.TTL = 20 * time.Second
		l := acquire(t, d, r)
		granted := make(chan error, 1)
		go func() {
			next, err := d.Acquire(t.Context(), request("x"))
			for errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) { // like a client of dsync
				next, err = d.Acquire(t.Context(), request("x"))
			}
			if err == nil {
				err = next.Release(t.Context())
			}
			granted <- err
		}()
		testenv.Eventually(t, func() bool { return d.ears[d.firstNode("x")].Own(channel("x")) == 1 }, "the waiter listens")
		for _, move := range moves {
			move()
		}
		testenv.Eventually(t, func() bool { return l.Renew(t.Context(), r.TTL) == nil }, "the lease is renewed by the new servers")
		release(t, l)
		select {
		case err := <-granted:
			if err != nil {
				t.Errorf("%d nodes: the waiter: %v", n, err)
			}
		case <-time.After(hangGuard):
			t.Fatalf("%d nodes: the waiter is not granted the lock", n)
		}
		release(t, acquire(t, d, request("y")))
	}
}
