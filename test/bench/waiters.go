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
	w.guard.enter()
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
	crowd := w.gather(ctx, l)
	if err := settle(ctx); err != nil {
		return err
	}
	heapNow, stacksNow := memoryInUse()
	n := float64(w.Size.Waiters)
	s := Sample{
		"B/waiter":          float64(heapNow+stacksNow-heap-stacks) / n,
		"of these, stack":   float64(stacksNow-stacks) / n,
		"goroutines/waiter": float64(runtime.NumGoroutine()-goroutines) / n,
		"connections":       float64(countSockets() - sockets),
	}
	w.guard.leave()
	start, used := time.Now(), cpuTime()
	if err := held.Release(ctx); err != nil {
		return err
	}
	limit := time.NewTimer(w.Size.DrainFor)
	defer limit.Stop()
	select {
	case <-crowd.done:
	case <-limit.C:
	}
	s["drained/s"] = float64(crowd.drained.Load()) / time.Since(start).Seconds()
	s["drained %"] = 100 * float64(crowd.drained.Load()) / n
	s["CPU µs/waiter"] = micros(cpuTime()-used) / n
	if err := w.guard.err(); err != nil {
		return err
	}
	if failed := crowd.failed.Load(); failed > 0 && w.row.Kind != Peer {
		return fmt.Errorf("%d of %.0f failed: %v", failed, n, crowd.err.Load())
	}
	w.say(answer{Sample: s})
	return nil
}

// waitingCrowd is goroutines that each want the lock once.
type waitingCrowd struct {
	drained, failed atomic.Int64
	err             atomic.Value  // the text of the first error
	done            chan struct{} // closed when all have ended
}

// gather starts them. They end with their locks, or with the process.
func (w *worker) gather(ctx context.Context, l Locker) *waitingCrowd {
	c := &waitingCrowd{done: make(chan struct{})}
	var wg sync.WaitGroup
	for i := range w.Size.Waiters {
		wg.Go(func() {
			if err := w.takeTurn(ctx, l, i%lookEvery == 0); err != nil {
				c.failed.Add(1)
				c.err.CompareAndSwap(nil, err.Error())
				return
			}
			c.drained.Add(1)
		})
	}
	go func() {
		wg.Wait()
		close(c.done)
	}()
	return c
}

// takeTurn takes the lock and gives it back. With yield other goroutines run meanwhile, so that a second holder would be seen.
func (w *worker) takeTurn(ctx context.Context, l Locker, yield bool) error {
	held, err := l.Lock(ctx, "wanted")
	if err != nil {
		return err
	}
	w.guard.enter()
	if yield {
		runtime.Gosched()
	}
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
