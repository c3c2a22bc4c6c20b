package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// atGates runs check for each gate, on one server for all of a backend.
func atGates(t *testing.T, check func(t *testing.T, b *bed, g *gate)) {
	backends, err := choose(Backends, *only, func(b *Backend) string { return b.Name })
	if err != nil {
		t.Fatal(err)
	}
	testenv.Apart(t)
	for _, backend := range backends {
		t.Run(backend.Name, func(t *testing.T) {
			b := makeBed(t, gateTimed, backend)
			for i := range Gates {
				if g := &Gates[i]; g.Backend == backend.Name {
					check(t, b, g)
				}
			}
			b.endContenders()
		})
	}
}

// TestGates fails if dsync has lost half of what is published, beside the floor.
func TestGates(t *testing.T) {
	atGates(t, func(t *testing.T, b *bed, g *gate) {
		open, ratios, err := g.check(b, find(g.Backend, g.Row))
		if err != nil {
			t.Fatalf("%v: %v", g, err)
		}
		text := fmt.Sprintf("%v: %.3g of the floor's; published is %.3g, the bound %.3g", g, ratios, g.Published, g.bound())
		if !open {
			t.Error(text)
		} else {
			t.Log(text)
		}
	})
}

// TestGatesCloseForALoss has dsync make three times the requests, or five times where requests are not most of the time: a name that goes from
// client to client has to wake who waits, and requests of many names are combined.
func TestGatesCloseForALoss(t *testing.T) {
	atGates(t, func(t *testing.T, b *bed, g *gate) {
		more := 2
		if w := g.workload(); w == handOver || w == distinct64 {
			more = 4
		}
		var ratios []float64
		for range gateTries {
			ratio, err := g.ratio(b, plant(find(g.Backend, g.Row), more), 3)
			if err != nil {
				t.Fatalf("%v: %v", g, err)
			}
			if ratios = append(ratios, ratio); !g.open(ratio) {
				t.Logf("%v: %.3g of the floor's with a loss; the bound is %.3g", g, ratios, g.bound())
				return
			}
		}
		t.Errorf("%v: %.3g of the floor's with a loss; the bound is %.3g", g, ratios, g.bound())
	})
}

func TestGatesAreAboutWhatIsMeasuredAndPublished(t *testing.T) {
	published := readFile(t, "../../docs/performance.md")
	for i := range Gates {
		g := &Gates[i]
		metric := g.Metric == requests || g.Metric == clientCPU || slices.ContainsFunc(g.workload().Metrics, func(m Metric) bool { return m.Name == g.Metric })
		if row := find(g.Backend, g.Row); row == nil || row.Kind != Ours || !g.workload().takesPart(row) || !metric {
			t.Errorf("nothing measures %v", g)
		}
		line := fmt.Sprintf("\n| %s | %s | %s | %s | %.3g | %.3g |\n", g.Backend, g.Workload, g.Row, g.Metric, g.Published, g.bound())
		if !strings.Contains(published, line) {
			t.Errorf("docs/performance.md lacks the line %s", line)
		}
	}
}
