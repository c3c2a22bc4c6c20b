package redisson

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// These tests cover the user's view: the driver under a dsync.Client, on a real
// Redis, in one process and in several.

// client returns a client of s that is closed when the test ends.
func client(tb testing.TB, s *testenv.RedisServer, parameters string) *dsync.Client {
	tb.Helper()
	return clientOf(tb, "redisson://"+s.Addr+"/"+parameters)
}

func clientOf(tb testing.TB, url string) *dsync.Client {
	tb.Helper()
	c, err := dsync.Open(context.Background(), url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return c
}

func lock(tb testing.TB, l dsync.Locker, name string, opts ...dsync.LockOption) *dsync.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	lease, err := l.Lock(ctx, name, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return lease
}

// roles are the functions that this test binary runs as another process; see
// testenv.Spawn.
var roles = map[string]func(){"count": countRole, "hold": holdRole, "terminated": drivertest.TerminatedRole}

// spawn runs a role with a client of s.
func spawn(t *testing.T, s *testenv.RedisServer, role, parameters string, env ...string) *testenv.Process {
	return testenv.Spawn(t, role, append(env, "LOCK_URL=redisson://"+s.Addr+"/"+parameters)...)
}

func roleClient() *dsync.Client {
	c, err := dsync.Open(context.Background(), os.Getenv("LOCK_URL"), nil)
	if err != nil {
		panic(err)
	}
	return c
}

func countRole() {
	ctx := context.Background()
	c := roleClient()
	testenv.Count(func() (func() error, error) {
		l, err := c.Lock(ctx, "counter")
		if err != nil {
			return nil, err
		}
		return func() error { return l.Unlock(ctx) }, nil
	})
	if err := c.Close(ctx); err != nil {
		panic(err)
	}
}

// holdRole holds the lock "x". On "spin" it checks its lease as often as it can
// until the lease is lost. On "unlock" it unlocks.
func holdRole() {
	ctx := context.Background()
	c := roleClient()
	lease, err := c.Lock(ctx, "x")
	if err != nil {
		panic(err)
	}
	fmt.Println("holds")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "spin":
			fmt.Println("spins")
			fmt.Println(spin(lease))
		case "unlock":
			err := lease.Unlock(ctx)
			fmt.Println(errors.Is(err, dsync.ErrLost), errors.Is(err, dsync.ErrNotHeld))
		}
	}
}

// spin checks a lease until it has ended. The lease is late if Err was nil
// although the deadline had passed before the call.
func spin(lease *dsync.Lease) string {
	for {
		deadline := lease.Deadline()
		now := time.Now()
		err := lease.Err()
		switch {
		case errors.Is(err, dsync.ErrLost):
			return "lost"
		case err != nil:
			return err.Error()
		case now.After(deadline):
			return "late"
		}
	}
}

func TestClientExclusionBetweenProcesses(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	c := testenv.NewCounter(t)
	c.Spawn(4, "count", 100, 1, "LOCK_URL=redisson://"+s.Addr)
	c.Run()
}

