package bench

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/testenv"
)

// Curve is workloads that differ in one number.
type Curve struct {
	Name  string // the key of its workloads, with the number, and of its plots
	Title string
	About string
	By    string // what the number counts

	// Apart says that each backend has a plot and a table of its own.
	Apart bool

	// Linear says that a slope is the difference of two values by that of their numbers. Else it is the exponent: 1 where twice the number
	// makes twice the value, 0 where the number does not matter.
	Linear bool

	// Most is the largest number for a backend, and less than 0 for one that has no place in the curve. All others have all numbers.
	Most map[string]float64

	Points []*Workload
}

// add makes a point for each number of a workload that at returns.
func (c *Curve) add(at func(n float64) *Workload, numbers ...float64) *Curve {
	for _, n := range numbers {
		w := at(n)
		w.Curve, w.At, w.Name = c, n, c.Name+" "+strconv.FormatFloat(n, 'f', -1, 64)
		w.Title = fmt.Sprintf("%s: %s, with %s", c.Title, w.Name, c.By)
		c.Points = append(c.Points, w)
	}
	return c
}

// reaches reports whether a backend has a value at n.
func (c *Curve) reaches(b *Backend, n float64) bool {
	most, bounded := c.Most[b.Name]
	return !bounded || n <= most
}

// Curves are the workloads of all curves but for the crowds.
func Curves() (all []*Workload) {
	for _, c := range []*Curve{heldCurve, namesCurve, waitersCurve, freeDelayed, handOverDelayed} {
		all = append(all, c.Points...)
	}
	return all
}

// CurveBackends have the rows of curves.
var CurveBackends = append(withoutPeers([]*Backend{redisBackend, etcdBackend, zkBackend, pgBackend}), memoryBackend)

// memoryBackend is without a server, so that what is left is what a client costs above the drivers.
var memoryBackend = &Backend{
	Name: "memory",
	Start: func(testing.TB, testenv.Storage) *Servers {
		return &Servers{Addrs: []string{"bench"}, Counter: func(testing.TB) counter { return counter{func() int64 { return 0 }, func() {}} }}
	},
	Rows: []*Row{ours("dsync", "memory", "", dsync.Options{})},
}

// lanes is how many rows are measured side by side.
func lanes(n float64) int {
	if n > 10_000 {
		return 1
	}
	return 4
}

// Sizes of a whole run of Curves, and of one that shows only that everything works.
var (
	FullCurves = Size{
		Rounds: 1, Slice: 300 * time.Millisecond, Warm: 3 * time.Second, Settle: 10 * time.Millisecond,
		TTL: 30 * time.Second, HeldFor: 10 * time.Second, DrainFor: time.Minute,
	}
	ShortCurves = Size{
		Rounds: 1, Slice: 20 * time.Millisecond, Settle: 10 * time.Millisecond,
		HeldFor: time.Second, DrainFor: time.Minute, Points: 1, PeersFail: true,
	}
)

var heldCurve = (&Curve{
	Name: "held", Title: "Locks that one client holds", By: "locks", About: aboutHeld,
	Most: map[string]float64{"etcd": 100_000, "ZooKeeper": 100_000, "PostgreSQL": 100_000},
}).add(func(n float64) *Workload {
	return &Workload{
		Number: 6, Plot: "client CPU ms", Once: true, Lanes: lanes(n), OursAlone: n > 10_000, // the floor of PostgreSQL has one session, whose locks get slower
		Metrics: []Metric{{Name: "client CPU ms"}, {Name: "requests/s"}, {Name: "B/lock"}, {Name: "goroutines"}},
		Measure: func(b *bed, r *Row, _ int) (Sample, error) {
			s, err := measureHeld(b, r, int(n), true)
			if err == nil {
				s["goroutines"] = n * s["goroutines/lock"]
			}
			return s, err
		},
	}
}, 10, 1000, 10_000, 100_000, 1_000_000)

var namesCurve = (&Curve{
	Name: "names", Title: "Names that were locked and given back", By: "names", About: aboutNames,
	Most: map[string]float64{"etcd": 100_000, "ZooKeeper": 100_000, "PostgreSQL": 100_000},
}).add(func(n float64) *Workload {
	return &Workload{
		Number: 6, Plot: "client B", Once: true, Lanes: 1, // that in memory is in this process
		Metrics: []Metric{{Name: "client B"}, {Name: "goroutines"}, {Name: "left at server"}, {Name: "left for good"}, {Name: "server B"}},
		Measure: func(b *bed, r *Row, _ int) (Sample, error) { return measureLeft(b, r, int(n)) },
	}
}, 1, 100, 10_000, 100_000, 1_000_000)

