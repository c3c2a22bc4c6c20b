package history

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// exclusion examines the holds of a lock in the order in which they began. It
// looks for overlaps (RuleOverlap, RuleLoss), tokens that do not rise
// (RuleTokens), and overtaking (RuleOrder).
func (j *judge) exclusion(l *lock) {
	reentries(l.holds)
	j.overlaps(l.holds)
	j.successors(l.holds)
	if j.b.Fenced {
		j.tokens(l.holds)
	}
	if j.b.FIFO {
		lonely(l.attempts)
		j.order(l.holds)
	}
}

// reentries marks the holds whose owner may already have held the lock. Claims
// do not show this, because a claim may be shorter than its hold.
func reentries(holds []*attempt) {
	until := map[owner]time.Duration{}
	for _, a := range holds {
		held, before := until[a.owner]
		a.reentry = before && a.called.Time <= held
		left := never
		if a.over != nil {
			left = a.over.Time
		}
		until[a.owner] = max(held, left)
	}
}

// span is an interval in which one owner certainly held the lock.
type span struct {
	of       *attempt
	owner    owner
	mode     driver.Mode
	from, to point
}

// overlaps compares the claims of different owners, and also the holds that the
// backend confirmed at their release. A confirmed hold existed without a break
// since its grant. Several leases may have used the hold in turn, and only the
// last one sent a request to the backend.
func (j *judge) overlaps(holds []*attempt) {
	var claims, confirmed []span
	for _, a := range holds {
		if a.claimed() {
			claims = append(claims, span{a, a.owner, a.called.Mode, a.from, a.to})
		}
	}
	reported := map[*attempt]bool{}
	eachOverlap(claims, func(a, b span) {
		reported[b.of] = true
		j.twoOwners(a.of, b.of)
	})
	for i, a := range holds {
		if a.confirmed() && !reported[a] && a.answer.Since < a.end {
			// otherwise the process stood still between two readings of the
			// clock
			confirmed = append(confirmed, span{a, owner{number: i + 1}, a.answer.Mode, point{a.answer.Since, 0}, point{a.end, 0}})
		}
	}
	slices.SortStableFunc(confirmed, func(a, b span) int { return cmp.Compare(a.from.t, b.from.t) })
	eachOverlap(confirmed, func(a, b span) {
		j.violation(RuleOverlap, fmt.Sprintf("the backend had two holds for %v", min(a.to.t, b.to.t)-b.from.t),
			a.of.releasing, a.of.answer, b.of.releasing, b.of.answer)
	})
}

// eachOverlap compares each span with the earlier span of another owner, in a
// conflicting mode, that ends last. The spans are sorted by their beginnings.
func eachOverlap(spans []span, found func(a, b span)) {
	reads, others := newLatest(), newLatest()
	for _, b := range spans {
		a, kind := others.besides(b.owner), others
		if b.mode == driver.Read {
			kind = reads
		} else if r := reads.besides(b.owner); a.to.before(r.to) {
			a = r
		}
		if b.from.before(a.to) {
			found(a, b)
		}
		kind.add(b)
	}
}

// latest holds the two spans of different owners that end last.
type latest struct{ first, second span }

func newLatest() *latest {
	none := span{to: point{-never, 0}}
	return &latest{none, none}
}

// besides returns the span that ends last among the spans of other owners.
func (l *latest) besides(o owner) span {
	if l.first.owner == o {
		return l.second
	}
	return l.first
}

func (l *latest) add(b span) {
	switch {
	case l.first.to.before(b.to):
		if l.first.owner != b.owner {
			l.second = l.first
		}
		l.first = b
	case l.first.owner != b.owner && l.second.to.before(b.to):
		l.second = b
	}
}

