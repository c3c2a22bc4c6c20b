package drivertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Fight makes drivers acquire and release a lock until each has held it the
// given number of times on average. It returns the number of grants of each
// driver. Like package dsync, each driver pauses after a release so that others
// can acquire the lock.
func Fight[D driver.Driver](tb testing.TB, drivers []D, each int, request func() *driver.Request) []int {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	counts := make([]int, len(drivers))
	var all, inside atomic.Int64
	var wg sync.WaitGroup
	for i, d := range drivers {
		wg.Go(func() { // ends when ctx ends
			for ctx.Err() == nil {
				l, err := d.Acquire(ctx, request())
				if err != nil {
					if ctx.Err() == nil {
						tb.Errorf("Acquire: %v", err)
					}
					return
				}
				if n := inside.Add(1); n > 1 {
					tb.Errorf("%d drivers hold the lock at the same time", n)
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				Release(tb, l)
				counts[i]++
				if all.Add(1) == int64(each*len(drivers)) {
					cancel()
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	wg.Wait()
	return counts
}

// Jain returns Jain's fairness index: 1 if all values are equal.
func Jain[N int | int64 | float64](counts []N) float64 {
	var sum, squares float64
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(counts)) * squares)
}
