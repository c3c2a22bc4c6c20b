package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

const ttl = 10 * time.Second

var holds atomic.Int64

// attempt is one request and the driver's calls to its Events.
type attempt struct {
	driver.Request
	waiting, losses atomic.Int32
}

func (a *attempt) Waiting()    { a.waiting.Add(1) }
func (a *attempt) Tokens() int { return 4 }
func (a *attempt) Lost(error)  { a.losses.Add(1) }

func newAttempt(name string) *attempt {
	a := &attempt{Request: driver.Request{Name: name, Hold: fmt.Sprint("test:", holds.Add(1)), TTL: ttl}}
	a.Events = a
	return a
}

func try(d driver.Driver, name string) (driver.Lease, error) {
	a := newAttempt(name)
	a.NoWait = true
	return d.Acquire(context.Background(), &a.Request)
}

func lock(t *testing.T, d driver.Driver, name string) driver.Lease {
	t.Helper()
	l, err := try(d, name)
	if err != nil {
		t.Fatalf("acquire %q: %v", name, err)
	}
	return l
}

func release(t *testing.T, l driver.Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil {
		t.Fatalf("release: %v", err)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// result is the result of an Acquire.
type result struct {
	lease driver.Lease
	err   error
}

func start(ctx context.Context, d driver.Driver, a *attempt) <-chan result {
	c := make(chan result, 1)
	go func() { // ends when Acquire returns
		l, err := d.Acquire(ctx, &a.Request)
		c <- result{l, err}
	}()
	synctest.Wait()
	return c
}

// pair is a pair of servers. The server from has already given many tokens.
type pair struct {
	t        *testing.T
	from, to *memory.Server
}

func newPair(t *testing.T, from, to *memory.Options) *pair {
	p := &pair{t, memory.NewServer(from), memory.NewServer(to)}
	d := p.from.NewDriver()
	r := newAttempt("other")
	r.Events = manyTokens{}
	l, err := d.Acquire(t.Context(), &r.Request)
	if err != nil {
		t.Fatal(err)
	}
	release(t, l)
	return p
}

// client is a driver in a phase, with its drivers of both servers.
type client struct {
	*migrate.Driver
	from, to *memory.Driver
}

func (p *pair) client(phase migrate.Phase) *client {
	c := &client{from: p.from.NewDriver(), to: p.to.NewDriver()}
	var err error
	if c.Driver, err = migrate.New(c.from, c.to, &migrate.Options{Phase: phase}); err != nil {
		p.t.Fatal(err)
	}
	return c
}

var phases = []migrate.Phase{migrate.PhaseDual, migrate.PhaseNew}

func TestPhasesExcludeEachOtherAndTokensRise(t *testing.T) {
	for _, first := range phases {
		for _, second := range phases {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, nil, nil)
				a, b, old := p.client(first), p.client(second), p.from.NewDriver()
				l := lock(t, a, "x")
				_, err := try(b, "x")
				wantErr(t, fmt.Sprintf("%v while %v holds", second, first), err, driver.ErrLocked)
				if _, err := try(old, "x"); err == nil {
					t.Errorf("an old program got the lock while %v holds it", first)
				}
				c := start(t.Context(), b, newAttempt("x"))
				time.Sleep(ttl / 2)
				release(t, l)
				r := <-c
				if r.err != nil {
					t.Fatalf("%v after %v: %v", second, first, r.err)
				}
				token, n := l.Tokens()
				next, _ := r.lease.Tokens()
				if token <= 1<<16 || next < token+uint64(n) {
					t.Errorf("%v after %v: got token %d after %d tokens from %d, above %d", second, first, next, n, token, 1<<16)
				}
				release(t, r.lease)
			})
		}
	}
}

func TestSetPhaseLeavesLeasesAsTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c, other := p.client(migrate.PhaseDual), p.client(migrate.PhaseNew)
		l := lock(t, c, "x")
		if err := c.SetPhase(t.Context(), migrate.PhaseNew); err != nil || c.Phase() != migrate.PhaseNew {
			t.Errorf("SetPhase: got %v and phase %v, want phase new", err, c.Phase())
		}
		time.Sleep(ttl / 2)
		if err := l.Renew(t.Context(), ttl); err != nil {
			t.Errorf("Renew: %v", err)
		}
		_, err := try(other, "x")
		wantErr(t, "another client", err, driver.ErrLocked)
		release(t, l)
		release(t, lock(t, c, "x"))
		if _, sealed, err := c.from.Sealed(t.Context(), "x"); !sealed || err != nil {
			t.Errorf("after a grant in phase new: got sealed %t, %v, want true", sealed, err)
		}
		if err := c.SetPhase(t.Context(), migrate.Phase(4)); err == nil {
			t.Error("SetPhase(4): got no error")
		}
	})
}

