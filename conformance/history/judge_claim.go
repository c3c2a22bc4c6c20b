package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// point is a moment of a history. Among events that one process recorded at the same moment (on a fake clock, there are many) seq tells
// the order; otherwise seq is 0, and neither of two such events is before the other.
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

// owner is the owner of a lock. Attempts of the same owner re-enter; number is that of an attempt that is an owner of its own.
type owner struct {
	proc, client, name string
	number             int
}

// attempt is one attempt, with its hold.
type attempt struct {
	lock  *lock
	proc  *process
	owner owner

	called, waited, returned, releasing, answer, released *Event // nil: did not happen

	over     *Event        // the first event by which the holder ended the hold or was told of its end; nil: none
	evidence time.Duration // the last moment before over for which the lease said that it was held
	deadline time.Duration // the last one known before over

	// The claim: what the holder was told that it has. The claim is empty unless from is before to.
	from, to point
	end      time.Duration // of the claim, if nobody removed the hold meanwhile; otherwise to is Bounds.Detect earlier
	ending   ending
	used     int  // the permits that were claimed when this claim began, with its own
	reentry  bool // its owner may have had the lock already
	alone    bool // a Read that no other Read of its client may have brought along; see lonely

	// free is when the backend surely has nothing left of this attempt.
	free time.Duration
}

type ending int

const (
	expired ending = iota // its deadline passed
	released
	lost // the holder was told
)

func (a *attempt) reads() bool { return a.called.Mode == driver.Read }

func (a *attempt) granted() bool { return a.returned != nil && a.returned.Kind == KindGrant }

// claimed says that there is a claim. Then the backend granted the hold after every grant that returned earlier: the hold was there without
// a break from its grant until after the grant returned, so no other grant can lie between. That is not known of a hold that was over, or
// may have been removed, when its grant returned.
func (a *attempt) claimed() bool { return a.granted() && a.from.before(a.to) }

// confirmed says that the backend had the hold until Unlock was called, by the backend's own answer to the release.
func (a *attempt) confirmed() bool {
	return a.ending == released && a.answer != nil && a.answer.Class == ""
}

// doubtful says that the attempt may have left a hold at the backend that nobody was told of.
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

// claim determines how the hold of a ended and what its holder claimed.
func (j *judge) claim(a *attempt) {
	a.from, a.to = j.point(a.returned), point{a.deadline, 0}
	switch e := a.over; {
	case e == nil && !a.proc.ended: // the dead claim nothing
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
		a.to.t, a.ending = min(a.deadline, a.evidence), lost // nobody knows when Done was closed
	}
	a.end = a.to.t
	if j.b.Detect > 0 && !a.confirmed() { // somebody may have ended the hold, and the holder not know it yet
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

// gone reports whether an error says that a hold had been over before it was released.
func (e *Event) gone() bool {
	return e.Class == ClassNotHeld || e.Class == ClassRemoved || e.Class == ClassSessionEnded
}

// harmless are the errors after which an attempt has surely left nothing behind.
var harmless = []string{ClassLocked, ClassCanceled, ClassDeadline, ClassDeadlock, ClassUnavailable, ClassUnsupported, ClassLimit}

// free returns when the backend surely has nothing left of a.
func (j *judge) free(a *attempt) time.Duration {
	end := a.returned // only a remnant can be left after this
	if a.granted() {
		if end = a.released; a.over != a.releasing { // the holder was told before, or never released it
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
