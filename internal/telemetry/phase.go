package telemetry

import (
	"context"
	"log/slog"
)

// Phase logs the new phase of a migration and counts the client in that phase.
// It may be called with a lock held.
func (t *Telemetry) Phase(phase string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, counted := t.phase, t.counted
	t.phase = phase
	if !counted && t.config.Logger == nil {
		return
	}
	t.reports.add(func() {
		if counted {
			t.countPhase(-1, before)
			t.countPhase(1, phase)
		}
		more := []slog.Attr{slog.String(string(keyPhase), phase)}
		if before != "" {
			more = append(more, slog.String(string(keyBefore), before))
		}
		t.log(context.Background(), slog.LevelInfo, "phase of the migration", Lock{}, more...)
	})
}

func (t *Telemetry) countPhase(n int64, phase string) {
	if phase != "" {
		t.migrations.Add(context.Background(), n, t.labels.get(label{key: keyPhase, value: phase}).add...)
	}
}