func TestFromIsKeptAliveAndCheckedWhileToIsWaitedFor(t *testing.T) {
	for _, lose := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c, other := p.client(migrate.PhaseDual), p.to.NewDriver()
			l, err := other.Acquire(t.Context(), &newAttemptFor("x", 10*ttl).Request)
			if err != nil {
				t.Fatal(err)
			}
			a := newAttempt("x")
			r := start(t.Context(), c, a)
			time.Sleep(5 * ttl)
			_, err = try(p.from.NewDriver(), "x")
			wantErr(t, "from after five TTLs", err, driver.ErrLocked)
			if lose {
				p.from.Expire("x")
				lock(t, p.from.NewDriver(), "x") // until the lock expires
			}
			release(t, l)
			granted := time.Now()
			got := <-r
			if got.err != nil || a.waiting.Load() != 1 {
				t.Fatalf("got %v after Waiting was called %d times, want a lease after one call", got.err, a.waiting.Load())
			}
			if waited := time.Since(granted); lose != (waited > 0) {
				t.Errorf("granted %v after to was free; another client held from: %t", waited, lose)
			}
			if left := time.Until(got.lease.Expires()); left != ttl && !lose {
				t.Errorf("%v left, want %v", left, ttl)
			}
			release(t, got.lease)
		})
	}
}

func newAttemptFor(name string, ttl time.Duration) *attempt {
	a := newAttempt(name)
	a.TTL = ttl
	return a
}

func TestLosingEitherIsLoss(t *testing.T) {
	for _, which := range []string{"from", "to"} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c := p.client(migrate.PhaseDual)
			a := newAttempt("x")
			l, err := c.Acquire(t.Context(), &a.Request)
			if err != nil {
				t.Fatal(err)
			}
			admin := p.from.NewDriver()
			if which == "to" {
				admin = p.to.NewDriver()
			}
			if err := admin.ForceUnlock(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := a.losses.Load(); n != 1 {
				t.Errorf("%s: Lost was called %d times, want once", which, n)
			}
			wantErr(t, "Release", l.Release(t.Context()), driver.ErrNotHeld)
			release(t, lock(t, p.from.NewDriver(), "x")) // the other hold has been released
			release(t, lock(t, p.to.NewDriver(), "x"))
		})
	}
}

func TestSealWithoutAMarkIsGoneOnWith(t *testing.T) {
	for _, phase := range phases {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, nil, nil)
			c := p.client(migrate.PhaseNew)
			c.to.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Seals}) // like a crash after the seal
			_, err := try(c, "x")
			wantErr(t, "without a mark", err, driver.ErrUnavailable)
			l := lock(t, p.client(phase), "x")
			if token, _ := l.Tokens(); token <= 1<<16 {
				t.Errorf("%v: got token %d, want a token above %d", phase, token, 1<<16)
			}
			release(t, l)
		})
	}
}

func TestNewDoesNotNeedFromForNamesThatHaveMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPair(t, nil, nil).client(migrate.PhaseNew)
		release(t, lock(t, c, "x"))
		c.from.Cut()
		release(t, lock(t, c, "x"))
		_, err := try(c, "y")
		wantErr(t, "a name that has not moved", err, driver.ErrUnavailable)
		release(t, lock(t, c, "x"))
	})
}

var sessions = &memory.Options{KeepsAlive: true}

func TestInfoIsTheWeakestOfBoth(t *testing.T) {
	p := newPair(t, sessions, &memory.Options{KeepsAlive: true, Order: memory.FIFOByClient})
	got := p.client(migrate.PhaseNew).Info()
	want := p.from.NewDriver().Info()
	want.Name, want.Order, want.ReadWrite, want.Permits = "migrate", driver.Unordered, driver.Support{}, driver.Support{Why: got.Permits.Why}
	if got != want || got.Permits.Why == "" {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// onlyDriver has no optional interfaces.
type onlyDriver struct{ driver.Driver }

func TestNewRefusesPairsThatCannotBeMigrated(t *testing.T) {
	good, bare, unfenced := memory.New(nil), memory.New(&memory.Options{NoTokens: true}), &migrate.Options{Unfenced: true}
	for _, test := range []struct {
		from, to driver.Driver
		o        *migrate.Options
		want     string
	}{
		{good, good, nil, "two different drivers"},
		{good, nil, nil, "two different drivers"},
		{good, memory.New(nil), &migrate.Options{Phase: 7}, "Options.Phase"},
		{onlyDriver{good}, memory.New(nil), nil, "cannot seal"},
		{good, onlyDriver{memory.New(nil)}, nil, "cannot keep a mark"},
		{good, bare, nil, "has fencing tokens and memory has none"},
		{good, bare, unfenced, ""},
		{bare, good, nil, ""},
	} {
		d, err := migrate.New(test.from, test.to, test.o)
		if test.want == "" {
			if err != nil || d.Info().Fencing != driver.None {
				t.Errorf("got %v, want a driver without tokens", err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want an error with %q", err, test.want)
		}
	}
}
