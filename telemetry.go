package dsync

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// The spans. A wait is a child of its acquire, and so are the trouble with renewals and the loss of what was acquired.
const (
	spanAcquire = "dsync.acquire"
	spanWait    = "dsync.wait"
	spanUnlock  = "dsync.unlock"
	spanForce   = "dsync.force_unlock"
	spanRenew   = "dsync.renew" // only if renewals fail: from the first that does until one succeeds, or the lock is over
	spanLoss    = "dsync.loss"

	eventLost = "dsync.lock.lost" // of spanLoss
)

// The attributes. Those without a prefix of ours are OpenTelemetry's.
const (
	keyDriver    = attribute.Key("dsync.driver")
	keyName      = attribute.Key("dsync.lock.name")
	keyOwner     = attribute.Key("dsync.lock.owner")
	keyToken     = attribute.Key("dsync.lock.token")
	keyTTL       = attribute.Key("dsync.lock.ttl")
	keyFixed     = attribute.Key("dsync.lock.fixed")
	keyReentrant = attribute.Key("dsync.lock.reentrant")
	keyClass     = attribute.Key("dsync.lock.class")
	keyTry       = attribute.Key("dsync.acquire.try")
	keyOutcome   = attribute.Key("dsync.acquire.outcome")
	keyEnd       = attribute.Key("dsync.hold.end")
	keyCause     = attribute.Key("dsync.loss.cause")
	keyResult    = attribute.Key("dsync.renewal.result")
	keyErrorType = attribute.Key("error.type")
	keyException = attribute.Key("exception.message")
)

// The values of keyOutcome.
const (
	outcomeAcquired = "acquired"
	outcomeLocked   = "locked"
	outcomeCanceled = "canceled"
	outcomeTimedOut = "timed_out"
	outcomeError    = "error"
)

// The values of keyEnd and keyResult.
const (
	endUnlocked = "unlocked"
	endLost     = "lost"
	endClosed   = "closed"

	renewalOK      = "ok"
	renewalFailed  = "failed"
	renewalNotHeld = "not_held"
)

// lockBuckets are bounds in seconds that tell apart a lock in the process, a round trip, a queue, and a job.
var lockBuckets = []float64{
	0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
}

// metricSpec describes an instrument.
type metricSpec struct{ name, unit, text string }

var (
	metricAcquireDuration = metricSpec{"dsync.acquire.duration", "s", "Duration of Lock and TryLock, whatever came of it."}
	metricWaitDuration    = metricSpec{"dsync.wait.duration", "s", "Time for which calls of Lock were blocked, if they were."}
	metricHoldDuration    = metricSpec{"dsync.hold.duration", "s", "Time from the grant of a lock until its owner's last lease of it was over."}
	metricAcquires        = metricSpec{"dsync.acquires", "{acquire}", "Calls of Lock and TryLock."}
	metricLosses          = metricSpec{"dsync.losses", "{loss}", "Locks that ended before they were unlocked."}
	metricRenewals        = metricSpec{"dsync.renewals", "{renewal}", "Renewals in the background, on backends where locks are renewed one by one."}
	metricHolds           = metricSpec{"dsync.hold.count", "{lock}", "Locks that are held now."}
	metricWaiters         = metricSpec{"dsync.waiter.count", "{call}", "Calls of Lock that are blocked now."}
)

const instrumentation = "github.com/go-dsync/dsync"

// telemetry makes the spans, metrics and logs of a client. Whatever it calls may be the user's code (a span processor, a view, a log
// handler), so it is called with no lock held, and never from the watchdog: what happens there is reported by a goroutine of its own.
type telemetry struct {
	client *Client
	logger *slog.Logger // may be nil
	omit   struct{ names, owners bool }
	class  func(name string) string // may be nil

	wanted atomic.Bool // somebody wants spans or metrics

	tracer      trace.Tracer
	tracerSet   bool                 // to one that does something
	noTracerYet trace.TracerProvider // the global placeholder, if it was all there was

	meterSet   bool // likewise
	noMeterYet metric.MeterProvider

	acquireDuration, waitDuration, holdDuration metric.Float64Histogram
	acquires, losses, renewals                  metric.Int64Counter
	holds, waiters                              metric.Int64UpDownCounter

	labels   labelCache
	reports  reports
	inspects inspects
}

