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
	return &viewed{f, d.feeds.joinActive(viewDir), h}
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

func deleted(key string, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
}

func put(key string, created, revision, lease int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte(key), CreateRevision: created, ModRevision: revision, Lease: lease}}
}

func TestWaiterGrantsOnlyWhatEventsProve(t *testing.T) {
	both := view{revision: 10, before: []string{"a/2", "a/1"}, all: true}
	type step = func(v *viewed)
	tell := func(events ...*clientv3.Event) step { return func(v *viewed) { v.feed.tell(events) } }
	narrow := func(w view) step {
		return func(v *viewed) {
			w.before = append([]string(nil), w.before...)
			v.waiter.narrow(viewOwn, w)
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
		v := newViewed()
		for _, s := range test.steps {
			s(v)
		}
		if got := v.todo(); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
		if v.hold.token != test.token {
			t.Errorf("%s: token: got %d, want %d", test.name, v.hold.token, test.token)
		}
		if v.waiter.leave(); len(v.feed.waiters) > 0 {
			t.Errorf("%s: left in the feed: %v", test.name, v.feed.waiters)
		}
	}
}

// TestWaiterWithALateView joins a feed that has become active since the key was put.
func TestWaiterWithALateView(t *testing.T) {
	v := newViewed()
	v.waiter.leave()
	v.waiter = v.hold.driver.feeds.join(viewDir)
	v.waiter.narrow(viewOwn, view{revision: 10, before: []string{"a/1"}, all: true})
	if got := v.todo(); got != toLook {
		t.Errorf("got %d, want %d", got, toLook)
	}
}
