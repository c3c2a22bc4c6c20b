package cas

import (
	"context"
	"sync"
)

// turns lets the requests of a driver that got into each other's way at the
// record of a name change it one after the other. Otherwise n of them would
// write in vain about n² times.
type turns struct {
	mu sync.Mutex
	of map[string]*turn // by name
}

type turn struct {
	free  chan struct{} // holds a value while nobody has the turn
	wants int           // how many have it or wait for it
}

// enter waits for the turn at a name. It reports whether ctx and life went on
// until then; if so, the caller calls leave.
func (t *turns) enter(ctx, life context.Context, name string) (leave func(), ok bool) {
	t.mu.Lock()
	own := t.of[name]
	if own == nil {
		own = &turn{free: make(chan struct{}, 1)}
		own.free <- struct{}{}
		t.of[name] = own
	}
	own.wants++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.wants--; own.wants == 0 {
			delete(t.of, name)
		}
	}
	select {
	case <-own.free:
		return func() {
			own.free <- struct{}{}
			forget()
		}, true
	case <-ctx.Done():
	case <-life.Done():
	}
	forget()
	return nil, false
}
