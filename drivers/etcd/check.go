package etcd

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

const (
	checkEvery = time.Second
	checkBatch = 100             // holds with a lease of their own in one request; servers take 128 operations by default
	detect     = 3 * time.Second // a hold is first looked at within twice checkEvery of its grant, and then every time
)

// checker finds out whether holds were removed by somebody else, with one request for all holds of a session, whatever their number.
// A watch on each hold would tell sooner, and cost ten times the memory of the lock. A lock that is held for a moment is never asked for.
type checker struct {
	driver  *Driver
	running atomic.Bool
}

// start is called after a hold was listed.
func (c *checker) start() {
	if c.running.CompareAndSwap(false, true) && !c.driver.life.Go(c.run) {
		c.running.Store(false)
	}
}

// run ends when there are no holds, or with the driver.
func (c *checker) run() {
	d := c.driver
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-d.life.Context().Done():
			return
		}
		sessions, fixed, any := d.held(d.now() - int64(checkEvery))
		if !any {
			c.running.Store(false)
			if _, _, any = d.held(0); !any || !c.running.CompareAndSwap(false, true) {
				return
			}
		}
		for s, holds := range sessions {
			d.checkSession(s, holds)
		}
		for len(fixed) > 0 {
			n := min(len(fixed), checkBatch)
			d.checkFixed(fixed[:n])
			fixed = fixed[n:]
		}
	}
}

// held returns the holds that were granted before a time, and whether there are any at all.
func (d *Driver) held(before int64) (sessions map[*session][]*hold, fixed []*hold, any bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sessions = make(map[*session][]*hold)
	look := func(s *session) {
		s.mu.Lock()
		defer s.mu.Unlock()
		any = any || !s.holds.Empty()
		if holds := s.holds.before(before); len(holds) > 0 {
			sessions[s] = holds
		}
	}
	for _, s := range d.sessions {
		look(s)
	}
	for s := range d.retired {
		look(s)
	}
	return sessions, d.fixed.before(before), any || !d.fixed.Empty()
}

// checkSession looks whether the keys of holds still hang on the lease of their session.
func (d *Driver) checkSession(s *session, holds []*hold) {
	ctx, cancel := d.background(requestFor)
	defer cancel()
	answer, err := d.timeToLive(ctx, s.id, clientv3.WithAttachedKeys())
	if isLeaseGone(err) || err == nil && answer.TTL < 0 {
		s.die(driver.ErrSessionEnded)
		return
	}
	if err != nil {
		return // the session ends if this goes on
	}
	of := make(map[string]int, len(holds)) // a key's place in holds: to look for the keys of the answer takes no copies of them
	for i, h := range holds {
		of[h.key] = i
	}
	there := make([]bool, len(holds))
	for _, key := range answer.Keys {
		if i, ok := of[string(key)]; ok {
			there[i] = true
		}
	}
	for i, h := range holds {
		if !there[i] {
			d.verify(ctx, h)
		}
	}
}

// checkFixed looks whether the keys of holds are there.
func (d *Driver) checkFixed(holds []*hold) {
	ctx, cancel := d.background(requestFor)
	defer cancel()
	gets := make([]clientv3.Op, len(holds))
	for i, h := range holds {
		gets[i] = clientv3.OpGet(h.key, clientv3.WithSerializable())
	}
	answer, err := d.transact(ctx, nil, gets, nil)
	if err != nil {
		return // the next look tells, or the end of the leases
	}
	for i, h := range holds {
		if kvs := answer.Responses[i].GetResponseRange().Kvs; len(kvs) == 0 || !h.isOf(kvs[0]) {
			d.verify(ctx, h)
		}
	}
}

// removalPause bounds how often WatchRemoval looks for a key.
const removalPause = 100 * time.Millisecond

// WatchRemoval implements driver.RemovalWatcher. Any change of the contenders may
// be the removal, so the driver looks for the key after each change.
func (h *hold) WatchRemoval(func()) (stop func()) {
	d := h.driver
	ctx, stop := context.WithCancel(d.life.Context())
	changed := make(chan struct{}, 1)
	unwatch, err := d.Watch(h.request.Name, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return stop
	}
	look := func() { // ends with stop, or with the driver
		defer unwatch()
		for {
			select {
			case <-changed:
				bounded, cancel := withBound(ctx, requestFor)
				d.verify(bounded, h)
				cancel()
				d.life.Sleep(ctx, removalPause)
			case <-ctx.Done():
				return
			}
		}
	}
	if !d.life.Go(look) {
		unwatch()
	}
	return stop
}

// verify looks for the key of h in a way that no server which lags behind can answer, and ends the hold if the key is gone.
func (d *Driver) verify(ctx context.Context, h *hold) {
	h.mu.Lock()
	phase := h.phase
	h.mu.Unlock()
	if phase != held {
		return
	}
	answer, err := d.get(ctx, h.key) // servers leave the lease out of answers with keys alone
	if err != nil || len(answer.Kvs) > 0 && h.isOf(answer.Kvs[0]) {
		return
	}
	h.mu.Lock()
	sealing := h.sealing
	h.mu.Unlock()
	if len(answer.Kvs) == 0 || !sealing || !h.isSeal(answer.Kvs) {
		h.vanish()
	}
}

// vanish ends a hold that somebody removed or overwrote.
func (h *hold) vanish() {
	h.unlist()
	h.mu.Lock()
	sealing := h.sealing
	h.mu.Unlock()
	if !sealing {
		h.sweep()
	}
	h.lose(driver.ErrRemoved)
}

// sweep has the key deleted in the background. A key that somebody overwrote
// hangs on no lease, so it would stay for ever.
func (h *hold) sweep() {
	h.driver.ghosts.Add(&ghost{key: h.key, carrier: new(carrier), definite: true})
}

// isOf reports whether kv is the key of h as this driver put it. A key that
// somebody put by hand has another create revision, or no lease.
func (h *hold) isOf(kv *mvccpb.KeyValue) bool {
	return kv.CreateRevision == h.revision && kv.Lease != int64(clientv3.NoLease)
}
