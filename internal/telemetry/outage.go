package telemetry

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// The methods of this file may be called with a lock held.

// OutOfReach logs the start of an outage.
func (t *Telemetry) OutOfReach(why Failure) { t.warn("backend out of reach", why) }

// Refused logs that the server does not accept the client.
func (t *Telemetry) Refused(why Failure) { t.warn("backend refuses the client", why) }

func (t *Telemetry) warn(text string, why Failure) {
	if t.config.Logger == nil {
		return
	}
	t.reports.add(func() {
		more := append(t.said(why.Err), slog.String(string(keyErrorType), why.Type))
		t.log(context.Background(), slog.LevelWarn, text, Lock{}, more...)
	})
}

// LogOpen logs an outage before a client exists.
func LogOpen(ctx context.Context, to *slog.Logger, err error, omit bool) {
	var more []slog.Attr
	if !omit {
		more = append(more, slog.String(string(keyException), err.Error()))
	}
	to.LogAttrs(ctx, slog.LevelWarn, "dsync: backend out of reach, Open tries again", more...)
}

// InReach logs the end of an outage, after the locks that the outage has cost.
func (t *Telemetry) InReach(after time.Duration) {
	if t.config.Logger == nil {
		return
	}
	t.reports.add(func() {
		t.lossLog.outageOver()
		t.log(context.Background(), slog.LevelInfo, "backend in reach again", Lock{}, slog.Float64(string(keyOutage), after.Seconds()))
	})
}

// HeldForLong logs that a lease is held for longer than d. of is the Call of
// its hold and may be nil.
func (t *Telemetry) HeldForLong(l Lock, of *Call, d time.Duration) {
	if t.config.Logger == nil {
		return
	}
	t.reports.add(func() {
		ctx := context.Background()
		if of != nil && of.context.IsValid() {
			ctx = trace.ContextWithSpanContext(ctx, of.context)
		}
		t.log(ctx, slog.LevelWarn, "lock held for long", l, slog.Float64(string(keyHeld), d.Seconds()))
	})
}

// WaitsForOwn logs that a call has waited for d for a lock that its own client
// holds. by describes the caller that acquired the lock and may be nil. Without
// a Logger the record of an endless wait goes to slog.Default.
func (t *Telemetry) WaitsForOwn(l Lock, d time.Duration, by error, endless bool) {
	to := t.config.Logger
	if to == nil && endless {
		to = slog.Default()
	}
	if to == nil {
		return
	}
	t.reports.add(func() {
		more := append(t.said(by), slog.Float64(string(keyHeld), d.Seconds()))
		t.logTo(to, context.Background(), slog.LevelWarn, "call waits for a lease of its own client", l, more...)
	})
}

// Turned counts the client in its new state: the backend is out of reach, or in
// reach again.
func (t *Telemetry) Turned(out bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.out = out; !t.counted {
		return
	}
	t.reports.add(func() {
		t.countClient(-1, !out)
		t.countClient(1, out)
	})
}

func (t *Telemetry) countClient(n int64, out bool) {
	state := stateReachable
	if out {
		state = stateUnreachable
	}
	t.clients.Add(context.Background(), n, t.labels.get(label{key: keyState, value: state}).add...)
}

// NotKeptAlive counts a failed renewal of a session.
func (t *Telemetry) NotKeptAlive() {
	if !t.metering() {
		return
	}
	t.reports.add(func() {
		t.renewals.Add(context.Background(), 1, t.labels.get(label{key: keyResult, value: string(RenewalFailed)}).add...)
	})
}
