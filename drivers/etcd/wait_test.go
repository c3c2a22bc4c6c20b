package etcd

import (
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

const (
	viewDir = "a/"
	viewOwn = "a/own-0"
)

var viewKeys = keyRange{dir: viewDir}

// viewed is a waiter and its feeds, without a watch. A test delivers the
// events. The feeds are for all contenders, for the key a/8, and for the seal.
type viewed struct {
	feed, last, seal *feed

	waiter *waiter
	hold   *hold
}

func newViewed() *viewed {
	d := &Driver{epoch: time.Now()}
	d.feeds = newFeeds(d)
	feed := func(keys keyRange) *feed {
		f := &feed{feeds: d.feeds, keys: keys, waiters: make(map[*waiter]struct{})}
		d.feeds.byRange[keys] = f
		f.setActive(true)
		return f
	}
	h := &hold{driver: d, request: &driver.Request{}, key: viewOwn, revision: 10, session: newSession(d, time.Hour)}
	h.session.End.Begin(int64(time.Hour))
	v := &viewed{feed: feed(viewKeys), last: feed(keyRange{dir: "a/8", ends: true}), seal: feed(keyRange{dir: sealKey(viewDir), ofRecord: true}), hold: h}
	v.waiter = d.feeds.join(viewOwn, d.feeds.now())
	return v
}

// got gives the waiter a view.
func (v *viewed) got(w view) {
	w.before = slices.Clone(w.before)
	v.waiter.endLook(w, v.hold.hears(w))
}

// todo returns the waiter's next action, if it is woken: otherwise it rests.
func (v *viewed) todo() verdict {
	select {
	case <-v.waiter.wake:
		return v.hold.judge(v.waiter)
	default:
		return holds
	}
}

// step is an event of a test.
type step = func(v *viewed)

func tell(events ...*clientv3.Event) step { return func(v *viewed) { v.feed.deliver(events) } }

// does carries out the steps and checks the waiter's next action and its token.
func (v *viewed) does(t *testing.T, name string, steps []step, want verdict, token int64) {
	t.Helper()
	for _, s := range steps {
		s(v)
	}
	if got := v.todo(); got != want {
		t.Errorf("%s: got %d, want %d", name, got, want)
	}
	if v.hold.token != token {
		t.Errorf("%s: token: got %d, want %d", name, v.hold.token, token)
	}
	v.waiter.leave()
	if n := len(v.feed.waiters) + len(v.last.waiters) + len(v.seal.waiters); n > 0 {
		t.Errorf("%s: left in %d feeds", name, n)
	}
}

func deleted(key string, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
}

func put(key string, created, revision, lease int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte(key), CreateRevision: created, ModRevision: revision, Lease: lease}}
}

func passed(key string, created, revision, lease int64) *clientv3.Event {
	e := put(key, created, revision, lease)
	e.Kv.Value = []byte(`{"owner":"b","time":"2026-01-02T03:04:05Z","pass":1}`)
	return e
}

