package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// EndHold records that the hold of the call has ended, before it goes to its
// next owner. troubled reports whether the last renewal failed. Ended or a
// method of Telemetry counts the end.
func (c *Call) EndHold(troubled bool) {
	if c == nil {
		return
	}
	c.finished = time.Now()
	if at := c.finished; troubled {
		c.telemetry.reports.add(func() { c.calm(at) })
	}
}

// Ended counts the end of the hold, after EndHold.
func (c *Call) Ended(ctx context.Context, how End) {
	if c == nil || !c.metering || c.granted.IsZero() {
		return
	}
	c.telemetry.holds.Add(ctx, -1, c.label("", "", "").add...)
	c.telemetry.holdDuration.Record(ctx, c.finished.Sub(c.granted).Seconds(), c.label(keyEnd, string(how), "").record...)
}

// EndedWithClient is like Ended, but for a hold that ended with the client. It
// may be called with a lock held.
func (c *Call) EndedWithClient() {
	if c != nil {
		c.telemetry.reports.add(func() { c.Ended(context.Background(), Closed) })
	}
}

// Renewed reports the outcome of a renewal of the lock. of is the Call of the
// lock, and failing reports whether the previous renewal failed. Renewed may be
// called with a lock held.
func (t *Telemetry) Renewed(of *Call, l Lock, result Renewal, failing bool, why Failure) {
	metering, at := t.metering(), time.Now()
	if !metering && (of == nil || !failing && result == RenewalOK) {
		return
	}
	t.reports.add(func() {
		if metering {
			t.renewals.Add(context.Background(), 1,
				t.labels.get(label{kind: t.kindOf(of, l), key: keyResult, value: string(result)}).add...)
		}
		switch {
		case result == RenewalFailed:
			of.troubled(l, why, at)
		case failing && result == RenewalOK:
			of.calm(at)
		}
	})
}

// troubled adds a failed renewal to the span of the trouble.
func (c *Call) troubled(l Lock, why Failure, at time.Time) {
	if c == nil || !c.context.IsValid() {
		return
	}
	t := c.telemetry
	if c.trouble == nil {
		parent := trace.ContextWithSpanContext(context.Background(), c.context)
		_, c.trouble = t.tracer.Start(parent, spanRenew, trace.WithTimestamp(at), trace.WithAttributes(t.attributes(l)...))
	}
	event := []attribute.KeyValue{attribute.String("exception.type", why.Type)}
	if text := t.text(why.Err); text != "" {
		event = append(event, keyException.String(text))
	}
	c.trouble.AddEvent("exception", trace.WithTimestamp(at), trace.WithAttributes(event...))
}

// calm ends the span of the trouble, if there is one.
func (c *Call) calm(at time.Time) {
	if c != nil && c.trouble != nil {
		c.trouble.End(trace.WithTimestamp(at))
		c.trouble = nil
	}
}
