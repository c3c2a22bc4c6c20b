package dsync

import (
	"context"
	"errors"
	"time"
)

// answers is what the backend said of a name last: that is what a wait has to tell when its context ends, whichever call of the client
// has asked, and whatever became of a request that the context cut off. It is guarded by lock.mu.
type answers struct {
	refused bool   // the last answer was that another owner holds the name
	at      moment // when that was so at last
	waiting int    // requests that were refused, and wait at the backend
	trouble error  // why later requests got no answer; nil if there was none
}

// refuse takes note that another owner holds the name.
func (a *answers) refuse(now moment) { a.refused, a.at, a.trouble = true, now, nil }

// grant takes note that the client was granted the name.
func (a *answers) grant() { a.refused, a.trouble = false, nil }

// wait takes note that the request of h was refused, and waits at the backend.
func (a *answers) wait(h *hold, now moment) {
	a.refuse(now)
	if h.state == holdPending && !h.waits {
		h.waits = true
		a.waiting++
	}
}

// returned takes note that the request of h has ended. An error that came of the caller's own context is no trouble.
func (a *answers) returned(h *hold, now moment, err error, canceled bool) {
	if h.waits {
		h.waits = false
		a.waiting--
		a.at = now
	}
	switch {
	case errors.Is(err, ErrLocked):
		a.refuse(now)
	case !canceled && (errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown)):
		a.trouble = err
	}
}

// locked reports whether another owner has the name as far as is known. A refusal that nothing has confirmed for a TTL says nothing of
// a holder that may be gone.
func (a *answers) locked(now moment, ttl time.Duration) bool {
	return a.waiting > 0 || a.refused && now-a.at < ttl
}

// waitError returns the error of a wait that ended with ctx; answer is that of the caller's last request, if it made one.
func (k *lock) waitError(ctx context.Context, answer error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waitErrorNow(ctx, answer)
}

// waitErrorNow is waitError with mu held.
func (k *lock) waitErrorNow(ctx context.Context, answer error) error {
	locked := k.live() != nil || k.releasing != nil || k.answers.locked(k.client.clock.plain(), k.client.ttl)
	return newWaitError(ctx, answer, k.answers.trouble, locked)
}
