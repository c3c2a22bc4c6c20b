// Package lifecycle ends drivers in order: Close waits for the running calls,
// then for their cleanups, and the goroutines end last.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Lifecycle counts the calls and the goroutines of a driver. The driver ends in
// four steps: Close, AwaitCalls, End, which ends cleanups, and Wait, which
// waits for the goroutines.
type Lifecycle struct {
	open   context.Context
	close  context.CancelFunc
	life   context.Context
	end    context.CancelFunc
	groups sync.WaitGroup

	mu     sync.Mutex
	closed bool
	ended  bool
	calls  int
	idle   chan struct{} // closed when the last call ends, once AwaitCalls waits
}

// New returns the lifecycle of a driver that is being opened.
func New() *Lifecycle {
	l := &Lifecycle{}
	l.open, l.close = context.WithCancel(context.Background())
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// Open returns a context that ends when Close is called. Waiting calls end when
// the context of Open ends.
func (l *Lifecycle) Open() context.Context { return l.open }

// Context returns a context that ends when End is called. The cleanups after
// calls end when this context ends.
func (l *Lifecycle) Context() context.Context { return l.life }

// Enter counts a call until Leave is called. It fails with driver.ErrClosed
// after Close was called.
func (l *Lifecycle) Enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return driver.ErrClosed
	}
	l.calls++
	return nil
}

// EnterLate is like Enter for a call that releases something, and never fails.
// AwaitCalls does not wait for a call that begins after it has returned.
func (l *Lifecycle) EnterLate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
}

// Leave ends a call that Enter or EnterLate began.
func (l *Lifecycle) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls--; l.calls == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// Go runs f in a goroutine that Wait waits for. After End, Go returns false and
// does not run f.
func (l *Lifecycle) Go(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.groups.Go(f)
	return true
}

// Sleep waits and reports whether neither ctx nor the context of Context ended
// in the meantime.
func (l *Lifecycle) Sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-l.life.Done():
	}
	return false
}

// The pauses between the attempts of Repeat.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Repeat calls try with growing pauses, as long as try returns again and
// neither ctx nor the context of Context has ended. It returns the last error.
func (l *Lifecycle) Repeat(ctx context.Context, try func() (again bool, err error)) error {
	again, err := try()
	for pause := firstPause; again && l.Sleep(ctx, pause); pause = min(2*pause, lastPause) {
		again, err = try()
	}
	return err
}

// Transient reports whether a request may succeed when it is repeated.
func Transient(err error) bool {
	return errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable)
}

// WithCause returns an error of the given kind. If ctx has ended, the error
// includes the error of ctx.
func WithCause(ctx context.Context, kind, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: %w (%w)", kind, err, ended)
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// Close makes Enter fail from now on and ends the context of Open. A second
// Close returns driver.ErrClosed.
func (l *Lifecycle) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return driver.ErrClosed
	}
	l.closed = true
	l.close()
	return nil
}

// AwaitCalls waits for all calls and returns the number of calls that had not
// ended when ctx ended. It is called once, after Close.
func (l *Lifecycle) AwaitCalls(ctx context.Context) int {
	l.mu.Lock()
	if l.calls == 0 {
		l.mu.Unlock()
		return 0
	}
	idle := make(chan struct{})
	l.idle = idle
	l.mu.Unlock()
	select {
	case <-idle:
		return 0
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// End makes Go fail from now on and ends the context of Context.
func (l *Lifecycle) End() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.end()
}

// Wait waits for all goroutines. It is called after End.
func (l *Lifecycle) Wait() { l.groups.Wait() }

// Finish waits for all goroutines and calls rest, or returns when ctx ends and
// leaves both to a goroutine. It is called after End.
func (l *Lifecycle) Finish(ctx context.Context, rest func()) {
	finished := make(chan struct{})
	go func() { // ends when the goroutines end
		l.Wait()
		rest()
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
	}
}
