package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
)

// TestPictures compares the output of `show` and `ls` in docs/operations.md
// with the code.
func TestPictures(t *testing.T) {
	seen := time.Date(2026, 11, 23, 12, 0, 5, 0, time.UTC)
	since := seen.Add(-83 * time.Second)
	const order = "orders/2026/11/23/customers/4711/invoice"
	reports := []Report{
		{Name: order, Held: true, Mode: "exclusive", Holders: 1, Hold: "56297dd8-ec68-4bce-b73c-cbe74a2eb28d:1", Owner: "worker-7", Note: "nightly run",
			Since: &since, TTLSeconds: 27.7, Waiters: 2, Queue: []string{"worker-3", "worker-9"}, Seen: seen},
		{Name: "reports", Held: true, Mode: "read", Holders: 3, Hold: "0f9e3c1a-7d15-4b0e-9c55-3a1de26a7b40:9", Owner: "dashboard", Since: &since, TTLSeconds: 14.2, Seen: seen},
	}
	var shown, listed strings.Builder
	if err := writeLocks(&shown, reports, false); err != nil {
		t.Fatal(err)
	}
	clitest.WantPicture(t, shown.String())
	if err := cli.WriteTable(&listed, 80, Rows(reports), 3); err != nil {
		t.Fatal(err)
	}
	clitest.WantPicture(t, listed.String())
}