var waitersCurve = (&Curve{
	Name: "waiters", Title: "Callers of one client who wait for one name", By: "waiters", About: aboutWaiters,
}).add(func(n float64) *Workload {
	return &Workload{
		Number: 7, Plot: "requests", Once: true, Lanes: lanes(n), OursAlone: n > 1000, // the floors' queues are at the server
		Metrics: []Metric{{Name: "requests"}, {Name: "B/waiter"}, {Name: "goroutines/waiter"}, {Name: "connections"}, {Name: "CPU µs/waiter"}},
		Measure: func(b *bed, r *Row, _ int) (s Sample, err error) {
			own := *b
			own.size.Waiters = int(n)
			requests := b.servers.Count(b.tb, func() { s, err = waiters.Measure(&own, r, 0) })
			if err == nil {
				s["requests"] = float64(requests)
			}
			return s, err
		},
	}
}, 10, 1000, 10_000, 100_000)

var (
	freeDelayed     = delayed(free, "free", "A free lock, by the time of a round trip", aboutFree)
	handOverDelayed = delayed(handOver, "handover", "A hand-over, by the time of a round trip", aboutHandOver)
)

// delayed is a curve of a workload over a network that is slow.
func delayed(w *Workload, name, title, about string) *Curve {
	c := &Curve{Name: name, Title: title, By: "ms", About: about, Linear: true, Most: map[string]float64{memoryBackend.Name: -1}}
	return c.add(func(ms float64) *Workload {
		return &Workload{
			Number: w.Number, Plot: "p50 ms", Metrics: []Metric{{Name: "p50 ms"}},
			Measure: func(b *bed, r *Row, round int) (Sample, error) {
				s, err := measureDelayed(b, r, round, w, time.Duration(ms*float64(time.Millisecond)))
				if err == nil {
					s = Sample{"p50 ms": s["p50 µs"] / 1000}
				}
				return s, err
			},
		}
	}, 0, 1, 2, 5) // a timer is not finer than 1 ms
}

// toWait is how many round trips a caller may need until it waits.
const toWait = 10

// measureDelayed measures a workload with clients of its own, to whom the server's answers and messages come late.
func measureDelayed(b *bed, r *Row, round int, w *Workload, late time.Duration) (s Sample, err error) {
	servers := *b.servers
	servers.Addrs = nil
	for _, addr := range b.servers.Addrs {
		user, host := splitUser(addr)
		network, through := testenv.Wire(b.tb, host)
		network.Delay(wire.Replies, late)
		servers.Addrs = append(servers.Addrs, user+through)
	}
	own := *b
	own.servers, own.open = &servers, make(map[*Row][]Locker)
	own.size.Settle += toWait * late
	defer func() {
		if closed := own.closeClients(); err == nil {
			err = closed
		}
	}()
	return w.Measure(&own, r, round)
}

// measureLeft takes locks of n names one after another, and tells what has stayed. What is left at the server is seen at once.
func measureLeft(b *bed, r *Row, n int) (Sample, error) {
	if b.backend == memoryBackend {
		return hourOfNames(b, r, n)
	}
	p := spawn(b.tb, "namer", task{Backend: b.backend.Name, Row: r.Name, Addrs: b.servers.Addrs, Guard: b.path, N: n})
	if _, err := listen(p); err != nil {
		return nil, err
	}
	before := b.servers.Left(b.tb)
	order(b.tb, p, hold{})
	a, err := listen(p)
	if err != nil {
		return nil, err
	}
	s := maps.Clone(a.Sample)
	for metric, v := range b.servers.Left(b.tb) {
		s[metric] = v - before[metric]
	}
	order(b.tb, p, hold{})
	return s, p.Wait()
}

// hourOfNames spreads the locks over an hour of fake time. All else in the process stays as it is meanwhile.
func hourOfNames(b *bed, r *Row, n int) (s Sample, err error) {
	synctest.Test(b.tb.(*testing.T), func(t *testing.T) {
		var l Locker
		if l, err = r.Open(t.Context(), b.servers.Addrs); err != nil {
			return
		}
		s, err = takeNames(t.Context(), l, n, time.Hour)
		if closed := l.Close(); err == nil {
			err = closed
		}
	})
	return s, err
}
