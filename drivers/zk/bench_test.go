package zk_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// The benchmarks compare the driver with NewLock of go-zookeeper on the same
// server, taking turns. x-newlock is the speed of the driver relative to
// NewLock.

func ours(tb testing.TB, s *testenv.ZooKeeperServer) drivertest.Locker {
	return drivertest.LockerOf(tb, openURL(tb, "zk://%s", s.Addr))
}

// newLocks returns a Locker by NewLock, with its own session.
func newLocks(tb testing.TB, s *testenv.ZooKeeperServer) drivertest.Locker {
	c := userClient(tb, s.Addr)
	return drivertest.LockerBy(tb, func(name string) (func() error, error) {
		l := gozk.NewLock(c, "/"+name, gozk.WorldACL(gozk.PermAll))
		return l.Unlock, l.Lock()
	})
}

// compare runs both in goroutines.
func compare(b *testing.B, goroutines int, name func(who string, i int) string) {
	s := testenv.ZooKeeper(b)
	our, their := ours(b, s), newLocks(b, s)
	rounds := max(10, 256/goroutines)
	for range 5 { // the server's JIT compiler warms up
		drivertest.Crowd(goroutines, rounds, func(i int) { their(name("theirs", i))() })
	}
	took := drivertest.InTurn(b,
		func() { drivertest.Crowd(goroutines, rounds, func(i int) { our(name("ours", i))() }) },
		func() { drivertest.Crowd(goroutines, rounds, func(i int) { their(name("theirs", i))() }) })
	b.ReportMetric(float64(took[1])/float64(took[0]), "x-newlock")
	b.ReportMetric(float64(b.N*rounds*goroutines)/took[0].Seconds(), "pairs/s")
}

// BenchmarkFree has goroutines that each lock a different free name.
func BenchmarkFree(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			compare(b, goroutines, func(who string, i int) string { return fmt.Sprint(who, i) })
		})
	}
}

// BenchmarkHot has 32 goroutines of one process lock one name.
func BenchmarkHot(b *testing.B) {
	compare(b, 32, func(who string, _ int) string { return who })
}

// BenchmarkCrowd has callers of one client wait for a held name. All of them
// wait before the first is granted the name.
func BenchmarkCrowd(b *testing.B) {
	s := testenv.ZooKeeper(b, "maxSessionTimeout=600000") // so that there are no pings
	for _, order := range []string{"client", "fifo"} {
		for _, waiters := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", order, waiters), func(b *testing.B) { crowd(b, s, order, waiters) })
		}
	}
}

// crowd reports the requests and the time per waiter, from the first call to
// the last release.
func crowd(b *testing.B, s *testenv.ZooKeeperServer, order string, waiters int) {
	c, err := dsync.Open(b.Context(), fmt.Sprintf("zk://%s?ttl=10m&order=%s", s.Addr, order), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(context.Background())
	inLine := int64(0) // of which all but the first wait in the process
	if order == "fifo" {
		inLine = int64(waiters)
	}
	start := s.Requests()
	own, asks := s.Requests()-start, int64(0) // the cost of asking the server
	requests := func() int64 {
		n := s.Requests() - asks*own
		asks++
		return n
	}
	drivertest.CrowdCost(b, c, order, waiters, requests, func() bool {
		asks++
		return s.Watches() >= inLine
	})
}

// BenchmarkHandOver measures the median time from one client's release to the
// grant to another, waiting client.
func BenchmarkHandOver(b *testing.B) {
	s := testenv.ZooKeeper(b)
	observer := userClient(b, s.Addr)
	waits := func(name string) func() {
		return func() {
			testenv.Eventually(b, func() bool { return len(children(b, observer, "/"+name)) == 2 }, "the other client waits")
		}
	}
	our := drivertest.HandOvers(b, [2]drivertest.Locker{ours(b, s), ours(b, s)}, "ours", waits("ours"))
	their := drivertest.HandOvers(b, [2]drivertest.Locker{newLocks(b, s), newLocks(b, s)}, "theirs", waits("theirs"))
	for range 200 { // the server's JIT compiler warms up
		their()
		our()
	}
	var a, t []time.Duration
	drivertest.InTurn(b, func() {
		for range 20 {
			a, t = append(a, our()), append(t, their())
		}
	})
	b.ReportMetric(float64(drivertest.Median(t))/float64(drivertest.Median(a)), "x-newlock")
	b.ReportMetric(float64(drivertest.Median(a)), "p50-ns")
}

// BenchmarkHeld reports the cost of a held and watched lock.
func BenchmarkHeld(b *testing.B) {
	s := testenv.ZooKeeper(b)
	drivertest.HoldMany(b, openURL(b, "zk://%s", s.Addr), func() { awaitQuiet(b, s) })
}

// awaitQuiet waits until the server gets no requests except pings.
func awaitQuiet(tb testing.TB, s *testenv.ZooKeeperServer) {
	tb.Helper()
	last := s.Requests()
	testenv.Eventually(tb, func() bool {
		<-time.After(time.Second)
		now := s.Requests()
		quiet := now-last <= 5
		last = now
		return quiet
	}, "the watches of all holds are set")
}
