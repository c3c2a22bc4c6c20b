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
// whether the gate was closed, until it finds that it was.
const askWhetherClosed = time.Minute

// closed reports whether the gate was closed permanently. A process with a slot
// of PhaseOld calls it last, after its looks. Then either the process sees the
// seal, or the process that sealed saw the slot.
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
// by itself would not prove it, because the process that sealed may have lost
// its own slot before.
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

// Finalize closes the gate permanently: no process can enter PhaseOld any more.
// D must be in PhaseNew. Within a minute, processes in PhaseNew no longer need
// the old backend. If the old backend keeps no seals, Finalize returns an error
// that matches errors.ErrUnsupported, and every process in PhaseNew keeps
// others out of PhaseOld.
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
	err = d.seal(bound, d.from, closedName, nil)
	if errors.Is(err, driver.ErrSealed) {
		return nil
	}
	if err == nil && !m.live() {
		// sealed, but other processes may have entered PhaseOld before: their
		// memberships end with their locks, and do not come back
		err = fmt.Errorf("%w: the slot was lost meanwhile: repeat it", driver.ErrUnknown)
	}
	return d.closing(ctx, err)
}
