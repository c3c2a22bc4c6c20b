package telemetry

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Cause is the reason why locks are lost. Metrics and log records contain
// Value, and the status of spans contains Text. Outage means that the backend
// was out of reach, so that many locks are lost together.
type Cause struct {
	Value, Text string
	Outage      bool
}

// Loss is the end of a lease that its owner did not unlock.
type Loss struct {
	Cause Cause
	Err   error // the backend's error; may be nil
	Fixed bool  // the lease was made with ExpireAfter
	Asked bool  // the lease ended as requested by ExpireAfter
}

// Lost reports that the owner of l has lost it. of is the Call of the hold.
// ended is the same Call if the hold has ended. Both may be nil. Lost may be
// called with a lock held.
func (t *Telemetry) Lost(l Lock, why Loss, of, ended *Call) {
	metering := t.metering()
	if t.config.Logger == nil && !metering && of == nil {
		return
	}
	at := time.Now()
	t.reports.add(func() {
		ctx := context.Background()
		if of != nil && of.context.IsValid() {
			ctx = trace.ContextWithSpanContext(ctx, of.context)
			t.traceLoss(ctx, l, why, at)
		}
		ended.calm(at)
		if why.Asked {
			ended.Ended(ctx, Expired)
			t.logLoss(ctx, slog.LevelDebug, "lock expired as asked", l, why)
			return
		}
		ended.Ended(ctx, Lost)
		if metering {
			t.losses.Add(ctx, 1, t.labels.get(label{kind: t.kindOf(of, l), key: keyCause, value: why.Cause.Value}).add...)
		}
		t.lossLog.add(ctx, l, why)
	})
}

// traceLoss makes the span of a loss: a short span, in the trace that acquired
// the lock.
func (t *Telemetry) traceLoss(ctx context.Context, l Lock, why Loss, at time.Time) {
	attributes := append(t.attributes(l), keyFixed.Bool(why.Fixed))
	if why.Asked {
		_, span := t.tracer.Start(ctx, spanExpire, trace.WithAttributes(attributes...), trace.WithTimestamp(at))
		span.End(trace.WithTimestamp(at))
		return
	}
	cause := keyCause.String(why.Cause.Value)
	attributes = append(attributes, cause, keyErrorType.String(why.Cause.Value))
	_, span := t.tracer.Start(ctx, spanLoss, trace.WithAttributes(attributes...), trace.WithTimestamp(at))
	event := []attribute.KeyValue{cause}
	if text := t.text(why.Err); text != "" {
		event = append(event, keyException.String(text))
	}
	span.AddEvent(eventLost, trace.WithTimestamp(at), trace.WithAttributes(event...))
	span.SetStatus(codes.Error, "lock lost: "+why.Cause.Text)
	span.End(trace.WithTimestamp(at))
}

// logLoss logs the loss of one lock.
func (t *Telemetry) logLoss(ctx context.Context, level slog.Level, text string, l Lock, why Loss) {
	more := append(t.said(why.Err), slog.String(string(keyCause), why.Cause.Value), slog.Bool(string(keyFixed), why.Fixed))
	t.log(ctx, level, text, l, more...)
}

const (
	// the number of losses of one cause that are logged individually, before
	// the others are summed up
	lossesApart = 10
	sumUpEvery  = time.Minute // the interval of the sums
	namesInSum  = 10
)

// lossLog logs lost locks, a few individually and many as sums. It logs the
// losses of an outage in one record for the first lock and one for all others.
// Only reports and close use it.
type lossLog struct {
	telemetry *Telemetry
	tallies   map[Cause]*lossTally
}

// lossTally counts the losses of one cause.
type lossTally struct {
	minute *time.Timer
	apart  int      // number of losses logged individually since began
	more   int      // number of losses not logged yet
	names  []string // names of some of the other losses
	err    error    // error of the last of these; may be nil
}

func (g *lossLog) add(ctx context.Context, l Lock, why Loss) {
	t := g.telemetry
	if t.config.Logger == nil {
		return
	}
	of, most := g.tallies[why.Cause], lossesApart
	if why.Cause.Outage {
		most = 1
	}
	if of == nil {
		of = &lossTally{minute: time.AfterFunc(sumUpEvery, func() { t.reports.add(func() { g.next(why.Cause) }) })}
		g.tallies[why.Cause] = of
	}
	if of.apart < most {
		of.apart++
		t.logLoss(ctx, slog.LevelError, "lock lost", l, why)
		return
	}
	of.more++
	of.err = why.Err
	if len(of.names) < namesInSum {
		of.names = append(of.names, l.Name)
	}
}

// next ends the minute of a cause. Another minute begins unless there was
// nothing left to log.
func (g *lossLog) next(cause Cause) {
	of := g.tallies[cause]
	if of.more == 0 {
		delete(g.tallies, cause)
		return
	}
	g.sumUp(cause, of)
	of.minute.Reset(sumUpEvery)
}

// sumUp logs the losses that were not logged individually.
func (g *lossLog) sumUp(cause Cause, of *lossTally) {
	t := g.telemetry
	if of.more == 0 {
		return
	}
	more := append(t.said(of.err), slog.String(string(keyCause), cause.Value), slog.Int(string(keyLosses), of.more))
	if !t.config.OmitNames {
		more = append(more, slog.Any(string(keyNames), of.names))
	}
	of.more, of.names, of.err = 0, nil, nil
	t.log(context.Background(), slog.LevelError, "more locks lost", Lock{}, more...)
}

// outageOver logs the other losses of an outage.
func (g *lossLog) outageOver() {
	for cause, of := range g.tallies {
		if cause.Outage {
			g.sumUp(cause, of)
		}
	}
}

// close logs the remaining losses. The life of reports has ended.
func (g *lossLog) close() {
	for _, cause := range g.telemetry.config.Causes {
		if of := g.tallies[cause]; of != nil {
			of.minute.Stop()
			g.sumUp(cause, of)
		}
	}
}
