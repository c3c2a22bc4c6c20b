package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func testKeyIsThatOfTheServer(t *testing.T, pg *testenv.PostgresServer) {
	conn := connect(t, pg)
	names := []string{"", "a", "orders/42", "żółw", "鎖🔒", "a b\tc\n", strings.Repeat("x", 1024), strings.Repeat("é", 500)}
	for n := range 40 {
		names = append(names, strings.Repeat("0123456789", 4)[:n])
	}
	for _, name := range names {
		if got, want := pglock.Key(name), value[int64](t, conn, "SELECT hashtextextended($1, 0)", name); got != want {
			t.Errorf("Key(%q): got %d, the server has %d", name, got, want)
		}
	}
}

// TestKeysInOtherEncodings checks that the server computes the keys that the
// driver cannot compute.
func TestKeysInOtherEncodings(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	conn := connect(t, pg)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII", "EUC_JP"} {
		t.Run(encoding, func(t *testing.T) {
			database := strings.ToLower(encoding)
			if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+database+" TEMPLATE template0 ENCODING '"+encoding+"' LOCALE 'C'"); err != nil {
				t.Fatal(err)
			}
			d, _, err := driver.Open(t.Context(), "pglock://postgres@"+pg.Addr+"/"+database)
			if err != nil {
				t.Fatal(err)
			}
			defer closeDriver(t, d)
			there, err := pgx.Connect(t.Context(), "postgres://postgres@"+pg.Addr+"/"+database+"?client_encoding=UTF8")
			if err != nil {
				t.Fatal(err)
			}
			defer there.Close(context.Background())
			name := map[string]string{"LATIN1": "café", "SQL_ASCII": "żółw", "EUC_JP": "日本"}[encoding]
			for _, name := range []string{"plain", name, name} {
				l := mustAcquire(t, d, try(name))
				if value[bool](t, there, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", name) {
					t.Errorf("SQL got %q, which the driver holds", name)
				}
				mustRelease(t, l)
			}
			if encoding == "LATIN1" {
				if _, err := d.Acquire(t.Context(), try("鎖")); err == nil || errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
					t.Errorf("name that the database cannot represent: got %v, want a final error", err)
				}
			}
		})
	}
}

func testTwoNamesWithOneKeyExclude(t *testing.T, pg *testenv.PostgresServer) {
	o := &pglock.Options{Key: func(string) (pglock.AdvisoryKey, error) { return pglock.Int64Key(7), nil }}
	d, other := newDriver(t, pg.Addr, o), newDriver(t, pg.Addr, o)
	a := mustAcquire(t, d, request("a", longTTL))
	for _, contender := range []driver.Driver{d, other} {
		if _, err := contender.Acquire(t.Context(), try("b")); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("Acquire of a name with the same key: got %v, want ErrLocked", err)
		}
	}
	r := request("b", longTTL)
	granted := make(chan driver.Lease)
	go func() { granted <- mustAcquire(t, d, r) }()
	testenv.Eventually(t, func() bool { return r.Events.(*events).waiting.Load() == 1 }, "b waits for a")
	mustRelease(t, a)
	b := <-granted
	if _, err := d.Acquire(t.Context(), try("a")); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Acquire of the first name: got %v, want ErrLocked", err)
	}
	mustRelease(t, b)
}

func testPairOfNumbersIsALockOfItsOwn(t *testing.T, pg *testenv.PostgresServer) {
	conn := connect(t, pg)
	pairs := newDriver(t, pg.Addr, &pglock.Options{Key: pglock.PairKey})
	numbers := newDriver(t, pg.Addr, &pglock.Options{Key: pglock.NumberKey})
	pair := mustAcquire(t, pairs, try("-7/42"))
	if value[bool](t, conn, "SELECT pg_try_advisory_lock(-7, 42)") {
		t.Error("SQL got a pair that the driver holds")
	}
	const same = "-30064771030" // the same 64 bits
	number := mustAcquire(t, numbers, try(same))
	if value[bool](t, conn, "SELECT pg_try_advisory_lock($1::bigint)", int64(-30064771030)) {
		t.Error("SQL got a number that the driver holds")
	}
	mustRelease(t, pair)
	mustRelease(t, number)
	for name, d := range map[string]driver.Driver{"x": numbers, "1/2": numbers, "9999999999/1": pairs, "1": pairs, "": pairs} {
		if _, err := d.Acquire(t.Context(), try(name)); err == nil {
			t.Errorf("name %q: got a lock, want an error", name)
		}
	}
}

