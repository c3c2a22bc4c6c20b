package migrate

import (
	"slices"
	"strings"
	"testing"
)

// The model of the gate is one name on two backends and a few processes. At
// every step the processes may become members, lock, change the phase one by
// one, stop for longer than their holds last, or crash. Each process has its
// own slot on each backend. At the end one of them closes the gate, and then
// the processes switch to the new backend only. One of the processes may be
// astray, with another new backend. Then all of them first check whether the
// old backend is tied to their new one, and tie it if it is not tied yet.

// plainTo is the phase in the model of a process that only knows to.
const plainTo = PhaseNew + 1

// modelAstray is the new backend of a process that is astray, in addition to
// modelFrom and modelTo.
const modelAstray = 2

// gateVariant is what a wrong gate leaves out or does differently.
type gateVariant struct {
	noLook     bool // no process checks for members of the other kind
	newLooks   bool // only processes that enter PhaseNew check
	lookFirst  bool // a process checks before it takes its slot
	untied     bool // a lock does not end when the membership ends
	leavesSoon bool // a process leaves a phase while it holds a lock of that phase: a phase is skipped
	withoutTo  bool // PhaseDual does without to if to is taken: a shadow that counts as both

	plainFirst bool // processes switch to only to before the gate is closed
	neverAsks  bool // a process that enters PhaseOld does not check whether the gate is closed
	asksFirst  bool // a process that enters PhaseOld checks it before the checks of slots, not after
	unsure     bool // the gate counts as closed although the process that closed it has lost its slot
	believes   bool // a process that sees that the gate is closed no longer looks for members in PhaseOld

	noTie     bool // no process checks to which new backend the old one is tied
	tokenless bool // the name of the tie contains no token
	sure      bool // a process that has requested the seal of the target continues, even if its hold had ended
}

// The next step of a process.
const (
	gateIdle int8 = iota
	gateEnter
	gateAsk   // check whether the gate is closed, before checking the slots
	gateLook  // check the slot of another process
	gateOpen  // check whether the gate is open, after checking the slots
	gateSeal  // close the gate
	gateClose // the gate is sealed
	gateTied  // check whether the old backend is tied to its new one
	gateTake  // take the target
	gateName  // seal the name that ties
	gateTie   // seal the target
	gateFrom  // take from
	gateTo    // take to
	gateHolding
	gateStopped
)

type gateProcess struct {
	at           int8
	phase        Phase // PhaseOld, PhaseDual or PhaseNew
	under        Phase // phase of its hold
	member       bool  // it believes to be a member of its phase
	looked       int8  // number of slots that it has checked
	saw          bool  // it saw that the gate was closed, before it checked the slots
	over         bool  // it knows that PhaseOld has ended
	learning     bool  // it checks as a member
	has          [3]bool
	valid        bool
	astray       bool
	looks        bool // at the tie, before anything else
	token        int8 // with which it holds the target
	locks, moves int8 // that are still to come
}

type gateModel struct {
	slots           [3][processes]bool // on from: members in PhaseOld; on to: in PhaseNew
	holder          [3]int8            // 0 means free
	processes       [processes]gateProcess
	crashes, pauses int8    // the maximum number that is still to come
	ends            bool    // some process closes the gate
	closed          bool    // the seal
	done            bool    // the process that closed the gate has reported it
	target          int8    // its holder, or sealHold
	count           int8    // its last token
	names           [3]int8 // the names sealed for a new backend: the bits of the tokens in them
}

// to is the new backend of a process.
func (x gateProcess) to() int {
	if x.astray {
		return modelAstray
	}
	return modelTo
}

// kind returns which slots the process takes in a phase, and whether it does.
func (x gateProcess) kind(p Phase) (side int, ok bool) {
	if p == PhaseNew {
		return x.to(), true
	}
	return modelFrom, p == PhaseOld
}

type emitGate = func(what string, progress bool, next gateModel)

func (v gateVariant) steps(s gateModel, e emitGate) {
	for p := range s.processes {
		v.step(s, p, e)
		v.faults(s, p, e)
	}
}

