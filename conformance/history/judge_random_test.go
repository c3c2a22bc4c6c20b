package history

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

var (
	histories    = flag.Int("histories", 5_000, "number of random histories to judge; the slow twin judges at most 5,000 of them")
	firstHistory = flag.Uint64("first", 0, "seed of the first random history")
)

// The service that produces the random histories.
const (
	simTTL    = 100 * ms
	simMargin = 2 * ms
	simDetect = 15 * ms
)

var simBounds = Bounds{
	Fenced: true, FIFO: true, StoreFences: true,
	Detect: simDetect, Linger: simTTL + 60*ms, Wake: 30 * ms, Stuck: 2 * time.Second, Recover: 50 * ms,
}

// sim simulates a correct lock service and records what its clients would
// record. Like the server, it generates the grants of a name one after the
// other. To each grant it adds the clients' view, with network delays.
type sim struct {
	r      *rand.Rand
	name   string
	events []Event
	calls  *uint64
	free   time.Duration // when the server can grant the name again
	unread time.Duration // the time from which only readers hold it
	shared bool          // readers use it, too
	read   bool          // the last grant was for Read
	token  uint64
	asks   int
	asked  time.Duration // the call of the last granted attempt; calls are granted in order, because the lock is FIFO
	story  []*simHold
	tapped bool // the answers of the server to releases are recorded
	// beside, unless nil, adds the further use of a removed hold after the next
	// grant, while the hold's client has not been notified
	beside func(next *simHold)
}

// simHold contains the data of one regular grant that plants need.
type simHold struct {
	of                           Event // the common fields of its events
	call, wait, ok, unlock, gone time.Duration
	deadline                     time.Duration
	token                        uint64
	since                        time.Duration // when the driver was granted it
	waited                       bool
	kept                         bool // the server reported at the release that the hold still existed
	n                            int  // the number of earlier calls
}

// sure returns the time until which the records prove that the server had the
// hold.
func (h *simHold) sure() time.Duration {
	if h.kept {
		return h.unlock
	}
	return h.unlock - simDetect
}

// upTo returns a duration from 0 to d.
func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.r.Int64N(int64(d) + 1)) }

func (s *sim) once(in int) bool { return s.r.IntN(in) == 0 }

func (s *sim) who() Event {
	*s.calls++
	n := s.r.IntN(6)
	return Event{Proc: [...]string{"p0", "p1", "p2"}[n%3], Client: [...]string{"c0", "c1", "c2", "c3", "c4", "c5"}[n], Call: *s.calls, Name: s.name,
		Mode: s.mode()}
}

// mode returns the mode of an attempt.
func (s *sim) mode() driver.Mode {
	if !s.shared {
		return driver.Exclusive
	}
	return [...]driver.Mode{driver.Read, driver.Read, driver.Read, driver.Write, driver.Exclusive}[s.r.IntN(5)]
}

func reads(e Event) bool { return e.Mode == driver.Read }

// ends makes the server forget a hold at t.
func (s *sim) ends(of Event, t time.Duration) {
	s.free = max(s.free, t)
	if !reads(of) {
		s.unread = s.free
	}
}

func (s *sim) add(of Event, k Kind, t time.Duration, with func(e *Event)) {
	of.Kind, of.Time = k, t
	if with != nil {
		with(&of)
	}
	s.events = append(s.events, of)
}

func class(c string) func(*Event) { return func(e *Event) { e.Class = c } }

func held(deadline time.Duration) func(*Event) {
	return func(e *Event) { e.OK, e.Deadline = true, deadline }
}

func (s *sim) fault(kind, target string, from, to time.Duration) {
	*s.calls++
	of := Event{Proc: "faults", Call: *s.calls, Class: kind, Text: target}
	s.add(of, KindFaultOn, from, nil)
	s.add(of, KindFaultOff, to, nil)
}

