package etcd_test

import (
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/testenv"
)

func init() { conformance.RunWorker() }

func TestConformance(t *testing.T) {
	s := testenv.Etcd(t)
	conform(t, false, userClient(t, s.Addr), nobody, s)
}

func TestConformancePackaged(t *testing.T) {
	t.Parallel()
	s := testenv.PackagedEtcd(t)
	conform(t, true, userClient(t, s.Addr), nobody, s)
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	servers := testenv.EtcdCluster(t, 3)
	conform(t, true, userClient(t, strings.Split(endpoints(servers), ",")...), nobody, servers...)
}

// someone is a user, and below what prefix that may read and write.
type someone struct{ name, password, prefix string }

var nobody someone // where all may do everything

// conform runs the suite as a user. Admin is a client that may do everything.
func conform(t *testing.T, brief bool, admin *clientv3.Client, user someone, servers ...*testenv.EtcdServer) {
	addrs := strings.Split(endpoints(servers), ",")
	url := "etcd://" + strings.Join(addrs, ",")
	if user != nobody {
		url = "etcd://" + user.name + ":" + user.password + "@" + strings.Join(addrs, ",") + "/" + user.prefix
	}
	var frozen *testenv.EtcdServer
	conformance.Run(t, conformance.Harness{TTL: 2 * time.Second, Brief: brief, Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				wire := new(conformance.Wire)
				tb.Cleanup(wire.Close)
				d, err := etcd.New(clientOver(tb, wire, user.name, user.password, addrs...), &etcd.Options{Prefix: user.prefix})
				if err != nil {
					tb.Fatal(err)
				}
				return d, wire.Link()
			},
			Expire: func(tb testing.TB, name string) { remove(tb, admin, user.prefix+name) },
			Freeze: func(tb testing.TB) {
				frozen = servers[leader(tb, admin, servers)]
				frozen.Freeze()
			},
			Thaw:    func(testing.TB) { frozen.Thaw() },
			Restart: func(tb testing.TB) { servers[leader(tb, admin, servers)].Restart() },
			URL:     url,
		}
	}})
}
