package etcd

import (
	"context"
	"encoding/json"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// Inspect implements driver.Inspector. Status.Since is the time when the holder
// requested the lock, or when the hold was passed to the holder. Status.Token
// is known only for holders of this driver. Contenders that are not dsync
// clients are named by the last part of their keys, and the values of their
// keys are their notes.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	dir := d.dir(name)
	answer, r, err := d.readQueue(bounded, dir, clientv3.OpGet(dir, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)))
	if err != nil {
		return driver.Status{}, d.queryFault(ctx, err)
	}
	queue := contenders(dir, answer.Responses[0].GetResponseRange().Kvs)
	if r.sealed {
		return driver.Status{Held: true, Holders: 1, Owner: sealOwner, Token: r.last, Waiters: max(0, len(queue)-1)}, nil
	}
	if len(queue) == 0 {
		return driver.Status{Limit: r.limit}, nil
	}
	first, holders := readValue(dir, queue[0]), d.holdersOf(bounded, dir, queue, r)
	used, _ := permitsIn(dir, queue[:holders], r)
	_, limit := permitsIn(dir, queue, r)
	status := driver.Status{
		Held:    true,
		Mode:    modeOf(dir, queue[0]),
		Holders: holders,
		Used:    used,
		Limit:   limit,
		Hold:    first.Hold,
		Owner:   first.Owner,
		Note:    first.Note,
		Since:   first.Time,
		Token:   d.tokenOf(queue[:holders]),
		Waiters: len(queue) - holders,
	}
	for _, kv := range queue[holders:] {
		status.Queue = append(status.Queue, readValue(dir, kv).Owner)
	}
	if lease := clientv3.LeaseID(queue[0].Lease); lease != clientv3.NoLease {
		left, err := d.timeToLive(bounded, lease)
		if err != nil && !isLeaseGone(err) {
			return driver.Status{}, d.queryFault(ctx, err)
		}
		if err == nil {
			status.TTL = max(0, time.Duration(left.TTL)*time.Second)
		}
	}
	return status, nil
}

// readQueue reads some contenders for dir, the record of the name, and more, in
// one transaction. The answers have this order.
func (d *Driver) readQueue(ctx context.Context, dir string, queue clientv3.Op, more ...clientv3.Op) (answer *clientv3.TxnResponse, r record, err error) {
	answer, err = d.transact(ctx, nil, append([]clientv3.Op{queue, getRecord(dir)}, more...), nil)
	if err == nil {
		r, err = readRecord(dir, answer.Responses[1].GetResponseRange().Kvs)
	}
	return answer, r, err
}

// contenders returns the keys among kvs that contend for the lock on dir.
func contenders(dir string, kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	return slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !isContender(dir, kv) })
}

// holdersIn returns the number of contenders in a queue that hold the lock: the
// first contender and, if that is a Read, all Reads directly behind it. For
// permits it returns the number of contenders for which the limit has room. A
// key that contains another limit was granted under that limit, or is about to
// be deleted.
func holdersIn(dir string, queue []*mvccpb.KeyValue, r record) int {
	_, limit := permitsIn(dir, queue, r)
	used := 0
	for i, kv := range queue {
		n, named := permitsOf(kv.Key)
		used += n
		if i > 0 && (excludes(dir, kv, modeOf(dir, queue[0])) || used > max(limit, named)) {
			return i
		}
	}
	return len(queue)
}

// holdersOf is like holdersIn, but also counts the holders of permits that
// SetLimit has left above the limit. Their keys are older than the limit. The
// queue and the limit at the revision before the change show which of these
// keys had permits, if the server still has that revision. Permits are granted
// in the order of keys.
func (d *Driver) holdersOf(ctx context.Context, dir string, queue []*mvccpb.KeyValue, r record) int {
	n := holdersIn(dir, queue, r)
	mayHold := func() bool {
		return n < len(queue) && queue[n].CreateRevision < r.limited && !excludes(dir, queue[n], modeOf(dir, queue[0]))
	}
	if !mayHold() {
		return n
	}
	for i, kv := range queue {
		if i >= n && d.own(kv) != nil {
			n = i + 1
		}
	}
	at := clientv3.WithRev(r.limited - 1)
	answer, err := d.transact(ctx, nil, []clientv3.Op{
		clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithKeysOnly(), at, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)),
		clientv3.OpGet(dir[:len(dir)-1]+"\x00", clientv3.WithPrefix(), at),
	}, nil)
	if err != nil {
		return n
	}
	before, err := readRecord(dir, answer.Responses[1].GetResponseRange().Kvs)
	then := contenders(dir, answer.Responses[0].GetResponseRange().Kvs)
	if err != nil || len(then) == 0 {
		return n
	}
	last := then[d.holdersOf(ctx, dir, then, before)-1]
	for mayHold() && queue[n].CreateRevision <= last.CreateRevision {
		n++
	}
	return n
}

