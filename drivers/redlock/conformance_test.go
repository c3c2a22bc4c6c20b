package redlock_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestMain of this package looks for leaked goroutines, which a worker does not
// need.
func init() { conformance.RunWorker() }

// The nodes keep their data when they are killed, so that the suite need not
// wait until they count again. parameters give the nodes time: on a busy
// machine a node may answer later than after the usual 50 ms, and a TryLock
// that a majority has neither granted nor refused in time is refused.
const parameters = "?durable=true&maxttl=10m&nodetimeout=1s"

// TestConformance uses exactly the rights of docs/backends, but for all names.
func TestConformance(t *testing.T) {
	t.Parallel()
	password := testenv.Password()
	words := strings.Fields(drivertest.Recipe(t, "**Redis, `redlock://`**"))
	args := []string{"--appendonly", "yes", "--appendfsync", "everysec", "--user", "locker", "on", ">" + password}
	for _, right := range words[slices.Index(words, "resetkeys"):] {
		args = append(args, strings.ReplaceAll(right, "lk:*", "*"))
	}
	user := "redlock://locker:" + password + "@"
	var nodes []*testenv.RedisServer
	var addresses []string
	for range 5 {
		s := testenv.Redis(t, args...)
		nodes, addresses = append(nodes, s), append(addresses, s.Addr)
	}
	all := func(f func(*testenv.RedisServer)) func(testing.TB) {
		return func(testing.TB) {
			for _, s := range nodes {
				f(s)
			}
		}
	}
	backend := &conformance.Backend{
		URL: user + strings.Join(addresses, ",") + parameters,
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			w := &wire.Wire{}
			tb.Cleanup(w.Close)
			var through []string
			for _, address := range addresses {
				addr, err := w.Listen(address)
				if err != nil {
					tb.Fatal(err)
				}
				through = append(through, addr)
			}
			d, _, err := driver.Open(tb.Context(), user+strings.Join(through, ",")+parameters)
			if err != nil {
				tb.Fatal(err)
			}
			return d, conformance.LinkOver(w)
		},
		Expire:  func(tb testing.TB, name string) { all(func(s *testenv.RedisServer) { s.Do("DEL", name) })(tb) },
		Freeze:  all(func(s *testenv.RedisServer) { s.Freeze() }),
		Thaw:    all(func(s *testenv.RedisServer) { s.Thaw() }),
		Restart: all(func(s *testenv.RedisServer) { s.Restart() }),
		Refuse:  all(func(s *testenv.RedisServer) { s.Refuse() }),
		Allow:   all(func(s *testenv.RedisServer) { s.Allow() }),
		Left: func(testing.TB) (left []string) { // on a majority: Close does not wait for the other nodes
			on := map[string]int{}
			for _, s := range nodes {
				for _, one := range s.Left() {
					if on[one]++; on[one] == len(nodes)/2+1 {
						left = append(left, one)
					}
				}
			}
			return left
		},
	}
	conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend { return backend }})
}