func (j *judge) twoOwners(a, b *attempt) {
	if a.ending == lost {
		j.violation(RuleLoss, fmt.Sprintf("%v after another owner was granted the lock, the holder had not been notified of its loss",
			a.end-b.from.t), a.returned, b.returned, a.over, a.released)
		return
	}
	both := min(a.to.t, b.to.t) - b.from.t
	j.violation(RuleOverlap, fmt.Sprintf("two owners held the lock for %v", both), a.returned, b.returned, a.releasing)
}

// For each lost hold, successors measures the time from the moment at which the
// holder knew of the loss to the next grant of another owner that certainly
// came later.
func (j *judge) successors(holds []*attempt) {
	var ended []*attempt // lost, with no grant of the lock since
	for _, b := range holds {
		if b.claimed() {
			ended = slices.DeleteFunc(ended, func(a *attempt) bool {
				next := a.owner != b.owner && a.excludes(b) && a.from.before(b.from)
				if next {
					j.margins = append(j.margins, b.from.t-a.end)
				}
				return next
			})
		}
		if b.ending == expired && b.claimed() && b.proc.ended || b.ending == lost && b.over.Kind == KindLose {
			ended = append(ended, b)
		}
	}
}

// tokens compares each token with the highest token among grants that were
// certainly earlier. For a Read, only grants in other modes count.
func (j *judge) tokens(holds []*attempt) {
	highest := make([]*attempt, len(holds)+1) // [i]: among the first i holds
	written := make([]*attempt, len(holds)+1) // the same without Reads
	for i, b := range holds {
		token := b.returned.Token
		if token == 0 && (b.ending == released || b.evidence > b.returned.Time) {
			// otherwise the lease may have ended before the token arrived
			j.violation(RuleTokens, "a grant has no token", b.returned)
		}
		// above returns a hold whose token is too high although the hold was
		// certainly granted before the time since. It returns nil if there is
		// none.
		above := func(since point) *attempt {
			n := sort.Search(i, func(k int) bool { return !holds[k].from.before(since) })
			a := highest[n]
			if b.reads() {
				a = written[n]
			}
			if a == nil || token == 0 || token > a.returned.Token || token == a.returned.Token && b.reentry && a.owner == b.owner {
				return nil
			}
			return a
		}
		var a *attempt
		switch {
		case b.claimed():
			a = above(b.from)
		case b.reads(): // perhaps a hold of its client, removed when the other hold was granted
		default: // the grant may have been long before its return
			if a = above(point{b.called.Time, 0}); a != nil { // rare, and inherited searches all holds
				a = above(point{b.inherited(holds[:i]), 0})
			}
		}
		if a != nil {
			j.violation(RuleTokens, "a token is not above the token of an earlier grant", a.returned, b.called, b.returned)
		}
		highest[i+1], written[i+1] = higher(highest[i], b), written[i]
		if !b.reads() {
			written[i+1] = higher(written[i], b)
		}
	}
}

// inherited returns the earliest time at which the hold of b may have been
// requested from the backend. A client passes on a hold to its waiters and lets
// the owner re-enter it without another request. If another client has ended
// that hold and this client has not noticed, the tokens of the hold are below
// the tokens of later grants. A hold that the backend had until its release was
// not passed on. holds contains only holds granted before b.
func (b *attempt) inherited(holds []*attempt) time.Duration {
	asked := b.called.Time
	for _, a := range slices.Backward(holds) {
		if a.owner.proc != b.owner.proc || a.owner.client != b.owner.client {
			continue
		}
		if a.confirmed() && !a.reads() && a.releasing.Time <= b.from.t {
			return max(asked, min(a.releasing.Time, b.called.Time))
		}
		if a.released == nil || a.released.Time >= asked {
			asked = min(asked, a.called.Time)
		}
	}
	return asked
}

// higher returns b if its token is higher than the token of a, and otherwise a.
// The hold a may be nil.
func higher(a, b *attempt) *attempt {
	if a == nil || a.returned.Token < b.returned.Token {
		return b
	}
	return a
}

func (a *attempt) excludes(b *attempt) bool { return a.called.Mode.Excludes(b.called.Mode) }

