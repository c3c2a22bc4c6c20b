package main

import (
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	_ "github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/telemetrytest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// realBackend is a backend with servers of its own.
type realBackend struct {
	name  string
	start func(testing.TB) (addrs string)
	url   string // with HOSTS in place of the addresses
	telemetrytest.Backend
}

func realBackends() []realBackend {
	const ttl = 3 * time.Second
	password := testenv.Password()
	return []realBackend{
		{
			"redisson",
			func(tb testing.TB) string { return testenv.Redis(tb, "--requirepass", password).Addr },
			"redisson://:" + password + "@HOSTS",
			telemetrytest.Backend{TTL: ttl, CutOff: "unreachable", Forced: "removed", Notes: true},
		},
		{
			"redlock",
			func(tb testing.TB) string { return threeRedis(tb, "--requirepass", password) },
			"redlock://:" + password + "@HOSTS?durable=true",
			telemetrytest.Backend{TTL: ttl, CutOff: "unreachable", Forced: "removed"},
		},
		{
			"etcd",
			func(tb testing.TB) string { return testenv.Etcd(tb).Addr },
			"etcd://user:" + password + "@HOSTS",
			telemetrytest.Backend{TTL: ttl, CutOff: "unreachable", Forced: "removed", Notes: true},
		},
		{
			"zk",
			func(tb testing.TB) string { return testenv.ZooKeeper(tb).Addr },
			"zk://user:" + password + "@HOSTS?ttl=3s",
			telemetrytest.Backend{TTL: ttl, CutOff: "unreachable", Forced: "removed", Notes: true},
		},
		{
			"pglock",
			func(tb testing.TB) string { return testenv.Postgres(tb).Addr },
			"pglock://postgres:" + password + "@HOSTS/postgres?force_unlock=true",
			telemetrytest.Backend{TTL: ttl, CutOff: "unreachable", Forced: "session_ended"},
		},
	}
}

// through returns addresses that lead to servers, and functions that cut and
// heal the connections.
func through(tb testing.TB, addrs string) (hosts string, cut, heal func()) {
	w := new(wire.Wire)
	tb.Cleanup(w.Close)
	var ways []string
	for target := range strings.SplitSeq(addrs, ",") {
		addr, err := w.Listen(target)
		if err != nil {
			tb.Fatal(err)
		}
		ways = append(ways, addr)
	}
	return strings.Join(ways, ","), w.Cut, w.Heal
}

// threeRedis starts the servers of a redlock.
func threeRedis(tb testing.TB, args ...string) (addrs string) {
	return strings.Join([]string{testenv.Redis(tb, args...).Addr, testenv.Redis(tb, args...).Addr, testenv.Redis(tb, args...).Addr}, ",")
}

// TestTelemetryOnRealBackends runs the scenarios that the root package runs on
// memory.
func TestTelemetryOnRealBackends(t *testing.T) {
	for _, b := range realBackends() {
		t.Run(b.name, func(t *testing.T) {
			addrs := b.start(t)
			b.New = func(tb testing.TB) (driver.Driver, func()) {
				hosts, cut, _ := through(tb, addrs)
				d, _, err := driver.Open(tb.Context(), strings.Replace(b.url, "HOSTS", hosts, 1))
				if err != nil {
					tb.Fatal(err)
				}
				return d, cut
			}
			for _, s := range telemetrytest.Scenarios {
				t.Run(s.Name, func(t *testing.T) { s.Run(t, &b.Backend) })
			}
		})
	}
}
