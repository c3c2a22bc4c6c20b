package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds holds the limits and guarantees that [Judge] checks for a run. With
// the zero value, Judge checks only the guarantees of every backend.
type Bounds struct {
	// Fenced: tokens of a name rise from grant to grant. The token of a Read
	// need not be greater than that of an earlier Read (RuleTokens).
	Fenced bool
	// FIFO: waiters whose modes exclude each other are granted in the order in
	// which they were seen in the queue (RuleOrder), unless a fault intervened.
	FIFO bool
	// StoreFences: the protected resource rejects tokens below the highest
	// token of its writes so far (RuleStale).
	StoreFences bool

	// Detect is how long a holder may continue after another client has removed
	// its hold or ended its session. 0 means that no client does so in this
	// run.
	Detect time.Duration
	// Linger is how long the backend may still keep the hold after the end of a
	// claim, or of an attempt with an unknown outcome. It is at least the TTL
	// plus driver.Info.Late. If it is 0, only a release proves that a name is
	// free.
	Linger time.Duration
	// Wake is how long a lock may stay free while a caller waits for it
	// (RuleWake). 0 means that Judge does not check this.
	Wake time.Duration
	// Stuck is how long an attempt may last without a fault (RuleStuck). 0
	// means that Judge does not check this.
	Stuck time.Duration
	// Recover is how long Judge ignores Wake and Stuck after the end of a
	// fault.
	Recover time.Duration

	// MinGrants is the minimum number of grants before the first fault. With
	// fewer, a run is not worth judging. 0 means 1.
	MinGrants int
	// MinClients is the minimum number of clients with a grant. With fewer, a
	// run is not worth judging. 0 means 2.
	MinClients int
	// MaxUnknown is the maximum share of attempts with an unknown outcome. With
	// more, a run is not worth judging. 0 means 0.2.
	MaxUnknown float64
}

// Rule is a rule that a [Violation] violates. Leaks (V7) do not show in a
// history.
type Rule string

const (
	// RuleOverlap: two owners claimed the same name at the same time, at least
	// one of them in a mode other than Read, or more permits than the limit
	// were claimed. A claim begins when the grant returned. It ends when Unlock
	// is called, when the last
	// known deadline passes, or when the lease reports its loss, whichever
	// comes first. The claim ends Bounds.Detect earlier, unless the backend's
	// answer to the release shows that it had the hold (Answered). Such an
	// answer also covers the time since the backend's grant, in which several
	// leases may have used the hold without a request.
	RuleOverlap Rule = "V1 claimed overlap"
	// RuleStale: the protected resource accepted a token below the token of an
	// earlier write, or a write with the token of a Read.
	RuleStale Rule = "V2 stale access"
	// RuleTokens: the token of a grant was not greater than the token of an
	// earlier grant (unless both were Reads), or a grant of permits had a
	// token. If another client may have removed a hold (Bounds.Detect), a hold
	// that its client may have passed on or re-entered counts as granted when
	// its first holder requested it.
	RuleTokens Rule = "V3 token regression"
	// RuleLoss: an overlap in which the holder that had lost its lock was
	// notified of the loss, but too late.
	RuleLoss Rule = "V4 late loss"
	// RuleWake: a lock stayed free for too long while a caller waited for it.
	// For a Read, a lock is free while no client holds it or waits for it in
	// another mode. For permits, only the request that has waited longest is
	// checked.
	RuleWake Rule = "V5 lost wake-up"
	// RuleStuck: an attempt lasted too long or was refused while no client
	// could have held the lock.
	RuleStuck Rule = "V6 stuck"
	// RuleResult: a call returned what it must not return.
	RuleResult Rule = "V8 illegal result"
	// RuleOrder: a waiter was granted the name after another attempt that began
	// when the waiter had already been seen in the queue.
	RuleOrder Rule = "V9 overtaken in the queue"
)

// A Violation is one violation of a Rule.
type Violation struct {
	Rule   Rule
	Name   string  // of the lock
	Text   string  // what is wrong
	Events []Event // the events that show it
	// the events, marked, among other events of the lock shortly before and
	// after; only for the first violations
	Excerpt string
}

// Verdict is the result of [Judge]. A run is good if Err returns nil.
type Verdict struct {
	Violations []Violation // ordered by rule, and by time within a lock
	// the reasons why the run proves nothing, whether or not there are
	// violations
	Invalid []string

	Attempts, Granted, Refused, Unknown int // Unknown includes attempts that did not return
	// holds that ended by Unlock; holds that were lost or ran out
	Released, Lost             int
	Claims                     int // holds that were compared with each other
	Faults                     int
	StaleWrites, StaleAccepted int // including reads

	LossMargin Spread // time from the notice of a loss to its holder until the next grant
	Wake       Spread // time from a moment when the lock was certainly free until a waiter was granted it
}