// lonely marks the Reads that were requested on their own: at the time, no
// other Read of the client was waiting for the name or holding it. The attempts
// are in the order of their calls.
func lonely(attempts []*attempt) {
	type client struct{ proc, name string }
	type reads struct {
		last *attempt
		left time.Duration // when the backend certainly has nothing left of these Reads so far
	}
	seen := map[client]*reads{}
	for _, a := range attempts {
		if !a.reads() {
			continue
		}
		c := client{a.owner.proc, a.owner.client}
		s := seen[c]
		if s == nil {
			s = &reads{left: -never}
			seen[c] = s
		}
		a.alone = s.left < a.called.Time
		left := a.free
		if a.returned != nil {
			left = max(left, a.returned.Time)
		}
		if s.last != nil && (s.last.returned == nil || a.called.Time <= s.last.returned.Time) {
			s.last.alone = false
		}
		s.last, s.left = a, max(s.left, left)
	}
}

// order compares each hold that was seen in the queue with holds that were
// requested later and granted earlier. Two Reads are not compared, and a Read
// that may have joined a hold of its client does not overtake.
func (j *judge) order(holds []*attempt) {
	var reads, others *attempt // the attempts with the latest call, among all granted so far
	for _, a := range holds {
		if a.called.NoWait || a.reentry {
			continue
		}
		b := others
		if !a.reads() && (b == nil || reads != nil && b.called.Time < reads.called.Time) {
			b = reads
		}
		_, calm := j.quietAround(a.called.Time, a.from.t)
		if b != nil && a.waited != nil && a.claimed() && a.waited.Time < b.called.Time && b.from.before(a.from) && calm {
			j.violation(RuleOrder, fmt.Sprintf("a request that came %v later was granted first", b.called.Time-a.waited.Time),
				a.called, a.waited, a.returned, b.called, b.returned)
		}
		switch {
		case !a.reads() && (others == nil || others.called.Time < a.called.Time):
			others = a
		case a.reads() && a.alone && (reads == nil || reads.called.Time < a.called.Time):
			reads = a
		}
	}
}

// point is a moment of a history. Among events that one process recorded at the
// same moment (frequent on a fake clock) seq gives the order. Otherwise seq is
// 0, and neither of two such events is before the other.
type point struct {
	t   time.Duration
	seq uint64
}

func (p point) before(q point) bool { return p.t < q.t || p.t == q.t && p.seq < q.seq }

// point returns the moment of e.
func (j *judge) point(e *Event) point {
	if j.shared[e.Time] {
		return point{e.Time, 0}
	}
	return point{e.Time, e.Seq}
}

// owner is the owner of a lock. Attempts of the same owner re-enter. If an
// attempt is a separate owner, number identifies it.
type owner struct {
	proc, client, name string
	number             int
}

// attempt is one attempt, with its hold.
type attempt struct {
	lock  *lock
	proc  *process
	owner owner

	called, waited, returned, releasing, answer, released *Event // nil means did not happen

	// the first event by which the holder ended the hold or was notified of its
	// end, or nil
	over     *Event
	evidence time.Duration // the last moment before over at which the lease reported that it was held
	deadline time.Duration // the last known one before over

	// The claim is the interval in which the holder believed that it held the
	// lock. The claim is empty unless from is before to.
	from, to point
	// the end of the claim, if no other client removed the hold in the
	// meantime; otherwise to is Bounds.Detect earlier
	end     time.Duration
	ending  ending
	used    int  // the permits that were claimed when this claim began, with its own
	reentry bool // its owner may already have held the lock
	alone   bool // a Read that no other Read of its client may have brought along; see lonely

	// free is the time at which the backend certainly has nothing left of this
	// attempt.
	free time.Duration
}

type ending int

const (
	expired ending = iota // its deadline passed
	released
	lost // the holder was notified
)

func (a *attempt) reads() bool { return a.called.Mode == driver.Read }

func (a *attempt) granted() bool { return a.returned != nil && a.returned.Kind == KindGrant }

