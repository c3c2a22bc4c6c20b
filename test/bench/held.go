package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	held10k  = heldWorkload(0, "6 (10k)", "10,000 locks held and renewed for 20 s", "held10k.svg", 5)
	held100k = heldWorkload(1, "6 (100k)", "100,000 locks held and renewed for 20 s", "held100k.svg", 1)
)

func heldWorkload(which int, name, title, file string, lanes int) *Workload {
	return &Workload{
		Number: 6, Name: name, Title: title, File: file, Plot: "client CPU ms", Once: true, Lanes: lanes, OursAlone: which == 1,
		Metrics: []Metric{{Name: "client CPU ms"}, {Name: "requests/s"}, {Name: "B/lock"}, {Name: "goroutines/lock"}, {Name: "lost"}, {Name: "acquired/s", More: true}},
		Measure: func(b *bed, r *Row, _ int) (Sample, error) { return measureHeld(b, r, b.size.Held[which], which == 1) },
	}
}

// hold is what a holder is told when all locks are there, and again when the requests are counted, which those of the releases are not.
type hold struct{ For time.Duration }

// measureHeld leaves the work to a process of its own, so that its CPU time and memory are those of the row. Scripts says that
// the rows ask by scripts alone, where that matters.
func measureHeld(b *bed, r *Row, n int, scripts bool) (Sample, error) {
	p := spawn(b.tb, "holder", task{Backend: b.backend.Name, Row: r.Name, Addrs: b.servers.Addrs, Guard: b.path, Size: b.size, N: n})
	limit := hangGuard
	if r.Kind == Peer {
		limit = heldGuard
	}
	if _, err := listenFor(p, limit); err != nil {
		return nil, err
	}
	var a answer
	var err error
	count := b.servers.Count
	if scripts && b.servers.Runs != nil {
		count = b.servers.Runs // MONITOR takes more of the servers' time than the renewals
	}
	requests := count(b.tb, func() {
		order(b.tb, p, hold{b.size.HeldFor})
		a, err = listenFor(p, limit)
	})
	if err != nil {
		return nil, err
	}
	order(b.tb, p, hold{})
	final, err := listenFor(p, limit) // after the releases
	if err != nil {
		return nil, err
	}
	s := a.Sample
	s["requests/s"] = float64(requests) / b.size.HeldFor.Seconds()
	s["lost"] = final.Sample["lost"]
	if s["lost"] > 0 && r.Kind != Peer {
		return nil, fmt.Errorf("%.0f of %d locks were lost, %s", s["lost"], n, final.Text)
	}
	return s, nil
}

const holderGoroutines = 64

func holder(w *worker) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := w.open(ctx)
	if err != nil {
		return err
	}
	names := make([]string, w.N)
	for i := range names {
		names[i] = fmt.Sprint("held", i)
	}
	if err := pairOnce(ctx, l, "warm"); err != nil {
		return err
	}
	k := &keeper{locker: l}
	held := make([]Held, w.N)
	renewals := make(chan error, 1)
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	go func() { renewals <- k.run(ctx) }() // ends with ctx
	start := time.Now()
	if err := acquireAll(ctx, l, names, held, k); err != nil {
		return err
	}
	s := Sample{"acquired/s": float64(w.N) / time.Since(start).Seconds()}
	if err := settle(ctx); err != nil {
		return err
	}
	s["B/lock"] = float64(heapInUse()-heap) / float64(w.N)
	s["goroutines/lock"] = math.Max(0, float64(runtime.NumGoroutine()-goroutines-1)/float64(w.N))
	w.say(answer{})
	var h hold
	if more, err := w.told(&h); err != nil || !more {
		return err
	}
	used := cpuTime()
	if err := pause(ctx, h.For); err != nil {
		return err
	}
	s["client CPU ms"] = millis(cpuTime() - used)
	w.say(answer{Sample: s})
	if more, err := w.told(&h); err != nil || !more {
		return err
	}
	k.stop()
	before, why := countLost(held)
	lost, err := releaseAll(ctx, held)
	if why == nil {
		why = err
	}
	cancel()
	if err := <-renewals; err != nil {
		return fmt.Errorf("renewal: %w", err)
	}
	a := answer{Sample: Sample{"lost": float64(lost)}}
	if lost > 0 {
		a.Text = fmt.Sprintf("%d while all were held, the others while they were released: %v", before, why)
	}
	w.say(a)
	return l.Close()
}

// countLost returns how many locks are known to be lost, and why the first is.
func countLost(held []Held) (n int, why error) {
	for _, h := range held {
		if lossy, ok := h.(Lossy); ok && lossy.Err() != nil {
			if n++; why == nil {
				why = lossy.Err()
			}
		}
	}
	return n, why
}

// releaseAll returns how many turned out to be lost, and what the release of one of them said.
func releaseAll(ctx context.Context, held []Held) (int64, error) {
	var lost atomic.Int64
	var why atomic.Pointer[error]
	_ = eachOf(len(held), func(i int) error { // which never fails
		lossy, ok := held[i].(Lossy)
		gone := ok && lossy.Err() != nil
		err := held[i].Release(ctx)
		if err != nil {
			why.CompareAndSwap(nil, &err)
		}
		if err != nil || gone {
			lost.Add(1)
		}
		return nil
	})
	if err := why.Load(); err != nil {
		return lost.Load(), *err
	}
	return lost.Load(), nil
}

// acquireAll takes a lock for each name, many at a time.
func acquireAll(ctx context.Context, l Locker, names []string, held []Held, k *keeper) error {
	return eachOf(len(names), func(i int) (err error) {
		if held[i], err = l.Lock(ctx, names[i]); err == nil {
			k.add(held[i])
		}
		return err
	})
}

// eachOf calls f for each of n, from as many goroutines as a program may have that takes locks.
func eachOf(n int, f func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, holderGoroutines)
	var wg sync.WaitGroup
	for g := range holderGoroutines {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && errs[g] == nil; i = next.Add(1) - 1 {
				errs[g] = f(int(i))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// keeper renews locks of libraries that leave it to their users, every third of the TTL.
type keeper struct {
	locker Locker

	mu    sync.Mutex
	held  []Held
	ended bool
}

func (k *keeper) add(h Held) {
	_, batch := k.locker.(BatchRenewer)
	if _, ok := h.(Renewer); !ok && !batch {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = append(k.held, h) // memory that is the harness's own, and a program's that has to do this
}

// stop returns when no renewal is under way, and there will be none.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
}

func (k *keeper) run(ctx context.Context) error {
	for pause(ctx, heldTTL/3) == nil {
		if err := k.renew(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (k *keeper) renew(ctx context.Context) error {
	k.mu.Lock()
	n := len(k.held)
	held := k.held[:n:n]
	k.mu.Unlock()
	const together = 500 // so that those who acquire are not kept waiting
	for len(held) > 0 {
		some := held[:min(together, len(held))]
		held = held[len(some):]
		if err := k.renewSome(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeper) renewSome(ctx context.Context, held []Held) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return nil
	}
	if b, ok := k.locker.(BatchRenewer); ok {
		return b.RenewAll(ctx, held)
	}
	return eachOf(len(held), func(i int) error {
		_ = held[i].(Renewer).Renew(ctx) // the release tells which are lost
		return nil
	})
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
