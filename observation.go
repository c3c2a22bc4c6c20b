package dsync

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-dsync/dsync/driver"
)

// observation is what is recorded of one call of Lock or TryLock, and then of the hold that came of it. Nil records nothing, as when
// nobody wants metrics and the call is not sampled.
type observation struct {
	telemetry *telemetry
	name      string
	class     string
	owner     *Owner
	try       bool
	metering  bool
	start     time.Time
	span      trace.Span        // nil if it does not record; until end
	context   trace.SpanContext // of span
	ttl       time.Duration

	// Guarded by lock.mu, and settled when the call returns.
	joined   bool      // a hold that its owner had
	granted  time.Time // when its hold began; zero if it has none of its own
	finished time.Time // when it ended; settled when endTenure has returned

	trouble trace.Span // of reports alone; nil if renewals succeed

	mu       sync.Mutex
	over     bool                // the call has returned
	waiting  time.Time           // since then; zero if it never waited
	blockers []trace.SpanContext // of the acquires that it waited for, as far as they are known
	look     *time.Timer         // at who holds the lock
}

// observe is acquire for a client whose telemetry is on.
func (c *Client) observe(ctx context.Context, owner *Owner, name string, opts []LockOption, try bool) (*Lease, error) {
	ctx, ob := c.telemetry.acquire(ctx, owner, name, try)
	if ob != nil {
		ob.ttl = c.request(owner, opts, ob).ttl
	}
	l, err := c.tryAcquire(ctx, ob, owner, name, opts, try)
	if ob != nil {
		ob.end(ctx, l, err)
	}
	if err != nil {
		return nil, &opError{"lock", name, err}
	}
	return l, nil
}

// acquire begins the observation of a call of Lock or TryLock, and returns the context to go on with.
func (t *telemetry) acquire(ctx context.Context, owner *Owner, name string, try bool) (context.Context, *observation) {
	t.wanted.Store(true)
	start := time.Now()
	var span trace.Span
	if t.tracing() {
		// Attributes are added only to a span that records, which spares the others the cost.
		if ctx, span = t.tracer.Start(ctx, spanAcquire); !span.IsRecording() {
			span.End()
			span = nil
		}
	}
	metering := t.metering()
	if span == nil && !metering {
		return ctx, nil
	}
	t.begin()
	ob := &observation{telemetry: t, name: name, owner: owner, try: try, metering: metering, start: start, span: span}
	if checkName(name) != nil {
		ob.name = "" // not fit to be exported
	} else if metering && t.class != nil {
		ob.class = t.class(name)
	}
	if span != nil {
		ob.context = span.SpanContext()
	}
	return ctx, ob
}

// note returns the text to be stored with the lock: the user's, and who holds it.
func (ob *observation) note(text string) string {
	if !ob.context.IsSampled() {
		return text
	}
	return appendTrace(text, ob.context)
}

// waits takes note that the call is blocked. holder is the observation of the hold that it waits for, if the client has it; k is nil
// if nobody needs to hold the lock, as in the pause before another attempt.
func (ob *observation) waits(k *lock, holder *observation) {
	if ob == nil {
		return
	}
	ob.mu.Lock()
	first := ob.waiting.IsZero() && !ob.over
	if first {
		ob.waiting = time.Now()
	}
	if k != nil && ob.look == nil && ob.span != nil && !ob.over {
		ob.blockedBy(holder.traced())
		ob.look = time.AfterFunc(lookAfter, func() { ob.lookAt(k) })
	}
	ob.mu.Unlock()
	if first && ob.metering {
		ob.telemetry.waiters.Add(context.Background(), 1, ob.label("", "", "").add...)
	}
}

// retries takes note that the request failed, and that the call waits to repeat it.
func (ob *observation) retries(err error) {
	if ob == nil {
		return
	}
	ob.waits(nil, nil)
	if ob.metering {
		ob.telemetry.retries.Add(context.Background(), 1, ob.label("", "", errorTypeOf(err)).add...)
	}
}

// traced returns the context to link to.
func (ob *observation) traced() trace.SpanContext {
	if ob == nil || !ob.context.IsSampled() {
		return trace.SpanContext{}
	}
	return ob.context
}

// blockedBy is called with ob.mu held.
func (ob *observation) blockedBy(holder trace.SpanContext) {
	known := func(s trace.SpanContext) bool { return s.SpanID() == holder.SpanID() }
	if holder.IsValid() && !known(ob.context) && !slices.ContainsFunc(ob.blockers, known) {
		ob.blockers = append(ob.blockers, holder)
	}
}

// grants takes note that the call has got a lease, and is called with lock.mu held.
func (ob *observation) grants(joined bool) {
	if ob.joined = joined; !joined {
		ob.granted = time.Now()
	}
}

