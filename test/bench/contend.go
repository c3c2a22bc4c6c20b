package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// guard detects whether two callers ever hold a name at the same time. It is
// memory that processes share. It contains a count of overlaps and, for each
// name, the number of its holders.
type guard struct {
	memory []byte
	cells  *[1 + guardNames]atomic.Int64
}

const (
	guardNames = 8
	guardSize  = 8 * (1 + guardNames)
)

// newGuard maps a file, which it creates if necessary.
func newGuard(path string) (*guard, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(guardSize); err != nil {
		return nil, err
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, guardSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &guard{memory, (*[1 + guardNames]atomic.Int64)(unsafe.Pointer(&memory[0]))}, nil
}

func (g *guard) close() error { return syscall.Munmap(g.memory) }

// A new holder must call enter, and must call leave before it releases the
// name.
func (g *guard) enter(name int) {
	if g.cells[1+name].Add(1) != 1 {
		g.cells[0].Add(1)
	}
}

func (g *guard) leave(name int) { g.cells[1+name].Add(-1) }

var errOverlap = errors.New("two callers held the lock at the same time")

// err returns errOverlap if there was an overlap since the last call.
func (g *guard) err() error {
	if g.cells[0].Swap(0) > 0 {
		return errOverlap
	}
	return nil
}

// bout describes one period of contention.
type bout struct {
	Names   []string // shared out among the callers
	Callers int      // for each client
	Hold    time.Duration
	Warm    time.Duration // before grants count
	For     time.Duration // while grants count
	Shared  bool
}

// tally is the result of a bout.
type tally struct {
	Counts  []int64 // grants of each caller
	Longest time.Duration
	Elapsed time.Duration
	Error   string `json:",omitempty"`
}

// contest is a bout in progress.
type contest struct {
	bout
	guard  *guard
	origin time.Time
	begun  atomic.Int64 // the time since origin, 0 before grants count
	over   atomic.Bool
}

const (
	// grants in which other goroutines get the CPU, so that the guard sees a
	// second holder
	yieldEvery = 8
	unwind     = 500 * time.Millisecond // for waiters at the end
)

// contend makes callers of clients acquire and release the names of a bout, and
// returns when all callers have stopped.
func contend(ctx context.Context, clients []Locker, o bout, g *guard) (*tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &contest{bout: o, guard: g, origin: time.Now()}
	n := len(clients) * o.Callers
	t := &tally{Counts: make([]int64, n)}
	longest, errs := make([]time.Duration, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { t.Counts[i], longest[i], errs[i] = c.caller(ctx, clients[i%len(clients)], i%len(o.Names)) })
	}
	err := pause(ctx, o.Warm)
	begun := time.Now()
	c.begun.Store(int64(begun.Sub(c.origin)) | 1)
	if err == nil {
		err = pause(ctx, o.For)
	}
	c.over.Store(true)
	t.Elapsed = time.Since(begun)
	stop := time.AfterFunc(unwind, cancel)
	defer stop.Stop()
	all.Wait()
	for _, d := range longest {
		t.Longest = max(t.Longest, d)
	}
	return t, first(append([]error{g.err(), err}, errs...)...)
}

// caller acquires and releases a name until the contest has ended. If a wait
// began before grants count, it is measured from the time at which they begin
// to count.
func (c *contest) caller(ctx context.Context, l Locker, name int) (count int64, longest time.Duration, err error) {
	for asked := time.Since(c.origin); !c.over.Load(); asked = time.Since(c.origin) {
		held, err := l.Lock(ctx, c.Names[name])
		begun := time.Duration(c.begun.Load())
		if begun > 0 {
			longest = max(longest, time.Since(c.origin)-max(asked, begun))
		}
		if err != nil {
			if ctx.Err() != nil {
				return count, longest, nil
			}
			return count, longest, fmt.Errorf("lock: %w", err)
		}
		if !c.Shared {
			c.guard.enter(name)
		}
		if begun > 0 && !c.over.Load() {
			count++
		}
		if c.Hold > 0 && !c.over.Load() {
			_ = pause(context.Background(), c.Hold) // cannot fail
		}
		if count%yieldEvery == 0 {
			runtime.Gosched()
		}
		if !c.Shared {
			c.guard.leave(name)
		}
		if err := held.Release(context.Background()); err != nil {
			return count, longest, fmt.Errorf("release: %w", err)
		}
	}
	return count, longest, nil
}
