package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// The benchmarks compare the driver with package concurrency on the same
// server, taking turns. x-mutex is the speed of the driver relative to that
// package.

func ours(tb testing.TB, s *testenv.EtcdServer) drivertest.Locker {
	return drivertest.LockerOf(tb, openURL(tb, "etcd://%s", s.Addr))
}

// mutexes returns a Locker by package concurrency, with its own session.
func mutexes(tb testing.TB, client *clientv3.Client) drivertest.Locker {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { session.Close() })
	return drivertest.LockerBy(tb, func(name string) (func() error, error) {
		m := concurrency.NewMutex(session, name)
		return func() error { return m.Unlock(context.Background()) }, m.Lock(context.Background())
	})
}

// BenchmarkFree has goroutines that each lock a different free name.
func BenchmarkFree(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			s := testenv.Etcd(b)
			our, their := ours(b, s), mutexes(b, userClient(b, s.Addr))
			rounds := max(10, 200/goroutines)
			took := drivertest.InTurn(b,
				func() { drivertest.Crowd(goroutines, rounds, func(i int) { our(fmt.Sprint("ours", i))() }) },
				func() { drivertest.Crowd(goroutines, rounds, func(i int) { their(fmt.Sprint("theirs", i))() }) })
			b.ReportMetric(float64(took[1])/float64(took[0]), "x-mutex")
			b.ReportMetric(float64(b.N*rounds*goroutines)/took[0].Seconds(), "pairs/s")
		})
	}
}

// BenchmarkHot has 32 goroutines of one process lock one name. With the driver,
// they do so in strict order on the server. A client of package dsync passes
// the lock on inside the process. Each goroutine of package concurrency needs
// its own session, because mutexes with the same name do not exclude each other
// on the same session.
func BenchmarkHot(b *testing.B) {
	const goroutines, ourRounds, theirRounds = 32, 16, 4
	s := testenv.Etcd(b)
	c, err := dsync.Open(b.Context(), "etcd://"+s.Addr, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(context.Background()) })
	var theirs [goroutines]drivertest.Locker
	client := userClient(b, s.Addr)
	for i := range theirs {
		theirs[i] = mutexes(b, client)
	}
	for label, our := range map[string]drivertest.Locker{
		"driver": ours(b, s),
		"client": drivertest.LockerBy(b, func(name string) (func() error, error) {
			l, err := c.Lock(context.Background(), name)
			if err != nil {
				return nil, err
			}
			return func() error { return l.Unlock(context.Background()) }, nil
		}),
	} {
		b.Run(label, func(b *testing.B) {
			took := drivertest.InTurn(b,
				func() { drivertest.Crowd(goroutines, ourRounds, func(int) { our("ours-" + label)() }) },
				func() { drivertest.Crowd(goroutines, theirRounds, func(i int) { theirs[i]("theirs-" + label)() }) })
			b.ReportMetric(float64(took[1])/theirRounds/(float64(took[0])/ourRounds), "x-mutex")
			b.ReportMetric(float64(b.N*ourRounds*goroutines)/took[0].Seconds(), "hand-overs/s")
		})
	}
}

// BenchmarkCrowd has callers of one client wait for a held name. All of them
// wait before the first is granted the name.
func BenchmarkCrowd(b *testing.B) {
	s := testenv.Etcd(b)
	for _, order := range []string{"client", "fifo"} {
		for _, waiters := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", order, waiters), func(b *testing.B) { crowdOf(b, s, order, waiters) })
		}
	}
}

// crowdOf reports the requests and the time per waiter, from the first call to
// the last release.
func crowdOf(b *testing.B, s *testenv.EtcdServer, order string, waiters int) {
	c, err := dsync.Open(b.Context(), fmt.Sprintf("etcd://%s?ttl=10m&order=%s", s.Addr, order), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(context.Background())
	observer := userClient(b, s.Addr)
	waits := func() bool { return order == "client" || len(keys(b, observer, order+"/")) == 1+waiters } // otherwise callers wait in the process
	requests := func() int64 {
		n := s.Requests()
		return n["Txn"] + n["DeleteRange"]
	}
	drivertest.CrowdCost(b, c, order, waiters, requests, waits)
}

// BenchmarkHandOver measures the median time from one client's release to the
// grant to another, waiting client. Bare measures a delete and its event on a
// watch that is already open.
func BenchmarkHandOver(b *testing.B) {
	s := testenv.Etcd(b)
	observer, bare := userClient(b, s.Addr), bareHandOver(b, s.Addr)
	waits := func(name string) func() {
		return func() {
			testenv.Eventually(b, func() bool { return len(keys(b, observer, name+"/")) == 2 }, "the other client waits")
		}
	}
	our := drivertest.HandOvers(b, [2]drivertest.Locker{ours(b, s), ours(b, s)}, "ours", waits("ours"))
	their := drivertest.HandOvers(b, [2]drivertest.Locker{mutexes(b, userClient(b, s.Addr)), mutexes(b, userClient(b, s.Addr))},
		"theirs", waits("theirs"))
	var a, t, floor []time.Duration
	drivertest.InTurn(b, func() {
		for range 20 {
			a, floor = append(a, our()), append(floor, bare())
		}
		t = append(t, their())
	})
	b.ReportMetric(float64(drivertest.Median(t))/float64(drivertest.Median(a)), "x-mutex")
	b.ReportMetric(float64(drivertest.Median(a))/float64(drivertest.Median(floor)), "p50/bare")
	b.ReportMetric(float64(drivertest.Median(a)), "p50-ns")
	b.ReportMetric(float64(drivertest.Median(floor)), "bare-ns")
	b.ReportMetric(float64(drivertest.Median(t)), "mutex-ns")
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
		go func() { // ends when the hand-over ends
			<-events
			granted <- time.Now()
		}()
		<-time.After(5 * time.Millisecond) // as in the other benchmarks
		start := time.Now()
		if _, err := releaser.Delete(ctx, "bare/key"); err != nil {
			b.Fatal(err)
		}
		return (<-granted).Sub(start)
	}
}

// BenchmarkHeld reports the cost of a held lock.
func BenchmarkHeld(b *testing.B) {
	drivertest.HoldMany(b, openURL(b, "etcd://%s", testenv.Etcd(b).Addr), func() {})
}
