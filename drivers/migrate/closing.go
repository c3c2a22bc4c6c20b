package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// closedName is sealed on the old backend when the gate is closed for good.
const closedName = reserved + "closed"

// open returns ErrFinalized if the gate was closed for good. It is asked by a process that has a slot of PhaseOld and has looked: so either
// it sees the seal, or whoever sealed saw its slot.
func (g *gate) open(ctx context.Context) error {
	sealer, ok := g.d.from.Driver.(move.Sealer)
	if !ok {
		return nil
	}
	_, closed, err := sealer.Sealed(ctx, closedName)
	if err == nil && closed {
		return ErrFinalized
	}
	return err
}

// Finalize closes the gate for good: no process gets into PhaseOld any more, also when none is left in PhaseNew. D has to be in PhaseNew. It
// returns an error that matches errors.ErrUnsupported where the old backend keeps no seal: then nobody gets into PhaseOld for as long as a
// process is in PhaseNew.
func (d *Driver) Finalize(ctx context.Context) error {
	if d.gate == nil {
		return fmt.Errorf("migrate: there is no gate to close: %w", errors.ErrUnsupported)
	}
	sealer, ok := d.from.Driver.(move.Sealer)
	if !ok {
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
	err = sealer.Seal(bound, l)
	if err == nil && !m.live() { // it is sealed, and somebody may have got into PhaseOld before: they end with their locks, and do not come back
		err = fmt.Errorf("%w: the slot was lost meanwhile: repeat it", driver.ErrUnknown)
	}
	if err != nil {
		letGo(l)
	}
	return d.closing(ctx, err)
}
