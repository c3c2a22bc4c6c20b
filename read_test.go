package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var bothModes = driver.Info{ReadWrite: driver.Support{Offered: true}}

// mustTry is mustLock by TryLock.
func mustTry(t *testing.T, l dsync.Locker, opts ...dsync.LockOption) *dsync.Lease {
	t.Helper()
	lease, err := l.TryLock(t.Context(), "x", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, leases ...*dsync.Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// mustBeLocked checks that nobody is granted x now.
func mustBeLocked(t *testing.T, lockers []dsync.Locker, opts ...dsync.LockOption) {
	t.Helper()
	for i, l := range lockers {
		if lease, err := l.TryLock(t.Context(), "x", opts...); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock of %d: lease %v and error %v, want ErrLocked", i, lease, err)
		}
	}
}

func TestReadersShare(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		all := []dsync.Locker{a, b, a.NewOwner()}
		first, second, third := mustTry(t, a, dsync.Read()), mustTry(t, a, dsync.Read()), mustTry(t, b, dsync.Read())
		mustBeLocked(t, all)
		mustBeLocked(t, all, dsync.Write())
		mustUnlock(t, first, third)
		mustBeLocked(t, all, dsync.Write())
		mustUnlock(t, second)
		for _, alone := range [][]dsync.LockOption{nil, {dsync.Write()}} {
			l := mustTry(t, b, alone...)
			if l.Token() <= first.Token() {
				t.Errorf("token %d after a reader's %d", l.Token(), first.Token())
			}
			mustBeLocked(t, all)
			mustBeLocked(t, all, dsync.Write())
			mustBeLocked(t, all, dsync.Read())
			mustUnlock(t, l)
		}
	})
}

func TestInspectReaders(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		first, _ := mustLock(t, a, "x", dsync.Read()), mustLock(t, b, "x", dsync.Read())
		s, err := b.Inspect(t.Context(), "x")
		if err != nil || !s.Held || s.Mode != driver.Read || s.Holders != 2 || s.Owner != first.Owner() {
			t.Errorf("got %+v and error %v", s, err)
		}
	})
}

// A thousand goroutines that read are one hold: one request, one renewal, one release.
func TestReadersOfAClientAreOneHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		d.acquire = func(_ context.Context, _ int, r *driver.Request) (driver.Lease, error) {
			time.Sleep(time.Millisecond)
			return d.grant(r, time.Now()), nil
		}
		c := newStub(t, d)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 90 * time.Microsecond) // within the first 100 ms
				l := mustLock(t, c, "x", dsync.Read())
				time.Sleep(5 * time.Second)
				mustUnlock(t, l)
			})
		}
		wg.Wait()
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
		if got := d.renewals(); len(got) != 1 || len(got[0]) != 1 {
			t.Errorf("renewals %v, want one of one hold", got)
		}
		if got := len(d.gaveBack()); got != 1 {
			t.Errorf("%d releases, want 1", got)
		}
	})
}

func TestJoiningIsBounded(t *testing.T) {
	for _, tt := range []struct {
		ttl, bound time.Duration
	}{
		{10 * time.Second, 100 * time.Millisecond},
		{90 * time.Millisecond, 30 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &stub{info: bothModes}
			c := newClient(t, d, &dsync.Options{TTL: tt.ttl})
			asked := func(want int) {
				t.Helper()
				mustTry(t, c, dsync.Read())
				if got := len(d.asked()); got != want {
					t.Errorf("%d requests, want %d", got, want)
				}
			}
			asked(1)
			time.Sleep(tt.bound - time.Nanosecond)
			asked(1)
			time.Sleep(time.Nanosecond)
			asked(2)
			asked(2) // joins the second hold
		})
	}
}

