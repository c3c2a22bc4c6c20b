// Package telemetrytest checks the telemetry that package dsync reports to
// OpenTelemetry, on any backend. It compares the exact tree of spans with their
// attributes, status, events and links, and the exact points of the metrics.
package telemetrytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// Backend is the part of a test that a driver provides.
type Backend struct {
	// New returns another client of the backend, and a function that
	// permanently cuts the backend off from it.
	New func(testing.TB) (d driver.Driver, cut func())

	TTL   time.Duration
	Notes bool // the backend stores a holder's Request.Note for others to see

	// CutOff is the cause of loss of a lock that is held when the backend
	// becomes unreachable. Forced is the cause of loss of a lock that is
	// unlocked by force. Each is empty if that cannot happen.
	CutOff, Forced string

	// EndSession ends the session to which a driver's locks belong. It is nil
	// if there is no session.
	EndSession func(driver.Driver)

	// Exact means that time is fake, in a bubble of testing/synctest, so that
	// durations are exact.
	Exact bool
}

// Scenario is an event of a lock with the expected telemetry.
type Scenario struct {
	Name          string
	needs         func(b *Backend, info driver.Info) bool // nil if it has no requirements
	run           func(e *env)
	spans, points string // see expand
}

// Run runs the scenario on the backend and compares the telemetry. If the
// result depends on a response about the holder, Run holds the lock for
// increasingly longer times until the response arrives in time.
func (s *Scenario) Run(t *testing.T, b *Backend) {
	t.Helper()
	for held := 50 * time.Millisecond; ; held *= 2 {
		e := newEnv(t, b, held)
		info := e.client("first").driver.Info()
		if s.needs != nil && !s.needs(b, info) {
			t.Skipf("untested: %s does not apply to this backend", s.Name)
		}
		s.run(e)
		spans, points := e.closeAndCollect()
		if strings.Contains(s.spans, "->?") && b.Notes && !strings.Contains(spans, " -> ") && held < 5*time.Second {
			continue
		}
		if want := e.expand(s.spans); spans != want {
			t.Errorf("spans:\n%s\nwant:\n%s", spans, want)
		}
		if want := e.expand(s.points); points != want {
			t.Errorf("points:\n%s\nwant:\n%s", points, want)
		}
		return
	}
}

// env is the environment of one scenario.
type env struct {
	testing.TB
	backend  *Backend
	name     string // name of the lock
	recorder *tracetest.InMemoryExporter
	spans    *sdktrace.TracerProvider
	points   *sdkmetric.MeterProvider
	reader   *sdkmetric.ManualReader
	clients  map[string]*client
	requests map[string]*request
	leases   map[string]*dsync.Lease
	blocked  map[string]span // times at which a call was blocked, by its request
	held     time.Duration   // how long a lock is held while another call waits for it
}

type client struct {
	*dsync.Client
	driver driver.Driver
	cut    func()
}

// request is a root span under which locks are used.
type request struct {
	context.Context
	span trace.Span
}

type span struct{ from, to time.Time }

var names atomic.Int64

func newEnv(t testing.TB, b *Backend, held time.Duration) *env {
	e := &env{TB: t, backend: b, held: held, name: fmt.Sprintf("telemetry/%d-%d", time.Now().UnixNano(), names.Add(1)),
		clients: map[string]*client{}, requests: map[string]*request{}, leases: map[string]*dsync.Lease{}, blocked: map[string]span{}}
	e.recorder = tracetest.NewInMemoryExporter()
	e.spans = sdktrace.NewTracerProvider(sdktrace.WithSyncer(e.recorder))
	e.reader = sdkmetric.NewManualReader()
	e.points = sdkmetric.NewMeterProvider(sdkmetric.WithReader(e.reader))
	return e
}

// client returns the client with the label.
func (e *env) client(label string) *client {
	if c := e.clients[label]; c != nil {
		return c
	}
	d, cut := e.backend.New(e)
	c, err := dsync.New(d, &dsync.Options{TTL: e.backend.TTL, TracerProvider: e.spans, MeterProvider: e.points})
	if err != nil {
		e.Fatal(err)
	}
	e.clients[label] = &client{c, d, cut}
	e.Cleanup(e.close) // runs before New's results are closed
	return e.clients[label]
}

// request returns the context of the request with the label, which lasts until
// the end of the scenario.
func (e *env) request(label string) context.Context {
	r := e.requests[label]
	if r == nil {
		ctx, span := e.spans.Tracer("test").Start(e.Context(), label)
		r = &request{ctx, span}
		e.requests[label] = r
	}
	return r
}

// lock locks through a client, in a request, and stores the lease under a
// label.
func (e *env) lock(l dsync.Locker, request, lease string, opts ...dsync.LockOption) {
	e.Helper()
	got, err := l.Lock(e.request(request), e.name, opts...)
	if err != nil {
		e.Fatalf("Lock of %s: %v", lease, err)
	}
	e.leased(lease, got)
}

