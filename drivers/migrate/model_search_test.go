package migrate

import (
	"fmt"
	"strings"
	"testing"
)

// node is a state and the way to it.
type node struct {
	model
	from int32
	what string
}

// What can be wrong.
const (
	twoHolders = "two holders"
	fallen     = "a token that is not above those before"
	deadlock   = "a deadlock"
)

// search looks at all states that can be reached, and returns what is wrong with the first one that is, and how it is reached. If
// sought is not empty it looks for that alone.
func (r rules) search(start model, sought string) (states int, wrong string, way []string) {
	nodes := []node{{model: start, from: -1}}
	seen := map[model]struct{}{start: {}}
	for i := 0; i < len(nodes); i++ {
		s := nodes[i].model
		wrong := s.wrong(sought)
		progress := false
		if wrong == "" {
			r.steps(s, func(what string, by bool, next model) {
				progress = progress || by
				if _, ok := seen[next]; !ok {
					seen[next] = struct{}{}
					nodes = append(nodes, node{next, int32(i), what})
				}
			})
			if !progress && !r.finished(s) && sought != twoHolders && sought != fallen {
				wrong = deadlock
			}
		}
		if wrong == "" {
			continue
		}
		for j := int32(i); j > 0; j = nodes[j].from {
			way = append([]string{fmt.Sprintf("%-45s %+v", nodes[j].what, nodes[j].model)}, way...)
		}
		return len(nodes), wrong, way
	}
	return len(nodes), "", nil
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

// start is a name of which from has granted tokens up to 3, and to none.
func start(active int, crashes, pauses, losses int8) model {
	s := model{crashes: crashes, pauses: pauses, losses: losses}
	s.count[modelFrom], s.granted = 3, 3
	for p := active; p < processes; p++ {
		s.processes[p].at = stopped
	}
	return s
}

func TestModelKeepsItsPromises(t *testing.T) {
	for _, test := range []struct {
		active                  int
		attempts                int8
		crashes, pauses, losses int8
	}{
		{active: 3, attempts: 1, crashes: 1, pauses: 1, losses: 1},
		{active: 3, attempts: 2},
		{active: 2, attempts: 2, crashes: 1, pauses: 1, losses: 1},
		{active: 2, attempts: 1, crashes: 2, pauses: 3, losses: 3},
		{active: 2, attempts: 3, pauses: 1},
	} {
		r := rules{attempts: test.attempts}
		states, wrong, way := r.search(start(test.active, test.crashes, test.pauses, test.losses), "")
		t.Logf("%+v: %d states", test, states)
		if wrong != "" {
			t.Errorf("%+v: %s after\n%s", test, wrong, strings.Join(way, "\n"))
		}
	}
}

// TestModelFindsEveryWrongVariant shows that the search would find what it looks for.
func TestModelFindsEveryWrongVariant(t *testing.T) {
	for _, test := range []struct {
		name string
		variant
		wrong string
	}{
		{"phases without a gate or a seal, and from old to new at once", variant{noSeal: true}, twoHolders},
		{"a look at from in place of the seal", variant{lookOnly: true}, twoHolders},
		{"a shadow that counts as both", variant{withoutTo: true}, twoHolders},
		{"holds that do not end with what they depend on", variant{oneLossIsNone: true}, twoHolders},
		{"no re-check", variant{noRecheck: true}, twoHolders},
		{"a seal that needs no hold", variant{anySeal: true}, twoHolders},
		{"the mark before the seal", variant{markFirst: true}, twoHolders},
		{"tokens of the counter of to while both are held", variant{counterOfTo: true}, fallen},
		{"tokens without a floor", variant{noFloor: true}, fallen},
		{"tokens with a floor only for names that were locked on both", variant{noFloorIdle: true}, fallen},
		{"tokens with a floor and no raise", variant{noRaise: true}, fallen},
		{"a seal that is believed without the mark", variant{sealIsEnough: true}, fallen},
		{"to before from", variant{toFirst: true}, deadlock},
		{"waiting for from with to in hand", variant{waitForFrom: true}, deadlock},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := rules{variant: test.variant, attempts: 1}
			states, wrong, way := r.search(start(3, 1, 1, 1), test.wrong)
			if wrong != test.wrong {
				t.Errorf("got %q after %d steps and %d states, want %q\n%s", wrong, len(way), states, test.wrong, strings.Join(way, "\n"))
				return
			}
			t.Logf("%s after %d steps, %d states", wrong, len(way), states)
		})
	}
}
