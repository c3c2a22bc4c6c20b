package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// exclusion sweeps over the holds of a lock in the order in which they began, and looks for overlaps (RuleOverlap, RuleLoss), tokens
// that did not rise (RuleTokens), and overtaking (RuleOrder).
func (j *judge) exclusion(l *lock) {
	reentries(l.holds)
	j.overlaps(l.holds)
	j.confirmed(l.holds)
	j.successors(l.holds)
	if j.b.Fenced {
		j.tokens(l.holds)
	}
	if j.b.FIFO {
		j.order(l.holds)
	}
}

// reentries marks the holds whose owner may have had the lock already. That is not told by claims, which may be shorter than holds.
func reentries(holds []*attempt) {
	until := map[int]time.Duration{}
	for _, b := range holds {
		if b.called.Owner == "" {
			continue
		}
		held, before := until[b.owner]
		b.reentry = before && b.called.Time <= held
		until[b.owner] = max(held, b.left())
	}
}

// overlaps compares each claim with the earlier claim of another owner that ends last.
func (j *judge) overlaps(holds []*attempt) {
	var first, second *attempt // the claims that end last, of two owners
	for _, b := range holds {
		if !b.claimed() {
			continue
		}
		other := first
		if first != nil && first.owner == b.owner {
			other = second
		}
		if other != nil && b.from.before(other.to) {
			b.overlaps = true
			j.overlap(other, b)
		}
		switch {
		case first == nil || first.owner == b.owner:
			if first == nil || first.to.before(b.to) {
				first = b
			}
		case first.to.before(b.to):
			first, second = b, first
		case second == nil || second.to.before(b.to):
			second = b
		}
	}
}

func (j *judge) overlap(a, b *attempt) {
	if a.ending == lost {
		j.violation(RuleLoss, a.lock.name, fmt.Sprintf("%v after another owner was granted the lock, the holder had not been told of its loss",
			a.end-b.from.t), a.returned, b.returned, a.lost, a.doubt, a.releasing)
		return
	}
	both := min(a.to.t, b.to.t) - b.from.t
	j.violation(RuleOverlap, a.lock.name, fmt.Sprintf("two owners had the lock for %v", both), a.returned, b.returned, a.releasing)
}

// confirmed compares what the backend itself said, at their release, of holds that it had without a break since they were granted.
// Several leases may have had such a hold in turn, of which only the last asked the backend.
func (j *judge) confirmed(holds []*attempt) {
	var all []*attempt
	for _, a := range holds {
		if a.confirmed() && !a.overlaps {
			all = append(all, a)
		}
	}
	slices.SortStableFunc(all, func(a, b *attempt) int { return cmp.Compare(a.answer.Since, b.answer.Since) })
	var last *attempt // of those so far, the one that ends last
	for _, b := range all {
		if last != nil && b.answer.Since < last.unlock.t {
			j.violation(RuleOverlap, b.lock.name, fmt.Sprintf("the backend had two holds for %v", min(last.unlock.t, b.unlock.t)-b.answer.Since),
				last.releasing, last.answer, b.releasing, b.answer)
		}
		if last == nil || last.unlock.t < b.unlock.t {
			last = b
		}
	}
}

// successors measures, for each hold that was lost, the time from when its holder knew to the next grant of which it is known that
// it came later.
func (j *judge) successors(holds []*attempt) {
	var next, nextOther *attempt // claimed, in the order in which they began, of two owners
	for _, a := range slices.Backward(holds) {
		b := next
		if b != nil && b.owner == a.owner {
			b = nextOther
		}
		told := a.ending == expired && a.claimed() && a.proc.ended || a.ending == lost && a.lost != nil
		if b != nil && told && a.from.before(b.from) {
			j.margins = append(j.margins, b.from.t-a.end)
		}
		if a.claimed() {
			if next != nil && next.owner != a.owner {
				nextOther = next
			}
			next = a
		}
	}
}

// tokens compares each token with the highest of those that were surely granted before.
func (j *judge) tokens(holds []*attempt) {
	highest := make([]*attempt, len(holds)+1) // [i]: among the first i holds
	for i, b := range holds {
		if b.returned.Token == 0 {
			j.violation(RuleTokens, b.lock.name, "a grant has no token", b.returned)
		}
		since := b.from
		if !b.claimed() { // it may have been granted long before it returned
			since = point{b.called.Time, 0}
		}
		n, _ := slices.BinarySearchFunc(holds[:i], since, func(a *attempt, p point) int {
			if a.from.before(p) {
				return -1
			}
			return 1
		})
		if a := highest[n]; a != nil && b.returned.Token != 0 && a.returned.Token >= b.returned.Token {
			same := a.returned.Token == b.returned.Token && b.reentry && a.owner == b.owner
			if !same {
				j.violation(RuleTokens, b.lock.name, "a token is not above that of an earlier grant", a.returned, b.called, b.returned)
			}
		}
		highest[i+1] = highest[i]
		if a := highest[i]; a == nil || a.returned.Token < b.returned.Token {
			highest[i+1] = b
		}
	}
}

// order compares each hold that was seen to queue with those that were granted before it but asked after it was seen.
func (j *judge) order(holds []*attempt) {
	var latest *attempt // the one that asked last, among those granted so far
	for _, a := range holds {
		if a.called.NoWait || a.reentry {
			continue
		}
		if b := latest; b != nil && a.waited != nil && a.claimed() && a.waited.Time < b.called.Time && b.from.before(a.from) &&
			j.calm(a.called.Time, a.from.t) {
			j.violation(RuleOrder, a.lock.name, fmt.Sprintf("the one that asked %v later was granted first", b.called.Time-a.waited.Time),
				a.called, a.waited, a.returned, b.called, b.returned)
		}
		if latest == nil || latest.called.Time < a.called.Time {
			latest = a
		}
	}
}
