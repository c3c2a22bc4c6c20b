package zk_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestConformance(t *testing.T) {
	s := testenv.ZooKeeper(t)
	conform(t, false, userClient(t, s.Addr), "", "", "", s)
}

// TestConformanceFIFO is with the order of arrival over all callers.
func TestConformanceFIFO(t *testing.T) {
	s := testenv.ZooKeeper(t)
	conform(t, true, userClient(t, s.Addr), "", "", "?order=fifo", s)
}

// TestConformanceEnsemble is with a user whom one node belongs to, and what is below, and none of the others.
func TestConformanceEnsemble(t *testing.T) {
	servers := testenv.ZooKeeperEnsemble(t, 3)
	c, user := userClient(t, servers[0].Addr), "locker:"+testenv.Password()
	_, err := c.Create("/app", nil, 0, gozk.DigestACL(gozk.PermAll, "locker", strings.TrimPrefix(user, "locker:")))
	if err := errors.Join(err, c.AddAuth("digest", []byte(user))); err != nil {
		t.Fatal(err)
	}
	conform(t, true, c, user+"@", "/app", "", servers...)
}

// conform runs the suite. What happens to the server happens to the first one.
func conform(t *testing.T, brief bool, c *gozk.Conn, user, chroot, query string, servers ...*testenv.ZooKeeperServer) {
	s := servers[0]
	conformance.Run(t, conformance.Harness{TTL: time.Second, Brief: brief, Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			URL: "zk://" + user + s.Addr + chroot + query,
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				w := new(wire.Wire)
				tb.Cleanup(w.Close)
				var addrs []string
				for _, s := range servers {
					addr, err := w.Listen(s.Addr)
					if err != nil {
						tb.Fatal(err)
					}
					addrs = append(addrs, addr)
				}
				d, _, err := driver.Open(guard(tb), "zk://"+user+strings.Join(addrs, ",")+chroot+query)
				if err != nil {
					tb.Fatal(err)
				}
				return d, conformance.LinkOver(w)
			},
			Expire: func(tb testing.TB, name string) { // with the session other holds would end as well
				for _, node := range append(first(tb, c, chroot+"/"+name), leases(tb, c, chroot+"/"+name)...) {
					if err := c.Delete(node, -1); err != nil && err != gozk.ErrNoNode {
						tb.Fatal(err)
					}
				}
			},
			ExpireHold: func(tb testing.TB, name, hold string) {
				for _, node := range append(contenders(tb, c, chroot+"/"+name), leases(tb, c, chroot+"/"+name)...) {
					text, _, err := c.Get(node)
					if err == nil && strings.Contains(string(text), strconv.Quote(hold)) {
						err = c.Delete(node, -1)
					}
					if err != nil && err != gozk.ErrNoNode {
						tb.Fatal(err)
					}
				}
			},
			Ping:    func(ctx context.Context) error { return pingEnsemble(ctx, c, servers) },
			Freeze:  func(testing.TB) { s.Freeze() },
			Thaw:    func(testing.TB) { s.Thaw() },
			Restart: func(testing.TB) { s.Restart() },
		}
	}})
}

// pingEnsemble asks all servers, and has a majority of them store a transaction without a change, as a session does to be sure of its life.
func pingEnsemble(ctx context.Context, c *gozk.Conn, servers []*testenv.ZooKeeperServer) error {
	answers := make(chan error, 1+len(servers))
	go func() { // ends with the answer, or with c
		_, err := c.Multi()
		answers <- err
	}()
	for _, s := range servers {
		go func() { answers <- s.Ping(ctx) }()
	}
	var all error
	for range cap(answers) {
		select {
		case err := <-answers:
			all = errors.Join(all, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return all
}
