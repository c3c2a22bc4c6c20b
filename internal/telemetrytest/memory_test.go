package telemetrytest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/telemetrytest"
)

// TestTelemetry runs the scenarios that the tests of examples/observability run
// on real backends.
func TestTelemetry(t *testing.T) {
	for name, o := range map[string]memory.Options{
		"fifo":         {},
		"unordered":    {Order: memory.Unordered},
		"sessions":     {KeepsAlive: true},
		"no tokens":    {NoTokens: true},
		"fifo clients": {Order: memory.FIFOByClient},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range telemetrytest.Scenarios {
				t.Run(s.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { s.Run(t, onMemory(o)) })
				})
			}
		})
	}
}

func onMemory(o memory.Options) *telemetrytest.Backend {
	server := memory.NewServer(&o)
	return &telemetrytest.Backend{
		New: func(testing.TB) (driver.Driver, func()) {
			d := server.NewDriver()
			return d, d.Cut
		},
		TTL: 10 * time.Second, Notes: true, Exact: true, CutOff: "unreachable", Forced: "removed",
		EndSession: func(d driver.Driver) { d.(*memory.Driver).EndSession() },
	}
}
