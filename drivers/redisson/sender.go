package redisson

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

const (
	maxSenders = 4  // concurrent requests, if ops are combined
	maxOps     = 64 // in one request, which nothing can interrupt on the server
	fewOps     = 32 // in one request, unless so many ops wait that larger requests are needed
)

// sender executes ops. On one server it combines the ops that arrive while
// requests are on their way, each for a different name, into one request. In a
// cluster, for fair and read-write locks, and if replicas must confirm, it
// sends each op separately, so that no op waits for a node that it does not
// need.
type sender struct {
	driver *Driver

	mu    sync.Mutex
	queue []*op
	busy  int // goroutines that take ops from the queue
}

func (s *sender) add(o *op) {
	d := s.driver
	d.direct.busy.Add(1)
	if d.cluster || d.options.WaitReplicas > 0 || d.options.Fair || o.request.Mode != driver.Exclusive {
		o.state.Store(taken)
		if !d.life.Go(func() { s.sendAlone(&batch{}, o) }) {
			s.fail(o)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, o)
	s.wake()
}

// wake starts a goroutine that takes the ops in the queue. If the driver has
// ended, wake fails the ops. It is called with mu held.
func (s *sender) wake() {
	switch {
	case len(s.queue) == 0 || s.busy == maxSenders:
	case s.driver.life.Go(s.run):
		s.busy++
	case s.busy == 0:
		for _, o := range s.dequeue(nil) {
			s.fail(o)
		}
	}
}

func (s *sender) fail(o *op) {
	o.err = redisdriver.NotSent{Why: driver.ErrClosed}
	s.driver.finish(o)
}

func (s *sender) run() {
	var b batch
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.busy-- }()
	for len(s.queue) > 0 {
		b.ops = s.dequeue(b.ops[:0])
		s.wake() // the remaining ops need another request
		s.mu.Unlock()
		s.send(&b)
		runtime.Gosched() // let callers with answers try again, to make a larger request
		s.mu.Lock()
	}
}

// dequeue removes ops from the queue that can be sent together. It is called
// with mu held.
func (s *sender) dequeue(ops []*op) []*op {
	rest := s.queue[:0]
	most := min(max(fewOps, len(s.queue)/maxSenders), maxOps)
	for i, o := range s.queue {
		if len(ops) == most {
			rest = append(rest, s.queue[i:]...)
			break
		}
		switch {
		case slices.ContainsFunc(ops, func(other *op) bool { return other.request.Name == o.request.Name }):
			rest = append(rest, o)
		case o.state.CompareAndSwap(queued, taken):
			ops = append(ops, o)
		}
	}
	clear(s.queue[len(rest):])
	s.queue = rest
	return ops
}

func (s *sender) send(b *batch) {
	switch len(b.ops) {
	case 0:
	case 1:
		s.sendAlone(b, b.ops[0])
	default:
		s.sendTogether(b)
	}
	clear(b.ops)
}

func (s *sender) sendAlone(b *batch, o *op) {
	d := s.driver
	d.sendOp(d.life.Context(), o, b.keys[:0], b.args[:0])
	d.finish(o)
}

// sendOp executes one op. The slices are buffers for its request.
func (d *Driver) sendOp(ctx context.Context, o *op, keys, args []string) {
	keys, args = o.keys(d, keys), o.args(d, args)
	scripts := d.scriptsOf(o.request.Mode)
	acquire := scripts.acquire
	if o.turn != "" {
		acquire = turnScript
	}
	o.sent = d.life.Now()
	var result rueidis.RedisResult
	switch {
	case o.lease != nil:
		result = d.eval(ctx, scripts.release, keys, args)
	case d.options.WaitReplicas == 0:
		result = d.eval(ctx, acquire, keys, args)
	default:
		result, o.acks = d.evalReplicated(ctx, acquire.Call(slices.Clone(keys), slices.Clone(args)...))
	}
	o.read(result.ToMessage())
	d.heard(o.sent, result.NonRedisError())
}

// sendTogether combines the ops. If the server refuses the combined request,
// for example because one of the names is not permitted, the ops are sent
// separately, at the same time.
func (s *sender) sendTogether(b *batch) {
	d := s.driver
	b.keys, b.args = b.keys[:0], b.args[:0]
	sent := d.life.Now()
	for _, o := range b.ops {
		o.sent = sent
	}
	b.fill(d)
	results, err := d.eval(d.life.Context(), batchScript, b.keys, b.args).ToArray()
	if _, refused := rueidis.IsRedisErr(err); refused {
		var alone sync.WaitGroup
		for _, o := range b.ops {
			alone.Go(func() { s.sendAlone(new(batch), o) }) // with buffers of its own
		}
		alone.Wait()
		return
	}
	if err == nil && len(results) != len(b.ops) {
		err = redisdriver.ErrAnswer
	}
	for i, o := range b.ops {
		if err == nil {
			o.read(results[i], nil)
		} else {
			o.err = err
		}
		d.finish(o)
	}
}

// batch holds ops that are sent together, and the buffers for their request.
type batch struct {
	ops        []*op
	keys, args []string
}

// termsOf returns the arguments that acquires in one request usually have in
// common (see batch.lua).
func (d *Driver) termsOf(o *op) (terms [5]string) {
	terms[0], terms[1] = o.turn, redisdriver.TTLText(o.request.TTL)
	if o.tokens > 0 {
		terms[2], terms[4] = strconv.Itoa(o.tokens), holderText(o.request)
	}
	if o.marks {
		terms[3] = "m"
	}
	return terms
}

// fill builds the request of the batch script, with only the arguments that the
// script cannot compute itself. It puts releases before acquires, and reorders
// ops accordingly.
func (b *batch) fill(d *Driver) {
	releases := 0
	for i, o := range b.ops {
		if o.lease != nil {
			b.ops[i], b.ops[releases] = b.ops[releases], o
			releases++
		}
	}
	for _, o := range b.ops {
		b.keys = append(b.keys, o.request.Name)
	}
	b.args = append(d.wordArgs(b.args), d.lineLabel(), d.tokenKind(), d.releaseMessage(), strconv.Itoa(releases))
	for _, o := range b.ops[:releases] {
		b.args = append(b.args, o.request.Hold)
	}
	for rest := b.ops[releases:]; len(rest) > 0; {
		terms, n := d.termsOf(rest[0]), 1
		for n < len(rest) && d.termsOf(rest[n]) == terms {
			n++
		}
		b.args = append(append(b.args, strconv.Itoa(n)), terms[:]...)
		for _, o := range rest[:n] {
			if b.args = append(b.args, o.request.Hold); o.tokens > 0 {
				b.args = append(b.args, d.tokenKey(o.request.Name))
			}
		}
		rest = rest[n:]
	}
}
