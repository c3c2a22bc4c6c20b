package bench

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

var (
	fullRun  = flag.Bool("full", false, "measure, for about a quarter of an hour, in place of a run that shows that everything works")
	only     = flag.String("backends", "", "names of backends, comma separated; all if empty")
	which    = flag.String("workloads", "", "names of workloads, as in 1,2 (64),6 (10k), or of points of curves, as in crowds 50; all if empty")
	writeTo  = flag.String("out", "", "the directory for the table and the plots; those of TestPeers without -disk go into memory there")
	asText   = flag.Bool("text", false, "print the table")
	noPeers  = flag.Bool("nopeers", false, "leave the peers out")
	again    = flag.String("report", "", "a directory whose table and plots are made again, of results.json there")
	onDisk   = flag.Bool("disk", false, "have the servers flush what they write to a disk, as their packages do, in place of keeping nothing")
	asRounds = flag.Int("rounds", 0, "rounds of a whole run, if not the usual number")
)

const resultsFile = "results.json"

func TestMain(m *testing.M) { testenv.Main(m, Roles) }

func TestPeers(t *testing.T) {
	size := Short
	if *fullRun {
		size = Full
	}
	if *asRounds > 0 {
		size.Rounds = *asRounds
	}
	measure(t, size, Backends, Workloads)
}

// TestCrowds measures one name that more and more clients want.
func TestCrowds(t *testing.T) {
	size := ShortCrowds
	if *fullRun {
		size = FullCrowds
	}
	measure(t, size, Backends, Crowds.Points)
}

// TestCurves measures what one client costs that has more and more to do, and what a slow network costs.
func TestCurves(t *testing.T) {
	size := ShortCurves
	if *fullRun {
		size = FullCurves
	}
	measure(t, size, CurveBackends, Curves())
}

// TestFlushes measures what a disk costs whose flushes take long.
func TestFlushes(t *testing.T) {
	size := ShortCurves
	if *fullRun {
		size = FullFlushes
	}
	size.Storage.Slow = testenv.NewSlowDisk(t)
	measure(t, size, FlushBackends, Flushes())
}

// measure runs those of all workloads whose names are chosen.
func measure(t *testing.T, size Size, all []*Backend, may []*Workload) {
	size.Storage.Disk = size.Storage.Disk || *onDisk
	backends, err := choose(all, *only, func(b *Backend) string { return b.Name })
	if err != nil {
		t.Fatal(err)
	}
	workloads, err := choose(may, *which, func(w *Workload) string { return w.Name })
	if err != nil {
		t.Fatal(err)
	}
	if *noPeers {
		backends = withoutPeers(backends)
	}
	workloads = size.fit(workloads)
	bar := newBar(Steps(size, backends, workloads))
	var report *Report
	Run(t, size, backends, workloads, bar.step, func(results *Results) {
		report = &Report{Backends: backends, Workloads: workloads, Results: results}
		if *writeTo == "" {
			return
		}
		dir := *writeTo
		if may[0].Curve == nil { // those are measured with a disk or without
			dir = tableOf(dir, size.Storage)
		}
		if err := errors.Join(report.Write(dir), results.Store(filepath.Join(dir, resultsFile))); err != nil {
			t.Fatal(err)
		}
	})
	bar.end()
	if *asText {
		if _, err := os.Stdout.WriteString(report.Markdown()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReport makes the table and the plots of a directory again, of the results that are stored there.
func TestReport(t *testing.T) {
	if *again == "" {
		t.Skip("no -report names a directory")
	}
	results, err := LoadResults(filepath.Join(*again, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Report{Backends: append(slices.Clone(Backends), memoryBackend), Workloads: slices.DeleteFunc(
		slices.Concat(Workloads, Crowds.Points, Curves(), Flushes()), func(w *Workload) bool { return !results.has(w) }), Results: results}).Write(*again); err != nil {
		t.Fatal(err)
	}
}
