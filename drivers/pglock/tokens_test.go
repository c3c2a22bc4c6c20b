package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/guard"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestTokensAfterARestore puts an older data directory back. Then tokens fall,
// and the guard of a resource elsewhere refuses all holders, until programs set
// the last token as a floor. See "After a restore from a backup" in
// docs/operations.md.
func TestTokensAfterARestore(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "fsync=on", "full_page_writes=on")
	token := func(parameters string) (token uint64) {
		t.Helper()
		client, err := dsync.Open(t.Context(), pg.URL("pglock")+"?sslmode=disable"+parameters, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(t.Context())
		for range 20 {
			if err := dsync.Do(t.Context(), client, "a", func(ctx context.Context) error {
				token = dsync.LeaseFrom(ctx).Token()
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		return token
	}
	replaceDir := func(from, to string) {
		t.Helper()
		for _, command := range [][]string{{"rm", "-rf", to}, {"cp", "-a", from, to}} {
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", command, err, out)
			}
		}
	}
	var resource guard.Memory
	backup := filepath.Join(t.TempDir(), "backup")
	before := token("")
	pg.Kill()
	replaceDir(pg.Dir, backup)
	pg.Start()
	token("")
	last := token("")
	if err := resource.Write("a", last); err != nil || last <= before {
		t.Fatalf("token %d after %d: %v", last, before, err)
	}
	pg.Kill()
	replaceDir(backup, pg.Dir)
	pg.Start()
	if fallen := token(""); fallen >= last || !errors.Is(resource.Write("a", fallen), guard.ErrStale) {
		t.Errorf("token %d after a restore, and %d before: this test needs a token that falls", fallen, last)
	}
	if err := resource.Write("a", token(fmt.Sprintf("&floor=%d", last))); err != nil {
		t.Errorf("with the last token as the floor: %v", err)
	}
}

func keep(tb testing.TB, l driver.Lease) {
	tb.Helper()
	if err := l.(driver.TokenKeeper).KeepTokens(tb.Context()); err != nil {
		tb.Fatalf("KeepTokens: %v", err)
	}
}

// TestTokensRiseOverCrashesOfTheServer kills the server under the load of
// clients that read their tokens, of clients that do not, and of one whose
// statement takes a token and flushes the log, like drivers without KeepTokens.
// All of them lock one name.
func TestTokensRiseOverCrashesOfTheServer(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "fsync=on", "full_page_writes=on")
	var mu sync.Mutex
	last := uint64(0)
	for range 20 {
		d := newDriver(t, pg.Addr, nil)
		ctx, cancel := context.WithCancel(t.Context())
		grants := make([]int, 5)
		asks := func() (before uint64) {
			mu.Lock()
			defer mu.Unlock()
			return last
		}
		granted := func(i int, before, first uint64, n int) { // perhaps later than the next call, if the server crashed
			mu.Lock()
			defer mu.Unlock()
			grants[i]++
			if n == 0 {
				return
			}
			if first <= before {
				t.Errorf("caller %d has token %d, but requested it when %d had been given out", i, first, before)
			}
			last = max(last, first+uint64(n)-1)
		}
		var wg sync.WaitGroup
		for i := range len(grants) - 1 {
			wg.Go(func() {
				for ctx.Err() == nil {
					before := asks()
					l, err := d.Acquire(ctx, request("a", longTTL))
					if err != nil {
						continue
					}
					first, n := uint64(0), 0
					if i%2 == 0 && l.(driver.TokenKeeper).KeepTokens(ctx) == nil {
						first, n = l.Tokens()
					}
					granted(i, before, first, n)
					l.Release(ctx)
				}
			})
		}
		wg.Go(func() {
			conn, err := pgx.Connect(ctx, pg.URL("postgres")+"?sslmode=disable")
			if err != nil {
				return
			}
			defer conn.Close(context.Background())
			for ctx.Err() == nil && !conn.IsClosed() {
				var xid uint64
				before := asks()
				err := conn.QueryRow(ctx, `SELECT CASE WHEN pg_advisory_lock($1)::text IS NOT NULL THEN `+
					`CASE WHEN pg_logical_emit_message(true, 'dsync', ''::text) IS NOT NULL THEN pg_current_xact_id() END END`, pglock.Key("a")).Scan(&xid)
				if err == nil {
					granted(len(grants)-1, before, xid*256, 256)
					conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, pglock.Key("a"))
				}
			}
		})
		testenv.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return min(grants[0], grants[1], grants[2], grants[3], grants[4]) >= 5
		}, "there is a load")
		pg.Restart()
		cancel()
		wg.Wait()
		closeDriver(t, d)
	}
}

