package etcd

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	viewDir = "a/"
	viewOwn = "a/own"
)

// viewed is a waiter and its feed, without a watch: a test tells the events.
type viewed struct {
	feed   *feed
	waiter *waiter
	hold   *hold
}

func newViewed() *viewed {
	d := &Driver{epoch: time.Now()}
	d.feeds = newFeeds(d)
	f := &feed{feeds: d.feeds, dir: viewDir, waiters: make(map[string][]*waiter)}
	d.feeds.byDir[viewDir] = f
	f.setActive(true)
	h := &hold{driver: d, key: viewOwn, revision: 10, session: new(session)}
	h.session.expires.Store(int64(time.Hour))
	w := f.add()
	w.epoch = f.epoch
	return &viewed{f, w, h}
}

// todo returns what the waiter does, if it is woken: else it rests.
func (v *viewed) todo() todo {
	select {
	case <-v.waiter.wake:
		return v.hold.take(v.waiter)
	default:
		return toRest
	}
}

// step is something that happens.
type step = func(v *viewed)

func tell(events ...*clientv3.Event) step { return func(v *viewed) { v.feed.tell(events) } }

// does has the steps happen, and checks what the waiter does then, and with what token.
func (v *viewed) does(t *testing.T, name string, steps []step, want todo, token int64, base uint64) {
	t.Helper()
	for _, s := range steps {
		s(v)
	}
	if got := v.todo(); got != want {
		t.Errorf("%s: got %d, want %d", name, got, want)
	}
	if v.hold.token != token || token > 0 && v.hold.record.base != base {
		t.Errorf("%s: token: got %d and base %d, want %d and %d", name, v.hold.token, v.hold.record.base, token, base)
	}
	if v.waiter.leave(); len(v.feed.waiters) > 0 {
		t.Errorf("%s: left in the feed: %v", name, v.feed.waiters)
	}
}

func deleted(key string, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
}

func put(key string, created, revision, lease int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte(key), CreateRevision: created, ModRevision: revision, Lease: lease}}
}

func TestWaiterGrantsOnlyWhatEventsProve(t *testing.T) {
	both := view{revision: 10, before: []string{"a/2", "a/1"}, all: true}
	narrow := func(w view) step {
		return func(v *viewed) {
			w.before = append([]string(nil), w.before...)
			v.waiter.narrow(viewOwn, v.hold.revision, w)
		}
	}
	active := func(is bool) step { return func(v *viewed) { v.feed.setActive(is) } }
	for _, test := range []struct {
		name  string
		steps []step
		want  todo
		token int64
	}{
		{"nothing", []step{narrow(both)}, toRest, 0},
		{"one of two", []step{narrow(both), tell(deleted("a/2", 11))}, toRest, 0},
		{"both", []step{narrow(both), tell(deleted("a/2", 11)), tell(deleted("a/1", 12))}, toTake, 12},
		{"both in the other order", []step{narrow(both), tell(deleted("a/1", 11), deleted("a/2", 12))}, toTake, 12},
		{"both at once", []step{narrow(both), tell(deleted("a/1", 11), deleted("a/2", 11))}, toTake, 11},
		{"others", []step{narrow(both), tell(deleted("a/3", 11), deleted("a/2/x", 12), put("a/2/y", 5, 12, 0), put("a/4", 13, 13, 1))}, toRest, 0},
		{"both, and one came again behind", []step{narrow(both), tell(deleted("a/1", 11), put("a/1", 12, 12, 1), deleted("a/2", 13))}, toTake, 13},
		{"both, and the own key with the last", []step{narrow(both), tell(deleted("a/2", 11)), tell(deleted("a/1", 12), deleted(viewOwn, 12))}, toLook, 0},
		{"the own key before both", []step{narrow(both), tell(deleted(viewOwn, 11), deleted("a/1", 12), deleted("a/2", 12))}, toLook, 0},
		{"both, and then the own key", []step{narrow(both), tell(deleted("a/1", 11), deleted("a/2", 11)), tell(deleted(viewOwn, 12))}, toLook, 0},
		{"a change, as by a mark", []step{narrow(both), tell(put("a/1", 5, 11, 1)), tell(deleted("a/1", 12), deleted("a/2", 13))}, toLook, 0},
		{"a seal", []step{narrow(both), tell(put("a/1", 5, 11, 0)), tell(deleted("a/1", 12), deleted("a/2", 13))}, toLook, 0},
		{"a view of the nearest", []step{narrow(view{revision: 10, before: []string{"a/2"}}), tell(deleted("a/2", 11))}, toLook, 0},
		{"earlier keys of the same names", []step{narrow(both), tell(deleted("a/1", 8), deleted("a/2", 9))}, toRest, 0},
		{"earlier events before the view", []step{tell(deleted("a/1", 8), deleted("a/2", 9)), narrow(both)}, toRest, 0},
		{"events before the view that it does not have", []step{tell(deleted("a/1", 11)), narrow(both)}, toLook, 0},
		{"an activation before the view", []step{active(false), active(true), narrow(both), tell(deleted("a/1", 11), deleted("a/2", 12))}, toLook, 0},
		{"an activation after the view", []step{narrow(both), active(false), active(true), tell(deleted("a/1", 11), deleted("a/2", 12))}, toLook, 0},
		{"an activation after the last event", []step{narrow(both), tell(deleted("a/1", 11), deleted("a/2", 12)), active(false), active(true)}, toLook, 0},
		{"no watch", []step{active(false), narrow(both), active(true)}, toLook, 0},
		{"a look that failed", []step{narrow(both), func(v *viewed) { v.waiter.widen() }, tell(deleted("a/1", 11), deleted("a/2", 12))}, toLook, 0},
		{"a look", []step{
			narrow(both), tell(deleted("a/2", 11)), func(v *viewed) { v.waiter.widen() },
			narrow(view{revision: 12, before: []string{"a/1"}, all: true}), tell(deleted("a/1", 13)),
		}, toTake, 13},
		{"a lease that is over", []step{
			narrow(both), func(v *viewed) { v.hold.session.expires.Store(0) }, tell(deleted("a/1", 11), deleted("a/2", 12)),
		}, toLook, 0},
		{"a lease of its own", []step{
			narrow(both), func(v *viewed) { v.hold.session, v.hold.own = nil, new(ownLease) }, tell(deleted("a/1", 11), deleted("a/2", 12)),
		}, toLook, 0},
	} {
		newViewed().does(t, test.name, test.steps, test.want, test.token, 0)
	}
}

