package bench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// gate is a ratio to the floor that docs/performance.md states. It is closed
// if dsync does less than half of a stated throughput, or takes more than
// twice a stated latency. Noise does not close it.
type gate struct {
	Backend, Workload, Row, Metric string
	Stated                         float64
}

const (
	gateLoss   = 2 // times the stated ratio
	gateRounds = 5 // the number of rounds, in which the floor and dsync take turns
	gateTries  = 5 // all of which must find the gate closed
)

var gateSize = Size{Slice: 40 * time.Millisecond, Warm: time.Second, Settle: 5 * time.Millisecond}

// readGates reads the table of gates in a page.
func readGates(path string) (all []gate, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, table, found := strings.Cut(string(text), "| backend | workload | row | metric | × floor |\n|---|---|---|---|---:|\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 5 {
			break
		}
		g := gate{Backend: cells[0], Workload: cells[1], Row: cells[2], Metric: cells[3]}
		if g.Stated, err = strconv.ParseFloat(cells[4], 64); err != nil {
			return nil, err
		}
		b := findBackend(g.Backend)
		if b == nil || b.row(g.Row) == nil || g.workload() == nil || g.workload().Metrics[0].Name != g.Metric || !slices.Contains(g.workload().rows(b), b.row(g.Row)) {
			return nil, fmt.Errorf("%s: nothing measures %v", path, g)
		}
		all = append(all, g)
	}
	if !found || len(all) == 0 {
		return nil, fmt.Errorf("%s has no table of gates", path)
	}
	return all, nil
}

func (g gate) String() string {
	return fmt.Sprintf("%s, %s, %s: %s of %v × floor", g.Backend, g.Workload, g.Row, g.Metric, g.Stated)
}

func (g gate) workload() *Workload {
	return find(Workloads, g.Workload, func(w *Workload) string { return w.Name })
}

func (g gate) open(ratio float64) bool {
	if g.workload().Metrics[0].More {
		return ratio >= g.Stated/gateLoss
	}
	return ratio <= g.Stated*gateLoss
}

// ratio measures the median ratio of a row to the floor.
func (g gate) ratio(b *bed, r *Row, rounds int) (float64, error) {
	w := g.workload()
	rows := [2]*Row{w.rows(b.backend)[0], r}
	var cells [2]cell
	for round := range rounds {
		for turn := range rows {
			i := (turn + round) % len(rows)
			s, err := b.measure(w, rows[i], round)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", rows[i].Name, err)
			}
			cells[i].Samples = append(cells[i].Samples, s)
		}
	}
	return quantile(cells[1].ratios(&cells[0], g.Metric), 0.5), nil
}

// check measures until it finds the gate open and returns the measured ratios.
func (g gate) check(b *bed) (open bool, ratios []float64, err error) {
	for range gateTries {
		ratio, err := g.ratio(b, b.backend.row(g.Row), gateRounds)
		if err != nil {
			return false, ratios, err
		}
		if ratios = append(ratios, ratio); g.open(ratio) {
			return true, ratios, nil
		}
	}
	return false, ratios, nil
}
