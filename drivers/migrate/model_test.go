package migrate

import "slices"

// The model is one name on two backends and a few processes. Each process
// acquires the lock repeatedly, in phases of its choice. The model follows
// acquire.go request by request. Everything that can happen in one instant is a
// step, and a search takes all steps in all orders. A hold is valid for as long
// as the backend keeps it, which is longer than any deadline allows.

const (
	processes   = 3
	maxAttempts = 3
	sealHold    = -1

	modelFrom, modelTo = 0, 1
)

// kind is the role of a process in one attempt.
type kind int8

const (
	rollback kind = iota // it moves the name back
	legacy               // it only knows from, and no seals
	dual                 // PhaseDual
	handover             // Driver.Seal, and PhaseNew where from is held
	alone                // PhaseNew
	astray               // PhaseDual with another to, which no other process locks
	plain                // it only knows to
)

func (k kind) String() string {
	return [...]string{"roll-back", "of the old backend alone", "dual", "handover", "new", "dual with another to", "of the new backend alone"}[k]
}

// stage is the operator's progress with the end of the migration.
type stage int8

const (
	moving stage = iota
	cutOff       // programs that only know from can no longer reach it
	closed       // all locks of these programs, and all programs in PhaseNew, have ended; from now on programs get only the URL of to
)

// variant is what a wrong procedure leaves out or does differently.
type variant struct {
	noSeal        bool // PhaseNew only acquires to, without checking from
	noFloor       bool // the mark contains no floor
	noFloorIdle   bool // the mark contains a floor only after a hand-over, not for names that were never locked
	noRaise       bool // the grant with which a name is marked keeps its original token
	toFirst       bool // PhaseDual acquires to before from
	waitForFrom   bool // PhaseNew waits for from while it holds to
	noRecheck     bool // there is no check that the first hold still exists when the second is granted
	oneLossIsNone bool // a holder of both continues after it has lost from
	anySeal       bool // the request to seal does not check that the hold exists
	markFirst     bool // a name is marked before it is sealed
	withoutTo     bool // PhaseHandover does without to if to is taken: a shadow that counts as both
	lookOnly      bool // PhaseNew checks that from is free, and does not seal it
	counterOfTo   bool // PhaseDual reports the tokens of to
	sealIsEnough  bool // PhaseNew trusts the seal without the mark, and so without the floor
	noIdentity    bool // a process with another to trusts the seal
	tryAgain      bool // a process that finds the name sealed on to tries again immediately

	// At the end.
	plainFirst bool // some programs only know to while others only know from
	noWait     bool // programs get it as soon as the others are cut off
	dualStays  bool // programs get it while others are in PhaseDual
	noURLFloor bool // the URL contains no floor

	// At a roll-back.
	unsealFirst bool // the name is unsealed before the mark is removed
	noLoosen    bool // a process that marks a sealed name ignores late requests to unseal it
	anyUnseal   bool // the request to unseal does not check its id
	noRaiseBack bool // the tokens of from are not raised
	withoutHold bool // the name is moved back without a check of its holder on to
}

// The next step of a process.
const (
	idle    int8 = iota
	onFrom       // acquire from
	onBoth       // acquire to as well
	onTo         // acquire only to
	tryFrom      // check whether from is free or sealed, while holding to
	onSeal
	onLoosen
	onMark
	onUnmark
	onUnseal
	report // the grant
	holding
	leaveTo
	leaveFrom
	stopped
)

type process struct {
	at, attempt  int8
	kind         kind
	has          [2]bool // the holds that it believes to have
	valid        bool    // it believes that it holds the lock
	moved        bool    // it found the name sealed, in a phase in which names do not move
	token, floor int8
}

// request is a request that its process has given up, and that may still
// arrive.
type request struct {
	kind, hold, floor int8
	alone             bool
}

// model is one state of the search.
type model struct {
	holder  [2]int8 // 0 means free
	count   [2]int8 // the last token
	sealed  int8    // the last token in the seal
	loose   int8    // the id next to the seal
	marked  bool
	foreign bool // the name is sealed on to, which is the old backend of another migration
	stage   stage
	granted int8 // the highest reported token
	fallen  bool // a reported token was not above it

	crashes, pauses, losses int8 // the maximum number that is still to come
	processes               [processes]process
	late                    [2]request
}

// rules are the steps of a variant, for a number of attempts of each process.
type rules struct {
	variant
	attempts int8
	kinds    []kind // the kinds with which a process may begin
	ends     bool   // the migration may end
}

