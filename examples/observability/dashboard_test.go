package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/telemetrytest"
)

// series are the names of the series that Prometheus gets, with their labels.
type series map[string]map[string]bool

// exported triggers everything that dsync reports and returns the data for
// Prometheus.
func exported(t *testing.T) series {
	t.Helper()
	all := series{}
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
		if err != nil {
			t.Fatal(err)
		}
		telemetrytest.Everything(t, dsync.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))})
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			labels := map[string]bool{}
			names := []string{f.GetName()}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = true
				}
				if m.GetHistogram() != nil {
					names = []string{f.GetName() + "_count", f.GetName() + "_sum", f.GetName() + "_bucket"}
				}
			}
			for _, name := range names {
				all[name] = maps.Clone(labels)
				if strings.HasSuffix(name, "_bucket") {
					all[name]["le"] = true
				}
			}
		}
	})
	return all
}

// queries returns all queries of the dashboard with their purposes.
func queries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = target.Expr
			for _, m := range regexp.MustCompile(`{{(\w*)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([^)]*\b` + m[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("%s: the legend names %s, but the query does not sum by it", p.Title, m[1])
				}
			}
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			all["variable "+v.Name] = v.Definition
		}
	}
	return all
}

var (
	variablesInQuery = regexp.MustCompile(`label_values\((\w+), (\w+)\)`)
	selectorInQuery  = regexp.MustCompile(`(\w+)\{([^}]*)\}`)
	matcherInQuery   = regexp.MustCompile(`(\w+)=~?"[^"]*"`)
	groupingInQuery  = regexp.MustCompile(`by \(([^)]*)\)`)
	wordsOfPromQL    = regexp.MustCompile(`\$\w+|\b(?:histogram_quantile|increase|rate|sum|or|vector)\b|\b[0-9.]+\b`)
)

// check returns the series that a query uses but that do not exist, or the part
// of the query that it does not understand.
func (s series) check(query string) (wrong []string) {
	need := func(metric, label string) {
		if !s[metric][label] {
			wrong = append(wrong, metric+" with label "+label)
		}
	}
	rest := query
	if m := variablesInQuery.FindStringSubmatch(query); m != nil {
		need(m[1], m[2])
		rest = strings.Replace(rest, m[0], "", 1)
	}
	groups := groupingInQuery.FindAllStringSubmatch(query, -1)
	for _, m := range selectorInQuery.FindAllStringSubmatch(query, -1) {
		for _, l := range matcherInQuery.FindAllStringSubmatch(m[2], -1) {
			need(m[1], l[1])
		}
		for _, g := range groups {
			for label := range strings.SplitSeq(g[1], ", ") {
				need(m[1], label)
			}
		}
	}
	for _, part := range []*regexp.Regexp{selectorInQuery, groupingInQuery, wordsOfPromQL} {
		rest = part.ReplaceAllString(rest, "")
	}
	if rest = strings.Trim(rest, " ()[],/"); regexp.MustCompile(`\w`).MatchString(rest) {
		wrong = append(wrong, "unknown words in "+rest)
	}
	return wrong
}

func TestDashboard(t *testing.T) {
	all := exported(t)
	used := map[string]bool{}
	for what, query := range queries(t) {
		for _, wrong := range all.check(query) {
			t.Errorf("%s: %s is not among the series that Prometheus gets", what, wrong)
		}
		for _, m := range selectorInQuery.FindAllStringSubmatch(query, -1) {
			used[m[1]] = true
		}
	}
	for name := range all {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		ours := strings.HasPrefix(name, "dsync_")
		if ours && !used[name] && !used[base+"_bucket"] && !used[base+"_count"] {
			t.Errorf("no panel shows %s", name)
		}
	}
	if t.Failed() {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t.Logf("%s %v", name, slices.Sorted(maps.Keys(all[name])))
		}
	}
}

// TestDashboardCheck shows that the check finds mistakes.
func TestDashboardCheck(t *testing.T) {
	s := series{"a_total": {"x": true}, "b_bucket": {"x": true, "le": true}}
	for query, want := range map[string]int{
		`sum by (x) (rate(a_total{x="1"}[$__rate_interval]))`:                               0,
		`histogram_quantile(0.99, sum by (le) (rate(b_bucket{x=~"$x"}[$__rate_interval])))`: 0,
		`sum(increase(a_total{x="1"}[$__range])) or vector(0)`:                              0,
		`label_values(a_total, x)`:                                                          0,
		`sum by (y) (a_total{x="1"})`:                                                       1,
		`sum by (x) (a_total{y="1"})`:                                                       1,
		`sum(c_total{x="1"}) / sum(a_total{})`:                                              1,
		`label_values(a_total, y)`:                                                          1,
		`sum(a_total)`:                                                                      1, // a metric without braces
		`sum without (x) (rate(a_total{}[5m]))`:                                             1,
	} {
		if got := s.check(query); len(got) != want {
			t.Errorf("%s: %q, want %d mistakes", query, got, want)
		}
	}
}

// points returns the points of some counters by their names and labels.
func points(t *testing.T, registry *prometheus.Registry, names ...string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if !slices.Contains(names, f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			if !strings.Contains(m.String(), `value:"ok"`) {
				all[f.GetName()+" "+fmt.Sprint(m.GetLabel())] = m.GetCounter().GetValue()
			}
		}
	}
	return all
}

// TestIncreaseSeesTheFirst checks that each counter used by an alert is
// reported as 0 before it counts. If the first value that Prometheus gets is 1,
// increase() is 0, because the counter has not risen.
func TestIncreaseSeesTheFirst(t *testing.T) {
	for name, backend := range map[string]memory.Options{"renewed": {}, "sessions": {KeepsAlive: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
				if err != nil {
					t.Fatal(err)
				}
				d := memory.New(&backend)
				c, err := dsync.New(d, &dsync.Options{
					MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)),
					Class:         func(string) string { return "orders" },
				})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close(t.Context())
				removed, err := c.Lock(t.Context(), "removed")
				if err != nil {
					t.Fatal(err)
				}
				lost, err := c.Lock(t.Context(), "lost")
				if err != nil {
					t.Fatal(err)
				}
				watched := []string{"dsync_losses_total", "dsync_renewals_total", "dsync_acquire_retries_total"}
				before := points(t, registry, watched...)
				if err := c.ForceUnlock(t.Context(), "removed"); err != nil {
					t.Fatal(err)
				}
				<-removed.Done()
				d.Cut()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := c.Lock(ctx, "other"); err == nil {
					t.Error("Lock of a backend that is out of reach succeeded")
				}
				<-lost.Done()
				d.Heal()
				synctest.Wait()
				rose := 0
				for point, value := range points(t, registry, watched...) {
					if first, ok := before[point]; !ok || first != 0 {
						t.Errorf("%s was %v (there: %t) before, want 0", point, first, ok)
					}
					if value > 0 {
						rose++
					}
				}
				if rose != 4 { // two losses, renewals that failed, and retries
					t.Errorf("%d points rose, want 4", rose)
				}
			})
		})
	}
}
