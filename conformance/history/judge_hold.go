package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// point is a moment of a history. Among events that one process recorded at the same moment (on a fake clock, there are many) n tells
// the order; otherwise n is 0, and neither of two such events is before the other.
type point struct {
	t time.Duration
	n int
}

func (p point) before(q point) bool { return p.t < q.t || p.t == q.t && p.n < q.n }

func earlier(p, q point) point {
	if q.before(p) {
		return q
	}
	return p
}

// attempt is one attempt and the hold that came of it.
type attempt struct {
	lock  *lock
	proc  *process
	owner int // attempts with equal numbers re-enter

	called, waited, returned, lost, releasing, answer, released *Event // nil: did not happen

	evidence time.Duration // the last moment for which the lease said that it was held
	deadline time.Duration // the last one known
	doubt    *Event        // the first check that found it over
	unlock   point         // of releasing

	// The claim: what the holder was told that it has. It is empty unless from is before to.
	from, to point
	end      time.Duration // of the claim, if nobody removed the hold meanwhile: to is Bounds.Detect earlier where that is possible
	ending   ending
	reentry  bool // its owner may have had the lock already
	overlaps bool // with an earlier claim

	// free is when the backend surely has nothing left of this attempt.
	free time.Duration
	done bool // the sweep over the attempts has passed its return
}

type ending int

const (
	expired ending = iota // its deadline passed
	released
	lost // the holder was told
)

func (a *attempt) granted() bool { return a.returned != nil && a.returned.Kind == KindGrant }

// claimed says that there is a claim. Then the backend granted the hold after every grant that returned earlier: it was held without a
// break from its grant until after it returned, so no other grant can lie between. That is not known of a hold that was over, or may
// have been removed, when it returned.
func (a *attempt) claimed() bool { return a.granted() && a.from.before(a.to) }

// confirmed says that the backend had the hold until Unlock was called: its own answer to the release said so.
func (a *attempt) confirmed() bool {
	return a.ending == released && a.answer != nil && a.answer.Class == ""
}

// doubtful says that the backend may have made a hold of the attempt that nobody was told of.
func (a *attempt) doubtful() bool {
	return a.returned == nil || !a.granted() && a.free > a.returned.Time
}

// read turns the events into attempts, holds and faults.
func (j *judge) read() {
	type id struct {
		proc string
		call uint64
	}
	open := map[id]*Event{}
	var faults []window
	var at point
	for i := range j.events {
		e := &j.events[i]
		at = j.point(i, at)
		p := j.process(e.Proc)
		p.last = e.Time
		switch e.Kind {
		case KindMeta, KindWrite:
		case KindEnd:
			p.ended = true
		case KindFaultOn:
			open[id{e.Proc, e.Call}] = e
			j.v.Faults++
		case KindFaultOff:
			on := open[id{e.Proc, e.Call}]
			if on == nil {
				j.invalid("event out of place: %v", e)
				continue
			}
			delete(open, id{e.Proc, e.Call})
			faults = append(faults, window{from: on.Time, to: e.Time})
			if on.Class == FaultKill {
				j.process(on.Text).killed = e.Time
			}
		case KindCall:
			j.begin(p, e)
		default:
			if a := p.attempts[e.Call]; a == nil || !j.add(a, e, at) {
				j.invalid("event out of place: %v", e)
			}
		}
	}
	for _, on := range open {
		faults = append(faults, window{from: on.Time, to: never})
	}
	j.setQuiet(faults)
}

// point returns the moment of event i, where last is that of the event before.
func (j *judge) point(i int, last point) point {
	e := &j.events[i]
	if i > 0 && j.events[i-1].Time == e.Time {
		if last.n > 0 {
			return point{e.Time, last.n + 1}
		}
		return point{e.Time, 0}
	}
	for k := i + 1; k < len(j.events) && j.events[k].Time == e.Time; k++ {
		if j.events[k].Proc != e.Proc {
			return point{e.Time, 0}
		}
	}
	return point{e.Time, 1}
}

func (j *judge) begin(p *process, e *Event) {
	l := j.byName[e.Name]
	if l == nil {
		l = &lock{name: e.Name}
		j.byName[e.Name] = l
		j.locks = append(j.locks, l)
	}
	j.v.Attempts++
	a := &attempt{lock: l, proc: p, called: e, owner: j.v.Attempts}
	if e.Owner != "" {
		key := [2]string{e.Client, e.Owner}
		if p.owners[key] == 0 {
			p.owners[key] = a.owner
		}
		a.owner = p.owners[key]
	}
	if p.attempts[e.Call] != nil {
		j.invalid("event out of place: %v", e)
	}
	p.attempts[e.Call] = a
	l.attempts = append(l.attempts, a)
	l.steps = append(l.steps, step{a, e})
}

// add adds an event to its attempt. It returns false if such an event cannot follow what is there.
func (j *judge) add(a *attempt, e *Event, at point) bool {
	j.checkResult(a, e)
	switch e.Kind {
	case KindWait:
		if a.returned == nil { // otherwise it comes too late to tell anything
			a.waited = e
		}
		return true
	case KindGrant, KindRefuse, KindFail:
		if a.returned != nil {
			return false
		}
		a.returned, a.from, a.evidence, a.deadline = e, at, e.Time, e.Deadline
		a.lock.steps = append(a.lock.steps, step{a, e})
		j.count(e)
		return true
	}
	if !a.granted() {
		return false
	}
	if e.Kind == KindCheck || e.Kind == KindRelease {
		if e.OK {
			a.evidence, a.deadline = e.Time, max(e.Deadline, e.Time)
		} else if a.doubt == nil {
			a.doubt = e
		}
	}
	switch e.Kind {
	case KindRenew:
		a.deadline = e.Deadline
	case KindLose:
		if a.lost == nil {
			a.lost = e
		}
	case KindRelease:
		if a.releasing == nil {
			a.releasing, a.unlock = e, at
		}
	case KindAnswer, KindReleased, KindNotReleased:
		if a.releasing == nil {
			return false
		}
		if e.Kind == KindAnswer {
			a.answer = e
		} else if a.released == nil {
			a.released = e
		}
	}
	return true
}

