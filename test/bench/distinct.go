package bench

import (
	"context"
	"fmt"
	"sync"
	"time"
)

var (
	distinct64  = distinct(64)
	distinct512 = distinct(512)
)

func distinct(goroutines int) *Workload {
	return &Workload{
		Number: 2, Name: fmt.Sprintf("2 (%d)", goroutines), File: fmt.Sprintf("distinct%d.svg", goroutines), Plot: "ops/s",
		Title:   fmt.Sprintf("free locks, %d goroutines on distinct names", goroutines),
		Metrics: []Metric{{Name: "ops/s", More: true}, {Name: "p99 ms"}},
		Measure: func(b *bed, r *Row, _ int) (Sample, error) { return measureDistinct(b, r, goroutines) },
	}
}

func measureDistinct(b *bed, r *Row, goroutines int) (Sample, error) {
	names := make([]string, goroutines)
	for i := range names {
		names[i] = r.key("distinct", i)
	}
	return measureNames(b, r, names)
}

// measureNames has a goroutine for each name take it and give it back.
func measureNames(b *bed, r *Row, names []string) (Sample, error) {
	goroutines := len(names)
	all, err := b.lockers(r, 1)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(r)
	defer cancel()
	if err := eachOnce(ctx, all[0], names); err != nil { // connections are made here
		return nil, err
	}
	took := make([][]time.Duration, goroutines)
	errs := make([]error, goroutines)
	begin := time.Now()
	end := begin.Add(b.size.Slice)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for start := begin; errs[i] == nil && start.Before(end); {
				errs[i] = pairOnce(ctx, all[0], names[i])
				now := time.Now()
				took[i] = append(took[i], now.Sub(start))
				start = now
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begin)
	var every []time.Duration
	for i := range goroutines {
		if errs[i] != nil {
			return nil, errs[i]
		}
		every = append(every, took[i]...)
	}
	return Sample{
		"ops/s":    float64(len(every)) / elapsed.Seconds(),
		"p99 ms":   millis(percentile(every, 0.99)),
		operations: float64(len(every)),
	}, nil
}

// eachOnce locks each name once, all at the same time.
func eachOnce(ctx context.Context, l Locker, names []string) error {
	errs := make(chan error, len(names))
	for _, name := range names {
		go func() { errs <- pairOnce(ctx, l, name) }() // is waited for below
	}
	var failed error
	for range names {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	return failed
}
