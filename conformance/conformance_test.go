package conformance

import (
	"flag"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/testenv"
)

var repeat = flag.Int("repeat", 0, "number of runs of the suite on the good driver; 0 means 3, or 1 with -short")

// onMemory returns a harness of the memory driver in fake time. mutate breaks
// each of its drivers.
func onMemory(o *memory.Options, mutate func(*memory.Driver) driver.Driver) Harness {
	return Harness{FakeTime: true, Backend: func(testing.TB) *Backend {
		s := memory.NewServer(o)
		var mu sync.Mutex
		var drivers []*memory.Driver
		each := func(f func(*memory.Driver)) func(testing.TB) {
			return func(testing.TB) {
				mu.Lock()
				defer mu.Unlock()
				for _, d := range drivers {
					f(d)
				}
			}
		}
		return &Backend{
			New: func(testing.TB) (driver.Driver, *Link) {
				d := s.NewDriver()
				mu.Lock()
				drivers = append(drivers, d)
				mu.Unlock()
				return mutate(d), memoryLink(d)
			},
			Expire:     func(_ testing.TB, name string) { s.Expire(name) },
			ExpireHold: func(_ testing.TB, _, hold string) { s.ExpireHold(hold) },
			Freeze:     each(func(d *memory.Driver) { d.Inject(memory.Fault{Kind: memory.Hang}) }),
			Thaw:       each((*memory.Driver).Heal),
			Refuse: func(tb testing.TB) {
				refusing.Store(s, true)
				const all = memory.Acquires | memory.Renewals | memory.Releases | memory.Queries | memory.Latches
				each(func(d *memory.Driver) { d.Inject(memory.Fault{Kind: memory.CutOff, On: all}) })(tb)
			},
			Allow: func(tb testing.TB) {
				refusing.Delete(s)
				each((*memory.Driver).Heal)(tb)
			},
			Left: func(testing.TB) []string { return leftOn(s) },
			Restart: func(testing.TB) {
				s.Flush()
				restarted.Store(s, true)
			},
		}
	}}
}

// leftovers are the traces that mutants leave on servers.
var leftovers sync.Map

// leaveOn lets a mutant leave a trace on its server.
func leaveOn(s *memory.Server, what string) {
	all, _ := leftovers.LoadOrStore(s, new(sync.Map))
	all.(*sync.Map).Store(what, true)
}

// takeFrom removes a trace that a mutant has left on its server.
func takeFrom(s *memory.Server, what string) {
	if all, ok := leftovers.Load(s); ok {
		all.(*sync.Map).Delete(what)
	}
}

func leftOn(s *memory.Server) (left []string) {
	if all, ok := leftovers.Load(s); ok {
		all.(*sync.Map).Range(func(what, _ any) bool {
			left = append(left, what.(string))
			return true
		})
	}
	return left
}

// restarted are the restarted servers, for mutants that do not survive a
// restart.
var restarted sync.Map

func memoryLink(d *memory.Driver) *Link {
	inject := func(f memory.Fault) func() { return func() { d.Inject(f) } }
	var dropped atomic.Bool
	return &Link{
		Cut: d.Cut, Hang: inject(memory.Fault{Kind: memory.Hang}), LoseAnswers: inject(memory.Fault{Kind: memory.LoseAnswer}),
		Delay: func(delay time.Duration) { d.Inject(memory.Fault{Delay: delay}) },
		Drop: func() {
			dropped.Store(true)
			d.Inject(memory.Fault{Kind: memory.Hang})
		},
		LoseOne: inject(memory.Fault{Kind: memory.LoseAnswer, Times: 1}),
		HoldOne: inject(memory.Fault{Kind: memory.Hang, Times: 1}),
		Heal: func() {
			if dropped.Swap(false) {
				d.Cut() // hanging requests are not carried out
				time.Sleep(time.Millisecond)
			}
			d.Heal()
		},
	}
}

func good(d *memory.Driver) driver.Driver { return d }

// The kinds of backends, which make different promises.
var memoryBackends = []struct {
	name string
	memory.Options
}{
	{"fifo", memory.Options{}},
	{"clients", memory.Options{Order: memory.FIFOByClient}},
	{"unordered", memory.Options{Order: memory.Unordered}},
	{"no tokens", memory.Options{NoTokens: true}},
	{"sessions", memory.Options{KeepsAlive: true}},
}

func TestGoodDriverPasses(t *testing.T) {
	times := *repeat
	if times == 0 {
		times = testenv.Briefly(1, 3)
	}
	for _, b := range memoryBackends {
		t.Run(b.name, func(t *testing.T) {
			for range times {
				for _, c := range allChecks() {
					r := c.result(t, onMemory(&b.Options, good))
					if r.err != nil {
						t.Errorf("%s: %v\n%s", c.Name, r.err, r.events)
					}
					if r.missing != "" && !needsURL(c) {
						t.Errorf("%s is not verified, because the harness has no %s", c.Name, r.missing)
					}
				}
				if t.Failed() {
					break
				}
			}
		})
	}
}

// needsURL reports whether a check needs a URL, and so cannot run in fake time.
func needsURL(c check) bool {
	return strings.HasPrefix(c.Name, "processes/") || strings.HasPrefix(c.Name, "url/")
}

func TestMain(m *testing.M) {
	RunWorker()
	m.Run()
}
