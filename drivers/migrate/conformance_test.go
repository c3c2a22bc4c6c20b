package migrate_test

import (
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

func TestConformance(t *testing.T) {
	for _, p := range []migrate.Phase{migrate.PhaseOld, migrate.PhaseDual, migrate.PhaseHandover, migrate.PhaseNew} {
		t.Run(p.String(), func(t *testing.T) { conformance.Run(t, harness(p)) })
	}
}

// harness makes two backends for each check, and clients that are all in phase p.
func harness(p migrate.Phase) conformance.Harness {
	return conformance.Harness{FakeTime: true, Backend: func(testing.TB) *conformance.Backend {
		from, to := memory.NewServer(nil), memory.NewServer(nil)
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				a, b := from.NewDriver(), to.NewDriver()
				d, err := migrate.New(a, b, &migrate.Options{Phase: p})
				if err != nil {
					tb.Fatal(err)
				}
				return d, link(a, b)
			},
			Expire: func(_ testing.TB, name string) {
				from.Expire(name)
				to.Expire(name)
			},
		}
	}}
}

// link disturbs the connections to both backends.
func link(drivers ...*memory.Driver) *conformance.Link {
	each := func(f func(d *memory.Driver)) func() {
		return func() {
			for _, d := range drivers {
				f(d)
			}
		}
	}
	inject := func(f memory.Fault) func() { return each(func(d *memory.Driver) { d.Inject(f) }) }
	return &conformance.Link{
		Cut:         each((*memory.Driver).Cut),
		Hang:        inject(memory.Fault{Kind: memory.Hang}),
		LoseAnswers: inject(memory.Fault{Kind: memory.LoseAnswer}),
		Delay:       func(late time.Duration) { inject(memory.Fault{Delay: late})() },
		Heal:        each((*memory.Driver).Heal),
	}
}
