package pglock_test

import (
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestRights gives a role what docs/security.md lists, and then less.
func TestRights(t *testing.T) {
	pg := testenv.Postgres(t)
	admin := connect(t, pg)
	exec := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(admin, "CREATE DATABASE locks")
	exec(admin, "REVOKE ALL ON DATABASE locks FROM PUBLIC")
	exec(admin, "CREATE ROLE locker LOGIN NOINHERIT")
	exec(admin, "CREATE ROLE stranger LOGIN NOINHERIT")
	exec(admin, "GRANT CONNECT ON DATABASE locks TO locker")
	inside, err := pgx.Connect(t.Context(), "postgres://postgres@"+pg.Addr+"/locks?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close(t.Context())
	exec(inside, "REVOKE ALL ON SCHEMA public FROM PUBLIC")
	open := func(role string) (driver.Driver, error) {
		d, _, err := driver.Open(t.Context(), "pglock://"+role+"@"+pg.Addr+"/locks?sslmode=disable")
		if err == nil {
			t.Cleanup(func() { closeDriver(t, d) })
		}
		return d, err
	}
	a, err := open("locker")
	if err != nil {
		t.Fatal(err)
	}
	b, err := open("locker")
	if err != nil {
		t.Fatal(err)
	}
	l := mustAcquire(t, a, try("x"))
	if first, n := l.Tokens(); first == 0 || n == 0 {
		t.Errorf("got tokens %d, %d, want some", first, n)
	}
	if status, err := b.(driver.Inspector).Inspect(t.Context(), "x"); err != nil || !status.Held {
		t.Errorf("Inspect: got %+v, %v, want it held", status, err)
	}
	if _, err := b.Acquire(t.Context(), try("x")); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Acquire of a lock that is held: got %v, want ErrLocked", err)
	}
	waits := make(chan driver.Lease)
	r := request("x", longTTL)
	go func() { waits <- mustAcquire(t, b, r) }() // ends with the release
	testenv.Eventually(t, func() bool { return r.Events.(*events).waiting.Load() == 1 }, "the other one waits")
	mustRelease(t, l)
	mustRelease(t, <-waits)

	exec(inside, "REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) FROM PUBLIC")
	if _, err := a.Acquire(t.Context(), try("y")); !errors.Is(err, os.ErrPermission) {
		t.Errorf("without the right to lock any more: got %v, want ErrPermission", err)
	}
	exec(inside, "GRANT EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) TO PUBLIC")
	for _, function := range []string{"pg_try_advisory_lock(bigint)", "pg_advisory_lock(bigint)", "pg_advisory_unlock(bigint)"} {
		exec(inside, "REVOKE EXECUTE ON FUNCTION "+function+" FROM PUBLIC")
		if _, err := open("locker"); !errors.Is(err, os.ErrPermission) {
			t.Errorf("without the right to execute %s: got %v, want ErrPermission", function, err)
		}
		exec(inside, "GRANT EXECUTE ON FUNCTION "+function+" TO PUBLIC")
	}
	mustRelease(t, mustAcquire(t, a, try("y")))
	if _, err := open("stranger"); !errors.Is(err, os.ErrPermission) {
		t.Errorf("without the right to connect: got %v, want ErrPermission", err)
	}
}