// faults are the losses of a process's holds on the backends, and its own end.
func (v gateVariant) faults(s gateModel, p int, e emitGate) {
	x := s.processes[p]
	gone := x.at == gateStopped
	for side := range s.slots {
		if s.slots[side][p] && (gone || s.pauses > 0) {
			n := s
			n.slots[side][p] = false
			y := &n.processes[p]
			if !gone {
				n.pauses--
				if own, ok := y.kind(y.phase); ok && own == side {
					y.member = false
				}
				if own, ok := y.kind(y.under); ok && own == side && !v.untied {
					y.valid = false
				}
			}
			e("a membership ends by itself", gone, n)
		}
		if s.holder[side] == int8(p+1) && (gone || s.pauses > 0) {
			n := s
			n.holder[side] = 0
			if !gone {
				n.pauses--
				n.processes[p].valid = false
			}
			e("a hold ends by itself", gone, n)
		}
	}
	if s.target == int8(p+1) && (gone || s.pauses > 0) {
		n := s
		n.target = 0
		if !gone {
			n.pauses--
		}
		e("the hold of the target ends by itself", gone, n)
	}
	if !gone && s.crashes > 0 {
		s.crashes--
		s.processes[p] = gateProcess{at: gateStopped}
		e("a crash", false, s)
	}
}

func (v gateVariant) step(s gateModel, p int, e emitGate) {
	x := &s.processes[p]
	switch x.at {
	case gateIdle:
		if x.looks {
			x.at = gateTied
			e("begins to check the tie", true, s)
			return
		}
		v.begin(s, p, e)
	case gateTied, gateTake, gateName, gateTie:
		v.tie(s, p, e)
	case gateEnter:
		v.enter(s, p, e)
	case gateAsk:
		x.saw, x.at = s.closed, gateLook
		if v.believes && s.closed {
			side, _ := x.kind(x.phase)
			x.at, x.member, x.over, x.learning = gateIdle, s.slots[side][p], true, false
		}
		e("checks whether the gate is closed", true, s)
	case gateOpen:
		v.ask(s, p, e)
	case gateSeal:
		s.closed, x.at = true, gateClose
		e("seals", true, s)
	case gateClose:
		x.at = gateIdle
		s.done = s.done || s.slots[x.to()][p] || v.unsure
		e("has closed the gate, if its slot is still there", true, s)
	case gateLook:
		v.look(s, p, e)
	case gateFrom:
		if s.holder[modelFrom] == 0 {
			s.holder[modelFrom] = int8(p + 1)
			x.has[modelFrom] = true
			x.at = gateTo
			if x.phase == PhaseOld {
				v.granted(&s, p)
			}
			e("is granted from", true, s)
		}
	case gateTo:
		if to := x.to(); s.holder[to] == 0 {
			s.holder[to] = int8(p + 1)
			x.has[to] = true
			v.granted(&s, p)
			e("is granted to", true, s)
		} else if v.withoutTo && x.phase == PhaseDual {
			v.granted(&s, p)
			e("goes on without to", true, s)
		}
	case gateHolding:
		v.move(s, p, e)
		x.valid = false
		for b, has := range x.has {
			if has && s.holder[b] == int8(p+1) {
				s.holder[b] = 0
			}
		}
		if own, ok := x.kind(x.under); ok && x.under != x.phase {
			s.slots[own][p] = false // the last use
		}
		x.has, x.at, x.under = [3]bool{}, gateIdle, PhaseDual
		e("releases the lock", true, s)
	}
}

// tie checks whether from is tied to the new backend of the process, and ties
// it if it is not tied yet.
func (v gateVariant) tie(s gateModel, p int, e emitGate) {
	x := &s.processes[p]
	switch x.at {
	case gateTied:
		token := s.count
		if v.tokenless {
			token = 0
		}
		switch {
		case v.noTie || s.target == sealHold && s.names[x.to()]&(1<<token) != 0:
			x.at, x.looks = gateIdle, false
			e("finds its new backend", true, s)
		case s.target == sealHold:
			*x = gateProcess{at: gateStopped}
			e("finds another new backend", true, s)
		default:
			x.at = gateTake
			e("finds no new backend", true, s)
		}
	case gateTake:
		switch s.target {
		case 0:
			s.count++
			s.target, x.token, x.at = int8(p+1), s.count, gateName
			e("is granted the target", true, s)
		case sealHold:
			x.at = gateTied
			e("finds the target sealed", true, s)
		}
	case gateName:
		if v.tokenless {
			x.token = 0
		}
		s.names[x.to()] |= 1 << x.token
		x.at = gateTie
		e("seals the name", true, s)
	case gateTie:
		x.at, x.token = gateTied, 0
		if s.target == int8(p+1) {
			s.target = sealHold
		}
		if v.sure {
			x.at, x.looks = gateIdle, false
		}
		e("seals the target, if it still holds that", true, s)
	}
}

