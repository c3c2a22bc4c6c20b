package main

import (
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
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
	return []realBackend{
		{
			"redisson",
			func(tb testing.TB) string { return testenv.Redis(tb).Addr },
			"redisson://HOSTS",
			telemetrytest.Backend{TTL: ttl, CutOff: "unreachable", Forced: "removed"},
		},
		{
			"redlock",
			func(tb testing.TB) string {
				return strings.Join([]string{testenv.Redis(tb).Addr, testenv.Redis(tb).Addr, testenv.Redis(tb).Addr}, ",")
			},
			"redlock://HOSTS?durable=true",
			telemetrytest.Backend{TTL: ttl, CutOff: "unreachable"},
		},
		{
			"etcd",
			func(tb testing.TB) string { return testenv.Etcd(tb).Addr },
			"etcd://HOSTS",
			telemetrytest.Backend{TTL: ttl, CutOff: "expired", Forced: "removed", Notes: true},
		},
		{
			"pglock",
			func(tb testing.TB) string { return testenv.Postgres(tb).Addr },
			"pglock://postgres@HOSTS/postgres?force_unlock=true",
			telemetrytest.Backend{TTL: ttl, CutOff: "session_ended", Forced: "session_ended"},
		},
	}
}

// open opens another client of the backend, by way of proxies that cut it off.
func (b *realBackend) open(tb testing.TB, addrs string) (driver.Driver, func()) {
	var proxies []*testenv.Proxy
	var hosts []string
	for addr := range strings.SplitSeq(addrs, ",") {
		p := testenv.NewProxy(tb, addr)
		proxies, hosts = append(proxies, p), append(hosts, p.Addr)
	}
	d, _, err := driver.Open(tb.Context(), strings.Replace(b.url, "HOSTS", strings.Join(hosts, ","), 1))
	if err != nil {
		tb.Fatal(err)
	}
	return d, func() {
		for _, p := range proxies {
			p.Cut()
		}
	}
}

// TestTelemetryOnRealBackends runs there what the root package runs on memory.
func TestTelemetryOnRealBackends(t *testing.T) {
	for _, b := range realBackends() {
		t.Run(b.name, func(t *testing.T) {
			addrs := b.start(t)
			b.New = func(tb testing.TB) (driver.Driver, func()) { return b.open(tb, addrs) }
			for _, s := range telemetrytest.Scenarios {
				t.Run(s.Name, func(t *testing.T) { s.Run(t, &b.Backend) })
			}
		})
	}
}
