package dsync

import (
	"context"
	"errors"
	"time"
)

// answers is what the backend said of a name last. When the context of a call ends, the error of the call is made from this record, even if the
// last answer came to another call of the client, and whatever became of a request that the context cut off. Guarded by lock.mu.
type answers struct {
	refused bool   // by the last answer another owner holds the name
	at      moment // the last time at which the answer was so
	waiting int    // refused requests which wait at the backend
	trouble error  // why later requests got no answer; nil if there was none
}

// refuse takes note of another owner that holds the name.
func (a *answers) refuse(now moment) { a.refused, a.at, a.trouble = true, now, nil }

// ours takes note of a grant to this client.
func (a *answers) ours() { a.refused, a.trouble = false, nil }

// queued takes note of a refusal of the request of h, which waits at the backend from now on.
func (a *answers) queued(h *hold, now moment) {
	a.refuse(now)
	if h.state == holdPending && !h.waits {
		h.waits = true
		a.waiting++
	}
}

// returned takes note of the end of the request of h. An error by the caller's own context is no trouble.
func (a *answers) returned(h *hold, now moment, err error, canceled bool) {
	if h.waits {
		h.waits = false
		a.waiting--
		a.at = now
	}
	switch {
	case errors.Is(err, ErrLocked):
		a.refuse(now)
	case !canceled && transient(err):
		a.trouble = err
	}
}

// locked reports whether another owner has the name as far as known. A refusal without confirmation for a TTL says nothing: the holder may
// be gone.
func (a *answers) locked(now moment, ttl time.Duration) bool {
	return a.waiting > 0 || a.refused && now-a.at < ttl
}

// waitError returns the error of a wait that ended with ctx; answer is that of the caller's last request, if it made one. It is called
// with mu held.
func (k *lock) waitError(ctx context.Context, answer error) error {
	ours := k.alone() && (k.live() != nil || k.releasing != nil) // and so in the way of the call
	locked := ours || k.answers.locked(k.client.clock.plain(), k.client.ttl)
	return newWaitError(ctx, answer, k.answers.trouble, locked)
}
