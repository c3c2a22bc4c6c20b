package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// Workers of several drivers lock, renew, release, forget and cancel at random,
// in all modes, during faults and removals by an administrator. No two leases
// of a name that exclude each other may be valid at the same time, and tokens
// must rise.
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

// ledger is the workers' knowledge of one name.
type ledger struct {
	mu     sync.Mutex
	grants []*grant // grants that were valid at the last check
	token  uint64   // the last token
	writer uint64   // the last token that was not given to a reader
	shared int      // grants that overlapped with another grant
}

// grant is a grant to a worker.
type grant struct {
	driver.Lease
	mode     driver.Mode
	released atomic.Bool
	removals int64 // the number of removals before the request
}

type stressed struct {
	t        *testing.T
	drivers  []*memory.Driver
	ledgers  []ledger
	removals atomic.Int64 // begun or completed by the administrator
	grants   atomic.Int64
	session  bool
	exact    bool // Acquires are not delayed, so a lease counts from its grant, and not from before
}

// stress runs until there have been enough grants.
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
	if s.ledgers[0].shared+s.ledgers[1].shared == 0 {
		s.t.Error("no two readers ever shared a name")
	}
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
	if a.Mode = []driver.Mode{driver.Exclusive, driver.Read, driver.Read, driver.Write}[rand.IntN(4)]; a.Mode == driver.Read {
		a.want = 1
	}
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
		time.Sleep(time.Duration(rand.Int64N(int64(stressTTL)))) // a refusal takes no time, so without a sleep fake time would stand still
		return
	}
	s.grants.Add(1)
	g := &grant{Lease: l, mode: a.Mode, removals: removals}
	if !s.ledgers[i].enter(s, g) {
		return
	}
	if rand.IntN(2) == 0 {
		time.Sleep(time.Duration(rand.Int64N(int64(stressTTL))))
		l.Renew(ctx, stressTTL)
	}
	if s.session && !a.Fixed || rand.IntN(4) > 0 { // a session would keep it forever
		g.released.Store(true)
		l.Release(context.WithoutCancel(ctx))
	}
}

// enter records a grant and checks it against earlier grants. It returns false
// if the lease has already expired.
func (l *ledger) enter(s *stressed, g *grant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	expires := g.Expires()
	if !now.Before(expires) {
		return false
	}
	granted := now
	if s.exact {
		granted = expires.Add(-stressTTL)
	}
	l.grants = slices.DeleteFunc(l.grants, func(o *grant) bool { return o.released.Load() || !granted.Before(o.Expires()) })
	for _, o := range l.grants {
		if g.mode.Excludes(o.mode) && o.removals == s.removals.Load() && !o.released.Load() {
			s.t.Errorf("%v granted %v before the end of a lease in mode %v", g.mode, o.Expires().Sub(granted), o.mode)
		}
	}
	if len(l.grants) > 0 {
		l.shared++
	}
	above := l.token
	if g.mode == driver.Read {
		above = l.writer
	}
	first, n := g.Tokens()
	if first <= above && g.removals == s.removals.Load() {
		s.t.Errorf("token %d in mode %v follows %d", first, g.mode, above)
	}
	l.token = max(l.token, first+uint64(n)-1)
	if g.mode != driver.Read {
		l.writer = l.token
	}
	l.grants = append(l.grants, g)
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
