package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// window is an interval without faults.
type window struct {
	from, to   time.Duration
	recovering bool // it begins with the end of a fault
}

// setQuiet sets j.quiet to what the faults leave.
func (j *judge) setQuiet(faults []window) {
	slices.SortFunc(faults, func(a, b window) int { return cmp.Compare(a.from, b.from) })
	calm := window{from: -never}
	for _, f := range faults {
		if f.from > calm.from {
			calm.to = f.from
			j.quiet = append(j.quiet, calm)
		}
		if f.to >= calm.from {
			calm = window{from: f.to, recovering: true}
		}
	}
	if calm.from < never {
		calm.to = never
		j.quiet = append(j.quiet, calm)
	}
}

// quietFrom returns the windows without faults that end at or after t.
func (j *judge) quietFrom(t time.Duration) []window {
	i, _ := slices.BinarySearchFunc(j.quiet, t, func(w window, t time.Duration) int { return cmp.Compare(w.to, t) })
	return j.quiet[i:]
}

// calm reports whether no fault touched the time from one moment to another.
func (j *judge) calm(from, to time.Duration) bool {
	quiet := j.quietFrom(to)
	return len(quiet) > 0 && quiet[0].from <= from
}

// tooLong reports whether more than limit lies between two moments, not counting faults and the recovery from them.
func (j *judge) tooLong(from, to, limit time.Duration) bool {
	for _, w := range j.quietFrom(from) {
		if w.from >= to {
			break
		}
		until := after(max(from, w.from), limit)
		if w.recovering {
			until = max(until, after(w.from, j.b.Recover))
		}
		if min(to, w.to) > until {
			return true
		}
	}
	return false
}

// step is the call or the return of an attempt.
type step struct {
	a *attempt
	e *Event
}

// waiting is the state of a lock while its attempts are gone through in the order of time.
type waiting struct {
	queue   []*attempt    // attempts that wait and return some day, in the order of their calls; may contain some that did
	pending int           // attempts under way, with those that do not wait
	lastEnd time.Duration // when an attempt last returned
	free    time.Duration // when the last hold was surely gone
	freed   *Event        // by what
	shadow  time.Duration // until when there may be a hold that nobody knows of
}

// waits looks for a lock that stays free while somebody waits (RuleWake), and for attempts that last too long or are refused without
// reason (RuleStuck).
func (j *judge) waits(l *lock) {
	w := waiting{lastEnd: -never, free: -never, shadow: -never}
	for _, s := range l.steps {
		if s.e == s.a.called {
			j.waitBegins(&w, s.a)
		} else {
			j.waitEnds(&w, s.a)
		}
	}
}

func (j *judge) waitBegins(w *waiting, a *attempt) {
	if a.doubtful() {
		j.idle(w, a.called)
		w.shadow = max(w.shadow, a.free)
	}
	if a.returned == nil {
		if a.proc.ended {
			j.lasted(a, &Event{Time: a.proc.last})
		}
		return
	}
	w.pending++
	if !a.called.NoWait {
		w.queue = append(w.queue, a)
	}
}

// idle looks at the time before e, in which nobody was granted the lock.
func (j *judge) idle(w *waiting, e *Event) {
	if len(w.queue) == 0 {
		return
	}
	oldest := w.queue[0]
	since := max(w.free, w.shadow, oldest.called.Time)
	if j.b.Wake > 0 && j.tooLong(since, e.Time, j.b.Wake) {
		j.violation(RuleWake, e.Name, fmt.Sprintf("the lock was free for %v while somebody waited", e.Time-since), w.freed, oldest.called, e)
	}
	if e.Kind == KindGrant && since == w.free && since < e.Time {
		j.wakes = append(j.wakes, e.Time-since)
	}
}

func (j *judge) waitEnds(w *waiting, a *attempt) {
	e := a.returned
	if a.granted() || !e.NoWait {
		j.idle(w, e)
	}
	w.pending--
	if e.Kind == KindRefuse && w.pending == 0 {
		j.refused(a, max(w.free, w.shadow, w.lastEnd), w.freed)
	}
	if !e.NoWait {
		a.done = true
		j.lasted(a, e)
	}
	for len(w.queue) > 0 && w.queue[0].done {
		w.queue = w.queue[1:]
	}
	switch {
	case a.claimed() && !a.reentry: // whatever was held before is gone
		w.free, w.freed = a.free, a.released
	case a.granted() || !e.NoWait:
		w.free = max(w.free, a.free)
	}
	w.lastEnd = e.Time
}

// lasted looks at an attempt that waited until end.
func (j *judge) lasted(a *attempt, end *Event) {
	if j.b.Stuck > 0 && !a.called.NoWait && j.tooLong(a.called.Time, end.Time, j.b.Stuck) {
		j.violation(RuleStuck, a.lock.name, fmt.Sprintf("an attempt lasted %v", end.Time-a.called.Time), a.called, a.returned)
	}
}

// refused looks at an attempt that was refused although nobody is known to have held the lock since a moment before.
func (j *judge) refused(a *attempt, since time.Duration, freed *Event) {
	if j.b.Wake == 0 || a.called.Time <= after(since, j.b.Wake) || !j.calm(a.called.Time, a.returned.Time) {
		return
	}
	if w := j.quietFrom(a.returned.Time)[0]; w.recovering && (j.b.Linger == 0 || a.called.Time <= after(w.from, j.b.Linger)) {
		return
	}
	j.violation(RuleStuck, a.lock.name, "an attempt was refused while nobody held the lock", freed, a.called, a.returned)
}
