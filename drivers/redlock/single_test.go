package redlock_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestConformanceOfOneServer uses exactly the rights of docs/backends, but for
// all names.
func TestConformanceOfOneServer(t *testing.T) {
	t.Parallel()
	password := testenv.Password()
	words := strings.Fields(drivertest.Recipe(t, "**Redis, `redlock://`**"))
	args := []string{"--appendonly", "yes", "--appendfsync", "everysec", "--user", "locker", "on", ">" + password}
	for _, right := range words[slices.Index(words, "resetkeys"):] {
		args = append(args, strings.ReplaceAll(right, "lk:*", "*"))
	}
	server := testenv.Redis(t, args...)
	url := func(address string) string { return "redis-string://locker:" + password + "@" + address + parameters }
	backend := &conformance.Backend{
		URL: url(server.Addr),
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			w := &wire.Wire{}
			tb.Cleanup(w.Close)
			through, err := w.Listen(server.Addr)
			if err != nil {
				tb.Fatal(err)
			}
			d, _, err := driver.Open(tb.Context(), url(through))
			if err != nil {
				tb.Fatal(err)
			}
			return d, conformance.LinkOver(w)
		},
		Expire:  func(_ testing.TB, name string) { server.Do("DEL", name) },
		Freeze:  func(testing.TB) { server.Freeze() },
		Thaw:    func(testing.TB) { server.Thaw() },
		Restart: func(testing.TB) { server.Restart() },
		Refuse:  func(testing.TB) { server.Refuse() },
		Allow:   func(testing.TB) { server.Allow() },
		Left:    func(testing.TB) []string { return server.Left() },
	}
	conformance.Run(t, conformance.Harness{
		Backend: func(testing.TB) *conformance.Backend { return backend },
		Groups:  drivertest.ClusterGroups(),
	})
}
