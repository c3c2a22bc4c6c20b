package etcd

import (
	"context"
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// modelLink replaces the connection of a client of the library. Nothing gets
// through it except by a step of the model. Requests about leases are not
// steps, as long as the link is not cut. All fields are guarded by
// modelWorld.mu.
type modelLink struct {
	world   *modelWorld
	client  string
	cut     chan struct{} // closed when the requests of the client get through again; nil if they do
	number  int           // number of requests so far
	calls   []*modelCall  // calls that the server, or the client, has not received yet
	watches []*modelWatch
	told    uint64 // equal for clients that have received the same answers
}

// modelCall is a request on its way.
type modelCall struct {
	link    *modelLink
	what    string
	carry   func(s *modelServer) (any, error)
	writes  bool
	carried bool
	left    bool // no caller waits for the answer
	answer  any
	err     error
	mark    uint64        // mark of the server when the call was carried out
	back    chan struct{} // closed when the client gets the answer
}

var errModelLost = status.Error(codes.Unavailable, "the connection broke")

// tell records what a client learns, and so what it may do next.
func (l *modelLink) tell(what string, mark uint64) {
	var h maphash.Hash
	h.SetSeed(modelSeed)
	maphash.WriteComparable(&h, l.told)
	maphash.WriteComparable(&h, mark)
	h.WriteString(what)
	l.told = h.Sum64()
}

// ask sends a request and waits until the model has answered it.
func (l *modelLink) ask(ctx context.Context, what string, writes bool, carry func(s *modelServer) (any, error)) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	w := l.world
	w.mu.Lock()
	l.number++
	c := &modelCall{link: l, what: fmt.Sprintf("%s (request %d)", what, l.number), writes: writes, carry: carry, back: make(chan struct{})}
	if w.ending {
		defer w.mu.Unlock()
		return carry(w.server)
	}
	l.calls = append(l.calls, c)
	w.mu.Unlock()
	select {
	case <-c.back:
		return c.answer, c.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.left = true; c.carried {
		l.forget(c)
	}
	return nil, status.FromContextError(ctx.Err()).Err()
}

func (l *modelLink) forget(c *modelCall) {
	l.calls = slices.DeleteFunc(l.calls, func(other *modelCall) bool { return other == c })
}

// lease executes a request about a lease immediately.
func (l *modelLink) lease(ctx context.Context, carry func(s *modelServer) (any, error)) (any, error) {
	w := l.world
	w.mu.Lock()
	cut := l.cut
	w.mu.Unlock()
	if cut != nil {
		select {
		case <-cut:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server.writer = l.client
	return carry(w.server)
}

// answerOf converts an answer to its known type.
func answerOf[A any](answer any, err error) (*A, error) {
	if err != nil {
		return nil, err
	}
	return answer.(*A), nil
}

// modelKV is a pb.KVClient.
type modelKV struct {
	pb.KVClient // nil: the driver calls no more than this
	link        *modelLink
}

func (kv modelKV) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	what := "look"
	for _, op := range r.Success {
		if p := op.GetRequestPut(); p != nil {
			what = "put"
		} else if op.GetRequestDeleteRange() != nil && what == "look" {
			what = "delete and look"
		}
	}
	return answerOf[pb.TxnResponse](kv.link.ask(ctx, what, what != "look", func(s *modelServer) (any, error) { return s.txn(r) }))
}

func (kv modelKV) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return answerOf[pb.RangeResponse](kv.link.ask(ctx, "get", false, func(s *modelServer) (any, error) {
		return (&modelTxn{modelServer: s}).get(r)
	}))
}

func (kv modelKV) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
	answer, err := answerOf[pb.TxnResponse](kv.link.ask(ctx, "delete", true, func(s *modelServer) (any, error) {
		return s.txn(&pb.TxnRequest{Success: []*pb.RequestOp{op}})
	}))
	if err != nil {
		return nil, err
	}
	deleted := answer.Responses[0].GetResponseDeleteRange()
	deleted.Header = answer.Header
	return deleted, nil
}

func (modelKV) Put(context.Context, *pb.PutRequest, ...grpc.CallOption) (*pb.PutResponse, error) {
	panic("the driver puts keys in transactions")
}

func (modelKV) Compact(context.Context, *pb.CompactionRequest, ...grpc.CallOption) (*pb.CompactionResponse, error) {
	panic("the driver compacts nothing")
}

// modelLeases is a pb.LeaseClient.
type modelLeases struct{ link *modelLink }

func (c modelLeases) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return answerOf[pb.LeaseGrantResponse](c.link.lease(ctx, func(s *modelServer) (any, error) {
		ttl := time.Duration(r.TTL) * time.Second
		s.leases[r.ID] = &modelLease{client: c.link.client, ttl: ttl, ends: time.Now().Add(ttl)}
		c.link.world.owners[r.ID] = c.link.client
		return &pb.LeaseGrantResponse{Header: s.header(), ID: r.ID, TTL: r.TTL}, nil
	}))
}

func (c modelLeases) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return answerOf[pb.LeaseRevokeResponse](c.link.lease(ctx, func(s *modelServer) (any, error) {
		s.endLease(r.ID)
		return &pb.LeaseRevokeResponse{Header: s.header()}, nil
	}))
}

