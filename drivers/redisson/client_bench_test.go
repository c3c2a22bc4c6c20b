package redisson

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// benchClient returns a client and, for the floor, its own driver on the same
// server.
func benchClient(b *testing.B, parameters string) (*dsync.Client, *Driver, *testenv.RedisServer) {
	s := testenv.Redis(b)
	d := openURL(b, "redisson://%s/", s.Addr)
	for _, sc := range []*redisdriver.Script{bareAcquire, bareRelease} {
		s.Do("SCRIPT", "LOAD", sc.Text)
	}
	c := client(b, s, parameters)
	_ = lock(b, c, "warm").Unlock(b.Context())
	return c, d, s
}

func lockUnlock(ctx context.Context, c *dsync.Client, name string) error {
	l, err := c.Lock(ctx, name)
	if err != nil {
		return err
	}
	return l.Unlock(ctx)
}

// BenchmarkLock measures Lock and Unlock of a free lock from one goroutine, and
// two bare scripts, in turn.
func BenchmarkLock(b *testing.B) {
	for _, fence := range fences {
		b.Run(fence.name, func(b *testing.B) {
			c, d, _ := benchClient(b, fence.parameters)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			r := request("bare")
			channel := prefixName(channelPrefix, r.Name)
			inTurn(b, func() error { return lockUnlock(ctx, c, "ours") }, func() error { return barePair(ctx, d, r, channel) })
		})
	}
}

// BenchmarkLockMany measures 64 goroutines with a name each, and bare scripts,
// in alternating slices.
func BenchmarkLockMany(b *testing.B) {
	const goroutines, slice = 64, 20
	c, d, s := benchClient(b, "")
	testenv.Apart(b, s.Pid())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	run := func(f func(i int) error) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				for range slice {
					if err := f(i); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	var names, channels [goroutines]string
	var requests [goroutines]*driver.Request
	for i := range goroutines {
		names[i] = fmt.Sprint("ours", i)
		requests[i] = request(fmt.Sprint("bare", i))
		channels[i] = prefixName(channelPrefix, requests[i].Name)
	}
	var ours, bare time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		ours += run(func(i int) error { return lockUnlock(ctx, c, names[i]) })
		bare += run(func(i int) error { return barePair(ctx, d, requests[i], channels[i]) })
	}
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "pairs/bare")
	b.ReportMetric(float64(rounds*slice*goroutines)/ours.Seconds(), "pairs/s")
}

// BenchmarkHandOver measures the time from Unlock in one client to the grant in
// another client, which waits.
func BenchmarkHandOver(b *testing.B) {
	c, _, s := benchClient(b, "")
	clients := [2]*dsync.Client{c, client(b, s, "")}
	var took []time.Duration
	held := lock(b, clients[0], "x")
	for i := 1; b.Loop(); i++ {
		granted := make(chan time.Time, 1)
		var next *dsync.Lease
		go func() {
			next = lock(b, clients[i%2], "x")
			granted <- time.Now()
		}()
		subscribers(b, s, "x", 1)
		start := time.Now()
		if err := held.Unlock(b.Context()); err != nil {
			b.Fatal(err)
		}
		took = append(took, (<-granted).Sub(start))
		held = next
	}
	b.ReportMetric(float64(drivertest.Median(took)), "p50-ns")
}

// BenchmarkHeld measures the cost of 10,000 locks that are held for two rounds
// of renewals.
func BenchmarkHeld(b *testing.B) {
	const locks = 10_000
	for b.Loop() {
		c, _, s := benchClient(b, "?ttl=3s")
		names := make([]string, locks)
		for i := range names {
			names[i] = fmt.Sprint("held", i)
		}
		leases := make([]*dsync.Lease, locks)
		before, goroutines := heapBytes(), runtime.NumGoroutine()
		parallel(64, func(i int) {
			for j := i; j < locks; j += 64 {
				leases[j] = lock(b, c, names[j])
			}
		})
		commands := s.Commands()
		start := time.Now()
		time.Sleep(2100 * time.Millisecond)
		requests := s.Commands()["evalsha"] - commands["evalsha"]
		b.ReportMetric(float64(requests)/time.Since(start).Seconds(), "renewal-requests/s")
		b.ReportMetric(float64(heapBytes()-before)/locks, "B/lock")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/locks, "goroutines/lock")
		for _, l := range leases {
			if err := l.Err(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
