package etcd

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	maxRequests = 4                      // on their way at once, where those of several callers are combined
	maxCombined = 60                     // in one: servers take 128 operations by default, to which those inside are added
	maxBytes    = 512 << 10              // of keys and values in one: servers take 1.5 MiB by default
	patienceFor = 100 * time.Millisecond // how long an op waits to be combined
)

// sender carries out the ops that put and delete the keys of contenders. Who finds few requests on their way sends its own, and waits
// for nobody; what gathers while many are goes together, each op for a name of its own, in one transaction of transactions: a crowd is
// served at a fraction of the cost.
type sender struct {
	driver *Driver

	mu     sync.Mutex
	busy   int // requests on their way that others wait for
	most   int // ops in one of them
	queue  []*op
	queued map[string]struct{} // by what the keys of their names begin with
}

// op is a transaction that concerns the contenders for one name, or the deletion of a key of theirs.
type op struct {
	dir             string
	key             string // to delete; "" for a transaction
	compare         []clientv3.Cmp
	then, otherwise []clientv3.Op

	waits bool          // in the queue; guarded by sender.mu
	done  chan struct{} // closed when it was carried out, if it was in the queue

	// The outcome.
	answer  *clientv3.TxnResponse
	removed bool
	err     error
}

func newSender(d *Driver) *sender {
	return &sender{driver: d, most: maxCombined, queued: make(map[string]struct{})}
}

// do carries an op out. If ctx ends before that, the outcome is errNotSent or unknown. Unless it returns nil the op may still be under
// way, so nothing of it may be read.
func (s *sender) do(ctx context.Context, o *op) error {
	switch s.turn(o) {
	case free:
		defer s.pass()
		fallthrough
	case alone:
		o.send(ctx, s.driver.client)
		return o.err
	}
	timer := time.NewTimer(patienceFor)
	defer timer.Stop()
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	case <-timer.C:
		if s.withdraw(o) { // those on their way are held up
			o.send(ctx, s.driver.client)
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

// How an op is sent.
type way int8

const (
	free     way = iota // by itself, and counts
	alone               // by itself, besides
	together            // with others
)

// turn says how an op is sent, and puts it in the queue if that is together with others. Of two ops for one name the second does not
// wait for the first: they could not go together, and the release of a lock must not wait for those who want it.
func (s *sender) turn(o *op) way {
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

// pass ends a request, and lets the queue have its turn.
func (s *sender) pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || !s.driver.life.Go(s.run) {
		s.busy--
	}
}

// withdraw takes an op out of the queue, and reports whether it was in.
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

// run ends when the queue is empty.
func (s *sender) run() {
	for ops := s.take(); len(ops) > 0; ops = s.take() {
		if len(ops) == 1 {
			s.sendEach(ops)
		} else {
			s.combine(ops)
		}
		runtime.Gosched() // let those who got their answers ask again: together they make a larger request
	}
}

// take takes ops from the queue that go together. It returns none, and ends the turn, if there are none.
func (s *sender) take() []*op {
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

// size is about how long the op is in a request.
func (o *op) size() int {
	size := len(o.key) + len(o.dir)*2*(len(o.compare)+len(o.then)+len(o.otherwise))
	for _, then := range o.then {
		size += len(then.ValueBytes())
	}
	return size
}

// combine carries several ops out in one request. What the server refuses as a whole for the sake of one of them, as it does when a
// name is not permitted or a lease is over, it is asked for one by one.
func (s *sender) combine(ops []*op) {
	all := make([]clientv3.Op, len(ops))
	for i, o := range ops {
		if o.key != "" {
			all[i] = clientv3.OpDelete(o.key)
		} else {
			all[i] = clientv3.OpTxn(o.compare, o.then, o.otherwise)
		}
	}
	ctx, cancel := s.driver.background(requestFor)
	defer cancel()
	answer, err := s.driver.client.Txn(ctx).Then(all...).Commit()
	if isForOne(err) {
		s.narrow(err)
		s.sendEach(ops)
		return
	}
	if err == nil && len(answer.Responses) != len(ops) {
		err = errAnswer
	}
	for i, o := range ops {
		if o.err = err; err == nil {
			o.err = o.read(answer, i)
		}
		close(o.done)
	}
}

// read takes the outcome of an op out of the answer to a request for several.
func (o *op) read(answer *clientv3.TxnResponse, i int) error {
	if o.key == "" {
		own := (*clientv3.TxnResponse)(answer.Responses[i].GetResponseTxn())
		if own == nil {
			return errAnswer
		}
		own.Header = answer.Header
		return o.take(own)
	}
	deleted := answer.Responses[i].GetResponseDeleteRange()
	if deleted == nil {
		return errAnswer
	}
	o.removed = deleted.Deleted > 0
	return nil
}

// take takes the answer to the transaction of an op, if it is one.
func (o *op) take(answer *clientv3.TxnResponse) error {
	asked := o.then
	if !answer.Succeeded {
		asked = o.otherwise
	}
	if answer.Header == nil || len(answer.Responses) != len(asked) {
		return errAnswer
	}
	for i, a := range asked {
		r := answer.Responses[i]
		if a.IsGet() && r.GetResponseRange() == nil || a.IsPut() && r.GetResponsePut() == nil || a.IsDelete() && r.GetResponseDeleteRange() == nil {
			return errAnswer
		}
	}
	o.answer = answer
	return nil
}

// narrow combines fewer ops from now on, if they were too many for the server.
func (s *sender) narrow(err error) {
	if !isOneOf(rpctypes.Error(err), []error{rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge}) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = max(1, s.most/2)
}

// sendEach carries ops out by a request each.
func (s *sender) sendEach(ops []*op) {
	ctx, cancel := s.driver.background(requestFor)
	defer cancel()
	var wg sync.WaitGroup
	for _, o := range ops[1:] {
		wg.Go(func() { // ends with ctx
			o.send(ctx, s.driver.client)
			close(o.done)
		})
	}
	ops[0].send(ctx, s.driver.client)
	close(ops[0].done)
	wg.Wait()
}

// send carries an op out by itself.
func (o *op) send(ctx context.Context, client *clientv3.Client) {
	if o.key == "" {
		answer, err := client.Txn(ctx).If(o.compare...).Then(o.then...).Else(o.otherwise...).Commit()
		if o.err = err; err == nil {
			o.err = o.take(answer)
		}
		return
	}
	answer, err := client.Delete(ctx, o.key)
	if o.err = err; err == nil {
		o.removed = answer.Deleted > 0
	}
}
