package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// gate keeps processes in PhaseOld and processes in PhaseNew apart by locks, so
// the gate works with any two backends. PhaseDual excludes both and needs no
// gate.
//
// A process in PhaseOld is a member: it holds one of a number of slots on the
// old backend. Each slot is the lock of a reserved name. A process in PhaseNew
// holds a slot on the new backend. A process takes a slot first and then checks
// that all slots of the other kind are free, by acquiring and releasing each.
// Of two processes of different kinds, the later one sees the earlier one. All
// locks of a member end with its membership. A check holds a slot for a moment,
// so a taken slot is checked again before it counts as a member's.
//
// The code in closing.go records on the backend that a process was refused in
// PhaseOld, and ends PhaseOld.
type gate struct {
	d       *Driver
	setting chan struct{} // has room for one change of the phase

	mu      sync.Mutex
	current *member
	retired map[*member]struct{} // memberships of earlier phases that are still in use
	// closed at the end of an attempt to become a member; nil if there is no
	// attempt
	joining chan struct{}
	refused refusal // the last refusal
	// shows other processes that this process wants to be in PhaseOld and is
	// not; nil otherwise
	wish   *member
	timer  *time.Timer // for the gate's own actions
	acting bool        // such an action is running
	over   bool        // PhaseOld has ended permanently
}

// refusal is the error that all Lock calls of a refused process get until its
// next try. Each try takes hundreds of requests.
type refusal struct {
	err   error
	phase Phase
	pause time.Duration
	until time.Time
}

const (
	firstPause = 250 * time.Millisecond // after the first refusal; doubled after each refusal
	lastPause  = 5 * time.Second
)

// after records the result of an attempt to enter a phase.
func (r *refusal) after(err error, p Phase) {
	if !refusedBy(err) {
		*r = refusal{}
		return
	}
	pause := firstPause
	if r.phase == p && r.pause > 0 {
		pause = min(2*r.pause, lastPause)
	}
	*r = refusal{err, p, pause, time.Now().Add(pause)}
}

// refusedBy reports whether err means that the process must not be in its phase
// until another process or an operator changes something.
func refusedBy(err error) bool {
	return errors.As(err, new(*BehindError)) || errors.Is(err, ErrFull) || errors.Is(err, ErrFinalized)
}

// stands returns the refusal if it is too early for another attempt, and nil
// otherwise.
func (r *refusal) stands(p Phase) error {
	if r.phase == p && time.Now().Before(r.until) {
		return r.err
	}
	return nil
}

// MaxMembers is the number of processes that a gate admits to PhaseOld, and
// also to PhaseNew. It must be the same for every process of a migration.
const MaxMembers = 128

// reserved is the prefix of names that belong to the migration.
const reserved = "dsync:migrate:"

// slotKind is a kind of slot.
type slotKind string

const (
	inOld    slotKind = "old"
	inNew    slotKind = "new"
	wantsOld slotKind = "wants-old" // on from: see closing.go
)

func (k slotKind) phase() Phase {
	if k == inNew {
		return PhaseNew
	}
	return PhaseOld
}

func slotName(k slotKind, i int) string { return fmt.Sprintf("%s%s:%d", reserved, k, i) }

// The errors of the gate other than [BehindError].
var (
	// ErrSkipped reports that a change of phase would skip a phase.
	ErrSkipped = errors.New("a phase would be skipped")

	// ErrFinalized reports that the migration was finalized, which ended
	// PhaseOld.
	ErrFinalized = fmt.Errorf("the migration was finalized, which closed phase old (`dsync migrate untie` opens it again): %w", errors.ErrUnsupported)

	// ErrFull reports that the gate has no room for another process.
	ErrFull = fmt.Errorf("the gate has room for %d processes in a phase", MaxMembers)

	// ErrReserved reports that the name belongs to the gate.
	ErrReserved = fmt.Errorf("names that begin with %s are reserved: %w", reserved, errors.ErrUnsupported)
)

// BehindError reports that a process cannot be in a phase because other
// processes are two phases away.
type BehindError struct {
	Phase   Phase    // of the other processes
	Members []Member // the other processes; Driver.Members may return more about each
}

// Member is a process in PhaseOld or PhaseNew of the gated procedure, or a
// process that wants to be in PhaseOld.
type Member struct {
	Phase Phase  `json:"phase"`
	Wants bool   `json:"wants,omitempty"` // the process is not in Phase, and keeps trying to enter it
	Slot  int    `json:"slot"`
	Hold  string `json:"hold,omitempty"`  // the identity of the hold of the slot, if the backend reports it: begins with the Driver.ID of the process
	Owner string `json:"owner,omitempty"` // host and process id, if the backend stores them

	passing bool // the slot was taken only for a check, or has just been released
}

func (m Member) String() string {
	s := []string{fmt.Sprintf("slot %d", m.Slot), m.Owner, m.Hold}
	if m.Wants {
		s = slices.Insert(s, 0, "wants to enter it")
	}
	return strings.Join(slices.DeleteFunc(s, func(x string) bool { return x == "" }), ", ")
}

func (e *BehindError) Error() string {
	members := make([]string, len(e.Members))
	for i, m := range e.Members {
		members[i] = m.String()
	}
	return fmt.Sprintf("blocked by processes in phase %v (%d): %s", e.Phase, len(members), strings.Join(members, "; "))
}

