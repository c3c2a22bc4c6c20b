package telemetrytest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/telemetrytest"
)

// observer collects the telemetry of a client.
type observer struct {
	spans  *tracetest.InMemoryExporter
	reader *sdkmetric.ManualReader
	log    logBuffer
}

// logBuffer is a bytes.Buffer that may be read during writes.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// observe sets the providers and the logger of o.
func observe(o *dsync.Options) *observer { return observeFrom(o, slog.LevelInfo) }

// observeFrom is like observe, with log records from a level on.
func observeFrom(o *dsync.Options, level slog.Level) *observer {
	ob := &observer{spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(ob.spans))
	o.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(ob.reader))
	o.Logger = slog.New(slog.NewTextHandler(&ob.log, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	return ob
}

func (ob *observer) points(t *testing.T) string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := ob.reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	return telemetrytest.RenderPoints(&all)
}

// all is all reported telemetry.
func (ob *observer) all(t *testing.T) string {
	return telemetrytest.RenderSpans(ob.spans.GetSpans()) + ob.points(t) + ob.log.String()
}

func TestTelemetryOfRenewalsThatRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &dsync.Options{TTL: 12 * time.Second}
		early := o.TTL / 64 // how early a renewal may come
		ob, d := observe(o), memory.New(nil)
		c := newClient(t, d, o)
		start := time.Now()
		l := mustLock(t, c, "x")
		d.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Renewals, Times: 2})
		time.Sleep(8 * time.Second)
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		name := fmt.Sprintf("dsync.driver=memory dsync.lock.name=x dsync.lock.owner=%s", l.Owner())
		want := fmt.Sprintf(`dsync.acquire {dsync.acquire.outcome=acquired dsync.acquire.try=false %[1]s dsync.lock.reentrant=false dsync.lock.token=1 dsync.lock.ttl=12}
  dsync.renew {%[1]s dsync.lock.token=1}
    ! exception {exception.message=* exception.type=unavailable}
dsync.unlock {%[1]s dsync.lock.reentrant=false dsync.lock.token=1}
`, name)
		if got := telemetrytest.RenderSpans(ob.spans.GetSpans()); got != want {
			t.Errorf("spans:\n%s\nwant:\n%s", got, want)
		}
		for _, s := range ob.spans.GetSpans() {
			if s.Name != "dsync.renew" {
				continue
			}
			if got, want := s.StartTime.Sub(start), 4*time.Second; got > want || got < want-early {
				t.Errorf("trouble from %v after the grant, want %v, or up to %v before", got, want, early)
			}
			if got, want := s.EndTime.Sub(start), 6*time.Second; got > want || got < want-2*early || len(s.Events) != 2 {
				t.Errorf("trouble until %v after the grant with %d failures, want %v with 2", got, len(s.Events), want)
			}
		}
		const wantLog = `level=WARN msg="dsync: backend out of reach" dsync.driver=memory exception.message=`
		if got := ob.log.String(); strings.Count(got, "\n") != 2 || !strings.HasPrefix(got, wantLog) ||
			!strings.Contains(got, `level=INFO msg="dsync: backend in reach again" dsync.driver=memory dsync.outage.duration=1.875`) {
			t.Errorf("log:\n%swant one warning and the end of the outage", got)
		}
		for _, want := range []string{"dsync.renewals {dsync.driver=memory dsync.renewal.result=failed} +",
			"dsync.renewals {dsync.driver=memory dsync.renewal.result=ok} +"} {
			if got := ob.points(t); !strings.Contains(got, want) {
				t.Errorf("points:\n%swant %s among them", got, want)
			}
		}
	})
}

func TestTelemetryOfErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		act  func(t *testing.T, c *dsync.Client, d *memory.Driver)
		want string // error.type of the last span
	}{
		{"deadlock", func(t *testing.T, c *dsync.Client, _ *memory.Driver) {
			ctx, cancel := mustLock(t, c, "x").Context(t.Context())
			defer cancel()
			_, _ = c.Lock(ctx, "x")
		}, "deadlock"},
		{"out of reach", func(t *testing.T, c *dsync.Client, d *memory.Driver) {
			d.Cut()
			_, _ = c.TryLock(t.Context(), "x")
		}, "unavailable"},
		{"out of reach until the deadline", func(t *testing.T, c *dsync.Client, d *memory.Driver) {
			d.Cut()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = c.Lock(ctx, "x")
		}, "unavailable"},
		{"closed", func(t *testing.T, c *dsync.Client, _ *memory.Driver) {
			_ = c.Close(t.Context())
			_, _ = c.Lock(t.Context(), "x")
		}, "closed"},
		{"name", func(t *testing.T, c *dsync.Client, _ *memory.Driver) { _, _ = c.Lock(t.Context(), "\xff") }, "_OTHER"},
		{"unlock unknown", func(t *testing.T, c *dsync.Client, d *memory.Driver) {
			l := mustLock(t, c, "x")
			d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases})
			_ = l.Unlock(t.Context())
		}, "unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &dsync.Options{}
				ob, d := observe(o), memory.New(nil)
				test.act(t, newClient(t, d, o), d)
				spans := ob.spans.GetSpans()
				got := telemetrytest.RenderSpans(spans[len(spans)-1:])
				if !strings.Contains(got, "error.type="+test.want) || !strings.Contains(got, "Error ("+test.want+")") ||
					!strings.Contains(got, "! exception {exception.message=* exception.type="+test.want+"}") {
					t.Errorf("last span:\n%swant an error of type %s", got, test.want)
				}
				if strings.Contains(got, "\xff") {
					t.Errorf("invalid UTF-8 in %q", got)
				}
			})
		})
	}
}

// TestTelemetryLeavesOutTheCauseOfAContext covers causes that only the caller
// knows.
func TestTelemetryLeavesOutTheCauseOfAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &dsync.Options{}
		ob, d := observe(o), memory.New(nil)
		c := newClient(t, d, o)
		d.Cut()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the customer's number"))
		defer cancel()
		_, err := c.Lock(ctx, "x")
		if err == nil || !strings.Contains(err.Error(), "number") {
			t.Errorf("Lock: %v, want an error with the cause", err)
		}
		got := fmt.Sprint(ob.spans.GetSpans())
		if !strings.Contains(got, "cut off") || strings.Contains(got, "number") {
			t.Errorf("spans:\n%s\nwant the backend's error, without the cause of the context", got)
		}
	})
}

// TestTelemetryOfALossThatUnlockFinds covers a lost lock whose loss was not
// reported before Unlock.
func TestTelemetryOfALossThatUnlockFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &dsync.Options{}
		ob, d := observe(o), memory.New(nil)
		l := mustLock(t, newClient(t, d, o), "x")
		d.Server().Flush()
		_ = l.Unlock(t.Context())
		synctest.Wait()
		got := ob.all(t)
		for _, want := range []string{
			"  dsync.loss {", " error.type=lost} Error (lost)", `level=ERROR msg="dsync: lock lost"`,
			"dsync.losses {dsync.driver=memory dsync.loss.cause=removed} 1",
			"dsync.hold.duration {dsync.driver=memory dsync.hold.end=lost} 1",
			"dsync.hold.count {dsync.driver=memory} 0",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("reported:\n%swant %q in it", got, want)
			}
		}
	})
}

func TestTelemetryOmitsNamesAndOwners(t *testing.T) {
	for _, test := range []struct {
		names, owners bool
	}{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("names %t, owners %t", test.names, test.owners), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &dsync.Options{OmitNames: test.names, OmitOwners: test.owners, TTL: 10 * time.Second}
				ob := observe(o)
				d := &loser{Driver: memory.New(nil)}
				c := newClient(t, d, o)
				owner := c.NewOwner()
				told := fmt.Errorf("%w: the key of orders/42 of %s is gone", driver.ErrRemoved, owner.ID())
				d.says = fmt.Errorf("%w: %w", driver.ErrNotHeld, told)
				<-mustLock(t, owner, "orders/42").Done()
				_ = c.ForceUnlock(t.Context(), "orders/42")
				synctest.Wait()
				var got strings.Builder
				for _, s := range ob.spans.GetSpans() {
					fmt.Fprintln(&got, s.Name, s.Attributes, s.Status, s.Events)
				}
				got.WriteString(ob.log.String())
				for what, omitted := range map[string]bool{"orders/42": test.names, owner.ID(): test.owners} {
					if shown := strings.Contains(got.String(), what); shown == omitted {
						t.Errorf("%q shown: %t, want %t, in:\n%s", what, shown, !omitted, got.String())
					}
				}
				if points := ob.points(t); strings.Contains(points, "orders/42") || strings.Contains(points, owner.ID()) {
					t.Errorf("a name or owner on a metric:\n%s", points)
				}
			})
		})
	}
}

