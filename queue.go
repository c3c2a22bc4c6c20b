package dsync

// waiter is a call of Lock that waits in the process, or that contends at the backend for an Owner.
type waiter struct {
	request request
	wake    chan struct{} // buffered; signaled when called or lease is set

	// Guarded by lock.mu.
	called     bool   // it is its turn to ask the backend
	lease      *Lease // it was served
	cancel     func() // ends its Acquire; set only for a call of an Owner
	queued     bool
	next, prev *waiter
}

// serve gives the waiter a lease. It is called with lock.mu held.
func (w *waiter) serve(l *Lease) {
	w.lease = l
	w.signal()
}

// call tells the waiter to ask the backend. It is called with lock.mu held.
func (w *waiter) call() {
	w.called = true
	w.signal()
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // it has not looked since the last signal
	}
}

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
