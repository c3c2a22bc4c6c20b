package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// program runs the program in a new process, because it sets the global
// providers.
func program(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), append(env, "RUN_OBSERVABILITY=1")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}
	return string(out)
}

func TestMain(m *testing.M) {
	if os.Getenv("RUN_OBSERVABILITY") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestPrints(t *testing.T) {
	out := program(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT="}, "-buyers", "3", "-coupons", "2", "-slow", "30ms")
	for _, want := range []string{
		`^buyers: 3, coupons sold: 2, left: 0\n`,
		`\npurchase +[0-9a-f]{8} .*\n  dsync.acquire +[0-9a-f]{8} `,
		`\n    dsync.wait .* -> trace [0-9a-f]{8}`,
		`\n  dsync.unlock `,
		`\ndsync.acquires +3 +dsync.acquire.outcome=acquired dsync.driver=memory dsync.lock.class=coupons\n`,
		`\ndsync.hold.duration +3, mean 0\.`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("printed:\n%swant %s", out, want)
		}
	}
}

// TestExports uses a collector that the environment names. The collector
// receives protocol buffers, which contain text unchanged.
func TestExports(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		text, err := io.ReadAll(body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] += string(text)
	}))
	defer collector.Close()
	out := program(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL}, "-buyers", "2")
	if strings.Contains(out, "dsync.") {
		t.Errorf("printed despite a collector:\n%s", out)
	}
	for path, wants := range map[string][]string{
		"/v1/traces":  {"coupon-shop", "purchase", "dsync.acquire", "dsync.unlock", "dsync.wait"},
		"/v1/metrics": {"coupon-shop", "dsync.acquire.duration", "dsync.hold.count"},
	} {
		for _, want := range wants {
			if !strings.Contains(got[path], want) {
				t.Errorf("the collector got %d bytes at %s, want %s in them", len(got[path]), path, want)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-buyers", "0"}, {"-coupons", "-1"}, {"more"}, {"-unknown"}} {
		var stdout, stderr bytes.Buffer
		if got := run(t.Context(), args, &stdout, &stderr); got != 2 || stderr.Len() == 0 {
			t.Errorf("%q: exit status %d and %q, want 2 and an explanation", args, got, &stderr)
		}
	}
}
