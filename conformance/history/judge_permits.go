package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// passedOn is the time after its grant for which package dsync passes a hold
// from caller to caller.
const passedOn = 100 * time.Millisecond

// setLimit is one call that set the limit of a name's permits.
type setLimit struct {
	called   *Event
	returned *Event // nil means did not happen
}

func (a *attempt) takesPermits() bool { return a.called.Mode == driver.Permit }

// permits examines the holds of permits in the order in which they began. It
// looks for more permits than the limit (RuleOverlap, RuleLoss), tokens
// (RuleTokens), overtaking (RuleOrder), and refusals because of a limit
// (RuleResult).
func (j *judge) permits(l *lock) {
	var held []*attempt // holds whose claims cover a given moment
	for i, b := range l.permits {
		if b.returned.Token != 0 {
			j.violation(RuleTokens, "permits have a token", b.returned)
		}
		if j.b.FIFO {
			j.permitOrder(l, l.permits[:i], b)
		}
		if !b.claimed() {
			continue
		}
		held = slices.DeleteFunc(held, func(a *attempt) bool { return !b.from.before(a.to) })
		held = append(held, b)
		b.used = sum(held)
		if limit := l.limitOf(held); b.used > limit {
			j.overLimit(held, limit)
		}
	}
	only := l.onlyLimit()
	for _, a := range l.attempts {
		if only > 0 && a.called.Limit == only && a.called.Permits <= only && a.returned != nil && a.returned.Class == ClassLimit {
			j.violation(RuleResult, "a limit that never changed was reported as wrong", a.called, a.returned)
		}
	}
}

func sum(of []*attempt) (n int) {
	for _, a := range of {
		n += a.called.Permits
	}
	return n
}

// overLimit reports holds that together have more permits than the limit. If
// the limit is exceeded only because of lost holds, their holders were notified
// too late.
func (j *judge) overLimit(held []*attempt, limit int) {
	last := held[len(held)-1]
	rest := slices.DeleteFunc(slices.Clone(held), func(a *attempt) bool { return a != last && a.ending == lost })
	var show []*Event
	for _, a := range held {
		show = append(show, a.returned, a.releasing)
	}
	if len(rest) < len(held) && sum(rest) <= limit {
		j.violation(RuleLoss, fmt.Sprintf("%d of %d permits were held, because a holder had not been notified of its loss", sum(held), limit), show...)
		return
	}
	j.violation(RuleOverlap, fmt.Sprintf("%d of %d permits were held", sum(held), limit), show...)
}

// limitOf returns the largest limit under which the backend can have granted
// the last of the holds in addition to the others. The records do not show
// which hold was the last. A hold was granted at most passedOn before the call
// that got it, so the last grant was at most passedOn before the last call.
func (l *lock) limitOf(held []*attempt) int {
	last := time.Duration(-never)
	for _, a := range held {
		last = max(last, a.called.Time-passedOn)
	}
	limit := 0
	for _, a := range held {
		switch {
		case a.from.t < last:
		case a.called.Limit > 0:
			limit = max(limit, a.called.Limit)
		default:
			limit = max(limit, l.largest(last, a.from.t))
		}
	}
	return limit
}

// largest returns the largest limit that a request without a limit can have
// found between two moments.
func (l *lock) largest(from, to time.Duration) int {
	limit := 0
	l.limits(from, to, func(n int) { limit = max(limit, n) })
	if limit == 0 {
		return math.MaxInt
	}
	return limit
}

// smallest is like largest, but returns the smallest limit, or 0 if none is
// known.
func (l *lock) smallest(from, to time.Duration) int {
	limit := math.MaxInt
	l.limits(from, to, func(n int) { limit = min(limit, n) })
	if limit == math.MaxInt {
		return 0
	}
	return limit
}

// limits yields the limits that may have been in force between two moments:
// each limit from its SetLimit until the next one has certainly been carried
// out, and the limits of granted requests.
func (l *lock) limits(from, to time.Duration, yield func(n int)) {
	for _, s := range l.set {
		until := never
		for _, later := range l.set {
			if s.returned != nil && later.returned != nil && later.returned.Class == "" && later.called.Time >= s.returned.Time && s.returned.Class == "" {
				until = min(until, later.returned.Time)
			}
		}
		if s.called.Time <= to && from <= until {
			yield(s.called.Limit)
		}
	}
	for _, n := range l.named {
		yield(n)
	}
}

// onlyLimit returns the limit in all requests and calls to SetLimit, or 0 if
// they differ.
func (l *lock) onlyLimit() (only int) {
	for _, s := range l.set {
		if only = s.called.Limit; only != l.set[0].called.Limit {
			return 0
		}
	}
	for _, a := range l.attempts {
		switch n := a.called.Limit; {
		case n == 0 || n == only:
		case only > 0:
			return 0
		default:
			only = n
		}
	}
	return only
}