// emit is called with each following state. progress is set if the step happens
// by itself, without a fault.
type emit func(what string, progress bool, next model)

func (r rules) id(p int, attempt int8) int8 { return 1 + int8(p)*r.attempts + attempt }

// mayBegin reports whether the operator lets a process begin with kind k.
func (r rules) mayBegin(s model, k kind) bool {
	switch k {
	case legacy:
		return s.stage == moving
	case dual, rollback:
		return s.stage < closed || r.dualStays
	case plain:
		return s.stage == closed || r.plainFirst || r.noWait && s.stage == cutOff
	}
	return true
}

// end is the next step of the operator, if it is due.
func (r rules) end(s model, e emit) {
	switch s.stage {
	case moving:
		s.stage = cutOff
		e("the operator cuts off the programs that only know from", true, s)
	case cutOff:
		for _, p := range s.processes {
			if p.at != idle && p.at != stopped && p.kind != handover && p.kind != alone && p.kind != plain {
				return
			}
		}
		s.stage = closed
		e("the operator has waited, and all are in phase new", true, s)
	}
}

func (r rules) steps(s model, e emit) {
	if r.ends {
		r.end(s, e)
	}
	for p := range s.processes {
		r.step(s, p, e)
		r.crash(s, p, e)
	}
	for b := range s.holder {
		r.expire(s, b, e)
	}
	for i, q := range s.late {
		if q.kind != 0 {
			n := s
			n.late[i] = request{}
			r.carryOut(&n, q)
			e("a late request arrives", false, n)
		}
	}
}

// expire ends a hold. If the process is running, this is a pause longer than
// the TTL.
func (r rules) expire(s model, backend int, e emit) {
	h := s.holder[backend]
	if h <= 0 {
		return
	}
	p, attempt := int(h-1)/int(r.attempts), (h-1)%r.attempts
	n := s
	n.holder[backend] = 0
	x := &n.processes[p]
	if x.attempt != attempt || !x.has[backend] {
		e("the hold of a process that is gone expires", true, n)
		return
	}
	if s.stage > moving && x.kind == legacy { // a legacy program cannot renew
		x.valid = false
		e("the hold of a program that was cut off expires", true, n)
		return
	}
	if n.pauses--; s.pauses > 0 {
		if !(r.oneLossIsNone && backend == modelFrom && x.has[modelTo]) {
			x.valid = false
		}
		e("a pause past the TTL", false, n)
	}
}

func (r rules) crash(s model, p int, e emit) {
	x := s.processes[p]
	if s.crashes == 0 || x.at == idle || x.at == stopped {
		return
	}
	n := s
	n.crashes--
	if onSeal <= x.at && x.at <= onUnseal {
		if sent := n; sent.giveUp(r.pending(s, p)) {
			sent.processes[p] = process{at: stopped}
			e("a crash after a request was sent", false, sent)
		}
	}
	n.processes[p] = process{at: stopped}
	e("a crash", false, n)
}

// giveUp leaves a request on its way, if there is room for it.
func (s *model) giveUp(q request) bool {
	i := slices.Index(s.late[:], request{})
	if i >= 0 {
		s.late[i] = q
	}
	return i >= 0
}

func (r rules) pending(s model, p int) request {
	x := s.processes[p]
	q := request{x.at, r.id(p, x.attempt), x.floor, x.kind == alone}
	if x.at == onLoosen && (x.kind != rollback || r.noRaiseBack) {
		q.floor = 0
	}
	return q
}

// carryOut carries out a request on a backend, perhaps late, and reports
// whether the backend accepted it.
func (r rules) carryOut(s *model, q request) bool {
	if b := slices.Index([]int8{onFrom, onTo}, q.kind); b >= 0 {
		if s.holder[b] != 0 {
			return false
		}
		s.holder[b] = q.hold
		s.count[b]++
		return true
	}
	switch q.kind {
	case onSeal:
		if s.holder[modelFrom] != q.hold && !(r.anySeal && s.holder[modelFrom] != sealHold) {
			return false
		}
		s.holder[modelFrom], s.sealed, s.loose = sealHold, q.floor, 0
		return true
	case onLoosen:
		if s.holder[modelFrom] != sealHold {
			return false
		}
		s.loose = q.hold
		s.count[modelFrom] = max(s.count[modelFrom], q.floor)
		return true
	case onUnseal:
		if s.holder[modelFrom] != sealHold || s.loose != q.hold && !r.anyUnseal {
			return false
		}
		s.holder[modelFrom], s.loose = 0, 0
		return true
	}
	if s.holder[modelTo] != q.hold && !(r.withoutTo && !q.alone) && !(r.withoutHold && q.kind == onUnmark) {
		return false
	}
	if q.kind == onUnmark {
		s.marked = false
		return true
	}
	s.marked = true
	if !r.noFloor && !(r.noFloorIdle && q.alone) {
		s.count[modelTo] = max(s.count[modelTo], q.floor)
	}
	return true
}

