package etcd

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// slowWatcher is a server that sends no events. It refuses watches until a
// given time and lets later watches begin after a while.
type slowWatcher struct {
	clientv3.Watcher // nil: the driver calls no more than Watch

	refuses time.Time
	takes   time.Duration
	calls   atomic.Int64
}

func (s *slowWatcher) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	s.calls.Add(1)
	hears := make(chan clientv3.WatchResponse, 1)
	if time.Now().Before(s.refuses) {
		close(hears)
		return hears
	}
	select {
	case <-time.After(s.takes):
		hears <- clientv3.WatchResponse{Created: true}
	case <-ctx.Done():
		close(hears)
	}
	return hears
}

// TestFeedBeginsBesideThoseWhoDoubt has waiters whose reads are answered while
// no watch begins, as after an outage or while the server is busy. Each waiter
// reads the queue once a second, and makes the feed replace its watch. A feed
// that never begins would leave all hand-overs to those reads.
func TestFeedBeginsBesideThoseWhoDoubt(t *testing.T) {
	for _, test := range []struct {
		name    string
		waiters int
		outage  time.Duration
		takes   time.Duration
		within  time.Duration // of the end of the outage
	}{
		{"one waiter, after an outage", 1, 10 * time.Second, time.Millisecond, lastRetry + time.Second},
		{"many waiters, after an outage", 50, 10 * time.Second, time.Millisecond, lastRetry + time.Second},
		{"one waiter on a busy server", 1, 0, 1500 * time.Millisecond, 15 * time.Second},
		{"many waiters on a busy server", 50, 0, 1500 * time.Millisecond, 15 * time.Second},
		{"many waiters on a slow server", 50, 0, 300 * time.Millisecond, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &slowWatcher{refuses: time.Now().Add(test.outage), takes: test.takes}
				d := &Driver{client: &clientv3.Client{Watcher: server}, life: lifecycle.New(), epoch: time.Now()}
				d.feeds = newFeeds(d)
				ctx, cancel := context.WithCancel(t.Context())
				for i := range test.waiters {
					time.AfterFunc(time.Duration(i)*time.Second/time.Duration(test.waiters), func() {
						d.life.Go(func() { d.feeds.waitInVain(ctx) }) // ends when ctx ends
					})
				}
				time.Sleep(test.outage + test.within)
				d.feeds.mu.Lock()
				if f := d.feeds.byRange[viewKeys]; f == nil || !f.active {
					t.Errorf("after %v the feed is not active, and watches were requested %d times", test.within, server.calls.Load())
				}
				d.feeds.mu.Unlock()
				cancel()
				d.life.End()
				d.life.Wait()
			})
		})
	}
}

// waitInVain waits as hold.wait does behind a key that stays.
func (fs *feeds) waitInVain(ctx context.Context) {
	v := view{revision: 10, before: []string{"a/1"}, all: true}
	w := fs.join(viewOwn, fs.now())
	defer w.leave()
	w.endLook(v, []keyRange{viewKeys})
	for {
		select {
		case <-w.wake:
			w.beginLook()
		case <-time.After(firstLook):
			w.beginLook()
			w.doubt(false)
		case <-ctx.Done():
			return
		}
		w.endLook(v, []keyRange{viewKeys})
	}
}
