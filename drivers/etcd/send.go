package etcd

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	maxRequests = 4 // requests on their way at the same time; further ops are combined
	// ops in one request: servers accept 128 operations by default, including
	// those inside ops
	maxCombined = 60
	// of keys and values in one request: servers accept 1.5 MiB by default
	maxBytes    = 512 << 10
	patienceFor = 100 * time.Millisecond // how long an op waits to be combined
)

// sender carries out the ops that put and delete the keys of contenders. While
// few requests are on their way, each caller sends its own op immediately.
// Otherwise more ops queue up, each for a different name, and are sent together
// in one transaction of transactions, which makes a crowd much cheaper to
// serve.
type sender struct {
	driver *Driver

	mu     sync.Mutex
	busy   int // requests on their way, of at most maxRequests
	most   int // the maximum number of ops in one request
	queue  []*op
	queued map[string]struct{} // the dirs of the ops in queue
}

// op is a transaction on the contenders for one name, or the deletion of one
// contender's key.
type op struct {
	dir             string
	key             string // the key to delete; "" for a transaction
	hold            *hold  // of the key
	compare         []clientv3.Cmp
	then, otherwise []clientv3.Op

	waits bool          // in the queue; guarded by sender.mu
	done  chan struct{} // closed when the op was carried out; nil if the op was never in the queue

	// The outcome.
	answer  *clientv3.TxnResponse
	removed bool
	err     error
}

func newSender(d *Driver) *sender {
	return &sender{driver: d, most: maxCombined, queued: make(map[string]struct{})}
}

// do carries out an op. If ctx ends first, the outcome is errNotSent or
// unknown. Unless do returns nil, the op may still be under way, so none of its
// fields may be read.
func (s *sender) do(ctx context.Context, o *op) error {
	switch s.wayOf(o) {
	case free:
		defer s.finish()
		fallthrough
	case alone:
		o.send(ctx, s.driver)
		return o.err
	}
	timer := time.NewTimer(patienceFor)
	defer timer.Stop()
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	case <-timer.C:
		if s.withdraw(o) { // the requests on their way are delayed, so do not wait for them
			o.send(ctx, s.driver)
			return o.err
		}
		select {
		case <-o.done:
			return o.err
		case <-ctx.Done():
		}
	}
	if s.withdraw(o) {
		return errNotSent
	}
	select {
	case <-o.done:
		return o.err
	default:
		return ctx.Err()
	}
}

// way is the way in which an op is sent.
type way int8

const (
	free     way = iota // by itself, as one of maxRequests
	alone               // by itself, in addition to maxRequests
	together            // together with others
)

// wayOf returns the way to send an op and queues the op if it is sent with
// others. If there are two ops for one name, the second does not wait for the
// first, because they could not be sent together and a release must not wait
// for contenders.
func (s *sender) wayOf(o *op) way {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy < maxRequests {
		s.busy++
		return free
	}
	if _, taken := s.queued[o.dir]; taken {
		return alone
	}
	o.waits, o.done = true, make(chan struct{})
	s.queued[o.dir] = struct{}{}
	s.queue = append(s.queue, o)
	return together
}

// finish ends a request, or uses its place to let drain serve the queue.
func (s *sender) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || !s.driver.life.Go(s.drain) {
		s.busy--
	}
}

// withdraw removes an op from the queue and reports whether the op was in the
// queue.
func (s *sender) withdraw(o *op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.waits {
		return false
	}
	o.waits = false
	delete(s.queued, o.dir)
	s.queue = slices.DeleteFunc(s.queue, func(other *op) bool { return other == o })
	return true
}

// drain sends the ops in the queue until it is empty.
func (s *sender) drain() {
	for ops := s.next(); len(ops) > 0; ops = s.next() {
		if len(ops) == 1 {
			s.sendEach(ops)
		} else {
			s.combine(ops)
		}
		// let the callers with answers send their next ops, which together make
		// a larger request
		runtime.Gosched()
	}
}

// next takes the ops of the next request from the queue. If the queue is empty,
// it returns none and ends the request.
func (s *sender) next() []*op {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, bytes := 0, 0
	for n < len(s.queue) && n < s.most && bytes < maxBytes {
		bytes += s.queue[n].size()
		n++
	}
	ops := slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	for _, o := range ops {
		o.waits = false
		delete(s.queued, o.dir)
	}
	if n == 0 {
		s.busy--
	}
	return ops
}

