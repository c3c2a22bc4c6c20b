package main

import (
	"context"
	"maps"
	"math"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestAlertsInPrometheus lets a real Prometheus scrape a client whose backend
// is a real Redis. The client works as usual, loses a lock, and then loses its
// server. In short mode the rules do not wait for 30 s. TestAlerts covers an
// hour of normal work.
func TestAlertsInPrometheus(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../docs/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(rules), "for: 30s") != 1 {
		t.Fatal("docs/alerts.yml does not have the times that this test expects")
	}
	file := filepath.Join(t.TempDir(), "alerts.yml")
	text := strings.Replace(string(rules), "for: 30s", testenv.Briefly("for: 1s", "for: 30s"), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	metrics := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(metrics.Close)
	server := testenv.Prometheus(t, metrics.Listener.Addr().String(), file)

	redis := testenv.Redis(t)
	c, err := dsync.Open(t.Context(), "redisson://"+redis.Addr+"?ttl=6s", &dsync.Options{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)),
		Class:         func(name string) string { class, _, _ := strings.Cut(name, "/"); return class },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(t.Context()) })
	leader, err := c.Lock(t.Context(), "leader")
	if err != nil {
		t.Fatal(err)
	}
	server.Await("the first scrape", func() bool {
		var answer struct{ Result []any }
		server.Query("query", url.Values{"query": {`dsync_losses_total{dsync_lock_class="leader"}`}}, &answer)
		return len(answer.Result) > 0
	})
	elections, resign := context.WithCancel(t.Context())
	resigned := make(chan struct{})
	go func() {
		defer close(resigned)
		_ = dsync.Elect(elections, c, "planner", func(ctx context.Context, _ *dsync.Lease) error {
			<-ctx.Done()
			return nil
		})
	}()
	for began := time.Now(); time.Since(began) < 7*time.Second; work(t, c) { // more than a TTL
		if firing := server.Firing(); len(firing) > 0 {
			t.Fatalf("alerts during normal work: %v", firing)
		}
	}
	resign()
	<-resigned

	if err := c.ForceUnlock(t.Context(), "leader"); err != nil {
		t.Fatal(err)
	}
	<-leader.Done()
	server.Await("the alert of the first loss", func() bool { return server.Firing()["DsyncLockLost"] })
	if firing := server.Firing(); len(firing) != 1 {
		t.Errorf("alerts after a loss: %v", firing)
	}

	if _, err := c.Lock(t.Context(), "leader"); err != nil { // so that there is a lock to renew
		t.Fatal(err)
	}
	redis.Kill()
	go func() { _, _ = c.Lock(t.Context(), "orders/3") }() // ends when the client ends
	all := []string{"DsyncBackendUnreachable", "DsyncCallsFail", "DsyncCallsWaitForBackend", "DsyncLockLost", "DsyncRenewalsFail"}
	server.Await("all alerts of an outage", func() bool {
		_, _ = c.TryLock(t.Context(), "orders/1")
		return slices.Equal(slices.Sorted(maps.Keys(server.Firing())), all)
	})
	checkDashboard(t, server)
}

// checkDashboard makes all queries of the dashboard. A slow scrape leaves a
// gap, so queries without data are repeated.
func checkDashboard(t *testing.T, server *testenv.PrometheusServer) {
	values := strings.NewReplacer("$driver", ".*", "$class", ".*", "$__rate_interval", "5m", "$__range", "1h")
	for what, query := range queries(t) {
		server.Await("data for "+what, func() bool {
			if m := variablesInQuery.FindStringSubmatch(query); m != nil {
				var labels []string
				server.Query("label/"+m[2]+"/values", url.Values{"match[]": {m[1]}}, &labels)
				return len(labels) > 0
			}
			var answer struct {
				Result []struct{ Value [2]any }
			}
			server.Query("query", url.Values{"query": {values.Replace(query)}}, &answer)
			return slices.ContainsFunc(answer.Result, func(r struct{ Value [2]any }) bool {
				n, err := strconv.ParseFloat(r.Value[1].(string), 64)
				return err == nil && !math.IsNaN(n)
			})
		})
	}
}