// readValue reads the value of a key.
func readValue(dir string, kv *mvccpb.KeyValue) value {
	var v value
	if json.Unmarshal(kv.Value, &v) == nil && v.Hold != "" {
		return v
	}
	last := string(kv.Key[len(dir):])
	v = value{Owner: last, Hold: last}
	if utf8.Valid(kv.Value) {
		v.Note = string(kv.Value)
	}
	return v
}

// tokenOf returns the last token of holders of this driver. It returns 0 if
// another client is among the holders, because only that client knows that
// token.
func (d *Driver) tokenOf(holders []*mvccpb.KeyValue) (last uint64) {
	for _, kv := range holders {
		h := d.own(kv)
		if h == nil {
			return 0
		}
		first, _ := h.Tokens()
		last = max(last, first)
	}
	return last
}

// own returns this driver's hold with the given key, or nil.
func (d *Driver) own(kv *mvccpb.KeyValue) *hold {
	ofSessions, fixed, _ := d.held(d.now() + 1)
	for _, holds := range ofSessions {
		fixed = append(fixed, holds...)
	}
	for _, h := range fixed {
		if h.key == string(kv.Key) && h.revision == kv.CreateRevision {
			return h
		}
	}
	return nil
}

// ForceUnlock implements driver.ForceUnlocker.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	dir := d.dir(name)
	holders, err := d.holders(bounded, dir)
	if err != nil {
		return d.queryFault(ctx, err)
	}
	outcome := driver.ErrNotHeld // nil if a holder still exists when it is deleted
	for some := range slices.Chunk(holders, maxCombined) {
		answer, err := d.transact(bounded, []clientv3.Cmp{notSealed(dir)}, deletions(some), nil)
		if err != nil {
			return d.changeFault(ctx, err)
		}
		if !answer.Succeeded {
			return driver.ErrSealed
		}
		for i, one := range answer.Responses {
			if one.GetResponseTxn().GetSucceeded() {
				outcome = nil
				if h := d.own(some[i]); h != nil { // so that the next call of this client can request the name
					h.unlist()
					h.lose(driver.ErrRemoved)
				}
			}
		}
	}
	return outcome
}

// deletions deletes each of kvs that still has the same create revision.
func deletions(kvs []*mvccpb.KeyValue) (ops []clientv3.Op) {
	for _, kv := range kvs {
		same := clientv3.Compare(clientv3.CreateRevision(string(kv.Key)), "=", kv.CreateRevision)
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{same}, []clientv3.Op{clientv3.OpDelete(string(kv.Key))}, nil))
	}
	return ops
}

// holders returns the keys that hold the lock on dir. For permits it also
// returns all keys that may have been granted permits under an earlier limit. A
// waiter among them queues again when its key is removed.
func (d *Driver) holders(ctx context.Context, dir string) ([]*mvccpb.KeyValue, error) {
	for limit := int64(pageSize); ; limit = 0 { // there may be more holders than the page shows
		answer, r, err := d.readQueue(ctx, dir, clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(limit),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)))
		if err != nil {
			return nil, err
		}
		page := answer.Responses[0].GetResponseRange()
		queue := contenders(dir, page.Kvs)
		n := holdersIn(dir, queue, r)
		for n > 0 && n < len(queue) && queue[n].CreateRevision < r.limited && !excludes(dir, queue[n], modeOf(dir, queue[0])) {
			n++
		}
		if !page.More || n < len(queue) {
			return queue[:n], nil
		}
	}
}

// listSize is the number of keys that one request of List reads.
const listSize = 1000

