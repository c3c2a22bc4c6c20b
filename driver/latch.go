package driver

import (
	"context"
	"time"
)

// RepeatFor is how long package dsync repeats a change of a latch after the
// first request that may have been carried out.
const RepeatFor = 30 * time.Minute

// Latcher is an optional interface of a Driver that keeps count-down latches. A
// latch is a count under a name, set once, lowered by any client and gone at 0.
// A latch belongs to nobody: neither time nor Close ends it. One name is used
// for a lock or for a latch, not for both.
//
// SetLatch, CountDown and DeleteLatch are changes. Each change is one step at
// the backend and has an id, also in its repeats. Of all requests with one id
// the backend carries out the first to arrive, and the others have the same
// answer. The backend knows an id for twice [RepeatFor]: half of the time for
// repeats, and the other half for late requests, on broken connections. A
// change is repeated through the driver value of its first request. An id is
// made as [Request.Hold] is.
//
// An error that matches ErrUnavailable says that the change was not carried
// out, ErrUnknown or the error of ctx that perhaps it was, and ErrClosed that
// Close has begun. An error that matches both ErrUnknown and ErrUnavailable
// says that the backend has carried the change out and cannot make it safe for
// now, so package dsync does not repeat the change. As for Acquire, every call
// returns within a bounded time of the end of its ctx.
type Latcher interface {
	// SetLatch makes a latch with the count n, 1 or more. If there is a latch,
	// SetLatch changes nothing and returns false.
	SetLatch(ctx context.Context, name, id string, n int) (set bool, err error)

	// CountDown lowers the count by 1. Without a latch nothing happens.
	CountDown(ctx context.Context, name, id string) error

	// DeleteLatch removes the latch, if there is one.
	DeleteLatch(ctx context.Context, name, id string) error

	// Latch asks the backend for the count: 0 if there is no latch.
	Latch(ctx context.Context, name string) (left int, err error)

	// WatchLatch has changed called soon after each end of a latch of the name,
	// at 0 or by DeleteLatch, until stop is called; perhaps also when nothing
	// has changed. In all else it is as Watch of [Watcher], with Latch in place
	// of Inspect.
	WatchLatch(name string, changed func()) (stop func(), err error)
}
