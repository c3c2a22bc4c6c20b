package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Call is the record of one call to Lock or TryLock, and then of its hold. A
// nil Call records nothing. The Call is nil if no metrics are wanted and the
// call is not sampled. All methods accept a nil Call.
//
// A hold has at most one Call at a time: the Call of its owner's first lease.
// Callers serialize the methods Granted, EndHold, Renewed and Ended for each
// hold.
type Call struct {
	telemetry *Telemetry
	lock      Lock // includes the owner only if the caller gave one
	class     string
	try       bool
	metering  bool
	start     time.Time
	span      trace.Span        // nil if the span does not record; until Return
	context   trace.SpanContext // context of span

	// Serialized by the owner of the hold, and final once the call has returned.
	joined   bool      // the lease belongs to a hold that its owner already had
	granted  time.Time // when its hold began; zero if the call has no hold
	finished time.Time // when its hold ended; final once EndHold has returned

	// span of the trouble with renewals; used only by reports; nil if renewals
	// succeed
	trouble trace.Span

	mu       sync.Mutex
	over     bool                // the call has returned
	waiting  time.Time           // when the call began to wait; zero if it never waited
	blockers []trace.SpanContext // the known calls in its way
	look     *time.Timer         // the timer for queries of the holder of the lock
}

// Acquire begins the record of a call to Lock or TryLock and returns the
// context to continue with. The name in l is empty if it must not be exported.
func (t *Telemetry) Acquire(ctx context.Context, l Lock, try bool) (context.Context, *Call) {
	t.wanted.Store(true)
	start := time.Now()
	var span trace.Span
	if t.tracing() {
		// Attributes are added only to a span that records, which spares other
		// calls the cost.
		if ctx, span = t.tracer.Start(ctx, spanAcquire); !span.IsRecording() {
			span.End()
			span = nil
		}
	}
	metering := t.metering()
	if span == nil && !metering {
		return ctx, nil
	}
	t.Begin()
	c := &Call{telemetry: t, lock: l, try: try, metering: metering, start: start, span: span}
	if metering && l.Name != "" && t.config.Class != nil {
		c.class = t.config.Class(l.Name)
	}
	if span != nil {
		c.context = span.SpanContext()
	}
	return ctx, c
}

// Note returns the text to store with the lock: the user's text and the trace
// of the holder.
func (c *Call) Note(text string) string {
	if c == nil || !c.context.IsSampled() {
		return text
	}
	return appendTrace(text, c.context)
}

// Waits records that the call is blocked. If the client has a hold of the lock,
// holder is the Call of that hold. held returns the holder at later times. held
// is nil if the lock may be free, as in the pause before another attempt.
func (c *Call) Waits(held Held, holder *Call) {
	if c == nil {
		return
	}
	c.mu.Lock()
	first := c.waiting.IsZero() && !c.over
	if first {
		c.waiting = time.Now()
	}
	if held != nil && c.look == nil && c.span != nil && !c.over {
		c.blockedBy(holder.traced())
		c.look = time.AfterFunc(lookAfter, func() { c.lookAt(held) })
	}
	c.mu.Unlock()
	if first && c.metering {
		c.telemetry.waiters.Add(context.Background(), 1, c.label("", "", "").add...)
	}
}

// Retries records that a request failed, with a type of error, and that the
// call waits to repeat it.
func (c *Call) Retries(errorType string) {
	if c == nil {
		return
	}
	c.Waits(nil, nil)
	if c.metering {
		c.telemetry.retries.Add(context.Background(), 1, c.label("", "", errorType).add...)
	}
}

// traced returns the context to which other spans link.
func (c *Call) traced() trace.SpanContext {
	if c == nil || !c.context.IsSampled() {
		return trace.SpanContext{}
	}
	return c.context
}

// blockedBy is called with c.mu held.
func (c *Call) blockedBy(holder trace.SpanContext) {
	known := func(s trace.SpanContext) bool { return s.SpanID() == holder.SpanID() }
	if holder.IsValid() && !known(c.context) && !slices.ContainsFunc(c.blockers, known) {
		c.blockers = append(c.blockers, holder)
	}
}

// Granted records that the call was granted a lease, either of a hold that its
// owner had or of a new hold.
func (c *Call) Granted(joined bool) {
	if c == nil {
		return
	}
	if c.joined = joined; !joined {
		c.granted = time.Now()
	}
}

// Result is the outcome of a call.
type Result struct {
	Outcome Outcome
	Failure Failure // failure, if the outcome is Failed
	Lease   Lock    // zero if there is none
	TTL     time.Duration
}

// Return ends the call. ctx is the context that Acquire returned.
func (c *Call) Return(ctx context.Context, r Result) {
	now := time.Now()
	c.mu.Lock()
	c.over = true
	if c.look != nil {
		c.look.Stop()
	}
	waiting, blockers := c.waiting, c.blockers
	c.mu.Unlock()
	if c.metering {
		c.measure(ctx, now, waiting, r)
	}
	if c.span == nil {
		return
	}
	if !waiting.IsZero() {
		c.traceWait(ctx, waiting, now, blockers, r.Outcome)
	}
	lock, granted := c.lock, r.Outcome == Acquired
	if granted {
		lock = r.Lease
		lock.Mode = c.lock.Mode // the mode is as requested, even under a hold in another mode
	}
	attributes := append(c.telemetry.attributes(lock),
		keyTry.Bool(c.try), keyOutcome.String(string(r.Outcome)), keyTTL.Float64(r.TTL.Seconds()))
	if granted {
		attributes = append(attributes, keyReentrant.Bool(c.joined))
	}
	c.span.SetAttributes(attributes...)
	if r.Outcome == Failed {
		c.telemetry.fail(c.span, r.Failure, now)
	}
	c.span.End(trace.WithTimestamp(now))
	c.span = nil // otherwise the span would be kept for as long as the lock is held
}

func (c *Call) measure(ctx context.Context, now, waiting time.Time, r Result) {
	t, labels := c.telemetry, c.label(keyOutcome, string(r.Outcome), r.Failure.Type)
	t.acquires.Add(ctx, 1, labels.add...)
	t.acquireDuration.Record(ctx, now.Sub(c.start).Seconds(), labels.record...)
	if !waiting.IsZero() {
		t.waiters.Add(ctx, -1, c.label("", "", "").add...)
		t.waitDuration.Record(ctx, now.Sub(waiting).Seconds(), labels.record...)
	}
	if !c.granted.IsZero() {
		t.holds.Add(ctx, 1, c.label("", "", "").add...)
	}
}

// traceWait makes the span of a wait after the wait has ended. So a call that
// turns out not to wait needs no span, and no user code runs inside the queue.
func (c *Call) traceWait(ctx context.Context, from, to time.Time, blockers []trace.SpanContext, outcome Outcome) {
	options := []trace.SpanStartOption{
		trace.WithTimestamp(from),
		trace.WithAttributes(append(c.telemetry.attributes(c.lock), keyOutcome.String(string(outcome)))...),
	}
	for _, b := range blockers {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: b}))
	}
	_, span := c.telemetry.tracer.Start(ctx, spanWait, options...)
	span.End(trace.WithTimestamp(to))
}

func (c *Call) label(key attribute.Key, value, errorType string) *labels {
	return c.telemetry.labels.get(label{kind: kind{c.class, c.lock.Mode}, key: key, value: value, errorType: errorType})
}