// TestWaiterWithALateView joins a feed that has become active since the key was put.
func TestWaiterWithALateView(t *testing.T) {
	v := newViewed()
	v.waiter.leave()
	v.waiter = v.hold.driver.feeds.join(viewDir)
	v.waiter.narrow(viewOwn, v.hold.revision, view{revision: 10, before: []string{"a/1"}, all: true})
	if got := v.todo(); got != toLook {
		t.Errorf("got %d, want %d", got, toLook)
	}
}

func key(name string, created int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(name), CreateRevision: created, ModRevision: created, Lease: 1}
}

func TestQueueGrantsOnlyWhatEventsProve(t *testing.T) {
	const base = 100
	narrow := func(w view) step { return func(v *viewed) { v.waiter.narrow(viewOwn, v.hold.revision, w) } }
	// Adopt has the queue known by a look, since which the events have come.
	adopt := func(revision int64, kvs []*mvccpb.KeyValue, missed ...*clientv3.Event) step {
		return func(v *viewed) {
			v.feed.feeds.mu.Lock()
			defer v.feed.feeds.mu.Unlock()
			v.feed.adopt(newQueue(kvs, record{base: base}, revision), missed)
		}
	}
	nearest, blind := narrow(view{revision: 10, before: []string{"a/2"}}), narrow(view{revision: 10})
	before := []*mvccpb.KeyValue{key("a/1", 5), key("a/2", 7)}
	all := append(before[:2:2], key(viewOwn, 10), key("a/3", 11))
	for _, test := range []struct {
		name  string
		steps []step
		want  todo
		token int64
	}{
		{"nothing", []step{nearest, adopt(12, all)}, toRest, 0},
		{"the nearest of two", []step{nearest, adopt(12, all), tell(deleted("a/2", 13))}, toRest, 0},
		{"the other of two", []step{nearest, adopt(12, all), tell(deleted("a/1", 13))}, toRest, 0},
		{"both", []step{nearest, adopt(12, all), tell(deleted("a/2", 13)), tell(deleted("a/1", 14))}, toTake, 14},
		{"both at one revision", []step{nearest, adopt(12, all), tell(deleted("a/2", 13), deleted("a/1", 13))}, toTake, 13},
		{"both before the look", []step{nearest, adopt(12, all[2:])}, toTake, 12},
		{"one before the look", []step{nearest, adopt(12, all[1:]), tell(deleted("a/1", 9), deleted("a/2", 13))}, toTake, 13},
		{"both while the look was under way", []step{nearest, adopt(12, all, deleted("a/1", 13), deleted("a/2", 14))}, toTake, 14},
		{"what the look has, while it was under way", []step{nearest, adopt(12, all, put("a/3", 11, 11, 1), deleted("a/4", 12)), tell(deleted("a/1", 13))}, toRest, 0},
		{"others", []step{nearest, adopt(12, all), tell(deleted("a/3", 13), put("a/1/x", 14, 14, 0), put("a/4", 14, 14, 1), deleted("a/1/x", 15))}, toRest, 0},
		{"both, and one came again behind", []step{nearest, adopt(12, all), tell(deleted("a/1", 13), put("a/1", 14, 14, 1), deleted("a/2", 15))}, toTake, 15},
		{"both, and the own key with the last", []step{nearest, adopt(12, all), tell(deleted("a/1", 13)), tell(deleted("a/2", 14), deleted(viewOwn, 14))}, toLook, 0},
		{"the own key", []step{nearest, adopt(12, all), tell(deleted(viewOwn, 13))}, toLook, 0},
		{"the own key before the look", []step{nearest, adopt(12, before)}, toLook, 0},
		{"the own key while the look was under way", []step{nearest, adopt(12, all, deleted(viewOwn, 13))}, toLook, 0},
		{"a mark", []step{nearest, adopt(12, all), tell(put("a/1", 5, 13, 1)), tell(deleted("a/1", 14), deleted("a/2", 14))}, toLook, 0},
		{"a mark while the look was under way", []step{nearest, adopt(12, all, put("a/1", 5, 13, 1)), tell(deleted("a/2", 14))}, toLook, 0},
		{"a seal", []step{nearest, adopt(12, all), tell(put("a/1", 5, 13, 0))}, toLook, 0},
		{"an activation", []step{nearest, adopt(12, all), func(v *viewed) { v.feed.setActive(true) }}, toLook, 0},
		{"the end of the watch, and another", []step{
			nearest, adopt(12, all), func(v *viewed) { v.feed.setActive(false); v.feed.setActive(true) }, tell(deleted("a/1", 13), deleted("a/2", 14)),
		}, toLook, 0},
		{"a key that was put without a look", []step{adopt(8, before), blind, tell(put(viewOwn, 10, 10, 1), deleted("a/1", 13), deleted("a/2", 14))}, toTake, 14},
		{"when all had gone before it, as events tell", []step{adopt(7, before), tell(deleted("a/1", 8)), blind, tell(deleted("a/2", 9), put(viewOwn, 10, 10, 1))}, toTake, 10},
		{"where one of the same name was before", []step{
			adopt(8, append(before[:1:1], key(viewOwn, 8))), blind, tell(deleted("a/1", 9)),
		}, toRest, 0},
		{"where the one of the same name goes", []step{
			adopt(8, append(before[:1:1], key(viewOwn, 8))), blind, tell(deleted(viewOwn, 9), put(viewOwn, 10, 10, 1)), tell(deleted("a/1", 13)),
		}, toTake, 13},
		{"and is gone again", []step{adopt(8, before), tell(put(viewOwn, 10, 10, 1), deleted(viewOwn, 11)), blind}, toLook, 0},
		{"and the queue is not known any more", []step{adopt(8, before), tell(put("a/1", 5, 9, 1)), blind}, toLook, 0},
		{"a lease that is over", []step{
			nearest, adopt(12, all), func(v *viewed) { v.hold.session.expires.Store(0) }, tell(deleted("a/1", 13), deleted("a/2", 14)),
		}, toLook, 0},
		{"a look", []step{
			nearest, adopt(12, all), func(v *viewed) { v.waiter.widen() }, tell(deleted("a/1", 13)), narrow(view{revision: 13, before: []string{"a/2"}}),
			tell(deleted("a/2", 14)),
		}, toTake, 14},
	} {
		newViewed().does(t, test.name, test.steps, test.want, test.token, base)
	}
}

