package capacity

import (
	"sync"
	"sync/atomic"
	"time"
)

// model describes the cost of a backend's part of a lock. All times were
// measured one by one, except those marked as fitted.
type model struct {
	name string

	// service is the time that the server is busy with a request. latency is
	// the rest of a request's duration on an instantaneous network: system
	// calls, and wake-ups of goroutines and processes.
	service, latency time.Duration

	// event is the time from a message of the server until the waiter
	// continues, in addition to half of latency.
	event time.Duration

	// extra is the number of requests that a waiter sends after its first
	// request until it waits. looks is the number of requests that it sends
	// between its notification and its grant, only if more clients wait than
	// unseen.
	extra, looks, unseen int

	// perWaiter is the additional server time, for each waiting client, of a
	// request that reads the queue. These requests are the waiter's first
	// request, if asksQueue is set, and the reads. The value is fitted.
	perWaiter time.Duration
	asksQueue bool

	// beside is the additional duration of a hand-over in a crowd. It is caused
	// by the work of clients that are not involved, with one CPU for all of
	// them. The value is fitted.
	beside time.Duration

	// alive is the interval at which a waiting client sends a request that
	// keeps its connection or session alive.
	alive time.Duration

	// passed is the CPU time of a hand-over inside a process.
	passed time.Duration
}

// world is a server with its network.
type world struct {
	model
	roundTrip time.Duration
	server    thread
	waiting   atomic.Int64 // clients of the one contended name
	requests  atomic.Int64
}

// thread does one thing at a time.
type thread struct {
	mu   sync.Mutex
	free time.Time // when all the work that has arrived is done
	busy time.Duration
}

// serve returns when the thread has finished work of duration d, in its turn.
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

// request is a request with its response.
func (w *world) request(readsQueue bool) {
	w.arrive(readsQueue)
	w.halfWay()
}
