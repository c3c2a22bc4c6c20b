package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// rival is a client of another library.
type rival struct{ lock, unlock func() error }

// rivals contains functions that make rivals, each with its own session.
var rivals = map[string]func(tb testing.TB, c *clientv3.Client, name string) rival{
	"Mutex": func(tb testing.TB, c *clientv3.Client, name string) rival {
		m := newMutex(tb, c, name)
		return rival{func() error { return m.Lock(guard(tb)) }, func() error { return m.Unlock(guard(tb)) }}
	},
	"RLock": func(tb testing.TB, c *clientv3.Client, name string) rival {
		m := newRWMutex(tb, c, name)
		return rival{m.RLock, m.RUnlock}
	},
	"Lock": func(tb testing.TB, c *clientv3.Client, name string) rival {
		m := newRWMutex(tb, c, name)
		return rival{m.Lock, m.Unlock}
	},
}

// newRWMutex returns a read-write lock of package recipe. Its calls take no
// context and end with the client at the latest.
func newRWMutex(tb testing.TB, c *clientv3.Client, name string) *recipe.RWMutex {
	tb.Helper()
	return recipe.NewRWMutex(newSession(tb, c), name)
}

// begin calls lock in another goroutine and returns when its key is there.
func (r rival) begin(tb testing.TB, c *clientv3.Client, name string) (locked <-chan error) {
	tb.Helper()
	before := len(keys(tb, c, name+"/"))
	outcome := make(chan error, 1)
	go func() { outcome <- r.lock() }() // ends when the client ends
	testenv.Eventually(tb, func() bool { return len(keys(tb, c, name+"/")) == before+1 }, "the rival has a key")
	return outcome
}

// waits fails the test if a rival holds the lock. It checks for as long as
// several requests take, because a rival sends one request before it waits.
func waits(tb testing.TB, c *clientv3.Client, locked <-chan error) {
	tb.Helper()
	for range 20 {
		keys(tb, c, "")
	}
	select {
	case err := <-locked:
		tb.Errorf("the rival does not wait: %v", err)
	default:
	}
}

func granted(tb testing.TB, locked <-chan error) {
	tb.Helper()
	select {
	case err := <-locked:
		if err != nil {
			tb.Fatal(err)
		}
	case <-time.After(hangGuard):
		tb.Fatal("the rival is not granted the lock")
	}
}

func in(mode driver.Mode, r *driver.Request) *driver.Request {
	r.Mode = mode
	return r
}

// TestModesBesideRivals has each mode meet each kind of rival, with either of
// them first.
func TestModesBesideRivals(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	for kind, newRival := range rivals {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Write} {
			t.Run(fmt.Sprint(mode, " and ", kind), func(t *testing.T) {
				name := fmt.Sprint(mode, "/", kind)
				theirs := newRival(t, c, name)
				beside := mode == driver.Read && kind == "RLock"
				wantErr := func(what string, err error) {
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				}

				l := acquire(t, d, in(mode, request(name)))
				locked := theirs.begin(t, c, name)
				if beside || mode == driver.Exclusive && kind == "RLock" { // a reader does not check for exclusive locks
					granted(t, locked)
					release(t, l)
				} else {
					waits(t, c, locked)
					release(t, l)
					granted(t, locked)
				}

				if beside {
					release(t, acquire(t, d, in(mode, request(name))))
					release(t, acquire(t, d, in(mode, noWait(name))))
					wantErr("unlock", theirs.unlock())
					return
				}
				if _, err := d.Acquire(t.Context(), in(mode, noWait(name))); err != driver.ErrLocked {
					t.Errorf("our TryLock while they hold the lock: got %v, want %v", err, driver.ErrLocked)
				}
				ours := wait(t, d, in(mode, request(name)))
				before := revision(t, c)
				wantErr("unlock", theirs.unlock())
				l = ours.Granted(t)
				if token(l) <= uint64(before) {
					t.Errorf("token: got %d, want more than the revision %d at which they held the lock", token(l), before)
				}
				release(t, l)
			})
		}
	}
}

