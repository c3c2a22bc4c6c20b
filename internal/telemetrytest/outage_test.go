package telemetrytest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// carriers are the two ways to keep a backend from ending the locks of a
// client.
func carriers() map[string]memory.Options {
	return map[string]memory.Options{"renewed": {}, "sessions": {KeepsAlive: true}}
}

// records returns the lines of the log that contain a text.
func (ob *observer) records(text string) (lines []string) {
	for line := range strings.Lines(ob.log.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// wantRecords expects the given number of records with each text, and no
// others.
func wantRecords(t *testing.T, ob *observer, want map[string]int) {
	t.Helper()
	all, wrong := 0, false
	for text, n := range want {
		wrong = wrong || len(ob.records(text)) != n
		all += n
	}
	if wrong || len(ob.records("")) != all {
		t.Errorf("records:\n%swant %v, and no others", ob.log.String(), want)
	}
}

func wantPoints(t *testing.T, ob *observer, want ...string) {
	t.Helper()
	got := ob.points(t)
	for _, w := range want {
		if !strings.Contains(got, w+"\n") {
			t.Errorf("points:\n%swant %s among them", got, w)
		}
	}
}

// count returns the sum of the points of a counter.
func (ob *observer) count(t *testing.T, metric string) (n int64) {
	t.Helper()
	ob.sums(t, func(name string, p metricdata.DataPoint[int64]) {
		if name == metric {
			n += p.Value
		}
	})
	return n
}

// zeros describes the points of counters that are 0.
func (ob *observer) zeros(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	ob.sums(t, func(name string, p metricdata.DataPoint[int64]) {
		class, _ := p.Attributes.Value("dsync.lock.class")
		for _, a := range p.Attributes.ToSlice() {
			if p.Value == 0 && a.Key != "dsync.driver" && a.Key != "dsync.lock.class" {
				all[fmt.Sprintf("%s %s=%s of %s", name, a.Key, a.Value.Emit(), class.AsString())] = true
			}
		}
	})
	return all
}

func (ob *observer) sums(t *testing.T, f func(name string, p metricdata.DataPoint[int64])) {
	t.Helper()
	for _, m := range ob.metrics(t) {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			for _, p := range sum.DataPoints {
				f(m.Name, p)
			}
		}
	}
}

// metrics returns the current metrics.
func (ob *observer) metrics(t *testing.T) (metrics []metricdata.Metrics) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := ob.reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		metrics = append(metrics, scope.Metrics...)
	}
	return metrics
}

const (
	warned   = `level=WARN msg="dsync: backend out of reach"`
	regained = `level=INFO msg="dsync: backend in reach again"`
	lostOne  = `level=ERROR msg="dsync: lock lost"`
	lostMore = `level=ERROR msg="dsync: more locks lost"`
)

// TestOutageIsToldOnce loses many locks in one outage.
func TestOutageIsToldOnce(t *testing.T) {
	for name, o := range carriers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const ttl, locks = 30 * time.Second, 1000
				opts := &dsync.Options{TTL: ttl}
				ob, d := observe(opts), memory.New(&o)
				c := newClient(t, d, opts)
				var leases []*dsync.Lease
				for i := range locks {
					leases = append(leases, mustLock(t, c, fmt.Sprint(i)))
					time.Sleep(10 * time.Millisecond)
				}
				d.Cut()
				time.Sleep(ttl / 2)
				synctest.Wait()
				wantRecords(t, ob, map[string]int{warned: 1})
				wantPoints(t, ob, "dsync.client.count {dsync.client.state=reachable dsync.driver=memory} 0",
					"dsync.client.count {dsync.client.state=unreachable dsync.driver=memory} 1",
					"dsync.renewals {dsync.driver=memory dsync.renewal.result=failed} +")
				for _, l := range leases {
					<-l.Done()
					if err := l.Err(); !errors.Is(err, dsync.ErrLost) || !strings.Contains(err.Error(), "backend out of reach") {
						t.Fatalf("the lease ended with %v, want ErrLost, and that the backend was out of reach", err)
					}
				}
				synctest.Wait()
				wantRecords(t, ob, map[string]int{warned: 1, lostOne: 1})
				d.Heal()
				mustLock(t, c, "after")
				synctest.Wait()
				wantRecords(t, ob, map[string]int{warned: 1, lostOne: 1, lostMore: 1, regained: 1})
				if sum := strings.Join(ob.records(lostMore), ""); !strings.Contains(sum, `dsync.loss.cause=unreachable dsync.loss.count=999 dsync.lock.names="[`) {
					t.Errorf("record %s\nwant the cause, how many, and some names", sum)
				}
				wantPoints(t, ob, "dsync.losses {dsync.driver=memory dsync.loss.cause=unreachable} 1000",
					"dsync.client.count {dsync.client.state=reachable dsync.driver=memory} 1",
					"dsync.client.count {dsync.client.state=unreachable dsync.driver=memory} 0")
			})
		})
	}
}

