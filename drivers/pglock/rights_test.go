package pglock_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// makeLocker makes the database locks and the role locker like docs/backends,
// and returns user and password of the role.
func makeLocker(tb testing.TB, pg *testenv.PostgresServer) string {
	tb.Helper()
	admin, password := connect(tb, pg), testenv.Password()
	for line := range strings.Lines(strings.ReplaceAll(drivertest.Recipe(tb, "**PostgreSQL**"), "'...'", "'"+password+"'")) {
		run(tb, admin, line)
	}
	return "locker:" + password
}

func run(tb testing.TB, conn *pgx.Conn, sql string) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), sql); err != nil {
		tb.Fatal(err)
	}
}

// TestRights gives a role the rights that docs/backends lists, and then fewer.
func TestRights(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	locker := makeLocker(t, pg)
	admin := connect(t, pg)
	run(t, admin, "CREATE ROLE stranger LOGIN")
	inside, err := pgx.Connect(t.Context(), "postgres://postgres@"+pg.Addr+"/locks?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close(t.Context())
	run(t, inside, "REVOKE ALL ON SCHEMA public FROM PUBLIC")
	open := func(role, parameters string) (driver.Driver, error) {
		d, _, err := driver.Open(t.Context(), "pglock://"+role+"@"+pg.Addr+"/locks?sslmode=disable"+parameters)
		if err == nil {
			t.Cleanup(func() { closeDriver(t, d) })
		}
		return d, err
	}
	a, err := open(locker, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(locker, "")
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
	go func() { waits <- mustAcquire(t, b, r) }() // ends when the lock is released
	testenv.Eventually(t, func() bool { return r.Events.(*events).waiting.Load() == 1 }, "the other client waits")
	mustRelease(t, l)
	mustRelease(t, <-waits)

	run(t, inside, "REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) FROM PUBLIC")
	_, err = a.Acquire(t.Context(), try("y"))
	wantDenied(t, "a lock that is open", err, "pg_try_advisory_lock")
	run(t, inside, "GRANT EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) TO PUBLIC")
	for _, test := range []struct{ function, parameters string }{
		{"pg_try_advisory_lock(bigint)", ""},
		{"pg_advisory_lock(bigint)", ""},
		{"pg_advisory_unlock(bigint)", ""},
		{"pg_advisory_unlock(int,int)", "&key=pair"},
		{"pg_current_xact_id()", ""},
		{"pg_current_xact_id()", "&tokens=fast"},
		{"pg_logical_emit_message(boolean,text,text)", ""},
	} {
		run(t, inside, "REVOKE EXECUTE ON FUNCTION "+test.function+" FROM PUBLIC")
		_, err := open(locker, test.parameters)
		wantDenied(t, test.parameters, err, test.function)
		run(t, inside, "GRANT EXECUTE ON FUNCTION "+test.function+" TO PUBLIC")
	}
	mustRelease(t, mustAcquire(t, a, try("y")))
	_, err = open("stranger", "")
	wantDenied(t, "without the right to connect", err, `database "locks"`)
}

// TestRightsOverOthers lets a role inspect the locks of another role and end
// its sessions.
func TestRightsOverOthers(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	locker, admin := makeLocker(t, pg), connect(t, pg)
	run(t, admin, "CREATE ROLE other LOGIN; GRANT CONNECT ON DATABASE locks TO other")
	open := func(user string) *pglock.Driver {
		d, _, err := driver.Open(t.Context(), "pglock://"+user+"@"+pg.Addr+"/locks?sslmode=disable&force_unlock=true")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeDriver(t, d) })
		return d.(*pglock.Driver)
	}
	other, d := open("other"), open(locker)
	mustAcquire(t, other, try("x"))
	if status, err := d.Inspect(t.Context(), "x"); err != nil || !status.Held || !strings.Contains(status.Owner, "dsync#") {
		t.Errorf("Inspect: got %+v, %v, want the lock held, and the label of the holder", status, err)
	}
	wantDenied(t, "ForceUnlock without pg_signal_backend", d.ForceUnlock(t.Context(), "x"), "pg_signal_backend")
	run(t, admin, "GRANT pg_signal_backend TO locker")
	if err := d.ForceUnlock(t.Context(), "x"); err != nil {
		t.Errorf("ForceUnlock with pg_signal_backend: %v", err)
	}
}

// TestRightNotToLookForDeadlocks lets three roles wait. When a session looks
// for a deadlock, the server logs that it is still waiting.
func TestRightNotToLookForDeadlocks(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "deadlock_timeout=10ms", "log_lock_waits=on", "log_line_prefix=%u ", "logging_collector=on", "log_filename=log")
	admin := connect(t, pg)
	if value[int](t, admin, "SELECT current_setting('server_version_num')::int") < 150000 {
		t.Skip("before PostgreSQL 15 no role can be granted deadlock_timeout")
	}
	run(t, admin, "CREATE ROLE granted LOGIN; GRANT SET ON PARAMETER deadlock_timeout TO granted; CREATE ROLE plain LOGIN")
	taken := mustAcquire(t, newDriver(t, pg.Addr, nil), try("x"))
	var waits []<-chan driver.Lease
	for _, role := range []string{"postgres", "granted", "plain"} { // the session that looks is the last
		d, _, err := driver.Open(t.Context(), "pglock://"+role+"@"+pg.Addr+"/postgres?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeDriver(t, d) })
		waits = append(waits, goAcquire(t, d, request("x", longTTL)))
		testenv.Eventually(t, func() bool { return value[int](t, admin, advisoryLocks+" AND NOT granted") == len(waits) }, role+" waits")
	}
	var log string
	testenv.Eventually(t, func() bool {
		log = value[string](t, admin, "SELECT pg_read_file('log/log')")
		return strings.Contains(log, "plain LOG:") && strings.Contains(log, "still waiting")
	}, "the role without the right looks for a deadlock")
	for _, line := range []string{"postgres LOG:  process", "granted LOG:  process", "permission denied"} {
		if strings.Contains(log, line) {
			t.Errorf("%q is in the server's log:\n%s", line, log)
		}
	}
	mustRelease(t, taken)
	for _, w := range waits {
		mustRelease(t, <-w)
	}
}

// wantDenied fails the test unless the error reports a missing permission, and
// names its object.
func wantDenied(t *testing.T, what string, err error, names string) {
	t.Helper()
	t.Logf("%s: %v", what, err) // the log is searched for passwords
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), names) {
		t.Errorf("%s: got %v, want ErrPermission that names %s", what, err, names)
	}
}
