//go:build unix

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

// traffic counts the requests, events and keys that clients of the library send
// and receive.
type traffic struct {
	unary   atomic.Int64 // requests except on streams
	watches atomic.Int64 // begun or canceled
	events  atomic.Int64 // received by watches
	keys    atomic.Int64 // in answers to transactions
}

// dial counts the traffic of a connection.
func (t *traffic) dial() []grpc.DialOption {
	unary := func(ctx context.Context, method string, request, answer any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		defer t.unary.Add(1)
		err := invoke(ctx, method, request, answer, c, o...)
		if txn, ok := answer.(*pb.TxnResponse); ok && err == nil {
			for _, one := range txn.Responses {
				t.keys.Add(int64(len(one.GetResponseRange().GetKvs())))
			}
		}
		return err
	}
	stream := func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, d, c, method, o...)
		return watchStream{s, t}, err
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}
}

// watchStream is a stream, perhaps of watches.
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

// contest has clients repeatedly lock one name for a short time.
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

// driverIn returns a function that makes drivers with options.
func driverIn(o etcd.Options) func(tb testing.TB, c *clientv3.Client) drivertest.Locker {
	return func(tb testing.TB, c *clientv3.Client) drivertest.Locker {
		d, err := etcd.New(c, &o)
		if err != nil {
			tb.Fatal(err)
		}
		closeLater(tb, d)
		return drivertest.LockerOf(tb, d)
	}
}

// run lets all clients lock the name while a function runs.
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
	defer func() {
		stop.Store(true)
		work.Wait()
	}()
	during()
}

// goOn waits until each client has held the name n more times.
func (c *contest) goOn(tb testing.TB, n int64) {
	start := c.now().shares
	served := func() bool {
		for i, had := range start {
			if c.grants[i].Load() < had+n {
				return false
			}
		}
		return true
	}
	testenv.Eventually(tb, served, "each client is served")
}

// measured is the traffic and the grants of a period.
type measured struct {
	all                    int64   // grants
	shares                 []int64 // of each client, in the grants
	unary, watches, events int64
	took, busy             time.Duration
}

// now returns the traffic and the grants so far.
func (c *contest) now() measured {
	m := measured{unary: c.traffic.unary.Load(), watches: c.traffic.watches.Load(), events: c.traffic.events.Load(), busy: processorTime()}
	for i := range c.grants {
		m.shares = append(m.shares, c.grants[i].Load())
		m.all += m.shares[i]
	}
	return m
}

// measure returns the traffic and the grants during a function.
func (c *contest) measure(during func()) measured {
	before, began := c.now(), time.Now()
	during()
	m := c.now()
	m.took = time.Since(began)
	m.all, m.unary, m.watches, m.events, m.busy = m.all-before.all, m.unary-before.unary, m.watches-before.watches, m.events-before.events, m.busy-before.busy
	for i := range m.shares {
		m.shares[i] -= before.shares[i]
	}
	return m
}

// TestManyClientsCostNoMoreThanFew measures the cost of a hand-over when 50
// clients wait for one name, and checks that each client gets its share.
func TestManyClientsCostNoMoreThanFew(t *testing.T) {
	const clients = 50
	rounds := testenv.Briefly[int64](3, 8)
	for order, o := range map[string]etcd.Options{"client": {}, "fifo": {FIFO: true}} {
		t.Run(order, func(t *testing.T) {
			c := newContest(t, testenv.Etcd(t).Addr, clients, driverIn(o))
			var m measured
			c.run("a", func() {
				c.goOn(t, 2) // until all have their sessions, and each is behind many
				m = c.measure(func() { c.goOn(t, rounds) })
			})
			t.Logf("%d hand-overs: %d requests, %d watches begun or canceled, %d events", m.all, m.unary, m.watches, m.events)
			if got := float64(m.unary+m.watches) / float64(m.all); got >= 6 {
				t.Errorf("requests per hand-over: got %.1f, want less than 6", got)
			}
			if got := float64(m.events) / float64(m.all); got >= clients/2 { // the first clients found few keys before theirs, and keep receiving all events for a while
				t.Errorf("events per hand-over: got %.1f, want less than %d", got, clients/2)
			}
			if got := drivertest.Jain(m.shares); got < 0.95 {
				t.Errorf("fairness: got %.3f, want at least 0.95", got)
			}
		})
	}
}

// TestLooksOfThoseWhoStayReadNoQueue has callers wait behind many others, each
// with its own key. Each caller reads the queue when its watch has begun. While
// the key before its own is there, the answer does not include the keys before
// that.
func TestLooksOfThoseWhoStayReadNoQueue(t *testing.T) {
	const before, callers, page = 20, 5, 7
	s := testenv.Etcd(t)
	other := openURL(t, "etcd://%s?order=fifo", s.Addr)
	l := acquire(t, other, request("a"))
	waiters := queueUp(t, other, "a", before)
	var seen traffic
	d, err := etcd.New(newClient(t, clientv3.Config{Endpoints: []string{s.Addr}, DialTimeout: hangGuard, DialOptions: seen.dial()}), &etcd.Options{FIFO: true})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	release(t, acquire(t, d, request("b"))) // which begins the session
	requests, keys := seen.unary.Load(), seen.keys.Load()
	waiters = append(waiters, queueUp(t, d, "a", callers)...)
	testenv.Eventually(t, func() bool { return seen.unary.Load() >= requests+2*callers }, "all waiters look")
	keys = seen.keys.Load() - keys
	looks := seen.unary.Load() - requests - callers
	if keys > callers*page+looks { // each read returns the caller's own key
		t.Errorf("%d puts and %d looks by waiters returned %d keys, want at most %d per put and one per look", callers, looks, keys, page)
	}
	drain(t, l, waiters, nil)
}

// BenchmarkClients has clients that hold one name for a millisecond each, on a
// server that writes its log to the disk.
func BenchmarkClients(b *testing.B) {
	for label, locker := range map[string]func(testing.TB, *clientv3.Client) drivertest.Locker{"driver": driverIn(etcd.Options{}), "fifo": driverIn(etcd.Options{FIFO: true}), "mutex": func(tb testing.TB, c *clientv3.Client) drivertest.Locker { return mutexes(tb, c) }} {
		for _, clients := range []int{2, 10, 50, 200} {
			b.Run(fmt.Sprint(label, "/", clients), func(b *testing.B) {
				s := testenv.Etcd(b, "--unsafe-no-fsync=false", "--data-dir", b.TempDir())
				c := newContest(b, s.Addr, clients, locker)
				var m measured
				c.run("a", func() {
					c.goOn(b, 2)
					m = c.measure(func() {
						for b.Loop() {
							<-time.After(4 * time.Second)
						}
					})
				})
				each := func(n int64) float64 { return float64(n) / float64(m.all) }
				b.ReportMetric(float64(m.all)/m.took.Seconds(), "hand-overs/s")
				b.ReportMetric(each(m.unary), "requests/each")
				b.ReportMetric(each(m.watches), "watches/each")
				b.ReportMetric(each(m.events), "events/each")
				b.ReportMetric(each(m.busy.Microseconds()), "client-µs/each")
				b.ReportMetric(drivertest.Jain(m.shares), "jain")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// processorTime is the processor time that the process has used so far.
func processorTime() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
