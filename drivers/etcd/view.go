package etcd

import (
	"encoding/json"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// view is what an answer says of those who stand before a key and exclude it: if nobody does, it has the lock.
//
// Nobody new can come to stand there, since the create revision of a new key is above those of all others. So a view of all of them,
// and every event since then, is as good as a further look: when the last of them is deleted, the lock is granted by that event, at
// its revision, if all of these hold:
//
//   - The watch was active before the request for the view was sent, and has been since then. When a connection breaks, the client library
//     goes on with the revision after the last that it was told of; where it cannot, as after a compaction, the watch ends, and all look.
//   - No event has told of a change of any of these keys, or of the key itself. A seal changes the key of its holder, and a mark, by which
//     the record of a name may change too, puts that key again for the sake of this. A key that is passed to another caller of its client
//     is the one change that leaves the view as it is, and says so in its value.
//   - The lease of the key is not over by the local clock. An event may be late by any time, but before that nobody else can have the
//     lock, unless the key was removed by somebody else meanwhile, and of that a holder learns as ever.
//
// Otherwise the waiter looks again.
type view struct {
	revision int64
	record   record
	before   []string // keys, the nearest first
	all      bool     // or else there is the nearest alone
}

// maxView is how many keys the longest view of all has.
const maxView = pageSize - 1

// viewOf makes a view of those before a key of that mode, the nearest first. More says that there are others before these.
func viewOf(dir string, mode driver.Mode, kvs []*mvccpb.KeyValue, more bool, r record, revision int64) view {
	v := view{revision: revision, record: r, all: !more}
	for _, kv := range kvs {
		switch {
		case !excludes(dir, kv, mode):
		case len(v.before) > 0 && (!v.all || len(v.before) == maxView):
			v.before, v.all = v.before[:1:1], false
			return v
		default:
			v.before = append(v.before, string(kv.Key))
		}
	}
	return v
}

// first says that nobody stands before the key.
func (v *view) first() bool { return v.all && len(v.before) == 0 }

// verdict is what an event makes of a view.
type verdict int8

const (
	holds verdict = iota // the view is still known
	frees                // the own key is the first from that event on
	drops                // a look is needed
)

// tell takes note of an event of a contender, which is no creation: new ones stand behind. Own is the key that the view is of.
func (v *view) tell(e *clientv3.Event, own string) verdict {
	key := string(e.Kv.Key)
	i := slices.Index(v.before, key)
	switch {
	case e.Kv.ModRevision <= v.revision: // of an earlier key of that name, or in the view
		return holds
	case isSeal(e): // for all that stand behind it
		return drops
	case i < 0 && key != own, isPass(e):
		return holds
	case i < 0, e.Type == mvccpb.PUT, !v.all:
		return drops
	}
	if v.before = slices.Delete(v.before, i, i+1); len(v.before) > 0 {
		return holds
	}
	return frees
}

// isSeal reports whether an event makes a key of the name one that stays for ever.
func isSeal(e *clientv3.Event) bool {
	return e.Type == mvccpb.PUT && e.Kv.Lease == int64(clientv3.NoLease)
}

// isPass reports whether an event gave a hold to another caller of its client, and changed nothing else.
func isPass(e *clientv3.Event) bool {
	var v value
	return e.Type == mvccpb.PUT && json.Unmarshal(e.Kv.Value, &v) == nil && v.Pass > 0
}
