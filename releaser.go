package dsync

import (
	"context"
	"sync"

	"github.com/go-dsync/dsync/driver"
)

// maxReleases bounds how many holds are given back in the background at a time.
const maxReleases = 16

// releaser gives back holds without a caller that waits: lost on the local clock, granted too late, or ended by themselves.
type releaser struct {
	life context.Context // of the watchdog
	info driver.Info
	wg   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	holds   []*hold
	workers int
}

// add is called with the lock.mu of h held. The hold has its lease, and is in the state holdReleased, or live with an heir.
func (r *releaser) add(h *hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return // the driver's Close ends the hold
	}
	r.holds = append(r.holds, h)
	if r.workers < maxReleases {
		r.workers++
		r.wg.Go(r.work)
	}
}

// work ends when nothing is left to release, or with life.
func (r *releaser) work() {
	for {
		r.mu.Lock()
		if len(r.holds) == 0 || r.closed {
			r.workers--
			r.mu.Unlock()
			return
		}
		h := r.holds[0]
		r.holds[0], r.holds = nil, r.holds[1:]
		r.mu.Unlock()
		if h.gone(r.info) {
			h.released(nil)
		} else {
			_ = h.release(r.life, maxReleaseWait) // on an error the driver cleans up
		}
	}
}

// close waits for the releases under way.
func (r *releaser) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}

// gone reports whether no request for the hold can have left anything on the backend: the last renewal was sent before the hold expired,
// and cannot have lasted longer than another TTL. Where a session carries the hold only the driver knows, since the driver keeps the
// session alive: the server may have slept together with this machine.
func (h *hold) gone(info driver.Info) bool {
	if info.KeepsAlive {
		return false
	}
	now := h.lock.client.now()
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	return now > h.expires()+h.ttl+info.LateFor(h.ttl)
}