// ask adds the call for the next grant and returns when the server grants it.
func (s *sim) ask(of Event) (h *simHold, granted time.Duration) {
	s.asks++
	h = &simHold{of: of, n: s.asks}
	free := s.free
	if reads(of) {
		free = s.unread + s.upTo(s.free-s.unread)
	}
	h.call = max(s.asked, free-40*ms+s.upTo(45*ms))
	s.asked = h.call
	if granted = max(s.free, h.call) + s.upTo(10*ms); reads(of) {
		granted = max(s.unread, h.call) + s.upTo(10*ms)
	}
	s.add(of, KindCall, h.call, nil)
	if h.wait = h.call + s.upTo(5*ms); h.wait < granted && !s.once(3) {
		h.waited = true
		s.add(of, KindWait, h.wait, nil)
	}
	if !reads(of) || !s.read || s.once(2) {
		s.token += 1 + s.r.Uint64N(3)
	}
	h.token, s.read = s.token, reads(of)
	return h, granted
}

// grant adds the grant that returns at t, with the deadline that the client
// computes for a grant that the server made at granted.
func (s *sim) grant(h *simHold, granted, t time.Duration) {
	h.since, h.ok, h.deadline = granted+s.upTo(t-granted), t, max(h.call, granted-s.upTo(3*ms))+simTTL-simMargin
	s.add(h.of, KindGrant, t, func(e *Event) { e.Token, e.Deadline = h.token, h.deadline })
	if beside := s.beside; beside != nil {
		s.beside = nil
		beside(h)
	}
}

// use adds a hold that ends with Unlock, perhaps after renewals, with
// re-entries and with attempts of others in the meantime.
func (s *sim) use() {
	of := s.who()
	if s.once(3) {
		of.Owner = fmt.Sprint("o", of.Call)
	}
	h, granted := s.ask(of)
	now := granted + s.upTo(5*ms)
	s.grant(h, granted, now)
	renewed := granted
	for s.once(2) {
		now += s.upTo(25 * ms)
		if s.once(2) || h.deadline-now < 50*ms {
			renewed = now + s.upTo(2*ms)
			now = renewed + s.upTo(2*ms)
			h.deadline = renewed - s.upTo(2*ms) + simTTL - simMargin
		}
		if !s.once(3) {
			s.add(of, KindCheck, now, held(h.deadline))
		}
		if of.Owner != "" {
			now = s.reenter(h, now)
		}
		s.others(of, now)
	}
	if reads(of) && s.once(2) {
		now = s.join(h, now)
	}
	for now += s.upTo(10 * ms); !reads(of) && s.once(4) && now+40*ms < h.deadline; now += s.upTo(15 * ms) {
		h.unlock, h.gone = now, now
		s.write(h)
		s.story = append(s.story, h)
		s.token++
		h = s.handOn(h, h.call, now, s.token)
	}
	h.unlock = now
	s.write(h)
	s.add(h.of, KindRelease, now, held(h.deadline))
	ended := now + s.upTo(2*ms)
	h.gone = ended + s.upTo(2*ms)
	if !s.once(8) {
		s.ends(h.of, ended)
		h.kept = s.tapped
		s.answer(h, ended, nil)
		s.add(h.of, KindReleased, h.gone, nil)
		s.story = append(s.story, h)
		return
	}
	// The answer is lost, and perhaps the request, too. After Unlock returns,
	// the driver may still get an answer to a second request.
	s.add(h.of, KindNotReleased, h.gone, class(ClassUnknown))
	switch s.r.IntN(3) {
	case 0:
		s.answer(h, h.gone, class(ClassUnknown))
		ended = renewed + simTTL
	case 1:
		s.answer(h, ended+s.upTo(10*ms), nil)
	}
	s.ends(h.of, ended)
}

func (s *sim) write(h *simHold) {
	k := KindWrite
	if reads(h.of) {
		k = KindRead
	}
	s.add(Event{Proc: "store", Name: s.name, Token: h.token, OK: true}, k, h.unlock, nil)
}

// join adds a Read of the same client for which no request is sent to the
// server, and returns its end.
func (s *sim) join(first *simHold, now time.Duration) time.Duration {
	of := first.of
	*s.calls++
	of.Call, of.Owner = *s.calls, ""
	s.add(of, KindCall, max(first.call, now-s.upTo(5*ms)), nil)
	s.add(of, KindGrant, now, func(e *Event) { e.Token, e.Deadline = first.token, first.deadline })
	now += s.upTo(5 * ms)
	s.add(of, KindRelease, now, held(first.deadline))
	s.add(of, KindReleased, now, nil)
	return now
}