// TestOutageIsSeenByThoseWhoWait makes calls to Lock wait during an outage, for
// a lock that another client holds and for a free one.
func TestOutageIsSeenByThoseWhoWait(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held %t", held), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := &dsync.Options{}
				server := memory.NewServer(nil)
				ob, d := observe(opts), server.NewDriver()
				c := newClient(t, d, opts)
				var holder *dsync.Lease
				if held {
					holder = mustLock(t, newClient(t, server.NewDriver(), nil), "x")
				} else {
					d.Cut()
				}
				granted := make(chan error, 1)
				go func() { // ends when the outage ends
					_, err := c.Lock(t.Context(), "x")
					granted <- err
				}()
				synctest.Wait()
				d.Cut()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				wantRecords(t, ob, map[string]int{warned: 1})
				wantPoints(t, ob, "dsync.waiter.count {dsync.driver=memory} 1",
					"dsync.client.count {dsync.client.state=unreachable dsync.driver=memory} 1")
				if n := ob.count(t, "dsync.acquire.retries"); n < 10 || n > 20 {
					t.Errorf("%d retries in 10 s, want about one retry a second, and a few more at first", n)
				}
				if held {
					if err := holder.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				}
				d.Heal()
				if err := <-granted; err != nil {
					t.Error(err)
				}
				synctest.Wait()
				wantRecords(t, ob, map[string]int{warned: 1, regained: 1})
				wantPoints(t, ob, "dsync.waiter.count {dsync.driver=memory} 0",
					"dsync.wait.duration {dsync.acquire.outcome=acquired dsync.driver=memory} 1",
					"dsync.acquires {dsync.acquire.outcome=acquired dsync.driver=memory} 1")
			})
		})
	}
}

// TestOutageThatFlaps makes the backend disappear and return several times, and
// then stay away.
func TestOutageThatFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := &dsync.Options{}
		ob, d := observe(opts), memory.New(nil)
		c := newClient(t, d, opts)
		try := func() {
			if l, err := c.TryLock(t.Context(), "x"); err == nil {
				_ = l.Unlock(t.Context())
			}
		}
		start := time.Now()
		for time.Since(start) < 10*time.Minute-time.Second {
			d.Cut()
			try()
			time.Sleep(time.Second)
			d.Heal()
			try()
			time.Sleep(time.Second)
		}
		synctest.Wait()
		wantRecords(t, ob, map[string]int{warned: 10, regained: 10})
		d.Cut()
		try()
		d.Heal()
		try()
		d.Cut()
		try()
		synctest.Wait()
		wantRecords(t, ob, map[string]int{warned: 11, regained: 11})
		time.Sleep(time.Minute)
		try()
		synctest.Wait()
		wantRecords(t, ob, map[string]int{warned: 12, regained: 11})
		wantPoints(t, ob, "dsync.client.count {dsync.client.state=unreachable dsync.driver=memory} 1")
	})
}

// TestOutageAtClose closes a client whose backend is out of reach. The
// remaining events are reported, and afterwards the client counts in no state.
func TestOutageAtClose(t *testing.T) {
	for name, o := range carriers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := &dsync.Options{TTL: 10 * time.Second}
				ob, d := observe(opts), memory.New(&o)
				c, err := dsync.New(d, opts)
				if err != nil {
					t.Fatal(err)
				}
				var leases []*dsync.Lease
				for i := range 5 {
					leases = append(leases, mustLock(t, c, fmt.Sprint(i)))
				}
				d.Cut()
				for _, l := range leases {
					<-l.Done()
				}
				waits := make(chan error, 1)
				go func() { // ends when the client ends
					_, err := c.Lock(t.Context(), "x")
					waits <- err
				}()
				time.Sleep(time.Second)
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if err := <-waits; !errors.Is(err, dsync.ErrClosed) {
					t.Errorf("Lock: %v, want ErrClosed", err)
				}
				wantRecords(t, ob, map[string]int{warned: 1, lostOne: 1, lostMore: 1})
				wantPoints(t, ob, "dsync.client.count {dsync.client.state=reachable dsync.driver=memory} 0",
					"dsync.client.count {dsync.client.state=unreachable dsync.driver=memory} 0")
			})
		})
	}
}

// TestOutageOfATryLock covers callers that leave before they have a response. A
// patient caller notices the outage.
func TestOutageOfATryLock(t *testing.T) {
	for patience, want := range map[time.Duration]int{100 * time.Millisecond: 0, 2 * time.Second: 1} {
		synctest.Test(t, func(t *testing.T) {
			opts := &dsync.Options{}
			ob, d := observe(opts), memory.New(nil)
			c := newClient(t, d, opts)
			d.Inject(memory.Fault{Kind: memory.Hang})
			defer d.Heal()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := c.TryLock(ctx, "x"); !errors.Is(err, dsync.ErrUnknown) {
				t.Errorf("TryLock: %v, want ErrUnknown", err)
			}
			synctest.Wait()
			wantRecords(t, ob, map[string]int{warned: want})
		})
	}
}

