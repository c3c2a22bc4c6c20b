package dsync_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// setLatch sets a latch that does not exist.
func setLatch(t *testing.T, l *dsync.Latch, n int) {
	t.Helper()
	if set, err := l.Set(t.Context(), n); err != nil || !set {
		t.Fatalf("Set(%d): got %v, %v, want true", n, set, err)
	}
}

func countDown(t *testing.T, l *dsync.Latch) {
	t.Helper()
	if err := l.CountDown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func wantCount(t *testing.T, l *dsync.Latch, want int) {
	t.Helper()
	if got, err := l.Count(t.Context()); err != nil || got != want {
		t.Errorf("Count: got %d, %v, want %d", got, err, want)
	}
}

// passing begins n Waits and counts those that have returned nil. Any other
// result fails the test.
func passing(t *testing.T, l *dsync.Latch, n int) *atomic.Int64 {
	var passed atomic.Int64
	for range n {
		go func() { // ends when Wait returns
			if err := l.Wait(t.Context()); err != nil {
				t.Errorf("Wait: %v", err)
			} else {
				passed.Add(1)
			}
		}()
	}
	synctest.Wait()
	return &passed
}

func wantPassed(t *testing.T, what string, passed *atomic.Int64, want int64) {
	t.Helper()
	synctest.Wait()
	if got := passed.Load(); got != want {
		t.Fatalf("%s: %d waits have returned, want %d", what, got, want)
	}
}

func TestLatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		a, b := newClient(t, s.NewDriver(), nil).Latch("x"), newClient(t, s.NewDriver(), nil).Latch("x")
		wantPassed(t, "no latch", passing(t, a, 1), 1)
		setLatch(t, a, 3)
		if set, err := b.Set(t.Context(), 5); set || err != nil {
			t.Errorf("Set of a latch that is set: got %v, %v, want false", set, err)
		}
		wantCount(t, b, 3)
		here, there := passing(t, a, 2), passing(t, b, 2)
		countDown(t, a)
		countDown(t, b)
		time.Sleep(time.Hour)
		wantPassed(t, "count 1", here, 0)
		countDown(t, b)
		wantPassed(t, "count 0", here, 2)
		wantPassed(t, "count 0, elsewhere", there, 2)
		wantCount(t, a, 0)
		countDown(t, a)
		wantCount(t, a, 0)

		setLatch(t, b, 1)
		here = passing(t, a, 1)
		if err := b.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantPassed(t, "deleted", here, 1)
	})
}

// TestLatchAnswersLost loses the responses to changes. The changes are
// repeated, but carried out only once.
func TestLatchAnswersLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		d := s.NewDriver()
		l, other := newClient(t, d, nil).Latch("x"), newClient(t, s.NewDriver(), nil).Latch("x")
		lose := func() { d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Latches, Times: 3}) }
		lose()
		setLatch(t, l, 5)
		lose()
		countDown(t, l)
		wantCount(t, other, 4)

		lose()
		done := make(chan error)
		go func() { done <- l.Delete(t.Context()) }()
		synctest.Wait()
		setLatch(t, other, 7) // the first Delete was carried out
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wantCount(t, other, 7)
	})
}

// TestLatchChangeUnanswered leaves requests unanswered until the caller or
// package dsync gives up.
func TestLatchChangeUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		c := newClient(t, d, nil)
		l := c.Latch("x")
		setLatch(t, l, 5)
		d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Latches})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.CountDown(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("answers lost until ctx is done: got %v, want DeadlineExceeded and ErrUnknown", err)
		}
		start := time.Now()
		if err := l.CountDown(t.Context()); !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("answers lost forever: got %v, want ErrUnknown", err)
		}
		if took := time.Since(start); took > driver.RepeatFor+time.Second || took < driver.RepeatFor-time.Second {
			t.Errorf("answers lost forever: repeated for %v, want %v", took, driver.RepeatFor)
		}
		d.Heal()
		wantCount(t, l, 3)

		d.Inject(memory.Fault{Kind: memory.Hang})
		canceled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		if err := l.CountDown(canceled); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("no answer until ctx is canceled: got %v, want Canceled and ErrUnknown", err)
		}

		d.Cut()
		if err := l.CountDown(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("ctx was done before: got %v, want DeadlineExceeded and not ErrUnknown", err)
		}
		brief, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.CountDown(brief); !errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("out of reach: got %v, want ErrUnavailable and not ErrUnknown", err)
		}
		time.AfterFunc(time.Hour, d.Heal)
		countDown(t, l) // nothing was sent for longer than RepeatFor
		wantCount(t, l, 2)

		d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Latches})
		time.AfterFunc(time.Minute, func() { c.Close(context.Background()) })
		if err := l.CountDown(t.Context()); !errors.Is(err, dsync.ErrUnknown) || !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("Close while answers are lost: got %v, want ErrUnknown and ErrClosed", err)
		}
	})
}

func TestLatchWaitSurvivesOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		d := s.NewDriver()
		l, other := newClient(t, d, nil).Latch("x"), newClient(t, s.NewDriver(), nil).Latch("x")
		for what, fault := range map[string]memory.FaultKind{"cut off": memory.CutOff, "hangs": memory.Hang} {
			setLatch(t, other, 1)
			passed := passing(t, l, 3)
			d.Inject(memory.Fault{Kind: fault})
			time.Sleep(time.Hour)
			countDown(t, other)
			time.Sleep(time.Minute)
			wantPassed(t, what, passed, 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dsync.ErrUnavailable) || errors.Is(err, dsync.ErrUnknown) {
				t.Errorf("%s: got %v, want DeadlineExceeded and ErrUnavailable", what, err)
			}
			cancel()
			d.Heal()
			time.Sleep(time.Second)
			wantPassed(t, "after it "+what, passed, 3)
		}
	})
}

// untold is a driver of latches that reports no changes.
type untold struct {
	*memory.Driver
	asked  atomic.Int64
	before func() // if not nil, called with each answered query, before the caller gets the answer
}

func (u *untold) WatchLatch(string, func()) (func(), error) { return nil, errors.ErrUnsupported }

func (u *untold) Latch(ctx context.Context, name string) (int, error) {
	u.asked.Add(1)
	left, err := u.Driver.Latch(ctx, name)
	if u.before != nil {
		u.before()
	}
	return left, err
}

func TestLatchWaitsAskTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &untold{Driver: memory.New(nil)}
		c := newClient(t, d, nil)
		l := c.Latch("x")
		setLatch(t, l, 1)
		passed := passing(t, l, 1000)
		d.asked.Store(0)
		time.Sleep(10*c.TTL() - 1)
		if n := d.asked.Load(); n > 30 {
			t.Errorf("1,000 waits caused %d queries in 10 TTLs, want 30", n)
		}
		countDown(t, l)
		time.Sleep(c.TTL() / 3)
		wantPassed(t, "nobody tells", passed, 1000)
		d.asked.Store(0)
		time.Sleep(time.Hour)
		if n := d.asked.Load(); n > 0 {
			t.Errorf("%d queries when no caller is waiting", n)
		}
	})
}

// TestLatchWaitHeedsNoEarlierAnswer begins a Wait while a query that was sent
// before the latch was set is pending.
func TestLatchWaitHeedsNoEarlierAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &untold{Driver: memory.New(nil)}
		l := newClient(t, d, nil).Latch("x")
		var once sync.Once
		var late *atomic.Int64
		d.before = func() {
			once.Do(func() {
				setLatch(t, l, 1)
				late = new(atomic.Int64)
				go func() {
					if l.Wait(t.Context()) == nil {
						late.Add(1)
					}
				}()
				time.Sleep(time.Second) // until that waits
			})
		}
		wantPassed(t, "before there was a latch", passing(t, l, 1), 0)
		time.Sleep(time.Minute)
		wantPassed(t, "the count is 1", late, 0)
		countDown(t, l)
		time.Sleep(time.Minute)
		wantPassed(t, "the count is 0", late, 1)
	})
}

func TestLatchWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		c := newClient(t, d, nil)
		l := c.Latch("x")
		setLatch(t, l, 1)
		cause := errors.New("the user is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 2)
		go func() { done <- l.Wait(ctx) }()
		go func() { done <- l.Wait(t.Context()) }()
		synctest.Wait()
		cancel(cause)
		if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
			t.Errorf("canceled: got %v, want Canceled and the cause", err)
		}
		if err := l.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled before: got %v, want Canceled", err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("Close: got %v, want ErrClosed", err)
		}
		for what, err := range map[string]error{"Wait": l.Wait(t.Context()), "CountDown": l.CountDown(t.Context())} {
			if !errors.Is(err, dsync.ErrClosed) || errors.Is(err, dsync.ErrUnknown) {
				t.Errorf("%s after Close: got %v, want ErrClosed and not ErrUnknown", what, err)
			}
		}
	})
}

// TestLatchEndsWithContext lets the count reach 0 at the moment when the
// context of a Wait ends. Either outcome is right, and the next Wait works.
func TestLatchEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		l, other := newClient(t, s.NewDriver(), nil).Latch("x"), newClient(t, s.NewDriver(), nil).Latch("x")
		for range 100 {
			setLatch(t, l, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			time.AfterFunc(time.Second, func() { countDown(t, other) })
			if err := l.Wait(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestLatchRefusals(t *testing.T) {
	c := newClient(t, memory.New(nil), nil)
	if set, err := c.Latch("x").Set(t.Context(), 0); set || err == nil {
		t.Errorf("Set(0): got %v, %v, want an error", set, err)
	}
	if err := c.Latch("").CountDown(t.Context()); err == nil {
		t.Error("CountDown of the empty name: got no error")
	}
	if got, want := c.Latch("x").Name(), "x"; got != want {
		t.Errorf("Name: got %q, want %q", got, want)
	}
	none := newClient(t, struct{ driver.Driver }{memory.New(nil)}, nil).Latch("x")
	for what, err := range map[string]error{
		"CountDown": none.CountDown(t.Context()), "Wait": none.Wait(t.Context()), "Delete": none.Delete(t.Context()),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s without latches: got %v, want errors.ErrUnsupported", what, err)
		}
	}
}
