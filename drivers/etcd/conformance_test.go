package etcd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/testenv"
)

func init() { conformance.RunWorker() }

func TestConformance(t *testing.T) { conform(t, false, testenv.Etcd(t)) }

func TestConformancePackaged(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	conform(t, true, testenv.PackagedEtcd(t))
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	conform(t, true, testenv.EtcdCluster(t, 3)...)
}

func conform(t *testing.T, brief bool, servers ...*testenv.EtcdServer) {
	addrs := strings.Split(endpoints(servers), ",")
	c := userClient(t, addrs...)
	var frozen *testenv.EtcdServer
	conformance.Run(t, conformance.Harness{TTL: 2 * time.Second, Brief: brief, Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				w := new(wire.Wire)
				tb.Cleanup(w.Close)
				d, err := etcd.New(clientOver(tb, w, addrs...), nil)
				if err != nil {
					tb.Fatal(err)
				}
				return d, conformance.LinkOver(w)
			},
			Expire: func(tb testing.TB, name string) { remove(tb, c, name) },
			Ping:   servers[0].Ping,
			Freeze: func(tb testing.TB) {
				frozen = servers[leader(tb, c, servers)]
				frozen.Freeze()
			},
			Thaw:    func(testing.TB) { frozen.Thaw() },
			Restart: func(tb testing.TB) { servers[leader(tb, c, servers)].Restart() },
			URL:     "etcd://" + strings.Join(addrs, ","),
		}
	}})
}
