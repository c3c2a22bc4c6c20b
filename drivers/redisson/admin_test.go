package redisson

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	if got, err := d.Inspect(t.Context(), "x"); err != nil || got.Held || got.Waiters != 0 || got.Token != 0 {
		t.Errorf("a name that was never locked: got %+v, %v, want nothing", got, err)
	}
	r := request("x")
	r.Events.(*events).tokens = 5
	l := acquire(t, d, r)
	first, n := l.Tokens()
	w := wait(t, d, request("x"))
	subscribers(t, s, "x", 1)
	got, err := d.Inspect(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if !got.Held || got.Hold != r.Hold || got.Token != first+uint64(n)-1 || got.Waiters != 1 || got.TTL <= 0 || got.TTL > r.TTL {
		t.Errorf("held: got %+v, want hold %s, token %d, 1 waiter and a TTL up to %v", got, r.Hold, first+uint64(n)-1, r.TTL)
	}
	release(t, l)
	release(t, w.granted(t))

	s.Do("HSET", "rw", "mode", "write", "8743c9c0:7:write", "1") // Redisson's read-write lock
	if got, err := d.Inspect(t.Context(), "rw"); err != nil || !got.Held || got.Hold != "8743c9c0:7" || got.Mode != driver.Write || got.TTL != 0 {
		t.Errorf("a foreign hold without TTL: got %+v, %v", got, err)
	}
	s.Do("SET", "text", "text")
	if _, err := d.Inspect(t.Context(), "text"); err == nil {
		t.Error("a key of another type: got no error")
	}
}

func TestForceUnlock(t *testing.T) {
	s := testenv.Redis(t)
	d, admin := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	if err := admin.ForceUnlock(t.Context(), "x"); err != driver.ErrNotHeld {
		t.Errorf("a free name: got %v, want ErrNotHeld", err)
	}
	l := acquire(t, d, request("x"))
	w := wait(t, d, request("x"))
	subscribers(t, s, "x", 1)
	start := time.Now()
	if err := admin.ForceUnlock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	next := w.granted(t)
	if took := time.Since(start); took > backstop/2 {
		t.Errorf("the waiter got the lock after %v", took)
	}
	if err := l.Renew(t.Context(), time.Minute); err != driver.ErrNotHeld {
		t.Errorf("Renew of the old hold: got %v, want ErrNotHeld", err)
	}
	if err := l.Release(t.Context()); err != driver.ErrNotHeld {
		t.Errorf("Release of the old hold: got %v, want ErrNotHeld", err)
	}
	release(t, next)

	s.Do("SET", "text", "text")
	if err := admin.ForceUnlock(t.Context(), "text"); err == nil || s.Do("GET", "text") != "text" {
		t.Errorf("a key of another type: got %v, want an error and the key", err)
	}
}

func TestRenewAll(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const n = 10_000
	leases := make([]driver.Lease, n)
	parallel(50, func(i int) {
		for j := i; j < n; j += 50 {
			leases[j] = acquire(t, d, forLong(fmt.Sprint("x", j)))
		}
	})
	const gone, replaced, foreign, released = 17, 4711, 2000, 9999
	s.Do("DEL", "x17", "x4711", "x2000")
	s.Do("HSET", "x4711", "other:1", "1")
	s.Do("SET", "x2000", "text")
	release(t, leases[released])
	s.Do("EVAL", "for i = 0, 9999 do redis.call('PEXPIRE', 'x' .. i, 30000) end", "0")
	d.RenewAll(t.Context(), leases[:1], func(int, error) {}) // the server learns the script

	outcomes := make([]error, n)
	calls := make([]int, n)
	before := time.Now()
	got := counted(s, func() {
		d.RenewAll(t.Context(), leases, func(i int, err error) {
			outcomes[i] = err
			calls[i]++
		})
	}, "evalsha", "eval")
	if got["evalsha"] > n/renewKeys+1 || got["eval"] > 0 {
		t.Errorf("scripts for %d leases: got %v, want %d", n, got, n/renewKeys)
	}
	for i, l := range leases {
		var want error
		switch i {
		case gone, replaced, foreign, released:
			want = driver.ErrNotHeld
		}
		if outcomes[i] != want || calls[i] != 1 {
			t.Fatalf("lease %d: got %v by %d calls, want %v by one", i, outcomes[i], calls[i], want)
		}
		if want == nil && l.Expires().Before(before.Add(time.Minute)) {
			t.Fatalf("lease %d: Expires did not move", i)
		}
	}
	if ttl := s.Do("PTTL", "x4712").(int64); ttl <= 30000 {
		t.Errorf("TTL of a lease that was renewed: got %d ms, want more than 30000", ttl)
	}
	if ttl := s.Do("PTTL", "x4711").(int64); ttl > 30000 {
		t.Errorf("TTL of another client's hold: got %d ms, want at most 30000", ttl)
	}
}