// TestGrantsDoNotWaitForTheDisk has a server that answers no durable commit,
// because it waits for an absent standby.
func TestGrantsDoNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	d, other := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"} {
		if _, err := connect(t, pg).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	watch := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[string](t, watch, "SHOW synchronous_standby_names") == "nobody" }, "the setting is read")
	for range 10 {
		l := mustAcquire(t, d, request("a", longTTL))
		granted := make(chan driver.Lease)
		go func() { granted <- mustAcquire(t, other, request("a", longTTL)) }()
		testenv.Eventually(t, func() bool { return value[int](t, watch, advisoryLocks+" AND NOT granted") == 1 }, "another client waits")
		mustRelease(t, l)
		mustRelease(t, <-granted)
	}
	l := mustAcquire(t, d, request("a", longTTL))
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error)
	go func() { kept <- l.(driver.TokenKeeper).KeepTokens(ctx) }()
	testenv.Eventually(t, func() bool {
		return value[int](t, watch, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1
	}, "KeepTokens waits for the server")
	cancel()
	if err := <-kept; !errors.Is(err, context.Canceled) {
		t.Errorf("KeepTokens: got %v, want the error of its context", err)
	}
	for _, sql := range []string{"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"} {
		if _, err := watch.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	keep(t, l)
	mustRelease(t, l)
}

func testKeptTokensAreOnDisk(t *testing.T, pg *testenv.PostgresServer) {
	d, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			l := mustAcquire(t, d, request(fmt.Sprint("name", i), longTTL))
			keep(t, l)
			keep(t, l)
			mustRelease(t, l)
		})
	}
	wg.Wait()
	l := mustAcquire(t, d, request("a", longTTL))
	first, n := l.Tokens()
	written := value[string](t, conn, "SELECT pg_current_wal_insert_lsn()::text")
	keep(t, l)
	if !value[bool](t, conn, "SELECT pg_current_wal_flush_lsn() > $1::text::pg_lsn", written) {
		t.Error("the log has not been flushed since the grant")
	}
	if again, m := l.Tokens(); again != first || m != n {
		t.Errorf("Tokens: got %d from %d, and then %d from %d", n, first, m, again)
	}
	mustRelease(t, l)
}

func testTokensAreKeptDuringTheLeaseOnly(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, nil)
	kept, other := mustAcquire(t, d, request("a", longTTL)), mustAcquire(t, d, request("b", longTTL))
	keep(t, kept)
	mustRelease(t, kept)
	mustRelease(t, other)
	keep(t, kept)
	if err := other.(driver.TokenKeeper).KeepTokens(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("KeepTokens after Release: got %v, want ErrNotHeld", err)
	}
	fast := mustAcquire(t, newDriver(t, pg.Addr, &pglock.Options{Tokens: pglock.TokensFast}), request("c", longTTL))
	mustRelease(t, fast)
	keep(t, fast)
}

func testAnswerToKeepIsLost(t *testing.T, pg *testenv.PostgresServer) {
	link, addr := testenv.Wire(t, pg.Addr)
	d := newDriver(t, addr, nil)
	r := request("a", longTTL)
	l := mustAcquire(t, d, r)
	sent := link.HoldReply("keep")
	kept := make(chan error)
	go func() { kept <- l.(driver.TokenKeeper).KeepTokens(t.Context()) }()
	<-sent
	link.Cut()
	if err := <-kept; !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("KeepTokens: got %v, want ErrNotHeld", err)
	}
	link.Heal()
	<-r.Events.(*events).lost
	if err := l.(driver.TokenKeeper).KeepTokens(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("KeepTokens after the loss: got %v, want ErrNotHeld", err)
	}
}

func testShortWaitNeedsNoConfirmation(t *testing.T, pg *testenv.PostgresServer) {
	link, addr := testenv.Wire(t, pg.Addr)
	d, other := newDriver(t, addr, nil), newDriver(t, pg.Addr, nil)
	l := mustAcquire(t, other, request("a", longTTL))
	granted := make(chan driver.Lease)
	go func() { granted <- mustAcquire(t, d, request("a", longTTL)) }()
	watch := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[int](t, watch, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
	confirmed := link.HoldReply("ping")
	before := time.Now()
	mustRelease(t, l)
	select {
	case l = <-granted:
	case <-confirmed:
		t.Error("the grant is confirmed")
		link.Heal()
		l = <-granted
	}
	link.Heal()
	if end := l.Expires(); end.After(before.Add(longTTL)) || end.Before(before.Add(longTTL*2/3)) {
		t.Errorf("Expires is %v after the release of a lease of %v, want it to count from the request", end.Sub(before), longTTL)
	}
	mustRelease(t, l)
}