func TestWaiterGrantsOnlyWhatEventsProve(t *testing.T) {
	both := view{revision: 10, before: []string{"a/2", "a/1"}, all: true}
	got := func(w view) step { return func(v *viewed) { v.got(w) } }
	ask := func(v *viewed) { v.waiter.beginLook() }
	active := func(is bool) step { return func(v *viewed) { v.feed.setActive(is) } }
	many := view{revision: 10, before: []string{"a/8"}}
	end := func(revision int64) step {
		return func(v *viewed) { v.last.deliver([]*clientv3.Event{deleted("a/8", revision)}) }
	}
	sealed := func(revision int64) step {
		return func(v *viewed) { v.seal.deliver([]*clientv3.Event{put(sealKey(viewDir), revision, revision, 0)}) }
	}
	others := func(from, to int64) step {
		return func(v *viewed) {
			for revision := from; revision <= to; revision++ {
				v.feed.deliver([]*clientv3.Event{deleted("a/9", revision)})
			}
		}
	}
	for _, test := range []struct {
		name  string
		steps []step
		want  verdict
		token int64
	}{
		{"nothing", []step{got(both)}, holds, 0},
		{"one of two keys ends", []step{got(both), tell(deleted("a/2", 11))}, holds, 0},
		{"both keys end", []step{got(both), tell(deleted("a/2", 11)), tell(deleted("a/1", 12))}, frees, 12},
		{"both keys end in the other order", []step{got(both), tell(deleted("a/1", 11), deleted("a/2", 12))}, frees, 12},
		{"both keys end at one revision", []step{got(both), tell(deleted("a/1", 11), deleted("a/2", 11))}, frees, 11},
		{"events of other keys", []step{got(both), tell(deleted("a/3", 11), deleted("a/2/x", 12), put("a/2/y", 5, 12, 0), put("a/4", 13, 13, 1))}, holds, 0},
		{"both keys end, and one was put again further back", []step{got(both), tell(deleted("a/1", 11), put("a/1", 12, 12, 1), deleted("a/2", 13))}, frees, 13},
		{"both keys end, and the waiter's key with the last", []step{got(both), tell(deleted("a/2", 11)), tell(deleted("a/1", 12), deleted(viewOwn, 12))}, drops, 0},
		{"the waiter's key ends before both", []step{got(both), tell(deleted(viewOwn, 11), deleted("a/1", 12), deleted("a/2", 12))}, drops, 0},
		{"both keys end, and then the waiter's key", []step{got(both), tell(deleted("a/1", 11), deleted("a/2", 11)), tell(deleted(viewOwn, 12))}, drops, 0},
		{"a change, as by a mark", []step{got(both), tell(put("a/1", 5, 11, 1)), tell(deleted("a/1", 12), deleted("a/2", 13))}, drops, 0},
		{"a pass", []step{got(both), tell(passed("a/1", 5, 11, 1)), tell(deleted("a/2", 12), deleted("a/1", 13))}, frees, 13},
		{"a pass of the waiter's key", []step{got(both), tell(passed(viewOwn, 10, 11, 1)), tell(deleted("a/2", 12), deleted("a/1", 13))}, frees, 13},
		{"a seal of a hold that was passed", []step{got(both), tell(passed("a/1", 5, 11, 0)), tell(deleted("a/1", 12), deleted("a/2", 13))}, drops, 0},
		{"a seal", []step{got(both), tell(put("a/1", 5, 11, 0)), tell(deleted("a/1", 12), deleted("a/2", 13))}, drops, 0},
		{"more events than the feed remembers", []step{tell(deleted("a/1", 11)), others(12, 11+maxRecent), got(both), tell(deleted("a/2", 100))}, drops, 0},
		{"as many events as the feed remembers", []step{tell(deleted("a/1", 11)), others(12, 10+maxRecent), got(both), tell(deleted("a/2", 100))}, frees, 100},
		{"more events than the feed remembers, before the view", []step{others(11-maxRecent, 10), got(both), tell(deleted("a/1", 11), deleted("a/2", 12))}, frees, 12},
		{"the nearest of many", []step{got(many)}, holds, 0},
		{"the end of the nearest of many", []step{got(many), end(11)}, drops, 0},
		{"the end of the nearest of many while the view is on its way", []step{end(11), got(many)}, drops, 0},
		{"the end of an earlier key of the nearest of many", []step{end(9), got(many), end(10)}, holds, 0},
		{"the end of another key", []step{got(many), tell(deleted("a/7", 11))}, holds, 0},
		{"a seal before many", []step{got(many), sealed(11)}, drops, 0},
		{"a seal before many while the view is on its way", []step{sealed(11), got(many)}, drops, 0},
		{"a seal before many that was removed before the view", []step{sealed(9), got(many)}, holds, 0},
		{"the nearest of many after a look", []step{got(many), ask, got(many), end(11)}, drops, 0},
		{"the nearest of many has gone, and few are left", []step{
			got(many), end(11), ask, got(view{revision: 11, before: []string{"a/1"}, all: true}), tell(deleted("a/1", 12)),
		}, frees, 12},
		{"an activation of one feed of two", []step{
			func(v *viewed) { v.last.setActive(false); v.seal.setActive(false) }, got(many), func(v *viewed) { v.last.setActive(true) },
		}, holds, 0},
		{"an activation of both", []step{
			func(v *viewed) { v.last.setActive(false); v.seal.setActive(false) }, got(many), func(v *viewed) { v.last.setActive(true); v.seal.setActive(true) },
		}, drops, 0},
		{"earlier keys of the same names", []step{got(both), tell(deleted("a/1", 8), deleted("a/2", 9))}, holds, 0},
		{"earlier events before the view", []step{tell(deleted("a/1", 8), deleted("a/2", 9)), got(both)}, holds, 0},
		{"one key ends while the view is on its way", []step{tell(deleted("a/1", 11)), got(both)}, holds, 0},
		{"both keys end while the view is on its way", []step{tell(deleted("a/1", 11)), tell(deleted("a/2", 12)), got(both)}, frees, 12},
		{"a seal while the view is on its way", []step{tell(put("a/1", 5, 11, 0)), tell(deleted("a/1", 12), deleted("a/2", 12)), got(both)}, drops, 0},
		{"an activation before the view", []step{active(false), active(true), got(both), tell(deleted("a/1", 11), deleted("a/2", 12))}, drops, 0},
		{"an activation after the view", []step{got(both), active(false), active(true), tell(deleted("a/1", 11), deleted("a/2", 12))}, drops, 0},
		{"an activation after the last event", []step{got(both), tell(deleted("a/1", 11), deleted("a/2", 12)), active(false), active(true)}, drops, 0},
		{"no watch", []step{active(false), got(both), active(true)}, drops, 0},
		{"a look that failed", []step{got(both), ask, tell(deleted("a/1", 11), deleted("a/2", 12))}, holds, 0},
		{"a look that succeeded after a failed look", []step{got(both), ask, tell(deleted("a/1", 11)), ask, got(view{revision: 12, before: []string{"a/2"}, all: true}),
			tell(deleted("a/2", 13))}, frees, 13},
		{"a look", []step{
			got(both), tell(deleted("a/2", 11)), ask,
			got(view{revision: 12, before: []string{"a/1"}, all: true}), tell(deleted("a/1", 13)),
		}, frees, 13},
		{"a lease that has ended", []step{
			got(both), func(v *viewed) { v.hold.session.End.Begin(2) }, tell(deleted("a/1", 11), deleted("a/2", 12)),
		}, drops, 0},
		{"a lease of its own", []step{
			got(both), func(v *viewed) { v.hold.session, v.hold.own = nil, new(ownLease) }, tell(deleted("a/1", 11), deleted("a/2", 12)),
		}, drops, 0},
		{"a Read", []step{
			got(both), func(v *viewed) { v.hold.request.Mode = driver.Read }, tell(deleted("a/1", 11), deleted("a/2", 12)),
		}, drops, 0},
	} {
		newViewed().does(t, test.name, test.steps, test.want, test.token)
	}
}

// TestWaiterWithALateView joins a feed that has become active since the key was
// put.
func TestWaiterWithALateView(t *testing.T) {
	v := newViewed()
	v.feed.setActive(true)
	v.got(view{revision: 10, before: []string{"a/1"}, all: true})
	if got := v.todo(); got != drops {
		t.Errorf("got %d, want %d", got, drops)
	}
}
