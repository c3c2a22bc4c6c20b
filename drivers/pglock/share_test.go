package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

var modes = []driver.Mode{driver.Exclusive, driver.Read, driver.Write}

// in sets the mode of a request.
func in(m driver.Mode, r *driver.Request) *driver.Request {
	r.Mode = m
	return r
}

// goAcquire acquires in the background and returns when the request waits.
func goAcquire(tb testing.TB, d driver.Driver, r *driver.Request) <-chan driver.Lease {
	tb.Helper()
	granted := make(chan driver.Lease, 1)
	go func() {
		l, err := d.Acquire(tb.Context(), r)
		if err != nil {
			tb.Errorf("Acquire for %v: %v", r.Mode, err)
		}
		granted <- l
	}()
	testenv.Eventually(tb, func() bool { return r.Events.(*events).waiting.Load() == 1 }, "the client waits")
	return granted
}

// wantRefused fails the test unless a request that cannot wait is refused.
func wantRefused(tb testing.TB, d driver.Driver, m driver.Mode, name, why string) {
	tb.Helper()
	if l, err := d.Acquire(tb.Context(), in(m, try(name))); !errors.Is(err, driver.ErrLocked) {
		tb.Errorf("%v %s: got %v, want ErrLocked", m, why, err)
		if err == nil {
			mustRelease(tb, l)
		}
	}
}

// testServerLooksAtWaiters checks a behavior that the server does not document:
// while a writer waits, a request for reading is refused, even if it cannot
// wait, unless it comes from a session with the lock.
func testServerLooksAtWaiters(t *testing.T, pg *testenv.PostgresServer) {
	reader, writer, other := connect(t, pg), connect(t, pg), connect(t, pg)
	run(t, reader, "SELECT pg_advisory_lock_shared(1)")
	written := make(chan error, 1)
	go func() {
		_, err := writer.Exec(context.WithoutCancel(t.Context()), "SELECT pg_advisory_lock(1)")
		written <- err
	}()
	testenv.Eventually(t, func() bool { return value[int](t, other, advisoryLocks+" AND NOT granted") == 1 }, "one waits to write")
	if value[bool](t, other, "SELECT pg_try_advisory_lock_shared(1)") || value[bool](t, other, "SELECT pg_try_advisory_xact_lock_shared(1)") {
		t.Error("a read overtook a waiting write")
	}
	if !value[bool](t, reader, "SELECT pg_try_advisory_lock_shared(1)") {
		t.Error("a session was refused its own lock: then the driver need not query over another session")
	}
	run(t, reader, "SELECT pg_advisory_unlock_all()")
	if err := <-written; err != nil {
		t.Error(err)
	}
	run(t, writer, "SELECT pg_advisory_unlock_all()")
}

func testModesExclude(t *testing.T, pg *testenv.PostgresServer) {
	d, other := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)
	for _, held := range modes {
		l := mustAcquire(t, d, in(held, try("a")))
		for _, asked := range modes {
			for who, d := range map[string]*pglock.Driver{"the same": d, "another": other} {
				next, err := d.Acquire(t.Context(), in(asked, try("a")))
				if held.Excludes(asked) != errors.Is(err, driver.ErrLocked) {
					t.Errorf("%v of %s client while %v is held: got error %v", asked, who, held, err)
				}
				if err == nil {
					mustRelease(t, next)
				}
			}
		}
		mustRelease(t, l)
	}
}

