package telemetry

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Span is the span of an Unlock or a ForceUnlock. The zero Span records
// nothing.
type Span struct {
	telemetry *Telemetry
	span      trace.Span
}

// End ends the span; Failure{} is success.
func (s Span) End(why Failure) {
	if s.span == nil {
		return
	}
	if why.Err != nil {
		s.telemetry.fail(s.span, why, time.Now())
	}
	s.span.End()
}

// fail marks a span as failed.
func (t *Telemetry) fail(span trace.Span, why Failure, at time.Time) {
	span.SetAttributes(keyErrorType.String(why.Type))
	span.SetStatus(codes.Error, why.Type)
	if text := t.text(why.Err); text != "" {
		span.AddEvent("exception", trace.WithTimestamp(at),
			trace.WithAttributes(attribute.String("exception.type", why.Type), keyException.String(text)))
	}
}

// Unlock begins the span of an Unlock if the Call of the hold or the span
// around the Unlock was sampled. A separate sampling decision would show
// unlocks without their acquire. shared reports whether other leases of the
// owner also hold the lock.
func (t *Telemetry) Unlock(ctx context.Context, of *Call, l Lock, shared bool) (context.Context, Span) {
	if of != nil && of.context.IsSampled() || t.tracing() && trace.SpanFromContext(ctx).IsRecording() {
		attributes := append(t.attributes(l), keyReentrant.Bool(shared))
		ctx, span := t.tracer.Start(ctx, spanUnlock, trace.WithAttributes(attributes...))
		return ctx, Span{t, span}
	}
	return ctx, Span{}
}

// ForceUnlock begins the span of a ForceUnlock.
func (t *Telemetry) ForceUnlock(ctx context.Context, name string) (context.Context, Span) {
	if !t.tracing() {
		return ctx, Span{}
	}
	ctx, span := t.tracer.Start(ctx, spanForce, trace.WithAttributes(t.attributes(Lock{Name: name})...))
	return ctx, Span{t, span}
}

// ForceUnlocked ends the span of a ForceUnlock. A free name is not an error.
func (t *Telemetry) ForceUnlocked(ctx context.Context, s Span, name string, held bool, why Failure) {
	if why.Err == nil {
		t.log(ctx, slog.LevelWarn, "lock taken away by force", Lock{Name: name})
	}
	if s.span != nil && !held {
		s.span.SetAttributes(keyErrorType.String(why.Type))
		why = Failure{}
	}
	s.End(why)
}
