package etcd_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
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

// inTurn lets contestants run in slices that take turns, so that all see the same machine, and returns the time that each took in all.
func inTurn(b *testing.B, slices ...func()) []time.Duration {
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

// crowd runs f in goroutines, for a number of rounds in each.
func crowd(goroutines, rounds int, f func(i int)) {
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

// BenchmarkFree is goroutines with a free name each. The metric x-mutex is how many times as fast as package concurrency it is.
func BenchmarkFree(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			s := testenv.Etcd(b)
			testenv.Apart(b, s.Pid())
			const rounds = 10
			var runs []func()
			for _, c := range contestants {
				lock := c.client(b, s.Addr)
				lock("warm")()
				runs = append(runs, func() { crowd(goroutines, rounds, func(i int) { lock(fmt.Sprint(c.name, i))() }) })
			}
			took := inTurn(b, runs...)
			b.ReportMetric(float64(took[1])/float64(took[0]), "x-mutex")
			b.ReportMetric(float64(b.N*rounds*goroutines)/took[0].Seconds(), "pairs/s")
		})
	}
}

// BenchmarkHot has 32 goroutines of one process lock one name. Those of package concurrency need a session each: on one, its mutexes
// of one name do not exclude each other. The metric x-mutex is how many times as fast as those it is.
func BenchmarkHot(b *testing.B) {
	const goroutines = 32
	s := testenv.Etcd(b)
	testenv.Apart(b, s.Pid())
	ours := contestants[0].client(b, s.Addr)
	var theirs [goroutines]func(string) func()
	client := userClient(b, s.Addr)
	for i := range theirs {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { session.Close() })
		theirs[i] = lockMutex(b, session)
	}
	const ourRounds, theirRounds = 16, 4
	took := inTurn(b,
		func() { crowd(goroutines, ourRounds, func(int) { ours("ours")() }) },
		func() { crowd(goroutines, theirRounds, func(i int) { theirs[i]("theirs")() }) })
	b.ReportMetric(float64(took[1])/theirRounds/(float64(took[0])/ourRounds), "x-mutex")
	b.ReportMetric(float64(b.N*ourRounds*goroutines)/took[0].Seconds(), "hand-overs/s")
}

// BenchmarkHandOver measures from the release of one client to the grant to another that waits, at the median. Bare is a delete, the
// event of it on a watch that was open before, and a read.
func BenchmarkHandOver(b *testing.B) {
	s := testenv.Etcd(b)
	testenv.Apart(b, s.Pid())
	observer, bare := userClient(b, s.Addr), bareHandOver(b, s.Addr)
	between := func(c contestant) func() time.Duration {
		lockers, turn := []func(string) func(){c.client(b, s.Addr), c.client(b, s.Addr)}, 0
		name := "handover-" + c.name
		unlock := lockers[0](name)
		b.Cleanup(func() { unlock() })
		type grant struct {
			at     time.Time
			unlock func()
		}
		granted := make(chan grant)
		return func() time.Duration {
			turn++
			next := lockers[turn%2]
			go func() { // ends with the hand-over
				unlock := next(name)
				granted <- grant{time.Now(), unlock}
			}()
			testenv.Eventually(b, func() bool { return len(keys(b, observer, name+"/")) == 2 }, "the other waits")
			<-time.After(5 * time.Millisecond) // its watch is open
			start := time.Now()
			unlock()
			g := <-granted
			unlock = g.unlock
			return g.at.Sub(start)
		}
	}
	ours, theirs := between(contestants[0]), between(contestants[1])
	var our, their, floor []time.Duration
	inTurn(b, func() {
		for range 20 {
			our, floor = append(our, ours()), append(floor, bare())
		}
		their = append(their, theirs())
	})
	b.ReportMetric(float64(median(their))/float64(median(our)), "x-mutex")
	b.ReportMetric(float64(median(our))/float64(median(floor)), "p50/bare")
	b.ReportMetric(float64(median(our)), "p50-ns")
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func bareHandOver(b *testing.B, addr string) func() time.Duration {
	releaser, c := userClient(b, addr), userClient(b, addr)
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	events := c.Watch(ctx, "bare/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	return func() time.Duration {
		if _, err := c.Put(ctx, "bare/key", ""); err != nil {
			b.Fatal(err)
		}
		<-events
		granted := make(chan time.Time)
		go func() { // ends with the hand-over
			<-events
			if _, err := c.Get(ctx, "bare/", clientv3.WithPrefix()); err != nil {
				b.Error(err)
			}
			granted <- time.Now()
		}()
		start := time.Now()
		if _, err := releaser.Delete(ctx, "bare/key"); err != nil {
			b.Fatal(err)
		}
		return (<-granted).Sub(start)
	}
}

// BenchmarkHeld reports what a lock costs that is held.
func BenchmarkHeld(b *testing.B) {
	s := testenv.Etcd(b)
	testenv.Apart(b, s.Pid())
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
