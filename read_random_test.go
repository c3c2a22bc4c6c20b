package dsync_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
)

// TestRandomReadsAndWrites is like TestRandomCalls, but in all modes and with
// nested calls. While a writer holds the name, no other owner holds it.
func TestRandomReadsAndWrites(t *testing.T) {
	for seed := range uint64(10) {
		forOrders(t, func(t *testing.T, a, b *dsync.Client) {
			m := &model{t: t, reads: map[*dsync.Lease]bool{}}
			var wg sync.WaitGroup
			for _, c := range []*dsync.Client{a, b} {
				owner := c.NewOwner()
				for i := range uint64(8) {
					l := dsync.Locker(c)
					if i%4 == 0 {
						l = owner
					}
					r := rand.New(rand.NewPCG(seed, i))
					wg.Go(func() { m.callAtRandom(r, l) })
				}
			}
			wg.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := dsync.KnownNames(a) + dsync.KnownNames(b); n > 0 {
				t.Errorf("the clients know %d names", n)
			}
			if m.together.Load() == 0 {
				t.Error("no client ever read together with another client")
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}

// model records the holders of the name x, by leases. One owner may have
// several leases at the same time.
type model struct {
	t        *testing.T
	together atomic.Int64 // readers of two clients

	mu     sync.Mutex
	reads  map[*dsync.Lease]bool
	last   uint64 // token
	writer uint64 // last token of a lease that was not for Read
}

func (m *model) enter(l *dsync.Lease, reads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, alsoReads := range m.reads {
		if other.Owner() != l.Owner() && !(reads && alsoReads) {
			m.t.Errorf("%s (reads: %v) holds the name together with %s (reads: %v)", l.Owner(), reads, other.Owner(), alsoReads)
		}
		if reads && alsoReads && other.Token() != l.Token() {
			m.together.Add(1)
		}
	}
	if reads && l.Token() < m.writer || !reads && l.Token() < m.last {
		m.t.Errorf("token %d (reads: %v) after %d, the last writer's token is %d", l.Token(), reads, m.last, m.writer)
	}
	if m.last = max(m.last, l.Token()); !reads {
		m.writer = m.last
	}
	m.reads[l] = reads
}

func (m *model) unlock(l *dsync.Lease) {
	m.mu.Lock()
	delete(m.reads, l)
	m.mu.Unlock()
	if err := l.Unlock(m.t.Context()); err != nil {
		m.t.Error(err)
	}
}

func (m *model) callAtRandom(r *rand.Rand, l dsync.Locker) {
	modes := []dsync.LockOption{dsync.Read(), dsync.Read(), dsync.Write(), {}}
	_, isOwner := l.(*dsync.Owner)
	pause := func() {
		d := time.Duration(r.IntN(3)) * time.Millisecond
		if r.IntN(20) == 0 {
			d = 120 * time.Millisecond // too old to be joined
		}
		time.Sleep(d)
	}
	for range 30 {
		mode := r.IntN(len(modes))
		reads := mode < 2
		wait, lock := time.Hour, l.Lock // an hour is forever
		opts := []dsync.LockOption{modes[mode]}
		switch r.IntN(6) {
		case 0, 1:
			wait = time.Duration(r.Int64N(int64(20 * time.Millisecond)))
		case 2:
			lock = l.TryLock
		case 3:
			opts = append(opts, dsync.ExpireAfter(time.Minute))
		}
		ctx, cancel := context.WithTimeout(m.t.Context(), wait)
		lease, err := lock(ctx, "x", opts...)
		cancel()
		switch {
		case err == nil:
			m.enter(lease, reads)
			if r.IntN(3) == 0 {
				m.nest(l, lease, modes[r.IntN(len(modes))], isOwner)
			}
			pause()
			m.unlock(lease)
		case wait < time.Hour && errors.Is(err, context.DeadlineExceeded):
		case errors.Is(err, dsync.ErrLocked) && !errors.Is(err, context.DeadlineExceeded): // TryLock
		case isOwner && !reads && errors.Is(err, dsync.ErrDeadlock):
		default:
			m.t.Error(err)
		}
		pause()
	}
}

// nest locks under a lease.
func (m *model) nest(l dsync.Locker, under *dsync.Lease, mode dsync.LockOption, isOwner bool) {
	ctx, cancel := under.Context(m.t.Context())
	defer cancel()
	reads := mode == dsync.Read()
	lease, err := l.Lock(ctx, "x", mode)
	if !reads && errors.Is(err, dsync.ErrDeadlock) {
		return
	}
	if err != nil || !reads && !isOwner {
		m.t.Errorf("nested: lease %v and error %v", lease, err)
		return
	}
	m.enter(lease, reads)
	time.Sleep(time.Millisecond)
	m.unlock(lease)
}
