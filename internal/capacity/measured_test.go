package capacity

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// within is the permitted difference between a simulated and a measured value:
// a fifth of the measured value.
const within = 0.2

// figure is a measured value with its simulated counterpart.
type figure struct {
	row, column         string // of the table in the page
	measured, simulated float64
	fitted              bool // a constant was derived from the measured value
}

func (f figure) off() float64 { return f.simulated/f.measured - 1 }

func (f figure) check(t *testing.T) {
	t.Helper()
	if math.IsNaN(f.off()) || math.Abs(f.off()) > within {
		t.Errorf("%s, %s: the simulated value is %.4g, the measured value %.4g: %+.0f %%", f.row, f.column, f.simulated, f.measured, 100*f.off())
	}
}

// crowds are hand-overs per second of clients that hold a name for 1 ms, from
// docs/measured.md.
var crowds = []struct {
	model   model
	clients []int
	measure []float64
	fitted  map[int]bool
}{
	{redisFair, sizes, []float64{689, 651, 621, 626, 615}, map[int]bool{10: true}},
	{etcd, sizes, []float64{580, 447, 424, 428, 344}, map[int]bool{10: true}},
	{zooKeeper, sizes, []float64{673, 570, 589, 537, 384}, map[int]bool{10: true, 1000: true}},
	{postgreSQL, sizes[:4], []float64{791, 727, 661, 619}, map[int]bool{10: true}},
}

var sizes = []int{2, 10, 50, 200, 1000}

func crowdFigures(t *testing.T) (all []figure) {
	for _, c := range crowds {
		for i, n := range c.clients {
			s := crowd(t, c.model, 0, n, 1, time.Millisecond, bout(n))
			all = append(all, figure{c.model.name, fmt.Sprintf("%d clients", n), c.measure[i], s.perSecond, c.fitted[n]})
		}
	}
	return all
}

// bout is the observation time of a crowd.
func bout(n int) time.Duration { return time.Second + time.Duration(n)*2*time.Millisecond }

// A model that lacks one of its parts deviates from the measured curve, and
// TestCapacityPage detects that.
func TestCrowdsNeedEachPart(t *testing.T) {
	for _, test := range []struct {
		part     string
		without  func() model
		n        int
		measured float64
	}{
		{"requests", func() model { m := redisFair; m.latency, m.event = 0, 0; return m }, 10, 651},
		{"the time of reading the queue", func() model { m := etcd; m.perWaiter = 0; return m }, 1000, 344},
		{"the time of reading the queue", func() model { m := zooKeeper; m.perWaiter = 0; return m }, 1000, 384},
		{"the work of other clients", func() model { m := etcd; m.beside = 0; return m }, 50, 424},
	} {
		m := test.without()
		f := figure{measured: test.measured, simulated: crowd(t, m, 0, test.n, 1, time.Millisecond, bout(test.n)).perSecond}
		if math.Abs(f.off()) <= within {
			t.Errorf("%s without %s, %d clients: %.4g is near the measured %.4g anyway", m.name, test.part, test.n, f.simulated, f.measured)
		}
	}
}

// networks are times in ms from docs/measured.md, for round trips of 0, 1, 2
// and 5 ms: the time of a free lock with its release, and the time of a
// hand-over.
var networks = []struct {
	model          model
	free, handOver [4]float64
}{
	{redisFair, [4]float64{0.22, 2.48, 4.65, 10.7}, [4]float64{0.36, 2.64, 4.81, 11.0}},
	{etcd, [4]float64{0.37, 2.61, 4.83, 11.0}, [4]float64{0.33, 1.58, 2.92, 5.90}},
	{zooKeeper, [4]float64{0.48, 2.80, 5.31, 11.2}, [4]float64{0.47, 2.67, 5.16, 11.1}},
	{postgreSQL, [4]float64{0.16, 2.40, 4.60, 10.7}, [4]float64{0.20, 1.32, 2.52, 5.95}},
}

var roundTrips = [4]time.Duration{0, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond}

func networkFigures(t *testing.T) (all []figure) {
	for _, c := range networks {
		for i, late := range roundTrips {
			if late > 0 {
				late += lateness
			}
			column := fmt.Sprintf("%d ms", roundTrips[i].Milliseconds())
			all = append(all, figure{c.model.name + ", a free lock", column, c.free[i], ms(freeLock(t, c.model, late)), i == 0 || i == 2 && c.model == redisFair},
				figure{c.model.name + ", a hand-over", column, c.handOver[i], ms(handOver(t, c.model, late)), i == 0})
		}
	}
	return all
}

func ms(s simulated) float64 { return float64(s.mean) / float64(time.Millisecond) }

// hotFigures are hand-overs per second of 32 goroutines of a process: workload
// 3 of docs/performance.md without a disk.
func hotFigures(t *testing.T) (all []figure) {
	for _, c := range []struct {
		model    model
		measured float64
		fitted   bool
	}{
		{hot("Redis", 205*us), 175_393, true}, {hot("Redlock", 273*us), 129_174, false}, {hot("PostgreSQL", 186*us), 156_256, false},
	} {
		s := crowd(t, c.model, 0, 1, 32, 0, 100*time.Millisecond)
		all = append(all, figure{c.model.name, "32 goroutines", c.measured, s.perSecond, c.fitted})
	}
	return all
}
