package drivertest

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// Locker locks a name with any library. An error fails the benchmark.
type Locker func(name string) (unlock func())

// LockerOf returns the Locker of a driver.
func LockerOf(tb testing.TB, d driver.Driver) Locker {
	return LockerBy(tb, func(name string) (func() error, error) {
		l, err := d.Acquire(context.Background(), Request(name))
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	})
}

// LockerBy makes a Locker from functions that return errors.
func LockerBy(tb testing.TB, lock func(name string) (unlock func() error, err error)) Locker {
	return func(name string) func() {
		unlock, err := lock(name)
		if err != nil {
			tb.Error(err)
			return func() {}
		}
		return func() {
			if err := unlock(); err != nil {
				tb.Error(err)
			}
		}
	}
}

// InTurn runs slices of work alternately, so that all of them run under the
// same conditions, and returns the total duration of each. The first turns,
// when servers and caches are cold, do not count.
func InTurn(b *testing.B, slices ...func()) []time.Duration {
	const cold = 3
	for range cold {
		for _, slice := range slices {
			slice()
		}
	}
	took := make([]time.Duration, len(slices))
	for b.Loop() {
		for i, slice := range slices {
			start := time.Now()
			slice()
			took[i] += time.Since(start)
		}
	}
	return took
}

// Crowd runs f in goroutines, for a number of rounds in each.
func Crowd(goroutines, rounds int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for range rounds {
				f(i)
			}
		})
	}
	wg.Wait()
}

// CrowdCost reports the number of requests and the time that each caller costs,
// from the first call to the last release. The callers belong to one client and
// wait for a name that another caller of that client holds. The waits callback
// reports whether the server sees the expected number of waiters.
func CrowdCost(b *testing.B, c *dsync.Client, name string, waiters int, requests func() int64, waits func() bool) {
	lock := func() *dsync.Lease {
		l, err := c.Lock(b.Context(), name)
		if err != nil {
			b.Error(err)
			return nil
		}
		return l
	}
	unlock := func(l *dsync.Lease) {
		if l == nil {
			return
		}
		if err := l.Unlock(b.Context()); err != nil {
			b.Error(err)
		}
	}
	var requested int64
	for b.Loop() {
		before := requests()
		held := lock()
		var all sync.WaitGroup
		var asked atomic.Int64
		for range waiters {
			all.Go(func() {
				asked.Add(1)
				unlock(lock())
			})
		}
		testenv.Eventually(b, func() bool { return waits() && asked.Load() == int64(waiters) }, "all wait")
		unlock(held)
		all.Wait()
		requested += requests() - before
	}
	n := float64(b.N * waiters)
	b.ReportMetric(float64(requested)/n, "requests/waiter")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/n, "µs/waiter")
}

// HandOvers returns a function that hands a lock over between two clients, back
// and forth. It returns the time from the start of the release to the grant.
// The waits callback returns when the server shows that the other client is
// waiting.
func HandOvers(b *testing.B, clients [2]Locker, name string, waits func()) func() time.Duration {
	type grant struct {
		at     time.Time
		unlock func()
	}
	unlock, turn := clients[0](name), 0
	b.Cleanup(func() { unlock() })
	return func() time.Duration {
		turn++
		next, granted := clients[turn%2], make(chan grant)
		go func() { // ends when the hand-over ends
			unlock := next(name)
			granted <- grant{time.Now(), unlock}
		}()
		waits()
		<-time.After(5 * time.Millisecond) // gives the waiter time to set its watch
		start := time.Now()
		unlock()
		g := <-granted
		unlock = g.unlock
		return g.at.Sub(start)
	}
}

// Median returns the upper median.
func Median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// Heap returns the number of bytes in use on the heap.
func Heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// HoldMany holds b.N different locks and reports the cost of each in the
// driver. The settled callback waits until everything has settled.
func HoldMany(b *testing.B, d driver.Driver, settled func()) {
	const warm = 100
	requests := make([]*driver.Request, warm+b.N) // the requests are not part of the driver
	for i := range requests {
		requests[i] = Request("held-" + time.Duration(i).String())
	}
	hold := func(requests []*driver.Request) {
		for _, r := range requests {
			if _, err := d.Acquire(context.Background(), r); err != nil {
				b.Fatal(err)
			}
		}
	}
	hold(requests[:warm])
	before := Heap()
	b.ResetTimer()
	hold(requests[warm:])
	b.StopTimer()
	settled()
	b.ReportMetric(float64(Heap()-before)/float64(b.N), "B/lock")
	runtime.KeepAlive(requests)
}