// leased stores a lease under a label. It reads the token while the lease
// lasts, because on some backends there is no token afterwards.
func (e *env) leased(label string, l *dsync.Lease) {
	_ = l.Token()
	e.leases[label] = l
}

func (e *env) unlock(request, lease string) {
	e.Helper()
	if err := e.leases[lease].Unlock(e.request(request)); err != nil {
		e.Errorf("Unlock of %s: %v", lease, err)
	}
}

// wait makes a call wait until it has been blocked for some time, then calls
// release, and returns the outcome of the call.
func (e *env) wait(ctx context.Context, l dsync.Locker, request string, release func()) (*dsync.Lease, error) {
	e.Helper()
	type outcome struct {
		lease *dsync.Lease
		err   error
	}
	done := make(chan outcome, 1)
	was := span{from: time.Now()}
	go func() { // ends with release or ctx, at the latest
		lease, err := l.Lock(trace.ContextWithSpan(ctx, trace.SpanFromContext(e.request(request))), e.name)
		done <- outcome{lease, err}
	}()
	e.until("a call is blocked", func() bool { return e.sum("dsync.waiter.count") == 1 })
	if e.backend.Exact {
		was.from = time.Now()
	}
	pause(e.Context(), e.held)
	was.to = time.Now()
	release()
	o := <-done
	e.blocked[request] = was
	return o.lease, o.err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// until polls for a condition that no event reports.
func (e *env) until(what string, cond func() bool) {
	e.Helper()
	guard := time.Now().Add(time.Minute)
	for !cond() {
		if time.Now().After(guard) {
			e.Fatalf("not within a minute: %s", what)
		}
		if e.backend.Exact {
			if synctest.Wait(); cond() {
				return
			}
		}
		pause(e.Context(), time.Millisecond)
	}
}

// sum returns the sum of the points of a counter.
func (e *env) sum(metric string) (n int64) {
	var all metricdata.ResourceMetrics
	if err := e.reader.Collect(context.Background(), &all); err != nil {
		e.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if points, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == metric {
				for _, p := range points.DataPoints {
					n += p.Value
				}
			}
		}
	}
	return n
}

// closeAndCollect ends clients and requests, so that everything is reported,
// and returns spans and points as text.
func (e *env) closeAndCollect() (spans, points string) {
	e.close()
	stubs := e.recorder.GetSpans()
	e.checkWaits(stubs)
	var all metricdata.ResourceMetrics
	if err := e.reader.Collect(context.Background(), &all); err != nil {
		e.Fatal(err)
	}
	raw, err := json.Marshal([]any{stubs, all})
	if err != nil {
		e.Fatal(err)
	}
	if bytes.Contains(raw, []byte(testenv.PasswordMark)) {
		e.Errorf("a password is in %s", raw)
	}
	return RenderSpans(stubs), e.withoutLuck(RenderPoints(&all))
}

// withoutLuck removes successful renewals if time is not exact, because on a
// slow machine some may occur.
func (e *env) withoutLuck(points string) string {
	var kept []string
	for line := range strings.Lines(points) {
		if e.backend.Exact || !strings.Contains(line, "dsync.renewal.result=ok") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// close may be called several times.
func (e *env) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for label, c := range e.clients {
		if err := c.Close(ctx); err != nil {
			e.Logf("Close of the client %s: %v", label, err) // the client may be cut off
		}
	}
	for _, r := range e.requests {
		r.span.End()
	}
}

// checkWaits checks that the spans of waits cover the time during which a call
// was blocked.
func (e *env) checkWaits(stubs tracetest.SpanStubs) {
	byID := map[trace.SpanID]tracetest.SpanStub{}
	for _, s := range stubs {
		byID[s.SpanContext.SpanID()] = s
	}
	for _, s := range stubs {
		acquire, ok := byID[s.Parent.SpanID()]
		if s.Name != "dsync.wait" || !ok {
			continue
		}
		if s.StartTime.Before(acquire.StartTime) || !s.EndTime.Equal(acquire.EndTime) {
			e.Errorf("wait from %v to %v in an acquire from %v to %v, want a wait that ends with the acquire",
				s.StartTime, s.EndTime, acquire.StartTime, acquire.EndTime)
		}
		want := e.blocked[byID[acquire.Parent.SpanID()].Name]
		if s.StartTime.Before(want.from) || s.EndTime.Before(want.to) {
			e.Errorf("wait from %v to %v, want none before %v, and until %v at least", s.StartTime, s.EndTime, want.from, want.to)
		}
		if e.backend.Exact && (!s.StartTime.Equal(want.from) || !s.EndTime.Equal(want.to)) {
			e.Errorf("wait from %v to %v, want exactly %v to %v", s.StartTime, s.EndTime, want.from, want.to)
		}
	}
}