// testReadsEndOneByOne ends the Reads of a session in several ways and checks
// that each gives up only its own share.
func testReadsEndOneByOne(t *testing.T, pg *testenv.PostgresServer) {
	for name, o := range map[string]*pglock.Options{"42": {}, "7/42": {Key: pglock.PairKey, Tokens: pglock.TokensNone}} {
		d, other, conn := newDriver(t, pg.Addr, o), newDriver(t, pg.Addr, o), connect(t, pg)
		fixed := in(driver.Read, request(name, longTTL))
		fixed.TTL, fixed.Fixed = 500*time.Millisecond, true
		first := mustAcquire(t, d, in(driver.Read, try(name)))
		second := mustAcquire(t, d, in(driver.Read, request(name, longTTL)))
		ends := mustAcquire(t, d, fixed)
		third := mustAcquire(t, d, in(driver.Read, try(name)))
		if n := value[int](t, conn, "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"); n != 2 && time.Now().Before(ends.Expires()) {
			t.Errorf("%d sessions hold the lock, want one for each TTL", n)
		}
		mustRelease(t, first)
		if err := first.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("second Release: got %v, want ErrNotHeld", err)
		}
		testenv.Eventually(t, func() bool { return !time.Now().Before(ends.Expires()) }, "one lease has ended")
		mustRelease(t, third)
		if err := second.Renew(t.Context(), longTTL); err != nil {
			t.Errorf("Renew of the last one: %v", err)
		}
		wantRefused(t, other, driver.Write, name, "while a Read is left")
		wantRefused(t, d, driver.Exclusive, name, "while a Read is left")
		granted := goAcquire(t, other, in(driver.Write, request(name, longTTL)))
		mustRelease(t, second)
		mustRelease(t, <-granted)
		closeDriver(t, d)
		closeDriver(t, other)
	}
}

// testReadDoesNotPassAWrite lets one write wait behind a read. Then callers of
// three clients read: the client that reads, the client that waits to write,
// and a third client.
func testReadDoesNotPassAWrite(t *testing.T, pg *testenv.PostgresServer) {
	d, third, conn := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil), connect(t, pg)
	for _, writer := range []*pglock.Driver{d, newDriver(t, pg.Addr, nil)} {
		first := mustAcquire(t, d, in(driver.Read, request("a", longTTL)))
		write := goAcquire(t, writer, in(driver.Write, request("a", longTTL)))
		testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the server knows of it")
		var reads []<-chan driver.Lease
		for _, reader := range []*pglock.Driver{d, writer, third} {
			wantRefused(t, reader, driver.Read, "a", "while one waits to write")
			reads = append(reads, goAcquire(t, reader, in(driver.Read, request("a", longTTL))))
		}
		mustRelease(t, first)
		written := <-write
		for _, read := range reads {
			select {
			case <-read:
				t.Error("a Read was granted while a Write was held")
			default:
			}
		}
		mustRelease(t, written)
		var together []driver.Lease
		for _, read := range reads {
			together = append(together, <-read)
		}
		for _, l := range together {
			mustRelease(t, l)
		}
	}
}

func testTokensOfReads(t *testing.T, pg *testenv.PostgresServer) {
	drivers := []*pglock.Driver{newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)}
	written := uint64(0) // the last token of a writer
	for round := range 20 {
		highest := uint64(0)
		var reads []driver.Lease
		for i := range 4 {
			l := mustAcquire(t, drivers[i%2], in(driver.Read, request("a", longTTL)))
			first, n := l.Tokens()
			if n < 1 || first <= written {
				t.Errorf("tokens of a Read: got %d, %d after a Write with %d", first, n, written)
			}
			highest, reads = max(highest, first+uint64(n)-1), append(reads, l)
		}
		for _, l := range reads {
			mustRelease(t, l)
		}
		l := mustAcquire(t, drivers[round%2], in(modes[round%2*2], request("a", longTTL)))
		first, n := l.Tokens()
		if first <= highest {
			t.Errorf("token of a writer: got %d after a Read with %d", first, highest)
		}
		written = first + uint64(n) - 1
		mustRelease(t, l)
	}
}

