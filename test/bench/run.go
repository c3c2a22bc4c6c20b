package bench

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// takesPart reports whether a row has a place in a workload.
func (w *Workload) takesPart(r *Row) bool {
	return (r.In == nil && !w.Named || slices.Contains(r.In, w.Number)) && (!w.OursAlone || r.Kind == Ours)
}

// rows returns those of a backend that take part, the floor first.
func (w *Workload) rows(b *Backend) []*Row {
	var rows []*Row
	for _, r := range b.Rows {
		if w.takesPart(r) && (w.Curve == nil || w.Curve.reaches(b, w.At)) {
			rows = append(rows, r)
		}
	}
	return rows
}

// Run measures the chosen workloads on the chosen backends. It fails the test on an error of dsync or of a floor, and on an overlap;
// on an error of a peer only if the size says so, else it has a place in the results. What is done is told to step, and save is called
// with the results so far from time to time, and at the end.
func Run(t *testing.T, size Size, backends []*Backend, workloads []*Workload, step func(), save func(*Results)) {
	testenv.Apart(t)
	results := newResults(size)
	if size.Storage.Disk && size.Storage.Slow == nil {
		flush, err := flushTime()
		if err != nil {
			t.Fatal(err)
		}
		results.flush = flush
	}
	for _, b := range backends {
		if !slices.ContainsFunc(workloads, func(w *Workload) bool { return !w.Once && len(w.rows(b)) > 0 }) {
			continue
		}
		t.Run(b.Name, func(t *testing.T) { runRounds(t, size, b, workloads, results, step) })
		save(results)
	}
	for _, w := range workloads {
		if w.Once {
			t.Run(w.Name, func(t *testing.T) { runOnce(t, size, backends, w, results, step) })
			save(results)
		}
	}
}

// Steps returns how often Run calls step.
func Steps(size Size, backends []*Backend, workloads []*Workload) int {
	n := 0
	for _, w := range workloads {
		rounds := size.Rounds
		if w.Once {
			rounds = 1
		}
		for _, b := range backends {
			n += rounds * len(w.rows(b))
		}
	}
	return n
}

func makeBed(t *testing.T, size Size, b *Backend) *bed {
	servers := b.Start(t, size.Storage)
	testenv.ServersApart(t, servers.Pids...)
	path := filepath.Join(t.TempDir(), "guard")
	g, err := newGuard(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &bed{
		tb: t, size: size, backend: b, servers: servers, guard: g, path: path,
		open: make(map[*Row][]Locker), pair: make(map[*Row]contenders),
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	if b.Warms && size.Warm > 0 {
		if err := d.warm(); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// warm has the server work for a while. No client is left, whose session would be kept alive beside those that are measured.
func (b *bed) warm() error {
	size := b.size
	b.size.Slice = size.Warm
	_, err := measureDistinct(b, free.floor(b.backend), 64)
	b.size = size
	return errors.Join(err, b.closeClients())
}

// runRounds does the workloads that have rounds. In each, every row has its turn, beginning with another one each time.
func runRounds(t *testing.T, size Size, backend *Backend, workloads []*Workload, results *Results, step func()) {
	b := makeBed(t, size, backend)
	for _, w := range workloads {
		if w.Once {
			continue
		}
		rows := w.rows(backend)
		for round := range size.Rounds {
			for i := range rows {
				b.measure(t, w, rows[(i+round)%len(rows)], round, results)
				step()
			}
		}
		b.endContenders()
	}
}

// endContenders has the processes of workload 5 end.
func (b *bed) endContenders() {
	for _, c := range b.pair {
		c.kill()
	}
	clear(b.pair)
}

// runOnce does a workload that has one round. Libraries that make servers busy do not keep those from their work that do not.
func runOnce(t *testing.T, size Size, backends []*Backend, w *Workload, results *Results, step func()) {
	for _, peers := range []bool{false, true} {
		t.Run(map[bool]string{false: "dsync", true: "peers"}[peers], func(t *testing.T) {
			free := make(chan struct{}, max(1, w.Lanes))
			for _, backend := range backends {
				for _, r := range w.rows(backend) {
					if (r.Kind == Peer) != peers {
						continue
					}
					t.Run(backend.Name+"/"+r.Name, func(t *testing.T) {
						if w.Lanes > 1 {
							t.Parallel()
						}
						free <- struct{}{}
						defer func() { <-free }()
						makeBed(t, size, backend).measure(t, w, r, 0, results)
						step()
					})
				}
			}
		})
	}
}

func (b *bed) measure(t *testing.T, w *Workload, r *Row, round int, results *Results) {
	t.Helper()
	s, err := w.Measure(b, r, round)
	results.add(b.backend, w, r, round, s, err)
	if err == nil {
		return
	}
	text := fmt.Sprintf("%s, %s: workload %s, round %d: %v", b.backend.Name, r.Name, w.Name, round+1, err)
	b.forget(r)
	overlap := strings.Contains(err.Error(), errOverlap.Error())
	known := r.MayFail != nil && r.MayFail(w, err) || r.Kind == Peer && !b.size.PeersFail
	if overlap || !known {
		t.Error(text)
	} else {
		t.Log(text)
	}
}
