package migrate

import (
	"context"
	"sync"
	"time"
)

// until is a context that also ends at a time. It sets its timer only when somebody waits for it: an answer that is known without a request
// needs no timer, and a timer for each lock costs more than all else that a driver made of two adds.
type until struct {
	context.Context
	at time.Time

	mu    sync.Mutex
	timed context.Context // nil until Done is called
	stop  context.CancelFunc
}

// Deadline implements context.Context.
func (u *until) Deadline() (time.Time, bool) {
	if t, ok := u.Context.Deadline(); ok {
		return earlier(t, u.at), true
	}
	return u.at, true
}

// Done implements context.Context.
func (u *until) Done() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timed == nil {
		u.timed, u.stop = context.WithDeadline(u.Context, u.at)
	}
	return u.timed.Done()
}

// Err implements context.Context.
func (u *until) Err() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timed == nil {
		if err := u.Context.Err(); err != nil || time.Now().Before(u.at) {
			return err
		}
		u.timed, u.stop = context.WithDeadline(u.Context, u.at)
	}
	return u.timed.Err()
}

// stopTimer gives the timer back.
func (u *until) stopTimer() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timed != nil {
		u.stop()
	}
}
