package history

import (
	"slices"
	"time"
)

// twin finds by brute force what the judge finds by sweeps. It shares nothing with the judge but the events and the bounds, and says
// what each rule means in the plainest words, whatever that costs.
type twin struct {
	Bounds
	tales map[string][]*tale // by name, in the order of their calls
	alone map[time.Duration]map[string]bool
	ended map[string]bool          // processes that closed their histories
	last  map[string]time.Duration // of the events of a process
	dead  map[string]time.Duration // when a process had surely been killed
	calm  [][2]time.Duration       // without faults
}

// tale is what is known of one call.
type tale struct {
	call, back Event   // back: what the call returned; none yet has no kind
	after      []Event // all others
	got        bool    // a lease
	until      time.Duration
	unlock     Event // that ends the claim at until, if it has a kind
	kept       bool  // the backend said at the release that it had the hold
	since      time.Duration
	sure, more bool // it had the lock when the call returned; its owner may have had it before
	free       time.Duration
}

const forever = time.Duration(1<<63 - 1)

func newTwin(events []Event, b Bounds) *twin {
	w := &twin{Bounds: b, tales: map[string][]*tale{}, alone: map[time.Duration]map[string]bool{}, ended: map[string]bool{},
		last: map[string]time.Duration{}, dead: map[string]time.Duration{}}
	type id struct {
		proc string
		call uint64
	}
	all, faults, calmFrom := map[id]*tale{}, map[id]bool{}, -forever
	for _, e := range events {
		if w.alone[e.Time] == nil {
			w.alone[e.Time] = map[string]bool{}
		}
		w.alone[e.Time][e.Proc], w.last[e.Proc] = true, e.Time
		switch key := (id{e.Proc, e.Call}); e.Kind {
		case KindEnd:
			w.ended[e.Proc] = true
		case KindFaultOn:
			if len(faults) == 0 {
				w.calm = append(w.calm, [2]time.Duration{calmFrom, e.Time})
			}
			faults[key] = true
		case KindFaultOff:
			delete(faults, key)
			calmFrom = e.Time
			if e.Class == FaultKill {
				w.dead[e.Text] = e.Time
			}
		case KindCall:
			all[key] = &tale{call: e, free: forever}
			w.tales[e.Name] = append(w.tales[e.Name], all[key])
		case KindGrant, KindRefuse, KindFail:
			all[key].back, all[key].got = e, e.Kind == KindGrant
		case KindMeta, KindWrite:
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
				return a != t && a.got && a.owns(t) && w.follows(a.back, t.back) && a.over() >= t.call.Time
			})
		}
	}
	return w
}

// follows reports whether x surely happened before y.
func (w *twin) follows(x, y Event) bool {
	return x.Time < y.Time || x.Time == y.Time && len(w.alone[x.Time]) == 1 && x.Seq < y.Seq
}

// owns reports whether two calls may share a hold.
func (t *tale) owns(b *tale) bool {
	return t == b || t.call.Owner != "" && t.call.Proc == b.call.Proc && t.call.Client == b.call.Client && t.call.Owner == b.call.Owner
}

func asked(e Event) bool { return e.Kind == KindCheck || e.Kind == KindRelease }

// over returns when the holder ended the hold or first knew that it was over.
func (t *tale) over() time.Duration {
	for _, e := range t.after {
		if e.Kind == KindRelease || e.Kind == KindLose || asked(e) && !e.OK {
			return e.Time
		}
	}
	return forever
}

// find returns the first event of a kind, or an empty one.
func (t *tale) find(k Kind) Event {
	if i := slices.IndexFunc(t.after, func(e Event) bool { return e.Kind == k }); i >= 0 {
		return t.after[i]
	}
	return Event{}
}

// claim finds out until when the holder had been told that it has the lock, even if somebody removes it without a word.
func (w *twin) claim(t *tale) {
	if !t.got {
		return
	}
	deadline, proof, unlock, lost := t.back.Deadline, t.back.Time, t.find(KindRelease), false
	t.until = forever
	for _, e := range t.after {
		switch {
		case lost:
		case e.Kind == KindRenew:
			deadline = e.Deadline
		case e.Kind == KindLose:
			t.until, lost = e.Time, true
		case asked(e) && e.OK:
			deadline, proof = e.Deadline, e.Time
		case asked(e) && (e.Time < deadline || e.Class == ClassRemoved || e.Class == ClassSessionEnded):
			t.until, lost = proof, true
		}
		if e.Kind == KindRelease {
			break
		}
	}
	answer := t.find(KindAnswer)
	t.since, t.kept = answer.Since, answer.Kind != "" && answer.Class == "" && unlock.OK && !lost
	switch {
	case unlock.OK && !lost:
		t.until, t.unlock = unlock.Time, unlock
	case unlock.Kind == "" && !w.ended[t.call.Proc]:
		t.until = min(t.until, deadline, w.last[t.call.Proc])
	default:
		t.until = min(t.until, deadline)
	}
	if !t.kept && w.Detect > 0 {
		t.until, t.unlock = t.until-w.Detect, Event{}
	}
	t.sure = w.had(t, t.back)
}

