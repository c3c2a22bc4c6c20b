package etcd_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// contestant is one way to lock a name and unlock it. The functions of one contestant share a session.
type contestant struct {
	name   string
	client func(tb testing.TB, addr string) func(name string) (unlock func())
}

var contestants = []contestant{
	{"dsync", func(tb testing.TB, addr string) func(string) func() {
		d := openURL(tb, "etcd://%s", addr)
		return func(name string) func() {
			l, err := d.Acquire(context.Background(), request(name))
			if err != nil {
				tb.Error(err)
				return func() {}
			}
			return func() {
				if err := l.Release(context.Background()); err != nil {
					tb.Error(err)
				}
			}
		}
	}},
	{"mutex", func(tb testing.TB, addr string) func(string) func() {
		session, err := concurrency.NewSession(userClient(tb, addr), concurrency.WithTTL(30))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { session.Close() })
		return lockMutex(tb, session)
	}},
}

func lockMutex(tb testing.TB, session *concurrency.Session) func(string) func() {
	return func(name string) func() {
		m := concurrency.NewMutex(session, name)
		if err := m.Lock(context.Background()); err != nil {
			tb.Error(err)
			return func() {}
		}
		return func() {
			if err := m.Unlock(context.Background()); err != nil {
				tb.Error(err)
			}
		}
	}
}

func BenchmarkFree(b *testing.B) {
	s := testenv.Etcd(b)
	for _, goroutines := range []int{1, 64} {
		for _, c := range contestants {
			b.Run(fmt.Sprintf("%s/%d", c.name, goroutines), func(b *testing.B) {
				lock := c.client(b, s.Addr)
				lock("warm")()
				var n atomic.Int64
				b.SetParallelism(max(1, goroutines/runtime.GOMAXPROCS(0)))
				b.ReportAllocs()
				b.ResetTimer()
				if goroutines == 1 {
					for b.Loop() {
						lock("free")()
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					name := fmt.Sprint("free/", n.Add(1))
					for pb.Next() {
						lock(name)()
					}
				})
			})
		}
	}
}

// BenchmarkHot has 32 goroutines of one process lock one name. Those of package concurrency need a session each: on one, its mutexes
// of one name do not exclude each other.
func BenchmarkHot(b *testing.B) {
	s := testenv.Etcd(b)
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			shared := c.client(b, s.Addr)
			client := userClient(b, s.Addr)
			lockers := make(chan func(string) func(), 32)
			for range cap(lockers) {
				if c.name == "dsync" {
					lockers <- shared
					continue
				}
				session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { session.Close() })
				lockers <- lockMutex(b, session)
			}
			b.SetParallelism(cap(lockers) / runtime.GOMAXPROCS(0))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				lock := <-lockers
				for pb.Next() {
					lock("hot")()
				}
			})
		})
	}
}

// BenchmarkHandOver measures from the release of one client to the grant to another that waits. Bare is a delete, the event of it
// on a watch that was open before, and a read.
func BenchmarkHandOver(b *testing.B) {
	s := testenv.Etcd(b)
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			observer := userClient(b, s.Addr)
			lockers := []func(string) func(){c.client(b, s.Addr), c.client(b, s.Addr)}
			unlock := lockers[0]("handover")
			granted := make(chan func())
			b.ResetTimer()
			for i := range b.N {
				b.StopTimer()
				go func() { granted <- lockers[(i+1)%2]("handover") }() // ends with the iteration
				testenv.Eventually(b, func() bool { return len(keys(b, observer, "handover/")) == 2 }, "the other waits")
				<-time.After(5 * time.Millisecond) // its watch is open
				b.StartTimer()
				unlock()
				unlock = <-granted
			}
			b.StopTimer()
			unlock()
		})
	}
	b.Run("bare", func(b *testing.B) { bareHandOver(b, s.Addr) })
}

func bareHandOver(b *testing.B, addr string) {
	releaser, c := userClient(b, addr), userClient(b, addr)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events := c.Watch(ctx, "bare/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	next := func() {
		if _, err := c.Put(ctx, "bare/key", ""); err != nil {
			b.Fatal(err)
		}
		<-events
	}
	granted := make(chan error)
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		next()
		go func() { // ends with the iteration
			<-events
			_, err := c.Get(ctx, "bare/", clientv3.WithPrefix())
			granted <- err
		}()
		b.StartTimer()
		if _, err := releaser.Delete(ctx, "bare/key"); err != nil {
			b.Fatal(err)
		}
		if err := <-granted; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHeld reports what a lock costs that is held.
func BenchmarkHeld(b *testing.B) {
	s := testenv.Etcd(b)
	d := openURL(b, "etcd://%s", s.Addr)
	requests := make([]*driver.Request, 100+b.N) // which are no part of the driver
	for i := range requests {
		requests[i] = request(fmt.Sprintf("held/%d", i))
	}
	hold := func(from, to int) {
		for i := from; i < to; i++ {
			if _, err := d.Acquire(context.Background(), requests[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	hold(0, 100)
	before := heap()
	b.ResetTimer()
	hold(100, 100+b.N)
	b.StopTimer()
	b.ReportMetric(float64(heap()-before)/float64(b.N), "B/lock")
	runtime.KeepAlive(requests)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
