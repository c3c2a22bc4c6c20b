package telemetrytest_test

import (
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// inPhases is a driver that goes through phases.
type inPhases struct {
	*memory.Driver
	tell func(phase string)
}

func (d *inPhases) OnPhase(f func(phase string)) {
	d.tell = f
	f("dual")
}

// TestPhaseOfAMigration checks that the phase is reported at open and at each
// change, and that the client counts in its current phase.
func TestPhaseOfAMigration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := dsync.Options{}
		ob := observe(&o)
		d := &inPhases{Driver: memory.NewServer(nil).NewDriver()}
		c, err := dsync.New(d, &o)
		if err != nil {
			t.Fatal(err)
		}
		wantPhase := func(when, phase string) {
			synctest.Wait()
			ob.sums(t, func(name string, p metricdata.DataPoint[int64]) {
				if name != "dsync.migration.client.count" {
					return
				}
				of, _ := p.Attributes.Value("dsync.migration.phase")
				want := int64(0)
				if of.AsString() == phase {
					want = 1
				}
				if p.Value != want {
					t.Errorf("%s: got %d clients in phase %s, want %d", when, p.Value, of.AsString(), want)
				}
			})
		}
		synctest.Wait()
		wantRecords(t, ob, map[string]int{"phase of the migration": 1})
		wantPhase("at open", "dual")
		d.tell("new")
		synctest.Wait()
		wantRecords(t, ob, map[string]int{"phase of the migration": 2})
		wantPhase("after a change", "new")
		if n := ob.count(t, "dsync.migration.client.count"); n != 1 {
			t.Errorf("got %d clients in all phases, want 1", n)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantPhase("after Close", "")
	})
}
