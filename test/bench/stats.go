package bench

import (
	"math"
	"slices"
	"time"
)

// median returns the middle one of the values, or the mean of the two there are.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// percentile returns the smallest of the durations that at least a share p of them does not exceed. It sorts them.
func percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[max(0, int(math.Ceil(p*float64(len(d))))-1)]
}

// jain returns the fairness index: 1 if all counts are the same, 1/n if one of them has everything, and 0 if there is nothing.
func jain(counts []int64) float64 {
	var sum, squares float64
	for _, c := range counts {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
