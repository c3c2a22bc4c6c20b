package capacity

import (
	"sync"
	"sync/atomic"
	"time"
)

// model is what a backend takes for its part of a lock. All times but those
// that are said to be fitted were measured one by one.
type model struct {
	name string

	// service is how long the server is busy with a request, and latency what a
	// request takes besides on a network that takes no time: system calls, and
	// goroutines and processes that have to be woken.
	service, latency time.Duration

	// event is what a message from the server takes until the waiter goes on,
	// beyond half of latency.
	event time.Duration

	// extra is how many requests a waiter sends after the first one until it
	// waits, and looks how many when it was told, before it has the name; the
	// latter only if more clients wait than unseen.
	extra, looks, unseen int

	// perWaiter is for how much longer the server is busy with a request that
	// reads the queue, for each client that waits: the first one, if asksQueue,
	// and the looks. It is fitted.
	perWaiter time.Duration
	asksQueue bool

	// beside is what a hand-over in a crowd takes longer for the work of
	// clients that are not concerned, with a CPU for all of them. It is fitted.
	beside time.Duration

	// alive is how often a client that waits sends a request that keeps its
	// connection or session alive.
	alive time.Duration

	// passed is what a hand-over inside a process takes of its CPU time.
	passed time.Duration
}

// world is a server with its network.
type world struct {
	model
	roundTrip time.Duration
	server    thread
	waiting   atomic.Int64 // clients, for the one name that is contended
	requests  atomic.Int64
}

// thread does one thing after the other.
type thread struct {
	mu   sync.Mutex
	free time.Time // when all that has arrived is done
	busy time.Duration
}

// serve returns when the thread has done something that takes it d, in its
// turn.
func (t *thread) serve(d time.Duration) {
	t.mu.Lock()
	now := time.Now()
	if t.free.Before(now) {
		t.free = now
	}
	t.free = t.free.Add(d)
	t.busy += d
	wait := t.free.Sub(now)
	t.mu.Unlock()
	time.Sleep(wait)
}

func (w *world) halfWay() { time.Sleep((w.latency + w.roundTrip) / 2) }

// arrive is the first part of a request, until the server has served it.
func (w *world) arrive(readsQueue bool) {
	w.requests.Add(1)
	w.halfWay()
	w.serve(readsQueue)
}

func (w *world) serve(readsQueue bool) {
	d := w.service
	if readsQueue {
		d += time.Duration(w.waiting.Load()) * w.perWaiter
	}
	w.server.serve(d)
}

// request is a request with its answer.
func (w *world) request(readsQueue bool) {
	w.arrive(readsQueue)
	w.halfWay()
}
