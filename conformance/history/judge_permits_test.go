package history

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// permitSim simulates a correct service that grants permits in order of
// arrival, and records what its clients would record. The records of the
// earlier requests determine the outcome of the next request.
type permitSim struct {
	r       *rand.Rand
	events  []Event
	calls   uint64
	limit   int
	called  time.Duration // the last call
	arrived time.Duration // when its request reached the server
	turn    time.Duration // when the last request was granted, or left the queue
	served  []permitTime  // at the server
	story   []*permitHold
	tapped  bool
}

// permitTime is an interval in which permits are held on the server.
type permitTime struct {
	n    int
	gone time.Duration
}

// permitHold contains the data of one regular grant that plants need.
type permitHold struct {
	of               Event
	n                int
	call, ok, unlock time.Duration
	waited, kept     bool
}

// sure returns the time until which the records prove that the server had the
// hold.
func (h *permitHold) sure() time.Duration {
	if h.kept {
		return h.unlock
	}
	return h.unlock - simDetect
}

func (s *permitSim) upTo(d time.Duration) time.Duration {
	return time.Duration(s.r.Int64N(int64(d) + 1))
}
func (s *permitSim) once(in int) bool { return s.r.IntN(in) == 0 }

func (s *permitSim) add(of Event, k Kind, t time.Duration, with func(*Event)) {
	of.Kind, of.Time = k, t
	if with != nil {
		with(&of)
	}
	s.events = append(s.events, of)
}

// fits returns the time from which n permits are free, if no other client is
// granted any.
func (s *permitSim) fits(t time.Duration, n int) time.Duration {
	for {
		used, next := 0, never
		for _, p := range s.served {
			if p.gone > t {
				used, next = used+p.n, min(next, p.gone)
			}
		}
		if used+n <= s.limit {
			return t
		}
		t = next
	}
}

// step adds the next request.
func (s *permitSim) step() {
	s.calls++
	who, n := s.r.IntN(6), 1+s.r.IntN(3)
	of := Event{Proc: fmt.Sprint("p", who%3), Client: fmt.Sprint("c", who), Call: s.calls, Name: "P", Mode: driver.Permit, NoWait: s.once(5)}
	s.called += s.upTo(15 * ms)
	s.arrived = max(s.arrived, s.called+s.upTo(2*ms))
	s.add(of, KindCall, s.called, func(e *Event) {
		if e.Permits = n; !s.once(4) {
			e.Limit = s.limit
		}
	})
	granted := s.fits(max(s.arrived, s.turn), n)
	if of.NoWait && granted > s.arrived {
		s.add(of, KindRefuse, s.arrived+s.upTo(2*ms), class(ClassLocked))
		return
	}
	h := &permitHold{of: of, n: n, call: s.called}
	if wait := s.arrived + s.upTo(2*ms); wait < granted && !s.once(3) {
		h.waited = true
		s.add(of, KindWait, wait, nil)
	}
	switch wait := granted - s.arrived; {
	case wait > ms && s.once(6):
		left := s.arrived + s.upTo(wait)
		s.turn = max(s.turn, left)
		s.add(of, KindFail, left+s.upTo(2*ms), class([]string{ClassDeadline, ClassCanceled}[s.r.IntN(2)]))
	case s.once(12) && !of.NoWait:
		s.turn = granted
		s.served = append(s.served, permitTime{n, granted + s.upTo(simTTL)})
		s.add(of, KindFail, max(s.called, granted-10*ms)+s.upTo(20*ms), class(ClassUnknown))
	default:
		s.turn = granted
		s.hold(h, granted)
	}
}

// hold adds a grant and its end.
func (s *permitSim) hold(h *permitHold, granted time.Duration) {
	h.ok = granted + s.upTo(5*ms)
	deadline := max(h.call, granted-s.upTo(3*ms)) + simTTL - simMargin
	s.add(h.of, KindGrant, h.ok, func(e *Event) { e.Deadline = deadline })
	if s.once(10) { // no client releases it
		s.served = append(s.served, permitTime{h.n, granted + simTTL})
		now := deadline + s.upTo(80*ms)
		s.add(h.of, KindLose, now, class(ClassNotHeld))
		s.add(h.of, KindRelease, now, class(ClassNotHeld))
		s.add(h.of, KindNotReleased, now, class(ClassNotHeld))
		return
	}
	h.unlock = h.ok + s.upTo(40*ms)
	s.add(h.of, KindRelease, h.unlock, held(deadline))
	ended := h.unlock + s.upTo(2*ms)
	back := ended + s.upTo(2*ms)
	if s.once(8) { // the answer is lost, and perhaps the request, too
		s.served = append(s.served, permitTime{h.n, []time.Duration{ended, granted + simTTL}[s.r.IntN(2)]})
		s.add(h.of, KindNotReleased, back, class(ClassUnknown))
		return
	}
	s.served = append(s.served, permitTime{h.n, ended})
	if h.kept = s.tapped; h.kept {
		s.add(h.of, KindAnswer, ended, func(e *Event) { e.Since = granted + s.upTo(h.ok-granted) })
	}
	s.add(h.of, KindReleased, back, nil)
	s.story = append(s.story, h)
}

// used returns the number of permits that were certainly held at t.
func (s *permitSim) used(t time.Duration) (n int) {
	for _, h := range s.story {
		if h.ok <= t && t < h.sure() {
			n += h.n
		}
	}
	return n
}

