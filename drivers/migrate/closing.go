package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// closedName is sealed on the old backend when the gate is closed for good.
const closedName = reserved + "closed"

// askWhetherClosed is how often a process in PhaseNew asks whether the gate was closed meanwhile, until it was.
const askWhetherClosed = time.Minute

// closed reports whether the gate was closed for good. A process with a slot of PhaseOld asks this last, after its looks: so either the
// process sees the seal, or the process that sealed saw the slot.
func (g *gate) closed(ctx context.Context) (bool, error) {
	if g.d.sealer == nil {
		return false, nil
	}
	_, closed, err := g.d.sealer.Sealed(ctx, closedName)
	return closed, err
}

// admitToNew looks whether a process with a slot of PhaseNew may be in that phase. When a process has seen first that the gate was closed, and
// then that all slots of PhaseOld were free, PhaseOld is over: no process with a slot there was left to become a member. From then on this
// process needs the old backend no longer. The seal alone would not do: the process that sealed may have lost its own slot before.
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

// learn has a process in PhaseNew find out whether PhaseOld is over: the old backend may be gone when the process loses its slot. It returns
// when to ask again; 0 is never.
func (g *gate) learn(ctx context.Context) time.Duration {
	closed, err := g.closed(ctx)
	if err == nil && closed {
		err = g.admitToNew(ctx)
	}
	if err == nil && closed {
		return 0
	}
	return askWhetherClosed
}

// Finalize closes the gate for good: no process gets into PhaseOld any more, also when none is left in PhaseNew. D has to be in PhaseNew.
// A minute later at the latest, processes in PhaseNew need the old backend no longer. Where the old backend keeps no seal, Finalize returns
// an error that matches errors.ErrUnsupported: then nobody gets into PhaseOld for as long as a process is in PhaseNew.
func (d *Driver) Finalize(ctx context.Context) error {
	if d.gate == nil {
		return fmt.Errorf("migrate: there is no gate to close: %w", errors.ErrUnsupported)
	}
	if d.sealer == nil {
		return fmt.Errorf("migrate: backend %s keeps no seal: %w", d.from.info.Name, errors.ErrUnsupported)
	}
	bound, end, err := d.closable(ctx)
	if err != nil {
		return err
	}
	defer end()
	if d.Phase() != PhaseNew {
		return fmt.Errorf("migrate: %w: the gate is closed in phase %v", ErrPhase, PhaseNew)
	}
	m, err := d.gate.enterNow(bound)
	if err != nil {
		return d.closing(ctx, err)
	}
	defer m.leave()
	l, err := d.from.Acquire(bound, d.ownRequest(closedName))
	if errors.Is(err, driver.ErrSealed) {
		return nil
	}
	if err != nil {
		return d.closing(ctx, err)
	}
	err = d.sealer.Seal(bound, l)
	if err == nil && !m.live() { // sealed, but others may have got into PhaseOld before: their memberships end with their locks, and do not come back
		err = fmt.Errorf("%w: the slot was lost meanwhile: repeat it", driver.ErrUnknown)
	}
	if err != nil {
		letGo(l)
	}
	return d.closing(ctx, err)
}
