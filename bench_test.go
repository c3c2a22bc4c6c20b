package dsync_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

func benchClient(b *testing.B, o *memory.Options) *dsync.Client {
	c, err := dsync.New(memory.New(o), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close(context.Background()) })
	b.ReportAllocs()
	return c
}

func lockUnlock(b *testing.B, l dsync.Locker, name string) {
	lease, err := l.Lock(b.Context(), name)
	if err != nil {
		b.Fatal(err)
	}
	if err := lease.Unlock(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkFree(b *testing.B) {
	c := benchClient(b, nil)
	for b.Loop() {
		lockUnlock(b, c, "x")
	}
}

func BenchmarkFreeParallel(b *testing.B) {
	c := benchClient(b, nil)
	b.SetParallelism(32)
	var n sync.Map
	b.RunParallel(func(pb *testing.PB) {
		name := fmt.Sprintf("%p", pb)
		n.Store(name, true)
		for pb.Next() {
			lockUnlock(b, c, name)
		}
	})
}

func BenchmarkReentry(b *testing.B) {
	o := benchClient(b, nil).NewOwner()
	lease, err := o.Lock(b.Context(), "x")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		lockUnlock(b, o, "x")
	}
	_ = lease.Unlock(b.Context())
}

func BenchmarkErr(b *testing.B) {
	lease, err := benchClient(b, nil).Lock(b.Context(), "x")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if lease.Err() != nil {
			b.Fatal(lease.Err())
		}
	}
	_ = lease.Unlock(b.Context())
}

// BenchmarkHot lets 32 goroutines contend for one lock, in the backend's queue
// and in the process's queue.
func BenchmarkHot(b *testing.B) {
	for name, o := range map[string]*memory.Options{"fifo": nil, "hand-over": {Order: memory.Unordered}} {
		b.Run(name, func(b *testing.B) {
			c := benchClient(b, o)
			b.SetParallelism(32 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					lockUnlock(b, c, "x")
				}
			})
		})
	}
}

// BenchmarkRead acquires one lock for reading in one goroutine, which sends a
// request for every Read, and in 64 goroutines, which share holds.
func BenchmarkRead(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			readers := dsync.With(benchClient(b, nil), dsync.Read())
			var wg sync.WaitGroup
			for i := range goroutines {
				wg.Go(func() {
					for n := i; n < b.N; n += goroutines {
						lockUnlock(b, readers, "x")
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkPermits acquires up to 32 permits of a name, in one goroutine and in
// 64 goroutines, which hand over holds.
func BenchmarkPermits(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			calls := dsync.With(benchClient(b, &memory.Options{Order: memory.Unordered}), dsync.Permits(1, 32))
			var wg sync.WaitGroup
			for i := range goroutines {
				wg.Go(func() {
					for n := i; n < b.N; n += goroutines {
						lockUnlock(b, calls, "x")
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkHeld reports the cost of a lock that is held and renewed.
func BenchmarkHeld(b *testing.B) {
	const locks = 10_000
	names := make([]string, locks)
	for i := range names {
		names[i] = fmt.Sprint("orders/", i)
	}
	for b.Loop() {
		c, err := dsync.New(memory.New(nil), &dsync.Options{TTL: 3 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		before, goroutines := heap(), runtime.NumGoroutine()
		leases := make([]*dsync.Lease, locks)
		for i, name := range names {
			if leases[i], err = c.Lock(b.Context(), name); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before-locks*8)/locks, "B/lock")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/locks, "goroutines/lock")
		for _, l := range leases {
			if l.Err() != nil {
				b.Fatal(l.Err())
			}
		}
		_ = c.Close(b.Context())
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
