package etcd

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-dsync/dsync/driver"
)

// modelServer is etcd in memory, as far as a lock can observe it. Each
// transaction that changes something has its own revision, keys are attached to
// leases, and past events can be read again back to the last compaction. It
// does not know the time: modelWorld ends leases.
type modelServer struct {
	compacted int64
	keys      map[string]*mvccpb.KeyValue
	log       [][]*mvccpb.Event // events of revision i+1
	marks     []uint64          // after revision i+1: equal for servers with the same history
	leases    map[int64]*modelLease
	writer    string // the client whose request is carried out
}

type modelLease struct {
	client string
	ttl    time.Duration
	ends   time.Time
}

var modelSeed = maphash.MakeSeed()

func newModelServer() *modelServer {
	return &modelServer{
		keys:   make(map[string]*mvccpb.KeyValue),
		leases: make(map[int64]*modelLease),
		log:    make([][]*mvccpb.Event, 1), // revision 1 is the revision of a server without history
		marks:  make([]uint64, 1),
	}
}

func (s *modelServer) revision() int64 { return int64(len(s.log)) }

// mark distinguishes servers with different histories.
func (s *modelServer) mark() uint64 { return s.marks[len(s.marks)-1] }

func (s *modelServer) header() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: s.revision()} }

// commit makes a revision of events, if there are any.
func (s *modelServer) commit(events []*mvccpb.Event) {
	if len(events) == 0 {
		return
	}
	var h maphash.Hash
	h.SetSeed(modelSeed)
	maphash.WriteComparable(&h, s.mark())
	for _, e := range events {
		h.WriteString(s.writer)
		h.WriteString(modelAlias(string(e.Kv.Key)))
		maphash.WriteComparable(&h, e.Type)
		maphash.WriteComparable(&h, e.Kv.CreateRevision)
	}
	s.log, s.marks = append(s.log, events), append(s.marks, h.Sum64())
}

// modelAlias returns a key without the id of its lease, which is a random
// number.
func modelAlias(key string) string {
	slash, dash := strings.LastIndexByte(key, '/'), strings.LastIndexByte(key, '-')
	if slash < 0 || dash < slash {
		return key
	}
	return key[:slash+1] + strconv.Itoa(int(modelModeOf(key))) + key[dash:]
}

// modelModeOf returns the mode of a contender.
func modelModeOf(key string) driver.Mode {
	switch last := key[strings.LastIndexByte(key, '/')+1:]; {
	case strings.HasPrefix(last, "+read-"):
		return driver.Read
	case strings.HasPrefix(last, "write-"):
		return driver.Write
	case strings.HasPrefix(last, "permits-"):
		return driver.Permit
	}
	return driver.Exclusive
}

// modelLimit is the limit of the permits of dir: the limit in the record, or
// else the limit of all callers.
func modelLimit(keys map[string]*mvccpb.KeyValue, dir string) int {
	if kv := keys[limitKey(dir)]; kv != nil {
		limit, _ := strconv.Atoi(string(kv.Value))
		return limit
	}
	return modelPermits
}

// at returns the keys as they were at a revision.
func (s *modelServer) at(revision int64) map[string]*mvccpb.KeyValue {
	keys := make(map[string]*mvccpb.KeyValue)
	for _, events := range s.log[:revision] {
		for _, e := range events {
			if e.Type == mvccpb.DELETE {
				delete(keys, string(e.Kv.Key))
			} else {
				keys[string(e.Kv.Key)] = e.Kv
			}
		}
	}
	return keys
}

// modelQueue returns the keys that contend for dir, the oldest first.
func modelQueue(keys map[string]*mvccpb.KeyValue, dir string) (queue []*mvccpb.KeyValue) {
	for key, kv := range keys {
		if rest, ok := strings.CutPrefix(key, dir); ok && !strings.ContainsAny(rest, "/\x00") {
			queue = append(queue, kv)
		}
	}
	slices.SortFunc(queue, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	return queue
}

// modelHolders returns the keys that hold the lock on dir: the oldest key and,
// if that is a reader, all readers before the first key in another mode. For
// permits it returns all permit keys before the first key in another mode or
// the first request without room.
func modelHolders(keys map[string]*mvccpb.KeyValue, dir string) []*mvccpb.KeyValue {
	queue, left := modelQueue(keys, dir), modelLimit(keys, dir)
	for i, kv := range queue {
		mode := modelModeOf(string(kv.Key))
		if mode == driver.Permit {
			var n int
			fmt.Sscanf(string(kv.Key), dir+"permits-%dof", &n)
			left -= n
		}
		if i > 0 && mode.Excludes(modelModeOf(string(queue[0].Key))) || left < 0 {
			return queue[:i]
		}
	}
	return queue
}

// drop deletes keys in one revision without a transaction, as the end of a
// lease or an operator does.
func (s *modelServer) drop(drop func(kv *mvccpb.KeyValue) bool) {
	t := &modelTxn{modelServer: s}
	for _, key := range s.within("\x00", "\x00") {
		if drop(s.keys[key]) {
			t.remove(key)
		}
	}
	s.commit(t.events)
}

func (s *modelServer) endLease(id int64) {
	delete(s.leases, id)
	s.drop(func(kv *mvccpb.KeyValue) bool { return kv.Lease == id })
}

// within returns the keys of a range, in order.
func (s *modelServer) within(key, end string) (list []string) {
	for k := range s.keys {
		if k == key || end != "" && k >= key && (end == "\x00" || k < end) {
			list = append(list, k)
		}
	}
	slices.Sort(list)
	return list
}

// modelTxn is one transaction while it is carried out.
type modelTxn struct {
	*modelServer
	events []*mvccpb.Event
}

func (t *modelTxn) next() int64 { return t.revision() + 1 }

func (t *modelTxn) remove(key string) {
	t.events = append(t.events, &mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: t.next()}})
	delete(t.keys, key)
}

