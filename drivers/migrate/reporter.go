package migrate

import (
	"fmt"
	"sync"

	"github.com/go-dsync/dsync/driver"
)

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
// report, since the membership of this process is acquired before the first
// call of OnKeepAlive.
func (d *Driver) report() {
	for _, b := range []*backend{d.from, d.to} {
		if r, ok := b.Driver.(driver.KeepAliveReporter); ok {
			r.OnKeepAlive(func(err error) { d.keptAlive(b, err) })
		}
	}
}

// keptAlive handles the report of one backend.
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
