package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	hotGoroutines = 32
	lookEvery     = 8 // holds in which others are let run
)

var hot = &Workload{
	Number: 3, Name: "3", Title: "one hot lock, 32 goroutines in one process", File: "hot.svg", Plot: "hand-overs/s",
	Metrics: []Metric{{Name: "hand-overs/s", More: true}, {Name: "Jain", More: true}, {Name: "max wait ms"}},
	Measure: func(b *bed, r *Row, round int) (Sample, error) {
		all, err := b.lockers(r, 1)
		if err != nil {
			return nil, err
		}
		done := contend(slices.Repeat(all, hotGoroutines), r.key("hot", round), 2*b.size.Slice, 0, b.guard)
		if done.err != nil {
			return nil, done.err
		}
		return Sample{
			"hand-overs/s": float64(sum(done.Counts)) / done.Took.Seconds(),
			"Jain":         jain(done.Counts),
			"max wait ms":  millis(done.MaxWait),
			operations:     float64(done.Grants),
		}, nil
	},
}

// contention is what came of goroutines that all wanted one lock.
type contention struct {
	Counts  []int64 // grants of each goroutine
	Grants  int64   // in all, with those after the time was over
	MaxWait time.Duration
	Took    time.Duration
	Error   string
	err     error
}

// unwind is how long those who still wait when the time is over may go on, so that what they asked for is not cut short on the way.
const unwind = 500 * time.Millisecond

// contend has a goroutine for each of callers, which may be one client many times, take the lock of one name, keep it for the time of hold,
// and give it back, for a while. What is granted after that does not count, but a wait that began before does.
func contend(callers []Locker, name string, d, hold time.Duration, g *guard) *contention {
	goroutines := len(callers)
	c := &contention{Counts: make([]int64, goroutines)}
	ctx, cancel := context.WithTimeout(context.Background(), d+unwind)
	defer cancel()
	var grants atomic.Int64
	waits := make([]time.Duration, goroutines)
	errs := make([]error, goroutines)
	begin := time.Now()
	end := begin.Add(d)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for start := begin; errs[i] == nil && start.Before(end); {
				held, err := callers[i].Lock(ctx, name)
				now := time.Now()
				waits[i] = max(waits[i], now.Sub(start))
				if err != nil {
					if ctx.Err() == nil {
						errs[i] = fmt.Errorf("lock: %w", err)
					}
					return
				}
				g.enter()
				grants.Add(1)
				if now.Before(end) {
					c.Counts[i]++
					if hold > 0 {
						errs[i] = pause(context.Background(), hold)
					}
				}
				if c.Counts[i]%lookEvery == 0 {
					runtime.Gosched() // else nobody could be seen who was granted the lock too
				}
				g.leave()
				if err := held.Release(context.Background()); err != nil {
					errs[i] = fmt.Errorf("release: %w", err)
				}
				start = time.Now()
			}
		})
	}
	wg.Wait()
	c.Took, c.Grants = d, grants.Load()
	for i := range goroutines {
		c.MaxWait = max(c.MaxWait, waits[i])
		if errs[i] != nil {
			c.err = errs[i]
		}
	}
	if err := g.err(); err != nil {
		c.err = err
	}
	if c.err != nil {
		c.Error = c.err.Error()
	}
	return c
}

func sum(counts []int64) int64 {
	var n int64
	for _, c := range counts {
		n += c
	}
	return n
}
