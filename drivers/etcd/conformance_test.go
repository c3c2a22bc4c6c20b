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

func TestConformance(t *testing.T) { conform(t, etcd.Options{}, false, testenv.Etcd(t)) }

func TestConformanceFIFO(t *testing.T) {
	t.Parallel()
	conform(t, etcd.Options{FIFO: true}, true, testenv.Etcd(t))
}

func TestConformancePackaged(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	conform(t, etcd.Options{}, true, testenv.PackagedEtcd(t))
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	conform(t, etcd.Options{}, true, testenv.EtcdCluster(t, 3)...)
}

func conform(t *testing.T, o etcd.Options, brief bool, servers ...*testenv.EtcdServer) {
	addrs := strings.Split(endpoints(servers), ",")
	c := userClient(t, addrs...)
	var frozen *testenv.EtcdServer
	url := ""
	if o.FIFO {
		url = "?order=fifo"
	}
	conformance.Run(t, conformance.Harness{TTL: 2 * time.Second, Brief: brief, Backend: func(testing.TB) *conformance.Backend {
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
			URL:     "etcd://" + strings.Join(addrs, ",") + url,
		}
	}})
}