// answer adds the result of the driver's Release.
func (s *sim) answer(h *simHold, t time.Duration, with func(*Event)) {
	if s.tapped {
		s.add(h.of, KindAnswer, t, func(e *Event) {
			if e.Since = h.since; with != nil {
				with(e)
			}
		})
	}
}

func (s *sim) reenter(outer *simHold, now time.Duration) time.Duration {
	of := outer.of
	*s.calls++
	of.Call = *s.calls
	if s.shared && s.once(2) {
		of.Mode = driver.Read
	}
	s.add(of, KindCall, now, nil)
	now += s.upTo(ms)
	s.add(of, KindGrant, now, func(e *Event) { e.Token, e.Deadline = outer.token, outer.deadline })
	now += s.upTo(ms)
	s.add(of, KindRelease, now, held(outer.deadline))
	s.add(of, KindReleased, now, nil)
	return now
}

// others adds attempts that are not granted the lock because holder holds it at
// that time.
func (s *sim) others(holder Event, now time.Duration) {
	of := s.who()
	if reads(holder) && reads(of) {
		of.Mode = driver.Write
	}
	before, after := now-s.upTo(20*ms), now+s.upTo(ms)
	switch s.r.IntN(3) {
	case 0:
		of.NoWait = true
		s.add(of, KindCall, before, nil)
		s.add(of, KindRefuse, after, class(ClassLocked))
	case 1:
		s.add(of, KindCall, before, nil)
		s.add(of, KindFail, after, class([]string{ClassDeadline, ClassCanceled, ClassDeadlock, ClassUnavailable}[s.r.IntN(4)]))
	}
}

// runOut adds a hold that its client does not end in time, because the client
// is frozen while it holds the lock, or before the call returns.
func (s *sim) runOut() {
	of := s.who()
	h, granted := s.ask(of)
	s.ends(of, granted+simTTL)
	if s.once(2) {
		s.grant(h, granted, granted+s.upTo(5*ms))
		now := h.deadline + s.upTo(80*ms)
		s.add(of, KindLose, now, class(ClassNotHeld))
		s.add(of, KindRelease, now, class(ClassNotHeld))
		s.add(of, KindNotReleased, now, class(ClassNotHeld))
		return
	}
	back := granted + s.upTo(200*ms)
	s.fault("freeze", of.Client, granted-ms, back+ms)
	s.grant(h, granted, back)
	s.add(of, KindRelease, max(back, h.deadline), class(ClassNotHeld))
	s.add(of, KindNotReleased, max(back, h.deadline), class(ClassNotHeld))
}

// remove adds a hold that an administrator ends. Until its holder is notified,
// it may go on for a while, and even release the hold or pass it on to other
// waiters of its client.
func (s *sim) remove() {
	of := s.who()
	h, granted := s.ask(of)
	s.grant(h, granted, granted+s.upTo(5*ms))
	removed := granted + s.upTo(50*ms)
	s.ends(of, removed)
	told := max(h.ok, removed) + s.upTo(simDetect-5*ms)
	now := h.ok
	for ; now < told && s.once(2); now += s.upTo(10 * ms) {
		s.add(of, KindCheck, now, held(h.deadline))
		if !reads(of) && s.once(2) {
			s.token++
			h = s.handOn(h, h.call, now, s.token)
			of = h.of
		}
	}
	if reads(of) || now >= told || s.once(2) {
		s.endRemoved(h, now, told)
		return
	}
	s.fault("removal", of.Client, removed-ms, told) // afterwards the order of waiters is not promised
	s.token++
	token := s.token // for another attempt of the client, which begins after the next grant
	s.beside = func(next *simHold) {
		if called := max(now, next.ok+1); called < told && next.of.Client != of.Client { // a client requests a name that it holds only when that hold has ended
			now = called + s.upTo(told-called)
			h = s.handOn(h, called, now, token)
		}
		s.endRemoved(h, now, told)
	}
}