// testFailedStatementsTakeNoRead has statements about one Read fail while
// another Read of the session goes on.
func testFailedStatementsTakeNoRead(t *testing.T, pg *testenv.PostgresServer) {
	conn, other := connect(t, pg), newDriver(t, pg.Addr, nil)
	run(t, conn, "CREATE ROLE reader LOGIN")
	d, _, err := driver.Open(t.Context(), "pglock://reader@"+pg.Addr+"/postgres?sslmode=disable&ttl=3s")
	if err != nil {
		t.Fatal(err)
	}
	defer closeDriver(t, d)
	// without runs f while the role may not execute a function.
	without := func(function string, limit time.Duration, f func(ctx context.Context) error, want error) {
		t.Helper()
		run(t, conn, "REVOKE EXECUTE ON FUNCTION "+function+" FROM PUBLIC")
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if err := f(ctx); !errors.Is(err, want) {
			t.Errorf("without %s: got %v, want %v", function, err, want)
		}
		wantRefused(t, other, driver.Write, "a", "while a Read is held, without "+function)
		run(t, conn, "GRANT EXECUTE ON FUNCTION "+function+" TO PUBLIC")
	}
	read := func() driver.Lease { return mustAcquire(t, d, in(driver.Read, request("a", 3*time.Second))) }
	stays, ends := read(), read()
	acquire := func(ctx context.Context) error {
		_, err := d.Acquire(ctx, in(driver.Read, request("a", 3*time.Second)))
		return err
	}
	without("pg_current_xact_id()", drivertest.HangGuard, acquire, os.ErrPermission)
	without("pg_try_advisory_xact_lock_shared(bigint)", drivertest.HangGuard, acquire, os.ErrPermission)
	const repeated = 100 * time.Millisecond                                // a Release is, until its context ends
	without("pg_backend_pid()", repeated, ends.Release, driver.ErrUnknown) // the unlock calls it while the lock stays
	without("pg_advisory_unlock_shared(bigint)", repeated, stays.Release, driver.ErrUnknown)
	mustRelease(t, mustAcquire(t, other, in(driver.Write, request("a", longTTL))))
}

// sharedValue is written and read in two halves. Only a lock keeps a reader
// from the half of a write.
type sharedValue struct{ a, b atomic.Int64 }

func (v *sharedValue) write() {
	v.a.Add(1)
	pause(rand.N(50 * time.Microsecond))
	v.b.Store(v.a.Load())
}

func (v *sharedValue) read() (whole bool) {
	a := v.a.Load()
	pause(rand.N(50 * time.Microsecond))
	return a == v.b.Load()
}

// testReadersAndWritersBesideSQL mixes clients with sessions of SQL that are
// independent of them. Some give up while they wait.
func testReadersAndWritersBesideSQL(t *testing.T, pg *testenv.PostgresServer) {
	rounds := testenv.Briefly(60, 300)
	var v sharedValue
	var written, canceled atomic.Int64
	use := func(m driver.Mode) {
		if m != driver.Read {
			v.write()
			written.Add(1)
		} else if !v.read() {
			t.Error("a reader saw half of a write")
		}
	}
	var wg sync.WaitGroup
	for i := range 3 {
		if i > 0 {
			conn := connect(t, pg)
			wg.Go(func() { useBySQL(t, conn, rounds, use) })
			continue
		}
		for _, d := range []*pglock.Driver{newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)} {
			for range 4 {
				wg.Go(func() { canceled.Add(useByDriver(t, d, rounds, use)) })
			}
		}
	}
	wg.Wait()
	if got := v.a.Load(); got != written.Load() || got != v.b.Load() {
		t.Errorf("counted %d and %d, want %d", got, v.b.Load(), written.Load())
	}
	t.Logf("%d written, %d waits canceled", written.Load(), canceled.Load())
	if canceled.Load() == 0 {
		t.Error("no waiter gave up")
	}
	conn := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks) == 0 }, "no lock is left")
}

func useByDriver(t *testing.T, d driver.Driver, rounds int, use func(driver.Mode)) (canceled int64) {
	for range rounds {
		r := in(modes[rand.N(len(modes))], request("orders/42", longTTL))
		if rand.N(2) == 0 {
			r.Mode = driver.Read
		}
		givesUp, patience := rand.N(4) == 0, drivertest.HangGuard
		if givesUp {
			patience = rand.N(3 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		l, err := d.Acquire(ctx, r)
		cancel()
		if err != nil {
			if !givesUp || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Acquire for %v: %v", r.Mode, err)
				return canceled
			}
			canceled++
			continue
		}
		use(r.Mode)
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release of a %v: %v", r.Mode, err)
		}
	}
	return canceled
}