func newTelemetry(c *Client, o *Options) (*telemetry, error) {
	t := &telemetry{client: c, logger: o.Logger, class: o.Class}
	t.omit.names, t.omit.owners = o.OmitNames, o.OmitOwners
	t.labels.driver = c.info.Name

	traces := o.TracerProvider
	if traces == nil {
		traces = otel.GetTracerProvider()
		if isPlaceholder(traces) {
			t.noTracerYet = traces
		}
	}
	_, off := traces.(nooptrace.TracerProvider)
	t.tracerSet = t.noTracerYet == nil && !off
	t.tracer = traces.Tracer(instrumentation)

	meters := o.MeterProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
		if isPlaceholder(meters) {
			t.noMeterYet = meters
		}
	}
	_, off = meters.(noopmetric.MeterProvider)
	t.meterSet = t.noMeterYet == nil && !off
	t.wanted.Store(t.tracerSet || t.meterSet)
	return t, t.makeInstruments(meters.Meter(instrumentation))
}

// isPlaceholder reports whether a global provider is the one that stands in until the program sets its own. If its package had
// another name one day, telemetry would be made in vain, and none would be missed.
func isPlaceholder(provider any) bool {
	p := reflect.TypeOf(provider)
	return p.Kind() == reflect.Pointer && p.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

func (t *telemetry) makeInstruments(m metric.Meter) error {
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
	t.acquires, t.losses, t.renewals = counter(metricAcquires), counter(metricLosses), counter(metricRenewals)
	t.holds, t.waiters = upDown(metricHolds), upDown(metricWaiters)
	return errors.Join(errs...)
}

// on reports whether anybody wants spans or metrics. A global provider that is set after the client was made counts. That of metrics is
// noticed by an instrument, which is cheaper than to ask for it, and by the one that no view is likely to drop.
func (t *telemetry) on() bool {
	return t.wanted.Load() || t.noTracerYet != nil && otel.GetTracerProvider() != t.noTracerYet ||
		t.noMeterYet != nil && t.losses.Enabled(context.Background())
}

func (t *telemetry) tracing() bool {
	return t.tracerSet || t.noTracerYet != nil && otel.GetTracerProvider() != t.noTracerYet
}

func (t *telemetry) metering() bool {
	return t.meterSet || t.noMeterYet != nil && otel.GetMeterProvider() != t.noMeterYet
}

// close waits for what is being reported and inspected. The life of the client's watchdog is over.
func (t *telemetry) close() {
	t.reports.close()
	t.inspects.close()
}

func (t *telemetry) lockAttributes(name, owner string, token uint64) []attribute.KeyValue {
	as := append(make([]attribute.KeyValue, 0, 10), keyDriver.String(t.client.info.Name))
	if !t.omit.names && name != "" {
		as = append(as, keyName.String(name))
	}
	if !t.omit.owners && owner != "" {
		as = append(as, keyOwner.String(owner))
	}
	if token != 0 {
		as = append(as, keyToken.Int64(int64(token)))
	}
	return as
}

// fault marks a span as failed.
func (t *telemetry) fault(span trace.Span, errorType string, err error, at time.Time) {
	span.SetAttributes(keyErrorType.String(errorType))
	span.SetStatus(codes.Error, errorType)
	if text := t.text(err); text != "" {
		span.AddEvent("exception", trace.WithTimestamp(at),
			trace.WithAttributes(attribute.String("exception.type", errorType), keyException.String(text)))
	}
}

// text returns what an error of the backend says, into which it may have put a name or an owner. The cause of the user's own context,
// which is in the text of a waitError, stays out.
func (t *telemetry) text(err error) string {
	if err == nil || t.omit.names || t.omit.owners {
		return ""
	}
	if wait := (*waitError)(nil); errors.As(err, &wait) {
		if err = wait.last; err == nil {
			err = wait.ctx
		}
	}
	return strings.ToValidUTF8(err.Error(), "\uFFFD")
}

// unlock is Lease.Unlock, in a span if the acquire was sampled or what it happens in is: a decision of its own would show unlocks
// without their acquire.
func (t *telemetry) unlock(ctx context.Context, l *Lease) error {
	var span trace.Span
	h := l.hold
	h.lock.mu.Lock()
	sampled := h.ob != nil && h.ob.context.IsSampled()
	shared := h.views != nil && h.views.next != nil
	h.lock.mu.Unlock()
	if sampled || t.tracing() && trace.SpanFromContext(ctx).IsRecording() {
		attributes := append(t.lockAttributes(l.Name(), l.owner, l.token), keyReentrant.Bool(shared))
		ctx, span = t.tracer.Start(ctx, spanUnlock, trace.WithAttributes(attributes...))
	}
	err := l.unlock(ctx)
	if span != nil {
		if err != nil {
			t.fault(span, errorTypeOf(err), err, time.Now())
		}
		span.End()
	}
	if err != nil {
		return &opError{"unlock", l.Name(), err}
	}
	return nil
}

// released counts the end of a hold whose release returned err. ob is what endTenure returned.
func (t *telemetry) released(ctx context.Context, l *Lease, ob *observation, err error) {
	if lost, ok := err.(*lostError); ok {
		t.report(l, lost, ob, ob)
	} else if err == errClosing {
		ob.endHold(ctx, endClosed)
	} else {
		ob.endHold(ctx, endUnlocked)
	}
}

// closed counts the end of a hold that ended with the client. It is called with lock.mu held.
func (t *telemetry) closed(h *hold) {
	if ob := h.endTenure(); ob != nil {
		t.reports.add(func() { ob.endHold(context.Background(), endClosed) })
	}
}

// force begins the span of a ForceUnlock.
func (t *telemetry) force(ctx context.Context, name string) (context.Context, trace.Span) {
	if !t.tracing() || checkName(name) != nil {
		return ctx, nil
	}
	return t.tracer.Start(ctx, spanForce, trace.WithAttributes(t.lockAttributes(name, "", 0)...))
}

// forced ends what force began. That there was nothing to do is no error.
func (t *telemetry) forced(ctx context.Context, span trace.Span, name string, err error) {
	if err == nil {
		t.log(ctx, slog.LevelWarn, "lock taken away by force", name, "", 0)
	}
	if span == nil {
		return
	}
	if errors.Is(err, ErrNotHeld) {
		span.SetAttributes(keyErrorType.String(errorTypeOf(err)))
	} else if err != nil {
		t.fault(span, errorTypeOf(err), err, time.Now())
	}
	span.End()
}

// log tells an operator of a lock. more are keys and values.
func (t *telemetry) log(ctx context.Context, level slog.Level, text, name, owner string, token uint64, more ...slog.Attr) {
	if t.logger == nil || !t.logger.Enabled(ctx, level) {
		return
	}
	var attrs []slog.Attr
	for _, a := range t.lockAttributes(name, owner, token) {
		attrs = append(attrs, slog.Any(string(a.Key), a.Value.AsInterface()))
	}
	t.logger.LogAttrs(ctx, level, "dsync: "+text, append(attrs, more...)...)
}

// said is text for a log.
func (t *telemetry) said(err error) []slog.Attr {
	if text := t.text(err); text != "" {
		return []slog.Attr{slog.String(string(keyException), text)}
	}
	return nil
}

// lost reports that a lease was lost, and with it its hold if it was the last. It is called with lock.mu held.
func (t *telemetry) lost(l *Lease, why *lostError) {
	of := l.hold.ob
	t.report(l, why, of, l.hold.endTenure())
}

// report reports a loss. of is the observation of the hold, and ended as well if it is over. Both may be nil.
func (t *telemetry) report(l *Lease, why *lostError, of, ended *observation) {
	metering := t.metering()
	if t.logger == nil && !metering && of == nil {
		return
	}
	at, fixed := time.Now(), l.fixed
	t.reports.add(func() {
		ctx := context.Background()
		if of != nil && of.context.IsValid() {
			ctx = trace.ContextWithSpanContext(ctx, of.context)
			t.traceLoss(ctx, l, why, fixed, at)
		}
		ended.calm(at)
		ended.endHold(ctx, endLost)
		if metering {
			t.losses.Add(ctx, 1, t.labels.get(label{t.classOf(of, l), keyCause, why.cause.value(), "", fixed}).add...)
		}
		more := append(t.said(why.err), slog.String(string(keyCause), why.cause.value()))
		t.log(ctx, slog.LevelError, "lock lost", l.Name(), l.owner, l.token, more...)
	})
}

// traceLoss makes the span of a loss: short, and of the trace that acquired the lock.
func (t *telemetry) traceLoss(ctx context.Context, l *Lease, why *lostError, fixed bool, at time.Time) {
	cause := keyCause.String(why.cause.value())
	attributes := append(t.lockAttributes(l.Name(), l.owner, l.token), cause, keyFixed.Bool(fixed),
		keyErrorType.String(why.cause.value()))
	_, span := t.tracer.Start(ctx, spanLoss, trace.WithAttributes(attributes...), trace.WithTimestamp(at))
	event := []attribute.KeyValue{cause}
	if text := t.text(why.err); text != "" {
		event = append(event, keyException.String(text))
	}
	span.AddEvent(eventLost, trace.WithTimestamp(at), trace.WithAttributes(event...))
	span.SetStatus(codes.Error, "lock lost: "+why.cause.String())
	span.End(trace.WithTimestamp(at))
}

// value is the cause in telemetry.
func (c lossCause) value() string {
	switch c {
	case lossExpired:
		return "expired"
	case lossRemoved:
		return "removed"
	case lossSession:
		return "session_ended"
	case lossUnreachable:
		return "unreachable"
	}
	return "_OTHER"
}

func (t *telemetry) classOf(ob *observation, l *Lease) string {
	switch {
	case ob != nil && ob.metering:
		return ob.class
	case t.class != nil:
		return t.class(l.Name())
	}
	return ""
}

// renewed reports the outcome of a renewal. It is called with lock.mu held, before hold.fault changes.
func (t *telemetry) renewed(h *hold, err error) {
	result, failing := renewalOK, h.fault != nil
	if errors.Is(err, ErrNotHeld) {
		result = renewalNotHeld
	} else if err != nil {
		result = renewalFailed
	}
	of, l, metering, at := h.ob, h.views, t.metering(), time.Now()
	eventful := (failing || err != nil) && (of != nil || t.logger != nil)
	if !metering && !eventful || l == nil {
		return
	}
	t.reports.add(func() {
		ctx := context.Background()
		if metering {
			t.renewals.Add(ctx, 1, t.labels.get(label{class: t.classOf(of, l), key: keyResult, value: result}).add...)
		}
		switch {
		case result == renewalFailed:
			ctx = of.troubled(l, err, at)
			if !failing {
				more := append(t.said(err), slog.String(string(keyErrorType), errorTypeOf(err)))
				t.log(ctx, slog.LevelWarn, "renewals of the lock fail", l.Name(), l.owner, l.token, more...)
			}
		case failing && result == renewalOK:
			of.calm(at)
			t.log(ctx, slog.LevelInfo, "renewals of the lock succeed again", l.Name(), l.owner, l.token)
		}
	})
}

// troubled adds a failed renewal to the span of the trouble.
func (ob *observation) troubled(l *Lease, err error, at time.Time) context.Context {
	ctx := context.Background()
	if ob == nil || !ob.context.IsValid() {
		return ctx
	}
	t := ob.telemetry
	if ob.trouble == nil {
		parent := trace.ContextWithSpanContext(ctx, ob.context)
		_, ob.trouble = t.tracer.Start(parent, spanRenew, trace.WithTimestamp(at),
			trace.WithAttributes(t.lockAttributes(l.Name(), l.owner, l.token)...))
	}
	event := []attribute.KeyValue{attribute.String("exception.type", errorTypeOf(err))}
	if text := t.text(err); text != "" {
		event = append(event, keyException.String(text))
	}
	ob.trouble.AddEvent("exception", trace.WithTimestamp(at), trace.WithAttributes(event...))
	return trace.ContextWithSpan(ctx, ob.trouble)
}

// calm ends the span of the trouble, if there is one.
func (ob *observation) calm(at time.Time) {
	if ob != nil && ob.trouble != nil {
		ob.trouble.End(trace.WithTimestamp(at))
		ob.trouble = nil
	}
}

// reports carries out, one after the other and in a goroutine of its own, what has to be reported from places that must not wait.
type reports struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running bool
	queue   []func()
}

func (r *reports) add(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.queue = append(r.queue, f)
	if !r.running {
		r.running = true
		r.wg.Go(r.work)
	}
}

// work ends when there is nothing left to report.
func (r *reports) work() {
	for {
		r.mu.Lock()
		batch := r.queue
		r.queue = nil
		if r.running = len(batch) > 0; !r.running {
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for _, f := range batch {
			f()
		}
	}
}

func (r *reports) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}
