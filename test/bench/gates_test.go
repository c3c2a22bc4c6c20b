package bench

import (
	"context"
	"slices"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// atGates calls check for each gate, with one server for all gates of a
// backend.
func atGates(t *testing.T, check func(t *testing.T, b *bed, g gate)) {
	gates, err := readGates("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Apart(t)
	for _, backend := range chosenBackends(t) {
		t.Run(backend.Name, func(t *testing.T) {
			b := makeBed(t, gateSize, backend, false)
			for _, g := range gates {
				if g.Backend == backend.Name {
					check(t, b, g)
				}
			}
		})
	}
}

// TestGates fails if dsync has lost half of a ratio that docs/performance.md
// states.
func TestGates(t *testing.T) {
	atGates(t, func(t *testing.T, b *bed, g gate) {
		open, ratios, err := g.check(b)
		if err != nil {
			t.Fatalf("%v: %v", g, err)
		}
		report := t.Logf
		if !open {
			report = t.Errorf
		}
		report("%v: measured %.3g", g, ratios)
	})
}

// TestGatesCloseForALoss makes dsync acquire four more names with each lock.
func TestGatesCloseForALoss(t *testing.T) {
	atGates(t, func(t *testing.T, b *bed, g gate) {
		if g.workload().Number == 5 {
			return // other processes have the row without the loss
		}
		row := withLoss(b.backend.row(g.Row), 4)
		var ratios []float64
		for range gateTries {
			ratio, err := g.ratio(b, row, 3)
			if err != nil {
				t.Fatalf("%v: %v", g, err)
			}
			if ratios = append(ratios, ratio); !g.open(ratio) {
				return
			}
		}
		t.Errorf("%v: with a loss %.3g, and the gate is open", g, ratios)
	})
}

// withLoss returns a row that acquires more names before each release.
func withLoss(r *Row, more int) *Row {
	lossy := *r
	lossy.Open = func(ctx context.Context, addrs []string) (Locker, error) {
		l, err := r.Open(ctx, addrs)
		return lossyLocker{l, more}, err
	}
	return &lossy
}

type lossyLocker struct {
	Locker
	more int
}

func (l lossyLocker) Lock(ctx context.Context, name string) (Held, error) {
	held, err := l.Locker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return &hold{release: func(ctx context.Context) error {
		for range l.more {
			if err := pairOnce(ctx, l.Locker, newID()); err != nil {
				return err
			}
		}
		return held.Release(ctx)
	}}, nil
}

func TestGateBounds(t *testing.T) {
	latency := gate{Workload: "4 hand-over", Stated: 1.8}
	throughput := gate{Workload: "5 two processes", Stated: 6}
	for _, test := range []struct {
		g     gate
		ratio float64
		want  bool
	}{{latency, 3.5, true}, {latency, 3.7, false}, {throughput, 3.1, true}, {throughput, 2.9, false}} {
		if got := test.g.open(test.ratio); got != test.want {
			t.Errorf("%v: open at %v: got %v, want %v", test.g, test.ratio, got, test.want)
		}
	}
}

func TestEachWorkloadHasOneFloor(t *testing.T) {
	for _, b := range Backends {
		for _, w := range Workloads {
			rows := w.rows(b)
			for i, r := range rows {
				if (r.Kind == Floor) != (i == 0) {
					t.Errorf("%s, %s: row %d is %s", b.Name, w.Name, i, r.Name)
				}
			}
			if len(rows) > 0 && !slices.ContainsFunc(rows, func(r *Row) bool { return r.Kind == Ours }) {
				t.Errorf("%s, %s: no row of dsync", b.Name, w.Name)
			}
		}
	}
}
