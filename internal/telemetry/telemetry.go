// Package telemetry produces the spans, metrics and log records of a client. It
// knows about locks only from its arguments. A [Call] is a call to Lock or
// TryLock, and then its hold. A [Lock] is a lease by name, owner and token, a
// [Failure] is an error, and a [Loss] is the end of a lease.
//
// This package may call the user's code (a span processor, a view, a log
// handler). So methods that may be called with a lock held do not call user
// code. Instead, a goroutine of the package sends their reports, in the order
// of the calls.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/go-dsync/dsync/driver"
)

const instrumentation = "github.com/go-dsync/dsync"

// Config is the configuration of the reports.
type Config struct {
	Driver string       // Info.Name
	Logger *slog.Logger // if nil, no records are written
	// if nil, the global provider is used, even if that is set later
	Traces                trace.TracerProvider
	Meters                metric.MeterProvider // if nil, as for Traces
	OmitNames, OmitOwners bool
	Class                 func(name string) string // class of a lock, for metrics; may be nil

	// Causes are the causes of losses. Retries are the types of errors after
	// which a request is repeated. Their counters exist with value 0 before
	// anything is counted.
	Causes  []Cause
	Retries []string

	// Inspect queries the backend for the holder of a name, for the links of
	// waits. It is nil if the backend does not support this, and is not called
	// after the end of Life.
	Inspect func(ctx context.Context, name string) (driver.Status, error)
	Life    context.Context
}

// Telemetry reports the activity of a client. All methods may be called
// concurrently.
type Telemetry struct {
	config Config

	wanted atomic.Bool // spans or metrics are wanted
	begun  atomic.Bool // Begin has been called while metrics were wanted

	tracer      trace.Tracer
	tracerSet   bool                 // tracer was set to a tracer that records
	noTracerYet trace.TracerProvider // the global placeholder, if there was no other provider

	meterSet   bool // like tracerSet
	noMeterYet metric.MeterProvider

	acquireDuration, waitDuration, holdDuration metric.Float64Histogram
	acquires, losses, renewals, retries         metric.Int64Counter
	holds, waiters, clients, migrations         metric.Int64UpDownCounter
	terms                                       metric.Int64Counter
	candidates, leaders                         metric.Int64UpDownCounter

	labels   labelCache
	reports  reports
	lossLog  lossLog
	inspects inspects

	mu      sync.Mutex
	out     bool   // the backend is out of reach
	phase   string // phase of the migration; empty without one
	counted bool   // the client is counted in the metrics
}

// New returns the telemetry of a client. The caller calls Begin and Close.
func New(c Config) (*Telemetry, error) {
	t := &Telemetry{config: c}
	t.labels.driver, t.labels.met = c.Driver, t.meet
	t.lossLog = lossLog{t, map[Cause]*lossTally{}}

	traces := c.Traces
	if traces == nil {
		traces = otel.GetTracerProvider()
		if isPlaceholder(traces) {
			t.noTracerYet = traces
		}
	}
	_, off := traces.(nooptrace.TracerProvider)
	t.tracerSet = t.noTracerYet == nil && !off
	t.tracer = traces.Tracer(instrumentation, trace.WithInstrumentationVersion(version()))

	meters := c.Meters
	if meters == nil {
		meters = otel.GetMeterProvider()
		if isPlaceholder(meters) {
			t.noMeterYet = meters
		}
	}
	_, off = meters.(noopmetric.MeterProvider)
	t.meterSet = t.noMeterYet == nil && !off
	t.wanted.Store(t.tracerSet || t.meterSet)
	return t, t.makeInstruments(meters.Meter(instrumentation, metric.WithInstrumentationVersion(version())))
}

