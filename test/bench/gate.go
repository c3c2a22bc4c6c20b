package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// gate keeps a ratio to the floor that docs/performance.md publishes. It closes when dsync needs twice as much as that, beside the floor, or does half
// as much, and not for less: noise does not close it.
type gate struct {
	Backend, Workload, Row string

	// Metric is one of the workload's, or requests or clientCPU.
	Metric string

	// Published is how many times as large the metric is as that of the floor.
	Published float64
}

// Metrics of gates, for each operation: what the server gets, and the CPU time of the client. Other work on the machine hardly changes them. They
// stand for the speed of many callers, where dsync is limited by the CPU of the client and the floor by that of the server: if but one of
// these has other work, the ratio of their speeds is another.
const (
	requests  = "requests"
	clientCPU = "client CPU"
)

// Gates are what a program feels first: a lock that is free, as a lock, to read and of permits; many names at once; a name that goes from
// client to client; and that a process which passes a name on leaves the server alone, or asks it once on etcd.
var Gates = []gate{
	{"Redis", "1", "dsync", "p50 µs", 1.17},
	{"Redis", "2 (64)", "dsync", clientCPU, 1.15},
	{"Redis", "3", "dsync", requests, 0.016},
	{"Redis", "4", "dsync", "p50 µs", 1.67},
	{"Redis", "5", "dsync", "requests/hand-over", 0.0183},
	{"Redis", "8", "dsync, Read", "p50 µs", 1.18},
	{"Redis", "9", "dsync, Read", requests, 0.001},
	{"Redis", "12", "dsync, Permits", "p50 µs", 1.13},
	{"Redlock", "1", "dsync", "p50 µs", 1.45},
	{"etcd", "1", "dsync", "p50 µs", 1.02},
	{"etcd", "2 (64)", "dsync", clientCPU, 0.70},
	{"etcd", "4", "dsync", "p50 µs", 1.10},
	{"etcd", "5", "dsync", "requests/hand-over", 0.54},
	{"ZooKeeper", "1", "dsync", "p50 µs", 1.57},
	{"ZooKeeper", "4", "dsync", "p50 µs", 1.40},
	{"PostgreSQL", "1", "dsync", "p50 µs", 1.05},
	{"PostgreSQL", "2 (64)", "dsync", clientCPU, 0.3},
	{"PostgreSQL", "4", "dsync", "p50 µs", 1.60},
}

const (
	gateLoss   = 2 // times the published ratio
	gateRounds = 9 // in which floor and dsync take turns
	gateTries  = 5 // a gate is closed if it is found closed each time
)

// Sizes of a round at a gate, where time is measured and where requests are counted.
var (
	gateTimed   = Size{Slice: 30 * time.Millisecond, Warm: time.Second, Settle: 5 * time.Millisecond}
	gateCounted = Size{Slice: 100 * time.Millisecond, Settle: 5 * time.Millisecond}
)

func (g *gate) String() string {
	return fmt.Sprintf("%s, workload %s, %s, %s", g.Backend, g.Workload, g.Row, g.Metric)
}

func (g *gate) workload() *Workload {
	return Workloads[slices.IndexFunc(Workloads, func(w *Workload) bool { return w.Name == g.Workload })]
}

func (g *gate) counts() bool { return g.Metric == requests || g.Metric == "requests/hand-over" }

// more reports whether a larger ratio is better.
func (g *gate) more() bool {
	return slices.Contains(g.workload().Metrics, Metric{Name: g.Metric, More: true})
}

// bound is the ratio to the floor beyond which the gate is closed.
func (g *gate) bound() float64 {
	if g.more() {
		return g.Published / gateLoss
	}
	return g.Published * gateLoss
}

func (g *gate) open(ratio float64) bool {
	if g.more() {
		return ratio >= g.bound()
	}
	return ratio <= g.bound()
}

// ratio measures the ratio of a row to the floor, at the median of rounds in which they take turns. What is counted needs one round.
func (g *gate) ratio(b *bed, r *Row, rounds int) (float64, error) {
	b.size = gateTimed
	if g.counts() {
		b.size, rounds = gateCounted, 1
	}
	rows := [2]*Row{g.workload().floor(b.backend), r}
	var ratios []float64
	for round := range rounds {
		var values [2]float64
		for turn := range rows {
			i := (turn + round) % len(rows)
			var err error
			if values[i], err = g.value(b, rows[i], round); err != nil {
				return math.NaN(), fmt.Errorf("%s: %w", rows[i].Name, err)
			}
		}
		ratios = append(ratios, values[1]/values[0])
	}
	return median(ratios), nil
}

func (g *gate) value(b *bed, r *Row, round int) (float64, error) {
	w := g.workload()
	s, err := w.Measure(b, r, round)
	measure := func() { s, err = w.Measure(b, r, round+1) } // what has connections by now
	switch {
	case err != nil:
		return math.NaN(), err
	case g.Metric == requests:
		n := b.servers.Count(b.tb, measure)
		return float64(n) / s[operations], err
	case g.Metric == clientCPU:
		before := cpuTime()
		measure()
		return (cpuTime() - before).Seconds() / s[operations], err
	}
	return s[g.Metric], nil
}

// check measures until the gate is found open, and returns whether that was so, and what was measured.
func (g *gate) check(b *bed, r *Row) (open bool, ratios []float64, err error) {
	for range gateTries {
		ratio, err := g.ratio(b, r, gateRounds)
		if err != nil {
			return false, ratios, err
		}
		ratios = append(ratios, ratio)
		if g.open(ratio) {
			return true, ratios, nil
		}
	}
	return false, ratios, nil
}

// plant returns a row with a loss: before it gives a lock back, it takes some more, of other names.
func plant(r *Row, more int) *Row {
	planted := *r
	planted.planted = more
	planted.Open = func(ctx context.Context, addrs []string) (Locker, error) {
		l, err := r.Open(ctx, addrs)
		return plantedLocker{l, more}, err
	}
	return &planted
}

type plantedLocker struct {
	Locker
	more int
}

func (l plantedLocker) Lock(ctx context.Context, name string) (Held, error) {
	held, err := l.Locker.Lock(ctx, name)
	return plantedHeld{held, l}, err
}

type plantedHeld struct {
	Held
	l plantedLocker
}

func (h plantedHeld) Release(ctx context.Context) error {
	for range h.l.more {
		if err := pairOnce(ctx, h.l.Locker, newID()); err != nil {
			return err
		}
	}
	return h.Held.Release(ctx)
}
