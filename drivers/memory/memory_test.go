package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// attempt is one request and the driver's calls to its Events.
type attempt struct {
	driver.Request
	waiting, losses atomic.Int32
	want            int // tokens

	mu    sync.Mutex
	cause error
}

func (a *attempt) Waiting()    { a.waiting.Add(1) }
func (a *attempt) Tokens() int { return max(a.want, 1) }
func (a *attempt) Lost(cause error) {
	a.losses.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cause = cause
}

func (a *attempt) lostBy() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cause
}

var holds atomic.Int64

func newAttempt(name string) *attempt {
	n := holds.Add(1)
	a := &attempt{Request: driver.Request{
		Name: name, Hold: fmt.Sprintf("test:%d", n), Owner: fmt.Sprintf("owner %d", n), TTL: 10 * time.Second,
	}}
	a.Events = a
	return a
}

// try tries once to acquire name.
func try(d *memory.Driver, name string) (driver.Lease, error) {
	a := newAttempt(name)
	a.NoWait = true
	return d.Acquire(context.Background(), &a.Request)
}

// lock acquires name, or fails the test.
func lock(t *testing.T, d *memory.Driver, name string) driver.Lease {
	t.Helper()
	l, err := try(d, name)
	if err != nil {
		t.Fatalf("acquire %q: %v", name, err)
	}
	return l
}

func release(t *testing.T, l driver.Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Fatalf("release: %v", err)
	}
}

func wantErr(t *testing.T, what string, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Errorf("%s: got error %v, want an error that matches %v", what, got, w)
		}
	}
}

// result is the result of an Acquire.
type result struct {
	a     *attempt
	lease driver.Lease
	err   error
	at    time.Time
}

// wait starts an Acquire that must wait, and returns once it is waiting. It
// must run in a bubble.
func wait(ctx context.Context, d *memory.Driver, a *attempt) <-chan result {
	c := make(chan result, 1)
	go func() {
		l, err := d.Acquire(ctx, &a.Request)
		c <- result{a, l, err, time.Now()}
	}()
	synctest.Wait()
	return c
}

func status(t *testing.T, d *memory.Driver, name string) driver.Status {
	t.Helper()
	s, err := d.Inspect(t.Context(), name)
	if err != nil {
		t.Fatalf("inspect %q: %v", name, err)
	}
	return s
}

func TestHoldsExcludeEachOther(t *testing.T) {
	d := memory.New(nil)
	other := d.Server().NewDriver()
	l := lock(t, d, "a")
	_, err := try(d, "a")
	wantErr(t, "second acquire by the same driver", err, driver.ErrLocked)
	_, err = try(other, "a")
	wantErr(t, "acquire by another driver", err, driver.ErrLocked)
	lock(t, other, "b")
	release(t, l)
	wantErr(t, "second release", l.Release(t.Context()), driver.ErrNotHeld)
	wantErr(t, "renewal after release", l.Renew(t.Context(), time.Second), driver.ErrNotHeld)
	l = lock(t, other, "a")
	_, err = try(d, "a")
	wantErr(t, "acquire while the other driver holds the name", err, driver.ErrLocked)
	release(t, l)
}

func TestLeaseEndsAtItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		l := lock(t, d, "a")
		granted := time.Now()
		if got, want := l.Expires().Sub(granted), 10*time.Second; got != want {
			t.Errorf("lease expires after %v, want %v", got, want)
		}
		a := newAttempt("a")
		r := <-wait(t.Context(), d, a)
		if r.err != nil {
			t.Fatal(r.err)
		}
		if got, want := r.at.Sub(granted), 10*time.Second; got != want {
			t.Errorf("waiter was granted after %v, want %v", got, want)
		}
		if got, want := r.lease.Expires().Sub(r.at), 10*time.Second; got != want {
			t.Errorf("the waiter's lease expires after %v, want %v", got, want)
		}
		if got := a.waiting.Load(); got != 1 {
			t.Errorf("Waiting was called %d times, want 1", got)
		}
		time.Sleep(10*time.Second - time.Nanosecond)
		_, err := try(d, "a")
		wantErr(t, "acquire just before the end", err, driver.ErrLocked)
		time.Sleep(time.Nanosecond)
		wantErr(t, "release of an ended lease", r.lease.Release(t.Context()), driver.ErrNotHeld)
		release(t, lock(t, d, "a"))

		wantErr(t, "renewal of the waiter's ended lease", l.Renew(t.Context(), time.Minute), driver.ErrNotHeld)
		wantErr(t, "release of the waiter's ended lease", l.Release(t.Context()), driver.ErrNotHeld)
		if got, want := l.Expires(), granted.Add(10*time.Second); !got.Equal(want) {
			t.Errorf("Expires moved to %v after it had passed at %v", got, want)
		}
	})
}

func TestRenewalMovesTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		start := time.Now()
		l := lock(t, d, "a")
		c := wait(t.Context(), d, newAttempt("a"))
		time.Sleep(9 * time.Second)
		if err := l.Renew(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if got, want := l.Expires().Sub(start), 19*time.Second; got != want {
			t.Errorf("expires at %v, want %v", got, want)
		}
		time.Sleep(5 * time.Second)
		if err := l.Renew(t.Context(), 2*time.Second); err != nil { // an earlier end
			t.Fatal(err)
		}
		r := <-c
		if got, want := r.at.Sub(start), 16*time.Second; got != want || r.err != nil {
			t.Errorf("waiter got %v after %v, want a lease after %v", r.err, got, want)
		}
	})
}

func TestRenewAllReportsEachLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		var leases []driver.Lease
		for i := range 5 {
			leases = append(leases, lock(t, d, fmt.Sprint(i)))
		}
		release(t, leases[3])
		time.Sleep(4 * time.Second)
		got := make([]error, len(leases))
		calls := 0
		d.RenewAll(t.Context(), leases, func(i int, err error) { got[i] = err; calls++ })
		if calls != len(leases) {
			t.Errorf("done was called %d times, want %d", calls, len(leases))
		}
		for i, err := range got {
			if i == 3 {
				wantErr(t, "renewal of a released lease", err, driver.ErrNotHeld)
			} else if left := time.Until(leases[i].Expires()); err != nil || left != 10*time.Second {
				t.Errorf("lease %d: got error %v and %v left, want 10s", i, err, left)
			}
		}
	})
}

func TestOrderOfGrants(t *testing.T) {
	// The waiters arrive as a1 a2 b1 a3 c1 b2, each named after its driver.
	arrivals := []string{"a1", "a2", "b1", "a3", "c1", "b2"}
	for _, test := range []struct {
		order  memory.Order
		driver driver.Order
		want   []string
	}{
		{memory.FIFO, driver.FIFO, arrivals},
		{memory.FIFOByClient, driver.FIFOByClient, []string{"a1", "b1", "c1", "a2", "b2", "a3"}},
		{memory.Unordered, driver.Unordered, nil},
	} {
		t.Run(test.driver.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(&memory.Options{Order: test.order})
				drivers := map[byte]*memory.Driver{'a': s.NewDriver(), 'b': s.NewDriver(), 'c': s.NewDriver()}
				if got := drivers['a'].Info().Order; got != test.driver {
					t.Errorf("order is %v, want %v", got, test.driver)
				}
				l := lock(t, drivers['c'], "x")
				granted := make(chan result, len(arrivals))
				for _, owner := range arrivals {
					a := newAttempt("x")
					a.Owner = owner
					go func() {
						l, err := drivers[owner[0]].Acquire(t.Context(), &a.Request)
						granted <- result{a: a, lease: l, err: err}
					}()
					synctest.Wait()
				}
				if got := status(t, drivers['a'], "x").Waiters; got != len(arrivals) {
					t.Errorf("%d requests wait, want %d", got, len(arrivals))
				}
				var got []string
				for range arrivals {
					release(t, l)
					r := <-granted
					if r.err != nil {
						t.Fatal(r.err)
					}
					l = r.lease
					got = append(got, r.a.Owner)
				}
				if test.want != nil && !slices.Equal(got, test.want) {
					t.Errorf("granted %v, want %v", got, test.want)
				}
				if slices.Sort(got); len(slices.Compact(got)) != len(arrivals) {
					t.Errorf("granted %v, want each of %v once", got, arrivals)
				}
			})
		})
	}
}

func TestCanceledWaiterLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, order := range []memory.Order{memory.FIFO, memory.FIFOByClient, memory.Unordered} {
			d := memory.New(&memory.Options{Order: order})
			l := lock(t, d, "x")
			var results []<-chan result
			var cancels []context.CancelFunc
			for range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				cancels = append(cancels, cancel)
				results = append(results, wait(ctx, d, newAttempt("x")))
			}
			for left, i := range []int{1, 0} {
				cancels[i]()
				wantErr(t, "canceled wait", (<-results[i]).err, driver.ErrLocked, context.Canceled)
				if got, want := status(t, d, "x").Waiters, 2-left; got != want {
					t.Errorf("%v: %d requests wait after the cancel, want %d", order, got, want)
				}
			}
			release(t, l)
			release(t, (<-results[2]).lease)
			cancels[2]()
		}
	})
}

func TestGrantAndCancelCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		granted := 0
		for i := range 1000 {
			l := lock(t, d, "x")
			ctx, cancel := context.WithCancel(t.Context())
			c := wait(ctx, d, newAttempt("x"))
			first := i%2 == 0
			if first {
				cancel()
			}
			release(t, l)
			cancel() // may wake the waiter, which then finds that it was granted the name
			r := <-c
			if first && r.lease != nil {
				t.Fatal("a request was granted the name although it was canceled before the release")
			}
			if (r.lease == nil) == (r.err == nil) {
				t.Fatalf("got lease %v and error %v, want one of them", r.lease, r.err)
			}
			if r.lease != nil {
				granted++
				release(t, r.lease)
			}
			if s := status(t, d, "x"); s.Held || s.Waiters != 0 {
				t.Fatalf("left behind: %+v", s)
			}
		}
		if granted == 0 {
			t.Error("no grant coincided with a cancel")
		}
	})
}

func TestEachHolderInTurnIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		l := lock(t, d, "x")
		short := newAttempt("x")
		short.TTL = time.Second
		gone, next := wait(t.Context(), d, short), wait(t.Context(), d, newAttempt("x"))
		release(t, l)
		start := time.Now()
		<-gone
		if got := (<-next).at.Sub(start); got != time.Second {
			t.Errorf("the second waiter was granted after %v, want the TTL of the first, 1s", got)
		}
	})
}

func TestContended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, d, "x")
		c := wait(t.Context(), other, newAttempt("x"))
		release(t, l)
		next := (<-c).lease
		release(t, next)
		for l, want := range map[driver.Lease]bool{l: true, next: false} {
			if got := l.(driver.ContentionReporter).Contended(); got != want {
				t.Errorf("Contended = %v, want %v", got, want)
			}
		}
	})
}

func TestCloseLeavesTheQueuesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		l := lock(t, d, "x")
		lock(t, d, "y")
		own := wait(t.Context(), d, newAttempt("x"))
		theirs := wait(t.Context(), other, newAttempt("x"))
		own2 := wait(t.Context(), d, newAttempt("x"))
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, "wait by the closed driver", (<-own).err, driver.ErrClosed)
		wantErr(t, "second wait by the closed driver", (<-own2).err, driver.ErrClosed)
		r := <-theirs
		if r.err != nil {
			t.Error(r.err)
		}
		wantErr(t, "release after Close", l.Release(t.Context()), driver.ErrNotHeld)
		wantErr(t, "renewal after Close", l.Renew(t.Context(), time.Second), driver.ErrNotHeld)
		_, err := try(d, "z")
		wantErr(t, "acquire after Close", err, driver.ErrClosed)
		_, err = d.Inspect(t.Context(), "z")
		wantErr(t, "inspect after Close", err, driver.ErrClosed)
		wantErr(t, "forced unlock after Close", d.ForceUnlock(t.Context(), "x"), driver.ErrClosed)
		if err := d.Close(t.Context()); err != nil {
			t.Errorf("second Close: %v", err)
		}
		release(t, r.lease)
		if n := d.Server().Names(); n != 0 {
			t.Errorf("%d names left, want none", n)
		}
	})
}

func TestTokensRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		a := newAttempt("x")
		a.want = 5
		l, err := d.Acquire(t.Context(), &a.Request)
		if err != nil {
			t.Fatal(err)
		}
		if first, n := l.Tokens(); first != 1 || n != 5 {
			t.Errorf("got %d tokens from %d, want 5 from 1", n, first)
		}
		if got := status(t, d, "x").Token; got != 5 {
			t.Errorf("Inspect shows token %d, want 5", got)
		}
		b := newAttempt("x")
		c := wait(t.Context(), d, b)
		b.want = 3 // read when the grant arrives
		release(t, l)
		if first, n := (<-c).lease.Tokens(); first != 6 || n != 3 {
			t.Errorf("got %d tokens from %d after a wait, want 3 from 6", n, first)
		}
	})
}