// Judge decides whether a history is legal. The events come from
// [History.Events] or [Read].
//
// The history must include every user of the names. Judge compares intervals
// and does not search for an order that explains the history. Its running time
// is proportional to the number of events, even if many outcomes are unknown.
// Judge never raises a false alarm. Where the history does not show what
// happened, Judge assumes that everything was legal.
func Judge(events []Event, b Bounds) *Verdict {
	j := newJudge(events, b)
	j.read()
	for _, l := range j.locks {
		j.claims(l)
		j.exclusion(l)
		j.waits(l)
		if l.takesPermits {
			j.permits(l)
			j.waitsForPermits(l)
		}
	}
	j.writes()
	j.assumptions()
	slices.SortStableFunc(j.v.Violations, func(a, b Violation) int { return cmp.Compare(a.Rule, b.Rule) })
	j.v.LossMargin, j.v.Wake = spread(j.margins), spread(j.wakes)
	for i := range min(len(j.v.Violations), explained) {
		j.v.Violations[i].Excerpt = j.excerpt(&j.v.Violations[i])
	}
	return j.v
}

type judge struct {
	b      Bounds
	events []Event
	v      *Verdict

	procs    map[string]*process
	attempts map[id]*attempt
	byName   map[string]*lock
	locks    []*lock                // in the order of their first attempts
	shared   map[time.Duration]bool // moments at which several processes recorded something
	quiet    []window               // the first one is before all faults

	margins, wakes []time.Duration
}

// id identifies an attempt or a fault.
type id struct {
	proc string
	call uint64
}

// process is the known state of one recording process.
type process struct {
	last   time.Duration // the time of its last sign of life
	ended  bool          // in an orderly way
	killed time.Duration // the time at which a fault killed it; never if unknown
}

// lock is the known state of one name.
type lock struct {
	attempts []*attempt // in the order of their calls
	steps    []*attempt // each at its call, and again at its return
	holds    []*attempt // in the order of their grants, except permits

	takesPermits bool
	permits      []*attempt // the holds of permits, in the order of their grants
	named        []int      // the limits in requests that were granted
	set          []*setLimit
}

const never = time.Duration(1<<63 - 1)

// after returns t + d.
func after(t, d time.Duration) time.Duration {
	if t > never-d {
		return never
	}
	return t + d
}

func newJudge(events []Event, b Bounds) *judge {
	b.MinGrants = max(b.MinGrants, 1)
	if b.MinClients == 0 {
		b.MinClients = 2
	}
	if b.MaxUnknown == 0 {
		b.MaxUnknown = 0.2
	}
	return &judge{b: b, events: events, v: &Verdict{}, procs: map[string]*process{}, attempts: map[id]*attempt{}, byName: map[string]*lock{},
		shared: map[time.Duration]bool{}, quiet: []window{{-never, never}}}
}

func (j *judge) invalid(format string, args ...any) {
	j.v.Invalid = append(j.v.Invalid, fmt.Sprintf(format, args...))
}

// violation adds a violation with the events that show it. Some of the events
// may be nil.
func (j *judge) violation(r Rule, text string, events ...*Event) {
	v := Violation{Rule: r, Text: text}
	for _, e := range events {
		if e != nil {
			v.Name, v.Events = e.Name, append(v.Events, *e)
		}
	}
	slices.SortStableFunc(v.Events, func(a, b Event) int { return cmp.Compare(a.Time, b.Time) })
	j.v.Violations = append(j.v.Violations, v)
}

// Spread describes a number of durations.
type Spread struct {
	N                  int
	Min, P50, P99, Max time.Duration
}

func spread(d []time.Duration) Spread {
	if len(d) == 0 {
		return Spread{}
	}
	slices.Sort(d)
	n := len(d)
	return Spread{N: n, Min: d[0], P50: d[n/2], P99: d[n*99/100], Max: d[n-1]}
}

// assumptions checks that the run proves something, which means that enough
// happened before the first fault and after each fault.
func (j *judge) assumptions() {
	type client struct{ proc, name string }
	clients, grants := map[client]bool{}, map[window]int{}
	for _, l := range j.locks {
		for _, a := range slices.Concat(l.holds, l.permits) {
			clients[client{a.owner.proc, a.owner.client}] = true
			if w, ok := j.quietAround(a.from.t, a.from.t); ok {
				grants[w]++
			}
		}
	}
	if len(clients) < j.b.MinClients {
		j.invalid("only %d clients were granted anything, want %d", len(clients), j.b.MinClients)
	}
	if float64(j.v.Unknown) > j.b.MaxUnknown*float64(j.v.Attempts) {
		j.invalid("the outcome of %d of %d attempts is unknown", j.v.Unknown, j.v.Attempts)
	}
	for label, p := range j.procs {
		if !p.ended && p.killed == never {
			j.invalid("process %q was not killed by a recorded fault, but its history was not closed", label)
		}
	}
	if n := grants[j.quiet[0]]; n < j.b.MinGrants {
		j.invalid("%d grants before the first fault, want %d", n, j.b.MinGrants)
	}
	for _, w := range j.quiet[1:] {
		if (w.to == never || w.to-w.from >= j.b.Recover) && grants[w] == 0 {
			j.invalid("no grant after the fault that ended at %.6f", w.from.Seconds())
		}
	}
	slices.Sort(j.v.Invalid)
}