func newGate(d *Driver) *gate {
	return &gate{
		d:       d,
		setting: make(chan struct{}, 1),
		retired: map[*member]struct{}{},
	}
}

// opposite returns the phase that must have ended before p.
func opposite(p Phase) Phase { return -p }

// own returns the backend with the slots of members in PhaseOld or PhaseNew.
func (g *gate) own(p Phase) *backend {
	if p == PhaseOld {
		return g.d.from
	}
	return g.d.to
}

// membership returns the membership for the phase of the driver, with one more
// use. It creates a membership if there is none.
func (g *gate) membership(ctx context.Context) (*member, error) {
	for {
		g.mu.Lock()
		if m := g.current; m != nil && m.phase == g.d.Phase() && m.use() {
			g.mu.Unlock()
			return m, nil
		}
		phase := g.d.Phase()
		if err := g.refused.stands(phase); err != nil {
			g.mu.Unlock()
			return nil, err
		}
		joining := g.joining
		if joining == nil {
			g.joining = make(chan struct{})
		}
		g.mu.Unlock()
		if joining != nil {
			select {
			case <-joining:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		m, err := g.join(ctx, phase)
		over := m // no longer useful if the phase has changed
		g.mu.Lock()
		close(g.joining)
		g.joining = nil
		g.refused.after(err, phase)
		if err == nil && phase == g.d.Phase() {
			over = g.replace(m)
		}
		g.asked(phase, err)
		g.mu.Unlock()
		if over != nil {
			over.retire()
		}
		if err != nil {
			return nil, err
		}
	}
}

// enterNow is like enter, but for callers that need a current answer instead of
// the last refusal.
func (g *gate) enterNow(ctx context.Context) (*member, error) {
	g.mu.Lock()
	g.refused = refusal{}
	g.mu.Unlock()
	return g.membership(ctx)
}

// replace makes m the current membership and returns the previous one, which
// the caller must retire. It is called with mu held.
func (g *gate) replace(m *member) (old *member) {
	old, g.current = g.current, m
	if old != nil {
		g.retired[old] = struct{}{}
	}
	return old
}

// setPhase moves the process forward or back by one phase.
func (g *gate) setPhase(ctx context.Context, p Phase) error {
	bound, end, err := g.d.closable(ctx)
	if err != nil {
		return err
	}
	defer end()
	return g.d.closing(ctx, g.change(bound, p))
}

func (g *gate) change(ctx context.Context, p Phase) error {
	select {
	case g.setting <- struct{}{}:
		defer func() { <-g.setting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	before := g.d.Phase()
	if before == p {
		m, err := g.enterNow(ctx)
		if err == nil {
			m.endUse()
		}
		return err
	}
	if before != PhaseDual && p != PhaseDual {
		return fmt.Errorf("%w: from %v to %v without %v", ErrSkipped, before, p, PhaseDual)
	}
	if err := g.drain(ctx, p); err != nil {
		return err
	}
	m, err := g.join(ctx, p)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.d.enterPhase(p)
	old := g.replace(m)
	g.asked(p, nil)
	g.mu.Unlock()
	if old != nil {
		old.retire()
	}
	return nil
}

// drain waits until this process has nothing left in the phase opposite to p.
func (g *gate) drain(ctx context.Context, p Phase) error {
	if p == PhaseDual {
		return nil
	}
	for {
		var left *member
		g.mu.Lock()
		for m := range g.retired {
			if m.phase == opposite(p) {
				left = m
			}
		}
		g.mu.Unlock()
		if left == nil {
			return nil
		}
		select {
		case <-left.gone:
		case <-ctx.Done():
			self := Member{Phase: left.phase, Slot: left.slot, Hold: left.request.Hold, Owner: g.d.process + " (this process)"}
			return fmt.Errorf("%w: %w", &BehindError{left.phase, []Member{self}}, ctx.Err())
		}
	}
}

// gated acquires the name in the phase of the process and starts again when the
// phase changes before the grant.
func (a *attempt) gated(ctx context.Context) (*lease, error) {
	if strings.HasPrefix(a.r.Name, reserved) {
		return nil, ErrReserved
	}
	ctx, err := a.closable(ctx)
	if err != nil {
		return nil, err
	}
	for {
		m, err := a.d.gate.membership(ctx)
		if refusedBy(err) {
			// ErrUnavailable until another process or an operator has changed
			// the phase
			return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		} else if err != nil {
			return nil, a.translate(err)
		}
		l, err := a.under(ctx, m)
		if err == nil {
			return l, nil
		}
		m.endUse()
		if m.active.Err() == nil && !errors.Is(err, errAgain) || ctx.Err() != nil {
			return nil, a.translate(err)
		}
	}
}

// under acquires the name in the phase of m and gives up when the membership
// ends.
func (a *attempt) under(ctx context.Context, m *member) (*lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.active, cancel)()
	a.member = m
	if m.phase == PhaseDual {
		return a.dual(ctx)
	}
	l := a.newLease()
	p, err := l.acquire(ctx, a.d.gate.own(m.phase), true, a.r.NoWait)
	if err != nil {
		return nil, err
	}
	return l.grant(ctx, p, p)
}
