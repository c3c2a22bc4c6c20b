package bench

import (
	"math"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1}, 2},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(test.values); got != test.want {
			t.Errorf("median of %v: got %v, want %v", test.values, got, test.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing: got %v, want NaN", got)
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

func TestRatioIsTheMedianOfTheRoundsRatios(t *testing.T) {
	floor := &cell{Samples: []Sample{{"x": 1}, {"x": 10}, {"x": 100}}}
	c := &cell{Samples: []Sample{{"x": 2}, nil, {"x": 100}, {"x": 7}}}
	if got, want := c.ratio(floor, "x"), 1.5; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.01234: "0.0123", 1.234: "1.23", 12.34: "12.3", 1234.5: "1,234", 1234567: "1,234,567", -2048: "-2,048"} {
		if got := number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
