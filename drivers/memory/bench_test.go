package memory_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

func BenchmarkFree(b *testing.B) {
	d := memory.New(nil)
	a := newAttempt("x")
	b.ReportAllocs()
	for b.Loop() {
		if err := cycle(d, &a.Request); err != nil {
			b.Fatal(err)
		}
	}
}

// cycle acquires a lock and releases it.
func cycle(d *memory.Driver, r *driver.Request) error {
	l, err := d.Acquire(context.Background(), r)
	if err != nil {
		return err
	}
	return l.Release(context.Background())
}

// BenchmarkFreeParallel uses one name for each goroutine.
func BenchmarkFreeParallel(b *testing.B) {
	d := memory.New(nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		a := newAttempt("")
		a.Name = a.Owner
		for pb.Next() {
			if err := cycle(d, &a.Request); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkPassed passes one name from waiter to waiter.
func BenchmarkPassed(b *testing.B) {
	for _, order := range []memory.Order{memory.FIFO, memory.FIFOByClient, memory.Unordered} {
		d := memory.New(&memory.Options{Order: order})
		b.Run(d.Info().Order.String(), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := cycle(d, &newAttempt("x").Request); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkExpires(b *testing.B) {
	l, err := memory.New(nil).Acquire(b.Context(), &newAttempt("x").Request)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		l.Expires()
	}
}

func BenchmarkRenewAll(b *testing.B) {
	d := memory.New(nil)
	leases := make([]driver.Lease, 1000)
	for i := range leases {
		var err error
		if leases[i], err = d.Acquire(b.Context(), &newAttempt(fmt.Sprint(i)).Request); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		d.RenewAll(b.Context(), leases, func(int, error) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(leases)), "ns/lease")
}

// BenchmarkHeld reports the memory of a held lock, without its Request and
// name.
func BenchmarkHeld(b *testing.B) {
	const n = 100_000
	attempts := make([]driver.Request, n)
	events := newAttempt("")
	for i := range attempts {
		attempts[i] = driver.Request{Name: fmt.Sprint(i), TTL: time.Hour, Events: events}
	}
	leases := make([]driver.Lease, n)
	for b.Loop() {
		d := memory.New(nil)
		goroutines := runtime.NumGoroutine()
		before := heap()
		for i := range attempts {
			leases[i], _ = d.Acquire(b.Context(), &attempts[i])
		}
		b.ReportMetric(float64(heap()-before)/n, "B/lock")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		clear(leases)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
