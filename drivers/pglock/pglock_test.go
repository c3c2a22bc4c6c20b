package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

// longTTL is for leases that must not expire by themselves.
const longTTL = time.Minute

// newDriver opens a driver, which is closed at the end of the test.
func newDriver(tb testing.TB, addr string, o *pglock.Options) *pglock.Driver {
	tb.Helper()
	config, err := pgx.ParseConfig("postgres://postgres@" + addr + "/postgres?sslmode=disable")
	if err != nil {
		tb.Fatal(err)
	}
	d, err := pglock.New(tb.Context(), config, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeDriver(tb, d) })
	return d
}

func closeDriver(tb testing.TB, d driver.Driver) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := d.Close(ctx); err != nil && !errors.Is(err, driver.ErrClosed) {
		tb.Errorf("Close: %v", err)
	}
}

// connect makes a connection that is independent of the driver.
func connect(tb testing.TB, pg *testenv.PostgresServer) *pgx.Conn {
	tb.Helper()
	return connectTo(tb, pg, "postgres")
}

// connectTo returns a connection of the administrator to a database.
func connectTo(tb testing.TB, pg *testenv.PostgresServer, database string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), "postgres://postgres@"+pg.Addr+"/"+database+"?sslmode=disable")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// value returns the result of a query.
func value[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := conn.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// events counts the events that a driver reports for a request.
type events struct {
	waiting atomic.Int32
	lost    chan error
}

func newEvents() *events { return &events{lost: make(chan error, 8)} }

func (e *events) Waiting()         { e.waiting.Add(1) }
func (e *events) Tokens() int      { return 1 }
func (e *events) Lost(cause error) { e.lost <- cause }

var serial atomic.Int64

func request(name string, ttl time.Duration) *driver.Request {
	return &driver.Request{Name: name, Hold: fmt.Sprintf("client:%d", serial.Add(1)), Owner: "owner", TTL: ttl, Events: newEvents()}
}

func try(name string) *driver.Request {
	r := request(name, longTTL)
	r.NoWait = true
	return r
}

func mustAcquire(tb testing.TB, d driver.Driver, r *driver.Request) driver.Lease {
	tb.Helper()
	l, err := d.Acquire(tb.Context(), r)
	if err != nil {
		tb.Fatalf("Acquire: %v", err)
	}
	return l
}

func mustRelease(tb testing.TB, l driver.Lease) {
	tb.Helper()
	if err := l.Release(tb.Context()); err != nil {
		tb.Fatalf("Release: %v", err)
	}
}

// TestDriver runs the tests that can share a server.
func TestDriver(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *testenv.PostgresServer)
	}{
		{"LockExcludesSQLAndTheOtherWayRound", testLockExcludesSQLAndTheOtherWayRound},
		{"ReleaseIsReportedOnce", testReleaseIsReportedOnce},
		{"ManyCallersOfFewNamesExclude", testManyCallersOfFewNamesExclude},
		{"FixedLeaseEndsByItself", testFixedLeaseEndsByItself},
		{"FixedLeaseIsExtended", testFixedLeaseIsExtended},
		{"TerminatedSessionIsNoticedAtOnce", testTerminatedSessionIsNoticedAtOnce},
		{"SessionIsKeptAlive", testSessionIsKeptAlive},
		{"CanceledWaitLeavesNothing", testCanceledWaitLeavesNothing},
		{"CanceledTryLeavesNothing", testCanceledTryLeavesNothing},
		{"TwoNamesWithOneKeyExclude", testTwoNamesWithOneKeyExclude},
		{"PairOfNumbersIsALockOfItsOwn", testPairOfNumbersIsALockOfItsOwn},
		{"KeyIsThatOfTheServer", testKeyIsThatOfTheServer},
		{"CapOfLocks", testCapOfLocks},
		{"CapOfWaiters", testCapOfWaiters},
		{"ServerKnowsWhoWaits", testServerKnowsWhoWaits},
		{"InTxExcludesTheDriver", testInTxExcludesTheDriver},
		{"InspectShowsHolderAndWaiters", testInspectShowsHolderAndWaiters},
		{"KeptTokensAreOnDisk", testKeptTokensAreOnDisk},
		{"TokensAreKeptDuringTheLeaseOnly", testTokensAreKeptDuringTheLeaseOnly},
		{"AnswerToKeepIsLost", testAnswerToKeepIsLost},
		{"ShortWaitNeedsNoConfirmation", testShortWaitNeedsNoConfirmation},
		{"ForceUnlockIsAnOption", testForceUnlockIsAnOption},
		{"ForceUnlockWaits", testForceUnlockWaits},
		{"CloseInEveryState", testCloseInEveryState},
		{"CutConnectionLosesTheLease", testCutConnectionLosesTheLease},
		{"WaitOnASilentConnectionEnds", testWaitOnASilentConnectionEnds},
		{"HangingLock", testHangingLock},
		{"HangingHold", testHangingHold},
		{"HangingWait", testHangingWait},
		{"HangingRelease", testHangingRelease},
		{"HangingClose", testHangingClose},
		{"DiscardedSession", testDiscardedSession},
		{"TerminatedSessions", testTerminatedSessions},
		{"ResetIsReported", testResetIsReported},
		{"ManyWaitersFewConnections", testManyWaitersFewConnections},
		{"RefusalsNameNoPassword", testRefusalsNameNoPassword},
		{"PasswordChanges", testPasswordChanges},
		{"PingOfARefusedClient", testPingOfARefusedClient},
		{"URL", testURL},
		{"TTLOfTheProgramIsThatOfTheSession", testTTLOfTheProgramIsThatOfTheSession},
		{"ErrorOfOneInAGroupIsItsOwn", testErrorOfOneInAGroupIsItsOwn},
		{"ServerLooksAtWaiters", testServerLooksAtWaiters},
		{"ModesExclude", testModesExclude},
		{"ReadsEndOneByOne", testReadsEndOneByOne},
		{"ReadDoesNotPassAWrite", testReadDoesNotPassAWrite},
		{"TokensOfReads", testTokensOfReads},
		{"FailedStatementsTakeNoRead", testFailedStatementsTakeNoRead},
		{"ReadersAndWritersBesideSQL", testReadersAndWritersBesideSQL},
		{"SharedLockOfSQL", testSharedLockOfSQL},
		{"ReadsAreInspectedAndForced", testReadsAreInspectedAndForced},
		{"ManyReadsFewConnections", testManyReadsFewConnections},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, pg) })
		if n := value[int](t, connect(t, pg), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"); n != 0 {
			t.Fatalf("%s left %d advisory locks on the server", test.name, n)
		}
	}
}

