package history

import (
	"fmt"
	"slices"
)

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
	j.quiet = slices.DeleteFunc(j.quiet, func(w window) bool { return w.from == w.to }) // faults that touch leave windows of no length
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

// lock returns what is known of a name.
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

// add adds an event to its attempt. It returns false if such an event cannot follow the earlier ones.
func (j *judge) add(a *attempt, e *Event) bool {
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

// hear adds what the holder was told while it had the lock, until the holder ended the hold or knew its end.
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

// checkResult finds results that a call must not return, by what was known of its attempt before (RuleResult).
func (j *judge) checkResult(a *attempt, e *Event) {
	wrong := func(text string, because *Event) {
		j.violation(RuleResult, text, because, e)
	}
	switch {
	case e.Class == ClassOther:
		wrong(fmt.Sprintf("an error outside of the documented ones: %s", e.Text), nil)
	case e.Kind == KindRefuse && !e.NoWait:
		wrong("Lock returned before its context ended, only because the lock was held", nil)
	case e.Kind == KindLose && a.over != nil && a.over.Kind == KindLose:
		wrong("a loss was told twice", a.over)
	case e.Kind == KindLose && e.Class == "":
		wrong("Done is closed although the lease says that it is held", nil)
	case e.Kind == KindReleased && a.released != nil && a.released.Kind == KindReleased:
		wrong("a hold was released twice", a.released)
	case e.Kind == KindReleased && a.releasing != nil && !a.releasing.OK:
		wrong("a hold was released that had been over before", a.releasing)
	case e.OK && a.over != nil && a.over.Time < e.Time:
		wrong("a lease says that it is held after it was over", a.over)
	case e.OK && e.Deadline != 0 && e.Deadline < e.Time:
		wrong("a lease says that it is held after its own deadline", nil)
	}
}