// leaseKey matches the last part of a contender's key: a mode, a lease and, in
// keys of this driver, a number.
var leaseKey = regexp.MustCompile(`^(\+read-|write-|permits-[0-9]+of[0-9]+-)?[0-9a-f]{8,16}(-[0-9a-f]+)?$`)

var unflatten = strings.NewReplacer("%2F", "/", "%25", "%")

// List implements driver.Lister. It treats a key as a contender if the key has
// a lease and its last part looks like a lease, because all clients of this
// protocol make such keys. All pages are read at one revision. Otherwise a name
// at the end of a page could be missed while its contenders come and go. A List
// fails if it takes longer than the server keeps old revisions.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		wanted := prefix
		if d.options.Flat {
			prefix = flatten.Replace(prefix)
		}
		from, end := d.options.Prefix+prefix, clientv3.GetPrefixRangeEnd(d.options.Prefix+prefix)
		if from == "" {
			from = "\x00" // with an end of \x00, this means all keys
		}
		for revision, more := int64(0), true; more; {
			var names []string
			answer, err := d.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(listSize),
				clientv3.WithKeysOnly()))
			if err == nil {
				if revision == 0 {
					revision = answer.Header.Revision
				}
				page := answer.Responses[0].GetResponseRange()
				if more = page.More && len(page.Kvs) > 0; more {
					from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
				}
				names, err = d.namesAmong(ctx, page.Kvs, revision)
			}
			if err != nil {
				yield("", err)
				return
			}
			for _, name := range names {
				if !strings.HasPrefix(name, wanted) {
					// the lease in the key, and not the name, matched the end
					// of the prefix
					continue
				}
				if !yield(name, nil) {
					return
				}
			}
		}
	}
}

// namesAmong returns the names for which some keys contend. Newer servers
// return the lease of a key only together with its value, so the keys that look
// like contenders are read a second time. Values of other keys, which may be
// large, are not read.
func (d *Driver) namesAmong(ctx context.Context, keys []*mvccpb.KeyValue, revision int64) (names []string, err error) {
	var runs []clientv3.Op // of keys with no other keys in between
	for i, first := 0, -1; i <= len(keys); i++ {
		if i < len(keys) {
			if name, sealed := strings.CutSuffix(string(keys[i].Key), sealSuffix); sealed {
				names = append(names, d.unescaped(strings.TrimPrefix(name, d.options.Prefix)))
			}
		}
		switch looks := i < len(keys) && d.nameOf(keys[i].Key) != ""; {
		case looks && first < 0:
			first = i
		case !looks && first >= 0:
			runs = append(runs, clientv3.OpGet(string(keys[first].Key), clientv3.WithRange(string(keys[i-1].Key)+"\x00"), clientv3.WithRev(revision)))
			first = -1
		}
	}
	for some := range slices.Chunk(runs, maxCombined) {
		answer, err := d.read(ctx, some...)
		if err != nil {
			return nil, err
		}
		for _, run := range answer.Responses {
			for _, kv := range run.GetResponseRange().Kvs {
				if kv.Lease != 0 {
					names = append(names, d.nameOf(kv.Key))
				}
			}
		}
	}
	return slices.Compact(names), nil
}

// read carries out some reads with one request.
func (d *Driver) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	answer, err := d.transact(bounded, nil, ops, nil)
	if err != nil {
		return nil, d.queryFault(ctx, err)
	}
	return answer, nil
}

// nameOf returns the name for which a key with a lease contends, or "".
func (d *Driver) nameOf(key []byte) string {
	rest := string(key[len(d.options.Prefix):])
	slash := strings.LastIndexByte(rest, '/')
	if slash < 1 || !utf8.ValidString(rest) {
		return ""
	}
	name, last := rest[:slash], rest[slash+1:]
	if above := strings.LastIndexByte(name, '/'); above > 0 && isRecipe([]byte(rest[above+1:])) {
		name = name[:above]
	} else if !leaseKey.MatchString(last) {
		return ""
	}
	return d.unescaped(name)
}

// unescaped returns the name that a key contains.
func (d *Driver) unescaped(name string) string {
	if d.options.Flat {
		return unflatten.Replace(name)
	}
	return name
}
