package dsync

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// canPass reports whether the hold can go to another caller by a request, where it has no token left for it.
func (h *hold) canPass() bool {
	_, ok := h.lease.(driver.Passer)
	return ok
}

// passesTo returns to whom the release of the hold is to give it, or nil. It costs holds of other drivers nothing.
func (h *hold) passesTo() *waiter {
	if !h.canPass() {
		return nil
	}
	h.lock.mu.Lock()
	defer h.lock.mu.Unlock()
	if h.state != holdLive {
		return nil
	}
	return h.heir
}

// pass asks the backend to give the hold to its heir, and waits at most that long. It reports whether that settled the matter: otherwise
// the hold is to be released. Meanwhile it is live and has no owner, so all calls for the name wait in line, or are refused.
func (h *hold) pass(ctx context.Context, wait time.Duration, heir *waiter) (settled bool, err error) {
	k := h.lock
	owner := k.client.newHoldID()
	if o := heir.request.owner; o != nil {
		owner = o.id
	}
	bounded := &releaseContext{parent: ctx, limit: k.client.limitIn(wait)}
	err = h.lease.(driver.Passer).Pass(bounded, owner, heir.request.call.Note(k.client.note))
	bounded.limit.drop()
	k.client.reach.released(h, wait, err)

	k.mu.Lock()
	defer k.mu.Unlock()
	h.heir = nil
	now := k.client.now()
	switch {
	case h.state != holdLive: // it was lost meanwhile, or the client is closed
		return true, err
	case errors.Is(err, ErrNotHeld):
		h.end(holdOver)
		k.callNext()
		return true, err
	case err == nil && heir.queued && !heir.ended() && now < h.deadline():
		first, n := driver.Tokens(h.lease, k.client.floor)
		h.token, h.tokens = first, int8(min(n-1, maxHandOvers))
		k.serveFirst(h).owner = owner
		return true, nil
	}
	h.retreat()
	return false, nil
}
