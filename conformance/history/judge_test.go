package history

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

const ms = time.Millisecond

// parseStory makes a history of lines such as
//
//	0 p2/a call; 10 p2/a ok tok=3 dl=50
//
// Each event has the time in milliseconds, the process (default p) and attempt,
// the kind of event (without acq.), and fields. The client of an attempt is its
// letter. Every process is closed after the last event, unless a fault kills
// it.
func parseStory(t testing.TB, story string) []Event {
	t.Helper()
	var events []Event
	calls := map[string]Event{}
	seq := map[string]uint64{}
	killed := map[string]bool{}
	var last time.Duration
	add := func(e Event) {
		seq[e.Proc]++
		e.Seq = seq[e.Proc]
		events = append(events, e)
	}
	for part := range strings.SplitSeq(story, ";") {
		f := strings.Fields(part)
		if len(f) == 0 {
			continue
		}
		proc, id, found := strings.Cut(f[1], "/")
		if !found {
			proc, id = "p", f[1]
		}
		e, known := calls[f[1]]
		if !known {
			e = Event{Proc: proc, Call: uint64(len(calls) + 1), Client: id, Name: "L"}
		}
		if e.Kind = Kind(f[2]); !slices.Contains(kinds, e.Kind) {
			e.Kind = "acq." + e.Kind
		}
		e.Time = parseMS(t, f[0])
		for _, field := range f[3:] {
			setField(t, &e, field)
		}
		if !known {
			calls[f[1]] = Event{Proc: e.Proc, Call: e.Call, Client: e.Client, Owner: e.Owner, Name: e.Name, NoWait: e.NoWait, Mode: e.Mode, Class: e.Class, Text: e.Text}
		}
		if e.Kind == KindFaultOn && e.Class == FaultKill {
			killed[e.Text] = true
		}
		last = e.Time
		add(e)
	}
	for proc := range seq {
		if !killed[proc] {
			add(Event{Proc: proc, Time: last, Kind: KindEnd})
		}
	}
	return merge(events)
}

func parseMS(t testing.TB, s string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("time %q of a story: %v", s, err)
	}
	return time.Duration(n) * ms
}

func setField(t testing.TB, e *Event, field string) {
	t.Helper()
	key, value, _ := strings.Cut(field, "=")
	switch key {
	case "tok":
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		e.Token = n
	case "dl":
		e.Deadline = parseMS(t, value)
	case "since":
		e.Since = parseMS(t, value)
	case "held", "accepted":
		e.OK = true
	case "nowait":
		e.NoWait = true
	case "read":
		e.Mode = driver.Read
	case "write":
		e.Mode = driver.Write
	case "permit":
		e.Mode = driver.Permit
		if _, err := fmt.Sscanf(value, "%d/%d", &e.Permits, &e.Limit); err != nil {
			t.Fatalf("%q of a story: %v", field, err)
		}
	case "limit":
		if e.Class = key; value != "" {
			e.Class, e.Limit = "", int(parseMS(t, value)/ms)
		}
	case "owner":
		e.Owner = value
	case "client":
		e.Client = value
	case "kill":
		e.Class, e.Text = FaultKill, value
	case "freeze":
		e.Class = key
	default:
		e.Class = key
	}
}

