package zk_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// quotas is a setting of servers that refuse nodes beyond a quota.
const quotas = "enforceQuota=true"

// shortSessions is a setting of servers for the suite, which waits for
// Info.Late in many checks. A quarter of the longest timeout of a session is
// part of it.
const shortSessions = "maxSessionTimeout=20000"

func TestConformance(t *testing.T) {
	s := testenv.ZooKeeper(t, quotas, shortSessions)
	conform(t, userClient(t, s.Addr), "", "", "", nil, s)
}

// TestConformanceFIFO runs the suite with the order of arrival over all
// callers.
func TestConformanceFIFO(t *testing.T) {
	s := testenv.ZooKeeper(t, quotas, shortSessions)
	conform(t, userClient(t, s.Addr), "", "", "?order=fifo", drivertest.OrderGroups(), s)
}

// TestConformanceEnsemble runs the suite with a user that owns one node and the
// nodes below it, and no others.
func TestConformanceEnsemble(t *testing.T) {
	servers := testenv.ZooKeeperEnsemble(t, 3, quotas, shortSessions)
	c, user := userClient(t, servers[0].Addr), "locker:"+testenv.Password()
	_, err := c.Create("/app", nil, 0, gozk.DigestACL(gozk.PermAll, "locker", strings.TrimPrefix(user, "locker:")))
	if err := errors.Join(err, c.AddAuth("digest", []byte(user))); err != nil {
		t.Fatal(err)
	}
	conform(t, c, user+"@", "/app", "", drivertest.ClusterGroups(), servers...)
}

// conform runs the suite. Faults of the server affect the first one.
func conform(t *testing.T, c *gozk.Conn, user, chroot, query string, groups []string, servers ...*testenv.ZooKeeperServer) {
	s := servers[0]
	var refuse, allow func(testing.TB)
	if v := s.Version(); !strings.HasPrefix(v, "3.5.") && !strings.HasPrefix(v, "3.6.") { // these only log what exceeds a quota
		refuse = func(tb testing.TB) { setQuota(tb, c, chroot+"/conformance", 1) }
		allow = func(tb testing.TB) { setQuota(tb, c, chroot+"/conformance", -1) }
	}
	conformance.Run(t, conformance.Harness{TTL: time.Second, Groups: groups, Backend: func(testing.TB) *conformance.Backend {
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
			Expire: func(tb testing.TB, name string) { // deleting the session would end other holds as well
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
			Ping:   func(ctx context.Context) error { return pingEnsemble(ctx, c, servers) },
			Freeze: func(testing.TB) { s.Freeze() },
			Thaw:   func(testing.TB) { s.Thaw() },
			Restart: func(tb testing.TB) {
				s.Restart()
				testenv.Eventually(tb, func() bool { _, _, err := c.Exists("/"); return err == nil }, "the harness is connected again")
			},
			Refuse: refuse,
			Allow:  allow,
			Left:   func(tb testing.TB) []string { return left(tb, c, "") },
		}
	}})
}

// pingEnsemble asks all servers, and has a majority of them store a transaction
// without a change, as a session does to confirm that it is alive.
func pingEnsemble(ctx context.Context, c *gozk.Conn, servers []*testenv.ZooKeeperServer) error {
	answers := make(chan error, 1+len(servers))
	go func() { // ends when the answer arrives or c ends
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

// setQuota limits the number of nodes at a path and below; -1 means no limit.
func setQuota(tb testing.TB, c *gozk.Conn, path string, nodes int) {
	tb.Helper()
	quota := "/zookeeper/quota" + path
	limits := fmt.Sprintf("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=%d", nodes)
	for i, slash := range quota {
		if slash == '/' && i > len("/zookeeper") {
			create(tb, c, quota[:i], "")
		}
	}
	create(tb, c, quota, "")
	create(tb, c, quota+"/zookeeper_stats", "count=-1,bytes=-1")
	create(tb, c, quota+"/zookeeper_limits", limits)
	if _, err := c.Set(quota+"/zookeeper_limits", []byte(limits), -1); err != nil {
		tb.Fatal(err)
	}
}

// create makes a node unless it exists.
func create(tb testing.TB, c *gozk.Conn, path, value string) {
	tb.Helper()
	if _, err := c.Create(path, []byte(value), 0, gozk.WorldACL(gozk.PermAll)); err != nil && err != gozk.ErrNodeExists {
		tb.Fatal(err)
	}
}

// left returns the nodes of sessions at a path and below. The nodes of names
// stay until the server removes the empty ones. Ids of changes and limits also
// stay.
func left(tb testing.TB, c *gozk.Conn, path string) (all []string) {
	tb.Helper()
	names, _, err := c.Children(cmp.Or(path, "/"))
	if err == gozk.ErrNoNode || err == gozk.ErrNoAuth { // it is gone, or belongs to the user of another check
		return nil
	}
	if err != nil {
		tb.Fatal(err)
	}
	for _, child := range names {
		if node := path + "/" + child; node != "/zookeeper" {
			all = append(all, left(tb, c, node)...)
		}
	}
	_, stat, err := c.Exists(cmp.Or(path, "/"))
	if err != nil {
		tb.Fatal(err)
	}
	if stat != nil && stat.EphemeralOwner > 0 { // the owner of a container is negative
		all = append(all, fmt.Sprintf("node %s of session %x", path, stat.EphemeralOwner))
	}
	return all
}