// loser is a driver whose leases cannot be renewed and that reports the reason.
type loser struct {
	driver.Driver
	says error
}

type lostLease struct {
	driver.Lease
	loser *loser
}

func (d *loser) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := d.Driver.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return &lostLease{l, d}, nil
}

func (l *lostLease) Renew(context.Context, time.Duration) error { return l.loser.says }

func TestTelemetryClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &dsync.Options{Class: func(name string) string {
			class, _, ok := strings.Cut(name, "/")
			if !ok {
				return ""
			}
			return class
		}}
		ob := observe(o)
		c := newClient(t, memory.New(nil), o)
		for _, name := range []string{"orders/42", "orders/43", "plain"} {
			if err := mustLock(t, c, name).Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		<-mustLock(t, c, "users/1", dsync.ExpireAfter(time.Second)).Done()
		synctest.Wait()
		got := ob.points(t)
		for _, want := range []string{
			"dsync.acquires {dsync.acquire.outcome=acquired dsync.driver=memory dsync.lock.class=orders} 2",
			"dsync.acquires {dsync.acquire.outcome=acquired dsync.driver=memory} 1",
			"dsync.hold.duration {dsync.driver=memory dsync.hold.end=expired dsync.lock.class=users} 1",
		} {
			if !strings.Contains(got, want+"\n") {
				t.Errorf("points:\n%swant %s among them", got, want)
			}
		}
	})
}

// TestTelemetryLinksToTheHolderThatMatters lets several calls overtake a
// waiting call. That call links to the first holder and to the holder that held
// the lock longest.
func TestTelemetryLinksToTheHolderThatMatters(t *testing.T) {
	for name, clients := range map[string]int{"of the same client": 1, "of other clients": 4} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &dsync.Options{}
				ob, server := observe(o), memory.NewServer(nil)
				var cs []*dsync.Client
				for range clients {
					cs = append(cs, newClient(t, server.NewDriver(), o))
				}
				var wg sync.WaitGroup
				held := []time.Duration{50, 700, 40, 0}
				for i, d := range held {
					wg.Go(func() {
						ctx, span := o.TracerProvider.Tracer("test").Start(t.Context(), fmt.Sprint(i))
						defer span.End()
						l, err := cs[i%clients].Lock(ctx, "x")
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(d * time.Millisecond)
						_ = l.Unlock(ctx)
					})
					synctest.Wait() // queue up one after another
				}
				wg.Wait()
				got := telemetrytest.RenderSpans(ob.spans.GetSpans())
				last := got[strings.LastIndex(got, "dsync.wait"):]
				for i, want := range []bool{true, true, false} {
					if linked := strings.Contains(last, fmt.Sprintf("-> dsync.acquire of %d", i)); linked != want {
						t.Errorf("the last of the waiters links to holder %d: %t, want %t, in:\n%s", i, linked, want, got)
					}
				}
			})
		})
	}
}