func testLockExcludesSQLAndTheOtherWayRound(t *testing.T, pg *testenv.PostgresServer) {
	d, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	const free = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))"
	l := mustAcquire(t, d, request("orders/42", longTTL))
	if value[bool](t, conn, free, "orders/42") {
		t.Error("SQL got a lock that the driver holds")
	}
	mustRelease(t, l)
	if !value[bool](t, conn, free, "orders/42") {
		t.Error("SQL did not get a lock that the driver has released")
	}
	if _, err := d.Acquire(t.Context(), try("orders/42")); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Acquire of a lock that SQL holds: got %v, want ErrLocked", err)
	}

	r := request("orders/42", longTTL)
	granted := make(chan driver.Lease)
	go func() { granted <- mustAcquire(t, d, r) }()
	waiting := "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
	testenv.Eventually(t, func() bool { return value[int](t, conn, waiting) == 1 }, "the driver waits on the server")
	before := time.Now()
	if !value[bool](t, conn, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", "orders/42") {
		t.Fatal("SQL did not hold the lock")
	}
	l = <-granted
	if got := l.Expires(); got.Before(before.Add(longTTL * 2 / 3)) {
		t.Errorf("Expires after a wait: got %v, want at least two thirds of the TTL after the grant", got.Sub(before))
	}
	if got := r.Events.(*events).waiting.Load(); got != 1 {
		t.Errorf("Events.Waiting: called %d times before the grant, want 1", got)
	}
	mustRelease(t, l)
	if got := value[int](t, conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"); got != 0 {
		t.Errorf("advisory locks after all were released: got %d, want 0", got)
	}
}

