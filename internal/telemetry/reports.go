package telemetry

import "sync"

// reports runs the reports of callers that must not wait, sequentially in its
// own goroutine.
type reports struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running bool
	queue   []func()
}

func (r *reports) add(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.queue = append(r.queue, f)
	if !r.running {
		r.running = true
		r.wg.Go(r.work)
	}
}

// work ends when there is nothing left to report.
func (r *reports) work() {
	for {
		r.mu.Lock()
		batch := r.queue
		r.queue = nil
		if r.running = len(batch) > 0; !r.running {
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for _, f := range batch {
			f()
		}
	}
}

func (r *reports) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}