// rulesOf returns the rules that were violated, in order, without repetition.
func rulesOf(v *Verdict) []Rule {
	var rules []Rule
	for _, violation := range v.Violations {
		rules = append(rules, violation.Rule)
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

func TestJudgeFindsEveryViolationAndNothingElse(t *testing.T) {
	for _, s := range stories {
		t.Run(fmt.Sprintf("%.2s %s", s.rule, s.name), func(t *testing.T) {
			v := Judge(parseStory(t, s.illegal), s.bounds)
			if got, want := rulesOf(v), []Rule{s.rule}; !slices.Equal(got, want) {
				t.Errorf("the illegal history violates %q, want %q\n%v", got, want, v.Err())
			}
			if len(v.Invalid) > 0 {
				t.Errorf("the illegal history is discarded: %q", v.Invalid)
			}
			for _, violation := range v.Violations {
				if len(violation.Events) == 0 || !strings.Contains(violation.Excerpt, "\n  > ") && !strings.HasPrefix(violation.Excerpt, "  > ") {
					t.Errorf("a violation does not show its events:\n%v", violation)
				}
			}
			if err := Judge(parseStory(t, s.legal), s.bounds).Err(); err != nil {
				t.Errorf("the legal history is condemned:\n%v", err)
			}
		})
	}
}

// Each story is legal, but for one reason it proves nothing.
var pointless = []struct {
	reason string
	bounds Bounds
	story  string
}{
	{"0 grants before the first fault, want 1", Bounds{MinClients: -1}, `0 a call; 1 a err deadline`},
	{"1 grants before the first fault, want 2", Bounds{MinGrants: 2}, `
		0 a call; 1 a ok dl=9; 2 f fault.on freeze; 3 f fault.off; 8 b call; 9 b ok dl=90; 10 b rel.call held; 11 b rel.ok; 12 a call`},
	{"only 1 clients were granted anything, want 2", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call nowait; 9 b refused locked`},
	{"the outcome of 1 of 3 attempts is unknown", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 c call; 11 c err unknown`},
	{"the outcome of 1 of 3 attempts is unknown", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 c call`},
	{"no grant after the fault that ended at 0.013000", Bounds{}, `
		0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 12 f fault.on freeze; 13 f fault.off`},
	{"no grant after the fault that ended at 0.013000", Bounds{Recover: 5 * ms}, `
		0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=10; 12 f fault.on freeze; 13 f fault.off; 18 g fault.on freeze; 19 g fault.off;
		20 c call; 21 c ok dl=90`},
	{"the last fault did not end", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 12 f fault.on freeze`},
	{"the last fault did not end", Bounds{FIFO: true, Wake: ms, Stuck: 20 * ms, Linger: ms}, `
		0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 12 f fault.on freeze; 13 c call; 13 c wait; 14 d call; 20 b rel.call held; 21 b rel.ok;
		28 d ok dl=90; 29 d rel.call held; 30 d rel.ok; 40 c ok dl=90; 41 c rel.call held; 42 c rel.ok; 90 g call nowait; 91 g refused locked`},
	{"event out of place", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 b ok dl=90`},
	{"event out of place", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 b rel.err notheld`},
	{"event out of place", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 c valid`},
	{"event out of place", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 c call nowait; 11 c refused locked; 12 c valid`},
	{"event out of place", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 b call`},
	{"event out of place", Bounds{}, `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=90; 10 f fault.off`},
}

func TestJudgeDiscardsRunsThatProveNothing(t *testing.T) {
	for _, p := range pointless {
		v := Judge(parseStory(t, p.story), p.bounds)
		if len(v.Violations) > 0 {
			t.Errorf("%s: the history is condemned:\n%v", p.reason, v.Err())
		}
		if !slices.ContainsFunc(v.Invalid, func(s string) bool { return strings.HasPrefix(s, p.reason) }) || v.Err() == nil {
			t.Errorf("discarded because of %q, want %q", v.Invalid, p.reason)
		}
	}
	if v := Judge(nil, Bounds{}); v.Err() == nil {
		t.Error("an empty history is a good run")
	}
	open := slices.DeleteFunc(parseStory(t, stories[0].legal), func(e Event) bool { return e.Kind == KindEnd })
	if got, want := Judge(open, Bounds{}).Invalid, "was not killed by a recorded fault"; len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("a process that was not closed: discarded because of %q, want %q", got, want)
	}
	together := `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=10; 12 f fault.on freeze; 13 g fault.on freeze; 14 f fault.off; 14 h fault.on freeze;
		15 g fault.off; 16 h fault.off; 16 k fault.on freeze; 17 k fault.off; 20 c call; 21 c ok dl=90`
	if err := Judge(parseStory(t, together), Bounds{}).Err(); err != nil {
		t.Errorf("a grant was expected between adjacent faults: %v", err)
	}
	short := `0 a call; 1 a ok dl=9; 8 b call; 9 b ok dl=10; 12 f fault.on freeze; 13 f fault.off; 17 g fault.on freeze; 19 g fault.off;
		20 c call; 21 c ok dl=90`
	if err := Judge(parseStory(t, short), Bounds{Recover: 5 * ms}).Err(); err != nil {
		t.Errorf("a grant was expected between two faults that leave no time to recover: %v", err)
	}
}

func TestVerdictCounts(t *testing.T) {
	v := Judge(parseStory(t, `
		0 a call; 1 a ok tok=5 dl=50; 2 b call; 3 c call nowait; 4 c refused locked; 5 d call; 6 d err unknown; 50 a lost notheld;
		51 b ok tok=6 dl=90; 52 s cs.write tok=6 accepted; 53 s cs.write tok=5; 54 s cs.write tok=5 accepted;
		55 f fault.on freeze; 56 f fault.off; 57 b rel.call held; 58 b rel.ok; 57 e call; 61 e ok tok=9 dl=99`), Bounds{MaxUnknown: 0.2, Linger: 10 * ms})
	if err := v.Err(); err != nil {
		t.Fatal(err)
	}
	want := Verdict{Attempts: 5, Granted: 3, Refused: 1, Unknown: 1, Released: 1, Lost: 1, Claims: 3, Faults: 1, StaleWrites: 2, StaleAccepted: 1,
		LossMargin: Spread{1, ms, ms, ms, ms}, Wake: Spread{1, 3 * ms, 3 * ms, 3 * ms, 3 * ms}}
	if !reflect.DeepEqual(*v, want) {
		t.Errorf("got  %v\nwant %v", v, &want)
	}
}