// permitOrder compares a hold a, seen in the queue, with holds that were
// granted before a but requested after a was seen. Such a hold has overtaken a
// if, when its call returned, the limit had no room for the permits of a.
// Otherwise the two may have been granted together.
func (j *judge) permitOrder(l *lock, before []*attempt, a *attempt) {
	if _, calm := j.quietAround(a.called.Time, a.from.t); a.called.NoWait || a.waited == nil || !a.claimed() || !calm {
		return
	}
	limit := l.largest(-never, never)
	for _, b := range slices.Backward(before) {
		if b.from.t < a.waited.Time {
			return
		}
		if b.claimed() && !b.called.NoWait && a.waited.Time < b.called.Time && b.from.before(a.from) && b.used > limit-a.called.Permits {
			j.violation(RuleOrder, fmt.Sprintf("a request that came %v later was granted first", b.called.Time-a.waited.Time),
				a.called, a.waited, a.returned, b.called, b.returned)
			return
		}
	}
}

// permitWaits is the state of a name with permits during a pass over its
// attempts in chronological order.
type permitWaits struct {
	lock    *lock
	pending []*attempt // attempts that have not returned yet, in the order of their calls
	taken   []taking
	turned  time.Duration // when a call to Lock, or any grant, last returned
}

// taking is a number of permits that may be held until a given time.
type taking struct {
	n     int
	until time.Duration
	freed *Event // of the release; nil: unknown
}

// waitsForPermits looks for permits that stay free while a caller waits
// (RuleWake), and for attempts that last too long or are refused without reason
// (RuleStuck).
func (j *judge) waitsForPermits(l *lock) {
	w := permitWaits{lock: l, turned: -never}
	for _, a := range l.steps {
		if !a.takesPermits() {
			continue
		}
		if i := slices.Index(w.pending, a); i >= 0 {
			j.permitWaitEnds(&w, a, i)
			continue
		}
		if a.doubtful() {
			j.idlePermits(&w, a.called)
			w.taken = append(w.taken, taking{a.called.Permits, a.free, nil})
		}
		switch {
		case a.returned != nil:
			w.pending = append(w.pending, a)
		case a.proc.ended:
			j.lasted(a, a.proc.last)
		}
	}
}

func (j *judge) permitWaitEnds(w *permitWaits, a *attempt, i int) {
	e := a.returned
	tells := a.granted() || !e.NoWait
	if tells {
		j.idlePermits(w, e)
	}
	w.pending = slices.Delete(w.pending, i, i+1)
	if e.Kind == KindRefuse && len(w.pending) == 0 {
		if free, freed, known := w.free(a, e.Time); known {
			j.refused(a, max(free, w.turned), freed)
		}
	}
	j.lasted(a, e.Time)
	if a.granted() {
		w.taken = append(w.taken, taking{a.called.Permits, a.free, a.released})
	}
	if tells {
		w.turned = e.Time
	}
}

// free returns the time since which enough permits for a have certainly been
// free, as of a given time, and the event that freed them.
func (w *permitWaits) free(a *attempt, at time.Duration) (since time.Duration, freed *Event, known bool) {
	limit := a.called.Limit
	if limit == 0 {
		limit = w.lock.smallest(a.called.Time, at)
	}
	left := limit - a.called.Permits
	slices.SortStableFunc(w.taken, func(x, y taking) int { return cmp.Compare(y.until, x.until) })
	for _, t := range w.taken {
		if left -= t.n; left < 0 {
			return t.until, t.freed, limit > 0
		}
	}
	return -never, nil, limit > 0
}

// idlePermits checks the time before e, for the call to Lock that has waited
// longest.
func (j *judge) idlePermits(w *permitWaits, e *Event) {
	i := slices.IndexFunc(w.pending, func(a *attempt) bool { return !a.called.NoWait })
	if i < 0 {
		return
	}
	oldest := w.pending[i]
	first := w.pending[0].called.Time
	w.taken = slices.DeleteFunc(w.taken, func(t taking) bool { return t.until <= first })
	free, freed, known := w.free(oldest, e.Time)
	since := max(free, w.turned, oldest.called.Time)
	if known && j.b.Wake > 0 && j.tooLong(since, e.Time, j.b.Wake) {
		j.violation(RuleWake, fmt.Sprintf("permits were free for %v while a client waited for them", e.Time-since), freed, oldest.called, e)
	}
	if e == oldest.returned && oldest.granted() && since == free && since < e.Time {
		j.wakes = append(j.wakes, e.Time-since)
	}
}
