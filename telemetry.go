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
	spanExpire  = "dsync.expire" // of a lease that ended as ExpireAfter asked

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
	keyState     = attribute.Key("dsync.client.state")
	keyErrorType = attribute.Key("error.type")
	keyException = attribute.Key("exception.message")

	// Of log records alone.
	keyOutage = attribute.Key("dsync.outage.duration")
	keyLosses = attribute.Key("dsync.loss.count")
	keyNames  = attribute.Key("dsync.lock.names")
)

// The values of keyOutcome.
const (
	outcomeAcquired = "acquired"
	outcomeLocked   = "locked"
	outcomeCanceled = "canceled"
	outcomeTimedOut = "timed_out"
	outcomeError    = "error"
)

// The values of keyEnd, keyResult and keyState.
const (
	endUnlocked = "unlocked"
	endExpired  = "expired"
	endLost     = "lost"
	endClosed   = "closed"

	renewalOK      = "ok"
	renewalFailed  = "failed"
	renewalNotHeld = "not_held"

	stateReachable   = "reachable"
	stateUnreachable = "unreachable"
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
	metricLosses          = metricSpec{"dsync.losses", "{loss}", "Locks that ended before they were unlocked, other than as ExpireAfter asked."}
	metricRetries         = metricSpec{"dsync.acquire.retries", "{retry}", "Requests of Lock that failed and are repeated."}
	metricClients         = metricSpec{"dsync.client.count", "{client}", "Clients that are open, by whether the backend is in their reach."}
	metricRenewals        = metricSpec{"dsync.renewals", "{renewal}", "Renewals in the background: of locks, or where a session carries them of that, and then only those that failed."}
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
	begun  atomic.Bool // begin has been called while somebody wanted metrics

	tracer      trace.Tracer
	tracerSet   bool                 // to one that does something
	noTracerYet trace.TracerProvider // the global placeholder, if it was all there was

	meterSet   bool // likewise
	noMeterYet metric.MeterProvider

	acquireDuration, waitDuration, holdDuration metric.Float64Histogram
	acquires, losses, renewals, retries         metric.Int64Counter
	holds, waiters, clients                     metric.Int64UpDownCounter

	labels   labelCache
	reports  reports
	lossLog  lossLog
	inspects inspects
}

func newTelemetry(c *Client, o *Options) (*telemetry, error) {
	t := &telemetry{client: c, logger: o.Logger, class: o.Class}
	t.omit.names, t.omit.owners = o.OmitNames, o.OmitOwners
	t.labels.driver, t.labels.met = c.info.Name, t.meet
	t.lossLog.telemetry = t

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
	t.acquires, t.losses = counter(metricAcquires), counter(metricLosses)
	t.renewals, t.retries = counter(metricRenewals), counter(metricRetries)
	t.holds, t.waiters, t.clients = upDown(metricHolds), upDown(metricWaiters), upDown(metricClients)
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

// begin makes the points that are there before anything has happened. It is called when the client is made, and again when somebody
// wants metrics.
func (t *telemetry) begin() {
	if t.begun.Load() || !t.metering() {
		return
	}
	t.begun.Store(true)
	if out, first := t.client.reach.count(true); first {
		t.countClient(1, out)
		t.countClient(0, !out)
		t.labels.get(label{})
	}
}

// meet makes the points of a class that it would be too late to make when they are first counted: to Prometheus, a counter that begins
// with 1 has not risen.
func (t *telemetry) meet(class string) {
	zero := func(c metric.Int64Counter, l label) {
		l.class = class
		c.Add(context.Background(), 0, t.labels.get(l).add...)
	}
	for cause := lossExpired; cause <= lossUnreachable; cause++ {
		zero(t.losses, label{key: keyCause, value: cause.value()})
	}
	zero(t.renewals, label{key: keyResult, value: renewalFailed})
	for _, err := range []error{ErrUnavailable, ErrUnknown} {
		zero(t.retries, label{errorType: errorTypeOf(err)})
	}
}

// close waits for what is being reported and inspected. The life of the client's watchdog is over.
func (t *telemetry) close() {
	t.reports.close()
	t.lossLog.close()
	if out, counted := t.client.reach.count(false); counted {
		t.countClient(-1, out)
	}
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
		err = wait.reason()
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

// renewed reports the outcome of a renewal. It is called with lock.mu held, before hold.fault changes.
func (t *telemetry) renewed(h *hold, err error) {
	result, failing := renewalOK, h.fault != nil
	if errors.Is(err, ErrNotHeld) {
		result = renewalNotHeld
	} else if err != nil {
		result = renewalFailed
	}
	of, l, metering, at := h.ob, h.views, t.metering(), time.Now()
	if !metering && (of == nil || !failing && err == nil) || l == nil {
		return
	}
	t.reports.add(func() {
		if metering {
			t.renewals.Add(context.Background(), 1, t.labels.get(label{class: t.classOf(of, l), key: keyResult, value: result}).add...)
		}
		switch {
		case result == renewalFailed:
			of.troubled(l, err, at)
		case failing && result == renewalOK:
			of.calm(at)
		}
	})
}

// troubled adds a failed renewal to the span of the trouble.
func (ob *observation) troubled(l *Lease, err error, at time.Time) {
	if ob == nil || !ob.context.IsValid() {
		return
	}
	t := ob.telemetry
	if ob.trouble == nil {
		parent := trace.ContextWithSpanContext(context.Background(), ob.context)
		_, ob.trouble = t.tracer.Start(parent, spanRenew, trace.WithTimestamp(at),
			trace.WithAttributes(t.lockAttributes(l.Name(), l.owner, l.token)...))
	}
	event := []attribute.KeyValue{attribute.String("exception.type", errorTypeOf(err))}
	if text := t.text(err); text != "" {
		event = append(event, keyException.String(text))
	}
	ob.trouble.AddEvent("exception", trace.WithTimestamp(at), trace.WithAttributes(event...))
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