func (c modelLeases) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (
	*pb.LeaseTimeToLiveResponse, error,
) {
	return answerOf[pb.LeaseTimeToLiveResponse](c.link.lease(ctx, func(s *modelServer) (any, error) {
		l := s.leases[r.ID]
		if l == nil {
			return &pb.LeaseTimeToLiveResponse{Header: s.header(), ID: r.ID, TTL: -1}, nil
		}
		answer := &pb.LeaseTimeToLiveResponse{Header: s.header(), ID: r.ID, TTL: int64(time.Until(l.ends) / time.Second)}
		for key, kv := range s.keys {
			if kv.Lease == r.ID {
				answer.Keys = append(answer.Keys, []byte(key))
			}
		}
		return answer, nil
	}))
}

func (modelLeases) LeaseLeases(context.Context, *pb.LeaseLeasesRequest, ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	panic("the driver does not request all leases")
}

func (c modelLeases) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return &modelKeepAlive{ctx: ctx, link: c.link}, nil
}

// modelKeepAlive is a stream on which one request is answered at a time.
type modelKeepAlive struct {
	grpc.ClientStream
	ctx  context.Context
	link *modelLink
	id   int64
}

func (k *modelKeepAlive) Send(r *pb.LeaseKeepAliveRequest) error {
	k.id = r.ID
	return nil
}

func (k *modelKeepAlive) Recv() (*pb.LeaseKeepAliveResponse, error) {
	return answerOf[pb.LeaseKeepAliveResponse](k.link.lease(k.ctx, func(s *modelServer) (any, error) {
		answer := &pb.LeaseKeepAliveResponse{Header: s.header(), ID: k.id}
		if l := s.leases[k.id]; l != nil {
			l.ends, answer.TTL = time.Now().Add(l.ttl), int64(l.ttl/time.Second)
		}
		return answer, nil
	}))
}

// modelWatch is a watch, both on the server and in the library, which resumes
// after its last event when its connection breaks. All fields but the channels
// are guarded by modelWorld.mu.
type modelWatch struct {
	ctx      context.Context
	key, end string
	ends     bool // it reports only deletions
	hears    chan clientv3.WatchResponse
	begun    chan struct{} // closed when the client knows that the watch has begun

	on     bool  // it is on the server
	from   int64 // revision that the server must begin with; 0 is the next
	next   int64 // revision that it reports next, if it is on
	told   bool  // begun is closed
	news   bool  // the server must report that it has begun
	ending bool  // no more events will arrive
}

// modelWatcher is a clientv3.Watcher. The library's own watcher uses a channel
// that was not made in a bubble of package synctest.
type modelWatcher struct{ link *modelLink }

func (c modelWatcher) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, options...)
	watch := &modelWatch{
		ctx:   ctx,
		key:   key,
		end:   string(op.RangeBytes()),
		ends:  reflect.ValueOf(op).FieldByName("filterPut").Bool(),
		from:  op.Rev(),
		hears: make(chan clientv3.WatchResponse, 64), // so that the model never waits
		begun: make(chan struct{}),
	}
	w := c.link.world
	w.mu.Lock()
	c.link.watches = append(slices.DeleteFunc(c.link.watches, (*modelWatch).isOver), watch)
	w.mu.Unlock()
	select {
	case <-watch.begun:
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		watch.stop()
	}
	return watch.hears
}

func (modelWatcher) RequestProgress(context.Context) error { panic("the driver requests no progress") }
func (modelWatcher) Close() error                          { return nil }

func (watch *modelWatch) isOver() bool { return watch.ending || watch.ctx.Err() != nil }

func (watch *modelWatch) stop() {
	if !watch.ending {
		watch.ending = true
		close(watch.hears)
	}
}

// begin is the server's part.
func (watch *modelWatch) begin(s *modelServer) {
	watch.on, watch.news, watch.next = true, true, watch.from
	if watch.next == 0 {
		watch.next = s.revision() + 1
	}
}

// pending returns the events that the server sends next, if any, and the
// following revision. It sends all past events, or one revision.
func (watch *modelWatch) pending(s *modelServer, all bool) (answer *clientv3.WatchResponse, next int64) {
	var events []*clientv3.Event
	switch {
	case !watch.on:
		return nil, 0
	case watch.news:
		return &clientv3.WatchResponse{Created: true}, watch.next
	case watch.next < s.compacted:
		return &clientv3.WatchResponse{Canceled: true, CompactRevision: s.compacted}, 0
	}
	for revision := watch.next; revision <= s.revision(); revision++ {
		events = append(events, watch.concerns(s.log[revision-1])...)
		if len(events) > 0 && (!all || revision == s.revision()) {
			return &clientv3.WatchResponse{Events: events}, revision + 1
		}
	}
	return nil, 0
}

// concerns returns the events of the watched keys.
func (watch *modelWatch) concerns(all []*mvccpb.Event) (events []*clientv3.Event) {
	for _, e := range all {
		if key := string(e.Kv.Key); key == watch.key || key > watch.key && key < watch.end {
			if watch.ends && e.Type == mvccpb.PUT {
				continue
			}
			events = append(events, (*clientv3.Event)(e))
		}
	}
	return events
}

// hear delivers an answer to the client. A watch that resumes after a break
// does not report that it has begun. Until it has sent an event, it resumes at
// the revision at which it began, and not at the next one.
func (watch *modelWatch) hear(answer *clientv3.WatchResponse, next int64) {
	watch.next, watch.news = next, false
	if !answer.Created {
		watch.from = next
		watch.hears <- *answer
		if answer.Canceled {
			watch.stop()
		}
		return
	}
	if !watch.told {
		watch.told = true
		if watch.from == 0 {
			watch.from = next - 1
		}
		watch.hears <- *answer
		close(watch.begun)
	}
}