func TestRenewAllOfOneNameTwice(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	stale := acquire(t, d, request("x"))
	s.Do("DEL", "x")
	l := acquire(t, d, request("x"))
	outcomes := make([]error, 2)
	d.RenewAll(t.Context(), []driver.Lease{stale, l}, func(i int, err error) { outcomes[i] = err })
	if outcomes[0] != driver.ErrNotHeld || outcomes[1] != nil {
		t.Errorf("got %v, want ErrNotHeld for the stale lease and nil for the other lease", outcomes)
	}
	release(t, l)
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	other := openURL(t, "redisson://%s", s.Addr)
	const n = 2500
	leases := make([]*lease, n)
	parallel(50, func(i int) {
		for j := i; j < n; j += 50 {
			leases[j] = acquire(t, d, forLong(fmt.Sprint("x", j)))
		}
	})
	foreign := acquire(t, other, forLong("foreign"))
	waiters := []*waiter{wait(t, d, request("foreign")), wait(t, d, request("x0")), wait(t, d, request("x0"))}
	outsider := wait(t, other, request("x1"))
	subscribers(t, s, "x1", 1)
	got := counted(s, func() {
		if err := d.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	}, "evalsha")
	if got["evalsha"] < n || got["evalsha"] > n+4 { // a script for each, pipelined, and one attempt of the other client
		t.Errorf("scripts: got %d, want %d", got["evalsha"], n)
	}
	for _, w := range waiters {
		if <-w.done; !errors.Is(w.err, driver.ErrClosed) {
			t.Errorf("a waiter: got %v, want ErrClosed", w.err)
		}
	}
	release(t, outsider.granted(t))
	if keys := keysOf(s); len(keys) != 1 {
		t.Errorf("keys: got %d, want only the key of the other driver", len(keys))
	}
	release(t, foreign)
	subscribers(t, s, "foreign", 0)
	if clients := s.Do("CLIENT", "LIST").(string); strings.Count(clients, "name=dsync") > 2 {
		t.Errorf("connections are left:\n%s", clients)
	}
	if _, err := d.Acquire(t.Context(), request("x")); err != driver.ErrClosed {
		t.Errorf("Acquire: got %v, want ErrClosed", err)
	}
	if err := leases[0].Release(t.Context()); err != driver.ErrNotHeld {
		t.Errorf("Release: got %v, want ErrNotHeld", err)
	}
	if err := leases[0].Renew(t.Context(), time.Minute); err != driver.ErrNotHeld {
		t.Errorf("Renew: got %v, want ErrNotHeld", err)
	}
	if _, err := d.Inspect(t.Context(), "x"); err != driver.ErrClosed {
		t.Errorf("Inspect: got %v, want ErrClosed", err)
	}
	if err := d.ForceUnlock(t.Context(), "x"); err != driver.ErrClosed {
		t.Errorf("ForceUnlock: got %v, want ErrClosed", err)
	}
}

func TestCloseAmidAcquires(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	for range 20 {
		d := openURL(t, "redisson://%s", s.Addr)
		started := make(chan struct{}, 50)
		done := make(chan struct{})
		go func() { // ends when the driver is closed
			defer close(done)
			parallel(cap(started), func(i int) {
				for n := 0; ; n++ {
					_, err := d.Acquire(context.Background(), request(fmt.Sprint("x", i, ".", n)))
					if n == 0 {
						started <- struct{}{}
					}
					if err != nil {
						if !errors.Is(err, driver.ErrClosed) {
							t.Errorf("Acquire: got %v, want ErrClosed", err)
						}
						return
					}
				}
			})
		}()
		for range cap(started) {
			<-started
		}
		if err := d.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		<-done
		if keys := keysOf(s); len(keys) != 0 {
			t.Fatalf("keys: got %d, want none", len(keys))
		}
	}
}

func TestCloseWithAFrozenServer(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	acquire(t, d, request("x"))
	w := wait(t, d, request("x"))
	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := d.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("Close: got %v, want ErrUnknown and context.DeadlineExceeded", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("Close returned after %v", took)
	}
	if <-w.done; !errors.Is(w.err, driver.ErrClosed) {
		t.Errorf("the waiter: got %v, want ErrClosed", w.err)
	}
	s.Thaw()
}
