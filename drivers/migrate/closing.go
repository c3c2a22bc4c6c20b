package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// closedName is sealed on the old backend when the gate is closed permanently.
const closedName = reserved + "closed"

// askWhetherClosed is the interval at which a process in PhaseNew checks
// whether the gate was closed, until it finds the gate closed.
const askWhetherClosed = time.Minute

// closed reports whether the gate was closed permanently. A process with a slot
// of PhaseOld calls it last, after its checks of the other slots. Then either
// this process sees the seal, or the sealing process has seen its slot.
func (g *gate) closed(ctx context.Context) (bool, error) {
	if g.d.sealer == nil {
		return false, nil
	}
	_, closed, err := g.d.sealer.Sealed(ctx, closedName)
	return closed, err
}

// admitToNew checks that a process with a slot of PhaseNew may be in that
// phase. If the gate was closed before the check of the slots of PhaseOld, that
// phase has ended, and this process no longer needs the old backend. The seal
// alone would not prove this, because the sealing process may have lost its own
// slot before it wrote the seal.
func (g *gate) admitToNew(ctx context.Context) error {
	g.mu.Lock()
	over := g.over
	g.mu.Unlock()
	if over {
		return nil
	}
	closed, err := g.closed(ctx)
	if err != nil {
		return err
	}
	if err = g.nobodyIn(ctx, PhaseOld); err == nil && closed {
		g.mu.Lock()
		g.over = true
		g.mu.Unlock()
	}
	return err
}

// learn lets a process in PhaseNew find out whether PhaseOld has ended, because
// the old backend may be gone when the process loses its slot. It returns the
// delay until the next call; 0 means never.
func (g *gate) learn(ctx context.Context) time.Duration {
	if closed, err := g.closed(ctx); err == nil && closed && g.admitToNew(ctx) == nil {
		return 0
	}
	return askWhetherClosed
}

// Finalize closes the gate permanently: no process can enter PhaseOld anymore.
// d must be in PhaseNew. Within a minute, processes in PhaseNew no longer need
// the old backend. If the old backend keeps no seals, Finalize returns an error
// that matches errors.ErrUnsupported, and processes stay out of PhaseOld only
// while a process is in PhaseNew.
func (d *Driver) Finalize(ctx context.Context) error {
	if d.gate == nil {
		return fmt.Errorf("migrate: there is no gate to close: %w", errors.ErrUnsupported)
	}
	if d.sealer == nil {
		return fmt.Errorf("migrate: backend %s cannot keep a seal: %w", d.from.info.Name, errors.ErrUnsupported)
	}
	bound, end, err := d.closable(ctx)
	if err != nil {
		return err
	}
	defer end()
	if d.Phase() != PhaseNew {
		return fmt.Errorf("migrate: %w: the gate can only be closed in phase %v", ErrPhase, PhaseNew)
	}
	m, err := d.gate.enterNow(bound)
	if err != nil {
		return d.closing(ctx, err)
	}
	defer m.endUse()
	err = d.seal(bound, d.from, closedName, nil)
	if errors.Is(err, driver.ErrSealed) {
		return nil
	}
	if err == nil && !m.live() {
		// the name is sealed, but other processes may have entered PhaseOld
		// before; their memberships end with their locks and are not renewed
		err = fmt.Errorf("%w: the slot was lost in the meantime: repeat the call", driver.ErrUnknown)
	}
	return d.closing(ctx, err)
}

// The functions below are the gate's own actions. In PhaseOld, a process that
// is not a member takes a slot of kind wantsOld, so that other processes can
// see which phase it wants to enter. It tries again to enter its phase,
// whenever the pauses after refusals allow it, even if its program acquires no
// locks. For PhaseNew, see learn.

// lost is called when a member has lost its slot.
func (g *gate) lost(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m == g.current && m.phase == PhaseOld && g.d.Phase() == PhaseOld {
		g.after(0)
	}
}

// asked is called, with mu held, when the process has tried to enter a phase.
func (g *gate) asked(p Phase, err error) {
	now := g.d.Phase()
	if now != PhaseOld || p == PhaseOld && err == nil {
		g.wishNothing()
	}
	switch {
	case now == PhaseOld && err != nil && !g.acting:
		g.after(0)
	case now == PhaseNew && err == nil && g.d.sealer != nil && !g.over:
		g.after(askWhetherClosed)
	}
}

// after calls act after a pause. It is called with mu held.
func (g *gate) after(pause time.Duration) {
	if g.timer == nil {
		g.timer = time.AfterFunc(pause, func() { g.d.spawn(g.act) })
		return
	}
	g.timer.Reset(pause)
}

func (g *gate) act() {
	ctx, end, err := g.d.closable(g.d.life)
	if err != nil {
		return
	}
	defer end()
	g.mu.Lock()
	busy := g.acting
	g.acting = true
	g.mu.Unlock()
	if busy {
		return
	}
	pause := time.Duration(0)
	switch g.d.Phase() {
	case PhaseOld:
		pause = g.returnToOld(ctx)
	case PhaseNew:
		pause = g.learn(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.acting = false
	if pause > 0 {
		g.after(pause)
	}
}

// returnToOld tries to enter PhaseOld. It returns the delay until the next try;
// 0 means never.
func (g *gate) returnToOld(ctx context.Context) time.Duration {
	g.wishForOld(ctx)
	m, err := g.membership(ctx)
	if err == nil {
		m.endUse()
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if pause := time.Until(g.refused.until); g.refused.err != nil && pause > 0 {
		return pause
	}
	return lastPause
}

// wishForOld takes a slot of kind wantsOld, unless the process has one.
func (g *gate) wishForOld(ctx context.Context) {
	g.mu.Lock()
	before := g.wish
	g.mu.Unlock()
	if before != nil && before.live() {
		return
	}
	wish := g.newMember(PhaseOld)
	if wish.takeSlot(ctx, g.d.from, wantsOld) != nil {
		wish.stop()
		return // the next call tries again
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wishNothing() // a slot that was lost
	g.wish = wish
	if g.d.Phase() != PhaseOld {
		g.wishNothing()
	}
}

// wishNothing releases the slot of kind wantsOld. It is called with mu held.
func (g *gate) wishNothing() {
	if wish := g.wish; wish != nil {
		g.wish = nil
		g.retired[wish] = struct{}{}
		g.d.spawn(wish.retire)
	}
}
