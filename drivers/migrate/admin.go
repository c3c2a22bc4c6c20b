package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-dsync/dsync/driver"
)

// Inspect implements driver.Inspector. It queries the backend on which every
// holder of the name has a hold. This is to for a sealed name, and otherwise
// from. With a gate it queries to in PhaseNew.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	s, err := d.inspect(ctx, name)
	s.Hold, s.Owner = strings.TrimPrefix(s.Hold, ofProgram), strings.TrimPrefix(s.Owner, ofProgram)
	return s, err
}

func (d *Driver) inspect(ctx context.Context, name string) (driver.Status, error) {
	from, to, err := inspectors(d)
	if err != nil {
		return driver.Status{}, err
	}
	if d.gate != nil && d.Phase() == PhaseNew {
		return to.Inspect(ctx, name)
	}
	status, err := from.Inspect(ctx, name)
	d.from.above(&status.Token)
	if err != nil || d.gate != nil {
		return status, err
	}
	// The order matters: a name that is not sealed now was not sealed when it
	// was inspected.
	if _, sealed, err := d.sealer.Sealed(ctx, name); err != nil {
		return driver.Status{}, err
	} else if !sealed {
		return status, nil
	}
	status, err = to.Inspect(ctx, name)
	d.to.above(&status.Token)
	return status, err
}

func inspectors(d *Driver) (from, to driver.Inspector, err error) {
	from, okFrom := d.from.Driver.(driver.Inspector)
	to, okTo := d.to.Driver.(driver.Inspector)
	if !okFrom || !okTo {
		return nil, nil, fmt.Errorf("migrate: at least one backend does not report the holders of locks: %w", errors.ErrUnsupported)
	}
	return from, to, nil
}

// ForceUnlock implements driver.ForceUnlocker. It ends the hold on the backend
// that Inspect queries. If that backend is from, and the same hold also exists
// on to, a second request ends it there. A client that acquires the name
// between the two requests may lose it again, and is then notified.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	from, okFrom := d.from.Driver.(driver.ForceUnlocker)
	to, okTo := d.to.Driver.(driver.ForceUnlocker)
	inspectFrom, inspectTo, err := inspectors(d)
	if !okFrom || !okTo || err != nil {
		return fmt.Errorf("migrate: at least one backend cannot end the hold of another client: %w", errors.ErrUnsupported)
	}
	if d.gate != nil && d.Phase() == PhaseNew {
		return to.ForceUnlock(ctx, name)
	}
	before, err := inspectFrom.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if err = from.ForceUnlock(ctx, name); errors.Is(err, driver.ErrSealed) {
		return to.ForceUnlock(ctx, name)
	} else if err != nil {
		return err
	}
	rest, err := inspectTo.Inspect(ctx, name)
	if err == nil && rest.Held && rest.Hold == before.Hold {
		err = to.ForceUnlock(ctx, name)
	}
	switch {
	case err == nil, errors.Is(err, driver.ErrNotHeld):
		return nil
	case errors.Is(err, driver.ErrUnknown):
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUnknown, err) // the hold on from has ended
}

// reporter reports the keep-alives of the sessions of both backends. It reports
// success only if both succeed.
type reporter struct {
	mu   sync.Mutex  // also guards the reports of the two backends
	told func(error) // nil without OnKeepAlive
}

// OnKeepAlive implements driver.KeepAliveReporter.
func (d *Driver) OnKeepAlive(f func(err error)) {
	d.told.mu.Lock()
	defer d.told.mu.Unlock()
	d.told.told = f
}

// report registers for the keep-alive reports of the backends. New calls
// report, because the membership of this process is acquired before the first
// call to OnKeepAlive.
func (d *Driver) report() {
	for _, b := range []*backend{d.from, d.to} {
		if r, ok := b.Driver.(driver.KeepAliveReporter); ok {
			r.OnKeepAlive(func(err error) { d.keptAlive(b, err) })
		}
	}
}

// keptAlive handles a report from one backend.
func (d *Driver) keptAlive(b *backend, err error) {
	if d.life.Err() != nil {
		return
	}
	if err != nil {
		err = fmt.Errorf("%s backend %s: %w", b.role, b.info.Name, err)
	}
	r := &d.told
	r.mu.Lock()
	b.kept = err
	told := r.told
	if err == nil && (d.from.kept != nil || d.to.kept != nil) {
		told = nil
	}
	r.mu.Unlock()
	if told != nil {
		told(err)
	}
}

// phaseReporter reports the phases.
type phaseReporter struct {
	mu   sync.Mutex
	told func(string) // nil without OnPhase
}

// OnPhase implements driver.PhaseReporter.
func (d *Driver) OnPhase(f func(phase string)) {
	d.phases.mu.Lock()
	defer d.phases.mu.Unlock()
	d.phases.told = f
	f(d.Phase().String())
}

// enterPhase sets the phase of d and reports it.
func (d *Driver) enterPhase(p Phase) {
	d.phases.mu.Lock()
	defer d.phases.mu.Unlock()
	if before := Phase(d.phase.Swap(int32(p))); before != p && d.phases.told != nil {
		d.phases.told(p.String())
	}
}
