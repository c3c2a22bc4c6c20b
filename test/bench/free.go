package bench

import (
	"runtime"
	"time"
)

var free = &Workload{
	Number: 1, Name: "1", Title: "a free lock, one goroutine", File: "free.svg", Plot: "p50 µs",
	Metrics: []Metric{{Name: "p50 µs"}, {Name: "p99 µs"}, {Name: "allocs/op"}, {Name: "B/op"}},
	Measure: measureFree,
}

func measureFree(b *bed, r *Row, _ int) (Sample, error) {
	all, err := b.lockers(r, 1)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(r)
	defer cancel()
	name := r.key("free")
	took := make([]time.Duration, 0, 1<<16)
	for range 3 { // what a client makes at its first lock does not count
		if err := pairOnce(ctx, all[0], name); err != nil {
			return nil, err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for end := time.Now().Add(b.size.Slice); len(took) == 0 || time.Now().Before(end); {
		start := time.Now()
		if err := pairOnce(ctx, all[0], name); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	runtime.ReadMemStats(&after)
	n := float64(len(took))
	return Sample{
		"p50 µs":    micros(percentile(took, 0.5)),
		"p99 µs":    micros(percentile(took, 0.99)),
		"allocs/op": float64(after.Mallocs-before.Mallocs) / n,
		"B/op":      float64(after.TotalAlloc-before.TotalAlloc) / n,
	}, nil
}
