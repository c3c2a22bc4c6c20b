package memory_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

func TestConformanceInFakeTime(t *testing.T) {
	for name, o := range map[string]memory.Options{
		"fifo":      {},
		"clients":   {Order: memory.FIFOByClient},
		"unordered": {Order: memory.Unordered},
		"no tokens": {NoTokens: true},
		"sessions":  {KeepsAlive: true},
	} {
		t.Run(name, func(t *testing.T) { conformance.Run(t, harness(&o, true)) })
	}
}

func TestConformanceInRealTime(t *testing.T) { conformance.Run(t, harness(nil, false)) }

// harness creates a new backend for each check.
func harness(o *memory.Options, fakeTime bool) conformance.Harness {
	return conformance.Harness{FakeTime: fakeTime, Backend: func(tb testing.TB) *conformance.Backend {
		s := memory.NewServer(o)
		var mu sync.Mutex
		var drivers []*memory.Driver
		each := func(f func(*memory.Driver)) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range drivers {
				f(d)
			}
		}
		return &conformance.Backend{
			URL: urlFor(tb.Name()),
			New: func(testing.TB) (driver.Driver, *conformance.Link) {
				d := s.NewDriver()
				mu.Lock()
				drivers = append(drivers, d)
				mu.Unlock()
				return d, link(d)
			},
			Expire:     func(_ testing.TB, name string) { s.Expire(name) },
			ExpireHold: func(_ testing.TB, _, hold string) { s.ExpireHold(hold) },
			Refuse: func(testing.TB) {
				const changes = memory.Acquires | memory.Renewals | memory.Releases | memory.Seals | memory.Latches
				each(func(d *memory.Driver) { d.Inject(memory.Fault{Kind: memory.CutOff, On: changes}) })
			},
			Allow: func(testing.TB) { each((*memory.Driver).Heal) },
			Left: func(testing.TB) []string {
				all := s.Left()
				each(func(d *memory.Driver) {
					if n, m := d.Sessions(), d.Behind(); n+m > 0 {
						all = append(all, fmt.Sprintf("%d sessions and %d holds of one driver", n, m))
					}
				})
				return all
			},
		}
	}}
}

// urlFor returns the URL of a backend for the checks of URLs. Other checks have
// no URL, since no other process can open the backend.
func urlFor(test string) string {
	if strings.Contains(test, "/url/") {
		return "memory://"
	}
	return ""
}

// link maps the faults of a connection to faults of the driver.
func link(d *memory.Driver) *conformance.Link {
	inject := func(k memory.FaultKind) func() { return func() { d.Inject(memory.Fault{Kind: k}) } }
	return &conformance.Link{
		Cut:         d.Cut,
		Hang:        inject(memory.Hang),
		LoseAnswers: inject(memory.LoseAnswer),
		Delay:       func(late time.Duration) { d.Inject(memory.Fault{Delay: late}) },
		LoseOne:     func() { d.Inject(memory.Fault{Kind: memory.LoseAnswer, Times: 1}) },
		HoldOne:     func() { d.Inject(memory.Fault{Kind: memory.Hang, Times: 1}) },
		Heal:        d.Heal,
	}
}
