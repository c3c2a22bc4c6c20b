package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/dsynctest"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	scrapeEvery = 15 * time.Second
	scrapes     = 240 // an hour
)

// scraped is the data that Prometheus has about a program. For each series, it
// contains the value of each scrape, or "_" if there is none.
type scraped map[string][]string

func (s scraped) scrape(t *testing.T, from *prometheus.Registry, n int) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				s.add(n, f.GetName(), m, "", m.GetCounter().GetValue())
			case dto.MetricType_GAUGE:
				s.add(n, f.GetName(), m, "", m.GetGauge().GetValue())
			case dto.MetricType_HISTOGRAM:
				h := m.GetHistogram()
				s.add(n, f.GetName()+"_count", m, "", float64(h.GetSampleCount()))
				s.add(n, f.GetName()+"_sum", m, "", h.GetSampleSum())
				s.add(n, f.GetName()+"_bucket", m, "+Inf", float64(h.GetSampleCount()))
				for _, b := range h.GetBucket() {
					s.add(n, f.GetName()+"_bucket", m, fmt.Sprint(b.GetUpperBound()), float64(b.GetCumulativeCount()))
				}
			}
		}
	}
}

// add adds a sample of scrape n. le is the bound of a bucket, or empty.
func (s scraped) add(n int, name string, m *dto.Metric, le string, value float64) {
	var labels []string
	for _, l := range m.GetLabel() {
		labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	if le != "" {
		labels = append(labels, fmt.Sprintf("le=%q", le))
	}
	name += "{" + strings.Join(labels, ",") + "}"
	for len(s[name]) < n {
		s[name] = append(s[name], "_")
	}
	s[name] = append(s[name], fmt.Sprint(value))
}

// hour returns the data that Prometheus has about a program that works for an
// hour, with an incident in the middle.
func hour(t *testing.T, happens func(t *testing.T, c *dsync.Client, d *memory.Driver)) scraped {
	t.Helper()
	s := scraped{}
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
		if err != nil {
			t.Fatal(err)
		}
		c, d := dsynctest.New(t, &dsync.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))})
		held, err := c.Lock(t.Context(), "leader")
		if err != nil {
			t.Fatal(err)
		}
		leading := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		go func() { // ends when ctx ends
			defer close(leading)
			_ = dsync.Elect(ctx, c, "planner", func(ctx context.Context, _ *dsync.Lease) error {
				<-ctx.Done()
				return nil
			})
		}()
		for n := range scrapes {
			synctest.Wait() // everything is reported
			s.scrape(t, registry, n)
			if n == scrapes/2 {
				happens(t, c, d)
			}
			work(t, c)
			time.Sleep(scrapeEvery - time.Second)
		}
		_ = held.Unlock(t.Context()) // it may be lost
		stop()
		<-leading
	})
	return s
}

// work is one second of normal work: locks, waits, refusals, canceled waits,
// and leases that end as intended.
func work(t *testing.T, c *dsync.Client) {
	end := time.Now().Add(time.Second)
	ctx := t.Context()
	if lease, err := c.TryLock(ctx, "orders/1", dsync.ExpireAfter(time.Second/2)); err == nil {
		_, _ = c.TryLock(ctx, "orders/1")
		_, _ = c.Lock(ctx, "orders/1", dsync.WaitAtMost(time.Second/4))
		<-lease.Done()
	}
	_, _ = c.TryLock(ctx, "leader")
	if lease, err := c.TryLock(ctx, "orders/2"); err == nil {
		_ = lease.Unlock(ctx)
	}
	time.Sleep(time.Until(end))
}

