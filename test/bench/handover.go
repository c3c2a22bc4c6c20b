package bench

import (
	"context"
	"fmt"
	"time"
)

var handOver = &Workload{
	Number: 4, Name: "4", Title: "from the release of one client to the grant of another that waits", File: "handover.svg", Plot: "p50 µs",
	Metrics: []Metric{{Name: "p50 µs"}, {Name: "p99 µs"}, {Name: "p99/p50"}},
	Measure: measureHandOver,
}

func measureHandOver(b *bed, r *Row, round int) (Sample, error) {
	clients, err := b.lockers(r, 2)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(r)
	defer cancel()
	name := r.key("handover", round)
	held, err := clients[0].Lock(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	var took []time.Duration
	for end := time.Now().Add(2 * b.size.Slice); len(took) < 2 || time.Now().Before(end); {
		var d time.Duration
		if d, held, err = handTo(ctx, clients[(len(took)+1)%2], held, name, b.size.Settle, b.guard); err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	if err := held.Release(ctx); err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}
	took = took[1:] // the first makes what a client needs to wait
	p50, p99 := micros(percentile(took, 0.5)), micros(percentile(took, 0.99))
	return Sample{"p50 µs": p50, "p99 µs": p99, "p99/p50": p99 / p50}, nil
}

// handTo hands a lock over to a client that waits for it, and returns how long that took.
func handTo(ctx context.Context, next Locker, held Held, name string, settle time.Duration, g *guard) (time.Duration, Held, error) {
	type grant struct {
		at   time.Time
		held Held
		err  error
	}
	granted := make(chan grant)
	go func() { // ends with the hand-over
		held, err := next.Lock(ctx, name)
		at := time.Now()
		if err == nil {
			g.enter()
		}
		granted <- grant{at, held, err}
	}()
	g.enter()
	err := pause(ctx, settle)
	g.leave()
	start := time.Now()
	if err == nil {
		err = held.Release(ctx)
	}
	got := <-granted
	switch {
	case got.err != nil:
		return 0, nil, fmt.Errorf("lock: %w", got.err)
	case err != nil:
		return 0, nil, fmt.Errorf("release: %w", err)
	}
	g.leave()
	return got.at.Sub(start), got.held, g.err()
}
