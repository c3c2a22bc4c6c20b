package dsync

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

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
		if why.asked {
			ended.endHold(ctx, endExpired)
			t.logLoss(ctx, slog.LevelDebug, "lock expired as asked", l, why, fixed)
			return
		}
		ended.endHold(ctx, endLost)
		if metering {
			t.losses.Add(ctx, 1, t.labels.get(label{class: t.classOf(of, l), key: keyCause, value: why.cause.value()}).add...)
		}
		t.lossLog.add(ctx, l, why, fixed)
	})
}

// traceLoss makes the span of a loss: short, and of the trace that acquired the lock.
func (t *telemetry) traceLoss(ctx context.Context, l *Lease, why *lostError, fixed bool, at time.Time) {
	attributes := append(t.lockAttributes(l.Name(), l.owner, l.token), keyFixed.Bool(fixed))
	if why.asked {
		_, span := t.tracer.Start(ctx, spanExpire, trace.WithAttributes(attributes...), trace.WithTimestamp(at))
		span.End(trace.WithTimestamp(at))
		return
	}
	cause := keyCause.String(why.cause.value())
	attributes = append(attributes, cause, keyErrorType.String(why.cause.value()))
	_, span := t.tracer.Start(ctx, spanLoss, trace.WithAttributes(attributes...), trace.WithTimestamp(at))
	event := []attribute.KeyValue{cause}
	if text := t.text(why.err); text != "" {
		event = append(event, keyException.String(text))
	}
	span.AddEvent(eventLost, trace.WithTimestamp(at), trace.WithAttributes(event...))
	span.SetStatus(codes.Error, "lock lost: "+why.cause.String())
	span.End(trace.WithTimestamp(at))
}

// logLoss tells an operator of one lock.
func (t *telemetry) logLoss(ctx context.Context, level slog.Level, text string, l *Lease, why *lostError, fixed bool) {
	more := append(t.said(why.err), slog.String(string(keyCause), why.cause.value()), slog.Bool(string(keyFixed), fixed))
	t.log(ctx, level, text, l.Name(), l.owner, l.token, more...)
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

const (
	lossesApart = 10          // losses of one cause that are told one by one, before the rest are summed up
	sumUpEvery  = time.Minute // and a sum of them is told
	namesInSum  = 10
)

// lossLog tells an operator of lost locks: of few one by one, of many in sums, and of what an outage took in one record for the first
// lock and one for the rest. It is used by reports alone, but for close.
type lossLog struct {
	telemetry *telemetry
	tallies   [lossUnreachable + 1]lossTally
}

// lossTally is the losses of one cause.
type lossTally struct {
	minute *time.Timer // nil if none is running
	apart  int         // told one by one since it began
	more   int         // not told yet
	names  []string    // of some of those
	why    *lostError  // of the last of those
}

func (g *lossLog) add(ctx context.Context, l *Lease, why *lostError, fixed bool) {
	t := g.telemetry
	if t.logger == nil {
		return
	}
	of, most := &g.tallies[why.cause], lossesApart
	if why.cause == lossUnreachable {
		most = 1
	}
	if of.minute == nil {
		of.minute = time.AfterFunc(sumUpEvery, func() { t.reports.add(func() { g.next(why.cause) }) })
	}
	if of.apart < most {
		of.apart++
		t.logLoss(ctx, slog.LevelError, "lock lost", l, why, fixed)
		return
	}
	of.more++
	of.why = why
	if len(of.names) < namesInSum {
		of.names = append(of.names, l.Name())
	}
}

// next ends the minute of a cause. Another begins unless nothing was left to tell.
func (g *lossLog) next(cause lossCause) {
	of := &g.tallies[cause]
	if of.more == 0 {
		*of = lossTally{}
		return
	}
	g.sumUp(cause)
	of.minute.Reset(sumUpEvery)
}

// sumUp tells of what was not told one by one.
func (g *lossLog) sumUp(cause lossCause) {
	t, of := g.telemetry, &g.tallies[cause]
	if of.more == 0 {
		return
	}
	more := append(t.said(of.why.err), slog.String(string(keyCause), cause.value()), slog.Int(string(keyLosses), of.more))
	if !t.omit.names {
		more = append(more, slog.Any(string(keyNames), of.names))
	}
	of.more, of.names, of.why = 0, nil, nil
	t.log(context.Background(), slog.LevelError, "more locks lost", "", "", 0, more...)
}

// close tells the rest. The life of reports is over.
func (g *lossLog) close() {
	for cause := range g.tallies {
		if minute := g.tallies[cause].minute; minute != nil {
			minute.Stop()
		}
		g.sumUp(lossCause(cause))
	}
}
