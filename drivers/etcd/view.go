package etcd

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// view is what an answer says of those who stand before a key: if nobody does, it has the lock.
//
// Nobody new can come to stand there, since the create revision of a new key is above those of all others. So a view of all of them,
// and every event since then, is as good as a further look: when the last of them is deleted, the lock is granted by that event, at
// its revision, if all of these hold:
//
//   - The watch was active before the request for the view was sent, and has been since then. So it tells all that is later than the
//     view. When a connection breaks, the client library goes on with the revision after the last that it was told of; where it cannot,
//     as after a compaction, the watch ends, and all look.
//   - No event has told of a change of any of these keys, or of the key itself. A seal is a change of its holder's key; and so is a
//     mark, which is what else may change in the record of a name: who sets or takes off one puts its key again, as it is, for the sake
//     of this. Events come in the order of revisions, and so before that of a later deletion.
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

// viewOf makes a view of those before a key, the nearest first. More says that there are others before these.
func viewOf(dir string, kvs []*mvccpb.KeyValue, more bool, r record, revision int64) view {
	v := view{revision: revision, record: r, all: !more}
	for _, kv := range kvs {
		switch {
		case !isContender(dir, kv):
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

// next returns the key right before, or "" if there is none or it is not known.
func (v *view) next() string {
	if len(v.before) == 0 {
		return ""
	}
	return v.before[0]
}

// see takes note of an event that concerns w, and wakes it if there is something to do. It is called with feeds.mu held.
func (w *waiter) see(e *clientv3.Event) {
	if e.Kv.ModRevision <= w.view.revision {
		return // of an earlier key of that name, or before the view
	}
	key := string(e.Kv.Key)
	i := slices.Index(w.view.before, key)
	if e.Type != mvccpb.DELETE || i < 0 || !w.view.all {
		w.stale = true
		w.call()
		return
	}
	w.feed.remove(key, w)
	w.view.before = slices.Delete(w.view.before, i, i+1)
	if len(w.view.before) == 0 {
		w.cleared = e.Kv.ModRevision
		w.call()
	}
}