// TestAlerts lets promtool, which is the engine of Prometheus, evaluate
// docs/alerts.yml on the data that dsync reported in an hour.
func TestAlerts(t *testing.T) {
	for _, test := range []struct {
		name    string
		happens func(t *testing.T, c *dsync.Client, d *memory.Driver)
		after   time.Duration // after one scrape and one evaluation
		want    []string
	}{
		{"an hour of normal work", func(*testing.T, *dsync.Client, *memory.Driver) {}, time.Minute, nil},
		{"the first loss", func(t *testing.T, c *dsync.Client, d *memory.Driver) {
			if err := c.ForceUnlock(t.Context(), "leader"); err != nil {
				t.Error(err)
			}
		}, 45 * time.Second, []string{"DsyncLockLost"}},
		{"nobody leads", func(t *testing.T, c *dsync.Client, d *memory.Driver) {
			if err := c.ForceUnlock(t.Context(), "planner"); err != nil {
				t.Error(err)
			}
			if _, err := c.TryLock(t.Context(), "planner"); err != nil { // by a client that is not a candidate
				t.Error(err)
			}
		}, 4 * time.Minute, []string{"DsyncLockLost", "DsyncNoLeader"}},
		{"the first outage", func(t *testing.T, c *dsync.Client, d *memory.Driver) {
			d.Cut()
			go func() { _, _ = c.Lock(t.Context(), "orders/3") }() // ends when the client ends
		}, 90 * time.Second, []string{"DsyncBackendUnreachable", "DsyncCallsFail", "DsyncCallsWaitForBackend", "DsyncLockLost", "DsyncRenewalsFail"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const firing = `count by (alertname) (ALERTS{alertstate="firing"})`
			middle := scrapes / 2 * scrapeEvery
			fired := ask{firing, (middle + test.after).String(), nil}
			for _, name := range test.want {
				fired.Samples = append(fired.Samples, sample{fmt.Sprintf("{alertname=%q}", name), 1})
			}
			asks := []ask{fired}
			for at := time.Minute; at < middle; at += time.Minute {
				asks = append(asks, ask{firing, at.String(), nil})
			}
			hour(t, test.happens).check(t, asks)
		})
	}
}

// TestDashboardInPrometheus lets the engine of Prometheus answer all queries of
// the dashboard, some minutes after the start of an outage, when each panel has
// data.
func TestDashboardInPrometheus(t *testing.T) {
	s := hour(t, func(t *testing.T, c *dsync.Client, d *memory.Driver) {
		d.Cut()
		go func() { _, _ = c.Lock(t.Context(), "orders/3") }() // ends when the client ends
	})
	values := strings.NewReplacer("$driver", ".*", "$class", ".*", "$__rate_interval", "5m", "$__range", "1h")
	var asks []ask
	for what, query := range queries(t) {
		if !strings.HasPrefix(what, "variable ") {
			asks = append(asks, ask{"count(" + values.Replace(query) + ") >= bool 1", "33m", []sample{{"{}", 1}}})
		}
	}
	s.check(t, asks)
}

// ask is a query at a time after the start, with the expected result.
type ask struct {
	Expr    string   `json:"expr"`
	Time    string   `json:"eval_time"`
	Samples []sample `json:"exp_samples"`
}

type sample struct {
	Labels string `json:"labels"`
	Value  int    `json:"value"`
}

// check lets promtool compare the results of queries, with the alerts of
// docs/alerts.yml.
func (s scraped) check(t *testing.T, asks []ask) {
	t.Helper()
	promtool := testenv.Promtool(t)
	rules, err := filepath.Abs("../../docs/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var series []map[string]string
	for name, values := range s {
		series = append(series, map[string]string{"series": name, "values": strings.Join(values, " ")})
	}
	text, err := json.Marshal(map[string]any{ // YAML is a superset of JSON
		"rule_files": []string{rules}, "evaluation_interval": scrapeEvery.String(),
		"tests": []any{map[string]any{"interval": scrapeEvery.String(), "input_series": series, "promql_expr_test": asks}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%.3000s", err, out)
	}
}

// TestAlertsAreThoseOfThePage compares the table of docs/observability.md with
// the file.
func TestAlertsAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("../../docs/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)- alert: (\w+)\n +expr: (.*)$`).FindAllSubmatch(rules, -1)
	if len(names) == 0 {
		t.Error("the file has no alerts")
	}
	for _, m := range names {
		if !strings.Contains(string(page), "| `"+string(m[1])+"` | `"+string(m[2])+"` |") {
			t.Errorf("the page has no row `%s` | `%s`", m[1], m[2])
		}
	}
}