// TestOrderBesideRWMutex has readers and writers of both kinds in one queue, on
// one server and on three.
func TestOrderBesideRWMutex(t *testing.T) {
	t.Parallel()
	for nodes, start := range map[int]func() []*testenv.EtcdServer{
		1: func() []*testenv.EtcdServer { return []*testenv.EtcdServer{testenv.Etcd(t)} },
		3: func() []*testenv.EtcdServer { return testenv.EtcdCluster(t, 3) },
	} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			servers := start()
			c := userClient(t, servers[0].Addr)
			a, b := openURL(t, "etcd://%s", servers[0].Addr), openURL(t, "etcd://%s", servers[nodes-1].Addr)
			theirs := func(kind string) (r rival, locked <-chan error) {
				r = rivals[kind](t, c, "a")
				return r, r.begin(t, c, "a")
			}
			unlock := func(r rival) {
				t.Helper()
				if err := r.unlock(); err != nil {
					t.Fatal(err)
				}
			}

			read := acquire(t, a, in(driver.Read, request("a")))
			writer, written := theirs("Lock")
			waits(t, c, written)
			newcomer := wait(t, b, in(driver.Read, request("a"))) // which does not overtake their writer
			_, err := b.Acquire(t.Context(), in(driver.Read, noWait("a")))
			wantErr(t, "a try behind their writer", err, driver.ErrLocked)
			ourWriter := wait(t, b, in(driver.Write, request("a")))
			reader, locked := theirs("RLock") // which does not overtake ours
			waits(t, c, locked)

			release(t, read)
			granted(t, written)
			if !newcomer.Waits() {
				t.Error("our reader holds the lock together with their writer")
			}
			unlock(writer)
			read = newcomer.Granted(t)
			if !ourWriter.Waits() {
				t.Error("our writer holds the lock together with our reader")
			}
			waits(t, c, locked)
			ourWriter.Cancel() // and no longer delays their reader
			granted(t, locked)
			if _, err := ourWriter.End(t); !errors.Is(err, context.Canceled) {
				t.Errorf("our writer: got %v, want %v", err, context.Canceled)
			}
			other := acquire(t, b, in(driver.Read, request("a"))) // together with both
			write := wait(t, a, in(driver.Write, request("a")))
			release(t, other)
			unlock(reader)
			if !write.Waits() {
				t.Error("our writer holds the lock together with our reader")
			}
			release(t, read)
			release(t, write.Granted(t))
		})
	}
}

// TestRWMutexOverlooksNothing checks that the two requests that would put a key
// again are refused while a waiter would no longer see the key.
func TestRWMutexOverlooksNothing(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	pass := func(l driver.Lease) error { return l.(driver.Passer).Pass(guard(t), "next", "") }

	write := acquire(t, d, in(driver.Write, request("a")))
	if err := pass(write); err != nil {
		t.Fatalf("Pass: %v", err)
	}
	first := rivals["RLock"](t, c, "a")
	read := first.begin(t, c, "a")
	second := rivals["Lock"](t, c, "a")
	written := second.begin(t, c, "a") // watches the key of the first
	before := token(write)
	wantErr(t, "Pass", pass(write), errors.ErrUnsupported)
	if got := token(write); got != before {
		t.Errorf("token: got %d, want %d as before", got, before)
	}
	if _, err := c.Delete(t.Context(), keys(t, c, "a/read/")[0]); err != nil { // the first is gone, and the second reads the queue again
		t.Fatal(err)
	}
	waits(t, c, written)
	release(t, write)
	granted(t, written)
	if err := second.unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}

	extended := acquire(t, d, in(driver.Read, fixed(request("b"), 10*time.Second)))
	if err := extended.Renew(t.Context(), 30*time.Second); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	second = rivals["Lock"](t, c, "b")
	written = second.begin(t, c, "b")
	expires := extended.Expires()
	wantErr(t, "Renew", extended.Renew(t.Context(), 20*time.Second), errors.ErrUnsupported)
	if got := extended.Expires(); !got.Equal(expires) {
		t.Errorf("expires: got %v, want %v as before", got, expires)
	}
	waits(t, c, written)
	if _, err := c.Delete(t.Context(), keys(t, c, "b/write/")[0]); err != nil {
		t.Fatal(err)
	}
	if err := extended.Renew(t.Context(), 20*time.Second); err != nil {
		t.Errorf("Renew without a waiter: %v", err)
	}
	release(t, extended)
	granted(t, written)
}

// TestReadsAreNeverTorn checks that readers of both kinds see complete values
// while writers of both kinds write.
func TestReadsAreNeverTorn(t *testing.T) {
	t.Parallel()
	const each = 2
	rounds := testenv.Briefly(15, 60)
	s := testenv.Etcd(t)
	var first, second atomic.Int64
	write := func() {
		n := first.Load() + 1
		first.Store(n)
		<-time.After(100 * time.Microsecond)
		second.Store(n)
	}
	read := func() {
		a := second.Load()
		<-time.After(time.Millisecond)
		if b := first.Load(); a != b {
			t.Errorf("half of a write: got %d and %d", b, a)
		}
	}
	var all sync.WaitGroup
	repeat := func(do func(), lock func() (unlock func() error)) {
		all.Go(func() {
			for range rounds {
				unlock := lock()
				do()
				if err := unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range each {
		for mode, do := range map[driver.Mode]func(){driver.Read: read, driver.Write: write} {
			d := openURL(t, "etcd://%s", s.Addr)
			repeat(do, func() func() error {
				l, err := d.Acquire(guard(t), in(mode, request("a")))
				if err != nil {
					t.Error(err)
					return func() error { return nil }
				}
				return func() error { return l.Release(guard(t)) }
			})
		}
		for kind, do := range map[string]func(){"RLock": read, "Lock": write} {
			r := rivals[kind](t, userClient(t, s.Addr), "a")
			repeat(do, func() func() error {
				if err := r.lock(); err != nil {
					t.Error(err)
				}
				return r.unlock
			})
		}
	}
	all.Wait()
	if got, want := first.Load(), int64(2*each*rounds); got != want {
		t.Errorf("writes: got %d, want %d", got, want)
	}
}

func rwmutexRole() {
	mutex := recipe.NewRWMutex(sessionOfRole(), "counter")
	testenv.Count(func() (func() error, error) { return mutex.Unlock, mutex.Lock() })
}
