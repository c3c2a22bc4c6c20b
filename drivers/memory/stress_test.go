package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// Workers of several drivers lock, renew, release, forget and cancel at random, while faults and an administrator are about. No two
// leases of a name may be valid at once, and tokens rise.
func TestExclusionUnderFaults(t *testing.T) {
	for _, o := range []*memory.Options{
		{Order: memory.FIFO}, {Order: memory.FIFOByClient}, {Order: memory.Unordered}, {KeepsAlive: true},
	} {
		name := fmt.Sprintf("order %d, keeps alive %v", o.Order, o.KeepsAlive)
		t.Run(name, func(t *testing.T) { stress(t, o, 100, true) })
		t.Run(name+", fake time", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stress(t, o, 500, false)
				stress(t, o, 500, true)
			})
		})
	}
}

const stressTTL = 5 * time.Millisecond

// ledger is what the workers know of one name.
type ledger struct {
	mu       sync.Mutex
	last     driver.Lease
	released *atomic.Bool // of last
	removals int64        // that there had been before last was asked for
	token    uint64
}

type stressed struct {
	t        *testing.T
	drivers  []*memory.Driver
	ledgers  []ledger
	removals atomic.Int64 // begun or done by the administrator
	grants   atomic.Int64
	session  bool
	exact    bool // nothing holds Acquires up, so a lease counts from its grant, and not from before
}

// stress goes on until there were so many grants.
func stress(t *testing.T, o *memory.Options, grants int64, hangs bool) {
	s := &stressed{t: t, ledgers: make([]ledger, 2), session: o.KeepsAlive, exact: !o.KeepsAlive && !hangs}
	server := memory.NewServer(o)
	for range 3 {
		s.drivers = append(s.drivers, server.NewDriver())
	}
	var workers sync.WaitGroup
	for i := range 4 * len(s.drivers) {
		workers.Go(func() {
			for s.grants.Load() < grants {
				s.work(s.drivers[i%len(s.drivers)])
			}
		})
	}
	done := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() { s.disturb(done) })
	workers.Wait()
	close(done)
	chaos.Wait()
	for _, d := range s.drivers {
		d.Heal()
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if n := d.Sessions() + d.Behind(); n != 0 {
			t.Errorf("%d sessions and holds left", n)
		}
	}
	if n := server.Names(); n != 0 {
		t.Errorf("%d names left", n)
	}
}

func (s *stressed) work(d *memory.Driver) {
	i := rand.IntN(len(s.ledgers))
	a := newAttempt(fmt.Sprint(i))
	a.TTL, a.NoWait, a.Fixed, a.want = stressTTL, rand.IntN(4) == 0, rand.IntN(4) == 0, 1+rand.IntN(3)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(2*stressTTL))))
	defer cancel()
	removals := s.removals.Load()
	l, err := d.Acquire(ctx, &a.Request)
	if err != nil {
		known := false
		for _, e := range []error{driver.ErrLocked, driver.ErrUnknown, driver.ErrUnavailable, context.DeadlineExceeded} {
			known = known || errors.Is(err, e)
		}
		if !known || l != nil {
			s.t.Errorf("acquire: got lease %v and error %v", l, err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(stressTTL)))) // a refusal takes no time, and fake time would stand still
		return
	}
	s.grants.Add(1)
	var released atomic.Bool
	if !s.ledgers[i].enter(s, l, &released, removals) {
		return
	}
	if rand.IntN(2) == 0 {
		time.Sleep(time.Duration(rand.Int64N(int64(stressTTL))))
		l.Renew(ctx, stressTTL)
	}
	if s.session && !a.Fixed || rand.IntN(4) > 0 { // a session would keep it for ever
		released.Store(true)
		l.Release(context.WithoutCancel(ctx))
	}
}

// enter takes note of a grant and checks it against the one before. It returns false if the lease is past already.
func (g *ledger) enter(s *stressed, l driver.Lease, released *atomic.Bool, removals int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	expires := l.Expires()
	if !now.Before(expires) {
		return false
	}
	granted := now
	if s.exact {
		granted = expires.Add(-stressTTL)
	}
	if g.last != nil && !g.released.Load() && granted.Before(g.last.Expires()) && g.removals == s.removals.Load() {
		s.t.Errorf("granted %v before the end of the lease before", g.last.Expires().Sub(granted))
	}
	first, n := l.Tokens()
	if first <= g.token && removals == s.removals.Load() {
		s.t.Errorf("token %d follows %d", first, g.token)
	}
	g.last, g.released, g.removals, g.token = l, released, removals, first+uint64(n)-1
	return true
}

// disturb injects faults until done is closed.
func (s *stressed) disturb(done <-chan struct{}) {
	server := s.drivers[0].Server()
	admin := server.NewDriver()
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rand.Int64N(int64(stressTTL)))):
		}
		d := s.drivers[rand.IntN(len(s.drivers))]
		name := fmt.Sprint(rand.IntN(len(s.ledgers)))
		switch rand.IntN(10) {
		case 0:
			s.removals.Add(1)
			admin.ForceUnlock(context.Background(), name)
			s.removals.Add(1)
		case 1:
			s.removals.Add(1)
			server.Expire(name)
			s.removals.Add(1)
		case 2:
			s.removals.Add(1)
			d.EndSession()
			s.removals.Add(1)
		case 3, 4, 5, 6:
			d.Heal()
		default:
			f := memory.Fault{
				Kind:  []memory.FaultKind{memory.CutOff, memory.LoseAnswer, memory.Hang}[rand.IntN(3)],
				On:    memory.Requests(rand.IntN(16)),
				Times: rand.IntN(3),
			}
			if s.exact && f.Kind == memory.Hang {
				f.On = memory.Renewals | memory.Releases
			}
			d.Inject(f)
		}
	}
}
