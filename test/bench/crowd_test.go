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

func TestCrowdsAreWrittenAsTableAndCurve(t *testing.T) {
	results := newResults(FullCrowds)
	for i, w := range Crowds {
		for _, r := range w.rows(redisBackend) {
			results.add(redisBackend, w, r, 0, Sample{w.Plot: float64(1000 / (i + 1))}, nil)
		}
	}
	dir := t.TempDir()
	if err := (&Report{Backends: []*Backend{redisBackend}, Workloads: Crowds, Results: results}).Write(dir); err != nil {
		t.Fatal(err)
	}
	table, curve := readFile(t, dir+"/README.md"), readFile(t, dir+"/"+crowdFile(redisBackend))
	if want := "| **dsync** | hand-overs/s | 1,000 (1.00) | 500 (1.00) | 333 (1.00) | 250 (1.00) | 200 (1.00) |"; !strings.Contains(table, want) {
		t.Errorf("the table lacks %q:\n%s", want, table)
	}
	for _, r := range Crowds[0].rows(redisBackend) {
		if !strings.Contains(curve, r.Name) {
			t.Errorf("the plot lacks %q", r.Name)
		}
	}
}