func useBySQL(t *testing.T, conn *pgx.Conn, rounds int, use func(driver.Mode)) {
	for range rounds {
		mode, suffix := driver.Exclusive, ""
		if rand.N(2) == 0 {
			mode, suffix = driver.Read, "_shared"
		}
		if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock"+suffix+"(hashtextextended('orders/42', 0))"); err != nil {
			t.Error(err)
			return
		}
		use(mode)
		if !value[bool](t, conn, "SELECT pg_advisory_unlock"+suffix+"(hashtextextended('orders/42', 0))") {
			t.Error("SQL did not hold its lock")
		}
	}
}

// testSharedLockOfSQL checks that locks for reading of SQL and of the driver
// are the same.
func testSharedLockOfSQL(t *testing.T, pg *testenv.PostgresServer) {
	d, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	const shared, exclusive = "SELECT pg_try_advisory_lock_shared(hashtextextended('a', 0))", "SELECT pg_try_advisory_lock(hashtextextended('a', 0))"
	const unlockAll = "SELECT pg_advisory_unlock_all()"
	for _, m := range modes {
		l := mustAcquire(t, d, in(m, try("a")))
		if got, want := value[bool](t, conn, shared), m == driver.Read; got != want {
			t.Errorf("SQL can read while %v is held: got %v, want %v", m, got, want)
		}
		run(t, conn, unlockAll)
		if value[bool](t, conn, exclusive) {
			t.Errorf("SQL got an exclusive lock while %v is held", m)
		}
		mustRelease(t, l)
	}
	run(t, conn, exclusive)
	wantRefused(t, d, driver.Read, "a", "while SQL holds the lock")
	read := goAcquire(t, d, in(driver.Read, request("a", longTTL)))
	run(t, conn, unlockAll)
	mustRelease(t, <-read)
	run(t, conn, shared)
	mustRelease(t, mustAcquire(t, d, in(driver.Read, try("a"))))
	wantRefused(t, d, driver.Write, "a", "while SQL reads")
	write := goAcquire(t, d, in(driver.Write, request("a", longTTL)))
	run(t, conn, unlockAll)
	mustRelease(t, <-write)
}

func testReadsAreInspectedAndForced(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, &pglock.Options{ForceUnlock: true})
	other, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	run(t, conn, "SELECT pg_advisory_lock_shared(hashtextextended('a', 0))")
	var reads []*driver.Request
	for _, d := range []*pglock.Driver{d, d, other} {
		r := in(driver.Read, request("a", longTTL))
		mustAcquire(t, d, r)
		reads = append(reads, r)
	}
	s, err := d.Inspect(t.Context(), "a")
	if err != nil || !s.Held || s.Mode != driver.Read || s.Holders != 4 {
		t.Errorf("Inspect of four readers: got %+v, %v", s, err)
	}
	if err := d.ForceUnlock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for _, r := range reads {
		select {
		case <-r.Events.(*events).lost:
		case <-time.After(30 * time.Second):
			t.Fatal("a reader was not notified")
		}
	}
	l := mustAcquire(t, d, in(driver.Write, try("a")))
	if s, err := d.Inspect(t.Context(), "a"); err != nil || s.Mode != driver.Write || s.Holders != 1 {
		t.Errorf("Inspect of this driver's Write: got %+v, %v", s, err)
	}
	if s, err := other.Inspect(t.Context(), "a"); err != nil || s.Mode != driver.Exclusive || s.Holders != 1 {
		t.Errorf("Inspect of another client's Write, which is an ordinary lock: got %+v, %v", s, err)
	}
	mustRelease(t, l)
}

// testManyReadsFewConnections lets the Reads of many names overlap.
func testManyReadsFewConnections(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, nil)
	var wg sync.WaitGroup
	leases := make(chan driver.Lease, 200)
	for i := range cap(leases) {
		wg.Go(func() { leases <- mustAcquire(t, d, in(driver.Read, request(fmt.Sprint("name", i%20), longTTL))) })
	}
	wg.Wait()
	conn := connect(t, pg)
	const sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dsync#%'"
	if n, locks := value[int](t, conn, sessions), value[int](t, conn, advisoryLocks); n != 2 || locks != 20 {
		t.Errorf("%d connections with %d locks, want 2 with 20", n, locks)
	}
	for range cap(leases) {
		l := <-leases
		wg.Go(func() { mustRelease(t, l) })
	}
	wg.Wait()
}