// size returns the approximate number of bytes that the op occupies in a
// request.
func (o *op) size() int {
	size := len(o.key) + len(o.dir)*2*(len(o.compare)+len(o.then)+len(o.otherwise))
	for _, then := range o.then {
		size += len(then.ValueBytes())
	}
	return size
}

// combine carries out several ops in one request. If the server refuses all
// because of one op, for example because a name is not permitted or a lease has
// ended, each op is sent again separately.
func (s *sender) combine(ops []*op) {
	all := make([]clientv3.Op, len(ops))
	for i, o := range ops {
		if o.key != "" {
			all[i] = opDelete(o.key)
		} else {
			all[i] = clientv3.OpTxn(o.compare, o.then, o.otherwise)
		}
	}
	ctx, cancel := s.driver.background(requestFor)
	defer cancel()
	answer, err := s.driver.transact(ctx, nil, all, nil)
	if isForOne(err) {
		s.narrow(err)
		s.sendEach(ops)
		return
	}
	for i, o := range ops {
		if o.err = err; err == nil {
			o.err = o.read(answer, i)
		}
		close(o.done)
	}
}

// read takes the outcome of an op from the answer to a combined request.
func (o *op) read(answer *clientv3.TxnResponse, i int) error {
	if o.key == "" {
		own := (*clientv3.TxnResponse)(answer.Responses[i].GetResponseTxn())
		own.Header = answer.Header
		if !answers(own, o.then, o.otherwise) {
			return errAnswer
		}
		o.answer = own
		return nil
	}
	o.removed = o.hold.isIn(answer.Responses[i].GetResponseDeleteRange())
	return nil
}

// narrow lowers the number of ops per request, if err means that the server
// does not accept so many.
func (s *sender) narrow(err error) {
	if !isOneOf(rpctypes.Error(err), []error{rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = max(1, s.most/2)
}

// sendEach carries out each op in its own request.
func (s *sender) sendEach(ops []*op) {
	ctx, cancel := s.driver.background(requestFor)
	defer cancel()
	var wg sync.WaitGroup
	for _, o := range ops[1:] {
		wg.Go(func() { // ends when ctx ends
			o.send(ctx, s.driver)
			close(o.done)
		})
	}
	ops[0].send(ctx, s.driver)
	close(ops[0].done)
	wg.Wait()
}

// send carries out a single op.
func (o *op) send(ctx context.Context, d *Driver) {
	if o.key == "" {
		o.answer, o.err = d.transact(ctx, o.compare, o.then, o.otherwise)
		return
	}
	var answer *pb.DeleteRangeResponse
	if answer, o.err = d.delete(ctx, o.key); o.err == nil {
		o.removed = o.hold.isIn(answer)
	}
}

// isIn reports whether a request has deleted the key of h, and not a key that
// another client put in its place.
func (h *hold) isIn(answer *pb.DeleteRangeResponse) bool {
	if len(answer.PrevKvs) == 0 {
		return answer.Deleted > 0
	}
	return h.isOf(answer.PrevKvs[0])
}

// anyDelete is a deletion without a key.
var anyDelete = clientv3.OpDelete("", clientv3.WithPrevKV())

// opDelete makes the operation that deletes a key.
func opDelete(key string) clientv3.Op {
	op := anyDelete
	op.WithKeyBytes([]byte(key))
	return op
}

// maxElsewhere is the maximum number of times that a request refused by a
// learner is immediately sent again. The library uses the servers in turn, but
// other callers' requests may come in between.
const maxElsewhere = 16

// request sends a request. A learner refuses a request without carrying it out,
// so it is sent again to reach another server. An answer from another cluster
// is an error.
func (d *Driver) request(ctx context.Context, send func() (*pb.ResponseHeader, error)) error {
	d.conns.begin()
	defer d.conns.end()
	for tries := 0; ; tries++ {
		header, err := send()
		if err == nil {
			return d.cluster.check(header)
		}
		d.conns.failed(err)
		if !isLearner(err) || tries == maxElsewhere || ctx.Err() != nil || len(d.client.Endpoints()) < 2 {
			return err
		}
	}
}

// isLearner reports whether a learner refused a request. The library has no
// name for the error that all its versions share.
func isLearner(err error) bool {
	return err != nil && strings.Contains(err.Error(), "rpc not supported for learner")
}

// transact carries out a transaction in its own request. An answer of a
// different shape causes errAnswer, because the server at the address may not
// be etcd.
func (d *Driver) transact(ctx context.Context, compare []clientv3.Cmp, then, otherwise []clientv3.Op) (answer *clientv3.TxnResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err = d.client.Txn(ctx).If(compare...).Then(then...).Else(otherwise...).Commit()
		if err != nil {
			return nil, err
		}
		return answer.Header, nil
	})
	if err == nil && !answers(answer, then, otherwise) {
		err = errAnswer
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// get reads keys in its own request.
func (d *Driver) get(ctx context.Context, key string, options ...clientv3.OpOption) (answer *clientv3.GetResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err = d.client.Get(ctx, key, options...)
		if err != nil {
			return nil, err
		}
		return answer.Header, nil
	})
	return answer, err
}

