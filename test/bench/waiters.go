package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var waiters = &Workload{
	Number: 7, Name: "7", Title: "5,000 waiters on one lock", File: "waiters.svg", Plot: "drained/s", Once: true,
	Metrics: []Metric{{Name: "drained/s", More: true}, {Name: "drained %", More: true}, {Name: "B/waiter"}, {Name: "of these, stack"}, {Name: "goroutines/waiter"}, {Name: "connections"}},
	Measure: func(b *bed, r *Row, _ int) (Sample, error) {
		p := spawn(b.tb, "waiters", task{Backend: b.backend.Name, Row: r.Name, Addrs: b.servers.Addrs, Guard: b.path, Size: b.size})
		a, err := listen(p)
		p.Kill() // what it has not drained would go on
		if err == nil && r.Kind == Ours && a.Sample["drained %"] < 100 {
			err = fmt.Errorf("%.1f %% of the waiters got the lock within %v", a.Sample["drained %"], b.size.DrainFor)
		}
		return a.Sample, err
	},
}

func waitersRole(w *worker) error {
	n := w.Size.Waiters
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	first, err := w.open(ctx)
	if err != nil {
		return err
	}
	held, err := first.Lock(ctx, "wanted")
	if err != nil {
		return err
	}
	sockets := countSockets()
	l, err := w.open(ctx)
	if err != nil {
		return err
	}
	if err := pairOnce(ctx, l, "warm"); err != nil {
		return err
	}
	heap, stacks := memoryInUse()
	goroutines := runtime.NumGoroutine()
	var drained, failed atomic.Int64
	var firstErr atomic.Value
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := w.once(ctx, l); err != nil {
				failed.Add(1)
				firstErr.CompareAndSwap(nil, err.Error())
				return
			}
			drained.Add(1)
		})
	}
	if err := settle(ctx); err != nil {
		return err
	}
	heapNow, stacksNow := memoryInUse()
	s := Sample{
		"B/waiter":          float64(heapNow+stacksNow-heap-stacks) / float64(n),
		"of these, stack":   float64(stacksNow-stacks) / float64(n),
		"goroutines/waiter": float64(runtime.NumGoroutine()-goroutines) / float64(n),
		"connections":       float64(countSockets() - sockets),
	}
	start := time.Now()
	if err := held.Release(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { // ends with the process
		wg.Wait()
		close(done)
	}()
	limit := time.NewTimer(w.Size.DrainFor)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
	s["drained/s"] = float64(drained.Load()) / time.Since(start).Seconds()
	s["drained %"] = 100 * float64(drained.Load()) / float64(n)
	if err := w.guard.err(); err != nil {
		return err
	}
	if failed.Load() > 0 && w.row.Kind != Peer {
		return fmt.Errorf("%d of %d failed: %v", failed.Load(), n, firstErr.Load())
	}
	w.say(answer{Sample: s})
	return nil
}

func (w *worker) once(ctx context.Context, l Locker) error {
	held, err := l.Lock(ctx, "wanted")
	if err != nil {
		return err
	}
	w.guard.enter()
	w.guard.leave()
	return held.Release(ctx)
}

// memoryInUse is that of the heap, and that of the goroutines' stacks.
func memoryInUse() (heap, stacks int64) {
	heap = heapInUse()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap, int64(m.StackInuse)
}

// countSockets returns how many this process has open, or 0 where the system does not tell.
func countSockets() int {
	n := 0
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
