package bench

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

var (
	fullRun       = flag.Bool("full", false, "measure, instead of a short run that shows that everything works")
	onlyBackends  = flag.String("backends", "", "names of backends, separated by commas; all if empty")
	onlyWorkloads = flag.String("workloads", "", "numbers of workloads, separated by commas; all if empty")
	storage       = flag.String("storage", "memory", "where servers keep their data: disk, memory, or disk,memory")
	rounds        = flag.Int("rounds", 0, "number of rounds, if not the default")
	writeTo       = flag.String("out", "", "the directory for the report")
)

func TestMain(m *testing.M) { testenv.Main(m, Roles) }

// chosen reports whether a flag names a value.
func chosen(list, value string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), value)
}

func chosenBackends(t *testing.T) []*Backend {
	all := slices.DeleteFunc(slices.Clone(Backends), func(b *Backend) bool { return !chosen(*onlyBackends, b.Name) })
	if len(all) == 0 {
		t.Fatalf("no backend is named in %q", *onlyBackends)
	}
	return all
}

func TestPeers(t *testing.T) {
	size := Short
	if *fullRun {
		size = Full
	}
	if *rounds > 0 {
		size.Rounds = *rounds
	}
	workloads := slices.DeleteFunc(slices.Clone(Workloads), func(w *Workload) bool {
		number, _, _ := strings.Cut(w.Name, " ")
		return !chosen(*onlyWorkloads, number)
	})
	backends := chosenBackends(t)
	testenv.Apart(t)
	results := make(Results)
	for _, b := range backends {
		for _, kept := range []string{"disk", "memory"} {
			if chosen(*storage, kept) {
				t.Run(b.Name+" "+kept, func(t *testing.T) { results.Run(t, size, b, workloads, kept == "disk") })
			}
		}
	}
	text, err := about(size, chosen(*storage, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	report := results.Report(text, backends)
	if *writeTo == "" {
		t.Log(report)
	} else if err := os.WriteFile(filepath.Join(*writeTo, "README.md"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
}
