package migrate_test

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCostIsThatOfTheBackends counts the requests that a lock and its release
// take. In phase dual there is at most one request more than both backends
// take. In phase new there are no more requests than the new backend takes
// without a migration.
func TestCostIsThatOfTheBackends(t *testing.T) {
	a, b := testenv.Redis(t), testenv.Redis(t)
	from, to := "redisson://"+a.Addr, "redisson://"+b.Addr
	cost := func(raw string) (onFrom, onTo int) {
		d := drivertest.Open(t, raw)
		lockOnce := func() { release(t, lock(t, d, "x")) }
		lockOnce() // the servers learn the scripts, and the name moves
		lockOnce()
		onFrom, onTo = scripts(t, a), scripts(t, b)
		for range 20 {
			lockOnce()
		}
		onFrom, onTo = scripts(t, a)-onFrom, scripts(t, b)-onTo
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		return onFrom, onTo
	}
	bareFrom, _ := cost(from)
	_, bareTo := cost(to)
	pair := "migrate:?from=" + url.QueryEscape(from) + "&to=" + url.QueryEscape(to)
	for _, more := range []string{"&gate=true&fenced=false", ""} {
		onFrom, onTo := cost(pair + more + "&phase=dual")
		if got, most := onFrom+onTo, bareFrom+bareTo+20; got > most {
			t.Errorf("phase dual%s: got %d requests for 20 locks, want at most %d", more, got, most)
		}
		onFrom, onTo = cost(pair + more + "&phase=new")
		if onFrom != 0 || onTo > bareTo*105/100 {
			t.Errorf("phase new%s: got %d and %d requests for 20 locks, want 0 and %d", more, onFrom, onTo, bareTo)
		}
	}
}

// TestNewCostsTwoAllocations locks and releases a name that has moved.
func TestNewCostsTwoAllocations(t *testing.T) {
	allocations := func(d driver.Driver) float64 {
		r := drivertest.Request("x")
		return testing.AllocsPerRun(1000, func() {
			if l, err := d.Acquire(t.Context(), r); err != nil {
				t.Error(err)
			} else if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	to := memory.NewServer(nil)
	d, err := migrate.New(memory.New(nil), to.NewDriver(), &migrate.Options{Phase: migrate.PhaseNew})
	if err != nil {
		t.Fatal(err)
	}
	drivertest.CloseLater(t, d)
	release(t, lock(t, d, "x")) // the name moves
	if got, want := allocations(d), allocations(to.NewDriver())+2; got != want {
		t.Errorf("got %v allocations, want %v", got, want)
	}
}

// BenchmarkNew compares a name that has moved with the bare new backend. The
// two alternate in rounds. "ratio" is the median over the rounds of the time of
// a lock and its release in phase new, divided by the time on the bare driver.
func BenchmarkNew(b *testing.B) {
	for _, test := range []struct {
		name  string
		apart bool
	}{{"together", false}, {"apart", true}} {
		b.Run(test.name+"/redisson", func(b *testing.B) {
			s := testenv.Redis(b)
			compareNew(b, "redisson://"+s.Addr, test.apart, s.Pid())
		})
		b.Run(test.name+"/etcd", func(b *testing.B) {
			s := testenv.Etcd(b)
			compareNew(b, "etcd://"+s.Addr, test.apart, s.Pid())
		})
	}
}

func compareNew(b *testing.B, bare string, apart bool, server int) {
	const locks = 200 // in one slice
	old := "redisson://" + testenv.Redis(b).Addr
	moved := fmt.Sprintf("migrate:?from=%s&to=%s&phase=new", url.QueryEscape(old), url.QueryEscape(bare))
	if apart {
		testenv.Apart(b, server)
	}
	var took [2][]time.Duration
	slice := func(i int, raw string) func() {
		d := drivertest.Open(b, raw)
		lock := drivertest.LockerBy(b, func(name string) (func() error, error) {
			// The context can end, as for most callers: some client libraries
			// have a shorter path for a context that cannot.
			l, err := d.Acquire(b.Context(), drivertest.Request(name))
			return func() error { return l.Release(b.Context()) }, err
		})
		name := fmt.Sprint("bench ", i) // the name moves in the rounds that do not count
		return func() {
			start := time.Now()
			for range locks {
				lock(name)()
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	drivertest.InTurn(b, slice(0, bare), slice(1, moved))
	var ratios []float64
	for i := len(took[0]) - b.N; i < len(took[0]); i++ { // earlier rounds are cold
		ratios = append(ratios, float64(took[1][i])/float64(took[0][i]))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(float64(drivertest.Median(took[0]).Nanoseconds())/locks, "ns/bare")
	b.ReportMetric(float64(drivertest.Median(took[1]).Nanoseconds())/locks, "ns/moved")
	b.ReportMetric(0, "ns/op")
}
