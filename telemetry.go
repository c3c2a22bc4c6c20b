package dsync

import (
	"context"
	"errors"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// newTelemetry is called after the watchdog is created.
func newTelemetry(c *Client, o *Options) (*telemetry.Telemetry, error) {
	config := telemetry.Config{
		Driver: c.info.Name,
		Logger: o.Logger, Traces: o.TracerProvider, Meters: o.MeterProvider,
		OmitNames: o.OmitNames, OmitOwners: o.OmitOwners, Class: o.Class,
		Causes:  lossCauses[lossExpired:],
		Retries: []string{errorTypeOf(ErrUnavailable), errorTypeOf(ErrUnknown)},
		Life:    c.watchdog.life,
	}
	if backend, ok := c.driver.(driver.Inspector); ok {
		config.Inspect = backend.Inspect
	}
	return telemetry.New(config)
}

// observe acquires like lock, for a client whose telemetry is on.
func (c *Client) observe(ctx context.Context, r request, name string, try bool) (*Lease, error) {
	said := telemetry.Lock{Name: name, Mode: modeValue(r.mode), Permits: r.permits}
	if checkName(name) != nil {
		said.Name = "" // a name that is not fit to be exported
	}
	if r.owner != nil {
		said.Owner = r.owner.id
	}
	ctx, call := c.telemetry.Acquire(ctx, said, try)
	r.call = call
	l, err := c.lockName(ctx, r, name, try)
	if call != nil {
		result := telemetry.Result{Outcome: outcomeOf(ctx, err), TTL: r.ttl}
		if l != nil {
			result.Lease = l.reported()
		}
		if result.Outcome == telemetry.Failed {
			result.Failure = failureOf(err)
		}
		call.Return(ctx, result)
	}
	if err != nil {
		return nil, &LockError{"lock", name, err}
	}
	return l, nil
}

// reported returns the lease in the form that telemetry reports.
func (l *Lease) reported() telemetry.Lock {
	h := l.hold
	return telemetry.Lock{Name: l.Name(), Owner: l.owner, Token: l.token, Mode: modeValue(h.lock.mode), Permits: h.req.Permits}
}

// electionObserver is a Locker that reports elections to telemetry: a Client, a
// Locker made from a Client, or a Locker that embeds a Client.
type electionObserver interface {
	observeElection(name string) *telemetry.Election
}

// observeElection begins the telemetry of a call to Elect. Nil records nothing.
func observeElection(l Locker, name string) *telemetry.Election {
	if o, ok := l.(electionObserver); ok {
		return o.observeElection(name)
	}
	return nil
}

func (c *Client) observeElection(name string) *telemetry.Election {
	if checkName(name) != nil {
		name = "" // a name that is not fit to be exported
	}
	return c.telemetry.Elect(name)
}

func (o *Owner) observeElection(name string) *telemetry.Election {
	return o.client.observeElection(name)
}

func (o *optioned) observeElection(name string) *telemetry.Election {
	return observeElection(o.locker, name)
}

// termOf returns the lease of a leader in the form that telemetry reports. The
// lease may be a handle.
func termOf(l *Lease) telemetry.Lock {
	term := telemetry.Lock{Name: l.Name(), Owner: l.Owner()}
	if l = l.view(); l != nil {
		term.Token = l.token
	}
	return term
}

// endOf returns the way in which the term of a former leader ended.
func endOf(l *Lease) telemetry.TermEnd {
	switch err := l.Err(); {
	case errors.Is(err, ErrLost):
		return telemetry.TermLost
	case errors.Is(err, ErrClosed):
		return telemetry.TermClosed
	}
	return telemetry.TermResigned
}

// modeValue returns a mode in the form that telemetry reports. Exclusive is not
// reported, because it was once the only mode.
func modeValue(m driver.Mode) string {
	if m == driver.Exclusive {
		return ""
	}
	return m.String()
}

// startUnlock begins the span of an Unlock.
func (l *Lease) startUnlock(ctx context.Context) (context.Context, telemetry.Span) {
	h := l.hold
	t := h.lock.client.telemetry
	if !t.Wanted() {
		return ctx, telemetry.Span{}
	}
	h.lock.mu.Lock()
	call, shared := h.call, h.views != nil && h.views.next != nil
	h.lock.mu.Unlock()
	return t.Unlock(ctx, call, l.reported(), shared)
}

// reportRelease reports the end of a hold whose release returned err. call is
// the result of endTenure.
func (l *Lease) reportRelease(ctx context.Context, call *telemetry.Call, err error) {
	if lost, ok := err.(*lostError); ok {
		l.reportLoss(lost, call, call)
	} else if err == errClosing {
		call.Ended(ctx, telemetry.Closed)
	} else {
		call.Ended(ctx, telemetry.Unlocked)
	}
}

// lost reports the loss of the lease. If it is the last lease of its hold, lost
// also reports the loss of the hold. Called with lock.mu held.
func (l *Lease) lost(why *lostError) {
	call := l.hold.call
	l.reportLoss(why, call, l.hold.endTenure())
}

func (l *Lease) reportLoss(why *lostError, of, ended *telemetry.Call) {
	l.hold.lock.client.telemetry.Lost(l.reported(),
		telemetry.Loss{Cause: why.cause.reported(), Err: why.err, Fixed: l.fixed, Asked: why.asked}, of, ended)
}

// endTenure returns the observed call of a hold if its owner's last lease has
// ended, and otherwise nil. Called with lock.mu held, before the hold goes to
// its next owner.
func (h *hold) endTenure() *telemetry.Call {
	if h.call == nil || h.views != nil {
		return nil
	}
	call := h.call
	h.call = nil
	call.EndHold(h.outage != nil)
	return call
}

// reportRenewal is called with lock.mu held, before h.outage changes.
func (h *hold) reportRenewal(err error) {
	if h.views == nil {
		return
	}
	result := telemetry.RenewalOK
	if errors.Is(err, ErrNotHeld) {
		result = telemetry.RenewalNotHeld
	} else if err != nil {
		result = telemetry.RenewalFailed
	}
	h.lock.client.telemetry.Renewed(h.call, h.views.reported(), result, h.outage != nil, failureOf(err))
}

// Holder implements telemetry.Held.
func (k *lock) Holder() (of *telemetry.Call, ours bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.holder(), k.hold != nil && k.alone()
}

// holder returns the observed call of the live hold for which other calls wait,
// or nil. Called with mu held.
func (k *lock) holder() *telemetry.Call {
	if k.hold == nil || !k.alone() {
		return nil
	}
	return k.hold.call
}

// outcomeOf returns the outcome of an acquire. A wait that ended with its
// context is an error only if the backend was out of reach.
func outcomeOf(ctx context.Context, err error) telemetry.Outcome {
	switch {
	case err == nil:
		return telemetry.Acquired
	case errors.Is(err, ErrDeadlock), errors.Is(err, ErrClosed):
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		if errors.Is(err, context.Canceled) {
			return telemetry.Canceled
		}
		if errors.Is(err, ErrLocked) || !errors.Is(err, ErrUnavailable) {
			return telemetry.TimedOut
		}
	case errors.Is(err, ErrLocked):
		return telemetry.Locked
	}
	return telemetry.Failed
}

// failureOf returns an error in the form that telemetry reports. It omits the
// cause of the user's own context, which is in the text of a waitError.
func failureOf(err error) telemetry.Failure {
	if err == nil {
		return telemetry.Failure{}
	}
	why := telemetry.Failure{Type: errorTypeOf(err), Err: err}
	if wait := (*waitError)(nil); errors.As(err, &wait) {
		why.Err = wait.reason()
	}
	return why
}

// errorTypeOf returns one of a few values for an error. As in OpenTelemetry, it
// is "_OTHER" for unknown errors.
func errorTypeOf(err error) string {
	for _, kind := range []struct {
		err  error
		name string
	}{
		{ErrDeadlock, "deadlock"},
		{ErrClosed, "closed"},
		{driver.ErrSealed, "sealed"},
		{ErrLimit, "limit"},
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