// endRemoved adds the end of h, which another client has removed. The holder is
// notified at the time told.
func (s *sim) endRemoved(h *simHold, now, told time.Duration) {
	of := h.of
	if now < told && s.once(2) {
		c := class([]string{ClassRemoved, ClassUnknown}[s.r.IntN(2)])
		s.add(of, KindRelease, now, held(h.deadline))
		s.answer(h, now+s.upTo(ms), c)
		s.add(of, KindNotReleased, now+ms, c)
		return
	}
	if !s.once(3) {
		s.add(of, KindLose, told, class(ClassRemoved))
	}
	now = told + s.upTo(10*ms)
	s.add(of, KindRelease, now, class(ClassRemoved))
	s.add(of, KindNotReleased, now+ms, class(ClassRemoved))
}

// handOn ends h in favor of another attempt of the client, which began at
// called. No request is sent to the server.
func (s *sim) handOn(h *simHold, called, now time.Duration, token uint64) *simHold {
	s.add(h.of, KindRelease, now, held(h.deadline))
	s.add(h.of, KindReleased, now, nil)
	next := *h
	*s.calls++
	next.of.Call, next.of.Owner, next.token, next.ok, next.waited = *s.calls, "", token, now, false
	s.add(next.of, KindCall, called, nil)
	s.add(next.of, KindGrant, now, func(e *Event) { e.Token, e.Deadline = token, h.deadline })
	return &next
}

// doubt adds an attempt with an unknown outcome, which may hold the lock for a
// while.
func (s *sim) doubt() {
	of := s.who()
	h, granted := s.ask(of)
	s.add(of, KindFail, max(h.call, granted-10*ms)+s.upTo(20*ms), class([]string{ClassUnknown, ClassClosed}[s.r.IntN(2)]))
	if s.once(2) {
		s.ends(of, granted+s.upTo(simTTL))
	}
}

// kill adds a process that is killed, either before its attempt returns or
// while it holds the lock.
func (s *sim) kill() {
	of := s.who()
	of.Proc = fmt.Sprintf("killed%d", of.Call)
	h, granted := s.ask(of)
	if s.once(2) {
		s.grant(h, granted, granted+s.upTo(5*ms))
	}
	at := max(granted+5*ms, h.call) + s.upTo(20*ms)
	s.fault(FaultKill, of.Proc, at-ms, at+s.upTo(5*ms))
	if s.once(2) { // its session ended with it
		s.ends(of, max(at, granted))
		return
	}
	s.ends(of, granted+simTTL)
}

// randomHistory returns a legal history.
func randomHistory(r *rand.Rand) ([]Event, []*sim) {
	var calls uint64
	var sims []*sim
	tapped := r.IntN(3) > 0
	for n := range 1 + r.IntN(3) {
		s := &sim{r: r, name: fmt.Sprint("L", n), calls: &calls, asked: 10 * ms, tapped: tapped, shared: r.IntN(2) == 0, events: make([]Event, 0, 200)}
		odd := []func(){s.runOut, s.remove, s.doubt, s.kill}[:r.IntN(5)]
		for range 3 + r.IntN(20) {
			if len(odd) > 0 && s.once(4) {
				odd[r.IntN(len(odd))]()
			} else {
				s.use()
			}
		}
		if s.beside != nil {
			s.beside(&simHold{ok: never - 1})
		}
		sims = append(sims, s)
	}
	var events []Event
	for _, s := range sims {
		events = append(events, s.events...)
	}
	return events, sims
}

// finish closes the processes that were not killed, sorts the events and
// numbers them.
func finish(events []Event) []Event {
	procs, killed, last := map[string]uint64{}, map[string]bool{}, time.Duration(0)
	for _, e := range events {
		procs[e.Proc], last = 0, max(last, e.Time)
		if e.Kind == KindFaultOn && e.Class == FaultKill {
			killed[e.Text] = true
		}
	}
	for proc := range procs {
		if !killed[proc] {
			events = append(events, Event{Proc: proc, Time: last, Kind: KindEnd})
		}
	}
	order := make([]*Event, len(events)) // events are large
	for i := range events {
		order[i] = &events[i]
	}
	slices.SortStableFunc(order, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Proc, b.Proc))
	})
	finished := make([]Event, len(events))
	for i, e := range order {
		procs[e.Proc]++
		finished[i] = *e
		finished[i].Seq = procs[e.Proc]
	}
	return finished
}