// end returns a time at which no permit is held.
func (s *permitSim) end() time.Duration {
	last := time.Duration(0)
	for _, e := range s.events {
		last = max(last, e.Time)
	}
	return last + simBounds.Linger + time.Second
}

// stranger returns an event of a planted attempt.
func (s *permitSim) stranger(k Kind, t time.Duration, n int) Event {
	e := Event{Proc: "planted", Client: "planted", Call: s.calls + 1, Name: "P", Mode: driver.Permit, Kind: k, Time: t}
	if k == KindCall {
		e.Permits, e.Limit = n, s.limit
	}
	return e
}

// A permitPlant makes a history of permits illegal or returns nil if it does
// not fit into the history.
type permitPlant struct {
	name  string
	rules []Rule // one of these is violated then
	in    func(s *permitSim, events []Event) []Event
}

var permitPlants = []permitPlant{
	{"too many permits", []Rule{RuleOverlap, RuleLoss}, func(s *permitSim, events []Event) []Event {
		for _, i := range s.r.Perm(len(s.story)) {
			if h := s.story[i]; h.sure() > h.ok+2 {
				t := h.ok + 1
				grant := s.stranger(KindGrant, t, 0)
				grant.Deadline = t + 50*ms
				return append(events, s.stranger(KindCall, t-1, s.limit-s.used(t)+1), grant)
			}
		}
		return nil
	}},
	{"a token for permits", []Rule{RuleTokens}, func(s *permitSim, events []Event) []Event {
		i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == KindGrant })
		if i >= 0 {
			events[i].Token = 5
		}
		return events
	}},
	{"a waiter that is not woken", []Rule{RuleWake}, func(s *permitSim, events []Event) []Event {
		t := s.end()
		fail := s.stranger(KindFail, t+aLongTime, 0)
		fail.Class = ClassCanceled
		return append(events, s.stranger(KindCall, t, s.limit), fail)
	}},
	{"a refusal for no reason", []Rule{RuleStuck}, func(s *permitSim, events []Event) []Event {
		t := s.end()
		call, refuse := s.stranger(KindCall, t, s.limit), s.stranger(KindRefuse, t+ms, 0)
		call.NoWait, refuse.NoWait, refuse.Class = true, true, ClassLocked
		return append(events, call, refuse)
	}},
	{"a limit that is not wrong", []Rule{RuleResult}, func(s *permitSim, events []Event) []Event {
		fail := s.stranger(KindFail, 2*ms, 0)
		fail.Class = ClassLimit
		return append(events, s.stranger(KindCall, ms, 1), fail)
	}},
	{"overtaking", []Rule{RuleOrder}, func(s *permitSim, events []Event) []Event {
		for _, i := range s.r.Perm(len(s.story)) {
			for _, b := range s.story {
				a := s.story[i]
				if !a.waited || a.of.NoWait || b.of.NoWait || b.call < 2*ms || b.ok >= a.ok || a.sure() <= a.ok || b.sure() <= b.ok || s.used(b.ok)+a.n <= s.limit {
					continue
				}
				for j, e := range events {
					switch {
					case e.Call == a.of.Call && e.Kind == KindCall:
						events[j].Time = b.call - 2*ms
					case e.Call == a.of.Call && e.Kind == KindWait:
						events[j].Time = b.call - 1
					}
				}
				return events
			}
		}
		return nil
	}},
}

func TestJudgeOfRandomPermits(t *testing.T) {
	total := *histories
	if testing.Short() {
		total /= 20
	}
	planted := map[string]int{}
	for seed := range uint64(total) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := &permitSim{r: r, limit: 3 + r.IntN(3), called: 10 * ms, tapped: r.IntN(3) > 0, calls: 1}
		set := Event{Proc: "p0", Call: 1, Name: "P", Limit: s.limit}
		s.add(set, KindSetLimit, 0, nil)
		s.add(set, KindLimitSet, 1, nil)
		for range 5 + r.IntN(40) {
			s.step()
		}
		if v := judgeRandom(t, seed, s.events, true); len(v.Violations) > 0 {
			t.Fatalf("seed %d: a legal history is condemned:\n%v", seed, v.Err())
		}
		p := permitPlants[r.IntN(len(permitPlants))]
		illegal := p.in(s, slices.Clone(s.events))
		if illegal == nil {
			continue
		}
		planted[p.name]++
		v := judgeRandom(t, seed, illegal, true)
		if !slices.ContainsFunc(p.rules, func(r Rule) bool { return slices.Contains(rulesOf(v), r) }) {
			t.Fatalf("seed %d: %s was not found, only %q\n%v", seed, p.name, rulesOf(v), v.Err())
		}
	}
	t.Logf("planted: %v", planted)
	if got := len(slices.Collect(maps.Keys(planted))); got != len(permitPlants) {
		t.Errorf("%d of %d plants fit into a history", got, len(permitPlants))
	}
}

func TestSettingLimit(t *testing.T) {
	h := New()
	h.SettingLimit("P", 3)(nil)
	h.SettingLimit("P", 4)(driver.ErrUnknown)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range h.Events() {
		if e.Name != "" {
			got = append(got, fmt.Sprintf("%s %s %d %s", e.Kind, e.Name, e.Limit, e.Class))
		}
	}
	want := []string{"limit.call P 3 ", "limit.back P 3 ", "limit.call P 4 ", "limit.back P 4 unknown"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
