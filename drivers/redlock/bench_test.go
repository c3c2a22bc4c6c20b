package redlock

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// Both libraries do the same work in turn, on the same nodes. The metric x/redsync is how many times as fast dsync is.

// redsyncOn returns redsync with clients of its own.
func redsyncOn(tb testing.TB, nodes servers) *redsync.Redsync {
	tb.Helper()
	rs, stop, err := newRedsync(addresses(nodes))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(stop)
	return rs
}

func addresses(nodes servers) []string {
	var all []string
	for _, s := range nodes {
		all = append(all, s.Addr)
	}
	return all
}

func newRedsync(addresses []string) (_ *redsync.Redsync, stop func(), err error) {
	var pools []redsyncredis.Pool
	var clients []rueidis.Client
	stop = func() {
		for _, c := range clients {
			c.Close()
		}
	}
	for _, address := range addresses {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, ForceSingleClient: true, DisableCache: true})
		if err != nil {
			stop()
			return nil, nil, err
		}
		clients = append(clients, client)
		pools = append(pools, redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client)))
	}
	return redsync.New(pools...), stop, nil
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

func theirs(rs *redsync.Redsync, name string, options ...redsync.Option) error {
	m := rs.NewMutex(name, append(options, redsync.WithTries(100_000))...)
	if err := m.Lock(); err != nil {
		return err
	}
	_, err := m.Unlock()
	return err
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

// inTurn measures pairs of f and g one after the other.
func inTurn(b *testing.B, f, g func() error) {
	timed := func(f func() error) time.Duration {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	const enough = 5 * time.Second // for a library that waits for a node that is frozen
	var spent time.Duration
	var a, other []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		a = append(a, timed(f))
		b.StopTimer()
		if spent < enough {
			start := time.Now()
			other = append(other, timed(g))
			spent += time.Since(start)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(drivertest.Median(other))/float64(drivertest.Median(a)), "x/redsync")
	b.ReportMetric(float64(drivertest.Median(a)), "p50-ns")
}

func BenchmarkFreeLock(b *testing.B) {
	for _, frozen := range []int{0, 1} {
		b.Run("frozen="+strconv.Itoa(frozen), func(b *testing.B) {
			nodes := benchNodes(b)
			c, rs := dsyncOn(b, nodes), redsyncOn(b, nodes)
			if err := ours(c, "warm"); err != nil {
				b.Fatal(err)
			}
			for _, s := range nodes[:frozen] {
				s.Freeze()
				defer s.Thaw()
			}
			inTurn(b, func() error { return ours(c, "bench") }, func() error { return theirs(rs, "bench") })
		})
	}
}

// crowd has many goroutines do f and g, in slices that take turns.
func crowd(b *testing.B, goroutines, each int, f, g func(i int) error) {
	run := func(f func(i int) error) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				for range each {
					if err := f(i); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	var a, other time.Duration
	rounds := 0
	measured := 0
	for b.Loop() {
		rounds++
		a += run(f)
		b.StopTimer()
		if other < 5*time.Second {
			other += run(g)
			measured++
		}
		b.StartTimer()
	}
	b.ReportMetric(other.Seconds()/float64(measured)/(a.Seconds()/float64(rounds)), "x/redsync")
	b.ReportMetric(float64(rounds*goroutines*each)/a.Seconds(), "pairs/s")
}

func BenchmarkManyLocks(b *testing.B) {
	for _, frozen := range []int{0, 1} {
		b.Run("frozen="+strconv.Itoa(frozen), func(b *testing.B) {
			nodes := benchNodes(b)
			c, rs := dsyncOn(b, nodes), redsyncOn(b, nodes)
			if err := ours(c, "warm"); err != nil {
				b.Fatal(err)
			}
			for _, s := range nodes[:frozen] {
				s.Freeze()
				defer s.Thaw()
			}
			name := func(i int) string { return "bench" + strconv.Itoa(i) }
			each := 20
			if frozen > 0 {
				each = 1 // redsync waits for the frozen node every time
			}
			crowd(b, 64, each, func(i int) error { return ours(c, name(i)) }, func(i int) error { return theirs(rs, name(i)) })
		})
	}
}

func BenchmarkHotLock(b *testing.B) {
	nodes := benchNodes(b)
	c, rs := dsyncOn(b, nodes), redsyncOn(b, nodes)
	crowd(b, 32, 4, func(int) error { return ours(c, "hot") }, func(int) error { return theirs(rs, "hot") })
}

// BenchmarkHandOver is the time from the release of one client to the grant of another one that waits.
func BenchmarkHandOver(b *testing.B) {
	nodes := benchNodes(b)
	c1, c2 := dsyncOn(b, nodes), dsyncOn(b, nodes)
	rs1, rs2 := redsyncOn(b, nodes), redsyncOn(b, nodes)
	const settle = 5 * time.Millisecond
	var a, other []time.Duration
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
		a = append(a, (<-granted).Sub(start))
		<-granted
		m1, m2 := rs1.NewMutex("hand2"), rs2.NewMutex("hand2")
		if err := m1.Lock(); err != nil {
			b.Fatal(err)
		}
		go func() {
			if err := m2.Lock(); err != nil {
				b.Error(err)
			}
			granted <- time.Now()
		}()
		time.Sleep(settle)
		start = time.Now()
		if _, err := m1.Unlock(); err != nil {
			b.Fatal(err)
		}
		other = append(other, (<-granted).Sub(start))
		if _, err := m2.Unlock(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(drivertest.Median(other))/float64(drivertest.Median(a)), "x/redsync")
	b.ReportMetric(float64(drivertest.Median(a)), "p50-ns")
}
