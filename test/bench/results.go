package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// cell is what was measured of a row in a workload.
type cell struct {
	Samples []Sample // by round; nil where it failed
	Error   string   // the last one
}

// place is where a cell belongs, by names.
type place struct{ Backend, Workload, Row string }

// Results has a cell for each row that takes part in a workload. Its methods may be called concurrently.
type Results struct {
	size    Size
	machine string
	flush   time.Duration // what a flush takes the disk of the servers, if they have one

	mu    sync.Mutex
	cells map[place]*cell
}

func newResults(size Size) *Results {
	machine := fmt.Sprintf("%d CPUs, %s, %s/%s", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return &Results{size: size, machine: strings.Join(append([]string{machine}, versions()...), ", "), cells: make(map[place]*cell)}
}

// compared are the modules whose versions matter.
var compared = []string{
	"github.com/redis/rueidis", "github.com/redis/go-redis/v9", "github.com/go-redsync/redsync/v4", "github.com/bsm/redislock",
	"go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk", "github.com/jackc/pgx/v5", "github.com/allisson/go-pglock/v3", "cirello.io/pglock",
}

func versions() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var all []string
	for _, m := range info.Deps {
		if slices.Contains(compared, m.Path) {
			all = append(all, m.Path+" "+m.Version)
		}
	}
	return all
}

func (r *Results) add(b *Backend, w *Workload, row *Row, round int, s Sample, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := place{b.Name, w.Name, row.Name}
	c := r.cells[at]
	if c == nil {
		c = new(cell)
		r.cells[at] = c
	}
	if len(c.Samples) <= round {
		c.Samples = append(c.Samples, make([]Sample, round+1-len(c.Samples))...)
	}
	c.Samples[round] = s
	if err != nil {
		c.Error = err.Error()
	}
}

// of returns nil for what was not measured.
func (r *Results) of(b *Backend, w *Workload, row *Row) *cell {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cells[place{b.Name, w.Name, row.Name}]
}

// has reports whether anything of a workload was measured.
func (r *Results) has(w *Workload) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at := range r.cells {
		if at.Workload == w.Name {
			return true
		}
	}
	return false
}

// stored is the form of results in a file.
type stored struct {
	Size    Size
	Machine string
	Flush   time.Duration
	Cells   []storedCell
}

type storedCell struct {
	place
	cell
}

// Store writes the results into a file, from which LoadResults has them again.
func (r *Results) Store(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := stored{Size: r.size, Machine: r.machine, Flush: r.flush}
	for at, c := range r.cells {
		s.Cells = append(s.Cells, storedCell{at, *c})
	}
	slices.SortFunc(s.Cells, func(a, b storedCell) int {
		return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Row, b.Row))
	})
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// LoadResults reads what Store has written.
func LoadResults(path string) (*Results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := &Results{size: s.Size, machine: s.Machine, flush: s.Flush, cells: make(map[place]*cell)}
	for _, c := range s.Cells {
		r.cells[c.place] = &c.cell
	}
	return r, nil
}

// value returns the median of a metric over the rounds.
func (c *cell) value(metric string) float64 {
	if c == nil {
		return math.NaN()
	}
	var values []float64
	for _, s := range c.Samples {
		if v, ok := s[metric]; ok {
			values = append(values, v)
		}
	}
	return median(values)
}

// ratio returns the median over the rounds of how many times as large a metric is as that of the floor.
func (c *cell) ratio(floor *cell, metric string) float64 {
	if c == nil || floor == nil {
		return math.NaN()
	}
	var ratios []float64
	for i := range min(len(c.Samples), len(floor.Samples)) {
		a, ok := c.Samples[i][metric]
		if b := floor.Samples[i][metric]; ok && b > 0 {
			ratios = append(ratios, a/b)
		}
	}
	return median(ratios)
}
