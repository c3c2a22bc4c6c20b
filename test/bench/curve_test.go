package bench

import (
	"slices"
	"strings"
	"testing"
)

func TestSharesAreEven(t *testing.T) {
	for _, test := range []struct {
		n, parts int
		want     []int
	}{{2, 2, []int{1, 1}}, {10, 4, []int{2, 2, 3, 3}}, {1000, 4, []int{250, 250, 250, 250}}} {
		if got := shares(test.n, test.parts); !slices.Equal(got, test.want) {
			t.Errorf("%d in %d parts: got %v, want %v", test.n, test.parts, got, test.want)
		}
	}
}

func TestCurvesAreWrittenAsTableAndPlot(t *testing.T) {
	for _, test := range []struct {
		curve      *Curve
		file, want string
	}{
		{Crowds, "redis.svg", "| **dsync** | hand-overs/s | 2.00 (1.00) | 10.0 (1.00) | 50.0 (1.00) | 200 (1.00) | 1,000 (1.00) | 1.00, 1.00, 1.00, 1.00 |"},
		{freeDelayed, "free.svg", "| **Redis, dsync** | p50 ms | 0 | 1.00 (1.00) | 2.00 (1.00) | 5.00 (1.00) | 1.00, 1.00, 1.00 |"},
	} {
		results := newResults(FullCrowds)
		for _, w := range test.curve.Points {
			for _, r := range w.rows(redisBackend) {
				results.add(redisBackend, w, r, 0, Sample{w.Plot: w.At}, nil)
			}
		}
		dir := t.TempDir()
		if err := (&Report{Backends: []*Backend{redisBackend}, Workloads: test.curve.Points, Results: results}).Write(dir); err != nil {
			t.Fatal(err)
		}
		if table := readFile(t, dir+"/README.md"); !strings.Contains(table, test.want) {
			t.Errorf("the table lacks %q:\n%s", test.want, table)
		}
		plot := readFile(t, dir+"/"+test.file)
		for _, r := range test.curve.Points[0].rows(redisBackend) {
			if !strings.Contains(plot, r.Name) {
				t.Errorf("the plot lacks %q", r.Name)
			}
		}
	}
}
