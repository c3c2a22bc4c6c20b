package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// window is an interval without faults.
type window struct{ from, to time.Duration }

// quietFrom returns the windows without faults that end at or after t.
func (j *judge) quietFrom(t time.Duration) []window {
	i, _ := slices.BinarySearchFunc(j.quiet, t, func(w window, t time.Duration) int { return cmp.Compare(w.to, t) })
	return j.quiet[i:]
}

// quietAround returns the window without a fault around a span of time, if there is one.
func (j *judge) quietAround(from, to time.Duration) (w window, ok bool) {
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
	pending       []*attempt    // attempts that return some day, in the order of their calls
	reads, others side          // the holds for Read, and those in the other modes
	barred        time.Duration // when an attempt in another mode than Read last gave up, or was granted
}

// side has what is known of the holds of one kind.
type side struct {
	lastEnd time.Duration // when an attempt last returned
	free    time.Duration // when the last hold was surely gone
	freed   *Event        // the event that freed the lock
	shadow  time.Duration // until when there may be a hold that nobody knows of
}

func (w *waiting) side(a *attempt) *side {
	if a.reads() {
		return &w.reads
	}
	return &w.others
}

// last returns when the last hold that excludes a was surely gone, and by which event.
func (w *waiting) last(a *attempt) (free time.Duration, freed *Event) {
	if a.reads() || w.reads.free <= w.others.free {
		return w.others.free, w.others.freed
	}
	return w.reads.free, w.reads.freed
}

// shadow returns until when there may be a hold that excludes a and that nobody knows of.
func (w *waiting) shadow(a *attempt) time.Duration {
	if a.reads() {
		return w.others.shadow
	}
	return max(w.reads.shadow, w.others.shadow)
}

// lastEnd returns when an attempt last returned in a mode that excludes a.
func (w *waiting) lastEnd(a *attempt) time.Duration {
	if a.reads() {
		return w.others.lastEnd
	}
	return max(w.reads.lastEnd, w.others.lastEnd)
}

// oldest returns the attempt that has waited longest, among Reads or among the others; nil if there is none.
func (w *waiting) oldest(reads bool) *attempt {
	i := slices.IndexFunc(w.pending, func(a *attempt) bool { return a.reads() == reads && !a.called.NoWait })
	if i < 0 {
		return nil
	}
	return w.pending[i]
}

// waits looks for a lock that stays free while somebody waits (RuleWake), and for attempts that last too long or are refused without
// reason (RuleStuck).
func (j *judge) waits(l *lock) {
	none := side{lastEnd: -never, free: -never, shadow: -never}
	w := waiting{reads: none, others: none, barred: -never}
	for _, a := range l.steps {
		if a.takesPermits() {
			continue
		}
		if i := slices.Index(w.pending, a); i >= 0 {
			j.waitEnds(&w, a, i)
		} else {
			j.waitBegins(&w, a)
		}
	}
}

func (j *judge) waitBegins(w *waiting, a *attempt) {
	if !a.reads() && (a.doubtful() || a.returned != nil && !a.called.NoWait) { // from now on Reads may have to wait
		j.idleToReaders(w, w.oldest(true), a.called)
	}
	if a.doubtful() {
		j.idle(w, a.called)
		s := w.side(a)
		s.shadow = max(s.shadow, a.free)
	}
	switch {
	case a.returned != nil:
		w.pending = append(w.pending, a)
	case a.proc.ended:
		j.lasted(a, a.proc.last)
	}
}

// waitEnds looks at the return of a, the ith of the pending attempts.
func (j *judge) waitEnds(w *waiting, a *attempt, i int) {
	e := a.returned
	if a.granted() || !e.NoWait {
		j.idle(w, e)
	}
	switch {
	case a.reads() && !e.NoWait:
		j.idleToReaders(w, a, e)
	case !a.reads() && a.granted():
		j.idleToReaders(w, w.oldest(true), e)
	}
	w.pending = slices.Delete(w.pending, i, i+1)
	if e.Kind == KindRefuse && len(w.pending) == 0 {
		free, freed := w.last(a)
		j.refused(a, max(free, w.shadow(a), w.lastEnd(a)), freed)
	}
	j.lasted(a, e.Time)
	w.ended(a)
}

// ended takes note of what the return of a says about the lock.
func (w *waiting) ended(a *attempt) {
	e, s := a.returned, w.side(a)
	switch {
	case a.claimed() && !a.reentry && !a.reads(): // whatever was held before is gone
		s.free, s.freed, w.reads.free = a.free, a.released, -never
	case a.claimed() && !a.reentry: // but for other Reads
		w.others.free = min(w.others.free, e.Time)
		fallthrough
	case a.granted() || !e.NoWait:
		if a.granted() && s.free < a.free {
			s.freed = a.released
		}
		s.free = max(s.free, a.free)
	}
	s.lastEnd = e.Time
	if !a.reads() && !e.NoWait {
		w.barred = e.Time
	}
}

// idle looks at the time before e, in which nobody was granted the lock but to read, for the sake of the attempt in another mode than Read
// that has waited longest.
func (j *judge) idle(w *waiting, e *Event) {
	oldest := w.oldest(false)
	if oldest == nil {
		return
	}
	free, freed := w.last(oldest)
	since := max(free, w.shadow(oldest), oldest.called.Time)
	if j.b.Wake > 0 && j.tooLong(since, e.Time, j.b.Wake) {
		j.violation(RuleWake, fmt.Sprintf("the lock was free for %v while somebody waited", e.Time-since), freed, oldest.called, e)
	}
	if e.Kind == KindGrant && e.Mode != driver.Read && since == free && since < e.Time {
		j.wakes = append(j.wakes, e.Time-since)
	}
}

// idleToReaders looks at the time before e, in which nobody held the lock in another mode, for the sake of a Read that waits. A waiter in
// another mode goes first, whatever the order.
func (j *judge) idleToReaders(w *waiting, a *attempt, e *Event) {
	if a == nil || w.oldest(false) != nil {
		return
	}
	free, freed := w.last(a)
	since := max(free, w.shadow(a), w.barred, a.called.Time)
	if j.b.Wake > 0 && j.tooLong(since, e.Time, j.b.Wake) {
		j.violation(RuleWake, fmt.Sprintf("nobody but readers had the lock for %v while one waited to read", e.Time-since), freed, a.called, e)
	}
	if e == a.returned && a.granted() && since == free && since < e.Time {
		j.wakes = append(j.wakes, e.Time-since)
	}
}

// lasted looks at an attempt that waited until a moment.
func (j *judge) lasted(a *attempt, until time.Duration) {
	if j.b.Stuck > 0 && !a.called.NoWait && j.tooLong(a.called.Time, until, j.b.Stuck) {
		j.violation(RuleStuck, fmt.Sprintf("an attempt lasted %v", until-a.called.Time), a.called, a.returned)
	}
}

// refused looks at an attempt that was refused although nobody is known to have held the lock since a given moment.
func (j *judge) refused(a *attempt, since time.Duration, freed *Event) {
	w, ok := j.quietAround(a.called.Time, a.returned.Time)
	if !ok || j.b.Wake == 0 || a.called.Time <= after(since, j.b.Wake) {
		return
	}
	afterFault := w != j.quiet[0] // the fault may have left anything
	if afterFault && (j.b.Linger == 0 || a.called.Time <= after(w.from, j.b.Linger)) {
		return
	}
	j.violation(RuleStuck, "an attempt was refused while nobody held the lock", freed, a.called, a.returned)
}
