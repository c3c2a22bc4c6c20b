package history

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// plant makes a history illegal.
type plant struct {
	name string
	rule Rule
	// in changes the events and returns them. It returns nil if this plant does
	// not fit into the events of s.
	in func(r *rand.Rand, s *sim, events []Event) []Event
}

var plants = []plant{
	{"an overlap", RuleOverlap, plantOverlap},
	{"a reader alongside a writer", RuleOverlap, plantReader},
	{"two holds on the server", RuleOverlap, plantTwoHolds},
	{"a late loss", RuleLoss, plantLateLoss},
	{"a stale access", RuleStale, plantStaleAccess},
	{"a write by a reader", RuleStale, plantReadersWrite},
	{"a token that falls", RuleTokens, plantToken},
	{"a waiter that is not woken", RuleWake, plantLostWakeup},
	{"a reader that is not woken while others read", RuleWake, plantLoneReader},
	{"a waiter that is stuck", RuleStuck, plantLostWakeup},
	{"a refusal for no reason", RuleStuck, plantRefusal},
	{"a double release", RuleResult, plantDoubleRelease},
	{"a lease that is revived", RuleResult, plantRevival},
	{"overtaking", RuleOrder, plantOvertaking},
}

// anyHold returns a hold of s for which ok is true.
func anyHold(r *rand.Rand, s *sim, ok func(h *simHold) bool) *simHold {
	for _, i := range r.Perm(len(s.story)) {
		if h := s.story[i]; ok(h) {
			return h
		}
	}
	return nil
}

// find returns the event of that kind that belongs to h.
func (h *simHold) find(events []Event, k Kind) *Event {
	i := slices.IndexFunc(events, func(e Event) bool { return e.Call == h.of.Call && e.Proc == h.of.Proc && e.Kind == k })
	return &events[i]
}

func (s *sim) stranger(e Event) Event {
	*s.calls++
	return Event{Proc: "planted", Client: "planted", Call: *s.calls, Name: s.name, Token: e.Token, Deadline: e.Deadline, OK: e.OK, Class: e.Class,
		Kind: e.Kind, Time: e.Time}
}

// intruder grants the lock to another client at t.
func (s *sim) intruder(events []Event, t time.Duration) []Event {
	e := s.stranger(Event{Kind: KindCall, Time: t - ms})
	grant := e
	grant.Kind, grant.Time, grant.Token, grant.Deadline = KindGrant, t, s.token+1, t+50*ms
	return append(events, e, grant)
}

func plantOverlap(r *rand.Rand, s *sim, events []Event) []Event {
	lost := slices.ContainsFunc(events, func(e Event) bool {
		return e.Name == s.name && reads(e) && (e.Kind == KindLose || e.Kind == KindNotReleased)
	})
	h := anyHold(r, s, func(h *simHold) bool {
		return h.sure()-h.ok > 2 && !(reads(h.of) && lost) // among several Reads a lost one may show it, as a late loss
	})
	if h == nil {
		return nil
	}
	return s.intruder(events, h.ok+1+time.Duration(r.Int64N(int64(h.sure()-h.ok-2))))
}

func plantReader(r *rand.Rand, s *sim, events []Event) []Event {
	h := anyHold(r, s, func(h *simHold) bool { return !reads(h.of) && h.sure()-h.ok > 2 })
	if h == nil {
		return nil
	}
	events = s.intruder(events, h.ok+1+time.Duration(r.Int64N(int64(h.sure()-h.ok-2))))
	for i := len(events) - 2; i < len(events); i++ {
		events[i].Mode = driver.Read
	}
	return events
}

// plantTwoHolds makes the server report that it had two simultaneous holds, one
// of which several leases used in turn.
func plantTwoHolds(r *rand.Rand, s *sim, events []Event) []Event {
	h := anyHold(r, s, func(h *simHold) bool { return h.kept && h.ok-h.since > 10*ms })
	if h == nil {
		return nil
	}
	t := h.since + 5*ms
	events = s.intruder(events, t)
	grant := events[len(events)-1]
	for k, e := range map[Kind]Event{KindRelease: {Time: t + 1, OK: true, Deadline: grant.Deadline}, KindAnswer: {Time: t + 2, Since: t},
		KindReleased: {Time: t + 3}} {
		e.Proc, e.Client, e.Call, e.Name, e.Kind = grant.Proc, grant.Client, grant.Call, grant.Name, k
		events = append(events, e)
	}
	return events
}