// TestExpiryAsAsked distinguishes a requested end of a lease from a loss.
func TestExpiryAsAsked(t *testing.T) {
	const asked, lost = `level=DEBUG msg="dsync: lock expired as asked"`, lostOne
	for _, test := range []struct {
		name string
		lock func(t *testing.T, c *dsync.Client) *dsync.Lease // the last to end
		want map[string]int
	}{
		{"fixed", func(t *testing.T, c *dsync.Client) *dsync.Lease {
			return mustLock(t, c, "x", dsync.ExpireAfter(time.Second))
		}, map[string]int{asked: 1}},
		{"extended", func(t *testing.T, c *dsync.Client) *dsync.Lease {
			l := mustLock(t, c, "x", dsync.ExpireAfter(time.Second))
			if err := l.Extend(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			return l
		}, map[string]int{asked: 1}},
		{"re-entry", func(t *testing.T, c *dsync.Client) *dsync.Lease {
			o := c.NewOwner()
			mustLock(t, o, "x")
			return mustLock(t, o, "x", dsync.ExpireAfter(time.Second))
		}, map[string]int{asked: 1}},
		{"a re-entry without ExpireAfter", func(t *testing.T, c *dsync.Client) *dsync.Lease {
			o := c.NewOwner()
			mustLock(t, o, "x", dsync.ExpireAfter(time.Second))
			return mustLock(t, o, "x")
		}, map[string]int{lost: 1}},
	} {
		for name, o := range carriers() {
			t.Run(test.name+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					opts := &dsync.Options{TTL: 10 * time.Second}
					ob := observeFrom(opts, slog.LevelDebug)
					c := newClient(t, memory.New(&o), opts)
					l := test.lock(t, c)
					<-l.Done()
					if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
						t.Errorf("the lease ended with %v, want ErrLost", err)
					}
					synctest.Wait()
					wantRecords(t, ob, test.want)
					failed := strings.Contains(ob.all(t), "Error (")
					if lost := test.want[lost] > 0; failed != lost {
						t.Errorf("a span has the status Error: %t, want %t, in\n%s", failed, lost, ob.all(t))
					}
					if n := ob.count(t, "dsync.losses"); n != int64(test.want[lost]) {
						t.Errorf("%d losses, want %d", n, test.want[lost])
					}
					if !strings.Contains(ob.log.String(), "dsync.lock.fixed=") {
						t.Errorf("record %swant a record with dsync.lock.fixed", ob.log.String())
					}
				})
			})
		}
	}
}

// TestManyLossesAreSummedUp removes many locks together while the backend is in
// reach.
func TestManyLossesAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := &dsync.Options{}
		ob, d := observe(opts), memory.New(nil)
		c := newClient(t, d, opts)
		var told sync.WaitGroup
		for i := range 500 {
			l := mustLock(t, c, fmt.Sprint(i))
			told.Go(func() { <-l.Done() })
		}
		d.Server().Flush()
		told.Wait()
		synctest.Wait()
		wantRecords(t, ob, map[string]int{lostOne: 10})
		time.Sleep(time.Minute)
		synctest.Wait()
		wantRecords(t, ob, map[string]int{lostOne: 10, lostMore: 1})
		time.Sleep(2 * time.Minute)
		removed := mustLock(t, c, "x")
		if err := c.ForceUnlock(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		<-removed.Done()
		synctest.Wait()
		wantRecords(t, ob, map[string]int{lostOne: 11, lostMore: 1, "taken away by force": 1})
	})
}

// TestCountersBeginWithZero checks the points that an alert needs before
// anything has happened.
func TestCountersBeginWithZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := &dsync.Options{Class: func(name string) string { return name }}
		ob := observe(opts)
		c := newClient(t, memory.New(nil), opts)
		for _, class := range []string{"", "orders"} {
			if class != "" {
				mustLock(t, c, class)
			}
			got := ob.zeros(t)
			for _, point := range []string{
				"dsync.losses dsync.loss.cause=expired", "dsync.losses dsync.loss.cause=removed",
				"dsync.losses dsync.loss.cause=session_ended", "dsync.losses dsync.loss.cause=unreachable",
				"dsync.losses dsync.loss.cause=max_hold", "dsync.losses dsync.loss.cause=forgotten",
				"dsync.renewals dsync.renewal.result=failed",
				"dsync.acquire.retries error.type=unavailable", "dsync.acquire.retries error.type=unknown",
			} {
				if want := point + " of " + class; !got[want] {
					t.Errorf("no point of %q is 0 from the start, in %v", want, got)
				}
			}
		}
	})
}
