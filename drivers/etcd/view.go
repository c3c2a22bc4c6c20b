package etcd

import (
	"encoding/json"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// view has the keys that stand before a key and exclude it, by one answer of the server. If there are none, the key has the lock.
//
// No new key can come to stand before another one, since its create revision is above those of all others. So a view of all the keys
// before, with every event since then, is as good as another look: the event by which the last of these keys is deleted grants the lock, at
// its revision, if all of these hold:
//
//   - The watch was active before the request for the view was sent, and has been since then, and its feed remembers all that it has told since
//     the revision of the view. When a connection breaks, the client library goes on with the revision after the last one that the watch told; if
//     it cannot, as after a compaction, the watch ends, and all waiters look.
//   - No event has told of a change of any of these keys, or of the key itself. A seal changes the key of its holder. A mark may change the
//     record of a name, so setting or removing a mark puts the key of the holder again, for the views. A pass to another caller of the
//     client is the one change that leaves the view as it is, and the value of the key says so.
//   - The lease of the key is not over by the local clock. An event may be late by any time, but until the lease is over nobody else can
//     have the lock, unless somebody removed the key meanwhile; of a removal the holder learns as all holders do.
//
// Otherwise the waiter looks again.
type view struct {
	revision int64
	record   record
	before   []string // keys, the nearest first
	all      bool     // before has all keys; otherwise the nearest one alone

	// missing is how many permits have to be given back, or fewer, until the key can have its own.
	missing int
}

// maxView is how many keys the longest view of all has.
const maxView = 7

// viewOf makes a view for a key of a mode out of kvs, the keys before it, the nearest first. More says that others are before these.
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

// first says that nobody stands before the key, and that no permits are missing.
func (v *view) first() bool { return v.all && len(v.before) == 0 && v.missing <= 0 }

// isOf reports whether a later view shows nothing that an event should have told before.
func (v *view) isOf(later view) bool {
	return slices.Equal(v.before, later.before[:min(len(v.before), len(later.before))]) && v.missing <= later.missing
}

// verdict is what an event makes of a view.
type verdict int8

const (
	holds verdict = iota // the view goes on
	frees                // no key is before the own key any more, since that event
	drops                // the waiter has to look
)

// tell takes note of an event of a contender that is not the creation of its key, as new keys stand behind, or of one of the name's record. The
// view is that of the key own.
func (v *view) tell(e *clientv3.Event, own string, ofRecord bool) verdict {
	key := string(e.Kv.Key)
	i := slices.Index(v.before, key)
	switch {
	case e.Kv.ModRevision <= v.revision: // of an earlier key of the same name, or older than the view
		return holds
	case ofRecord, isSeal(e): // all keys behind have to look, also those whose view is of the nearest key alone
		return drops
	case i < 0 && key != own && v.missing > 0:
		return v.givenBack(e)
	case i < 0 && key != own, isPass(e):
		return holds
	case i < 0, e.Type == mvccpb.PUT, !v.all:
		return drops
	}
	if v.before = slices.Delete(v.before, i, i+1); len(v.before) > 0 {
		return holds
	}
	if v.missing > 0 {
		return holds
	}
	return frees
}

// givenBack counts the permits of a key that is gone. The key may have stood behind the own one, and the limit may be another one since: so the
// waiter looks when it can have its permits, and at times before.
func (v *view) givenBack(e *clientv3.Event) verdict {
	if e.Type == mvccpb.DELETE {
		n, _ := permitsOf(e.Kv.Key)
		v.missing -= n
	}
	if v.missing > 0 || len(v.before) > 0 {
		return holds
	}
	return drops
}

// isSeal reports whether an event makes a contender's key a seal, which stays for ever.
func isSeal(e *clientv3.Event) bool {
	return e.Type == mvccpb.PUT && e.Kv.Lease == int64(clientv3.NoLease)
}

// isPass reports whether an event gave a hold to another caller of its client, and changed nothing else.
func isPass(e *clientv3.Event) bool {
	var v value
	return e.Type == mvccpb.PUT && json.Unmarshal(e.Kv.Value, &v) == nil && v.Pass > 0
}
