package etcd_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func init() { conformance.RunWorker() }

func TestConformance(t *testing.T) { conform(t, etcd.Options{}, nil, testenv.Etcd(t)) }

func TestConformanceFIFO(t *testing.T) {
	t.Parallel()
	conform(t, etcd.Options{FIFO: true}, drivertest.OrderGroups(), testenv.Etcd(t))
}

func TestConformancePackaged(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	conform(t, etcd.Options{}, nil, testenv.PackagedEtcd(t))
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	conform(t, etcd.Options{}, drivertest.ClusterGroups(), testenv.EtcdCluster(t, 3)...)
}

func conform(t *testing.T, o etcd.Options, groups []string, servers ...*testenv.EtcdServer) {
	addrs := strings.Split(endpoints(servers), ",")
	c := userClient(t, addrs...)
	var frozen *testenv.EtcdServer
	url := ""
	if o.FIFO {
		url = "?order=fifo"
	}
	conformance.Run(t, conformance.Harness{TTL: 2 * time.Second, Groups: groups, Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				w := new(wire.Wire)
				tb.Cleanup(w.Close)
				d, err := etcd.New(clientOver(tb, w, addrs...), &o)
				if err != nil {
					tb.Fatal(err)
				}
				return d, conformance.LinkOver(w)
			},
			Expire:     func(tb testing.TB, name string) { remove(tb, c, name) },
			ExpireHold: func(tb testing.TB, name, hold string) { removeHold(tb, c, name, hold) },
			Ping:       servers[0].Ping,
			Freeze: func(tb testing.TB) {
				frozen = servers[leader(tb, c, servers)]
				frozen.Freeze()
			},
			Thaw:    func(testing.TB) { frozen.Thaw() },
			Restart: func(tb testing.TB) { servers[leader(tb, c, servers)].Restart() },
			Refuse:  func(tb testing.TB) { alarm(tb, c, etcdserverpb.AlarmRequest_ACTIVATE) },
			Allow:   func(tb testing.TB) { alarm(tb, c, etcdserverpb.AlarmRequest_DEACTIVATE) },
			Left:    func(tb testing.TB) []string { return left(tb, c) },
			URL:     "etcd://" + strings.Join(addrs, ",") + url,
		}
	}})
}

// alarm makes the server report that it has no space, or that it has space
// again.
func alarm(tb testing.TB, c *clientv3.Client, action etcdserverpb.AlarmRequest_AlarmAction) {
	tb.Helper()
	_, err := etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(guard(tb), &etcdserverpb.AlarmRequest{
		Action: action, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// left returns the keys and leases of all clients, except the keys and leases
// for the ids of changes.
func left(tb testing.TB, c *clientv3.Client) (all []string) {
	tb.Helper()
	isChange := func(key string) bool { return strings.Contains(key, "\x00change\x00") }
	all = slices.DeleteFunc(keys(tb, c, ""), isChange)
	leases, err := c.Leases(guard(tb))
	if err != nil {
		tb.Fatal(err)
	}
	for _, l := range leases.Leases {
		of, err := c.TimeToLive(guard(tb), l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			tb.Fatal(err)
		}
		if !slices.ContainsFunc(of.Keys, func(key []byte) bool { return isChange(string(key)) }) {
			all = append(all, fmt.Sprintf("lease %x of %q", l.ID, of.Keys))
		}
	}
	return all
}