func testReleaseIsReportedOnce(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, nil)
	l := mustAcquire(t, d, request("a", longTTL))
	mustRelease(t, l)
	if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("second Release: got %v, want ErrNotHeld", err)
	}
	mustRelease(t, mustAcquire(t, d, try("a")))
}

func testManyCallersOfFewNamesExclude(t *testing.T, pg *testenv.PostgresServer) {
	drivers := []driver.Driver{newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)}
	const names, callers, rounds = 3, 12, 30
	var inside [names]atomic.Int32
	var last [names]uint64 // guarded by the locks
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := range rounds {
				k := (i + n) % names
				l, err := drivers[i%2].Acquire(t.Context(), request(fmt.Sprint("name", k), longTTL))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if got := inside[k].Add(1); got != 1 {
					t.Errorf("%d callers hold one name", got)
				}
				first, n := l.Tokens()
				if n < 1 || first <= last[k] {
					t.Errorf("token: got %d (%d of them) after %d", first, n, last[k])
				}
				last[k] = first + uint64(n) - 1
				inside[k].Add(-1)
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func testFixedLeaseEndsByItself(t *testing.T, pg *testenv.PostgresServer) {
	d, other := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)
	r := request("a", 2*time.Second) // in which even a busy machine answers
	r.Fixed = true
	start := time.Now()
	l := mustAcquire(t, d, r)
	waited := mustAcquire(t, other, request("a", longTTL))
	if got := time.Since(start); got < r.TTL {
		t.Errorf("granted to another client after %v, before the end of %v", got, r.TTL)
	}
	if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release after the end: got %v, want ErrNotHeld", err)
	}
	if err := l.Renew(t.Context(), time.Minute); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Renew after the end: got %v, want ErrNotHeld", err)
	}
	mustRelease(t, waited)
}

func testFixedLeaseIsExtended(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, nil)
	r := request("a", 2*time.Second)
	r.Fixed = true
	l := mustAcquire(t, d, r)
	before := time.Now()
	if err := l.Renew(t.Context(), 20*time.Second); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return time.Since(before) > r.TTL+100*time.Millisecond }, "the first end passes")
	if _, err := d.Acquire(t.Context(), try("a")); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Acquire after the first end: got %v, want ErrLocked", err)
	}
	if err := l.Renew(t.Context(), 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := time.Until(l.Expires()); got > 200*time.Millisecond {
		t.Errorf("Expires after it was made shorter: in %v", got)
	}
	mustRelease(t, mustAcquire(t, d, request("a", longTTL)))
}

func testTerminatedSessionIsNoticedAtOnce(t *testing.T, pg *testenv.PostgresServer) {
	d, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	r := request("a", longTTL)
	l := mustAcquire(t, d, r)
	value[int](t, conn, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'")
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
	mustRelease(t, mustAcquire(t, d, request("a", longTTL)))
}

func testSessionIsKeptAlive(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, nil)
	r := request("a", 2*time.Second)
	l := mustAcquire(t, d, r)
	first := l.Expires()
	testenv.Eventually(t, func() bool { return time.Now().After(first.Add(time.Second)) }, "time passes")
	if got := l.Expires(); !got.After(time.Now()) {
		t.Errorf("Expires is %v ago", time.Since(got))
	}
	mustRelease(t, l)
	select {
	case err := <-r.Events.(*events).lost:
		t.Errorf("Events.Lost: %v", err)
	default:
	}
}
