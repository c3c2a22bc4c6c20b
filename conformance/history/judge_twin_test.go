package history

import (
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// twin finds by brute force the violations that the judge finds by sweeps. It
// shares only the events and the bounds with the judge. It states each rule in
// the simplest way, even if that is slow.
type twin struct {
	Bounds
	tales   map[string][]*tale     // by name, in the order of their calls
	crowded map[time.Duration]bool // moments at which several processes recorded something
	procs   map[string]*twinProc   // by label
	calm    [][2]time.Duration     // without faults
}

type twinProc struct {
	ended      bool          // it closed its history
	last, dead time.Duration // its last event, and when a fault had surely killed it
}

// tale is the known state of one call.
type tale struct {
	call, back Event   // back is the result of the call; it has no kind if there is none yet
	after      []Event // all others
	proc       *twinProc
	got        bool  // whether it returned a lease
	over       Event // the event that ended the hold or first notified the holder of its end; at forever if none did
	until      time.Duration
	unlock     Event // the event that ends the claim at until, if it has a kind
	kept       bool  // at the release the backend reported that it had the hold
	since      time.Duration
	sure, more bool // it held the lock when the call returned; its owner may already have held it before
	free       time.Duration
	next       *tale // the call whose grant proves that nothing was left of this call; nil if there is none
}

const forever = time.Duration(1<<63 - 1)

func newTwin(events []Event, b Bounds) *twin {
	w := &twin{Bounds: b, tales: map[string][]*tale{}, crowded: map[time.Duration]bool{}, procs: map[string]*twinProc{}}
	for _, e := range events {
		w.procs[e.Proc] = &twinProc{dead: forever}
	}
	all, faults, calmFrom := map[[2]any]*tale{}, map[[2]any]bool{}, -forever
	for i, e := range events {
		w.crowded[e.Time] = w.crowded[e.Time] || i > 0 && events[i-1].Time == e.Time && events[i-1].Proc != e.Proc
		w.procs[e.Proc].last = e.Time
		switch key := [2]any{e.Proc, e.Call}; e.Kind {
		case KindEnd:
			w.procs[e.Proc].ended = true
		case KindFaultOn:
			if len(faults) == 0 {
				w.calm = append(w.calm, [2]time.Duration{calmFrom, e.Time})
			}
			faults[key] = true
		case KindFaultOff:
			delete(faults, key)
			calmFrom = e.Time
			if p := w.procs[e.Text]; p != nil && e.Class == FaultKill {
				p.dead = e.Time
			}
		case KindCall:
			all[key] = &tale{call: e, proc: w.procs[e.Proc], free: forever}
			w.tales[e.Name] = append(w.tales[e.Name], all[key])
		case KindGrant, KindRefuse, KindFail:
			all[key].back, all[key].got = e, e.Kind == KindGrant
		case KindMeta, KindWrite, KindRead, KindSetLimit, KindLimitSet:
		default:
			all[key].after = append(all[key].after, e)
		}
	}
	w.calm = append(w.calm, [2]time.Duration{calmFrom, forever})
	for _, tales := range w.tales {
		for _, t := range tales {
			w.claim(t)
			t.free = w.gone(t)
		}
		for _, t := range tales {
			t.more = t.got && slices.ContainsFunc(tales, func(a *tale) bool {
				return a != t && a.got && a.owns(t) && w.follows(a.back, t.back) && a.over.Time >= t.call.Time
			})
		}
		for _, b := range tales {
			for _, a := range tales {
				if a != b && b.sure && !b.more && !a.shares(b) && a.back.Kind != "" && w.precedes(a.back, b.back) && (a.next == nil || w.precedes(b.back, a.next.back)) {
					a.next = b
				}
			}
		}
	}
	return w
}

// follows reports whether x certainly happened before y.
func (w *twin) follows(x, y Event) bool {
	return x.Time < y.Time || x.Time == y.Time && !w.crowded[x.Time] && x.Seq < y.Seq
}

// owns reports whether two calls may share a hold.
func (t *tale) owns(b *tale) bool {
	return t == b || t.call.Owner != "" && t.call.Proc == b.call.Proc && t.call.Client == b.call.Client && t.call.Owner == b.call.Owner
}

// find returns the first event of a kind, or an empty one.
func (t *tale) find(k Kind) Event {
	if i := slices.IndexFunc(t.after, func(e Event) bool { return e.Kind == k }); i >= 0 {
		return t.after[i]
	}
	return Event{}
}

// claim determines how long the holder believed that it held the lock, even if
// another client had silently removed it.
func (w *twin) claim(t *tale) {
	if !t.got {
		return
	}
	deadline, proof := t.back.Deadline, t.back.Time
	t.over = Event{Time: forever}
	for _, e := range t.after {
		if e.Kind == KindRelease || e.Kind == KindLose || e.Kind == KindCheck && !e.OK {
			t.over = e
			break
		}
		if e.Kind == KindCheck || e.Kind == KindRenew {
			deadline = e.Deadline
		}
		if e.Kind == KindCheck {
			proof = e.Time
		}
	}
	switch t.until = deadline; {
	case t.over.Kind == KindRelease && t.over.OK:
		t.until, t.unlock = t.over.Time, t.over
	case t.over.Kind == KindLose:
		t.until = min(deadline, t.over.Time)
	case t.over.Time < deadline || t.over.Class == ClassRemoved || t.over.Class == ClassSessionEnded:
		t.until = min(deadline, proof)
	case t.over.Kind == "" && !t.proc.ended:
		t.until = min(deadline, t.proc.last)
	}
	answer := t.find(KindAnswer)
	t.since, t.kept = answer.Since, answer.Kind != "" && answer.Class == "" && t.unlock.Kind != ""
	if !t.kept && w.Detect > 0 {
		t.until, t.unlock = t.until-w.Detect, Event{}
	}
	t.sure = w.had(t, t.back)
}

// had reports whether the holder of a believed, as late as x, that it held the
// lock.
func (w *twin) had(a *tale, x Event) bool {
	return x.Time < a.until || a.unlock.Kind != "" && w.follows(x, a.unlock)
}

// gone returns the time from which the backend certainly has nothing left of a
// call.
func (w *twin) gone(t *tale) time.Duration {
	answer, released, failed := t.find(KindAnswer), t.find(KindReleased), t.find(KindNotReleased)
	switch {
	case answer.Kind != "" && answer.Class == "":
		return answer.Time
	case t.got && t.over.Kind != "" && t.over.Kind != KindRelease: // notified of the end before Unlock
		return t.over.Time + w.Linger
	case released.Kind != "":
		return released.Time
	case t.back.Kind != "" && !t.got && t.back.Class != ClassUnknown && t.back.Class != ClassClosed:
		return t.back.Time
	case t.back.Kind != "" && !t.got:
		return t.back.Time + w.Linger
	case failed.Kind != "":
		return failed.Time + w.Linger
	case t.proc.dead < forever:
		return t.proc.dead + w.Linger
	}
	return forever
}

// violations counts the violations of the rules that the twin knows.
func (w *twin) violations() map[Rule]int {
	found := map[Rule]int{}
	count := func(r Rule, is bool) {
		if is {
			found[r]++
		}
	}
	for _, tales := range w.tales {
		if tales[0].call.Mode == driver.Permit {
			w.permits(tales, count)
			continue
		}
		var kept []*tale
		for _, b := range tales {
			// before reports whether there is an earlier grant for which f
			// returns true.
			before := func(f func(a *tale) bool) bool {
				return b.got && slices.ContainsFunc(tales, func(a *tale) bool { return a != b && a.got && w.follows(a.back, b.back) && f(a) })
			}
			overlaps := before(func(a *tale) bool { return !a.owns(b) && !a.shares(b) && a.sure && b.sure && w.had(a, b.back) })
			count(RuleOverlap, overlaps)
			count(RuleTokens, b.got && b.back.Token == 0 || before(func(a *tale) bool {
				joins := a.back.Token == b.back.Token && a.owns(b) && b.more
				return a.back.Token >= b.back.Token && !joins && !a.shares(b) && (b.sure || !b.reads() && a.back.Time < w.asked(tales, b))
			}))
			seen := b.find(KindWait)
			count(RuleOrder, b.sure && !b.more && !b.call.NoWait && seen.Kind != "" && w.quiet(b) && before(func(a *tale) bool {
				return !a.call.NoWait && !a.more && seen.Time < a.call.Time && !a.shares(b) && !w.brought(tales, a)
			}))
			waited := b.back.Kind != "" && !b.call.NoWait
			count(RuleWake, (b.got || waited) && w.idle(tales, b, b.back, oldestButReads))
			count(RuleWake, b.doubtful() && w.idle(tales, b, b.call, oldestButReads))
			count(RuleWake, b.reads() && waited && w.idle(tales, b, b.back, thisRead))
			count(RuleWake, !b.reads() && b.got && w.idle(tales, b, b.back, oldestRead))
			count(RuleWake, !b.reads() && (waited || b.doubtful()) && w.idle(tales, b, b.call, oldestRead))
			if b.kept && !overlaps && b.since < b.until {
				kept = append(kept, b)
			}
		}
		for _, b := range kept {
			count(RuleOverlap, slices.ContainsFunc(kept, func(a *tale) bool {
				return a != b && a.since <= b.since && b.since < a.until && a.find(KindAnswer).Mode.Excludes(b.find(KindAnswer).Mode)
			}))
		}
	}
	return found
}

// asked returns the earliest time at which the hold of b may have been
// requested from the backend. This may be before b's call, if the client then
// had a hold that may have become b's. It is not before the call if the backend
// still had that hold when it was released.
func (w *twin) asked(tales []*tale, b *tale) time.Duration {
	var last *tale // such a hold of the client
	for _, a := range tales {
		if a.kept && !a.reads() && a.unlock.Time <= b.back.Time && w.leads(a, b) && (last == nil || w.precedes(last.back, a.back)) {
			last = a
		}
	}
	if last == nil {
		return w.line(tales, b, Event{Time: -forever})
	}
	return max(w.line(tales, b, last.back), min(last.unlock.Time, b.call.Time))
}

// line returns the earliest call among the calls that were granted after a
// given time and that may have passed their hold to b.
func (w *twin) line(tales []*tale, b *tale, after Event) time.Duration {
	first := b.call.Time
	for _, a := range tales {
		unlocked := max(a.find(KindReleased).Time, a.find(KindNotReleased).Time)
		if a.got && w.leads(a, b) && w.precedes(after, a.back) && (unlocked == 0 || unlocked >= b.call.Time) {
			first = min(first, w.line(tales, a, after))
		}
	}
	return first
}

// leads reports whether a was granted before b by the same client.
func (w *twin) leads(a, b *tale) bool {
	return a.call.Proc == b.call.Proc && a.call.Client == b.call.Client && w.precedes(a.back, b.back)
}

// quiet reports whether there was no fault from the call to the grant.
func (w *twin) quiet(t *tale) bool {
	return slices.ContainsFunc(w.calm, func(c [2]time.Duration) bool { return c[0] <= t.call.Time && t.back.Time <= c[1] })
}

// doubtful reports whether there may be a hold that no client knows.
func (t *tale) doubtful() bool { return t.back.Kind == "" || !t.got && t.free > t.back.Time }

func (t *tale) reads() bool         { return t.call.Mode == driver.Read }
func (t *tale) shares(b *tale) bool { return t.reads() && b.reads() }

// brought reports whether a Read may have been granted because it joined
// another Read of its client.
func (w *twin) brought(tales []*tale, a *tale) bool {
	return a.reads() && slices.ContainsFunc(tales, func(c *tale) bool {
		return c != a && c.reads() && c.call.Proc == a.call.Proc && c.call.Client == a.call.Client &&
			c.call.Time <= a.back.Time && (c.back.Kind == "" || max(c.free, c.back.Time) >= a.call.Time)
	})
}

// whose selects the waiter for which a lock may have been free. It is the
// waiter that has waited longest in a mode other than Read, the waiter that has
// waited longest to read, or a particular Read.
type whose int

const (
	oldestButReads whose = iota
	oldestRead
	thisRead
)

// idle examines the time before e, an event of x, at which a caller may have
// been waiting too long for a free lock.
func (w *twin) idle(tales []*tale, x *tale, e Event, who whose) bool {
	free, oldest := -forever, forever
	if who == thisRead {
		oldest = x.call.Time
	}
	for _, a := range tales {
		called, back := w.precedes(a.call, e), a.back.Kind != "" && w.precedes(a.back, e)
		waits := called && a.back.Kind != "" && !back && !a.call.NoWait
		switch {
		case waits && !a.reads() && who != oldestButReads:
			return false
		case waits && a.reads() == (who == oldestRead) && who != thisRead:
			oldest = min(oldest, a.call.Time)
		}
		if who != oldestButReads && back && !a.reads() && !a.call.NoWait {
			free = max(free, a.back.Time)
		}
		if a.reads() && who != oldestButReads {
			continue
		}
		if called && a.doubtful() {
			free = max(free, a.free)
		}
		if back && (a.got || !a.call.NoWait) {
			left := a.free
			if a.next != nil && w.precedes(a.next.back, e) {
				left = min(left, a.next.back.Time)
			}
			free = max(free, left)
		}
	}
	return oldest < forever && slices.ContainsFunc(w.calm, func(c [2]time.Duration) bool {
		from, to := max(free, oldest, c[0]), min(e.Time, c[1])
		return from < to && to-from > w.Wake && (c[0] == -forever || to-c[0] > w.Recover)
	})
}

// precedes is the order of the events in a history.
func (w *twin) precedes(x, y Event) bool {
	return x.Time < y.Time || x.Time == y.Time && (x.Proc < y.Proc || x.Proc == y.Proc && x.Seq < y.Seq)
}

// permits counts the violations for a name with permits that had only one
// limit.
func (w *twin) permits(tales []*tale, count func(Rule, bool)) {
	limit := 0
	for _, a := range tales {
		limit = max(limit, a.call.Limit)
	}
	used := make([]int, len(tales)) // when each call returned
	for i, b := range tales {
		for k, a := range tales {
			tie := a.back.Time == b.back.Time && w.crowded[b.back.Time]
			if a == b || a.sure && (w.follows(a.back, b.back) || tie && k < i) && w.had(a, b.back) {
				used[i] += a.call.Permits
			}
		}
	}
	for i, b := range tales {
		count(RuleTokens, b.got && b.back.Token != 0)
		count(RuleOverlap, b.sure && used[i] > limit)
		seen := b.find(KindWait)
		overtaken := false
		for k, a := range tales {
			overtaken = overtaken || a.sure && !a.call.NoWait && seen.Time < a.call.Time && w.follows(a.back, b.back) && used[k]+b.call.Permits > limit
		}
		count(RuleOrder, overtaken && b.sure && !b.call.NoWait && seen.Kind != "" && w.quiet(b))
		count(RuleWake, (b.got || b.back.Kind != "" && !b.call.NoWait) && w.permitsIdle(tales, b.back, limit))
		count(RuleWake, b.doubtful() && w.permitsIdle(tales, b.call, limit))
	}
}

// permitsIdle examines the time before e, at which a caller may have been
// waiting too long for free permits.
func (w *twin) permitsIdle(tales []*tale, e Event, limit int) bool {
	var oldest *tale
	since := -forever
	for _, a := range tales {
		back := a.back.Kind != "" && w.precedes(a.back, e)
		if waits := w.precedes(a.call, e) && a.back.Kind != "" && !back && !a.call.NoWait; waits && (oldest == nil || w.precedes(a.call, oldest.call)) {
			oldest = a
		}
		if back && (a.got || !a.call.NoWait) {
			since = max(since, a.back.Time)
		}
	}
	if oldest == nil {
		return false
	}
	takes := func(a *tale) bool {
		return a.got && w.precedes(a.back, e) || a.doubtful() && w.precedes(a.call, e)
	}
	for _, u := range tales { // were too many permits taken as late as that?
		n := oldest.call.Permits
		for _, a := range tales {
			if takes(a) && a.free >= u.free {
				n += a.call.Permits
			}
		}
		if takes(u) && n > limit {
			since = max(since, u.free)
		}
	}
	since = max(since, oldest.call.Time)
	return slices.ContainsFunc(w.calm, func(c [2]time.Duration) bool {
		from, to := max(since, c[0]), min(e.Time, c[1])
		return from < to && to-from > w.Wake && (c[0] == -forever || to-c[0] > w.Recover)
	})
}
