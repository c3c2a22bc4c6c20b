package zk_test

import (
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestConformance(t *testing.T)         { conform(t, false, testenv.ZooKeeper(t)) }
func TestConformanceEnsemble(t *testing.T) { conform(t, true, testenv.ZooKeeperEnsemble(t, 3)...) }

// conform runs the suite. What happens to the server happens to the first one.
func conform(t *testing.T, brief bool, servers ...*testenv.ZooKeeperServer) {
	s, c := servers[0], userClient(t, servers[0].Addr)
	conformance.Run(t, conformance.Harness{TTL: time.Second, Brief: brief, Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			URL: "zk://" + s.Addr,
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				wire := new(conformance.Wire)
				tb.Cleanup(wire.Close)
				var addrs []string
				for _, s := range servers {
					addr, err := wire.Listen("tcp", s.Addr)
					if err != nil {
						tb.Fatal(err)
					}
					addrs = append(addrs, addr)
				}
				d, _, err := driver.Open(guard(tb), "zk://"+strings.Join(addrs, ","))
				if err != nil {
					tb.Fatal(err)
				}
				return d, wire.Link()
			},
			Expire: func(tb testing.TB, name string) { // with the session other holds would end as well
				for _, child := range first(tb, c, "/"+name) {
					if err := c.Delete("/"+name+"/"+child, -1); err != nil && err != gozk.ErrNoNode {
						tb.Fatal(err)
					}
				}
			},
			Freeze:  func(testing.TB) { s.Freeze() },
			Thaw:    func(testing.TB) { s.Thaw() },
			Restart: func(testing.TB) { s.Restart() },
		}
	}})
}