func plantLateLoss(r *rand.Rand, s *sim, events []Event) []Event {
	h := anyHold(r, s, func(h *simHold) bool {
		return !reads(h.of) && h.unlock+simDetect+2*ms < h.deadline && h.unlock > h.ok // of several Reads another one may show it
	})
	if h == nil {
		return nil
	}
	if h.kept {
		*h.find(events, KindAnswer) = Event{Proc: "planted", Kind: KindMeta, Time: h.gone}
	}
	check := h.find(events, KindRelease) // which shows the deadline
	check.Kind = KindCheck
	lose := h.find(events, KindReleased)
	lose.Kind, lose.Class, lose.Time = KindLose, ClassRemoved, h.unlock+simDetect+2*ms
	return s.intruder(events, h.unlock)
}

func plantStaleAccess(r *rand.Rand, s *sim, events []Event) []Event {
	if len(s.story) < 2 {
		return nil
	}
	i := 1 + r.IntN(len(s.story)-1)
	if reads(s.story[i].of) {
		return nil
	}
	k := []Kind{KindWrite, KindRead}[r.IntN(2)]
	return append(events, Event{Proc: "store", Name: s.name, Kind: k, Token: s.story[r.IntN(i)].token, OK: true, Time: s.story[i].unlock + 1})
}

func plantReadersWrite(r *rand.Rand, s *sim, events []Event) []Event {
	h := anyHold(r, s, func(h *simHold) bool { return reads(h.of) })
	if h == nil {
		return nil
	}
	return append(events, Event{Proc: "store", Name: s.name, Kind: KindWrite, Token: h.token, OK: true, Time: h.unlock - 1})
}

func plantToken(r *rand.Rand, s *sim, events []Event) []Event {
	if len(s.story) < 2 {
		return nil
	}
	i := 1 + r.IntN(len(s.story)-1)
	h, before := s.story[i], s.story[r.IntN(i)]
	if h.of.Owner != "" || h.sure() <= h.ok || reads(h.of) && reads(before.of) {
		return nil
	}
	h.find(events, KindGrant).Token = before.token - r.Uint64N(2)
	return events
}

// stretch inserts a time of d after t.
func stretch(events []Event, t, d time.Duration) []Event {
	for i := range events {
		if e := &events[i]; e.Time > t {
			e.Time += d
			if e.Deadline > 0 {
				e.Deadline += d
			}
			if e.Since > t {
				e.Since += d
			}
		}
	}
	return events
}

const aLongTime = 5 * time.Second

func everything(Event) bool { return true }
func writes(e Event) bool   { return !reads(e) }

// at returns the state at t: the number of attempts of a kind that are under
// way for the name of s, and whether one of them has an unknown outcome, a hold
// has not ended, or a fault is active.
func (s *sim) at(events []Event, t time.Duration, kind func(Event) bool) (attempts int, unclear bool) {
	faults := 0
	held := map[uint64]bool{}
	pending := map[uint64]bool{}
	returned := map[uint64]bool{}
	gaveUp, answered := map[uint64]bool{}, map[uint64]bool{} // calls whose Unlock had returned by t, and calls that the server answered after t
	for _, e := range events {
		switch {
		case e.Kind == KindFaultOn && e.Time <= t:
			faults++
		case e.Kind == KindFaultOff && e.Time <= t:
			faults--
		case e.Name != s.name || !kind(e):
		case e.Kind == KindCall && e.Time <= t:
			pending[e.Call] = true
		case e.Kind == KindGrant || e.Kind == KindRefuse || e.Kind == KindFail:
			if returned[e.Call] = e.Class != ClassUnknown && e.Class != ClassClosed; e.Time <= t {
				delete(pending, e.Call)
				held[e.Call] = e.Kind == KindGrant
			}
		case (e.Kind == KindLose || e.Kind == KindReleased || e.Kind == KindNotReleased) && e.Time <= t:
			delete(held, e.Call)
			gaveUp[e.Call] = true
		case e.Kind == KindAnswer && e.Time > t:
			answered[e.Call] = true
		}
	}
	for call := range gaveUp {
		unclear = unclear || answered[call]
	}
	for call := range pending {
		unclear = unclear || !returned[call]
	}
	for _, h := range held {
		unclear = unclear || h
	}
	return len(pending), unclear || faults > 0
}