func TestJudgeOfRandomHistories(t *testing.T) {
	total := *histories
	if testing.Short() {
		total /= 20
	}
	planted := map[string]int{}
	for n := range uint64(total) {
		seed, compare := *firstHistory+n, n%uint64(1+total/5_001) == 0
		r := rand.New(rand.NewPCG(seed, 1))
		events, sims := randomHistory(r)
		if seed%2 == 1 {
			if p, illegal := plantIn(r, sims, events); p != nil {
				planted[p.name]++
				if v := judgeRandom(t, seed, illegal, compare); !slices.Contains(rulesOf(v), p.rule) {
					t.Fatalf("seed %d: %s was not found, only %q", seed, p.name, rulesOf(v))
				}
			}
		}
		if v := judgeRandom(t, seed, events, compare); len(v.Violations) > 0 {
			t.Fatalf("seed %d: a legal history is condemned:\n%v", seed, v.Err())
		}
	}
	t.Logf("planted: %v", planted)
	for _, p := range plants {
		if planted[p.name] < total/200 {
			t.Errorf("%s was planted %d times, want at least %d", p.name, planted[p.name], total/200)
		}
	}
}

// judgeRandom judges a history and optionally compares the verdict with its
// twin's verdict.
func judgeRandom(t *testing.T, seed uint64, events []Event, compare bool) *Verdict {
	events = finish(events)
	v := Judge(events, simBounds)
	if slices.ContainsFunc(v.Invalid, func(s string) bool { return s[0] == 'e' || s[0] == 'p' }) { // out of place, not closed
		t.Fatalf("seed %d: %q", seed, v.Invalid)
	}
	if !compare {
		return v
	}
	if got, want := counts(v), newTwin(events, simBounds).violations(); !maps.Equal(got, want) {
		t.Fatalf("seed %d: the judge finds %v, its twin %v\n%v", seed, got, want, v.Err())
	}
	return v
}

// counts returns the number of violations that Judge found, for the rules that
// the twin knows. Judge distinguishes overlaps from late losses; the twin does
// not.
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

// plantIn makes a legal history illegal and returns it with the plant that did
// so. The plant is nil if no plant fits into the history.
func plantIn(r *rand.Rand, sims []*sim, events []Event) (*plant, []Event) {
	for range 50 {
		p := &plants[r.IntN(len(plants))]
		if changed := p.in(r, sims[r.IntN(len(sims))], slices.Clone(events)); changed != nil {
			return p, changed
		}
	}
	return nil, nil
}

func BenchmarkJudgeMillionHolds(b *testing.B) {
	events := millionHolds()
	b.ResetTimer()
	for b.Loop() {
		if v := Judge(events, simBounds); v.Err() != nil || v.Claims != 1_000_000 {
			b.Fatal(v, v.Err())
		}
	}
}

// millionHolds returns a history of four processes and a hundred locks.
func millionHolds() []Event {
	var events []Event
	seq := map[string]uint64{}
	add := func(e Event, k Kind, t time.Duration) {
		seq[e.Proc]++
		e.Kind, e.Time, e.Seq = k, t, seq[e.Proc]
		events = append(events, e)
	}
	for i := range 1_000_000 {
		proc := fmt.Sprintf("p%d", i%4)
		now := time.Duration(i) * 10 * time.Microsecond
		e := Event{Proc: proc, Client: proc, Name: fmt.Sprintf("L%d", i/4%100), Call: uint64(i + 1)}
		add(e, KindCall, now)
		e.Token, e.Deadline = uint64(i+1), now+time.Second
		add(e, KindGrant, now+time.Microsecond)
		e.Token, e.OK = 0, true
		add(e, KindRelease, now+8*time.Microsecond)
		e.OK, e.Deadline = false, 0
		add(e, KindReleased, now+9*time.Microsecond)
	}
	for proc := range seq {
		add(Event{Proc: proc}, KindEnd, 11*time.Second)
	}
	return merge(events)
}
