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

// quietAround returns the window without faults around a span of time, if there
// is one.
func (j *judge) quietAround(from, to time.Duration) (w window, ok bool) {
	quiet := j.quietFrom(to)
	if len(quiet) == 0 || quiet[0].from > from {
		return window{}, false
	}
	return quiet[0], true
}

// tooLong reports whether the time between two moments exceeds limit, not
// counting faults and the recovery from them.
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

// waiting is the state of a lock during a pass over its attempts in
// chronological order.
type waiting struct {
	pending       []*attempt // attempts that return later, in the order of their calls
	reads, others side       // the holds in mode Read, and the holds in the other modes
	// when an attempt in a mode other than Read last gave up or was granted
	barred time.Duration
}

// side is the known state of all holds in mode Read, or of all holds in other
// modes.
type side struct {
	lastEnd time.Duration // when an attempt last returned
	free    time.Duration // when the last hold was certainly gone
	freed   *Event        // the event that freed the lock
	shadow  time.Duration // end of a possible hold that no client knows of
}

func (w *waiting) side(a *attempt) *side {
	if a.reads() {
		return &w.reads
	}
	return &w.others
}

// last returns the time at which the last hold that excludes a had certainly
// ended, and the event that ended it.
func (w *waiting) last(a *attempt) (free time.Duration, freed *Event) {
	if a.reads() || w.reads.free <= w.others.free {
		return w.others.free, w.others.freed
	}
	return w.reads.free, w.reads.freed
}

// shadow returns the latest end of a hold that excludes a and that possibly no
// client knows.
func (w *waiting) shadow(a *attempt) time.Duration {
	if a.reads() {
		return w.others.shadow
	}
	return max(w.reads.shadow, w.others.shadow)
}

// lastEnd returns the time at which an attempt in a mode that excludes a last
// returned.
func (w *waiting) lastEnd(a *attempt) time.Duration {
	if a.reads() {
		return w.others.lastEnd
	}
	return max(w.reads.lastEnd, w.others.lastEnd)
}

// oldest returns the attempt that has waited longest, among Reads or among the
// other attempts, or nil if there is none.
func (w *waiting) oldest(reads bool) *attempt {
	i := slices.IndexFunc(w.pending, func(a *attempt) bool { return a.reads() == reads && !a.called.NoWait })
	if i < 0 {
		return nil
	}
	return w.pending[i]
}

