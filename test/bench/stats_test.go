package bench

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{[]float64{3}, 0.5, 3},
		{[]float64{3, 1}, 0.5, 2},
		{[]float64{9, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.25, 1.75},
		{[]float64{4, 1, 3, 2}, 1, 4},
	} {
		if got := quantile(test.values, test.p); got != test.want {
			t.Errorf("quantile %v of %v: got %v, want %v", test.p, test.values, got, test.want)
		}
	}
	if got := quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("quantile of nothing: got %v, want NaN", got)
	}
}

func TestPercentile(t *testing.T) {
	d := make([]time.Duration, 100)
	for i := range d {
		d[i] = time.Duration(100 - i)
	}
	for p, want := range map[float64]time.Duration{0.5: 50, 0.99: 99, 1: 100, 0.001: 1} {
		if got := percentile(d, p); got != want {
			t.Errorf("percentile %v of 1 to 100: got %d, want %d", p, got, want)
		}
	}
}

func TestJain(t *testing.T) {
	for _, test := range []struct {
		counts []int64
		want   float64
	}{
		{[]int64{5, 5, 5, 5}, 1},
		{[]int64{8, 0, 0, 0}, 0.25},
		{[]int64{1, 0}, 0.5},
		{[]int64{0, 0}, 0},
	} {
		if got := jain(test.counts); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("Jain index of %v: got %v, want %v", test.counts, got, test.want)
		}
	}
}

func TestRatiosAreThoseOfTheSameRound(t *testing.T) {
	floor := &cell{Samples: []Sample{{"x": 1}, {"x": 10}, {"x": 100}}}
	c := &cell{Samples: []Sample{{"x": 2}, nil, {"x": 100}, {"x": 7}}}
	if got, want := quantile(c.ratios(floor, "x"), 0.5), 1.5; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.01234: "0.0123", 1.234: "1.23", 12.34: "12.3", 1234.5: "1,234", 1234567: "1,234,567", -204: "-204", -2048: "-2,048", math.NaN(): "-",
	} {
		if got := number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}

func TestReport(t *testing.T) {
	at := func(row string, disk bool) place { return place{"Redis", "1 free lock", row, disk} }
	results := Results{
		at("floor: two scripts on a hash", true): {Samples: []Sample{{"p50 µs": 100, "allocs/op": 2}, {"p50 µs": 200, "allocs/op": 2}}},
		at("dsync", true):                        {Samples: []Sample{{"p50 µs": 130, "allocs/op": 5}, {"p50 µs": 240, "allocs/op": 7}}},
		at("bsm/redislock", false):               {Samples: []Sample{nil}, Error: errors.New("no luck")},
	}
	got := results.Report("Today.", Backends[:1])
	for _, want := range []string{
		"\n| 1 free lock, p50 µs | floor: two scripts on a hash | 150 | | - | | allocs/op 2.00 |\n",
		"\n|  | **dsync** | 185 | 1.25 (1.23–1.27) | - | | allocs/op 6.00 |\n",
		"\n- 1 free lock, bsm/redislock, without a disk: no luck\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q:\n%s", want, got)
		}
	}
}

// noLock lets every caller in.
type noLock struct{}

func (noLock) Close() error { return nil }
func (noLock) Lock(context.Context, string) (Held, error) {
	return &hold{release: func(context.Context) error { return nil }}, nil
}

func tempGuard(t *testing.T, path string) *guard {
	g, err := newGuard(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// TestContentionFindsAnOverlap makes callers hold a name for longer than the
// scheduler needs to run another caller.
func TestContentionFindsAnOverlap(t *testing.T) {
	g := tempGuard(t, filepath.Join(t.TempDir(), "guard"))
	o := bout{Names: []string{"x", "y"}, Callers: 8, Hold: time.Millisecond, For: 20 * time.Millisecond}
	if _, err := contend(t.Context(), []Locker{noLock{}}, o, g); !errors.Is(err, errOverlap) {
		t.Errorf("without a lock: got %v, want %v", err, errOverlap)
	}
	o.Shared = true
	if _, err := contend(t.Context(), []Locker{noLock{}}, o, g); err != nil {
		t.Errorf("of names that callers share: got %v, want nil", err)
	}
}

func TestHandOverFindsAnOverlap(t *testing.T) {
	held, _ := noLock{}.Lock(t.Context(), "x")
	g := tempGuard(t, filepath.Join(t.TempDir(), "guard"))
	if _, _, err := handTo(t.Context(), noLock{}, held, "x", 20*time.Millisecond, g); !errors.Is(err, errOverlap) {
		t.Errorf("without a lock: got %v, want %v", err, errOverlap)
	}
}

func TestGuardIsSharedByProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard")
	one, other := tempGuard(t, path), tempGuard(t, path)
	one.enter(0)
	other.enter(1)
	if got := one.err(); got != nil {
		t.Errorf("holders of two names: got %v, want nil", got)
	}
	other.enter(0)
	if got := one.err(); !errors.Is(got, errOverlap) {
		t.Errorf("two holders: got %v, want %v", got, errOverlap)
	}
}
