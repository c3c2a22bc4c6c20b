package stress

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

var (
	seed          = flag.Uint64("seed", 0, "seed of the schedules; 0 draws a random seed")
	injections    = flag.Int("injections", 5, "how often each cell has its fault")
	minFaults     = flag.Int("minfaults", 0, "minimum number of faults in a run")
	minOperations = flag.Int("minoperations", 0, "minimum number of operations in a run")
	about         = flag.String("about", "", "a sentence for the table: versions, machine")
	table         = flag.String("table", "", "Markdown file for the table of results")
	long          = flag.Bool("long", false, "with faults that take minutes")
	out           = flag.String("out", "", "directory for the timelines of all cells; by default only cells that fail write one, to the temporary directory")
)

func TestMain(m *testing.M) {
	testenv.Main(m, map[string]func(){"worker": runWorker})
}

// beds are started concurrently, as many as -parallel allows. A bed with many
// cells is started twice, and the two share its cells.
var beds = []struct {
	name  string
	times int
	start func(tb testing.TB) *bed
}{
	{"redlock", 2, redlockBed},
	{"redisson", 2, func(tb testing.TB) *bed { return redisBed(tb, "") }},
	{"redisson fair", 2, func(tb testing.TB) *bed { return redisBed(tb, "fair") }},
	{"redisson fifo", 2, func(tb testing.TB) *bed { return redisBed(tb, "fifo") }},
	{"etcd ×3", 2, func(tb testing.TB) *bed { return etcdBed(tb, testenv.EtcdCluster(tb, 3)...) }},
	{"zk ×3", 2, func(tb testing.TB) *bed { return zkBed(tb, testenv.ZooKeeperEnsemble(tb, 3)...) }},
	{"etcd", 1, func(tb testing.TB) *bed { return etcdBed(tb, testenv.Etcd(tb)) }},
	{"pglock", 1, postgresBed},
	{"sqllock", 1, mariadbBed},
	{"zk", 1, func(tb testing.TB) *bed { return zkBed(tb, testenv.ZooKeeper(tb)) }},
	{"redisson sentinel", 1, func(tb testing.TB) *bed { return sentinelBed(tb, testenv.RedisSentinel(tb, 2)) }},
	{"redisson cluster", 1, func(tb testing.TB) *bed { return clusterBed(tb, testenv.RedisCluster(tb, 3, 1)) }},
	{"memory", 1, memoryBed},
	{"redisson behind one address", 1, func(tb testing.TB) *bed { return oneAddressBed(tb, "redisson", 1) }},
	{"redlock behind one address", 1, func(tb testing.TB) *bed { return oneAddressBed(tb, "redlock", 3) }},
	{"redis-string behind one address", 1, func(tb testing.TB) *bed { return oneAddressBed(tb, "redis-string", 1) }},
	{"etcd ×3 behind one address", 1, etcdOneAddressBed},
	{"zk ×3 behind one address", 1, zkOneAddressBed},
	{"pglock behind one address", 1, postgresOneAddressBed},
	{"zk ×3 on hosts", 1, zkApartBed},
	{"etcd ×3 on hosts", 1, etcdApartBed},
	{"redisson sentinel on hosts", 1, func(tb testing.TB) *bed { return sentinelApartBed(tb, false) }},
	{"redisson sentinel on hosts, waitreplicas", 1, func(tb testing.TB) *bed { return sentinelApartBed(tb, true) }},
	{"redisson cluster on hosts", 1, func(tb testing.TB) *bed { return clusterApartBed(tb, false) }},
	{"redisson cluster on hosts, waitreplicas", 1, func(tb testing.TB) *bed { return clusterApartBed(tb, true) }},
}

func TestStress(t *testing.T) {
	t.Parallel()
	p := Plan{Seed: *seed, Injections: *injections, Out: *out, Long: *long}
	for name := range applicable {
		for _, f := range Faults {
			if p.has(name, f) {
				p.Operations++
			}
		}
	}
	p.Operations = *minOperations * 6 / 5 / p.Operations
	if p.Seed == 0 {
		p.Seed = rand.Uint64()
	}
	t.Logf("seed %d: -seed %[1]d draws the same schedules again", p.Seed)
	start := time.Now()
	var all Table
	t.Run("cells", func(t *testing.T) {
		for _, each := range beds {
			for part := range each.times {
				t.Run(fmt.Sprint(each.name, " ", part+1), func(t *testing.T) {
					t.Parallel()
					b := each.start(t)
					for i, f := range Faults {
						if p.has(b.name, f) && f.apart == (b.hosts != nil) && i%each.times == part {
							t.Run(f.Name, func(t *testing.T) {
								if f.Name == "worker-clock" || f.Name == "worker-sleep" {
									needWallClock(t)
								}
								all.add(t, run(t, p, b, f))
								all.write(t, *table, p, start, *about) // a run that ends early keeps its results
							})
						}
					}
				})
			}
		}
	})
	t.Logf("%s", all.summary())
	sums := all.sums()
	if sums.Operations < *minOperations || sums.Injected < *minFaults {
		t.Errorf("the run proves too little: got %d operations and %d faults, want at least %d and %d",
			sums.Operations, sums.Injected, *minOperations, *minFaults)
	}
	if sums.Inconclusive*20 > sums.Slices+sums.Inconclusive {
		t.Errorf("porcupine gave up on %d slices and found an order for %d", sums.Inconclusive, sums.Slices)
	}
}

// TestEveryFaultHasACell fails if a bed names an unknown fault, or if no cell
// injects a fault.
func TestEveryFaultHasACell(t *testing.T) {
	used := map[string]bool{}
	for name, faults := range applicable {
		for fault := range faults {
			if !slices.ContainsFunc(Faults, func(f *Fault) bool { return f.Name == fault }) {
				t.Errorf("%s names the fault %q, which is not in the table", name, fault)
			}
			used[fault] = true
		}
	}
	for _, f := range Faults {
		if !used[f.Name] {
			t.Errorf("no backend has the fault %q", f.Name)
		}
	}
}

// needWallClock skips the test in a build whose wall clock cannot jump, and
// fails it if CI is set.
func needWallClock(t *testing.T) {
	const text = "%s is UNTESTED: the wall clock of this program cannot jump; `make stress` builds one with package time changed"
	if !wallClock && os.Getenv("CI") != "" {
		t.Fatalf(text, t.Name())
	}
	if !wallClock {
		t.Skipf(text, t.Name())
	}
}
