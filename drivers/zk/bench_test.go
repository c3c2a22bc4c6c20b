package zk_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

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
		d := openURL(tb, "zk://%s", addr)
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
	{"go-zookeeper", func(tb testing.TB, addr string) func(string) func() {
		c := userClient(tb, addr)
		return func(name string) func() {
			l := gozk.NewLock(c, "/"+name, gozk.WorldACL(gozk.PermAll))
			if err := l.Lock(); err != nil {
				tb.Error(err)
				return func() {}
			}
			return func() {
				if err := l.Unlock(); err != nil {
					tb.Error(err)
				}
			}
		}
	}},
}

// race has each contestant do n operations in goroutines, by turns with the other, and reports how many times longer go-zookeeper takes.
func race(b *testing.B, goroutines int, operation func(lock func(string) func(), c contestant, goroutine int)) {
	s := testenv.ZooKeeper(b)
	locks := make([]func(string) func(), len(contestants))
	for i, c := range contestants {
		locks[i] = c.client(b, s.Addr)
	}
	took := make([]time.Duration, len(contestants))
	turn := func(n int) {
		for i, c := range contestants {
			start := time.Now()
			var workers sync.WaitGroup
			for g := range goroutines {
				workers.Go(func() {
					for range n {
						operation(locks[i], c, g)
					}
				})
			}
			workers.Wait()
			took[i] += time.Since(start)
		}
	}
	each := max(1, 256/goroutines)
	for range 8 { // the server compiles itself
		turn(each)
	}
	clear(took)
	b.ResetTimer()
	rounds := 0
	for b.Loop() {
		turn(each)
		rounds++
	}
	for i, c := range contestants {
		b.ReportMetric(float64(took[i].Microseconds())/float64(rounds*each*goroutines), "us/"+c.name)
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "times-faster")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFree locks names that nobody else wants.
func BenchmarkFree(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			race(b, goroutines, func(lock func(string) func(), c contestant, g int) { lock(fmt.Sprint(c.name, "-", g))() })
		})
	}
}

// BenchmarkHot has 32 goroutines of one process lock one name.
func BenchmarkHot(b *testing.B) {
	race(b, 32, func(lock func(string) func(), c contestant, _ int) { lock("hot-" + c.name)() })
}

// BenchmarkHandOver measures from the release of one client to the grant to another that waits.
func BenchmarkHandOver(b *testing.B) {
	s := testenv.ZooKeeper(b)
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			observer := userClient(b, s.Addr)
			name := "handover-" + c.name
			lockers := []func(string) func(){c.client(b, s.Addr), c.client(b, s.Addr)}
			unlock := lockers[0](name)
			granted := make(chan func())
			b.ResetTimer()
			for i := range b.N {
				b.StopTimer()
				go func() { granted <- lockers[(i+1)%2](name) }() // ends with the iteration
				testenv.Eventually(b, func() bool { return len(children(b, observer, "/"+name)) == 2 }, "the other waits")
				<-time.After(5 * time.Millisecond) // its watch is set
				b.StartTimer()
				unlock()
				unlock = <-granted
			}
			b.StopTimer()
			unlock()
		})
	}
}

// BenchmarkHeld reports what a lock costs that is held, and watched.
func BenchmarkHeld(b *testing.B) {
	s := testenv.ZooKeeper(b)
	d := openURL(b, "zk://%s", s.Addr)
	requests := make([]*driver.Request, 100+b.N) // which are no part of the driver
	for i := range requests {
		requests[i] = request(fmt.Sprintf("held-%d", i))
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
	awaitQuiet(b, s)
	b.ReportMetric(float64(heap()-before)/float64(b.N), "B/lock")
	runtime.KeepAlive(requests)
}

// awaitQuiet waits until the server gets no more requests than pings.
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

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
