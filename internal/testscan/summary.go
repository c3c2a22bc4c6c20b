package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// module is left out of the names of packages.
const module = "github.com/go-dsync/dsync"

// At most so many tests are named: the slowest of all, and those that were skipped for one reason.
const (
	namedSlowest = 20
	namedSkipped = 3
)

// summary is what was run and for how long. A test with subtests counts as these.
type summary struct {
	packages []*tally
	tests    []timed
	skipped  map[string][]string // tests by reason
	parents  map[test]bool       // tests whose subtests have ended, and they have not
	open     map[string]*tally   // packages that have not ended
}

// tally is a package, and how many of its tests have ended.
type tally struct {
	name       string
	took       time.Duration
	ran, skips int
}

// timed is a test and how long it took, without what it waited for its turn.
type timed struct {
	name string
	took time.Duration
}

func newSummary() *summary {
	return &summary{skipped: map[string][]string{}, parents: map[test]bool{}, open: map[string]*tally{}}
}

// add takes the end of a package, or of a test, with what that wrote.
func (s *summary) add(e event, wrote []string) {
	p := s.open[e.Package]
	if p == nil {
		p = &tally{name: cmp.Or(strings.TrimPrefix(strings.TrimPrefix(e.Package, module), "/"), ".")}
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
	if s.parents[t] {
		delete(s.parents, t)
		return
	}
	name := p.name + " " + t.name
	s.tests = append(s.tests, timed{name, took})
	if p.ran++; e.Action == "skip" {
		p.skips++
		why := reason(wrote)
		s.skipped[why] = append(s.skipped[why], name)
	}
}

// logged is the first line of a log entry, up to its first colon.
var logged = regexp.MustCompile(`^ +\S+\.go:\d+: ([^:\n]*)`)

// reason returns why a test was skipped that wrote this.
func reason(wrote []string) string {
	for _, line := range slices.Backward(wrote) {
		if found := logged.FindStringSubmatch(line); found != nil {
			return found[1]
		}
	}
	return "no reason"
}

// write shows the summary of a run that took so long, and for which the processors worked so long.
func (s *summary) write(w io.Writer, took, worked time.Duration) {
	if len(s.packages) == 0 {
		return
	}
	slices.SortFunc(s.packages, func(a, b *tally) int { return cmp.Compare(b.took, a.took) })
	slices.SortFunc(s.tests, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	skips := 0
	fmt.Fprint(tab, "\nseconds\ttests\tskipped\tpackage\n")
	for _, p := range s.packages {
		fmt.Fprintf(tab, "%.1f\t%d\t%d\t%s\n", p.took.Seconds(), p.ran, p.skips, p.name)
		skips += p.skips
	}
	fmt.Fprint(tab, "\nseconds\tslowest tests\n")
	for _, t := range s.tests[:min(namedSlowest, len(s.tests))] {
		fmt.Fprintf(tab, "%.1f\t%s\n", t.took.Seconds(), t.name)
	}
	if skips > 0 {
		fmt.Fprint(tab, "\nskipped\treason\n")
	}
	for _, why := range slices.Sorted(maps.Keys(s.skipped)) {
		names := s.skipped[why]
		more := ""
		if len(names) > namedSkipped {
			more = ", …"
		}
		fmt.Fprintf(tab, "%d\t%s: %s%s\n", len(names), why, strings.Join(names[:min(namedSkipped, len(names))], ", "), more)
	}
	tab.Flush()
	fmt.Fprintf(w, "\n%d tests of %d packages, %d of them skipped, took %v; %d processors worked %v for them\n",
		len(s.tests), len(s.packages), skips, took.Round(time.Second), runtime.NumCPU(), worked.Round(time.Second))
}
