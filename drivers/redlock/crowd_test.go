package redlock

import (
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
)

// fight has drivers take and release the lock x, each so many times on average, and returns how often each of them had it.
func fight(tb testing.TB, drivers []*Driver, each int) []int {
	tb.Helper()
	return drivertest.Fight(tb, drivers, each, func() *driver.Request { return request("x") })
}

func openMany(tb testing.TB, n int, url string) []*Driver {
	tb.Helper()
	drivers := make([]*Driver, n)
	for i := range drivers {
		drivers[i] = openURL(tb, "%s", url)
	}
	return drivers
}

// TestCrowdAsksInTurn: of many clients that wait, about one asks after a release, and all get the lock equally often.
func TestCrowdAsksInTurn(t *testing.T) {
	const n, each = 40, 10
	for _, count := range []int{3, 1} {
		nodes := startNodes(t, count)
		drivers := openMany(t, n, nodes.url()+settled)
		fight(t, drivers, 1) // all came at once; connections, and subscriptions
		var counts []int
		got := nodes.counted(func() { counts = fight(t, drivers, each) }, "set", "evalsha", "subscribe", "unsubscribe")
		t.Logf("%d nodes: commands for %d hand-overs: %v, Jain %.3f", count, n*each, got, drivertest.Jain(counts))
		// The floor is a release and a grant at each node, a refusal, and two writes to the line.
		if requests := float64(got["set"]+got["evalsha"]+got["subscribe"]+got["unsubscribe"]) / (n * each); requests > float64(10+4*count) {
			t.Errorf("%d nodes: commands for each hand-over: got %.1f", count, requests)
		}
		if got := drivertest.Jain(counts); got < 0.95 {
			t.Errorf("%d nodes: Jain's index of %v: got %.3f, want 0.95", count, counts, got)
		}
	}
}
