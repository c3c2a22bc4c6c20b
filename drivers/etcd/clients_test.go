package etcd_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// traffic counts what clients of the library send and are told.
type traffic struct {
	unary   atomic.Int64 // requests but those of streams
	watches atomic.Int64 // begun or canceled
	events  atomic.Int64 // told by watches
}

// dial counts the traffic of a connection.
func (t *traffic) dial() []grpc.DialOption {
	unary := func(ctx context.Context, method string, request, answer any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		t.unary.Add(1)
		return invoke(ctx, method, request, answer, c, o...)
	}
	stream := func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, d, c, method, o...)
		return watchStream{s, t}, err
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}
}

// watchStream is a stream, of watches perhaps.
type watchStream struct {
	grpc.ClientStream
	traffic *traffic
}

func (s watchStream) SendMsg(m any) error {
	if _, ok := m.(*pb.WatchRequest); ok {
		s.traffic.watches.Add(1)
	}
	return s.ClientStream.SendMsg(m)
}

func (s watchStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if answer, ok := m.(*pb.WatchResponse); ok && err == nil {
		s.traffic.events.Add(int64(len(answer.Events)))
	}
	return err
}

// contest has clients lock one name for a moment each, again and again.
type contest struct {
	traffic traffic
	lockers []drivertest.Locker
	grants  []atomic.Int64
}

// newContest makes clients with a connection each.
func newContest(tb testing.TB, addr string, clients int, locker func(tb testing.TB, c *clientv3.Client) drivertest.Locker) *contest {
	c := &contest{lockers: make([]drivertest.Locker, clients), grants: make([]atomic.Int64, clients)}
	for i := range c.lockers {
		client := newClient(tb, clientv3.Config{Endpoints: []string{addr}, DialTimeout: hangGuard, DialOptions: c.traffic.dial()})
		c.lockers[i] = locker(tb, client)
	}
	return c
}

func driverOn(tb testing.TB, c *clientv3.Client) drivertest.Locker {
	d, err := etcd.New(c, nil)
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, d)
	return drivertest.LockerOf(tb, d)
}

// run has all clients lock the name until stop is closed, and calls during meanwhile.
func (c *contest) run(name string, during func()) {
	var work sync.WaitGroup
	var stop atomic.Bool
	for i, lock := range c.lockers {
		work.Go(func() {
			for !stop.Load() {
				unlock := lock(name)
				c.grants[i].Add(1)
				<-time.After(time.Millisecond)
				unlock()
			}
		})
	}
	during()
	stop.Store(true)
	work.Wait()
}

// granted is how many locks were granted so far, to all and to the client that had the fewest.
func (c *contest) granted() (all, least int64) {
	for i := range c.grants {
		n := c.grants[i].Load()
		if all += n; i == 0 || n < least {
			least = n
		}
	}
	return all, least
}

// goOn waits until each client has had the name n more times.
func (c *contest) goOn(tb testing.TB, n int64) {
	_, before := c.granted()
	for end := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
		if _, least := c.granted(); least >= before+n {
			return
		}
		if time.Now().After(end) {
			tb.Fatal("some client is not served")
		}
	}
}

// fairness is Jain's index of the shares that the clients have in the grants.
func fairness(shares []int64) float64 {
	var sum, squares float64
	for _, n := range shares {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// BenchmarkClients has clients that hold one name for a millisecond each, on a server that writes its log to the disk.
func BenchmarkClients(b *testing.B) {
	for label, locker := range map[string]func(testing.TB, *clientv3.Client) drivertest.Locker{"driver": driverOn, "mutex": func(tb testing.TB, c *clientv3.Client) drivertest.Locker { return mutexes(tb, c) }} {
		for _, clients := range []int{2, 10, 50, 200} {
			b.Run(fmt.Sprint(label, "/", clients), func(b *testing.B) {
				s := testenv.Etcd(b, "--unsafe-no-fsync=false", "--data-dir", b.TempDir())
				c := newContest(b, s.Addr, clients, locker)
				var all int64
				var took, busy time.Duration
				var unary, watches, events int64
				var shares []int64
				c.run("a", func() {
					c.goOn(b, 2)
					before := make([]int64, clients)
					for i := range before {
						before[i] = c.grants[i].Load()
					}
					all, _ = c.granted()
					unary, watches, events = c.traffic.unary.Load(), c.traffic.watches.Load(), c.traffic.events.Load()
					start, began := processorTime(), time.Now()
					for b.Loop() {
						<-time.After(4 * time.Second)
					}
					took, busy = time.Since(began), processorTime()-start
					now, _ := c.granted()
					all = now - all
					unary, watches, events = c.traffic.unary.Load()-unary, c.traffic.watches.Load()-watches, c.traffic.events.Load()-events
					for i := range before {
						shares = append(shares, c.grants[i].Load()-before[i])
					}
				})
				each := func(n int64) float64 { return float64(n) / float64(all) }
				b.ReportMetric(float64(all)/took.Seconds(), "hand-overs/s")
				b.ReportMetric(each(unary), "requests/each")
				b.ReportMetric(each(watches), "watches/each")
				b.ReportMetric(each(events), "events/each")
				b.ReportMetric(each(busy.Microseconds()), "client-µs/each")
				b.ReportMetric(fairness(shares), "jain")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// processorTime is what the process has used so far.
func processorTime() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
