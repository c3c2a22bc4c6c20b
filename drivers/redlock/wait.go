package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// A waiter that was granted the first node sends the refusing nodes another
// request. If two waiters split the votes, the waiter with the waiters' node
// continues.
const (
	fewRepeats  = 3
	manyRepeats = 8
	firstRepeat = 200 * time.Microsecond
)

// attempt returns a lease with a new value, so that remains of an earlier
// attempt cannot be mistaken for this one.
func (d *Driver) attempt(r *driver.Request, number int) *lease {
	return d.newLease(r, r.Hold+attemptMark+strconv.Itoa(number))
}

const attemptMark = "#"

// wait tries one node again whenever the lock may have become free, and the
// other nodes only if that node grants. crowd is the number of other clients
// that waited when this client last held the lock.
func (d *Driver) wait(ctx context.Context, r *driver.Request, first int, t *redistopic.Topic, crowd int) (*lease, error) {
	if t == nil {
		t = d.ears[first].Join(channel(r.Name), 0)
	}
	pause := firstPoll
	timer := time.NewTimer(jitter(pause))
	defer timer.Stop()
	number := 0
	for polls := true; ; polls = true {
	asleep:
		for {
			select {
			case <-t.Wake:
				crowd, polls = crowd-1, false
				longer := standBack(crowd)
				if longer == 0 {
					break asleep
				}
				timer.Reset(longer)
			case <-timer.C:
				break asleep
			case <-ctx.Done():
				t.Leave(!polls)
				return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
			case <-d.life.Open().Done():
				t.Leave(false)
				return nil, driver.ErrClosed
			}
		}
		if ctx.Err() != nil {
			t.Leave(true)
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
		next := first
		if polls {
			// do not always use the same node, because its key may be stale
			next = (first + number) % len(d.nodes)
		}
		number++
		l := d.attempt(r, number)
		err := l.askOneThenAll(ctx, next)
		if err == nil {
			t.Leave(false)
			return l, nil
		}
		if err = d.giveUp(ctx, l, err); !isRefusal(err) {
			t.Leave(true)
			if err == ctx.Err() { // the last answer was a refusal
				err = fmt.Errorf("%w: %w", driver.ErrLocked, err)
			}
			return nil, err
		}
		if pause = min(pause*3/2, lastPoll); l.hadValue() {
			pause = firstPoll // perhaps all clients that split the votes will give up
		}
		timer.Reset(jitter(d.patience(pause)))
	}
}

// standBack returns how long a client lets other clients try first. others is
// the number of clients that waited when the client last held the lock. Without
// this pause the same few clients would repeatedly be granted the lock, because
// messages reach them first.
func standBack(others int) time.Duration {
	return min(time.Duration(max(others, 0))*standBackEach, longestStandBack)
}

const (
	standBackEach    = 250 * time.Microsecond
	longestStandBack = 30 * time.Millisecond
)

// crowd returns and forgets the number of other clients that waited for the
// name at the last release.
func (d *Driver) crowd(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.crowds[name]
	delete(d.crowds, name)
	return n
}

// hadValue reports whether a node had the value of an attempt that was given
// up.
func (l *lease) hadValue() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.removed > 0
}

// The pauses between polls. Waiters poll because the lock may expire, or its
// holder's client may send no message.
const (
	firstPoll = 10 * time.Millisecond
	lastPoll  = 150 * time.Millisecond
)

// jitter returns a time around d, to spread waiters that began together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// askOneThenAll sends a request to one node, or the next reachable one, and, if
// that node grants, to all other nodes.
func (l *lease) askOneThenAll(ctx context.Context, first int) error {
	d := l.driver
	asked := false
	for i := range l.votes {
		v := &l.votes[(first+i)%len(l.votes)]
		if v.node().impaired() {
			continue
		}
		asked = true
		l.Mu.Lock()
		l.goal = decision
		v.prepare()
		v.hand()
		l.Mu.Unlock()
		if err, answered := l.awaitFirst(ctx, v); err != nil || answered {
			if err != nil {
				return err
			}
			break
		}
	}
	if !asked {
		l.askAll() // nodes that were unreachable may be back
		return l.vote(ctx)
	}
	for i := 0; ; i++ {
		l.askAll()
		err := l.vote(ctx)
		if err == nil || !isRefusal(err) || i >= fewRepeats && !l.persists(i) {
			return err
		}
		if !d.life.Sleep(ctx, rand.N(firstRepeat<<i)) {
			return err
		}
	}
}

// persists reports whether an attempt with the waiters' node continues after so
// many repeats.
func (l *lease) persists(repeats int) bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return repeats < manyRepeats && l.votes[l.driver.firstNode(l.request.Name)].counts() && l.driver.life.Now() < l.sent+int64(l.ttl/4)
}

// awaitFirst waits for the answer from the asked node. The error is ErrLocked
// if the node refuses, and answered is false if the next node must be asked.
func (l *lease) awaitFirst(ctx context.Context, v *vote) (err error, answered bool) {
	d := l.driver
	limit := min(longestVote, l.ttl/2)
	if !d.single() { // there is another node to try
		limit = min(limit, d.patience(4*d.options.NodeTimeout))
	}
	reached := l.await(ctx, limit, d.life.Open().Done())
	l.Mu.Lock()
	defer l.Mu.Unlock()
	switch {
	case v.counts():
		return nil, true
	case v.state == refused:
		return l.denied(), true
	case v.state == failed, reached:
		return nil, false
	case ctx.Err() != nil:
		return ctx.Err(), false
	case d.life.Open().Err() != nil:
		return driver.ErrClosed, false
	}
	v.late = true
	return nil, false
}

// firstNode returns the waiters' node of a name, for listening and for the
// first request.
func (d *Driver) firstNode(name string) int {
	sum := uint32(2166136261)
	for i := range len(name) {
		sum = (sum ^ uint32(name[i])) * 16777619
	}
	first := int(sum % uint32(len(d.nodes)))
	for i := range d.nodes {
		if at := (first + i) % len(d.nodes); !d.nodes[at].impaired() {
			return at
		}
	}
	return first
}

// ear receives one node's messages about the ends of holds, over a separate
// connection. Only the time of the next poll depends on messages.
type ear struct {
	*redistopic.Listener
	option rueidis.ClientOption
	dialer *redisdial.Dialer
}

// earBuffer is large enough for several of the small messages.
const earBuffer = 4 << 10

func newEar(d *Driver, o rueidis.ClientOption) *ear {
	e := &ear{dialer: redisdial.New(o.DialCtxFn), option: o}
	e.option.DialCtxFn = e.dialer.Dial
	e.option.ReadBufferEachConn, e.option.WriteBufferEachConn = earBuffer, earBuffer
	plain := func() (plain, sharded bool) { return true, false }
	e.Listener = redistopic.New(redistopic.Options{Life: d.life.Lifecycle, Kinds: plain, Connect: e.connect})
	return e
}

// connect makes a client only for this connection, because there is no client
// of a node that is down.
func (e *ear) connect(string) (redistopic.Conn, bool) {
	client, err := rueidis.NewClient(e.option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return redistopic.Conn{}, false
	}
	c, _ := client.Dedicate()
	end := func() {
		c.Close()
		client.Close()
	}
	return redistopic.Conn{DedicatedClient: c, End: end}, true
}

func (e *ear) end() {
	e.Close()
	e.dialer.End()
}
