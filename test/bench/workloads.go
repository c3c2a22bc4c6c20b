package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Metric is a quantity that a workload measures.
type Metric struct {
	Name string // with the unit
	More bool   // a larger value is better
}

// Sample has the value of each metric in one round.
type Sample map[string]float64

// Workload is measured on one row at a time. Workloads have the same numbers as
// in docs/performance.md.
type Workload struct {
	Number int
	Name   string

	// Metrics are the measured quantities, the most important one first.
	Metrics []Metric

	// Measure runs one round.
	Measure func(ctx context.Context, b *bed, r *Row, round int) (Sample, error)

	// Background is set if ctx is context.Background. In other workloads ctx
	// can be canceled.
	Background bool

	// Once is set if one round without a disk is enough.
	Once bool

	// Crowd is the number of clients of a crowd, and 0 in other workloads.
	Crowd int
}

var (
	latency    = []Metric{{Name: "p50 µs"}, {Name: "p99 µs"}, {Name: "allocs/op"}}
	throughput = []Metric{{Name: "ops/s", More: true}, {Name: "p99 ms"}}
	handing    = []Metric{{Name: "p50 µs"}, {Name: "p99 µs"}}
	contention = []Metric{{Name: "hand-overs/s", More: true}, {Name: "Jain", More: true}, {Name: "longest wait ms"}}
)

// Workloads lists all workloads in the order in which they run.
var Workloads = append([]*Workload{
	{Number: 1, Name: "1 free lock", Metrics: latency, Measure: measureFree},
	{Number: 1, Name: "1 free lock, Background", Metrics: latency, Measure: measureFree, Background: true},
	{Number: 2, Name: "2 64 names", Metrics: throughput, Measure: measureNames},
	{Number: 2, Name: "2 64 names, Background", Metrics: throughput, Measure: measureNames, Background: true},
	{Number: 3, Name: "3 hot name", Metrics: contention, Measure: func(ctx context.Context, b *bed, r *Row, round int) (Sample, error) {
		return measureHot(ctx, b, r, round, 1)
	}},
	{Number: 4, Name: "4 hand-over", Metrics: handing, Measure: measureHandOver},
	{Number: 4, Name: "4 hand-over, Background", Metrics: handing, Measure: measureHandOver, Background: true},
	{Number: 5, Name: "5 two processes", Metrics: contention, Measure: measureProcesses},
	{Number: 7, Name: "7 eight hot names", Metrics: contention, Measure: func(ctx context.Context, b *bed, r *Row, round int) (Sample, error) {
		return measureHot(ctx, b, r, round, guardNames)
	}},
	{Number: 6, Name: "6 held locks", Metrics: []Metric{{Name: "CPU ms/s"}, {Name: "B/lock"}, {Name: "goroutines/lock"}}, Measure: measureHeld, Once: true},
}, crowds(2, 10, 50, 200, 1000)...)

func crowds(sizes ...int) (all []*Workload) {
	for _, n := range sizes {
		all = append(all, &Workload{
			Number: 8, Name: fmt.Sprintf("8 crowd of %d", n), Metrics: contention, Once: true, Crowd: n,
			Measure: func(_ context.Context, b *bed, r *Row, _ int) (Sample, error) { return measureCrowd(b, r, n) },
		})
	}
	return all
}

// rows returns the rows of a backend that take part in the workload, the floor
// first.
func (w *Workload) rows(b *Backend) []*Row {
	return slices.DeleteFunc(slices.Clone(b.Rows), func(r *Row) bool { return r.In != nil && !slices.Contains(r.In, w.Number) })
}

// pairOnce acquires a lock and releases it.
func pairOnce(ctx context.Context, l Locker, name string) error {
	held, err := l.Lock(ctx, name)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := held.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// eachOf calls f for each of n, from 64 goroutines.
func eachOf(n int, f func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, 64)
	var wg sync.WaitGroup
	for g := range errs {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && errs[g] == nil; i = next.Add(1) - 1 {
				errs[g] = f(int(i))
			}
		})
	}
	wg.Wait()
	return first(errs...)
}

