package etcd_test

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// router forwards connections, and may lose its table: the connections then
// stay open without a byte getting through, while new ones work.
type router struct {
	addr string
	lost atomic.Int64 // connections with a lower number do not work

	mu     sync.Mutex
	target string
	number int64
	conns  []net.Conn
}

func newRouter(tb testing.TB, target string) *router {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r := &router{addr: ln.Addr().String(), target: target}
	var all sync.WaitGroup
	all.Go(func() { // ends when the listener is closed
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			server, err := net.Dial("tcp", r.target)
			if err != nil {
				c.Close()
				r.mu.Unlock()
				continue
			}
			number := r.number
			r.number++
			r.conns = append(r.conns, c, server)
			r.mu.Unlock()
			all.Go(func() { r.forward(number, c, server) })
			all.Go(func() { r.forward(number, server, c) })
		}
	})
	tb.Cleanup(func() {
		ln.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
		all.Wait()
	})
	return r
}

// forward returns when the connection is closed.
func (r *router) forward(number int64, to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if number < r.lost.Load() {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if _, failed := to.Write(b[:n]); err != nil || failed != nil {
			to.Close()
			from.Close()
			return
		}
	}
}

// forget makes all existing connections hang.
func (r *router) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost.Store(r.number)
}

// lead sends new connections to another server.
func (r *router) lead(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

func openClient(tb testing.TB, url string) *dsync.Client {
	tb.Helper()
	c, err := dsync.Open(guard(tb), url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// inTime fails the test if f takes much longer than the promised 5 s.
func inTime(t *testing.T, what string, f func() error) {
	t.Helper()
	began := time.Now()
	if err := f(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("%s took %v", what, took)
	}
}

// TestConnectionsThatHang checks that no call waits for long, regardless of the
// TTL, because new connections work.
func TestConnectionsThatHang(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	other := openClient(t, "etcd://"+s.Addr)
	for what, test := range map[string]func(t *testing.T, r *router, c *dsync.Client, name string){
		"first Lock": func(t *testing.T, r *router, c *dsync.Client, name string) {
			l, err := c.Lock(guard(t), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Unlock(guard(t)); err != nil {
				t.Fatal(err)
			}
			r.forget()
			inTime(t, "Lock", func() error {
				l, err = c.Lock(guard(t), name)
				return err
			})
			r.forget()
			inTime(t, "Unlock", func() error { return l.Unlock(guard(t)) })
		},
		"waiter": func(t *testing.T, r *router, c *dsync.Client, name string) {
			l, err := other.Lock(guard(t), name)
			if err != nil {
				t.Fatal(err)
			}
			granted := make(chan error, 1)
			go func() {
				_, err := c.Lock(guard(t), name)
				granted <- err
			}()
			testenv.Eventually(t, func() bool {
				s, err := other.Inspect(guard(t), name)
				return err == nil && s.Waiters == 1
			}, "the second client waits")
			r.forget()
			if err := l.Unlock(guard(t)); err != nil {
				t.Fatal(err)
			}
			inTime(t, "the wait", func() error { return <-granted })
		},
		"Close": func(t *testing.T, r *router, c *dsync.Client, name string) {
			if _, err := c.Lock(guard(t), name); err != nil {
				t.Fatal(err)
			}
			r.forget()
			inTime(t, "Close", func() error { return c.Close(guard(t)) })
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRouter(t, s.Addr)
			test(t, r, openClient(t, "etcd://"+r.addr+"?ttl=1h"), what)
		})
	}
}

// TestFrozenServer checks that no lock is lost when a server is silent for a
// while.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	drivertest.FrozenServerCostsNoLock(t, "etcd://"+s.Addr, s.Freeze, s.Thaw)
}

// TestOneAddressOfSeveralServers lets an address lead to another server, while
// the connections stay with a server that has lost the others.
func TestOneAddressOfSeveralServers(t *testing.T) {
	t.Parallel()
	h := testenv.NewHosts(t, 3)
	servers := testenv.EtcdClusterOn(h)
	r := newRouter(t, servers[0].Addr)
	c, other := openClient(t, "etcd://"+r.addr), openClient(t, "etcd://"+servers[1].Addr)
	l, err := c.Lock(guard(t), "held")
	if err != nil {
		t.Fatal(err)
	}
	before, err := other.Lock(guard(t), "waited for")
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := c.Lock(guard(t), "waited for")
		granted <- err
	}()
	testenv.Eventually(t, func() bool {
		s, err := other.Inspect(guard(t), "waited for")
		return err == nil && s.Waiters == 1
	}, "the second client waits")
	for i := range 2 {
		h.Silence(0, i+1)
		h.Silence(i+1, 0)
	}
	r.lead(servers[2].Addr)
	testenv.Eventually(t, func() bool { return before.Unlock(guard(t)) == nil }, "the others have a leader")
	inTime(t, "the wait", func() error { return <-granted })
	inTime(t, "Unlock", func() error { return l.Unlock(guard(t)) })
}
