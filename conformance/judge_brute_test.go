package conformance

import "time"

// bruteForce compares everything with everything, by the plainest words that say what each rule means. It shares with the judge what
// a claim is, and nothing of how claims are compared. It returns how many violations of each of those rules there are.
func bruteForce(events []Event, b Bounds) map[Rule]int {
	j := newJudge(events, b)
	j.read()
	found := map[Rule]int{}
	for _, l := range j.locks {
		reentry := map[*attempt]bool{}
		j.close(l)
		for _, a := range l.attempts {
			reentry[a] = bruteReentry(l, a)
			if a.goesOn != (bruteShared(l, a) || bruteGivenUp(l, a)) || a.heir != bruteHeir(l, a) {
				found["what becomes of a hold"]++
			}
		}
		for _, a := range l.attempts {
			if a.granted() {
				bruteHold(j, l, a, reentry, found)
			}
			if a.doubtful() {
				bruteWake(j, l, a, a.called, reentry, found)
			}
			if a.returned != nil && (a.granted() || !a.called.NoWait) {
				bruteWake(j, l, a, a.returned, reentry, found)
			}
		}
	}
	return found
}

// bruteReentry reports whether the owner of b may have had the lock when it asked for b.
func bruteReentry(l *lock, b *attempt) bool {
	for _, a := range l.attempts {
		if a == b || !a.granted() || !b.granted() || a.owner != b.owner || !a.from.before(b.from) {
			continue
		}
		over := false
		for _, e := range []*Event{a.releasing, a.lost, a.doubt} {
			over = over || e != nil && e.Time < b.called.Time
		}
		if !over {
			return true
		}
	}
	return false
}

// bruteShared reports whether the owner of a may have had the lock by another hold when that was released.
func bruteShared(l *lock, a *attempt) bool {
	for _, b := range l.attempts {
		if a != b && a.granted() && b.granted() && a.owner == b.owner && a.released != nil && b.called.Time <= a.released.Time && b.left() >= a.left() {
			return true
		}
	}
	return false
}

// bruteHeir returns the hold that a may have become by its Unlock.
func bruteHeir(l *lock, a *attempt) (heir *attempt) {
	if !a.granted() || a.released == nil {
		return nil
	}
	for _, b := range l.holds {
		if b != a && b.proc == a.proc && b.called.Client == a.called.Client && !b.from.before(a.unlock) && (heir == nil || b.from.before(heir.from)) {
			heir = b
		}
	}
	if heir == nil || heir.called.Time > a.released.Time {
		return nil
	}
	return heir
}

// bruteGivenUp reports whether somebody who gave up may have had a after its Unlock.
func bruteGivenUp(l *lock, a *attempt) bool {
	if !a.granted() || a.released == nil || bruteHeir(l, a) != nil {
		return false
	}
	for _, b := range l.attempts {
		if b.proc == a.proc && b.called.Client == a.called.Client && !b.granted() && !b.called.NoWait &&
			b.called.Time <= a.released.Time && (b.returned == nil || b.returned.Time >= a.unlock.t) {
			return true
		}
	}
	return false
}

func bruteHold(j *judge, l *lock, b *attempt, reentry map[*attempt]bool, found map[Rule]int) {
	overlap, tokens, order := false, b.returned.Token == 0, false
	for _, a := range l.attempts {
		if a == b || !a.granted() || !a.from.before(b.from) {
			continue
		}
		other := a.owner != b.owner
		if other && a.claimed() && b.claimed() && b.from.before(a.to) {
			overlap = true
		}
		surely := b.claimed() || a.from.t < b.called.Time
		if surely && a.returned.Token >= b.returned.Token && !(a.returned.Token == b.returned.Token && !other && reentry[b]) {
			tokens = true
		}
		if b.claimed() && b.waited != nil && !b.called.NoWait && !a.called.NoWait && b.waited.Time < a.called.Time &&
			!reentry[a] && !reentry[b] && bruteCalm(j, b.called.Time, b.from.t) {
			order = true
		}
	}
	for rule, violated := range map[Rule]bool{RuleOverlap: overlap, RuleTokens: tokens, RuleOrder: order} {
		if violated {
			found[rule]++
		}
	}
}

func bruteCalm(j *judge, from, to time.Duration) bool {
	for _, w := range j.quiet {
		if w.from <= from && to <= w.to {
			return true
		}
	}
	return false
}

// bruteWake looks back from e, an event of x, at which a waiter must not have been waiting for a free lock for long.
func bruteWake(j *judge, l *lock, x *attempt, e *Event, reentry map[*attempt]bool, found map[Rule]int) {
	now := e.Time
	oldest := never
	free := -never
	for _, a := range l.attempts {
		switch {
		case a.doubtful() && before(a.called, e):
			free = max(free, a.free)
		case a.returned != nil && before(a.returned, e) && !bruteSuperseded(l, a, x, e, reentry):
			if a.granted() || !a.called.NoWait {
				free = max(free, a.free)
			}
		}
		if a.returned != nil && !a.called.NoWait && before(a.called, e) && !before(a.returned, e) {
			oldest = min(oldest, a.called.Time)
		}
	}
	if oldest == never {
		return
	}
	since := max(free, oldest)
	for _, w := range j.quiet {
		from, to := max(since, w.from), min(now, w.to)
		limit := from + j.b.Wake
		if w.recovering {
			limit = max(limit, w.from+j.b.Recover)
		}
		if from < to && to > limit {
			found[RuleWake]++
			return
		}
	}
}

// bruteSuperseded reports whether a grant between a and e, which is an event of x, proves that a was over.
func bruteSuperseded(l *lock, a, x *attempt, e *Event, reentry map[*attempt]bool) bool {
	for _, b := range l.attempts {
		if b != a && b != x && b.granted() && b.claimed() && !reentry[b] && before(a.returned, b.returned) && before(b.returned, e) {
			return true
		}
	}
	return false
}

// before is the order of the events of a history.
func before(a, b *Event) bool { return compareEvents(*a, *b) < 0 }

// counts returns what Judge found of the rules that brute force checks. It tells overlaps from late losses; brute force does not.
func counts(v *Verdict) map[Rule]int {
	found := map[Rule]int{}
	for _, violation := range v.Violations {
		switch violation.Rule {
		case RuleOverlap, RuleLoss:
			found[RuleOverlap]++
		case RuleTokens, RuleWake, RuleOrder:
			found[violation.Rule]++
		}
	}
	return found
}
