package stress

import (
	"flag"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

var (
	seed       = flag.Uint64("seed", 0, "what the schedules are drawn from; 0 draws one")
	injections = flag.Int("injections", 5, "how often each cell has its fault")
	table      = flag.String("table", "", "file to write the table of results to, as Markdown")
	out        = flag.String("out", "", "directory for a time line of each cell, as SVG; otherwise those of cells that failed are in the system's directory for temporary files")
)

func TestMain(m *testing.M) {
	testenv.Main(m, map[string]func(){"worker": runWorker})
}

// beds are started side by side, as many as -parallel says; those with the most cells first.
var beds = []struct {
	name  string
	start func(tb testing.TB) *bed
}{
	{"redlock", redlockBed},
	{"redisson", func(tb testing.TB) *bed { return redisBed(tb, false) }},
	{"redisson fair", func(tb testing.TB) *bed { return redisBed(tb, true) }},
	{"etcd", func(tb testing.TB) *bed { return etcdBed(tb, 1) }},
	{"etcd ×3", func(tb testing.TB) *bed { return etcdBed(tb, 3) }},
	{"redisson sentinel", sentinelBed},
	{"redisson cluster", clusterBed},
}

func TestStress(t *testing.T) {
	p := Plan{Seed: *seed, Injections: *injections, Out: *out}
	if p.Seed == 0 {
		p.Seed = rand.Uint64()
	}
	t.Logf("seed %d: -seed %[1]d draws the same schedules again", p.Seed)
	var all Table
	t.Run("cells", func(t *testing.T) {
		for _, each := range beds {
			t.Run(each.name, func(t *testing.T) {
				t.Parallel()
				b := each.start(t)
				for _, f := range Faults {
					if _, applies := b.faults[f.Name]; applies {
						t.Run(f.Name, func(t *testing.T) { all.add(t, run(t, p, b, f)) })
					}
				}
			})
		}
	})
	t.Logf("%s", all.summary())
	if *table != "" {
		if err := os.WriteFile(*table, []byte(all.markdown(p)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