// An endless stream of readers costs a request in 100 ms, and a writer of any client gets its turn.
func TestStreamOfReaders(t *testing.T) {
	const length = 20 * time.Millisecond // of a read
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		var grants sync.Map // of holds, by token
		end := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * length / 100)
				for {
					select {
					case <-end:
						return
					default:
					}
					l := mustLock(t, a, "x", dsync.Read())
					grants.Store(l.Token(), true)
					time.Sleep(length)
					mustUnlock(t, l)
				}
			})
		}
		time.Sleep(time.Second)
		n := 0
		grants.Range(func(any, any) bool { n++; return true })
		if n > 11 {
			t.Errorf("%d holds in 1 s, want one in 100 ms", n)
		}
		for _, l := range []dsync.Locker{a, b, dsync.With(a, dsync.Write()), dsync.With(b, dsync.Write())} {
			start := time.Now()
			mustUnlock(t, mustLock(t, l, "x"))
			if got, want := time.Since(start), 100*time.Millisecond+length; got > want {
				t.Errorf("who writes waited %v, want at most %v", got, want)
			}
			time.Sleep(time.Second)
		}
		close(end)
		wg.Wait()
	})
}

func TestReadWithExpireAfterIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		c := newStub(t, d)
		o := c.NewOwner()
		for i, l := range []*dsync.Lease{
			mustLock(t, c, "x", dsync.Read()), mustLock(t, c, "x", dsync.Read(), dsync.ExpireAfter(time.Second)),
			mustLock(t, c, "x", dsync.Read(), dsync.ExpireAfter(time.Minute)), mustLock(t, o, "x", dsync.Read(), dsync.ExpireAfter(time.Hour)),
		} {
			if got := len(d.asked()); got != 4 {
				t.Fatalf("%d requests for 4 holds", got)
			}
			if end := []time.Duration{10, 1, 60, 3600}[i] * time.Second; time.Until(l.Deadline()) > end || time.Until(l.Deadline()) < end*9/10 {
				t.Errorf("lease %d ends in %v, want %v", i, time.Until(l.Deadline()), end)
			}
		}
		mustLock(t, o, "x", dsync.Read(), dsync.ExpireAfter(time.Hour))
		time.Sleep(time.Second)
		mustLock(t, o, "x", dsync.Read())
		if got := len(d.asked()); got != 4 {
			t.Errorf("%d requests, want none by an Owner that reads already", got-4)
		}
	})
}