// TestFirstOfAClientLooks is about who sees, when nothing has been told for long, whether there was something to tell.
func TestFirstOfAClientLooks(t *testing.T) {
	v := newViewed()
	f, first := v.feed, v.waiter
	second, late := f.add(), f.add()
	all := []*mvccpb.KeyValue{key("a/1", 5), key(viewOwn, 10), key("a/2", 11), key("a/second", 12), key("a/3", 13)}
	f.feeds.mu.Lock()
	f.adopt(newQueue(all, record{}, 13), nil)
	f.feeds.mu.Unlock()
	first.narrow(viewOwn, 10, view{revision: 10})
	second.narrow("a/second", 12, view{revision: 12})
	late.narrow("a/late", 20, view{revision: 20}) // its place has not been told of
	expect := func(when string, want map[*waiter]bool) {
		t.Helper()
		for w, behind := range want {
			if got := w.isBehind(); got != behind {
				t.Errorf("%s: %s is behind another: got %v, want %v", when, w.own, got, behind)
			}
		}
	}
	expect("three wait", map[*waiter]bool{first: false, second: true, late: true})
	first.leave()
	expect("the first has left", map[*waiter]bool{second: false, late: true})
	second.widen()
	expect("the second looks", map[*waiter]bool{second: false, late: false})
	second.leave()
	expect("the second has left", map[*waiter]bool{late: false})
	f.tell([]*clientv3.Event{put("a/1", 5, 21, 1)})
	expect("the queue is not known", map[*waiter]bool{late: false})
	late.leave()
}