func TestNoTokens(t *testing.T) {
	d := memory.New(&memory.Options{NoTokens: true})
	if got := d.Info().Fencing; got != driver.None {
		t.Errorf("fencing is %v, want none", got)
	}
	if first, n := lock(t, d, "x").Tokens(); first != 0 || n != 0 {
		t.Errorf("got %d tokens from %d, want 0, 0", n, first)
	}
}

func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := pair(nil)
		if got := status(t, d, "x"); got.Held || got.Waiters != 0 {
			t.Errorf("free name: got %+v", got)
		}
		start := time.Now()
		a := newAttempt("x")
		a.Note = "note"
		if _, err := d.Acquire(t.Context(), &a.Request); err != nil {
			t.Fatal(err)
		}
		b, c := newAttempt("x"), newAttempt("x")
		ctx, cancel := context.WithCancel(t.Context())
		rb, rc := wait(ctx, d, b), wait(ctx, other, c)
		time.Sleep(3 * time.Second)
		got := status(t, other, "x")
		if !got.Held || got.Hold != a.Hold || got.Owner != a.Owner || got.Note != "note" || !got.Since.Equal(start) ||
			got.TTL != 7*time.Second || got.Token != 1 || got.Waiters != 2 || !slices.Equal(got.Queue, []string{b.Owner, c.Owner}) {
			t.Errorf("got %+v", got)
		}
		cancel()
		<-rb
		<-rc
		time.Sleep(7 * time.Second)
		if got := status(t, other, "x"); got.Held {
			t.Errorf("after the TTL: got %+v", got)
		}
	})
}

func TestNothingIsLeftOfFreeNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		for i := range 1000 {
			release(t, lock(t, d, fmt.Sprint(i)))
		}
		if n := d.Server().Names(); n != 0 {
			t.Errorf("%d names left after their release, want none", n)
		}
		for i := range 1000 { // holders that never come back
			lock(t, d, fmt.Sprint("gone ", i))
		}
		time.Sleep(11 * time.Second)
		for i := range 1000 {
			release(t, lock(t, d, fmt.Sprint("next ", i)))
			lock(t, d, fmt.Sprint("held ", i))
		}
		if got, most := d.Server().Names(), 1500; got > most {
			t.Errorf("%d names with 1000 held, want at most %d", got, most)
		}
	})
}

// callback calls the driver from within its events, which is allowed because
// the driver holds no mutex at that time.
type callback struct {
	*attempt
	d *memory.Driver
}

func (c callback) Waiting()   { c.d.Inspect(context.Background(), c.Name) }
func (c callback) Lost(error) { c.d.Inspect(context.Background(), c.Name) }
func (c callback) Tokens() int {
	c.d.Inspect(context.Background(), c.Name)
	return 1
}

func TestEventsAreCalledWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []*memory.Options{nil, sessions} {
			d, other := pair(o)
			l := lock(t, d, "x")
			a := newAttempt("x")
			a.Events = callback{a, d}
			c := wait(t.Context(), d, a)
			release(t, l)
			if r := <-c; r.err != nil {
				t.Fatal(r.err)
			}
			if err := other.ForceUnlock(t.Context(), "x"); err != nil {
				t.Error(err)
			}
			if _, err := d.Acquire(t.Context(), &a.Request); err != nil {
				t.Error(err)
			}
			d.Cut()
			other.Server().Flush()
			d.Heal()
		}
	})
}

func TestAcquireWithContextThatIsDone(t *testing.T) {
	d := memory.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Acquire(ctx, &newAttempt("x").Request)
	wantErr(t, "acquire", err, context.Canceled)
	l := lock(t, d, "x")
	wantErr(t, "renewal", l.Renew(ctx, time.Second), context.Canceled)
	if err := l.Release(ctx); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := lock(t, d, "x").Renew(t.Context(), 0); err == nil {
		t.Error("renewal for 0 succeeded")
	}
}