// TestNesting is the table of what may be taken under a lease of the same name, by the Owner of the lease or with its context.
func TestNesting(t *testing.T) {
	exclusive, read, write := []dsync.LockOption(nil), []dsync.LockOption{dsync.Read()}, []dsync.LockOption{dsync.Write()}
	for _, tt := range []struct {
		has, asks          []dsync.LockOption
		byOwner, byContext bool // joins; otherwise ErrDeadlock
	}{
		{read, read, true, true},
		{read, write, false, false},
		{read, exclusive, false, false},
		{write, read, true, true},
		{write, write, true, false},
		{write, exclusive, true, false},
		{exclusive, read, true, true},
		{exclusive, write, true, false},
		{exclusive, exclusive, true, false},
	} {
		forOrders(t, func(t *testing.T, a, b *dsync.Client) {
			nested := func(ctx context.Context, under *dsync.Lease, l dsync.Locker, joins bool) {
				t.Helper()
				lease, err := l.Lock(ctx, "x", tt.asks...)
				tried, tryErr := l.TryLock(ctx, "x", tt.asks...)
				if !joins {
					if !errors.Is(err, dsync.ErrDeadlock) || !errors.Is(tryErr, dsync.ErrLocked) {
						t.Errorf("errors %v and %v, want ErrDeadlock and ErrLocked", err, tryErr)
					}
					return
				}
				if err != nil || tryErr != nil {
					t.Fatalf("errors %v and %v", err, tryErr)
				}
				owner := under.Owner()
				if o, ok := l.(*dsync.Owner); ok {
					owner = o.ID()
				}
				if lease.Token() != under.Token() || lease.Owner() != owner {
					t.Errorf("token %d, owner %s; want %d, %s", lease.Token(), lease.Owner(), under.Token(), owner)
				}
				mustUnlock(t, lease, tried)
			}
			for _, outer := range []dsync.Locker{a, a.NewOwner()} {
				lease := mustLock(t, outer, "x", tt.has...)
				ctx, cancel := lease.Context(t.Context())
				waits := make(chan error)
				go func() { // ends when the lease is over
					l, err := b.Lock(t.Context(), "x", dsync.Write())
					if err == nil {
						err = l.Unlock(t.Context())
					}
					waits <- err
				}()
				time.Sleep(time.Second) // nobody joins by age
				nested(ctx, lease, a, tt.byContext)
				nested(ctx, lease, a.NewOwner(), tt.byContext)
				if o, ok := outer.(*dsync.Owner); ok {
					nested(ctx, lease, o, tt.byOwner)
					nested(t.Context(), lease, o, tt.byOwner)
				}
				cancel()
				mustUnlock(t, lease)
				if err := <-waits; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A nested Read keeps the name exclusive when the lease above it is over.
func TestReadUnderWriteKeepsTheName(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		for _, has := range [][]dsync.LockOption{nil, {dsync.Write()}} {
			outer := mustLock(t, a, "x", has...)
			ctx, cancel := outer.Context(t.Context())
			inner, err := a.Lock(ctx, "x", dsync.Read())
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			mustUnlock(t, outer)
			mustBeLocked(t, []dsync.Locker{a, b}, dsync.Read())
			mustUnlock(t, inner)
			mustUnlock(t, mustTry(t, b, dsync.Read()))
		}
	})
}

// An Owner that joined the hold of another reader nests in it as in its own.
func TestOwnerNestsInAJoinedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		c := newStub(t, d)
		o := c.NewOwner()
		first, joined := mustLock(t, c, "x", dsync.Read()), mustLock(t, o, "x", dsync.Read())
		mustUnlock(t, first)
		time.Sleep(time.Second)
		again := mustLock(t, o, "x", dsync.Read())
		if got := len(d.asked()); got != 1 {
			t.Errorf("%d requests, want 1", got)
		}
		if _, err := o.Lock(t.Context(), "x"); !errors.Is(err, dsync.ErrDeadlock) {
			t.Errorf("error %v, want ErrDeadlock", err)
		}
		mustUnlock(t, joined, again)
		mustUnlock(t, mustLock(t, o, "x"))
	})
}

// All that wait to read are served with the grant to one of them, without a request of theirs.
func TestWaitingReadersAreGrantedTogether(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		writer := mustLock(t, b, "x", dsync.Write())
		var tokens sync.Map
		var wg sync.WaitGroup
		start := time.Now()
		for i := range 50 {
			wg.Go(func() {
				l := mustLock(t, a, "x", dsync.Read())
				if got := time.Since(start); got != time.Second {
					t.Errorf("granted after %v, want 1s", got)
				}
				tokens.Store(l.Token(), true)
				time.Sleep(time.Second)
				mustUnlock(t, l)
			})
			if i%10 == 0 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*10*time.Millisecond)
				defer cancel()
				wg.Go(func() {
					if _, err := a.Lock(ctx, "x", dsync.Read()); !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("error %v, want that of the context, and ErrLocked", err)
					}
				})
			}
		}
		time.Sleep(time.Second)
		s, err := b.Inspect(t.Context(), "x")
		if err != nil || s.Waiters != 1 {
			t.Errorf("%d wait at the backend for all, want 1; error %v", s.Waiters, err)
		}
		mustUnlock(t, writer)
		wg.Wait()
		n := 0
		tokens.Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("%d holds, want 1", n)
		}
	})
}

// A request that hangs keeps nobody from reading: the grant to another call serves its caller, too.
func TestGrantToTryLockServesAReaderThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		d.acquire = func(ctx context.Context, n int, r *driver.Request) (driver.Lease, error) {
			if n == 1 {
				return nil, unanswered(ctx)
			}
			return d.grant(r, time.Now()), nil
		}
		c := newStub(t, d)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { mustUnlock(t, mustLock(t, c, "x", dsync.Read())) })
		}
		synctest.Wait()
		mustUnlock(t, mustTry(t, c, dsync.Read()))
		wg.Wait()
	})
}

func TestLossOfASharedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		d := s.NewDriver()
		c, other := newClient(t, d, nil), newClient(t, s.NewDriver(), nil)
		for name, lose := range map[string]func(of string){
			"removed": func(string) {
				if err := other.ForceUnlock(t.Context(), "x"); err != nil {
					t.Error(err)
				}
			},
			"expired":    s.ExpireHold,
			"cut off":    func(string) { d.Cut() },
			"no answers": func(string) { d.Inject(memory.Fault{Kind: memory.Hang}) },
		} {
			apart := mustLock(t, other, "x", dsync.Read())
			var leases []*dsync.Lease
			for range 100 {
				leases = append(leases, mustLock(t, c, "x", dsync.Read()))
			}
			time.Sleep(time.Second)
			younger := mustLock(t, c, "x", dsync.Read())
			status, err := other.Inspect(t.Context(), "x")
			if err != nil || status.Holders != 3 {
				t.Errorf("%s: %d holders, want 3; error %v", name, status.Holders, err)
			}
			lose(leases[0].Owner()) // for a call of the client also its Hold
			for _, l := range leases {
				<-l.Done()
				if !errors.Is(l.Err(), dsync.ErrLost) || !errors.Is(l.Unlock(t.Context()), dsync.ErrLost) {
					t.Errorf("%s: Err %v, want ErrLost", name, l.Err())
				}
			}
			if name == "expired" {
				mustUnlock(t, younger)
			} else if <-younger.Done(); !errors.Is(younger.Err(), dsync.ErrLost) {
				t.Errorf("%s: Err of the other hold: %v, want ErrLost", name, younger.Err())
			}
			if name == "removed" {
				<-apart.Done()
			} else {
				mustUnlock(t, apart)
			}
			d.Heal()
			time.Sleep(time.Minute)
			mustUnlock(t, mustLock(t, other, "x"))
		}
	})
}

func TestCloseWithReaders(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		old := mustLock(t, a, "x", dsync.Read())
		time.Sleep(time.Second)
		leases := []*dsync.Lease{old, mustLock(t, a, "x", dsync.Read()), mustLock(t, a, "x", dsync.Read())}
		granted := make(chan *dsync.Lease)
		go func() { granted <- mustLock(t, b, "x", dsync.Write()) }()
		synctest.Wait()
		waits := make(chan error)
		go func() {
			_, err := a.Lock(t.Context(), "x", dsync.Write())
			waits <- err
		}()
		synctest.Wait()
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-waits; !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("error %v of who waits, want ErrClosed", err)
		}
		for _, l := range leases {
			if err := l.Err(); !errors.Is(err, dsync.ErrNotHeld) || errors.Is(err, dsync.ErrLost) {
				t.Errorf("Err %v, want ErrNotHeld", err)
			}
		}
		mustUnlock(t, <-granted)
		if n := dsync.KnownNames(a); n != 0 {
			t.Errorf("%d names left", n)
		}
	})
}

func TestModeThatIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: driver.Info{Name: "plain"}}
		c := newStub(t, d)
		for mode, opt := range map[string]dsync.LockOption{"read": dsync.Read(), "write": dsync.Write()} {
			_, err := c.Lock(t.Context(), "x", opt)
			_, tryErr := c.NewOwner().TryLock(t.Context(), "x", opt)
			for _, err := range []error{err, tryErr} {
				if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "plain") || !strings.Contains(err.Error(), mode) {
					t.Errorf("error %v, want ErrUnsupported with the backend and the mode", err)
				}
			}
		}
		if got := len(d.asked()); got != 0 {
			t.Errorf("%d requests, want none", got)
		}
	})
}

func TestWriteIsHandedOverWithinItsMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &stub{info: bothModes}
		c := newStub(t, d)
		first := mustLock(t, c, "x", dsync.Write())
		wg := line(t, c, 10, func(int, *dsync.Lease) {}, dsync.Write())
		mustUnlock(t, first)
		wg.Wait()
		if got := d.asked(); len(got) != 1 || got[0].Mode != driver.Write {
			t.Errorf("requests %v, want one to write", got)
		}
	})
}

func TestWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		readers, writers := dsync.With(c, dsync.Read()), dsync.With(c.NewOwner(), dsync.Write(), dsync.ExpireAfter(time.Minute))
		mode := func(opts ...dsync.LockOption) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				s, err := c.Inspect(ctx, "x")
				return errors.Join(err, fmt.Errorf("%v %v", s.Mode, time.Until(dsync.LeaseFrom(ctx).Deadline()).Round(time.Second)))
			}
		}
		for _, tt := range []struct {
			err  error
			want string
		}{
			{dsync.Do(t.Context(), readers, "x", mode()), "read 30s"},
			{dsync.TryDo(t.Context(), readers, "x", mode()), "read 30s"},
			{dsync.Do(t.Context(), writers, "x", mode()), "write 59s"},
			{dsync.Do(t.Context(), writers, "x", mode(), dsync.ExpireAfter(time.Hour)), "write 59m24s"},
			{dsync.Do(t.Context(), dsync.With(writers, dsync.ExpireAfter(time.Hour)), "x", mode(), dsync.Read()), "read 59m24s"},
			{dsync.Do(t.Context(), readers, "x", mode(), dsync.Write()), "write 30s"}, // the last one counts
		} {
			if got := strings.TrimSpace(tt.err.Error()); got != tt.want {
				t.Errorf("held in mode %q, want %q", got, tt.want)
			}
		}

		many, err := dsync.LockAll(t.Context(), readers, "x", "y")
		if err != nil {
			t.Fatal(err)
		}
		mustBeLocked(t, []dsync.Locker{c, writers})
		mustUnlock(t, mustTry(t, readers))
		if err := many.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for _, again := range []dsync.Locker{writers, c, c.NewOwner(), readers} {
			_, err := dsync.LockOn(t.Context(), dsync.Target{Locker: readers, Names: []string{"x"}}, dsync.Target{Locker: again, Names: []string{"y", "x"}})
			if err == nil || !strings.Contains(err.Error(), "twice") {
				t.Errorf("error %v for a name that is given twice on one client", err)
			}
		}
	})
}

// Goroutines of an Owner that ask for a name in two modes at once both get it in the end.
func TestOwnerAsksInTwoModesAtOnce(t *testing.T) {
	forOrders(t, func(t *testing.T, a, b *dsync.Client) {
		for range 20 {
			other := mustLock(t, b, "x")
			o := a.NewOwner()
			var wg sync.WaitGroup
			for _, opt := range []dsync.LockOption{dsync.Read(), dsync.Write(), {}} {
				wg.Go(func() {
					l, err := o.Lock(t.Context(), "x", opt)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
					mustUnlock(t, l)
				})
			}
			synctest.Wait()
			mustUnlock(t, other)
			wg.Wait()
		}
	})
}

// TestRandomReadsAndWrites is TestRandomCalls in all modes, with nested calls: nobody ever has the name beside one who writes.
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
				t.Error("nobody ever read together with another client")
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}

// model is who has the name x, by leases. Leases of one owner may be there together.
type model struct {
	t        *testing.T
	together atomic.Int64 // readers of two clients

	mu     sync.Mutex
	reads  map[*dsync.Lease]bool
	last   uint64 // token
	writer uint64 // last token of one who did not read
}

func (m *model) enter(l *dsync.Lease, reads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, alsoReads := range m.reads {
		if other.Owner() != l.Owner() && !(reads && alsoReads) {
			m.t.Errorf("%s (reads: %v) has the name beside %s (reads: %v)", l.Owner(), reads, other.Owner(), alsoReads)
		}
		if reads && alsoReads && other.Token() != l.Token() {
			m.together.Add(1)
		}
	}
	if reads && l.Token() < m.writer || !reads && l.Token() < m.last {
		m.t.Errorf("token %d (reads: %v) after %d, of who wrote %d", l.Token(), reads, m.last, m.writer)
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
		wait, lock := time.Hour, l.Lock // an hour is for ever
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