// writes compares each access to a protected resource with the highest token of
// earlier writes (RuleStale).
func (j *judge) writes() {
	highest := map[string]*Event{}
	readers := j.readers()
	for i := range j.events {
		e := &j.events[i]
		if e.Kind != KindWrite && e.Kind != KindRead {
			continue
		}
		h := highest[e.Name]
		if r := readers[access{e.Name, e.Token}]; r != nil && e.Kind == KindWrite && e.OK && j.b.StoreFences {
			j.violation(RuleStale, "a name was written while it was read", r, e)
		}
		switch {
		case h != nil && h.Token > e.Token:
			j.v.StaleWrites++
			if e.OK {
				j.v.StaleAccepted++
			}
			if e.OK && j.b.StoreFences {
				j.violation(RuleStale, "an access was accepted although its token was stale", h, e)
			}
		case e.OK && e.Kind == KindWrite:
			highest[e.Name] = e
		}
	}
}

// access is an access with a token to the resource that the lock of a name
// protects.
type access struct {
	name  string
	token uint64
}

// readers returns the grants of tokens that were given only to Reads. A Read
// inside a hold in another mode has the token of that hold.
func (j *judge) readers() map[access]*Event {
	reads := map[access]*Event{}
	for _, l := range j.locks {
		for _, a := range l.holds {
			if a.reads() {
				reads[access{a.called.Name, a.returned.Token}] = a.returned
			}
		}
		for _, a := range l.holds {
			if len(reads) > 0 && !a.reads() {
				delete(reads, access{a.called.Name, a.returned.Token})
			}
		}
	}
	return reads
}

const (
	explained = 10 // violations with an excerpt
	around    = 4  // events of the lock before and after each event of a violation
)

// Err returns nil if the run is worth judging and nothing illegal happened.
// Otherwise the text of the error lists the violations and shortcomings.
func (v *Verdict) Err() error {
	var b strings.Builder
	if len(v.Invalid) > 0 {
		fmt.Fprintf(&b, "the run proves nothing: %s\n", strings.Join(v.Invalid[:min(len(v.Invalid), explained)], "; "))
	}
	for i, violation := range v.Violations {
		if i == explained {
			fmt.Fprintf(&b, "and %d more violations\n", len(v.Violations)-i)
			break
		}
		b.WriteString(violation.String())
	}
	if b.Len() == 0 {
		return nil
	}
	return errors.New(strings.TrimSuffix(b.String(), "\n"))
}

// String formats the violation for people, on several lines.
func (v Violation) String() string {
	s := fmt.Sprintf("%s of %q: %s\n", v.Rule, v.Name, v.Text)
	if v.Excerpt != "" {
		return s + v.Excerpt
	}
	for _, e := range v.Events {
		s += fmt.Sprintf("  > %v\n", e)
	}
	return s
}

// String is the summary of a run, on one line.
func (v *Verdict) String() string {
	return fmt.Sprintf("%d attempts: %d granted, %d refused, %d unknown; %d claims compared, %d released, %d lost (margin min %v, p50 %v); "+
		"wake-up p50 %v, p99 %v, max %v; %d faults; %d stale accesses, %d accepted; %d violations, %d reasons to discard the run",
		v.Attempts, v.Granted, v.Refused, v.Unknown, v.Claims, v.Released, v.Lost, v.LossMargin.Min, v.LossMargin.P50,
		v.Wake.P50, v.Wake.P99, v.Wake.Max, v.Faults, v.StaleWrites, v.StaleAccepted, len(v.Violations), len(v.Invalid))
}

// excerpt prints the events of a violation, some earlier and later events of
// the lock, and the faults at that time.
func (j *judge) excerpt(v *Violation) string {
	var story []*Event
	var marked []bool
	for i := range j.events {
		e := &j.events[i]
		if e.Name == v.Name && e.Kind != KindMeta && e.Kind != KindEnd || e.Kind == KindFaultOn || e.Kind == KindFaultOff {
			story = append(story, e)
			marked = append(marked, slices.ContainsFunc(v.Events, func(m Event) bool { return m.Proc == e.Proc && m.Seq == e.Seq }))
		}
	}
	var b strings.Builder
	skipped := 0
	for i, e := range story {
		if !slices.Contains(marked[max(i-around, 0):min(i+around+1, len(story))], true) {
			skipped++
			continue
		}
		if skipped > 0 {
			fmt.Fprintf(&b, "    ... %d more\n", skipped)
			skipped = 0
		}
		sign := ' '
		if marked[i] {
			sign = '>'
		}
		fmt.Fprintf(&b, "  %c %v\n", sign, e)
	}
	return b.String()
}
