package redisson_test

import (
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestMain of this package looks for goroutines that are left, of which a worker has none to show.
func init() { conformance.RunWorker() }

func TestConformance(t *testing.T) { testConformance(t, "", false) }

func TestConformanceFair(t *testing.T) { testConformance(t, "?fair=true", true) }

func testConformance(t *testing.T, parameters string, brief bool) {
	server := testenv.Redis(t)
	backend := &conformance.Backend{
		URL: "redisson://" + server.Addr + parameters,
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			wire := &conformance.Wire{}
			tb.Cleanup(wire.Close)
			addr, err := wire.Listen("tcp", server.Addr)
			if err != nil {
				tb.Fatal(err)
			}
			d, _, err := driver.Open(tb.Context(), "redisson://"+addr+parameters)
			if err != nil {
				tb.Fatal(err)
			}
			return d, wire.Link()
		},
		Expire:  func(_ testing.TB, name string) { server.Do("DEL", name) },
		Freeze:  func(testing.TB) { server.Freeze() },
		Thaw:    func(testing.TB) { server.Thaw() },
		Restart: func(testing.TB) { server.Restart() },
	}
	conformance.Run(t, conformance.Harness{
		Backend: func(testing.TB) *conformance.Backend { return backend },
		TTL:     time.Second,
		Brief:   brief,
	})
}