// first returns the first error that is not nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func measureFree(ctx context.Context, b *bed, r *Row, _ int) (Sample, error) {
	all, err := b.lockers(ctx, r, 1)
	if err != nil {
		return nil, err
	}
	name := r.key("free", 0)
	for range 3 { // the first locks allocate what a client keeps
		if err := pairOnce(ctx, all[0], name); err != nil {
			return nil, err
		}
	}
	took := make([]time.Duration, 0, 1<<16)
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
	return Sample{
		"p50 µs":    micros(percentile(took, 0.5)),
		"p99 µs":    micros(percentile(took, 0.99)),
		"allocs/op": float64(after.Mallocs-before.Mallocs) / float64(len(took)),
	}, nil
}

const manyNames = 64

func measureNames(ctx context.Context, b *bed, r *Row, _ int) (Sample, error) {
	all, err := b.lockers(ctx, r, 1)
	if err != nil {
		return nil, err
	}
	pair := func(i int) error { return pairOnce(ctx, all[0], r.key("distinct", i)) }
	if err := eachOf(manyNames, pair); err != nil { // opens connections
		return nil, err
	}
	took := make([][]time.Duration, manyNames)
	begin := time.Now()
	err = eachOf(manyNames, func(i int) error {
		for start := begin; start.Sub(begin) < b.size.Slice; {
			if err := pair(i); err != nil {
				return err
			}
			now := time.Now()
			took[i] = append(took[i], now.Sub(start))
			start = now
		}
		return nil
	})
	elapsed, every := time.Since(begin), slices.Concat(took...)
	return Sample{"ops/s": float64(len(every)) / elapsed.Seconds(), "p99 ms": millis(percentile(every, 0.99))}, err
}

func (t *tally) sample() Sample {
	var n int64
	for _, c := range t.Counts {
		n += c
	}
	return Sample{"hand-overs/s": float64(n) / t.Elapsed.Seconds(), "Jain": jain(t.Counts), "longest wait ms": millis(t.Longest)}
}

// opening is the time that clients have to open the connections for their first
// waits.
const opening = 150 * time.Millisecond

// measureHot makes 32 goroutines of one client contend for each of the names.
func measureHot(ctx context.Context, b *bed, r *Row, round, names int) (Sample, error) {
	clients, err := b.lockers(ctx, r, 1)
	if err != nil {
		return nil, err
	}
	o := bout{Callers: 32 * names, Warm: b.size.Slice/4 + opening/4, For: b.size.Slice * 3 / 2, Shared: r.Shared}
	for i := range names {
		o.Names = append(o.Names, r.key("hot"+strconv.Itoa(i)+"of"+strconv.Itoa(names)+"-", round))
	}
	t, err := contend(ctx, clients, o, b.guard)
	if err != nil {
		return nil, err
	}
	return t.sample(), nil
}

func measureProcesses(_ context.Context, b *bed, r *Row, round int) (Sample, error) {
	t, err := b.fight(r, []int{1, 1}, bout{
		Names: []string{r.key("processes", round)}, Callers: 16, Warm: b.size.Slice/2 + opening, For: b.size.Slice * 3 / 2,
	})
	if err != nil {
		return nil, err
	}
	return t.sample(), nil
}

