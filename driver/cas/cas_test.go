package cas_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/castest"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

// TestConformanceInFakeTime runs the suite on stores with different
// capabilities.
func TestConformanceInFakeTime(t *testing.T) {
	for _, test := range []struct {
		name     string
		notifies bool
		o        cas.Options
	}{
		{"observed", false, cas.Options{}},
		{"clock", false, cas.Options{Clock: true}},
		{"rising", true, cas.Options{Rising: true}},
		{"all", true, cas.Options{Clock: true, Rising: true}},
		{"no tokens", true, cas.Options{Clock: true, NoTokens: true}},
		{"plain", false, cas.Options{Clock: true, Plain: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.o.Name, test.o.Poll = "memory", 20*time.Millisecond
			conformance.Run(t, conformance.Harness{FakeTime: true, Backend: func(testing.TB) *conformance.Backend {
				m := newMemory(test.o)
				if test.notifies {
					return backend(notifying{m}, test.o)
				}
				return backend(m, test.o)
			}})
		})
	}
}

func newMemory(o cas.Options) *memory {
	return &memory{clock: o.Clock, rising: o.Rising, records: map[string]cas.Entry{}, calls: map[*func()]string{}}
}

// backend is a backend whose clients each have their own link.
func backend(s cas.Store, o cas.Options) *conformance.Backend {
	remove := func(tb testing.TB, name string, its func(hold string) bool) {
		if err := cas.Remove(context.Background(), s, o, name, its); err != nil {
			tb.Error(err)
		}
	}
	return &conformance.Backend{
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			one, link := castest.Disturb(tb, s)
			return cas.New(one, o), link
		},
		Expire: func(tb testing.TB, name string) { remove(tb, name, func(string) bool { return true }) },
		ExpireHold: func(tb testing.TB, name, hold string) {
			remove(tb, name, func(other string) bool { return other == hold })
		},
	}
}

// late is a memory that stores the first write instead of carrying it out.
type late struct {
	*memory
	write func() (string, error)
}

func (l *late) Write(ctx context.Context, name string, value []byte, version string) (string, error) {
	if l.write != nil {
		return l.memory.Write(ctx, name, value, version)
	}
	l.write = func() (string, error) { return l.memory.Write(context.Background(), name, value, version) }
	return "", errors.New("no answer")
}

