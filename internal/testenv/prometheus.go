package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// PrometheusServer is a private Prometheus.
type PrometheusServer struct{ Server }

// Prometheus starts a Prometheus that scrapes the address target every second
// and evaluates the rules of a file. If Prometheus is not installed, the test
// is skipped, or fails if CI is set. A new Prometheus scrapes nothing for the
// first seconds.
func Prometheus(tb testing.TB, target, rules string) *PrometheusServer {
	tb.Helper()
	binary := need(tb, "prometheus", "prometheus")
	dir, port := tb.TempDir(), freePort(tb)
	config, err := json.Marshal(map[string]any{ // YAML is a superset of JSON
		// a scrape that takes longer fails
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "250ms"},
		"rule_files": []string{rules},
		"scrape_configs": []any{map[string]any{
			"job_name": "test", "static_configs": []any{map[string]any{"targets": []string{target}}},
		}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		tb.Fatal(err)
	}
	s := &PrometheusServer{}
	s.Server = Server{
		tb:    tb,
		name:  "prometheus",
		Addr:  fmt.Sprintf("127.0.0.1:%d", port),
		log:   filepath.Join(dir, "log"),
		ready: s.ask,
	}
	s.argv = []string{binary, "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + s.Addr}
	s.launch()
	return s
}

func (s *PrometheusServer) ask(ctx context.Context) error {
	_, err := s.get(ctx, "/-/ready")
	return err
}

func (s *PrometheusServer) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return body, err
}

// Query decodes the API's response at a path into data, as in "query" with the
// parameter query.
func (s *PrometheusServer) Query(path string, parameters url.Values, data any) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), hangGuard)
	defer cancel()
	body, err := s.get(ctx, "/api/v1/"+path+"?"+parameters.Encode())
	if err == nil {
		err = json.Unmarshal(body, &struct{ Data any }{data})
	}
	if err != nil {
		s.tb.Fatalf("prometheus: %s: %v", parameters, err)
	}
}

// Await calls done every 100 ms until it returns true.
func (s *PrometheusServer) Await(what string, done func() bool) {
	s.tb.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * hangGuard); !done(); <-tick.C {
		if time.Now().After(end) {
			s.tb.Fatalf("not within %v: %s; alerts that fire: %v", 2*hangGuard, what, s.Firing())
		}
	}
}

// Firing returns the names of the firing alerts.
func (s *PrometheusServer) Firing() map[string]bool {
	s.tb.Helper()
	var all struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	s.Query("alerts", nil, &all)
	firing := map[string]bool{}
	for _, a := range all.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]] = true
		}
	}
	return firing
}
