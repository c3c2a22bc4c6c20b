package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// wantPicture fails the test unless docs/operations.md shows the text.
func wantPicture(t *testing.T, text string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "\n"+text) {
		t.Errorf("docs/operations.md does not show\n%s", text)
	}
}

// TestPictures holds what docs/operations.md shows of `show` and `ls` to the code.
func TestPictures(t *testing.T) {
	seen := time.Date(2026, 11, 23, 12, 0, 5, 0, time.UTC)
	since := seen.Add(-83 * time.Second)
	const order = "orders/2026/11/23/customers/4711/invoice"
	reports := []lockReport{
		{Name: order, Held: true, Mode: "exclusive", Holders: 1, Hold: "56297dd8-ec68-4bce-b73c-cbe74a2eb28d:1", Owner: "worker-7", Note: "nightly run",
			Since: &since, TTLSeconds: 27.7, Waiters: 2, Queue: []string{"worker-3", "worker-9"}, Seen: seen},
		{Name: "reports", Held: true, Mode: "read", Holders: 3, Hold: "0f9e3c1a-7d15-4b0e-9c55-3a1de26a7b40:9", Owner: "dashboard", Since: &since, TTLSeconds: 14.2, Seen: seen},
	}
	var shown, listed strings.Builder
	if err := writeLocks(&shown, reports, false); err != nil {
		t.Fatal(err)
	}
	wantPicture(t, shown.String())
	if err := writeTable(&listed, 80, longRows(reports), 3); err != nil {
		t.Fatal(err)
	}
	wantPicture(t, listed.String())
}

// TestPictureOfDoctor holds what docs/operations.md shows of `doctor` to what it says of a server, but for numbers.
func TestPictureOfDoctor(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	s.Do("ACL", "SETUSER", "default", "-subscribe")
	e := doctor(t, false, "redisson://"+s.Addr)
	var text strings.Builder
	numbers := []struct{ pattern, shown string }{
		{regexp.QuoteMeta(s.Addr), "redis:6379"}, {`[0-9.]+ ms`, "0.42 ms"}, {`\d+ of 10000`, "3 of 10000"}, {`machine, to .*`, "machine, to 1ms"}, {`redis [0-9.]+`, "redis 7.2.4"},
	}
	shown := func(text string) string {
		for _, n := range numbers {
			text = regexp.MustCompile(n.pattern).ReplaceAllString(text, n.shown)
		}
		return text
	}
	e.URL = shown(e.URL)
	for i := range e.Findings {
		e.Findings[i].Text = shown(e.Findings[i].Text)
	}
	if err := e.fill(&text, 80, func(_, text string) string { return text }); err != nil {
		t.Fatal(err)
	}
	wantPicture(t, text.String())
}
