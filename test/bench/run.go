package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// Size is the length of a run.
type Size struct {
	Rounds    int
	Slice     time.Duration // of a round on one row
	Warm      time.Duration // for servers that are slow at first
	Settle    time.Duration // until a caller is known to wait
	HeldFor   time.Duration
	Held      int  // locks
	MaxCrowd  int  // clients
	PeersFail bool // an error of a peer fails the run, like an error of dsync
}

var (
	// Full is the size of a run whose results count.
	Full = Size{
		Rounds: 10, Slice: 200 * time.Millisecond, Warm: 3 * time.Second, Settle: 5 * time.Millisecond,
		HeldFor: 20 * time.Second, Held: 10_000, MaxCrowd: 1000,
	}
	// Short is the size of a run that only checks that nothing fails.
	Short = Size{
		Rounds: 1, Slice: 20 * time.Millisecond, Settle: 5 * time.Millisecond,
		HeldFor: 300 * time.Millisecond, Held: 200, MaxCrowd: 10, PeersFail: true,
	}
)

const (
	// hangGuard is a time limit for every step. It is not an expected duration.
	hangGuard = 3 * time.Minute
	// peerGuard limits a round of a peer, because some peers occasionally wait
	// forever, even for a free lock. Larger workloads get more time.
	peerGuard = 10 * time.Second
)

// bed contains the servers of a backend and the clients that are connected to
// them.
type bed struct {
	tb      testing.TB
	size    Size
	backend *Backend
	disk    bool
	servers *Servers
	guard   *guard
	path    string // of the guard
	open    map[*Row][]Locker
}

