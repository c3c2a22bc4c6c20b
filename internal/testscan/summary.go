package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// module is left out of the names of packages.
const module = "github.com/go-dsync/dsync"

// slowest is how many tests the summary names.
const slowest = 20

// summary is what was run and for how long. A test with subtests counts as these.
type summary struct {
	packages []*tally
	tests    []timed
	left     []string // tests that are left to make test-long
	parents  map[test]bool
	open     map[string]*tally // of packages that have not ended
}

// tally is a package with its tests.
type tally struct {
	name             string
	took             time.Duration
	ran, skips, long int // tests that ended, and how many of them were skipped, or left to make test-long
}

// timed is a test and how long it took, without what it waited for its turn.
type timed struct {
	test
	took time.Duration
}

func newSummary() *summary { return &summary{parents: map[test]bool{}, open: map[string]*tally{}} }

// add takes the end of a test, with what it wrote, or of a package.
func (s *summary) add(e event, wrote []string) {
	p := s.open[e.Package]
	if p == nil {
		p = &tally{name: short(e.Package)}
		s.open[e.Package] = p
	}
	took := time.Duration(e.Elapsed * float64(time.Second))
	if e.Test == "" {
		delete(s.open, e.Package)
		if p.took = took; p.ran > 0 {
			s.packages = append(s.packages, p)
		}
		return
	}
	t := test{e.Package, e.Test}
	if i := strings.LastIndexByte(t.name, '/'); i >= 0 {
		s.parents[test{t.pkg, t.name[:i]}] = true
	}
	if s.parents[t] { // it ends after its subtests
		delete(s.parents, t)
		return
	}
	p.ran++
	s.tests = append(s.tests, timed{t, took})
	if e.Action != "skip" {
		return
	}
	if strings.Contains(strings.Join(wrote, ""), testenv.LongMark) {
		p.long++
		s.left = append(s.left, p.name+" "+t.name)
		return
	}
	p.skips++
}

func short(pkg string) string {
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/"), ".")
}

// write shows the summary of a run that took so long, and for which the processors worked so long.
func (s *summary) write(w io.Writer, took, worked time.Duration) {
	if len(s.packages) == 0 {
		return
	}
	slices.SortFunc(s.packages, func(a, b *tally) int { return cmp.Compare(b.took, a.took) })
	slices.SortFunc(s.tests, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	var all tally
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tab, "\nseconds\ttests\tskipped\tpackage\n")
	for _, p := range s.packages {
		fmt.Fprintf(tab, "%.1f\t%d\t%d\t%s\n", p.took.Seconds(), p.ran, p.skips, p.name)
		all.ran, all.skips, all.long = all.ran+p.ran, all.skips+p.skips, all.long+p.long
	}
	fmt.Fprint(tab, "\nseconds\tslowest tests\n")
	for _, t := range s.tests[:min(slowest, len(s.tests))] {
		fmt.Fprintf(tab, "%.1f\t%s %s\n", t.took.Seconds(), short(t.pkg), t.name)
	}
	tab.Flush()
	if len(s.left) > 0 {
		fmt.Fprintf(w, "\nleft to make test-long:\n  %s\n", strings.Join(s.left, "\n  "))
	}
	fmt.Fprintf(w, "\n%d tests in %d packages, %d of them skipped and %d left to make test-long: %v, of which %d processors worked %v\n",
		all.ran, len(s.packages), all.skips, all.long, took.Round(time.Second), runtime.NumCPU(), worked.Round(time.Second))
}