// measureCrowd makes clients with their own connections contend for a name that
// each of them holds for 1 ms. A large crowd gets enough time to start, and for
// one turn of each client.
func measureCrowd(b *bed, r *Row, clients int) (Sample, error) {
	processes := min(clients, 4)
	shares := make([]int, processes)
	for i := range clients {
		shares[i%processes]++
	}
	n := time.Duration(clients)
	t, err := b.fight(r, shares, bout{
		Names: []string{r.key("crowd", clients)}, Callers: 1, Hold: time.Millisecond,
		Warm: opening + n*5*time.Millisecond, For: 4*b.size.Slice + n*9*time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	return t.sample(), nil
}

func measureHandOver(ctx context.Context, b *bed, r *Row, round int) (Sample, error) {
	clients, err := b.lockers(ctx, r, 2)
	if err != nil {
		return nil, err
	}
	name := r.key("handover", round)
	held, err := clients[0].Lock(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	var took []time.Duration
	for end := time.Now().Add(b.size.Slice * 3 / 2); len(took) < 2 || time.Now().Before(end); {
		var d time.Duration
		if d, held, err = handTo(ctx, clients[(len(took)+1)%2], held, name, b.size.Settle, b.guard); err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	took = took[1:] // the first wait allocates what a client keeps
	return Sample{"p50 µs": micros(percentile(took, 0.5)), "p99 µs": micros(percentile(took, 0.99))}, held.Release(ctx)
}

// handTo hands over a lock to a waiting client and returns the time from the
// release to the grant.
func handTo(ctx context.Context, next Locker, held Held, name string, settle time.Duration, g *guard) (time.Duration, Held, error) {
	type grant struct {
		at   time.Time
		held Held
		err  error
	}
	granted := make(chan grant, 1)
	g.enter(0)
	go func() { // ends when the hand-over ends
		held, err := next.Lock(ctx, name)
		at := time.Now()
		if err == nil {
			g.enter(0)
		}
		granted <- grant{at, held, err}
	}()
	err := pause(ctx, settle)
	g.leave(0)
	start := time.Now()
	if err == nil {
		err = held.Release(ctx)
	}
	got := <-granted
	if got.err == nil {
		g.leave(0)
	}
	return got.at.Sub(start), got.held, first(g.err(), err, got.err)
}

// measureHeld makes one client hold many locks, and renews the locks of
// libraries that do not renew them. A lost lock is an error.
func measureHeld(ctx context.Context, b *bed, r *Row, _ int) (Sample, error) {
	if err := b.closeClients(); err != nil { // their sessions use the CPU, too
		return nil, err
	}
	clients, err := b.lockers(ctx, r, 1)
	if err != nil {
		return nil, err
	}
	if err := pairOnce(ctx, clients[0], r.key("warm", 0)); err != nil {
		return nil, err
	}
	n := b.size.Held
	held, names := make([]Held, n), make([]string, n)
	for i := range names {
		names[i] = r.key("held", i)
	}
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	if err := eachOf(n, func(i int) (err error) {
		held[i], err = clients[0].Lock(ctx, names[i])
		return err
	}); err != nil {
		return nil, err
	}
	if err := renewAll(ctx, clients[0], names, held); err != nil {
		return nil, err
	}
	s := Sample{
		"B/lock":          float64(heapInUse()-heap) / float64(n),
		"goroutines/lock": max(0, float64(runtime.NumGoroutine()-goroutines)/float64(n)),
	}
	start, used := time.Now(), cpuTime()
	for left := b.size.HeldFor; left > 0; left = b.size.HeldFor - time.Since(start) {
		err := pause(ctx, min(left, heldTTL/3))
		if err == nil {
			err = renewAll(ctx, clients[0], names, held)
		}
		if err != nil {
			return nil, err
		}
	}
	s["CPU ms/s"] = millis(cpuTime()-used) / time.Since(start).Seconds()
	var lost atomic.Int64
	_ = eachOf(n, func(i int) error { // counts its errors
		known := held[i].Err()
		if err := held[i].Release(ctx); err != nil || known != nil {
			lost.Add(1)
		}
		return nil
	})
	if lost.Load() > 0 {
		return nil, fmt.Errorf("%d of %d locks were lost", lost.Load(), n)
	}
	return s, nil
}

// renewAll renews the locks of libraries that do not renew them.
func renewAll(ctx context.Context, l Locker, names []string, held []Held) error {
	if l, ok := l.(BatchRenewer); ok {
		return l.RenewAll(ctx, names)
	}
	if h, ok := held[0].(*hold); !ok || h.renew == nil {
		return nil
	}
	return eachOf(len(held), func(i int) error { return held[i].(*hold).renew(ctx) })
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
