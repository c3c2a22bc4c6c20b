package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// oneLock is a lock of this process: whoever puts something in has it.
type oneLock chan struct{}

func (l oneLock) Lock(ctx context.Context, _ string) (Held, error) {
	select {
	case l <- struct{}{}:
		return l, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l oneLock) Release(context.Context) error {
	<-l
	return nil
}

func (oneLock) Close() error { return nil }

// TestRivalsCountFromTheBeginning has rivals wait for a lock before the time that counts, and take the lock before it, in it and after it.
func TestRivalsCountFromTheBeginning(t *testing.T) {
	l, g := make(oneLock, 1), tempGuard(t)
	granted := func(what string) {
		t.Helper()
		before := g.grants.Load()
		testenv.Eventually(t, func() bool { return g.grants.Load() >= before+10 }, what)
	}
	all := contend(slices.Repeat([]Locker{l}, 4), bout{Name: "x", Hold: time.Millisecond}, g)
	granted("rivals take the lock before the time that counts")
	l <- struct{}{} // while all rivals wait
	if err := pause(t.Context(), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	before, begun := g.grants.Load(), time.Now()
	all.begin()
	<-l
	granted("rivals take the lock in the time that counts")
	c := all.end()
	if c.err != nil {
		t.Fatal(c.err)
	}
	var counted int64
	for _, n := range c.Counts {
		counted += n
	}
	if most := g.grants.Load() - before; counted == 0 || counted > most {
		t.Errorf("got %d grants that count, want 1 to %d", counted, most)
	}
	if most := time.Since(begun); c.MaxWait > most {
		t.Errorf("got a longest wait of %v, want at most the %v since the beginning", c.MaxWait, most)
	}
}

// calledLock tells of its only call.
type calledLock struct {
	oneLock
	called chan struct{}
}

func (l calledLock) Lock(ctx context.Context, name string) (Held, error) {
	close(l.called)
	return l.oneLock.Lock(ctx, name)
}

func TestWaitsOfThoseWhoGetNothingCount(t *testing.T) {
	l := calledLock{make(oneLock, 1), make(chan struct{})}
	l.oneLock <- struct{}{}
	all := contend([]Locker{l}, bout{Name: "x"}, tempGuard(t))
	<-l.called
	all.begin()
	c := all.end() // cancels the wait
	if c.err != nil || c.Counts[0] != 0 || c.MaxWait == 0 {
		t.Errorf("got %d grants and a longest wait of %v (%v), want none, and a wait", c.Counts[0], c.MaxWait, c.err)
	}
}