func testInTxExcludesTheDriver(t *testing.T, pg *testenv.PostgresServer) {
	d, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := pglock.InTx(t.Context(), tx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(t.Context(), try("a")); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Acquire of a name that a transaction holds: got %v, want ErrLocked", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := mustAcquire(t, d, try("a"))
	if tx, err = conn.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	granted := make(chan error)
	go func() { granted <- pglock.InTx(t.Context(), tx, "a") }()
	watch := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[int](t, watch, advisoryLocks+" AND NOT granted") == 1 }, "the transaction waits")
	mustRelease(t, l)
	if err := <-granted; err != nil {
		t.Errorf("InTx: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func testInspectShowsHolderAndWaiters(t *testing.T, pg *testenv.PostgresServer) {
	d, other := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)
	if s, err := d.Inspect(t.Context(), "a"); err != nil || s.Held {
		t.Errorf("Inspect of a free name: got %+v, %v", s, err)
	}
	r := request("a", longTTL)
	r.Note = "note"
	l := mustAcquire(t, d, r)
	s, err := d.Inspect(t.Context(), "a")
	if err != nil || !s.Held || s.Hold != r.Hold || s.Owner != r.Owner || s.Note != "note" || s.TTL <= longTTL/2 || s.Since.IsZero() || s.Token != 0 {
		t.Errorf("Inspect of this driver's hold: got %+v, %v", s, err)
	}
	keep(t, l)
	first, n := l.Tokens()
	if s, err := d.Inspect(t.Context(), "a"); err != nil || s.Token != first+uint64(n)-1 {
		t.Errorf("Inspect of this driver's hold with tokens that are kept: got %+v, %v", s, err)
	}
	waits := request("a", longTTL)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		other.Acquire(ctx, waits)
	}()
	testenv.Eventually(t, func() bool {
		s, err = other.Inspect(t.Context(), "a")
		return err != nil || s.Waiters == 1
	}, "one caller waits")
	if err != nil || !s.Held || !strings.HasPrefix(s.Owner, "dsync#") || s.Hold == "" || len(s.Queue) != 1 || !strings.HasPrefix(s.Queue[0], "dsync#") {
		t.Errorf("Inspect of another client's hold: got %+v, %v", s, err)
	}
	cancel()
	<-ended
	mustRelease(t, l)
}

// testForceUnlockWaits checks that ForceUnlock waits: a terminated server
// process ends only some time later and holds its locks until then.
func testForceUnlockWaits(t *testing.T, pg *testenv.PostgresServer) {
	d, admin := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, &pglock.Options{ForceUnlock: true})
	mustAcquire(t, d, request("a", longTTL))
	status, err := admin.Inspect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("kill", "-STOP", status.Hold).Run(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := admin.ForceUnlock(ctx, "a"); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("ForceUnlock of the lock of a stopped process: got %v, want ErrUnknown", err)
	}
	if err := exec.Command("kill", "-CONT", status.Hold).Run(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ForceUnlock(t.Context(), "a"); err != nil && !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("ForceUnlock: %v", err)
	}
	mustRelease(t, mustAcquire(t, admin, request("a", longTTL)))
}

func testForceUnlockIsAnOption(t *testing.T, pg *testenv.PostgresServer) {
	d, admin := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, &pglock.Options{ForceUnlock: true})
	if err := d.ForceUnlock(t.Context(), "a"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("ForceUnlock without the option: got %v, want ErrUnsupported", err)
	}
	if err := admin.ForceUnlock(t.Context(), "a"); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("ForceUnlock of a free name: got %v, want ErrNotHeld", err)
	}
	for _, holder := range []*pglock.Driver{d, admin} {
		r := request("a", longTTL)
		l := mustAcquire(t, holder, r)
		if err := admin.ForceUnlock(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-r.Events.(*events).lost:
		case <-time.After(30 * time.Second):
			t.Fatal("the holder was not notified")
		}
		if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Release: got %v, want ErrNotHeld", err)
		}
	}
	mustRelease(t, mustAcquire(t, admin, request("a", longTTL)))
}

// TestOneSpelling checks that the lock of a number has only one name.
func TestOneSpelling(t *testing.T) {
	for name, number := range map[string]bool{
		"0": true, "42": true, "-42": true, "9223372036854775807": true, "-9223372036854775808": true,
		"042": false, "+42": false, "-0": false, "+0": false, "00": false, "-042": false, "0x2a": false, "4_2": false,
		" 42": false, "42 ": false, "": false, "42\n": false, "٤٢": false, "9223372036854775808": false,
	} {
		if _, err := pglock.NumberKey(name); (err == nil) != number || !number && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("number %q: got error %v", name, err)
		}
		pairs := number && len(name) < 10
		for _, pair := range []string{name + "/7", "7/" + name} {
			if _, err := pglock.PairKey(pair); (err == nil) != pairs || !pairs && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("pair %q: got error %v", pair, err)
			}
		}
	}
	for _, pair := range []string{"7", "7/", "/7", "7/42/1", "7/42/", "2147483648/1", "7 /42"} {
		if _, err := pglock.PairKey(pair); err == nil {
			t.Errorf("pair %q: got no error", pair)
		}
	}
}

func ExampleKey() {
	fmt.Println(pglock.Key("orders/42"))
	// Output: -5097415481565640018
}