// waits looks for a lock that stays free while a caller waits (RuleWake) and
// for attempts that last too long or are refused without reason (RuleStuck).
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
	if !a.reads() && (a.doubtful() || a.returned != nil && !a.called.NoWait) {
		// from now on Reads may need to wait
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

// waitEnds processes the return of a, the ith of the pending attempts.
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

// ended updates the state of the lock when attempt a returns.
func (w *waiting) ended(a *attempt) {
	e, s := a.returned, w.side(a)
	switch {
	case a.claimed() && !a.reentry && !a.reads(): // all earlier holds are gone
		s.free, s.freed, w.reads.free = a.free, a.released, -never
	case a.claimed() && !a.reentry: // except other Reads
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

// idle checks the time before e, in which the lock was granted only to Reads.
// It does so for the attempt that has waited longest in a mode other than Read.
func (j *judge) idle(w *waiting, e *Event) {
	oldest := w.oldest(false)
	if oldest == nil {
		return
	}
	free, freed := w.last(oldest)
	since := max(free, w.shadow(oldest), oldest.called.Time)
	if j.b.Wake > 0 && j.tooLong(since, e.Time, j.b.Wake) {
		j.violation(RuleWake, fmt.Sprintf("the lock was free for %v while a client waited", e.Time-since), freed, oldest.called, e)
	}
	if e.Kind == KindGrant && e.Mode != driver.Read && since == free && since < e.Time {
		j.wakes = append(j.wakes, e.Time-since)
	}
}

// idleToReaders checks the time before e, in which no client held the lock in
// another mode, for a waiting Read. A waiter in another mode has priority,
// whatever the order of waiters.
func (j *judge) idleToReaders(w *waiting, a *attempt, e *Event) {
	if a == nil || w.oldest(false) != nil {
		return
	}
	free, freed := w.last(a)
	since := max(free, w.shadow(a), w.barred, a.called.Time)
	if j.b.Wake > 0 && j.tooLong(since, e.Time, j.b.Wake) {
		j.violation(RuleWake, fmt.Sprintf("only readers held the lock for %v while a client waited to read", e.Time-since), freed, a.called, e)
	}
	if e == a.returned && a.granted() && since == free && since < e.Time {
		j.wakes = append(j.wakes, e.Time-since)
	}
}

// lasted checks an attempt that waited until a given moment.
func (j *judge) lasted(a *attempt, until time.Duration) {
	if j.b.Stuck > 0 && !a.called.NoWait && j.tooLong(a.called.Time, until, j.b.Stuck) {
		j.violation(RuleStuck, fmt.Sprintf("an attempt lasted %v", until-a.called.Time), a.called, a.returned)
	}
}

// refused checks an attempt that was refused although no client is known to
// have held the lock since a given moment.
func (j *judge) refused(a *attempt, since time.Duration, freed *Event) {
	w, ok := j.quietAround(a.called.Time, a.returned.Time)
	if !ok || j.b.Wake == 0 || a.called.Time <= after(since, j.b.Wake) {
		return
	}
	afterFault := w != j.quiet[0] // the fault may have left any state
	if afterFault && (j.b.Linger == 0 || a.called.Time <= after(w.from, j.b.Linger)) {
		return
	}
	j.violation(RuleStuck, "an attempt was refused while the lock was free", freed, a.called, a.returned)
}

// read turns the events into attempts, processes and windows without faults.
func (j *judge) read() {
	faults := map[id]bool{} // the faults under way
	limits := map[id]*setLimit{}
	for i := range j.events {
		e := &j.events[i]
		if i > 0 && e.Time == j.events[i-1].Time && e.Proc != j.events[i-1].Proc {
			j.shared[e.Time] = true
		}
		p := j.process(e.Proc)
		p.last = e.Time
		key, inPlace := id{e.Proc, e.Call}, true
		switch e.Kind {
		case KindMeta, KindWrite, KindRead:
		case KindEnd:
			p.ended = true
		case KindFaultOn:
			j.v.Faults++
			if len(faults) == 0 {
				j.quiet[len(j.quiet)-1].to = e.Time
			}
			faults[key] = true
		case KindFaultOff:
			inPlace = faults[key]
			delete(faults, key)
			if inPlace && len(faults) == 0 {
				j.quiet = append(j.quiet, window{e.Time, never})
			}
			if e.Class == FaultKill {
				j.process(e.Text).killed = e.Time
			}
		case KindCall:
			inPlace = j.attempts[key] == nil
			j.begin(p, e)
		case KindSetLimit:
			inPlace = limits[key] == nil
			limits[key] = &setLimit{called: e}
			l := j.lock(e.Name)
			l.set = append(l.set, limits[key])
		case KindLimitSet:
			if s := limits[key]; s != nil {
				s.returned = e
			} else {
				inPlace = false
			}
		default:
			a := j.attempts[key]
			inPlace = a != nil && j.add(a, e)
		}
		if !inPlace {
			j.invalid("event out of place: %v", e)
		}
	}
	if len(faults) > 0 {
		j.invalid("the last fault did not end")
	}
	// adjacent faults leave empty windows
	j.quiet = slices.DeleteFunc(j.quiet, func(w window) bool { return w.from == w.to })
}

// process returns the process with a label.
func (j *judge) process(label string) *process {
	p := j.procs[label]
	if p == nil {
		p = &process{killed: never}
		j.procs[label] = p
	}
	return p
}

// lock returns the known state of a name.
func (j *judge) lock(name string) *lock {
	l := j.byName[name]
	if l == nil {
		l = &lock{}
		j.byName[name] = l
		j.locks = append(j.locks, l)
	}
	return l
}

func (j *judge) begin(p *process, e *Event) {
	l := j.lock(e.Name)
	j.v.Attempts++
	a := &attempt{lock: l, proc: p, called: e, owner: owner{proc: e.Proc, client: e.Client, name: e.Owner}}
	if e.Owner == "" {
		a.owner.number = j.v.Attempts
	}
	l.takesPermits = l.takesPermits || a.takesPermits()
	j.attempts[id{e.Proc, e.Call}] = a
	l.attempts = append(l.attempts, a)
	l.steps = append(l.steps, a)
}

// add adds an event to its attempt. It returns false if such an event cannot
// follow the earlier events.
func (j *judge) add(a *attempt, e *Event) bool {
	j.checkResult(a, e)
	switch e.Kind {
	case KindWait:
		if a.returned == nil { // otherwise it comes too late to show anything
			a.waited = e
		}
		return true
	case KindGrant, KindRefuse, KindFail:
		if a.returned != nil {
			return false
		}
		a.returned, a.evidence, a.deadline = e, e.Time, e.Deadline
		a.lock.steps = append(a.lock.steps, a)
		return true
	}
	if !a.granted() {
		return false
	}
	switch e.Kind {
	case KindAnswer, KindReleased, KindNotReleased:
		if a.releasing == nil {
			return false
		}
		if e.Kind == KindAnswer {
			a.answer = e
		} else if a.released == nil {
			a.released = e
		}
	default:
		a.hear(e)
	}
	return true
}

// hear adds the information that the holder got while it held the lock, until
// it ended the hold or was notified of its end.
func (a *attempt) hear(e *Event) {
	if e.Kind == KindRelease && a.releasing == nil {
		a.releasing = e
	}
	switch {
	case a.over != nil:
	case e.Kind == KindRenew:
		a.deadline = e.Deadline
	case e.Kind == KindCheck && e.OK:
		a.evidence, a.deadline = e.Time, max(e.Deadline, e.Time)
	default:
		a.over = e
	}
}

// checkResult looks for results that a call must not return, given the earlier
// events of its attempt (RuleResult).
func (j *judge) checkResult(a *attempt, e *Event) {
	wrong := func(text string, because *Event) {
		j.violation(RuleResult, text, because, e)
	}
	switch {
	case e.Class == ClassOther:
		wrong(fmt.Sprintf("an undocumented error: %s", e.Text), nil)
	case e.Kind == KindRefuse && !e.NoWait:
		wrong("Lock returned before its context ended, only because the lock was held", nil)
	case e.Kind == KindLose && a.over != nil && a.over.Kind == KindLose:
		wrong("a loss was reported twice", a.over)
	case e.Kind == KindLose && e.Class == "":
		wrong("Done is closed although the lease reports that it is held", nil)
	case e.Kind == KindReleased && a.released != nil && a.released.Kind == KindReleased:
		wrong("a hold was released twice", a.released)
	case e.Kind == KindReleased && a.releasing != nil && !a.releasing.OK:
		wrong("a hold that had already ended was released", a.releasing)
	case e.OK && a.over != nil && a.over.Time < e.Time:
		wrong("a lease reported that it was held after it had ended", a.over)
	case e.OK && e.Deadline != 0 && e.Deadline < e.Time:
		wrong("a lease reports that it is held after its own deadline", nil)
	}
}