// step is the next step of process p.
func (r rules) step(s model, p int, e emit) {
	switch x := s.processes[p]; x.at {
	case idle:
		if x.attempt < r.attempts {
			for _, k := range r.kinds {
				if !r.mayBegin(s, k) {
					continue
				}
				n := s
				n.processes[p].kind = k
				n.processes[p].at = onFrom
				if k == alone || k == plain || k == rollback || r.toFirst && k == dual {
					n.processes[p].at = onTo
				}
				if r.withoutHold && k == rollback {
					n.processes[p].at = onLoosen
				}
				e("begins as "+k.String(), true, n)
			}
		}
	case onFrom:
		r.takeFrom(s, p, e)
	case onBoth:
		r.takeBoth(s, p, e)
	case onTo:
		r.takeTo(s, p, e)
	case tryFrom:
		r.tryFrom(s, p, e)
	case onSeal, onLoosen, onMark, onUnmark, onUnseal:
		r.request(s, p, e)
	case report:
		r.report(s, p, e)
	case holding:
		s.processes[p].valid = false
		s.processes[p].at = leaveTo
		e("begins to release", true, s)
	case leaveTo:
		r.leave(s, p, modelTo, e)
	case leaveFrom:
		r.leave(s, p, modelFrom, e)
	}
}

// take grants the name on a backend to p. p continues at next, or gives up
// because the answer is lost.
func (r rules) take(s model, p, backend int, next int8, e emit) {
	x := &s.processes[p]
	if s.losses > 0 {
		n := s
		n.losses--
		n.processes[p].at = leaveTo
		if n.giveUp(request{kind: [...]int8{onFrom, onTo}[backend], hold: r.id(p, x.attempt)}) {
			e("gives up a request that is on its way", false, n)
		}
	}
	s.count[backend]++
	s.holder[backend] = r.id(p, x.attempt)
	if s.losses > 0 {
		n := s
		n.losses--
		n.processes[p].at = leaveTo
		e("the answer to a grant is lost", false, n)
	}
	x.has[backend] = true
	if backend == modelFrom || x.kind == alone || x.kind == plain || r.counterOfTo {
		x.token = s.count[backend]
	}
	if backend == modelFrom || x.kind == rollback {
		x.floor = s.count[backend]
	}
	x.at = next
	e("is granted a backend", true, s)
}

func (r rules) takeFrom(s model, p int, e emit) {
	x := &s.processes[p]
	if x.kind == legacy && s.stage > moving {
		x.at = stopped
		e("does not reach from", true, s)
		return
	}
	switch s.holder[modelFrom] {
	case 0:
		next := report
		if (x.kind == dual || x.kind == handover) && !x.has[modelTo] {
			next = onBoth
		}
		r.take(s, p, modelFrom, next, e)
	case sealHold:
		if x.has[modelTo] {
			x.at = leaveTo
			e("starts again, because the name is sealed", true, s)
			return
		}
		switch {
		case x.kind == legacy:
			x.at = stopped
			e("finds the lock taken permanently", true, s)
			return
		case x.kind == astray && r.noIdentity:
			x.at, x.valid = holding, true
			e("believes the seal, and holds another to", true, s)
			return
		case x.kind == astray:
			x.at = stopped
			e("finds that the name has moved to another to", true, s)
			return
		}
		x.moved, x.kind, x.at = x.kind != handover, alone, onTo
		e("finds the name sealed", true, s)
	}
}

func (r rules) takeBoth(s model, p int, e emit) {
	x := &s.processes[p]
	next := report
	if x.kind == handover {
		next = onSeal
		if r.markFirst {
			next = onMark
		}
	}
	if s.foreign {
		x.at = leaveTo
		e("fails, because the name is sealed on to", true, s)
		return
	}
	if s.holder[modelTo] == 0 {
		r.take(s, p, modelTo, next, e)
	} else if r.withoutTo && x.kind == handover {
		x.at = onSeal
		e("goes on without to", true, s)
	}
	if s.losses > 0 {
		s.losses--
		x.at = leaveTo
		e("gives up waiting", false, s)
	}
}

