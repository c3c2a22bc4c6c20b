package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const lookEvery = 8 // holds in which others are let run

// bout is what goroutines contend for.
type bout struct {
	Name     string
	Hold     time.Duration // how long to keep the name each time
	Together bool          // several may have the name at once
	Callers  int           // of a client, where there is one in a process
}

// rivals are goroutines that take the lock of one name, keep it, give it back and want it again.
type rivals struct {
	bout
	guard  *guard
	cancel context.CancelFunc
	origin time.Time
	all    sync.WaitGroup
	each   []rival

	begun atomic.Int64 // time since origin; 0 before begin
	over  atomic.Bool
}

type rival struct {
	count   int64
	longest time.Duration
	err     error
}

// contention is what came of rivals.
type contention struct {
	Counts  []int64 // grants of each, from begin to end
	MaxWait time.Duration
	Error   string
	err     error
}

// unwind is how long those who still wait at the end may go on, so that what they asked for is not cut short on the way.
const unwind = 500 * time.Millisecond

// contend starts a goroutine for each of callers, which may be one client many times. They end with end.
func contend(callers []Locker, o bout, g *guard) *rivals {
	ctx, cancel := context.WithCancel(context.Background())
	r := &rivals{bout: o, guard: g, cancel: cancel, origin: time.Now(), each: make([]rival, len(callers))}
	for i, l := range callers {
		r.all.Go(func() { r.each[i].err = r.contend(ctx, l, &r.each[i]) })
	}
	return r
}

// begin lets grants count from now on, and waits.
func (r *rivals) begin() { r.begun.Store(int64(time.Since(r.origin)) | 1) }

// contend goes on until the end. What is granted after that does not count, but a wait that began before does.
func (r *rivals) contend(ctx context.Context, l Locker, own *rival) error {
	for asked := time.Since(r.origin); !r.over.Load(); asked = time.Since(r.origin) {
		held, err := l.Lock(ctx, r.Name)
		begun := time.Duration(r.begun.Load())
		if begun > 0 {
			own.longest = max(own.longest, time.Since(r.origin)-max(asked, begun))
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("lock: %w", err)
		}
		r.keep(own, begun > 0)
		if err := held.Release(context.Background()); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	return nil
}

// keep is what a goroutine does with a lock.
func (r *rivals) keep(own *rival, counts bool) {
	r.guard.grants.Add(1)
	if !r.Together {
		r.guard.enter()
		defer r.guard.leave()
	}
	if !r.over.Load() {
		if counts {
			own.count++
		}
		if r.Hold > 0 {
			_ = pause(context.Background(), r.Hold) // ends by itself
		}
	}
	if own.count%lookEvery == 0 {
		runtime.Gosched() // else nobody could be seen who was granted the lock too
	}
}

// end waits until all goroutines have ended.
func (r *rivals) end() *contention {
	r.over.Store(true)
	defer time.AfterFunc(unwind, r.cancel).Stop()
	r.all.Wait()
	r.cancel()
	c := &contention{Counts: make([]int64, len(r.each))}
	for i, own := range r.each {
		c.Counts[i], c.MaxWait = own.count, max(c.MaxWait, own.longest)
		if own.err != nil {
			c.err = own.err
		}
	}
	if err := r.guard.err(); err != nil {
		c.err = err
	}
	if c.err != nil {
		c.Error = c.err.Error()
	}
	return c
}
