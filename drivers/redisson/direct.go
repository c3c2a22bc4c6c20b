package redisson

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// direct is the short way for a single caller, and for up to fewAtOnce of a fair lock: the caller sends its request itself, where the request cannot hold it up. The way is open over
// a connection that answered a moment ago, of a client that the driver opened: such a client heeds the end of a context wherever it
// waits for an answer, though not while it connects, and sends everything over one connection.
//
// If the caller leaves, its answer is lost. But the clean-up behind it is sent over the same connection, so its result is final,
// unless another connection was made meanwhile.
type direct struct {
	busy     atomic.Int32 // ops under way, by this way and any other
	answered atomic.Int64 // when the last answered op was sent, on the driver's clock
}

const (
	// trusted is how long after an answer a connection counts as answering.
	trusted = int64(time.Second)

	// fewAtOnce is how many callers of a fair lock go the short way at a time. They mostly want one name, and requests about one name do not go
	// together anyhow.
	fewAtOnce = 3

	// never stands for the time of the last answered op while the latest op has no answer.
	never = math.MinInt64 / 2

	// unordered is the order of requests that others may overtake. Requests of equal order, if it is another one, reach the server as sent.
	unordered = 0
)

// order returns the order of requests that are sent now.
func (d *Driver) order() uint64 {
	if d.cluster || d.dialer == nil || d.options.WaitReplicas > 0 {
		return unordered
	}
	return d.dialer.Made()
}

// carryDirect carries out an op by the short way, if it is open.
func (d *Driver) carryDirect(ctx context.Context, o *op) bool {
	if d.dialer == nil || d.cluster || d.options.WaitReplicas > 0 || d.now()-d.direct.answered.Load() > trusted {
		return false
	}
	limit := int32(1)
	if d.options.Fair {
		limit = fewAtOnce
	}
	if d.direct.busy.Add(1) > limit {
		d.direct.busy.Add(-1)
		return false
	}
	defer d.direct.busy.Add(-1)
	o.order = d.order()
	var keys [3]string
	var args [6]string
	d.sendOp(ctx, o, keys[:0], args[:0])
	return true
}

// heard notes whether an op was answered.
func (d *Driver) heard(sent int64, answer error) {
	last := d.direct.answered.Load()
	switch {
	case answer != nil:
		d.direct.answered.Store(never)
	case sent-last > trusted/8: // not always, to cost little
		d.direct.answered.Store(sent)
	}
}
