//go:build long

package etcd_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestConformance(t *testing.T) {
	conform(t, testenv.Etcd(t))
}

func TestConformancePackaged(t *testing.T) {
	conform(t, testenv.PackagedEtcd(t))
}

func conform(t *testing.T, s *testenv.EtcdServer) {
	c := userClient(t, s.Addr)
	conformance.Run(t, conformance.Harness{TTL: 2 * time.Second, Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				proxy := testenv.NewProxy(tb, s.Addr)
				d, _, err := driver.Open(guard(tb), "etcd://"+proxy.Addr)
				if err != nil {
					tb.Fatal(err)
				}
				return d, &conformance.Link{
					Cut:         proxy.Cut,
					Hang:        func() { proxy.Freeze(testenv.Both) },
					LoseAnswers: proxy.DropReplies,
					Heal:        proxy.Heal,
				}
			},
			Expire: func(tb testing.TB, name string) { // of its lease other holds would end as well
				answer, err := c.Get(guard(tb), name+"/", clientv3.WithFirstCreate()...)
				if err != nil {
					tb.Fatal(err)
				}
				for _, kv := range answer.Kvs {
					if _, err := c.Delete(guard(tb), string(kv.Key)); err != nil {
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