// TestLateWrite lets a write of an Acquire arrive after other clients have held
// the name and its record is gone. The record may stay for that purpose, but no
// longer than necessary.
func TestLateWrite(t *testing.T) {
	for _, o := range []cas.Options{{NoTokens: true}, {NoTokens: true, Clock: true}, {Rising: true}, {Clock: true}} {
		synctest.Test(t, func(t *testing.T) {
			o.Name = "memory"
			l := &late{memory: newMemory(o)}
			a, b := cas.New(l, o), cas.New(l.memory, o)
			defer a.Close(t.Context())
			defer b.Close(t.Context())
			if _, err := a.Acquire(t.Context(), request("a:1")); !errors.Is(err, driver.ErrUnknown) {
				t.Fatalf("unanswered Acquire: got %v, want ErrUnknown", err)
			}
			synctest.Wait() // for the cleanup
			acquire := func(hold string) {
				t.Helper()
				lease, err := b.Acquire(t.Context(), request(hold))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			acquire("b:1")
			if _, err := l.write(); !errors.Is(err, cas.ErrChanged) {
				t.Errorf("the write that came late: got %v, want ErrChanged", err)
			}
			acquire("b:2")
			time.Sleep(2 * time.Hour)
			acquire("b:3")
			if o.Clock && o.NoTokens && len(l.records) > 0 {
				t.Errorf("two hours later there is still a record: %q", l.records)
			}
		})
	}
}

func request(hold string) *driver.Request {
	return &driver.Request{Name: "name", Hold: hold, TTL: time.Minute, NoWait: true, Events: events{}}
}

type events struct{}

func (events) Waiting()    {}
func (events) Tokens() int { return 3 }
func (events) Lost(error)  {}

// TestTokensOfDeletedRecords checks that tokens rise although the record with
// the last token is gone.
func TestTokensOfDeletedRecords(t *testing.T) {
	for _, o := range []cas.Options{{Clock: true, Rising: true}, {Rising: true}, {}} {
		synctest.Test(t, func(t *testing.T) {
			o.Name = "memory"
			m := newMemory(o)
			d := cas.New(m, o)
			defer d.Close(t.Context())
			var last uint64
			gone := 0
			for i := range 100 {
				lease, err := d.Acquire(t.Context(), request(fmt.Sprintf("a:%d", i)))
				if err != nil {
					t.Fatal(err)
				}
				first, n := lease.Tokens()
				if n < 1 || first <= last {
					t.Fatalf("got %d tokens from %d after %d", n, first, last)
				}
				last = first + uint64(n) - 1
				time.Sleep(time.Duration(i%20) * time.Microsecond)
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(m.records) == 0 {
					gone++
				}
			}
			if o.Rising != (gone == 100) {
				t.Errorf("the record was gone after %d of 100 releases", gone)
			}
		})
	}
}

// slow is a memory in which other writes precede the first write.
type slow struct {
	*memory
	others func()
}

func (s *slow) Write(ctx context.Context, name string, value []byte, version string) (string, error) {
	if others := s.others; others != nil {
		s.others = nil
		others()
	}
	return s.memory.Write(ctx, name, value, version)
}

// TestTokenOfASlowWrite lets other clients use the name between the read and
// the write of an Acquire, so that the name is free again.
func TestTokenOfASlowWrite(t *testing.T) {
	for _, o := range []cas.Options{{Clock: true}, {Clock: true, Rising: true}, {}} {
		synctest.Test(t, func(t *testing.T) {
			o.Name = "memory"
			s := &slow{memory: newMemory(o)}
			a, b := cas.New(s, o), cas.New(s.memory, o)
			defer a.Close(t.Context())
			defer b.Close(t.Context())
			acquire := func(d driver.Driver, hold string) uint64 {
				l, err := d.Acquire(t.Context(), request(hold))
				if err != nil {
					t.Error(err)
					return 0
				}
				first, n := l.Tokens()
				time.Sleep(time.Second)
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
				return first + uint64(n) - 1
			}
			var others uint64
			s.others = func() { others = acquire(b, "b:1") }
			if token := acquire(a, "a:1"); token <= others {
				t.Errorf("a later grant has the token %d, after %d", token, others)
			}
		})
	}
}

// TestWaitersKeepTheirPlaces has two clients wait for many times the TTL of a
// place.
func TestWaitersKeepTheirPlaces(t *testing.T) {
	for _, o := range []cas.Options{{}, {Clock: true}} {
		synctest.Test(t, func(t *testing.T) {
			o.Name = "memory"
			m := newMemory(o)
			d := cas.New(m, o)
			defer d.Close(context.Background())
			first := request("a:1")
			first.TTL = time.Hour
			held, err := d.Acquire(t.Context(), first)
			if err != nil {
				t.Fatal(err)
			}
			order := make(chan string, 2)
			for _, hold := range []string{"b:1", "c:1"} {
				r := request(hold)
				r.NoWait = false
				go func() { // ends when the context of the test ends
					other := cas.New(m, o)
					defer other.Close(context.Background())
					if l, err := other.Acquire(t.Context(), r); err == nil {
						order <- hold
						_ = l.Release(context.Background())
					}
				}()
				time.Sleep(time.Second) // of fake time
			}
			time.Sleep(time.Minute)
			before, err := d.Inspect(t.Context(), "name")
			if err != nil {
				t.Fatal(err)
			}
			third := request("d:1")
			third.Mode = driver.Read
			if _, err := d.Acquire(t.Context(), third); !errors.Is(err, driver.ErrLocked) {
				t.Errorf("a newcomer got %v, want ErrLocked", err)
			}
			if before.Waiters != 2 {
				t.Errorf("after a minute %d clients wait, want 2", before.Waiters)
			}
			if err := held.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := []string{<-order, <-order}; got[0] != "b:1" {
				t.Errorf("granted in the order %q", got)
			}
		})
	}
}

// TestLostRenewal lets the store carry out a renewal with a shorter TTL without
// an answer. Its write is the first request, because no other client has
// changed the record.
func TestLostRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := cas.Options{Name: "memory"}
		store, link := castest.Disturb(t, newMemory(o))
		d := cas.New(store, o)
		l, err := d.Acquire(t.Context(), request("a:1"))
		if err != nil {
			t.Fatal(err)
		}
		link.LoseOne()
		sent := time.Now()
		if err := l.Renew(t.Context(), time.Second); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("unanswered renewal: got %v, want ErrUnknown", err)
		}
		if end := l.Expires(); end.After(sent.Add(time.Second)) {
			t.Errorf("the lease expires %v after the renewal, want 1s", end.Sub(sent))
		}
		if err := l.Renew(t.Context(), time.Minute); err != nil {
			t.Errorf("the next renewal: %v", err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestDeadlineOfAFirstRequest has a deadline pass while the first request for a
// name is under way.
func TestDeadlineOfAFirstRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, link := castest.Disturb(t, newMemory(cas.Options{}))
		d := cas.New(store, cas.Options{Name: "memory"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		link.Hang()
		if _, err := d.Acquire(ctx, request("a:1")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		link.Heal()
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCrowd has a thousand callers of one driver wait for one name. They share
// reads and writes.
func TestCrowd(t *testing.T) {
	const many = 1000
	synctest.Test(t, func(t *testing.T) {
		o := cas.Options{Name: "memory"}
		m := newMemory(o)
		d := cas.New(m, o)
		defer d.Close(context.Background())
		held, err := d.Acquire(t.Context(), request("a:0"))
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan error, many)
		for i := range many {
			r := request(fmt.Sprintf("b:%d", i))
			r.NoWait = false
			go func() { // ends when it is granted, or with the context of the test
				l, err := d.Acquire(t.Context(), r)
				if err == nil {
					err = l.Release(t.Context())
				}
				granted <- err
			}()
		}
		time.Sleep(5 * time.Second) // of fake time
		if n := m.counted(); n > 200 {
			t.Errorf("%d requests when all had waited for a while, want 200 or fewer", n)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
		for range many {
			if err := <-granted; err != nil {
				t.Error(err)
			}
		}
		if n := m.counted(); n > 2*many {
			t.Errorf("%d requests for %d grants, want two or fewer each", n, many)
		}
	})
}

// TestBatches checks that a driver renews many holds in few requests, and
// renews a hold by itself if another driver waits for its name.
func TestBatches(t *testing.T) {
	const many = 2500
	for _, o := range []cas.Options{{}, {Clock: true}, {Rising: true}} {
		synctest.Test(t, func(t *testing.T) {
			o.Name = "memory"
			m := newMemory(o)
			d, other := cas.New(m, o), cas.New(m, o)
			var leases []driver.Lease
			for i := range many {
				r := request(fmt.Sprintf("a:%d", i))
				r.Name = r.Hold
				l, err := d.Acquire(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				leases = append(leases, l)
			}
			waiter := request("b:1")
			waiter.Name, waiter.NoWait = "a:7", false
			ctx, cancel := context.WithCancel(t.Context())
			go other.Acquire(ctx, waiter) // ends when ctx ends, before other is closed
			time.Sleep(time.Second)
			m.batches = 0
			d.RenewAll(t.Context(), leases, func(i int, err error) {
				if left := time.Until(leases[i].Expires()); err != nil || left < time.Minute {
					t.Errorf("renewal %d: error %v, and the lease lasts %v", i, err, left)
				}
			})
			if m.batches != 3 {
				t.Errorf("%d requests, want 3", m.batches)
			}
			cancel()
			for _, d := range []driver.Driver{other, d} {
				if err := d.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestRenewalsOfOneName renews more leases of a name than are renewed at a time,
// when no other renewal is under way.
func TestRenewalsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := cas.Options{Name: "memory", Clock: true}
		d := cas.New(newMemory(o), o)
		var leases []driver.Lease
		for i := range 300 {
			r := request(fmt.Sprintf("a:%d", i))
			r.Mode = driver.Read
			l, err := d.Acquire(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, l)
		}
		if err := leases[299].Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		d.RenewAll(ctx, leases[:299], func(i int, err error) {
			if err != nil {
				t.Errorf("renewal %d: %v", i, err)
			}
		})
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// rows is a store of Options.Plain whose records stay. It refuses to change a
// hold without a renewal. The first write is neither answered nor carried out,
// and then all requests fail until the store is up again.
type rows struct {
	*memory
	state atomic.Int32
}

const firstWrite, down, up = 0, 1, 2

func (r *rows) Read(ctx context.Context, name string) (cas.Entry, error) {
	if r.state.Load() == down {
		return cas.Entry{}, errors.New("no answer")
	}
	return r.memory.Read(ctx, name)
}

func (r *rows) Write(ctx context.Context, name string, value []byte, version string) (string, error) {
	if r.state.CompareAndSwap(firstWrite, down) || r.state.Load() == down {
		return "", errors.New("no answer")
	}
	var v struct {
		Nonce string
		Holds []struct{ Beat string }
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return "", err
	}
	if len(v.Holds) > 0 && v.Holds[0].Beat != v.Nonce {
		return "", cas.ErrChanged
	}
	return r.memory.Write(ctx, name, value, version)
}

// TestLateFirstRow checks that an unanswered first write does not disturb later
// writes by other clients.
func TestLateFirstRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := cas.Options{Name: "memory", Clock: true, Plain: true}
		m := newMemory(o)
		r := &rows{memory: m}
		d, other := cas.New(r, o), cas.New(m, o)
		if _, err := d.Acquire(t.Context(), request("a:1")); !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("the first Acquire: %v, want ErrUnknown", err)
		}
		l, err := other.Acquire(t.Context(), request("b:1"))
		if err != nil {
			t.Fatal(err)
		}
		r.state.Store(up)
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.Acquire(ctx, request("a:2")); !errors.Is(err, driver.ErrLocked) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("Acquire of the held name: %v, want ErrLocked", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		for _, d := range []driver.Driver{d, other} {
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestFreeName counts the requests for a lock and its release.
func TestFreeName(t *testing.T) {
	for _, test := range []struct {
		o           cas.Options
		first, next int
	}{
		{cas.Options{}, 3, 2},
		{cas.Options{Clock: true}, 3, 2},
		{cas.Options{NoTokens: true}, 2, 2},
		{cas.Options{Rising: true}, 2, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			test.o.Name = "memory"
			m := newMemory(test.o)
			d := cas.New(m, test.o)
			defer d.Close(context.Background())
			for i, want := range []int{test.first, test.next} {
				l, err := d.Acquire(t.Context(), request("a:1"))
				if err == nil {
					err = l.Release(t.Context())
				}
				if n := m.counted(); err != nil || n != want {
					t.Errorf("%+v, lock %d: %v, and %d requests, want %d", test.o, i+1, err, n, want)
				}
			}
			for range 1100 { // more often than there are desks that stay
				m.counted()
				l, err := d.Acquire(t.Context(), request("a:1"))
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if n := m.counted(); n != test.next {
				t.Errorf("%+v, lock 1102: %d requests, want %d", test.o, n, test.next)
			}
		})
	}
}