func (r rules) takeTo(s model, p int, e emit) {
	if s.foreign {
		if !r.tryAgain {
			s.processes[p].at = leaveTo
		}
		e("learns that the name is sealed on to", true, s)
		return
	}
	if s.holder[modelTo] != 0 {
		return
	}
	next := tryFrom
	switch {
	case s.processes[p].kind == rollback:
		next = onLoosen
	case s.processes[p].kind == dual:
		next = onFrom
	case s.processes[p].kind == plain:
		next = report
	case s.marked || r.noSeal || r.sealIsEnough && s.holder[modelFrom] == sealHold:
		next = report
	}
	r.take(s, p, modelTo, next, e)
}

func (r rules) tryFrom(s model, p int, e emit) {
	x := &s.processes[p]
	switch s.holder[modelFrom] {
	case sealHold:
		x.floor, x.at = s.sealed, onLoosen
		if r.noLoosen {
			x.at = onMark
		}
		e("reads the seal", true, s)
	case 0:
		if r.lookOnly {
			x.at = report
			e("finds from free", true, s)
			return
		}
		if x.moved {
			x.at = leaveTo
			e("starts again, because the name is no longer sealed", true, s)
			return
		}
		next := onSeal
		if r.markFirst {
			next = onMark
		}
		r.take(s, p, modelFrom, next, e)
	default:
		if r.waitForFrom {
			return
		}
		s.holder[modelTo] = r.released(s, p, modelTo)
		s.processes[p] = process{at: onFrom, kind: handover, attempt: x.attempt + 1}
		if x.attempt == r.attempts {
			x.at = stopped
		}
		e("gives to back, to take from first", true, s)
	}
}

// released returns the holder of a backend after p released it.
func (r rules) released(s model, p, backend int) int8 {
	if s.holder[backend] == r.id(p, s.processes[p].attempt) {
		return 0
	}
	return s.holder[backend]
}

// request seals or marks the name. Its answer may be lost, and it may arrive
// after its sender has given up.
func (r rules) request(s model, p int, e emit) {
	x := s.processes[p]
	q := r.pending(s, p)
	if s.losses > 0 {
		n := s
		n.losses--
		n.processes[p].at = leaveTo
		if late := n; late.giveUp(q) {
			e("gives up a request that is on its way", false, late)
		}
		r.carryOut(&n, q)
		e("the answer to a seal or a mark is lost", false, n)
	}
	n := s
	if !r.carryOut(&n, q) {
		n.processes[p].at = leaveTo
		e("learns that the hold has ended", true, n)
		return
	}
	y := &n.processes[p]
	switch {
	case x.at == onSeal:
		y.has[modelFrom] = false
		y.at = onMark
		if r.markFirst {
			y.at = report
		}
	case x.kind == rollback:
		y.at = r.back(x.at)
	case x.at == onLoosen:
		y.at = onMark
	default:
		y.at = report
		if x.kind != rollback && !r.noRaise {
			n.count[modelTo]++
			y.token = n.count[modelTo]
		}
		if r.markFirst && x.has[modelFrom] {
			y.at = onSeal
		}
	}
	e("changes the seal or the mark", true, n)
}

// back returns the step after a request of a roll-back.
func (r rules) back(at int8) int8 {
	steps := []int8{onLoosen, onUnmark, onUnseal, leaveTo}
	if r.unsealFirst {
		steps = []int8{onLoosen, onUnseal, onUnmark, leaveTo}
	}
	return steps[slices.Index(steps, at)+1]
}

// report is the end of an Acquire. It detects holds that have ended.
func (r rules) report(s model, p int, e emit) {
	x := &s.processes[p]
	for b, has := range x.has {
		if has && s.holder[b] != r.id(p, x.attempt) && !r.noRecheck {
			x.at = leaveTo
			e("notices that a hold has ended", true, s)
			return
		}
	}
	x.at, x.valid = holding, true
	s.fallen = x.token <= s.granted
	s.granted = max(s.granted, x.token)
	e("holds the lock", true, s)
}

// leave releases a backend, and then the next one.
func (r rules) leave(s model, p, backend int, e emit) {
	x := &s.processes[p]
	had := x.has[backend]
	next := *x
	next.has[backend] = false
	next.at = leaveFrom
	if backend == modelFrom {
		next = process{at: idle, attempt: x.attempt + 1}
	}
	if had && s.losses > 0 {
		n := s
		n.losses--
		n.processes[p] = next
		e("a release is lost", false, n)
	}
	if had {
		s.holder[backend] = r.released(s, p, backend)
	}
	s.processes[p] = next
	e("releases a backend", true, s)
}