// isPlaceholder reports whether a global provider is the placeholder that is
// used until the program sets its own provider. If its package were renamed,
// telemetry would do some useless work, but would still report everything.
func isPlaceholder(provider any) bool {
	p := reflect.TypeOf(provider)
	return p.Kind() == reflect.Pointer && p.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

func (t *Telemetry) makeInstruments(m metric.Meter) error {
	var errs []error
	histogram := func(s metricSpec) metric.Float64Histogram {
		i, err := m.Float64Histogram(s.name, metric.WithUnit(s.unit), metric.WithDescription(s.text),
			metric.WithExplicitBucketBoundaries(lockBuckets...))
		errs = append(errs, err)
		return i
	}
	counter := func(s metricSpec) metric.Int64Counter {
		i, err := m.Int64Counter(s.name, metric.WithUnit(s.unit), metric.WithDescription(s.text))
		errs = append(errs, err)
		return i
	}
	upDown := func(s metricSpec) metric.Int64UpDownCounter {
		i, err := m.Int64UpDownCounter(s.name, metric.WithUnit(s.unit), metric.WithDescription(s.text))
		errs = append(errs, err)
		return i
	}
	t.acquireDuration, t.waitDuration, t.holdDuration =
		histogram(metricAcquireDuration), histogram(metricWaitDuration), histogram(metricHoldDuration)
	t.acquires, t.losses = counter(metricAcquires), counter(metricLosses)
	t.renewals, t.retries = counter(metricRenewals), counter(metricRetries)
	t.holds, t.waiters, t.clients = upDown(metricHolds), upDown(metricWaiters), upDown(metricClients)
	t.migrations = upDown(metricMigrations)
	t.candidates, t.leaders, t.terms = upDown(metricCandidates), upDown(metricLeaders), counter(metricTerms)
	return errors.Join(errs...)
}

// On reports whether spans or metrics are wanted. A global provider counts even
// if it is set after the client was created.
func (t *Telemetry) On() bool { return t.Wanted() || t.tracing() || t.metering() }

// Wanted reports whether On returned true, or would have returned true from the
// start.
func (t *Telemetry) Wanted() bool { return t.wanted.Load() }

func (t *Telemetry) tracing() bool {
	return t.tracerSet || t.noTracerYet != nil && otel.GetTracerProvider() != t.noTracerYet
}

func (t *Telemetry) metering() bool {
	return t.meterSet || t.noMeterYet != nil && otel.GetMeterProvider() != t.noMeterYet
}

// Begin creates the points of metrics that exist before any event. It is called
// when the client is created. Acquire calls it again, for a meter provider that
// was set later.
func (t *Telemetry) Begin() {
	if t.begun.Load() || !t.metering() {
		return
	}
	t.begun.Store(true)
	t.mu.Lock()
	first, out, phase := !t.counted, t.out, t.phase
	t.counted = true
	if first && phase != "" {
		t.reports.add(func() { t.countPhase(1, phase) }) // counts the phase before its next change
	}
	t.mu.Unlock()
	if first {
		t.countClient(1, out)
		t.countClient(0, !out)
		t.labels.get(label{})
	}
}

// meet creates the points of a kind before they are first counted, because to
// Prometheus a counter that begins with 1 has not risen.
func (t *Telemetry) meet(kind kind) {
	zero := func(c metric.Int64Counter, l label) {
		l.kind = kind
		c.Add(context.Background(), 0, t.labels.get(l).add...)
	}
	for _, cause := range t.config.Causes {
		zero(t.losses, label{key: keyCause, value: cause.Value})
	}
	zero(t.renewals, label{key: keyResult, value: string(RenewalFailed)})
	for _, errorType := range t.config.Retries {
		zero(t.retries, label{errorType: errorType})
	}
}

// Close waits for the pending reports and inspections. Config.Life has ended.
func (t *Telemetry) Close() {
	t.reports.close()
	t.lossLog.close()
	t.mu.Lock()
	counted, out, phase := t.counted, t.out, t.phase
	t.counted = false
	t.mu.Unlock()
	if counted {
		t.countClient(-1, out)
		t.countPhase(-1, phase)
	}
	t.inspects.close()
}

// Lock is the description of a lock in spans and records. Fields may be zero.
type Lock struct {
	Name, Owner string
	Token       uint64
	Mode        string // empty means exclusive
	Permits     int
}

func (t *Telemetry) attributes(l Lock) []attribute.KeyValue {
	as := append(make([]attribute.KeyValue, 0, 10), keyDriver.String(t.config.Driver))
	if !t.config.OmitNames && l.Name != "" {
		as = append(as, keyName.String(l.Name))
	}
	if !t.config.OmitOwners && l.Owner != "" {
		as = append(as, keyOwner.String(l.Owner))
	}
	if l.Token != 0 {
		as = append(as, keyToken.Int64(int64(l.Token)))
	}
	if l.Mode != "" {
		as = append(as, keyMode.String(l.Mode))
	}
	if l.Permits != 0 {
		as = append(as, keyPermits.Int(l.Permits))
	}
	return as
}

// Failure is an error in a report; the zero Failure means no error. Type is one
// of a few values, for the attribute error.type. Err may contain the names and
// owners of locks, but nothing from the contexts of the user.
type Failure struct {
	Type string
	Err  error
}

// text returns the text of an error from the backend, if it may be exported.
func (t *Telemetry) text(err error) string {
	if err == nil || t.config.OmitNames || t.config.OmitOwners {
		return ""
	}
	return strings.ToValidUTF8(err.Error(), "\uFFFD")
}

// log writes a record about a lock. more are keys and values.
func (t *Telemetry) log(ctx context.Context, level slog.Level, text string, l Lock, more ...slog.Attr) {
	t.logTo(t.config.Logger, ctx, level, text, l, more...)
}

func (t *Telemetry) logTo(to *slog.Logger, ctx context.Context, level slog.Level, text string, l Lock, more ...slog.Attr) {
	if to == nil || !to.Enabled(ctx, level) {
		return
	}
	var attrs []slog.Attr
	for _, a := range t.attributes(l) {
		attrs = append(attrs, slog.Any(string(a.Key), a.Value.AsInterface()))
	}
	to.LogAttrs(ctx, level, "dsync: "+text, append(attrs, more...)...)
}

// said returns the text of an error for a log record.
func (t *Telemetry) said(err error) []slog.Attr {
	if text := t.text(err); text != "" {
		return []slog.Attr{slog.String(string(keyException), text)}
	}
	return nil
}

// kindOf returns the kind of a lock for metrics. of may be nil.
func (t *Telemetry) kindOf(of *Call, l Lock) kind {
	k := kind{mode: l.Mode}
	switch {
	case of != nil && of.metering:
		k.class = of.class
	case t.config.Class != nil:
		k.class = t.config.Class(l.Name)
	}
	return k
}
