package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Election is the record of one call to Elect. It consists of campaigns, each
// of which ends with a term or with the call. A nil Election records nothing,
// and all methods accept it. They must not be called concurrently.
type Election struct {
	telemetry *Telemetry
	name      string // empty if it must not be exported
	class     string
	metering  bool

	campaign trace.Span // nil if no span records
	term     Lock
	began    time.Time         // start of the term; zero if there is none
	parent   trace.SpanContext // parent of the term's span
}

// Elect begins the record of a call to Elect.
func (t *Telemetry) Elect(name string) *Election {
	if !t.On() {
		return nil
	}
	e := &Election{telemetry: t, name: name, metering: t.metering()}
	if !e.metering {
		return e
	}
	t.Begin()
	if name != "" && t.config.Class != nil {
		e.class = t.config.Class(name)
	}
	ctx := context.Background()
	t.candidates.Add(ctx, 1, e.label("").add...)
	t.leaders.Add(ctx, 0, e.label("").add...)
	for _, how := range []TermEnd{TermResigned, TermLost, TermClosed} {
		t.terms.Add(ctx, 0, e.label(how).add...)
	}
	return e
}

// Campaign begins a campaign and returns the context to continue with.
func (e *Election) Campaign(ctx context.Context) context.Context {
	if e == nil || !e.telemetry.tracing() {
		return ctx
	}
	ctx, span := e.telemetry.tracer.Start(ctx, spanCampaign)
	if !span.IsRecording() {
		span.End()
		return ctx
	}
	e.campaign = span
	return ctx
}

// Elected ends the campaign and begins a term. It returns the context under,
// but with the span of outer. So the work of a leader, which may last for days,
// is not in the trace of the campaign.
func (e *Election) Elected(under, outer context.Context, term Lock) context.Context {
	if e == nil {
		return under
	}
	e.term, e.began = term, time.Now()
	e.parent = trace.SpanContextFromContext(under)
	e.endCampaign(Acquired, Failure{})
	if e.metering {
		e.telemetry.leaders.Add(under, 1, e.label("").add...)
	}
	return trace.ContextWithSpan(under, trace.SpanFromContext(outer))
}

// NotElected ends the campaign if it has not ended with a term.
func (e *Election) NotElected(outcome Outcome, why Failure) {
	if e != nil {
		e.endCampaign(outcome, why)
	}
}

func (e *Election) endCampaign(outcome Outcome, why Failure) {
	if e.campaign == nil {
		return
	}
	lock := Lock{Name: e.name}
	if outcome == Acquired {
		lock = e.term
	}
	e.campaign.SetAttributes(append(e.telemetry.attributes(lock), keyOutcome.String(string(outcome)))...)
	if outcome == Failed {
		e.telemetry.fail(e.campaign, why, time.Now())
	}
	e.campaign.End()
	e.campaign = nil
}

// TermOver ends the term. Its span is made only now, because a span is exported
// only when it has ended, and a term may last for days. In the meantime the
// metrics report the term.
func (e *Election) TermOver(how TermEnd) {
	if e == nil {
		return
	}
	ctx := trace.ContextWithSpanContext(context.Background(), e.parent)
	if e.metering {
		e.telemetry.leaders.Add(ctx, -1, e.label("").add...)
		e.telemetry.terms.Add(ctx, 1, e.label(how).add...)
	}
	if e.parent.IsSampled() && e.telemetry.tracing() {
		_, span := e.telemetry.tracer.Start(ctx, spanTerm, trace.WithTimestamp(e.began),
			trace.WithAttributes(append(e.telemetry.attributes(e.term), keyTermEnd.String(string(how)))...))
		span.End()
	}
	e.term, e.parent = Lock{}, trace.SpanContext{}
}

// Over ends the call.
func (e *Election) Over() {
	if e != nil && e.metering {
		e.telemetry.candidates.Add(context.Background(), -1, e.label("").add...)
	}
}

// label returns the labels for the end of a term, or for the whole election if
// how is "".
func (e *Election) label(how TermEnd) *labels {
	l := label{kind: kind{class: e.class}}
	if how != "" {
		l.key, l.value = keyTermEnd, string(how)
	}
	return e.telemetry.labels.get(l)
}