// begin begins a lock, or changes the phase.
func (v gateVariant) begin(s gateModel, p int, e emitGate) {
	x := s.processes[p]
	v.move(s, p, e)
	_, registers := x.kind(x.phase)
	n := s
	y := &n.processes[p]
	if s.ends && x.phase == PhaseNew && x.member {
		v.end(s, p, e)
	}
	switch {
	case x.locks == 0:
		if side, ok := x.kind(x.phase); ok {
			n.slots[side][p] = false
		}
		*y = gateProcess{at: gateStopped}
		e("ends", true, n)
	case registers && !x.member:
		y.at, y.looked, y.learning = gateEnter, 0, false
		if v.lookFirst {
			y.at = gateLook
		}
		e("begins to become a member", true, n)
	default:
		y.locks--
		y.at = gateFrom
		if x.phase >= PhaseNew {
			y.at = gateTo
		}
		e("begins to lock", true, n)
	}
}

// end is the last step of a member in PhaseNew, apart from locks.
func (v gateVariant) end(s gateModel, p int, e emitGate) {
	if !s.closed {
		n := s
		n.processes[p].at = gateSeal
		e("begins to close the gate", false, n)
	} else if !s.processes[p].over {
		n := s
		y := &n.processes[p]
		y.at, y.looked, y.learning = gateAsk, 0, true
		e("checks whether phase old has ended", false, n)
	}
}

// ask is the last check of a process that enters PhaseOld.
func (v gateVariant) ask(s gateModel, p int, e emitGate) {
	x := &s.processes[p]
	closed := s.closed && !v.neverAsks
	if v.asksFirst {
		closed = x.saw
	}
	x.at, x.member, x.looked = gateIdle, s.slots[modelFrom][p], 0
	if closed {
		s.slots[modelFrom][p] = false
		x.member, x.phase = false, PhaseDual
	}
	e("checks whether the gate is open", true, s)
}

// move changes the phase by one. Holds continue under the previous phase, and
// so does its membership.
func (v gateVariant) move(s gateModel, p int, e emitGate) {
	x := s.processes[p]
	if x.moves == 0 {
		return
	}
	for _, phase := range []Phase{PhaseOld, PhaseDual, PhaseNew, plainTo} {
		switch {
		case x.phase == plainTo, phase == x.phase:
			continue
		case phase == plainTo:
			if x.phase != PhaseNew || x.at != gateIdle || !s.ends || !s.done && !v.plainFirst {
				continue
			}
		case phase != PhaseDual && x.phase != PhaseDual && !v.leavesSoon:
			continue
		}
		n := s
		y := &n.processes[p]
		y.moves--
		y.phase, y.member = phase, false
		if own, ok := x.kind(x.phase); ok && (x.at == gateIdle || v.leavesSoon) {
			n.slots[own][p] = false
		}
		e("changes the phase", false, n)
	}
}

func (v gateVariant) enter(s gateModel, p int, e emitGate) {
	x := &s.processes[p]
	side, _ := x.kind(x.phase)
	s.slots[side][p] = true
	x.at = gateLook
	if s.ends && (x.phase == PhaseNew || v.asksFirst) {
		x.at = gateAsk
	}
	if x.phase == PhaseNew && x.over {
		x.at, x.member = gateIdle, true
	}
	if v.lookFirst {
		x.at, x.member = gateIdle, true
	}
	e("takes a slot", true, s)
}

// look checks one slot after another.
func (v gateVariant) look(s gateModel, p int, e emitGate) {
	x := &s.processes[p]
	side, _ := x.kind(x.phase)
	if x.looked == processes || v.noLook || v.newLooks && x.phase == PhaseOld {
		x.at, x.member, x.looked = gateIdle, s.slots[side][p], 0
		switch {
		case v.lookFirst:
			x.at, x.member = gateEnter, false
		case s.ends && x.phase == PhaseOld:
			x.at, x.member = gateOpen, false
		}
		x.over, x.learning, x.saw = x.over || x.phase == PhaseNew && x.saw, false, false
		e("has looked at all slots", true, s)
		return
	}
	q := x.looked
	x.looked++
	others := modelFrom
	if side == modelFrom {
		others = x.to()
	}
	if s.slots[others][q] && x.learning {
		x.at, x.looked, x.learning, x.saw = gateIdle, 0, false, false
		e("finds a member of the other kind, and tries again later", true, s)
		return
	}
	if s.slots[others][q] {
		s.slots[side][p] = false
		x.at, x.phase, x.looked = gateIdle, PhaseDual, 0
		e("finds a member of the other kind, and stays in phase dual", true, s)
		return
	}
	e("finds a slot free", true, s)
}

