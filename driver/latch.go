package driver

import (
	"context"
	"time"
)

// RepeatFor is how long package dsync repeats a change of a latch after the
// first request that may have been carried out.
const RepeatFor = 30 * time.Minute

// Latcher is an optional interface of a Driver that supports countdown
// latches. A latch is a count under a name: it is set once, lowered by any
// client, and removed at 0. A latch has no owner, and neither time nor Close
// ends it. A name is used for a lock or for a latch, not for both.
//
// SetLatch, CountDown and DeleteLatch are changes. Each change is one step on
// the backend and has an id that its repeats share. The backend carries out
// only the first request with an id to arrive, and gives the others the same
// answer. The backend remembers an id for twice [RepeatFor]: half of that time
// is for repeats, and the other half is for requests that arrive late over
// broken connections. A change is repeated through the driver value of its
// first request. An id has the form of [Request.Hold].
//
// An error that matches ErrUnavailable means that the change was not carried
// out. ErrUnknown or the error of ctx means that it may have been carried out,
// and ErrClosed means that Close has begun. An error that matches both
// ErrUnknown and ErrUnavailable means that the backend has carried out the
// change but cannot make it safe for now, so package dsync does not repeat the
// change. As with Acquire, every call returns within a bounded time after its
// ctx ends.
type Latcher interface {
	// SetLatch creates a latch with the count n, 1 or more. If there is already
	// a latch, SetLatch changes nothing and returns false.
	SetLatch(ctx context.Context, name, id string, n int) (set bool, err error)

	// CountDown lowers the count by 1. If there is no latch, nothing happens.
	CountDown(ctx context.Context, name, id string) error

	// DeleteLatch removes the latch, if there is one.
	DeleteLatch(ctx context.Context, name, id string) error

	// Latch queries the backend for the count: 0 if there is no latch.
	Latch(ctx context.Context, name string) (left int, err error)

	// WatchLatch calls changed shortly after each end of a latch of the name,
	// at 0 or by DeleteLatch, until stop is called. It may also call changed
	// when nothing has changed. In all other respects it is like Watch of
	// [Watcher], with Latch in place of Inspect.
	WatchLatch(name string, changed func()) (stop func(), err error)
}
