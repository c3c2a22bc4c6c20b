package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// window is an interval without faults.
type window struct{ from, to time.Duration }

// quietFrom returns the windows without faults that end at or after t.
func (j *judge) quietFrom(t time.Duration) []window {
	i, _ := slices.BinarySearchFunc(j.quiet, t, func(w window, t time.Duration) int { return cmp.Compare(w.to, t) })
	return j.quiet[i:]
}

// calm returns the window that no fault touched from one moment to another, if there is one.
func (j *judge) calm(from, to time.Duration) (w window, ok bool) {
	quiet := j.quietFrom(to)
	if len(quiet) == 0 || quiet[0].from > from {
		return window{}, false
	}
	return quiet[0], true
}

// tooLong reports whether more than limit lies between two moments, not counting faults and the recovery from them.
func (j *judge) tooLong(from, to, limit time.Duration) bool {
	for _, w := range j.quietFrom(from) {
		if w.from >= to {
			break
		}
		until := max(after(max(from, w.from), limit), after(w.from, j.b.Recover))
		if min(to, w.to) > until {
			return true
		}
	}
	return false
}

// waiting is the state of a lock while its attempts are gone through in the order of time.
type waiting struct {
	pending []*attempt    // attempts that return some day, in the order of their calls
	lastEnd time.Duration // when an attempt last returned
	free    time.Duration // when the last hold was surely gone
	freed   *Event        // by what
	shadow  time.Duration // until when there may be a hold that nobody knows of
}

// waits looks for a lock that stays free while somebody waits (RuleWake), and for attempts that last too long or are refused without
// reason (RuleStuck).
func (j *judge) waits(l *lock) {
	w := waiting{lastEnd: -never, free: -never, shadow: -never}
	for _, a := range l.steps {
		if i := slices.Index(w.pending, a); i >= 0 {
			j.waitEnds(&w, a, i)
		} else {
			j.waitBegins(&w, a)
		}
	}
}

func (j *judge) waitBegins(w *waiting, a *attempt) {
	if a.doubtful() {
		j.idle(w, a.called)
		w.shadow = max(w.shadow, a.free)
	}
	switch {
	case a.returned != nil:
		w.pending = append(w.pending, a)
	case a.proc.ended:
		j.lasted(a, a.proc.last)
	}
}

// waitEnds looks at the return of a, the ith of those that are pending.
func (j *judge) waitEnds(w *waiting, a *attempt, i int) {
	e := a.returned
	if a.granted() || !e.NoWait {
		j.idle(w, e)
	}
	w.pending = slices.Delete(w.pending, i, i+1)
	if e.Kind == KindRefuse && len(w.pending) == 0 {
		j.refused(a, max(w.free, w.shadow, w.lastEnd), w.freed)
	}
	j.lasted(a, e.Time)
	switch {
	case a.claimed() && !a.reentry: // whatever was held before is gone
		w.free, w.freed = a.free, a.released
	case a.granted() || !e.NoWait:
		w.free = max(w.free, a.free)
	}
	w.lastEnd = e.Time
}

// idle looks at the time before e, in which nobody was granted the lock.
func (j *judge) idle(w *waiting, e *Event) {
	i := slices.IndexFunc(w.pending, func(a *attempt) bool { return !a.called.NoWait })
	if i < 0 {
		return
	}
	oldest := w.pending[i].called
	since := max(w.free, w.shadow, oldest.Time)
	if j.b.Wake > 0 && j.tooLong(since, e.Time, j.b.Wake) {
		j.violation(RuleWake, fmt.Sprintf("the lock was free for %v while somebody waited", e.Time-since), w.freed, oldest, e)
	}
	if e.Kind == KindGrant && since == w.free && since < e.Time {
		j.wakes = append(j.wakes, e.Time-since)
	}
}

// lasted looks at an attempt that waited until a moment.
func (j *judge) lasted(a *attempt, until time.Duration) {
	if j.b.Stuck > 0 && !a.called.NoWait && j.tooLong(a.called.Time, until, j.b.Stuck) {
		j.violation(RuleStuck, fmt.Sprintf("an attempt lasted %v", until-a.called.Time), a.called, a.returned)
	}
}

// refused looks at an attempt that was refused although nobody is known to have held the lock since a moment before.
func (j *judge) refused(a *attempt, since time.Duration, freed *Event) {
	w, ok := j.calm(a.called.Time, a.returned.Time)
	if !ok || j.b.Wake == 0 || a.called.Time <= after(since, j.b.Wake) {
		return
	}
	afterFault := w != j.quiet[0] // which may have left anything
	if afterFault && (j.b.Linger == 0 || a.called.Time <= after(w.from, j.b.Linger)) {
		return
	}
	j.violation(RuleStuck, "an attempt was refused while nobody held the lock", freed, a.called, a.returned)
}