// claimed reports whether there is a claim. If there is, the backend granted
// the hold after every grant that returned earlier: the hold existed without a
// break from its grant until after the grant returned, so no other grant can
// lie between. This is not certain for a hold that had ended, or may have been
// removed, when its grant returned.
func (a *attempt) claimed() bool { return a.granted() && a.from.before(a.to) }

// confirmed reports whether the backend had the hold until Unlock was called,
// according to the backend's own answer to the release.
func (a *attempt) confirmed() bool {
	return a.ending == released && a.answer != nil && a.answer.Class == ""
}

// doubtful reports whether the attempt may have left a hold on the backend that
// no client knows.
func (a *attempt) doubtful() bool {
	return a.returned == nil || !a.granted() && a.free > a.returned.Time
}

// claims determines the outcomes of all attempts, when all events are known.
func (j *judge) claims(l *lock) {
	for _, a := range l.attempts {
		a.free = j.free(a)
		switch {
		case a.returned == nil || a.returned.Class == ClassUnknown:
			j.v.Unknown++
		case a.returned.Kind == KindRefuse:
			j.v.Refused++
		case a.granted():
			j.v.Granted++
			j.claim(a)
			if !a.takesPermits() {
				l.holds = append(l.holds, a)
				continue
			}
			l.permits = append(l.permits, a)
			if n := a.called.Limit; n > 0 && !slices.Contains(l.named, n) {
				l.named = append(l.named, n)
			}
		}
	}
	slices.SortFunc(l.holds, byFrom)
	slices.SortStableFunc(l.permits, byFrom)
}

func byFrom(a, b *attempt) int {
	return cmp.Or(cmp.Compare(a.from.t, b.from.t), cmp.Compare(a.from.seq, b.from.seq))
}

// claim determines how the hold of attempt a ended, and the claim of its
// holder.
func (j *judge) claim(a *attempt) {
	a.from, a.to = j.point(a.returned), point{a.deadline, 0}
	switch e := a.over; {
	case e == nil && !a.proc.ended: // dead processes claim nothing
		a.to.t = min(a.deadline, a.proc.last)
	case e == nil:
	case e.Kind == KindRelease && e.OK:
		a.to, a.ending = j.point(e), released
		if a.released != nil && a.released.gone() {
			a.ending = lost
		}
	case e.Kind == KindLose:
		a.to.t, a.ending = min(a.deadline, e.Time), lost
	case e.Time < a.deadline || e.Class == ClassRemoved || e.Class == ClassSessionEnded:
		// the time at which Done was closed is not known
		a.to.t, a.ending = min(a.deadline, a.evidence), lost
	}
	a.end = a.to.t
	if j.b.Detect > 0 && !a.confirmed() {
		// another client may have ended the hold, and the holder may not know
		// it yet
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

// gone reports whether an error means that a hold had ended before it was
// released.
func (e *Event) gone() bool {
	return e.Class == ClassNotHeld || e.Class == ClassRemoved || e.Class == ClassSessionEnded
}

// harmless lists the errors of attempts that have certainly left nothing
// behind.
var harmless = []string{ClassLocked, ClassCanceled, ClassDeadline, ClassDeadlock, ClassUnavailable, ClassUnsupported, ClassLimit}

// free returns the time from which the backend certainly has nothing left of a.
func (j *judge) free(a *attempt) time.Duration {
	end := a.returned // only a remnant can be left after this
	if a.granted() {
		if end = a.released; a.over != a.releasing {
			// the holder was notified before or never released the hold
			end = a.over
		}
	}
	switch {
	case a.answer != nil && a.answer.Class == "":
		return a.answer.Time
	case end != nil && (end.Kind == KindReleased || !a.granted() && slices.Contains(harmless, end.Class)):
		return end.Time
	case j.b.Linger == 0:
		return never
	case end != nil:
		return after(end.Time, j.b.Linger)
	}
	return after(a.proc.killed, j.b.Linger)
}
