package migrate_test

import (
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// manners are the ways in which the two backends of a pair keep leases alive.
var manners = []struct {
	name     string
	from, to *memory.Options
}{
	{"renewals", nil, nil},
	{"renewals to sessions", nil, sessions},
	{"sessions to renewals", sessions, nil},
	{"sessions", sessions, sessions},
}

func TestConformanceInFakeTime(t *testing.T) {
	t.Parallel()
	for i, m := range manners {
		for j, p := range phases {
			if i%2 != j && testing.Short() {
				continue // each manner and each phase once
			}
			t.Run(m.name+"/"+p.String(), func(t *testing.T) { conformance.Run(t, harness(migrate.Options{Phase: p}, m.from, m.to)) })
		}
	}
}

func TestConformanceInFakeTimeWithAGate(t *testing.T) {
	t.Parallel()
	for i, m := range manners[:2] {
		for j, p := range gatedPhases {
			if i != j%2 && testing.Short() {
				continue // each manner and each phase once
			}
			o := migrate.Options{Phase: p, Gated: true, Unfenced: true}
			t.Run(m.name+"/"+p.String(), func(t *testing.T) { conformance.Run(t, harness(o, m.from, m.to)) })
		}
	}
}

// harness creates two backends for each check, and clients that are all in one
// phase.
func harness(o migrate.Options, ofFrom, ofTo *memory.Options) conformance.Harness {
	return conformance.Harness{FakeTime: true, Backend: func(testing.TB) *conformance.Backend {
		from, to := memory.NewServer(ofFrom), memory.NewServer(ofTo)
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				a, b := from.NewDriver(), to.NewDriver()
				d, err := migrate.New(a, b, &o)
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
