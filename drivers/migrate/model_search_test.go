package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// node is a state and the path to it.
type node[S comparable] struct {
	state S
	from  int32
	what  string
}

// The possible errors.
const (
	twoHolders = "two holders"
	fallen     = "a token that is not above all earlier tokens"
	deadlock   = "a deadlock"
	hotLoop    = "a loop without a wait"
)

// system is what a search goes through.
type system[S comparable] struct {
	steps    func(s S, e func(what string, progress bool, next S))
	sorted   func(s S) S      // one representative for all states that differ only in the order of processes
	wrong    func(s S) string // empty means correct
	finished func(s S) bool   // nothing is left to do; nil: deadlocks are not searched for
}

// search visits all reachable states. It returns the error in the first wrong
// state, and the path to that state.
func (y system[S]) search(start S) (states int, wrong string, way []string) {
	start = y.sorted(start)
	nodes := []node[S]{{state: start, from: -1}}
	seen := map[S]struct{}{start: {}}
	for i := 0; i < len(nodes); i++ {
		s := nodes[i].state
		wrong := y.wrong(s)
		progress, looping := false, false
		if wrong == "" {
			y.steps(s, func(what string, by bool, next S) {
				progress = progress || by
				next = y.sorted(next)
				looping = looping || next == s
				if _, ok := seen[next]; !ok {
					seen[next] = struct{}{}
					nodes = append(nodes, node[S]{next, int32(i), what})
				}
			})
			if !progress && y.finished != nil && !y.finished(s) {
				wrong = deadlock
			}
			if looping && y.finished != nil {
				wrong = hotLoop
			}
		}
		if wrong == "" {
			continue
		}
		for j := int32(i); j > 0; j = nodes[j].from {
			way = append([]string{fmt.Sprintf("%-45s %+v", nodes[j].what, nodes[j].state)}, way...)
		}
		return len(nodes), wrong, way
	}
	return len(nodes), "", nil
}

// search only searches for sought, if that is not empty.
func (r rules) search(start model, sought string) (states int, wrong string, way []string) {
	y := system[model]{
		steps:  func(s model, e func(string, bool, model)) { r.steps(s, e) },
		sorted: r.sorted,
		wrong:  func(s model) string { return s.wrong(sought) },
	}
	if sought == "" || sought == deadlock || sought == hotLoop {
		y.finished = r.finished
	}
	return y.search(start)
}

// sorted returns s with the processes in a canonical order, because their
// identity does not matter.
func (r rules) sorted(s model) model {
	order := [processes]int{0, 1, 2}
	slices.SortStableFunc(order[:], func(p, q int) int { return cmp.Compare(s.processes[p].key(), s.processes[q].key()) })
	var renamed [1 + processes*maxAttempts]int8
	before := s.processes
	for at, p := range order {
		s.processes[at] = before[p]
		for attempt := range r.attempts {
			renamed[r.id(p, attempt)] = r.id(at, attempt)
		}
	}
	rename := func(hold *int8) {
		if *hold > 0 {
			*hold = renamed[*hold]
		}
	}
	rename(&s.holder[modelFrom])
	rename(&s.holder[modelTo])
	rename(&s.loose)
	for i := range s.late {
		rename(&s.late[i].hold)
	}
	return s
}

// key differs for processes that differ.
func (p process) key() uint64 {
	key := uint64(0)
	for _, b := range []bool{p.has[modelFrom], p.has[modelTo], p.valid, p.moved} {
		key *= 2
		if b {
			key++
		}
	}
	for _, n := range []int8{p.at, p.attempt, int8(p.kind), p.token, p.floor} {
		key = key<<8 | uint64(uint8(n))
	}
	return key
}

func (s model) wrong(sought string) string {
	holders := 0
	for _, p := range s.processes {
		if p.valid {
			holders++
		}
	}
	switch {
	case holders > 1 && (sought == "" || sought == twoHolders):
		return twoHolders
	case s.fallen && (sought == "" || sought == fallen):
		return fallen
	}
	return ""
}

