package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// passer is a stub whose grants have one token each, and can be passed.
type passer struct {
	stub
	pass func(ctx context.Context, l *passedLease) error // nil: Pass succeeds

	passes []string // the owners, in order; guarded by stub.mu
}

type passedLease struct {
	*stubLease
	passer *passer
}

func newPasser() *passer {
	p := &passer{stub: stub{info: driver.Info{Fencing: driver.Durable, Order: driver.FIFOByClient, KeepsAlive: true}}}
	p.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
		l := p.grant(r, time.Now())
		l.n = 1
		return &passedLease{l, p}, nil
	}
	return p
}

// Pass implements driver.Passer.
func (l *passedLease) Pass(ctx context.Context, owner, _ string) error {
	p := l.passer
	if p.pass != nil {
		if err := p.pass(ctx, l); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passes = append(p.passes, owner)
	p.token++
	l.token = p.token
	return nil
}

// wants checks the number of requests of each kind.
func (p *passer) wants(t *testing.T, acquires, passes, releases int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.requests) != acquires || len(p.passes) != passes || len(p.released) != releases {
		t.Errorf("got %d grants, %d passes and %d releases, want %d, %d and %d",
			len(p.requests), len(p.passes), len(p.released), acquires, passes, releases)
	}
}

func TestPassWhereTheNextNeedsAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasser()
		c := newStub(t, &p.stub)
		first := mustLock(t, c, "x")
		last := first.Token()
		var order []int
		wg := queueUp(t, c, 50, func(i int, l *dsync.Lease) {
			order = append(order, i)
			p.mu.Lock()
			named := p.passes[len(p.passes)-1]
			p.mu.Unlock()
			if l.Token() <= last || l.Owner() != named {
				t.Errorf("holder %d: token %d of %s, after token %d; the backend reports that %s holds it", i, l.Token(), l.Owner(), last, named)
			}
			last = l.Token()
		})
		_ = first.Unlock(t.Context())
		wg.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("granted in the order %v, want the order of arrival", order)
			}
		}
		p.wants(t, 1, 50, 1)
	})
}

func TestPassIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name                       string
		hold                       time.Duration
		opts                       []dsync.LockOption
		waiters                    int
		acquires, passes, releases int
	}{
		{"by number", 0, nil, 129, 2, 128, 2},                 // 1 + 64 passed, then 65
		{"by time", 30 * time.Millisecond, nil, 12, 3, 10, 3}, // 4 more in 100 ms, then 4 more, then the rest
		{"not for fixed leases", 0, []dsync.LockOption{dsync.ExpireAfter(time.Second)}, 10, 11, 0, 11},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPasser()
				c := newStub(t, &p.stub)
				first := mustLock(t, c, "x")
				wg := queueUp(t, c, tt.waiters, func(int, *dsync.Lease) { time.Sleep(tt.hold) }, tt.opts...)
				_ = first.Unlock(t.Context())
				wg.Wait()
				p.wants(t, tt.acquires, tt.passes, tt.releases)
			})
		})
	}
}

// TestPassThatFails: if the owner of the hold is unknown, the hold is released,
// and the next in the queue asks the backend.
func TestPassThatFails(t *testing.T) {
	for _, tt := range []struct {
		err, unlock        error
		acquires, releases int
	}{
		{driver.ErrUnavailable, nil, 2, 2},
		{driver.ErrUnknown, nil, 2, 2},
		{driver.ErrNotHeld, dsync.ErrNotHeld, 2, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPasser()
			p.pass = func(context.Context, *passedLease) error { return tt.err }
			c := newStub(t, &p.stub)
			first := mustLock(t, c, "x")
			wg := queueUp(t, c, 1, func(int, *dsync.Lease) {})
			if err := first.Unlock(t.Context()); !errors.Is(err, tt.unlock) {
				t.Errorf("%v: Unlock: got %v, want %v", tt.err, err, tt.unlock)
			}
			wg.Wait()
			p.wants(t, tt.acquires, 0, tt.releases)
		})
	}
}

// TestPassUnderWay lets an event happen between the request and its response.
func TestPassUnderWay(t *testing.T) {
	for _, tt := range []struct {
		name               string
		happens            func(ctx context.Context, c *dsync.Client, l *passedLease, cancel func())
		granted            bool
		acquires, releases int
	}{
		{"nothing", func(context.Context, *dsync.Client, *passedLease, func()) {}, true, 1, 1},
		{"the next in line leaves", func(_ context.Context, _ *dsync.Client, _ *passedLease, cancel func()) { cancel() }, false, 1, 1},
		{"the hold is lost", func(_ context.Context, _ *dsync.Client, l *passedLease, _ func()) {
			l.request.Events.Lost(driver.ErrRemoved)
		},
			true, 2, 1},
		{"the hold ends by the clock", func(_ context.Context, _ *dsync.Client, l *passedLease, _ func()) {
			time.Sleep(time.Until(l.Expires()))
		}, true, 2, 2},
		{"others try", func(ctx context.Context, c *dsync.Client, _ *passedLease, _ func()) {
			if l, err := c.TryLock(ctx, "x"); !errors.Is(err, dsync.ErrLocked) {
				panic(fmt.Sprint(l, err))
			}
		}, true, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPasser()
				c := newStub(t, &p.stub)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p.pass = func(_ context.Context, l *passedLease) error {
					tt.happens(t.Context(), c, l, cancel)
					synctest.Wait()
					return nil
				}
				first := mustLock(t, c, "x")
				var wg sync.WaitGroup
				wg.Go(func() {
					l, err := c.Lock(ctx, "x")
					if (err == nil) != tt.granted {
						t.Errorf("Lock: %v", err)
					}
					if err == nil {
						_ = l.Unlock(t.Context())
					}
				})
				synctest.Wait()
				if err := first.Unlock(t.Context()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
				wg.Wait()
				synctest.Wait()
				p.wants(t, tt.acquires, 1, tt.releases)
				if l := mustLock(t, c, "x"); l.Token() <= first.Token() {
					t.Errorf("token %d after %d", l.Token(), first.Token())
				}
			})
		})
	}
}

// TestPassServesAllCallsOfAnOwner: the backend receives the owner whose calls
// are served together.
func TestPassServesAllCallsOfAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasser()
		c := newStub(t, &p.stub)
		first, o := mustLock(t, c, "x"), c.NewOwner()
		leases := make(chan *dsync.Lease, 3)
		for range 3 {
			go func() { leases <- mustLock(t, o, "x") }()
		}
		synctest.Wait()
		_ = first.Unlock(t.Context())
		for range 3 {
			l := <-leases
			if l.Owner() != o.ID() || l.Token() != 2 {
				t.Errorf("got token %d of %s, want 2 of %s", l.Token(), l.Owner(), o.ID())
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		p.wants(t, 1, 1, 1)
		if p.passes[0] != o.ID() {
			t.Errorf("the backend got the owner %s, want %s", p.passes[0], o.ID())
		}
	})
}

// TestLossOfAPassedHold: the holder at the time of the loss is notified.
func TestLossOfAPassedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasser()
		c := newStub(t, &p.stub)
		first := mustLock(t, c, "x")
		var wg sync.WaitGroup
		wg.Go(func() {
			l := mustLock(t, c, "x")
			p.requests[0].Events.Lost(driver.ErrRemoved)
			if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
				t.Errorf("Err: got %v, want %v", err, dsync.ErrLost)
			}
		})
		synctest.Wait()
		_ = first.Unlock(t.Context())
		wg.Wait()
		p.wants(t, 1, 1, 0)
		_ = mustLock(t, c, "x").Unlock(t.Context())
	})
}
