package dsync

import "context"

// waiter is what others know of a call of Lock: of a call in line, and of a contender for a group.
type waiter struct {
	ctx     context.Context
	request request
	wake    chan struct{} // buffered; signaled when contends or lease is set

	// Guarded by lock.mu.
	contends   bool
	queued     bool
	lease      *Lease // of a call that was served, or granted
	cancel     func() // ends its Acquire; set only for a call of a group
	next, prev *waiter
}

// serve gives the waiter a lease. Called with lock.mu held.
func (w *waiter) serve(l *Lease) {
	w.lease = l
	w.signal()
	if w.cancel != nil {
		w.cancel()
	}
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // the last signal is still there
	}
}

// ended reports whether the context of the call has ended. Such a call is on
// its way out, and is not served any more.
func (w *waiter) ended() bool { return w.ctx.Err() != nil }

// waiters is a queue in order of arrival.
type waiters struct{ first, last *waiter }

func (q *waiters) push(w *waiter) {
	w.queued = true
	if w.prev = q.last; w.prev != nil {
		w.prev.next = w
	} else {
		q.first = w
	}
	q.last = w
}

// head returns the first call whose context has not ended. Those before it
// leave the line.
func (q *waiters) head() *waiter {
	for q.first != nil && q.first.ended() {
		q.remove(q.first)
	}
	return q.first
}

func (q *waiters) remove(w *waiter) {
	if !w.queued {
		return
	}
	w.queued = false
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.next, w.prev = nil, nil
}