// had reports whether the holder of a had been told, as late as x, that it has the lock.
func (w *twin) had(a *tale, x Event) bool {
	return x.Time < a.until || a.unlock.Kind != "" && w.follows(x, a.unlock)
}

// gone returns when the backend surely has nothing left of a call.
func (w *twin) gone(t *tale) time.Duration {
	dead, killed := w.dead[t.call.Proc]
	answer, end := t.find(KindAnswer), t.back
	switch released, failed, lost := t.find(KindReleased), t.find(KindNotReleased), t.find(KindLose); {
	case answer.Kind != "" && answer.Class == "":
		return answer.Time
	case released.Kind != "":
		return released.Time
	case t.back.Kind != "" && !t.got && t.back.Class != ClassUnknown:
		return t.back.Time
	case failed.Kind != "":
		end = failed
	case t.find(KindRelease).Kind != "":
		return forever
	case lost.Kind != "":
		end = lost
	case (t.got || t.back.Kind == "") && !killed:
		return forever
	case t.got || t.back.Kind == "":
		end.Time = dead
	}
	return end.Time + w.Linger
}

// violations counts those of the rules that the twin knows.
func (w *twin) violations() map[Rule]int {
	found := map[Rule]int{}
	count := func(r Rule, is bool) {
		if is {
			found[r]++
		}
	}
	for _, tales := range w.tales {
		var kept []*tale
		for _, b := range tales {
			// before reports whether there is an earlier grant that is as f says.
			before := func(f func(a *tale) bool) bool {
				return b.got && slices.ContainsFunc(tales, func(a *tale) bool { return a != b && a.got && w.follows(a.back, b.back) && f(a) })
			}
			overlaps := before(func(a *tale) bool { return !a.owns(b) && a.sure && b.sure && w.had(a, b.back) })
			count(RuleOverlap, overlaps)
			count(RuleTokens, b.got && b.back.Token == 0 || before(func(a *tale) bool {
				joins := a.back.Token == b.back.Token && a.owns(b) && b.more
				return (b.sure || a.back.Time < b.call.Time) && a.back.Token >= b.back.Token && !joins
			}))
			seen := b.find(KindWait)
			count(RuleOrder, b.sure && !b.more && !b.call.NoWait && seen.Kind != "" && w.quiet(b) && before(func(a *tale) bool {
				return !a.call.NoWait && !a.more && seen.Time < a.call.Time
			}))
			count(RuleWake, (b.got || b.back.Kind != "" && !b.call.NoWait) && w.idle(tales, b, b.back))
			count(RuleWake, b.doubtful() && w.idle(tales, b, b.call))
			if b.kept && !overlaps {
				kept = append(kept, b)
			}
		}
		for _, b := range kept {
			count(RuleOverlap, slices.ContainsFunc(kept, func(a *tale) bool { return a != b && a.since <= b.since && b.since < a.until }))
		}
	}
	return found
}

// quiet reports whether there was no fault from the call to the grant.
func (w *twin) quiet(t *tale) bool {
	return slices.ContainsFunc(w.calm, func(c [2]time.Duration) bool { return c[0] <= t.call.Time && t.back.Time <= c[1] })
}

// doubtful says that there may be a hold that nobody was told of.
func (t *tale) doubtful() bool { return t.back.Kind == "" || !t.got && t.free > t.back.Time }

// idle looks back from e, an event of x, at which nobody may have been waiting for a free lock for long.
func (w *twin) idle(tales []*tale, x *tale, e Event) bool {
	free, oldest, proof := -forever, forever, Event{Time: -forever} // proof: the last grant before which all was over
	for _, b := range tales {
		if b != x && b.sure && !b.more && w.precedes(proof, b.back) && w.precedes(b.back, e) {
			proof = b.back
		}
	}
	for _, a := range tales {
		called, back := w.precedes(a.call, e), a.back.Kind != "" && w.precedes(a.back, e)
		if called && a.doubtful() || back && (a.got || !a.call.NoWait) && !w.precedes(a.back, proof) {
			free = max(free, a.free)
		}
		if called && a.back.Kind != "" && !back && !a.call.NoWait {
			oldest = min(oldest, a.call.Time)
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