func makeBed(t *testing.T, size Size, backend *Backend, disk bool) *bed {
	servers := backend.Start(t, testenv.Storage{Disk: disk})
	testenv.ServersApart(t, servers.Pids...)
	path := filepath.Join(t.TempDir(), "guard")
	g, err := newGuard(path)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{tb: t, size: size, backend: backend, disk: disk, servers: servers, guard: g, path: path, open: make(map[*Row][]Locker)}
	t.Cleanup(func() {
		if err := errors.Join(b.closeClients(), g.close()); err != nil {
			t.Error(err)
		}
	})
	if backend.Warms && size.Warm > 0 {
		b.size.Slice = size.Warm
		_, err := measureNames(t.Context(), b, Workloads[2].rows(backend)[0], 0)
		b.size = size
		if err := errors.Join(err, b.closeClients()); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// lockers returns n clients of a row, which stay open for later rounds.
func (b *bed) lockers(ctx context.Context, r *Row, n int) ([]Locker, error) {
	for len(b.open[r]) < n {
		l, err := r.Open(ctx, b.servers.Addrs)
		if err != nil {
			return nil, fmt.Errorf("open: %w", err)
		}
		b.open[r] = append(b.open[r], l)
	}
	return b.open[r][:n], nil
}

func (b *bed) closeClients() error {
	var errs []error
	for r, all := range b.open {
		if err := closeAll(all); err != nil {
			errs = append(errs, fmt.Errorf("%s: close: %w", r.Name, err))
		}
	}
	clear(b.open)
	return errors.Join(errs...)
}

// forget abandons the clients of a peer that has failed, because their Close
// may hang.
func (b *bed) forget(r *Row) {
	if all := b.open[r]; r.Kind == Peer && all != nil {
		delete(b.open, r)
		go func() { _ = closeAll(all) }() // ends when the process ends, at the latest
	}
}

// measure runs a round of a workload on a row. A peer that hangs is abandoned.
func (b *bed) measure(w *Workload, r *Row, round int) (Sample, error) {
	limit := hangGuard
	if r.Kind == Peer {
		limit = peerGuard
		if w.Once {
			limit += 2*b.size.HeldFor + time.Duration(w.Crowd)*50*time.Millisecond
		}
	}
	ctx := context.Background()
	if !w.Background {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(limit, cancel).Stop()
	}
	type result struct {
		s   Sample
		err error
	}
	done := make(chan result, 1)
	go func() { // ends when the round ends, unless a peer hangs
		defer close(done) // if the test ends in the round
		s, err := w.Measure(ctx, b, r, round)
		done <- result{s, err}
	}()
	timer := time.NewTimer(limit + limit/4)
	defer timer.Stop()
	var got result
	select {
	case got = <-done:
	case <-timer.C:
		got.err = fmt.Errorf("no end within %v", limit)
	}
	if got.err == nil && got.s == nil {
		got.err = errors.New("no result")
	}
	return got.s, got.err
}

// place is the position of a result in the report.
type place struct {
	Backend, Workload, Row string
	Disk                   bool
}

// cell holds the results of a row in a workload.
type cell struct {
	Samples  []Sample // by round, nil where the round failed
	Error    error    // the last error
	failures int      // rounds
}

const maxFailures = 3 // of a row in a workload

// Results are the cells of a run.
type Results map[place]*cell

// Run measures workloads on a backend. In each round every row has its turn,
// and each round begins with a different row. Overlaps, and errors of dsync and
// of floors, fail the test. Errors of peers fail the test if the size specifies
// that. Other errors of a crowd of 1,000 are only reported.
func (results Results) Run(t *testing.T, size Size, backend *Backend, workloads []*Workload, disk bool) {
	b := makeBed(t, size, backend, disk)
	for _, w := range workloads {
		rounds := size.Rounds
		if w.Once {
			rounds = 1
		}
		if w.Crowd > size.MaxCrowd || w.Once && disk {
			continue
		}
		rows := w.rows(backend)
		for round := range rounds {
			for i := range rows {
				r := rows[(i+round)%len(rows)]
				at := place{backend.Name, w.Name, r.Name, disk}
				c := results[at]
				if c == nil {
					c = &cell{Samples: make([]Sample, rounds)}
					results[at] = c
				}
				if c.failures == maxFailures {
					continue // it may hang each time
				}
				s, err := b.measure(w, r, round)
				if err == nil {
					c.Samples[round] = s
					continue
				}
				c.Error = err
				c.failures++
				b.forget(r)
				report := t.Errorf
				overlap := strings.Contains(err.Error(), errOverlap.Error())
				// A busy machine is too slow for 1,000 clients with this TTL.
				known := r.MayFail || r.Kind == Peer && !size.PeersFail || w.Crowd == 1000
				if known && !overlap {
					report = t.Logf
				}
				report("%s, %s, round %d: %v", w.Name, r.Name, round+1, err)
			}
		}
	}
}

// values returns a metric in all rounds.
func (c *cell) values(metric string) (all []float64) {
	if c == nil {
		return nil
	}
	for _, s := range c.Samples {
		if v, ok := s[metric]; ok {
			all = append(all, v)
		}
	}
	return all
}

// ratios returns the ratios of a metric to the same metric of the floor in the
// same round.
func (c *cell) ratios(floor *cell, metric string) (all []float64) {
	if c == nil || floor == nil {
		return nil
	}
	for i := range min(len(c.Samples), len(floor.Samples)) {
		v, ok := c.Samples[i][metric]
		if f := floor.Samples[i][metric]; ok && f > 0 {
			all = append(all, v/f)
		}
	}
	return all
}

// quantile returns the interpolated value below which a share p of the values
// lies.
func quantile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	at := p * float64(len(v)-1)
	i := int(at)
	return v[i] + (at-float64(i))*(v[min(i+1, len(v)-1)]-v[i])
}

// percentile returns the smallest duration that a share p of the durations
// does not exceed. It sorts them.
func percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[max(0, int(math.Ceil(p*float64(len(d))))-1)]
}

// jain returns the fairness index: 1 if all counts are equal, 1/n if one of n
// callers has everything, and 0 if there is nothing.
func jain(counts []int64) float64 {
	var sum, squares float64
	for _, c := range counts {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
