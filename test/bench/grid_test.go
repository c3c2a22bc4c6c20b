package bench

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// knows reports whether a subject is something that a run measures, of a row of the kind.
func knows(s subject, kind Kind) bool {
	for _, b := range Backends {
		for _, w := range Workloads {
			if b.Name != s.backend || w.Name != s.workload {
				continue
			}
			row := slices.ContainsFunc(w.rows(b), func(r *Row) bool { return r.Name == s.row && r.Kind == kind })
			return row && slices.ContainsFunc(w.Metrics, func(m Metric) bool { return m.Name == s.metric })
		}
	}
	return false
}

func TestTargetsAreAboutWhatIsMeasured(t *testing.T) {
	type about struct {
		subject
		bare bool
	}
	seen := make(map[about]bool)
	for _, target := range Targets {
		s := about{target.subject(), target.Bare}
		if !knows(s.subject, Ours) || s.bare && !knows(subject{s.backend, s.workload, bareName(&Row{Name: s.row}), s.metric}, Peer) {
			t.Errorf("nothing measures %+v", s)
		}
		if seen[s] {
			t.Errorf("there are two targets for %+v", s)
		}
		seen[s] = true
		bounds := 0
		for _, given := range []bool{target.Zero, target.AtMost > 0, target.AtLeast > 0} {
			if given {
				bounds++
			}
		}
		if bounds != 1 {
			t.Errorf("%+v has %d bounds, want 1", s, bounds)
		}
	}
	for s := range Notes {
		if !seen[about{subject: s}] {
			t.Errorf("there is a note and no target for %+v", s)
		}
	}
}

func TestEachWorkloadHasAFloorOnEachBackend(t *testing.T) {
	for _, b := range Backends {
		for _, w := range slices.Concat(Workloads, Crowds.Points, Curves()) {
			none := !slices.ContainsFunc(w.rows(b), func(r *Row) bool { return r.Kind == Ours }) // nobody reads, or there are no permits
			if w.OursAlone || none && (w.Named || w.Curve != nil) {
				continue
			}
			floors := 0
			for _, r := range w.rows(b) {
				if r.Kind == Floor {
					floors++
				}
			}
			if floors != 1 {
				t.Errorf("%s, workload %s: got %d floors, want 1", b.Name, w.Name, floors)
			}
		}
	}
}

func TestTargetHolds(t *testing.T) {
	for _, test := range []struct {
		target Target
		v      float64
		want   bool
	}{
		{Target{AtMost: 1.1}, 1.104, true},
		{Target{AtMost: 1.1}, 1.11, false},
		{Target{AtLeast: 25}, 24.9, false},
		{Target{AtLeast: 25}, 25, true},
		{Target{Zero: true}, 0.004, true},
		{Target{Zero: true}, 0.02, false},
	} {
		if got := test.target.holds(test.v); got != test.want {
			t.Errorf("%s with %v: got %v, want %v", test.target.bound(), test.v, got, test.want)
		}
	}
}

// made returns the table of results in which the floor needs 100 µs for a free lock, and dsync as given.
func made(t *testing.T, disk bool, ours float64, err error) string {
	t.Helper()
	size := Short
	size.Storage.Disk = disk
	results := newResults(size)
	results.add(redisBackend, free, free.floor(redisBackend), 0, Sample{"p50 µs": 100}, nil)
	for _, r := range redisBackend.Rows {
		if r.Name == "dsync" {
			results.add(redisBackend, free, r, 0, Sample{"p50 µs": ours}, err)
		}
	}
	path := t.TempDir() + "/results.json"
	if err := results.Store(path); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadResults(path)
	if err != nil {
		t.Fatal(err)
	}
	return (&Report{Backends: []*Backend{redisBackend}, Workloads: []*Workload{free}, Results: loaded}).Markdown()
}

func TestReportShowsWhatIsMissed(t *testing.T) {
	for _, test := range []struct {
		ours float64
		err  error
		want []string
	}{
		{105, nil, []string{"| **dsync** | 105 (1.05) |", "p50 µs at most 1.10 of the floor's: held"}},
		{200, nil, []string{"| **dsync** | 200 (2.00) |", "**p50 µs at most 1.10 of the floor's: missed**", "\n- dsync, p50 µs: "}},
		{100, errors.New("no luck"), []string{"\n- dsync failed: no luck."}},
	} {
		got := made(t, true, test.ours, test.err)
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("dsync takes %v µs: the table lacks %q:\n%s", test.ours, want, got)
			}
		}
	}
}

func TestReportHasTargetsWithADiskOnly(t *testing.T) {
	for _, disk := range []bool{true, false} {
		got := made(t, disk, 105, nil)
		if has := strings.Contains(got, "targets |"); has != disk {
			t.Errorf("disk is %v: the table has targets: %v", disk, has)
		}
		if want := "| **dsync** | 105 (1.05) | -"; !strings.Contains(got, want) {
			t.Errorf("disk is %v: the table lacks %q:\n%s", disk, want, got)
		}
	}
}

func TestPlotsAreWritten(t *testing.T) {
	results := newResults(Short)
	for i, r := range free.rows(redisBackend) {
		results.add(redisBackend, free, r, 0, Sample{"p50 µs": math.Pow(7, float64(i))}, nil)
	}
	dir := t.TempDir()
	if err := (&Report{Backends: []*Backend{redisBackend}, Workloads: []*Workload{free}, Results: results}).Write(dir); err != nil {
		t.Fatal(err)
	}
	svg := readFile(t, dir+"/"+free.File)
	for _, r := range free.rows(redisBackend) {
		if !strings.Contains(svg, r.Name) {
			t.Errorf("the plot lacks %q", r.Name)
		}
	}
}