func (j *judge) count(e *Event) {
	switch {
	case e.Kind == KindGrant:
		j.v.Granted++
	case e.Kind == KindRefuse:
		j.v.Refused++
	case e.Class == ClassUnknown:
		j.v.Unknown++
	}
}

// checkResult finds what a call must not return, given what was known of this attempt before (RuleResult).
func (j *judge) checkResult(a *attempt, e *Event) {
	wrong := func(text string, because *Event) {
		j.violation(RuleResult, a.lock.name, text, because, e)
	}
	before := func(x *Event) bool { return x != nil && x.Time < e.Time }
	switch {
	case e.Class == ClassOther && e.Kind != KindMeta:
		wrong(fmt.Sprintf("an error outside of the documented ones: %s", e.Text), nil)
	case e.Kind == KindRefuse && !e.NoWait:
		wrong("Lock returned before its context ended, only because the lock was held", nil)
	case e.Kind == KindLose && a.lost != nil:
		wrong("a loss was told twice", a.lost)
	case e.Kind == KindLose && e.Class == "":
		wrong("Done is closed although the lease says that it is held", nil)
	case e.Kind == KindReleased && a.released != nil && a.released.Kind == KindReleased:
		wrong("a hold was released twice", a.released)
	case e.Kind == KindReleased && a.releasing != nil && !a.releasing.OK:
		wrong("a hold was released that had been over before", a.releasing)
	}
	if e.OK {
		switch {
		case before(a.lost):
			wrong("a lease says that it is held after it was lost", a.lost)
		case before(a.released):
			wrong("a lease says that it is held after it was released", a.released)
		case e.Deadline != 0 && e.Deadline < e.Time:
			wrong("a lease says that it is held after its own deadline", nil)
		}
	}
}

// left is when the holder ended its hold, or first knew that it was over.
func (a *attempt) left() time.Duration {
	at := never
	for _, e := range []*Event{a.releasing, a.lost, a.doubt} {
		if e != nil {
			at = min(at, e.Time)
		}
	}
	return at
}

// close determines, when all events of the attempts are known, what they claim and when the backend surely has nothing left of them.
func (j *judge) close(l *lock) {
	for _, a := range l.attempts {
		if a.granted() {
			l.holds = append(l.holds, a)
		}
	}
	slices.SortFunc(l.holds, func(a, b *attempt) int {
		return cmp.Or(cmp.Compare(a.from.t, b.from.t), cmp.Compare(a.from.n, b.from.n))
	})
	for _, a := range l.holds {
		j.closeClaim(a)
	}
	for _, a := range l.attempts {
		a.free = j.free(a)
	}
}

func (j *judge) closeClaim(a *attempt) {
	a.to = point{a.deadline, 0}
	if r := a.releasing; r != nil && (r.OK || a.unlock.before(a.to)) {
		a.to, a.ending = a.unlock, released
	}
	told := a.lost // what told the holder first that it has lost the hold
	if told == nil || a.doubt != nil && a.doubt.Time < told.Time {
		told = a.doubt
	}
	switch {
	case told == nil || a.releasing != nil && a.releasing.Time < told.Time:
		if a.ending == released && a.released != nil && a.released.over() {
			a.ending = lost
		}
	case told.Kind == KindLose:
		a.ending, a.to = lost, earlier(a.to, point{told.Time, 0})
	case told.Time < a.deadline || told.Class == ClassRemoved || told.Class == ClassSessionEnded:
		a.ending, a.to = lost, earlier(a.to, point{a.evidence, 0}) // nobody knows when Done was closed
	}
	if a.releasing == nil && !a.proc.ended { // the dead claim nothing
		a.to = earlier(a.to, point{a.proc.last, 0})
	}
	a.end = a.to.t
	if !a.confirmed() && j.b.Detect > 0 { // somebody may have ended it, and the holder not know it yet
		a.to = point{a.end - j.b.Detect, 0}
	}
	switch {
	case a.ending == released && a.released != nil && a.released.Kind == KindReleased:
		j.v.Released++
	case a.ending != released && a.proc.ended && a.end <= a.proc.last:
		j.v.Lost++
	}
	if a.claimed() {
		j.v.Claims++
	}
}

// over reports whether an error says that a hold had been over before it was released.
func (e *Event) over() bool {
	return e.Class == ClassNotHeld || e.Class == ClassRemoved || e.Class == ClassSessionEnded
}

func (j *judge) free(a *attempt) time.Duration {
	var end *Event // after which only a remnant can be left
	definite := false
	switch {
	case a.answer != nil && a.answer.Class == "":
		return a.answer.Time
	case a.returned == nil || a.granted() && a.releasing != nil && a.released == nil:
	case !a.granted():
		end = a.returned
		switch end.Class {
		case ClassLocked, ClassCanceled, ClassDeadline, ClassDeadlock, ClassUnavailable, ClassUnsupported:
			definite = true
		}
	case a.released != nil:
		end = a.released
		definite = end.Kind == KindReleased
	case a.lost != nil:
		end = a.lost
	}
	switch {
	case definite:
		return end.Time
	case j.b.Linger == 0:
		return never
	case end != nil:
		return after(end.Time, j.b.Linger)
	case !a.proc.ended:
		return after(a.proc.killed, j.b.Linger)
	}
	return never
}