// TestTelemetryNote covers a holder's note that other clients can read.
func TestTelemetryNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, note := range []string{"", "host 7"} {
			o := &dsync.Options{Note: note}
			ob := observe(o)
			c := newClient(t, memory.New(nil), o)
			l := mustLock(t, c, "x")
			s, err := c.Inspect(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			acquire := ob.spans.GetSpans()[0].SpanContext
			want := strings.TrimSpace(fmt.Sprintf("%s traceparent=00-%s-%s-01", note, acquire.TraceID(), acquire.SpanID()))
			if s.Note != want {
				t.Errorf("note %q, want %q", s.Note, want)
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestTelemetryOfProvidersThatAreSetLater runs in a new process, because global
// providers cannot be unset.
func TestTelemetryOfProvidersThatAreSetLater(t *testing.T) {
	const variable = "DSYNC_TEST_GLOBAL_PROVIDERS"
	if os.Getenv(variable) == "" {
		test := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		test.Env = append(os.Environ(), variable+"=1")
		if out, err := test.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	c := newClient(t, memory.New(nil), nil)
	before := mustLock(t, c, "before")
	o := &dsync.Options{}
	ob := observe(o)
	otel.SetTracerProvider(o.TracerProvider)
	otel.SetMeterProvider(o.MeterProvider)
	if err := mustLock(t, c, "after").Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := before.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := telemetrytest.RenderSpans(ob.spans.GetSpans())
	if strings.Count(spans, "\n") != 2 || !strings.Contains(spans, "dsync.acquire {") || !strings.Contains(spans, "dsync.unlock {") {
		t.Errorf("spans:\n%swant an acquire and an unlock", spans)
	}
	if got, want := ob.points(t), "dsync.hold.count {dsync.driver=memory} 0\n"; !strings.Contains(got, want) {
		t.Errorf("points:\n%swant %s among them", got, want)
	}
}

// TestTelemetryHoldsUpNoRenewal uses a log handler that hangs while locks are
// renewed.
func TestTelemetryHoldsUpNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := &hangingHandler{release: make(chan struct{})}
		c := newClient(t, memory.New(nil), &dsync.Options{TTL: 10 * time.Second, Logger: slog.New(handler)})
		<-mustLock(t, c, "lost", dsync.ExpireAfter(time.Second)).Done()
		kept := mustLock(t, c, "kept")
		<-mustLock(t, c, "lost", dsync.ExpireAfter(time.Second)).Done()
		time.Sleep(time.Minute)
		if err := kept.Unlock(t.Context()); err != nil {
			t.Errorf("a lock that was renewed while a handler hangs: %v", err)
		}
		close(handler.release)
		synctest.Wait()
		if got := handler.handled.Load(); got != 2 {
			t.Errorf("%d records, want 2", got)
		}
	})
}

type hangingHandler struct {
	slog.Handler
	release chan struct{}
	handled atomic.Int32
}

func (h *hangingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *hangingHandler) Handle(context.Context, slog.Record) error {
	<-h.release
	h.handled.Add(1)
	return nil
}

// TestTelemetryMayCallTheClient uses a span processor and a log handler that
// call the client whose locks they report.
func TestTelemetryMayCallTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *dsync.Client
		caller := &callingProcessor{call: func() { _, _ = c.Inspect(context.Background(), "x") }}
		c = newClient(t, memory.New(nil), &dsync.Options{
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(caller)),
			TTL:            10 * time.Second,
		})
		for range 2 {
			l := mustLock(t, c, "x")
			go func() {
				if l, err := c.Lock(context.Background(), "x"); err == nil {
					_ = l.Unlock(context.Background())
				}
			}()
			synctest.Wait()
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		lost := mustLock(t, c, "x")
		if err := c.ForceUnlock(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		<-lost.Done()
		synctest.Wait()
		if got := caller.calls.Load(); got < 10 {
			t.Errorf("%d calls from span processors, want one call at the start and one at the end of each span", got)
		}
	})
}

type callingProcessor struct {
	call  func()
	calls atomic.Int32
}

func (p *callingProcessor) OnStart(context.Context, sdktrace.ReadWriteSpan) { p.calls.Add(1); p.call() }
func (p *callingProcessor) OnEnd(sdktrace.ReadOnlySpan)                     { p.calls.Add(1); p.call() }
func (p *callingProcessor) Shutdown(context.Context) error                  { return nil }
func (p *callingProcessor) ForceFlush(context.Context) error                { return nil }
