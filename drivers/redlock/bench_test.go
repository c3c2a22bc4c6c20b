package redlock

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// The comparison with redsync on the same nodes is in test/bench.

func addresses(nodes servers) []string {
	var all []string
	for _, s := range nodes {
		all = append(all, s.Addr)
	}
	return all
}

func dsyncOn(tb testing.TB, nodes servers) *dsync.Client {
	tb.Helper()
	c, err := dsync.Open(context.Background(), nodes.url()+settled, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return c
}

func ours(c *dsync.Client, name string) error {
	l, err := c.Lock(context.Background(), name)
	if err != nil {
		return err
	}
	return l.Unlock(context.Background())
}

func benchNodes(b *testing.B) servers {
	nodes := startNodes(b, 5)
	var pids []int
	for _, s := range nodes {
		pids = append(pids, s.Pid())
	}
	testenv.Apart(b, pids...)
	return nodes
}

// frozen runs a benchmark on nodes that all answer, and with one node that does
// not.
func frozen(b *testing.B, run func(b *testing.B, c *dsync.Client)) {
	for _, n := range []int{0, 1} {
		b.Run("frozen="+strconv.Itoa(n), func(b *testing.B) {
			nodes := benchNodes(b)
			c := dsyncOn(b, nodes)
			if err := ours(c, "warm"); err != nil {
				b.Fatal(err)
			}
			for _, s := range nodes[:n] {
				s.Freeze()
				defer s.Thaw()
			}
			run(b, c)
		})
	}
}

func BenchmarkFreeLock(b *testing.B) {
	frozen(b, func(b *testing.B, c *dsync.Client) {
		var took []time.Duration
		b.ReportAllocs()
		for b.Loop() {
			start := time.Now()
			if err := ours(c, "bench"); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		b.ReportMetric(float64(drivertest.Median(took)), "p50-ns")
	})
}

// crowd has goroutines lock and unlock, each the given number of times.
func crowd(b *testing.B, c *dsync.Client, goroutines, each int, name func(i int) string) {
	pairs := 0
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				for range each {
					if err := ours(c, name(i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		pairs += goroutines * each
	}
	b.ReportMetric(float64(pairs)/b.Elapsed().Seconds(), "pairs/s")
}

func BenchmarkManyLocks(b *testing.B) {
	frozen(b, func(b *testing.B, c *dsync.Client) {
		crowd(b, c, 64, 20, func(i int) string { return "bench" + strconv.Itoa(i) })
	})
}

func BenchmarkHotLock(b *testing.B) {
	crowd(b, dsyncOn(b, benchNodes(b)), 32, 4, func(int) string { return "hot" })
}

// BenchmarkHandOver measures the time from the release of one client to the
// grant of another client, which waits.
func BenchmarkHandOver(b *testing.B) {
	nodes := benchNodes(b)
	c1, c2 := dsyncOn(b, nodes), dsyncOn(b, nodes)
	const settle = 5 * time.Millisecond
	var took []time.Duration
	for b.Loop() {
		l, err := c1.Lock(context.Background(), "hand")
		if err != nil {
			b.Fatal(err)
		}
		granted := make(chan time.Time)
		go func() {
			l2, err := c2.Lock(context.Background(), "hand")
			if err != nil {
				b.Error(err)
			}
			granted <- time.Now()
			if err := l2.Unlock(context.Background()); err != nil {
				b.Error(err)
			}
			granted <- time.Now()
		}()
		time.Sleep(settle)
		start := time.Now()
		if err := l.Unlock(context.Background()); err != nil {
			b.Fatal(err)
		}
		took = append(took, (<-granted).Sub(start))
		<-granted
	}
	b.ReportMetric(float64(drivertest.Median(took)), "p50-ns")
}