// delete deletes a key in its own request.
func (d *Driver) delete(ctx context.Context, key string) (answer *pb.DeleteRangeResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		did, err := d.client.Do(ctx, opDelete(key))
		if err != nil {
			return nil, err
		}
		answer = (*pb.DeleteRangeResponse)(did.Del())
		return answer.Header, nil
	})
	return answer, err
}

// timeToLive requests the remaining time of a lease.
func (d *Driver) timeToLive(ctx context.Context, id clientv3.LeaseID, options ...clientv3.LeaseOption) (answer *clientv3.LeaseTimeToLiveResponse, err error) {
	err = d.request(ctx, func() (*pb.ResponseHeader, error) {
		answer, err = d.client.TimeToLive(ctx, id, options...)
		if err != nil {
			return nil, err
		}
		return answer.ResponseHeader, nil
	})
	return answer, err
}

// answers reports whether an answer has the shape of an answer to this
// transaction.
func answers(answer *clientv3.TxnResponse, then, otherwise []clientv3.Op) bool {
	asked := then
	if !answer.Succeeded {
		asked = otherwise
	}
	if answer.Header == nil || len(answer.Responses) != len(asked) {
		return false
	}
	for i, a := range asked {
		r := answer.Responses[i]
		if a.IsGet() && r.GetResponseRange() == nil || a.IsPut() && r.GetResponsePut() == nil || a.IsDelete() && r.GetResponseDeleteRange() == nil ||
			a.IsTxn() && r.GetResponseTxn() == nil {
			return false
		}
	}
	return true
}

// bound is a time limit for requests. Requests that begin at about the same
// time share a context that ends at the limit. Separate contexts would cost
// each request a timer, and more work to end with Close.
//
// None of the contexts has a Deadline: gRPC sends a deadline with the request,
// and the server sets a timer for each, which costs a free lock 6 % of its
// time. A request whose context ends is canceled on the server.
type bound struct {
	life context.Context // of the requests
	time time.Duration   // for one request, or up to an eighth less

	mu     sync.Mutex
	shared context.Context // nil at first
	began  time.Time       // when shared was created
}

// now returns the context for a request that begins now.
func (b *bound) now() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.shared == nil || now.Sub(b.began) > b.time/8 {
		ctx, cancel := context.WithCancel(b.life)
		time.AfterFunc(b.time, cancel)
		b.shared, b.began = ctx, now
	}
	return b.shared
}

// with returns a context for one request, which ends at the time limit and has
// the values of ctx.
func (b *bound) with(ctx context.Context) context.Context { return valued{b.now(), ctx} }

// under is like with, but the context also ends when ctx ends.
func (b *bound) under(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return b.with(ctx), func() {}
	}
	own, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.now(), cancel)
	return undated{own}, func() {
		stop()
		cancel()
	}
}

// ending is like under, but for requests that end a hold. If ctx is canceled,
// the request continues until the time limit. Package dsync ends holds under
// contexts that are not canceled, but have a deadline.
func (b *bound) ending(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < b.time || ctx.Err() != nil {
		return b.under(ctx)
	}
	return b.with(ctx), func() {}
}

// valued is a context with the values of another one.
type valued struct {
	context.Context
	values context.Context
}

// Value implements context.Context. The values of the first context take
// precedence, because package context uses them to find the contexts that end
// with it.
func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}

// background returns a context for one request that no caller waits for, or
// that continues when its caller leaves.
func (d *Driver) background(bound time.Duration) (context.Context, context.CancelFunc) {
	return withBound(d.life.Context(), bound)
}

// withBound returns a context that ends when ctx ends or after bound, and has
// no Deadline.
func withBound(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	return undated{ctx}, cancel
}

// undated hides the deadline of a context.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