// granted is the end of an Acquire. It detects holds and memberships that have
// ended.
func (v gateVariant) granted(s *gateModel, p int) {
	x := &s.processes[p]
	side, registers := x.kind(x.phase)
	x.at, x.under, x.valid = gateHolding, x.phase, true
	for b, has := range x.has {
		if has && s.holder[b] != int8(p+1) {
			x.valid = false
		}
	}
	if registers && !s.slots[side][p] && !v.untied {
		x.valid = false
	}
}

func (s gateModel) wrong() string {
	holders := 0
	for _, x := range s.processes {
		if x.valid {
			holders++
		}
	}
	if holders > 1 {
		return twoHolders
	}
	return ""
}

func (s gateModel) finished() bool {
	return !slices.ContainsFunc(s.processes[:], func(x gateProcess) bool { return x.at != gateStopped })
}

// search begins with processes in all combinations of phases that are possible.
// The last argument is the phase of the process that is astray, if there is
// one.
func (v gateVariant) search(ends bool, locks, moves, crashes, pauses int8, astray Phase) (states int, wrong string, way []string) {
	y := system[gateModel]{
		steps:    v.steps,
		sorted:   func(s gateModel) gateModel { return s },
		wrong:    gateModel.wrong,
		finished: gateModel.finished,
	}
	s := gateModel{crashes: crashes, pauses: pauses, ends: ends}
	for p, phase := range []Phase{PhaseOld, PhaseDual, PhaseNew} {
		s.processes[p] = gateProcess{phase: phase, under: PhaseDual, locks: locks, moves: moves, astray: phase == astray, looks: astray.valid()}
	}
	return y.search(s)
}

const noneAstray Phase = plainTo

func TestModelOfTheGateKeepsItsPromises(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ends                          bool
		locks, moves, crashes, pauses int8
		astray                        Phase
	}{
		{false, 1, 1, 1, 1, noneAstray}, {false, 1, 2, 0, 0, noneAstray}, {false, 2, 1, 0, 0, noneAstray}, // moves bound the changes of the phase of each process
		{true, 1, 1, 0, 1, noneAstray},
		{false, 1, 1, 1, 1, PhaseOld}, {false, 1, 1, 1, 1, PhaseDual}, {false, 1, 1, 1, 1, PhaseNew},
		{false, 1, 2, 1, 1, PhaseNew}, {false, 2, 1, 1, 1, PhaseNew}, {false, 1, 1, 0, 2, PhaseNew}, {true, 1, 1, 0, 1, PhaseNew},
	} {
		states, wrong, way := gateVariant{}.search(test.ends, test.locks, test.moves, test.crashes, test.pauses, test.astray)
		t.Logf("%+v: %d states", test, states)
		if wrong != "" {
			t.Errorf("%+v: %s after\n%s", test, wrong, strings.Join(way, "\n"))
		}
	}
}

func TestModelOfTheGateFindsEveryWrongVariant(t *testing.T) {
	for _, test := range []struct {
		name string
		gateVariant
	}{
		{"phases without a gate", gateVariant{noLook: true}},
		{"a gate that only processes entering phase new check", gateVariant{newLooks: true}},
		{"a look before the slot is taken", gateVariant{lookFirst: true}},
		{"locks that do not end with the membership", gateVariant{untied: true}},
		{"a phase that is skipped", gateVariant{leavesSoon: true}},
		{"a shadow that counts as both", gateVariant{withoutTo: true}},
		{"only the new backend before the gate is closed", gateVariant{plainFirst: true}},
		{"a closed gate that no process checks", gateVariant{neverAsks: true}},
		{"a closed gate that is checked before the looks, not after", gateVariant{asksFirst: true}},
		{"a gate closed by a process that lost its slot", gateVariant{unsure: true}},
		{"a closed gate that is believed without a look", gateVariant{believes: true}},
		{"another new backend that no process compares", gateVariant{noTie: true}},
		{"a tie that one process may have begun and another completes", gateVariant{tokenless: true}},
		{"a tie that is not checked again", gateVariant{sure: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ends := test.plainFirst || test.neverAsks || test.asksFirst || test.unsure || test.believes
			astray := noneAstray
			if test.noTie || test.tokenless || test.sure {
				astray = PhaseNew
			}
			states, wrong, way := test.search(ends, 1, 1, 0, 1, astray)
			if wrong != twoHolders {
				t.Errorf("got %q after %d steps and %d states, want %q\n%s", wrong, len(way), states, twoHolders, strings.Join(way, "\n"))
				return
			}
			t.Logf("%s after %d steps, %d states", wrong, len(way), states)
		})
	}
}
