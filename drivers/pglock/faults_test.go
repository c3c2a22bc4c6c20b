package pglock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func init() { roles["holder"] = holder }

// holder holds a lock in its own process, until it receives the command to
// release it.
func holder() {
	d, _, err := driver.Open(context.Background(), os.Getenv("DSYNC_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	ttl, _ := time.ParseDuration(os.Getenv("DSYNC_TTL"))
	r := request("frozen", ttl)
	l, err := d.Acquire(context.Background(), r)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held")
	bufio.NewScanner(os.Stdin).Scan()
	over := !time.Now().Before(l.Expires())
	err = l.Release(context.Background())
	fmt.Println(over, errors.Is(err, driver.ErrNotHeld) || errors.Is(err, driver.ErrUnknown))
	d.Close(context.Background())
}

func TestFrozenHolderIsFreedByTheServer(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	d := newDriver(t, pg.Addr, nil)
	const ttl = time.Second
	p := testenv.Spawn(t, "holder", "DSYNC_URL="+pg.URL("pglock"), "DSYNC_TTL="+ttl.String())
	if got := p.Line(); got != "held" {
		t.Fatal(got)
	}
	p.Stop()
	start := time.Now()
	l := mustAcquire(t, d, request("frozen", longTTL))
	t.Logf("freed %v after the freeze, with a TTL of %v", time.Since(start), ttl)
	p.Cont()
	p.Send("")
	if got := p.Line(); got != "true true" {
		t.Errorf("thawed holder: whether Expires has passed, and whether Release reports the loss: got %s, want true true", got)
	}
	mustRelease(t, l)
}

// TestReleaseOfAHoldThatHadEnded ends the session of a holder without the
// holder's knowledge. Its release, which gets no answer, must not report that
// it ended the hold, because another client holds the lock by then.
func TestReleaseOfAHoldThatHadEnded(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	link, addr := testenv.Wire(t, pg.Addr)
	d, other, conn := newDriver(t, addr, nil), newDriver(t, pg.Addr, nil), connect(t, pg)
	l := mustAcquire(t, d, request("a", longTTL))
	link.Hold(wire.Replies)
	value[int](t, conn, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'")
	next := mustAcquire(t, other, request("a", longTTL))
	released := make(chan error, 1)
	sent := link.HoldReply("unlock")
	go func() { released <- l.Release(t.Context()) }()
	select {
	case <-sent:
		link.Cut()
		link.Heal()
	case err := <-released: // it could not be sent
		released <- err
	case <-time.After(30 * time.Second):
		t.Fatal("the release was not sent")
	}
	if err := <-released; !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release: got %v, want ErrUnknown or ErrNotHeld", err)
	}
	link.Heal()
	mustRelease(t, next)
}

func testCutConnectionLosesTheLease(t *testing.T, pg *testenv.PostgresServer) {
	link, addr := testenv.Wire(t, pg.Addr)
	d, other := newDriver(t, addr, nil), newDriver(t, pg.Addr, nil)
	r := request("a", longTTL)
	l := mustAcquire(t, d, r)
	link.Cut()
	select {
	case err := <-r.Events.(*events).lost:
		if !errors.Is(err, driver.ErrSessionEnded) {
			t.Errorf("Events.Lost: got %v, want ErrSessionEnded", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the holder was not notified")
	}
	if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release: got %v, want ErrNotHeld", err)
	}
	if _, err := d.Acquire(t.Context(), try("a")); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Acquire while the network is down: got %v, want ErrUnavailable", err)
	}
	mustRelease(t, mustAcquire(t, other, request("a", longTTL)))
	link.Heal()
	mustRelease(t, mustAcquire(t, d, request("a", longTTL)))
}

// testWaitOnASilentConnectionEnds checks that a network that swallows
// everything does not delay a caller, and that neither a wait nor a hold stays
// behind.
func testWaitOnASilentConnectionEnds(t *testing.T, pg *testenv.PostgresServer) {
	const ttl = time.Second
	link, addr := testenv.Wire(t, pg.Addr)
	d, other := newDriver(t, addr, nil), newDriver(t, pg.Addr, nil)
	taken := mustAcquire(t, other, request("a", longTTL))
	own := request("b", ttl)
	l := mustAcquire(t, d, own)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error)
	r := request("a", ttl)
	go func() {
		_, err := d.Acquire(ctx, r)
		result <- err
	}()
	conn := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
	link.Hold(wire.Both)
	cancel()
	if err := <-result; !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("Acquire: got %v, want ErrLocked, the context's error and ErrUnknown", err)
	}
	expires := l.Expires()
	select {
	case err := <-own.Events.(*events).lost:
		if !errors.Is(err, driver.ErrSessionEnded) {
			t.Errorf("Events.Lost: got %v, want ErrSessionEnded", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the holder was not notified")
	}
	got := mustAcquire(t, other, request("b", longTTL))
	if now := time.Now(); now.Before(expires) {
		t.Errorf("granted to another client %v before Expires", expires.Sub(now))
	}
	mustRelease(t, got)
	mustRelease(t, taken)
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks) == 0 }, "neither a wait nor a hold is left")
	link.Heal()
}

func TestFullLockTableIsAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "max_connections=8", "max_locks_per_transaction=10", "max_wal_senders=0")
	d := newDriver(t, pg.Addr, &pglock.Options{MaxLocks: 100_000})
	var leases []driver.Lease
	for i := 0; ; i++ {
		l, err := d.Acquire(t.Context(), try(fmt.Sprint("n", i)))
		if err != nil {
			if !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Acquire with a full table: got %v, want ErrUnavailable", err)
			}
			break
		}
		leases = append(leases, l)
	}
	if len(leases) == 0 {
		t.Fatal("no lock at all")
	}
	for _, l := range leases {
		mustRelease(t, l)
	}
	mustRelease(t, mustAcquire(t, d, try("n0")))
}

// testErrorOfOneInAGroupIsItsOwn sends statements of several callers in one
// request, and one of them fails.
func testErrorOfOneInAGroupIsItsOwn(t *testing.T, pg *testenv.PostgresServer) {
	conn := connect(t, pg)
	if _, err := conn.Exec(t.Context(), "CREATE ROLE limited LOGIN; REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(int, int) FROM PUBLIC"); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig("postgres://limited@" + pg.Addr + "/postgres")
	if err != nil {
		t.Fatal(err)
	}
	d, err := pglock.New(t.Context(), config, &pglock.Options{Key: func(name string) (pglock.AdvisoryKey, error) {
		if name == "forbidden" {
			return pglock.Int32PairKey(1, 1), nil
		}
		return pglock.HashedKey(name)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer closeDriver(t, d)
	var mu sync.Mutex
	tokens := make(map[string]uint64)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			name := fmt.Sprint("allowed", i)
			if i%4 == 0 {
				name = "forbidden"
			}
			for range 20 {
				l, err := d.Acquire(t.Context(), request(name, longTTL))
				if name == "forbidden" {
					if !errors.Is(err, os.ErrPermission) {
						t.Errorf("Acquire without permission: got %v, want ErrPermission", err)
					}
					continue
				}
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				first, _ := l.Tokens()
				mu.Lock()
				if first <= tokens[name] {
					t.Errorf("token %d after %d", first, tokens[name])
				}
				tokens[name] = first
				mu.Unlock()
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