func plantLostWakeup(r *rand.Rand, s *sim, events []Event) []Event {
	for _, i := range r.Perm(max(len(s.story)-1, 0)) {
		h, next := s.story[i], s.story[i+1]
		if _, unclear := s.at(events, h.gone, everything); !unclear && h.sure() > h.ok && next.n == h.n+1 && next.call < h.gone && h.gone < next.ok {
			return stretch(events, h.gone, aLongTime)
		}
	}
	return nil
}

// plantLoneReader makes a Read wait for a long time, although other clients
// only read the name and nothing prevents the grant.
func plantLoneReader(r *rand.Rand, s *sim, events []Event) []Event {
	h := anyHold(r, s, func(h *simHold) bool {
		n, unclear := s.at(events, h.ok+1, writes)
		return reads(h.of) && h.sure() > h.ok+2 && n == 0 && !unclear
	})
	if h == nil {
		return nil
	}
	events = stretch(events, h.ok+1, aLongTime)
	call := s.stranger(Event{Kind: KindCall, Time: h.ok})
	call.Mode = driver.Read
	late := call
	late.Kind, late.Class, late.Time = KindFail, ClassCanceled, h.ok+aLongTime-ms
	return append(events, call, late)
}

func plantRefusal(r *rand.Rand, s *sim, events []Event) []Event {
	h := anyHold(r, s, func(h *simHold) bool {
		n, unclear := s.at(events, h.gone, everything)
		return n == 0 && !unclear && h.sure() > h.ok && !slices.ContainsFunc(events, func(e Event) bool { // no client has it already
			return e.Name == s.name && e.Kind == KindGrant && e.Time > h.unlock && e.Time <= h.gone
		})
	})
	if h == nil {
		return nil
	}
	events = stretch(events, h.gone, aLongTime)
	call := s.stranger(Event{Kind: KindCall, Time: h.gone + aLongTime/2})
	call.NoWait = true
	refuse := call
	refuse.Kind, refuse.Class = KindRefuse, ClassLocked
	return append(events, call, refuse)
}

func plantDoubleRelease(r *rand.Rand, s *sim, events []Event) []Event {
	if len(s.story) == 0 {
		return nil
	}
	again := *s.story[r.IntN(len(s.story))].find(events, KindReleased)
	again.Time += 1
	return append(events, again)
}

func plantRevival(r *rand.Rand, s *sim, events []Event) []Event {
	if len(s.story) == 0 {
		return nil
	}
	h := s.story[r.IntN(len(s.story))]
	check := *h.find(events, KindRelease)
	check.Kind, check.Time = KindCheck, h.gone+1
	return append(events, check)
}

// accompanied reports whether the client of h holds another Read of the name.
func (h *simHold) accompanied(events []Event) bool {
	return slices.ContainsFunc(events, func(e Event) bool {
		return reads(e) && e.Name == h.of.Name && e.Client == h.of.Client && e.Call != h.of.Call
	})
}

func plantOvertaking(r *rand.Rand, s *sim, events []Event) []Event {
	for _, i := range r.Perm(max(len(s.story)-1, 0)) {
		first, h := s.story[i], s.story[i+1]
		if !h.waited || h.sure() <= h.ok || first.call < 2*ms || reads(first.of) && (reads(h.of) || first.accompanied(events)) {
			continue
		}
		faults := slices.ContainsFunc(events, func(e Event) bool {
			return e.Kind == KindFaultOn && e.Time <= h.ok || e.Kind == KindFaultOff && e.Time >= first.call-2*ms
		})
		if !faults {
			h.find(events, KindCall).Time = first.call - 2*ms
			h.find(events, KindWait).Time = first.call - 1
			return events
		}
	}
	return nil
}