// txn carries a transaction out, or refuses it as a whole.
func (s *modelServer) txn(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := s.refuse(r); err != nil {
		return nil, err
	}
	t := &modelTxn{modelServer: s}
	answer, err := t.run(r)
	if err != nil {
		return nil, err
	}
	s.commit(t.events)
	answer.Header = s.header()
	return answer, nil
}

// branch returns the operations of a transaction in the present state.
func (s *modelServer) branch(r *pb.TxnRequest) (ops []*pb.RequestOp, succeeded bool) {
	for _, c := range r.Compare {
		if !s.holds(c) {
			return r.Failure, false
		}
	}
	return r.Success, true
}

// refuse returns the error of a transaction whose put is invalid.
func (s *modelServer) refuse(r *pb.TxnRequest) error {
	ops, _ := s.branch(r)
	for _, op := range ops {
		if p := op.GetRequestPut(); p != nil {
			if s.keys[string(p.Key)] == nil && (p.IgnoreLease || p.IgnoreValue) {
				return rpctypes.ErrGRPCKeyNotFound
			}
			if p.Lease != 0 && s.leases[p.Lease] == nil {
				return rpctypes.ErrGRPCLeaseNotFound
			}
		}
		if n := op.GetRequestTxn(); n != nil {
			if err := s.refuse(n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *modelTxn) run(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	ops, succeeded := t.branch(r)
	answer := &pb.TxnResponse{Succeeded: succeeded}
	for _, op := range ops {
		one := &pb.ResponseOp{}
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			page, err := t.get(r.RequestRange)
			if err != nil {
				return nil, err
			}
			one.Response = &pb.ResponseOp_ResponseRange{ResponseRange: page}
		case *pb.RequestOp_RequestPut:
			t.put(r.RequestPut)
			one.Response = &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}
		case *pb.RequestOp_RequestDeleteRange:
			keys := t.within(string(r.RequestDeleteRange.Key), string(r.RequestDeleteRange.RangeEnd))
			for _, key := range keys {
				t.remove(key)
			}
			one.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Deleted: int64(len(keys))}}
		case *pb.RequestOp_RequestTxn:
			inner, err := t.run(r.RequestTxn)
			if err != nil {
				return nil, err
			}
			one.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: inner}
		}
		answer.Responses = append(answer.Responses, one)
	}
	return answer, nil
}

func (t *modelTxn) put(r *pb.PutRequest) {
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, Lease: r.Lease, CreateRevision: t.next(), ModRevision: t.next(), Version: 1}
	if old := t.keys[string(r.Key)]; old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		if r.IgnoreValue {
			kv.Value = old.Value
		}
		if r.IgnoreLease {
			kv.Lease = old.Lease
		}
	}
	t.keys[string(r.Key)] = kv
	t.events = append(t.events, &mvccpb.Event{Type: mvccpb.PUT, Kv: kv})
}

// holds compares as the server does: for a missing key all values are zero.
func (s *modelServer) holds(c *pb.Compare) bool {
	keys := s.within(string(c.Key), string(c.RangeEnd))
	if len(keys) == 0 {
		return holdsFor(c, &mvccpb.KeyValue{})
	}
	for _, key := range keys {
		if !holdsFor(c, s.keys[key]) {
			return false
		}
	}
	return true
}

func holdsFor(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	order := 0
	switch t := c.TargetUnion.(type) {
	case *pb.Compare_CreateRevision:
		order = cmp.Compare(kv.CreateRevision, t.CreateRevision)
	case *pb.Compare_ModRevision:
		order = cmp.Compare(kv.ModRevision, t.ModRevision)
	case *pb.Compare_Lease:
		order = cmp.Compare(kv.Lease, t.Lease)
	case *pb.Compare_Value:
		if len(kv.Key) == 0 {
			return false
		}
		order = strings.Compare(string(kv.Value), string(t.Value))
	default:
		panic("the model does not know this comparison")
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	}
	return order < 0
}

// get reads a range. Inside a transaction it sees the puts before it.
func (t *modelTxn) get(r *pb.RangeRequest) (*pb.RangeResponse, error) {
	from := t.keys
	switch {
	case r.Revision > t.revision():
		return nil, rpctypes.ErrGRPCFutureRev
	case r.Revision > 0 && r.Revision < t.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	case r.Revision > 0:
		from = t.at(r.Revision)
	}
	var kvs []*mvccpb.KeyValue
	for _, key := range (&modelServer{keys: from}).within(string(r.Key), string(r.RangeEnd)) {
		if kv := from[key]; r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision {
			kvs = append(kvs, kv)
		}
	}
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		order := 0
		if r.SortTarget == pb.RangeRequest_CREATE {
			order = cmp.Compare(a.CreateRevision, b.CreateRevision)
		}
		switch r.SortOrder {
		case pb.RangeRequest_DESCEND:
			return -order
		case pb.RangeRequest_ASCEND:
			return order
		}
		return 0
	})
	answer := &pb.RangeResponse{Header: t.header(), Count: int64(len(kvs))}
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, answer.More = kvs[:r.Limit], true
	}
	for _, kv := range kvs {
		if r.KeysOnly { // servers omit the lease in this case
			kv = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
		}
		answer.Kvs = append(answer.Kvs, kv)
	}
	return answer, nil
}

// isSealed reports whether a name was sealed at a revision.
func (s *modelServer) isSealed(dir string, revision int64) bool {
	return s.at(revision)[sealKey(dir)] != nil
}

// leaseOf returns the client to whose lease a key is or was attached.
func (w *modelWorld) leaseOf(kv *mvccpb.KeyValue) string { return w.owners[kv.Lease] }