func (r rules) finished(s model) bool {
	for _, p := range s.processes {
		if p.at != stopped && !(p.at == idle && p.attempt >= r.attempts) {
			return false
		}
	}
	return true
}

// start is a name for which from has granted tokens up to 3. from grants no
// token above floor.
func start(active int, crashes, pauses, losses, floor int8) model {
	s := model{crashes: crashes, pauses: pauses, losses: losses}
	s.count[modelFrom], s.granted, s.count[modelTo] = 3, 3, floor
	for p := active; p < processes; p++ {
		s.processes[p].at = stopped
	}
	return s
}

// afterTheMove returns s with the name sealed and marked.
func (s model) afterTheMove() model {
	s.holder[modelFrom], s.sealed, s.marked = sealHold, s.count[modelFrom], true
	s.count[modelTo] = max(s.count[modelTo], s.count[modelFrom]) + 1
	s.granted = s.count[modelTo]
	return s
}

// urlFloor is the floor of the tokens in the URL of to, above all tokens that
// from grants in the model.
const urlFloor = 20

var (
	inTheMiddle = []kind{legacy, dual, handover, alone}
	withBack    = []kind{rollback, legacy, dual, handover, alone}
	untilTheEnd = []kind{legacy, dual, alone, plain}
)

func TestModelKeepsItsPromises(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what                    string
		active                  int
		attempts                int8
		crashes, pauses, losses int8
		kinds                   []kind
		moved, ends             bool
	}{
		{what: "faults", active: 2, attempts: 1, crashes: 2, pauses: 3, losses: 3, kinds: inTheMiddle},
		{what: "attempts", active: 2, attempts: 3, pauses: 1, kinds: inTheMiddle},
		{what: "roll-back", active: 3, attempts: 1, crashes: 1, pauses: 1, losses: 1, kinds: withBack},
		{what: "roll-back of a name that has moved", active: 3, attempts: 1, crashes: 1, pauses: 1, losses: 1, kinds: withBack, moved: true},
		{what: "roll-backs", active: 3, attempts: 2, kinds: withBack},
		{what: "roll-backs and a crash", active: 2, attempts: 2, crashes: 1, losses: 1, kinds: withBack},
		{what: "roll-backs and a pause", active: 2, attempts: 2, pauses: 1, losses: 1, kinds: withBack},
		{what: "the end", active: 3, attempts: 1, crashes: 1, pauses: 1, losses: 1, kinds: untilTheEnd, ends: true},
		{what: "the end, and more attempts", active: 2, attempts: 3, pauses: 1, kinds: untilTheEnd, ends: true},
		{what: "the end, alongside Seal", active: 3, attempts: 1, pauses: 1, kinds: append([]kind{handover}, untilTheEnd...), ends: true},
		{what: "the end of a name that has moved", active: 3, attempts: 1, crashes: 1, pauses: 1, kinds: untilTheEnd, moved: true, ends: true},
		{what: "a process with a different to", active: 3, attempts: 1, crashes: 1, pauses: 1, kinds: append([]kind{astray}, inTheMiddle...)},
	} {
		r := rules{attempts: test.attempts, kinds: test.kinds, ends: test.ends}
		floor := int8(0)
		if test.ends {
			floor = urlFloor
		}
		s := start(test.active, test.crashes, test.pauses, test.losses, floor)
		if test.moved {
			s = s.afterTheMove()
		}
		states, wrong, way := r.search(s, "")
		t.Logf("%s: %d states", test.what, states)
		if wrong != "" {
			t.Errorf("%s: %s after\n%s", test.what, wrong, strings.Join(way, "\n"))
		}
	}
}

