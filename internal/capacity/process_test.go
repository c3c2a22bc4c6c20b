package capacity

import (
	"context"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// process is the driver of a simulated process: one client of drivers/memory
// with slow requests. It implements no optional interface.
type process struct {
	driver.Driver
	world *world
}

// Acquire implements driver.Driver.
func (p process) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	w := p.world
	w.arrive(w.asksQueue)
	wait := &waiting{Events: r.Events, world: w}
	own := *r
	own.Events = wait
	l, err := p.Driver.Acquire(ctx, &own)
	wait.over()
	if err != nil {
		return nil, err
	}
	w.halfWay()
	if wait.queued {
		time.Sleep(w.event + w.beside)
		if wait.before > w.unseen {
			for range w.looks {
				w.request(true)
			}
		}
	}
	return lease{l, w}, nil
}

// waiting is the time that an attempt spends in the queue of the server.
type waiting struct {
	driver.Events
	world   *world
	queued  bool
	before  int            // number of waiters when the attempt learned that it must wait
	pending sync.WaitGroup // requests of a waiting attempt
}

// Waiting implements driver.Events.
func (a *waiting) Waiting() {
	w := a.world
	a.queued, a.before = true, int(w.waiting.Add(1))
	a.pending.Go(func() {
		w.halfWay() // the response that makes it wait
		for range w.extra {
			w.request(w.asksQueue)
		}
	})
	a.Events.Waiting()
}

// over ends a wait. A client does one thing at a time, so work that it has
// begun for its wait comes first.
func (a *waiting) over() {
	if !a.queued {
		return
	}
	a.world.waiting.Add(-1)
	a.pending.Wait()
}

type lease struct {
	driver.Lease
	world *world
}

// Release implements driver.Lease.
func (l lease) Release(ctx context.Context) error {
	l.world.arrive(false)
	err := l.Lease.Release(ctx)
	l.world.halfWay()
	return err
}