// end ends the observation of the call. ctx is the one that acquire returned.
func (ob *observation) end(ctx context.Context, l *Lease, err error) {
	now := time.Now()
	ob.mu.Lock()
	ob.over = true
	if ob.look != nil {
		ob.look.Stop()
	}
	waiting, blockers := ob.waiting, ob.blockers
	ob.mu.Unlock()
	outcome, errorType := outcomeOf(ctx, err)
	if ob.metering {
		ob.measure(ctx, now, waiting, outcome, errorType)
	}
	if ob.span == nil {
		return
	}
	if !waiting.IsZero() {
		ob.traceWait(ctx, waiting, now, blockers, outcome)
	}
	attributes := append(ob.attributes(l), keyTry.Bool(ob.try), keyOutcome.String(outcome), keyTTL.Float64(ob.ttl.Seconds()))
	if l != nil {
		attributes = append(attributes, keyReentrant.Bool(ob.joined))
	}
	ob.span.SetAttributes(attributes...)
	if outcome == outcomeError {
		ob.telemetry.fault(ob.span, errorType, err, now)
	}
	ob.span.End(trace.WithTimestamp(now))
	ob.span = nil // it would be kept for as long as the lock is held
}

func (ob *observation) measure(ctx context.Context, now, waiting time.Time, outcome, errorType string) {
	t, labels := ob.telemetry, ob.label(keyOutcome, outcome, errorType)
	t.acquires.Add(ctx, 1, labels.add...)
	t.acquireDuration.Record(ctx, now.Sub(ob.start).Seconds(), labels.record...)
	if !waiting.IsZero() {
		t.waiters.Add(ctx, -1, ob.label("", "", "").add...)
		t.waitDuration.Record(ctx, now.Sub(waiting).Seconds(), labels.record...)
	}
	if !ob.granted.IsZero() {
		t.holds.Add(ctx, 1, ob.label("", "", "").add...)
	}
}

// traceWait makes the span of a wait when it is over, so that none is needed while it may still turn out that there is none, and
// so that no user's code runs inside the queue.
func (ob *observation) traceWait(ctx context.Context, from, to time.Time, blockers []trace.SpanContext, outcome string) {
	options := []trace.SpanStartOption{
		trace.WithTimestamp(from),
		trace.WithAttributes(append(ob.attributes(nil), keyOutcome.String(outcome))...),
	}
	for _, b := range blockers {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: b}))
	}
	_, span := ob.telemetry.tracer.Start(ctx, spanWait, options...)
	span.End(trace.WithTimestamp(to))
}

// attributes are those of the lock. l may be nil.
func (ob *observation) attributes(l *Lease) []attribute.KeyValue {
	owner, token := "", uint64(0)
	if l != nil {
		owner, token = l.owner, l.token
	} else if ob.owner != nil {
		owner = ob.owner.id
	}
	return ob.telemetry.lockAttributes(ob.name, owner, token)
}

// outcomeOf returns what became of an acquire, and the kind of its error if that is what became of it. A wait that ended with its
// context is an error only if the backend was out of reach.
func outcomeOf(ctx context.Context, err error) (outcome, errorType string) {
	switch {
	case err == nil:
		return outcomeAcquired, ""
	case errors.Is(err, ErrDeadlock), errors.Is(err, ErrClosed):
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		if errors.Is(err, context.Canceled) {
			return outcomeCanceled, ""
		}
		if errors.Is(err, ErrLocked) || !errors.Is(err, ErrUnavailable) {
			return outcomeTimedOut, ""
		}
	case errors.Is(err, ErrLocked):
		return outcomeLocked, ""
	}
	return outcomeError, errorTypeOf(err)
}

// errorTypeOf returns one of few values for an error, "_OTHER" as OpenTelemetry has it for those that are not known.
func errorTypeOf(err error) string {
	for _, kind := range []struct {
		err  error
		name string
	}{
		{ErrDeadlock, "deadlock"},
		{ErrClosed, "closed"},
		{driver.ErrSealed, "sealed"},
		{ErrLost, "lost"},
		{ErrNotHeld, "not_held"},
		{ErrUnavailable, "unavailable"},
		{ErrUnknown, "unknown"},
		{errors.ErrUnsupported, "unsupported"},
	} {
		if errors.Is(err, kind.err) {
			return kind.name
		}
	}
	return "_OTHER"
}

// endTenure returns the observation of a hold if its owner's last lease has ended, otherwise nil. It is called with lock.mu held, before
// the hold goes to its next owner.
func (h *hold) endTenure() *observation {
	if h.ob == nil || h.views != nil {
		return nil
	}
	return h.endObserved()
}

func (h *hold) endObserved() *observation {
	ob := h.ob
	h.ob = nil
	ob.finished = time.Now()
	if h.fault != nil {
		at := ob.finished
		ob.telemetry.reports.add(func() { ob.calm(at) })
	}
	return ob
}

// endHold counts the end of a hold.
func (ob *observation) endHold(ctx context.Context, how string) {
	if ob != nil && ob.metering && !ob.granted.IsZero() {
		ob.measureHold(ctx, how)
	}
}

func (ob *observation) measureHold(ctx context.Context, how string) {
	ob.telemetry.holds.Add(ctx, -1, ob.label("", "", "").add...)
	ob.telemetry.holdDuration.Record(ctx, ob.finished.Sub(ob.granted).Seconds(), ob.label(keyEnd, how, "").record...)
}