// TestModelOfAForeignSeal has a name that is sealed on to. No process acquires
// the name, or repeats its request endlessly.
func TestModelOfAForeignSeal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		variant
		wrong string
	}{{variant{}, ""}, {variant{tryAgain: true}, hotLoop}} {
		s := start(2, 0, 0, 0, 0)
		s.foreign = true
		if _, wrong, way := (rules{variant: test.variant, attempts: 2, kinds: inTheMiddle}).search(s, ""); wrong != test.wrong {
			t.Errorf("%+v: got %q, want %q, after\n%s", test.variant, wrong, test.wrong, strings.Join(way, "\n"))
		}
	}
}

// TestModelFindsEveryWrongVariant shows that the search finds errors.
func TestModelFindsEveryWrongVariant(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		variant
		wrong string
		back  bool // the name has moved, and is moved back
		kinds []kind
	}{
		{"phases without a gate or a seal, and directly from old to new", variant{noSeal: true}, twoHolders, false, nil},
		{"a look at from in place of the seal", variant{lookOnly: true}, twoHolders, false, nil},
		{"a shadow that counts as both", variant{withoutTo: true}, twoHolders, false, nil},
		{"holds that do not end with what they depend on", variant{oneLossIsNone: true}, twoHolders, false, nil},
		{"no re-check", variant{noRecheck: true}, twoHolders, false, nil},
		{"a seal that needs no hold", variant{anySeal: true}, twoHolders, false, nil},
		{"the mark before the seal", variant{markFirst: true}, twoHolders, false, nil},
		{"tokens of the counter of to while both are held", variant{counterOfTo: true}, fallen, false, nil},
		{"tokens without a floor", variant{noFloor: true}, fallen, false, nil},
		{"tokens with a floor only for names that were locked on both", variant{noFloorIdle: true}, fallen, false, nil},
		{"tokens with a floor and no raise", variant{noRaise: true}, fallen, false, nil},
		{"a seal that is believed without the mark", variant{sealIsEnough: true}, fallen, false, nil},
		{"to before from", variant{toFirst: true}, deadlock, false, nil},
		{"waiting for from with to in hand", variant{waitForFrom: true}, deadlock, false, nil},
		{"a roll-back that unseals before it takes the mark away", variant{unsealFirst: true}, twoHolders, true, nil},
		{"a mark while a request to unseal is on its way", variant{noLoosen: true}, twoHolders, true, nil},
		{"a request to unseal without an id", variant{anyUnseal: true}, twoHolders, true, nil},
		{"a roll-back of a name that is held", variant{withoutHold: true}, twoHolders, true, nil},
		{"a roll-back that does not raise the tokens", variant{noRaiseBack: true}, fallen, true, nil},
		{"a process with another to that believes the seal", variant{noIdentity: true}, twoHolders, false, append([]kind{astray}, inTheMiddle...)},
		{"programs that use only the new backend alongside programs that use only the old one", variant{plainFirst: true}, twoHolders, false, untilTheEnd},
		{"only the new backend as soon as the old one is cut off", variant{noWait: true}, twoHolders, false, untilTheEnd},
		{"only the new backend while processes are in phase dual", variant{dualStays: true}, fallen, false, untilTheEnd},
		{"only the new backend without a floor in its URL", variant{noURLFloor: true}, fallen, false, untilTheEnd},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, floor := rules{variant: test.variant, attempts: 1, kinds: inTheMiddle}, int8(0)
			if test.kinds != nil {
				r.kinds, r.ends = test.kinds, true
			}
			if r.ends && !test.noURLFloor {
				floor = urlFloor
			}
			s := start(3, 1, 1, 1, floor)
			if test.back {
				r.kinds, s = withBack, s.afterTheMove()
			}
			states, wrong, way := r.search(s, test.wrong)
			if wrong != test.wrong {
				t.Errorf("got %q after %d steps and %d states, want %q\n%s", wrong, len(way), states, test.wrong, strings.Join(way, "\n"))
				return
			}
			t.Logf("%s after %d steps, %d states", wrong, len(way), states)
		})
	}
}