func TestClientExclusionBetweenClients(t *testing.T) {
	s := testenv.Redis(t)
	a, b := client(t, s, ""), client(t, s, "")
	var counter int
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 100 {
				lease := lock(t, []*dsync.Client{a, b}[i%2], "x")
				counter++
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if counter != 1600 {
		t.Errorf("counted %d, want 1600", counter)
	}
}

func TestClientReentryKeepsOneField(t *testing.T) {
	s := testenv.Redis(t)
	c, other := client(t, s, ""), client(t, s, "")
	o := c.NewOwner()
	var leases []*dsync.Lease
	for range 3 {
		leases = append(leases, lock(t, o, "x"))
	}
	for i, l := range leases {
		if got := s.Do("HLEN", "x"); got != int64(1) {
			t.Errorf("the hash has %v fields while %d leases are held, want 1", got, 3-i)
		}
		if got := s.Do("HVALS", "x").([]any); len(got) != 1 || !strings.HasPrefix(got[0].(string), fmt.Sprintf("#%d\n", l.Token())) {
			t.Errorf("the hash has the values %q, want one hold with the token %d", got, l.Token())
		}
		if _, err := other.TryLock(t.Context(), "x"); !errors.Is(err, dsync.ErrLocked) {
			t.Errorf("TryLock of another client: %v, want ErrLocked", err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := s.Do("EXISTS", "x"); got != int64(0) {
		t.Error("the lock is still there after the last Unlock")
	}
}

func TestClientFixedLeaseEndsByItself(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	a, b := client(t, s, ""), client(t, s, "")
	for range 5 {
		l := lock(t, a, "x", dsync.ExpireAfter(300*time.Millisecond))
		told := make(chan time.Time, 1)
		go func() {
			<-l.Done()
			told <- time.Now()
		}()
		next := lock(t, b, "x")
		granted := time.Now()
		if deadline := l.Deadline(); granted.Before(deadline) {
			t.Errorf("the next client was granted the lock %v before the deadline of the lease", deadline.Sub(granted))
		}
		if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Err of the first lease when the next was granted: %v, want ErrLost", err)
		}
		<-told
		if err := l.Unlock(t.Context()); !errors.Is(err, dsync.ErrLost) {
			t.Errorf("Unlock of the first lease: %v, want ErrLost", err)
		}
		if err := next.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock of the next lease: %v", err)
		}
	}
}

func TestClientKilledHolderFreesTheLockWithinItsTTL(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	c := client(t, s, "?ttl=1s")
	p := spawn(t, s, "hold", "?ttl=1s")
	p.Line()
	p.Kill()
	killed := time.Now()
	lock(t, c, "x")
	if got := time.Since(killed); got > 10*time.Second {
		t.Errorf("granted %v after the holder was killed, at a TTL of 1 s", got)
	}
}

func TestClientStoppedHolderFindsItsLeaseLost(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	c := client(t, s, "?ttl=1s")
	p := spawn(t, s, "hold", "?ttl=1s")
	p.Line()
	p.Send("spin")
	p.Line()
	p.Stop()
	next := lock(t, c, "x") // when the lease of the stopped holder has ended
	holder := s.Do("HKEYS", "x")
	p.Cont()
	if got, want := p.Line(), "lost"; got != want {
		t.Errorf("the stopped holder printed %q, want %q", got, want)
	}
	p.Send("unlock")
	if got, want := p.Line(), "true true"; got != want {
		t.Errorf("whether the error of its Unlock matches ErrLost and ErrNotHeld: %s, want %s", got, want)
	}
	if got := s.Do("HKEYS", "x"); fmt.Sprint(got) != fmt.Sprint(holder) || next.Err() != nil {
		t.Errorf("the next holder: %v in Redis, Err %v; want %v and a live lease", got, next.Err(), holder)
	}
}

func TestClientWatchdogKeepsAShortLock(t *testing.T) {
	t.Parallel() // it takes 10 s
	s := testenv.Redis(t)
	a, b := client(t, s, "?ttl=1s"), client(t, s, "")
	l := lock(t, a, "x")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := b.Lock(ctx, "x") // waits, and tries at each backstop
	if !errors.Is(err, dsync.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock of another client for 10 s: %v, want ErrLocked and the deadline", err)
	}
	if err := l.Err(); err != nil {
		t.Errorf("Err after 10 s: %v", err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClientWaiterIsWokenByTheRelease(t *testing.T) {
	s := testenv.Redis(t)
	a, b := client(t, s, "?ttl=1h"), client(t, s, "?ttl=1h") // no timer can help: the guard of lock is shorter
	for range 10 {
		l := lock(t, a, "x")
		granted := make(chan struct{})
		go func() {
			defer close(granted)
			_ = lock(t, b, "x").Unlock(t.Context())
		}()
		subscribers(t, s, "x", 1)
		asked := s.Commands()
		_ = l.Unlock(t.Context())
		<-granted
		after := s.Commands()
		if got := after["evalsha"] - asked["evalsha"]; got > 5 {
			t.Errorf("a hand-over took %d scripts, want a release, a try, a release, and at most two tries of the backstop", got)
		}
	}
}

func TestClientCanceledWaitsLeaveNothing(t *testing.T) {
	s := testenv.Redis(t)
	holder := client(t, s, "")
	clients := []*dsync.Client{client(t, s, ""), client(t, s, ""), client(t, s, ""), client(t, s, "")}
	l := lock(t, holder, "x")
	wait := func(i int, d time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		if _, err := clients[i%4].Lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock: %v, want the deadline", err)
		}
	}
	for i := range clients {
		wait(i, 100*time.Millisecond) // makes the connection that listens, which stays
	}
	before := runtime.NumGoroutine()
	parallel(100, func(i int) {
		for range 10 {
			wait(i, time.Duration(1+i%20)*time.Millisecond)
		}
	})
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	subscribers(t, s, "x", 0)
	if got := keysOf(s); len(got) != 0 {
		t.Errorf("keys %q are left", got)
	}
	for _, key := range s.Do("KEYS", "*").([]any) {
		if ttl := s.Do("PTTL", key.(string)).(int64); ttl <= 0 {
			t.Errorf("the key %q does not expire", key)
		}
	}
	testenv.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+8 }, "no goroutine of a wait is left")
}

func TestClientTokensRiseOverManyGrants(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	var last uint64 // guarded by the lock
	parallel(8, func(i int) {
		c := client(t, s, "")
		for range testenv.Briefly(250, 1250) {
			l := lock(t, c, "x")
			if l.Token() <= last {
				t.Errorf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestClientFlushUnderAHolderIsReported(t *testing.T) {
	s := testenv.Redis(t)
	c := client(t, s, "?ttl=1s")
	l := lock(t, c, "x")
	s.Do("FLUSHALL")
	<-l.Done()
	if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
		t.Errorf("Err after FLUSHALL: %v, want ErrLost", err)
	}
	if now, deadline := time.Now(), l.Deadline(); now.After(deadline) {
		t.Errorf("notified %v after the deadline, want at the next renewal", now.Sub(deadline))
	}
	again := lock(t, c, "x")
	if again.Token() <= l.Token() {
		t.Errorf("token %d after %d: a flush restarted the count", again.Token(), l.Token())
	}
}

func TestClientForceUnlockTellsTheHolder(t *testing.T) {
	s := testenv.Redis(t)
	a, b := client(t, s, "?ttl=1s"), client(t, s, "")
	l := lock(t, a, "x")
	if err := b.ForceUnlock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	<-l.Done()
	if err := l.Err(); !errors.Is(err, dsync.ErrLost) {
		t.Errorf("Err: %v, want ErrLost", err)
	}
	if err := b.ForceUnlock(t.Context(), "x"); !errors.Is(err, dsync.ErrNotHeld) {
		t.Errorf("ForceUnlock of a free lock: %v, want ErrNotHeld", err)
	}
}
