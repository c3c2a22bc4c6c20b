package stress

import (
	"fmt"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
)

// strain is the load of the servers since the last query.
type strain struct {
	longest  time.Duration // the longest single request
	requests int64         // including those inside of scripts
}

const (
	crowdSize = 1500
	// perWaiter is the number of requests that a leaving waiter may cost the
	// servers, in addition to the requests of other clients in that time.
	perWaiter = 50
	// longestRequest is the longest time that other clients may wait while the
	// server is busy with one request. It is far above the normal time of a
	// request, and below the time that a renewal can wait.
	longestRequest = TTL / 8
)

// watchStalls measures how long this process, and so possibly its servers, gets
// no processor.
func watchStalls() (longest func() time.Duration) {
	const tick = 5 * time.Millisecond
	stop, longestStall := make(chan struct{}), make(chan time.Duration)
	go func() { // ends when the call of longest ends
		var most time.Duration
		for ticker, last := time.NewTicker(tick), time.Now(); ; {
			select {
			case <-ticker.C:
				now := time.Now()
				most, last = max(most, now.Sub(last)-tick), now
			case <-stop:
				ticker.Stop()
				longestStall <- most
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-longestStall
	}
}

// party is a client of a worker.
type party struct {
	*cell
	w      *running
	client int
}

// parties returns three clients, in different processes if there are several.
func (c *cell) parties() (a, b, d party) {
	all := make([]party, 3)
	for i := range all {
		all[i] = party{c, c.workers[i%len(c.workers)], i / len(c.workers)}
	}
	c.random.Shuffle(3, func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all[0], all[1], all[2]
}

// do makes a party carry out an order of a crowd. The cell fails if the order
// cannot be carried out.
func (p party) do(kind, name string, n int, limit time.Duration) time.Duration {
	ms := p.askWorker(p.w, fmt.Sprintf("crowd %d %s %s %d %d", p.client, kind, name, n, limit.Milliseconds()))
	if ms < 0 {
		p.result.Failed = append(p.result.Failed, fmt.Sprintf("%s could not %s %q; see its standard error", p.w.label, kind, name))
	}
	return time.Duration(ms) * time.Millisecond
}

// crowdLeaves makes all waiters of a client stop waiting at the same time: by
// cancellation or, every other time, by a common deadline.
func crowdLeaves(c *cell, i int) {
	holder, waiters, other := c.parties()
	holder.do("hold", c.crowded, 0, 0)
	other.do("hold", c.unrelated, 0, 0)
	limit := time.Duration(0)
	if i%2 == 1 {
		limit = max(6*time.Second, 3*c.joined) // so that all have joined in time
	}
	joined := waiters.do("wait", c.crowded, crowdSize, limit)
	c.joined = joined
	if limit > 0 {
		c.sleep(limit - joined - time.Second) // requests during this time do not count
	}
	stall := watchStalls()
	if c.bed.strain != nil {
		c.bed.strain()
	}
	left := waiters.do("leave", c.crowded, 0, 0)
	other.do("free", c.unrelated, 0, 0) // fails if the lock was lost
	settled := holder.do("settle", c.crowded, 0, 0)
	holder.do("free", c.crowded, 0, 0)
	regained := other.do("take", c.crowded, 0, 0)
	c.t.Logf("%d waiters joined in %v and left in %v; the queue was empty after %v; the lock was granted again after %v",
		crowdSize, joined, left, settled, regained)
	stood := stall()
	if c.bed.strain == nil {
		return
	}
	s := c.bed.strain()
	c.t.Logf("the longest request took %v; %d requests; this process once waited for a processor for %v", s.longest, s.requests, stood)
	if s.longest > longestRequest+stood || s.requests > crowdSize*perWaiter {
		c.result.Failed = append(c.result.Failed, fmt.Sprintf("when %d waiters gave up: a request took %v, want at most %v; %d requests, want at most %d",
			crowdSize, s.longest, longestRequest, s.requests, crowdSize*perWaiter))
	}
}

// outage cuts a process with waiters off from the servers for a while. It
// cancels the waiters during the outage or after it. Their places in a queue
// must be released before other clients would have to wait for these places to
// expire.
func outage(d time.Duration, canceled bool) func(*cell, int) {
	return func(c *cell, i int) {
		holder, waiters, other := c.parties()
		holder.do("hold", c.crowded, 0, 0)
		waiters.do("wait", c.crowded, 20, 0)
		w := waiters.w
		c.require(w.connected, "%s had no connection when its links were about to fail", w.label)
		if i%2 == 0 {
			w.each(func(l *wire.Wire) { l.Hold(wire.Both) })
		} else {
			w.each((*wire.Wire).Cut)
		}
		if i%3 != 0 { // until unanswered requests are pending
			c.sleep(TTL)
		}
		if canceled {
			waiters.do("leave", c.crowded, 0, 0)
		}
		c.sleep(d)
		w.each((*wire.Wire).Cut) // everything in flight is lost
		w.each((*wire.Wire).Heal)
		if !canceled {
			c.sleep(TTL)
			waiters.do("leave", c.crowded, 0, 0)
		}
		settled := holder.do("settle", c.crowded, 0, 0)
		holder.do("free", c.crowded, 0, 0)
		regained := other.do("take", c.crowded, 0, 0)
		c.t.Logf("the queue was empty after %v; the lock was granted again after %v", settled, regained)
	}
}
