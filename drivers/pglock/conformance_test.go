package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func init() { conformance.RunWorker() }

// TestConformance uses a role with exactly the rights of docs/backends. There
// is no Expire and no ExpireHold, because ending one hold ends all holds of its
// session, and Reads of a driver share one lock there. Checks that end a single
// hold use ForceUnlock.
func TestConformance(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	user := makeLocker(t, pg) + "@" + pg.Addr + "/locks?sslmode=disable"
	conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				w := new(wire.Wire)
				tb.Cleanup(w.Close)
				config, err := pgx.ParseConfig("postgres://" + user)
				if err != nil {
					tb.Fatal(err)
				}
				config.DialFunc = w.DialContext
				d, err := pglock.New(tb.Context(), config, &pglock.Options{MaxLocks: 5000, ForceUnlock: true})
				if err != nil {
					tb.Fatal(err)
				}
				return d, conformance.LinkOver(w)
			},
			Ping:    pg.Ping,
			Freeze:  func(testing.TB) { pg.Freeze() },
			Thaw:    func(testing.TB) { pg.Thaw() },
			Restart: func(testing.TB) { pg.Restart() },
			Refuse:  func(tb testing.TB) { allowLocks(tb, pg, "REVOKE", "FROM") },
			Allow:   func(tb testing.TB) { allowLocks(tb, pg, "GRANT", "TO") },
			Left:    func(tb testing.TB) []string { return left(tb, pg) },
			URL:     "pglock://" + user + "&force_unlock=true",
		}
	}})
}

// allowLocks grants the right to acquire advisory locks to all roles, or
// revokes it.
func allowLocks(tb testing.TB, pg *testenv.PostgresServer, verb, preposition string) {
	tb.Helper()
	conn := connectTo(tb, pg, "locks")
	defer conn.Close(tb.Context())
	for _, f := range []string{"pg_try_advisory_lock", "pg_advisory_lock", "pg_try_advisory_lock_shared", "pg_advisory_lock_shared"} {
		run(tb, conn, verb+" EXECUTE ON FUNCTION pg_catalog."+f+"(bigint) "+preposition+" PUBLIC")
	}
}

// left returns the advisory locks, and the sessions of clients.
func left(tb testing.TB, pg *testenv.PostgresServer) []string {
	tb.Helper()
	conn := connectTo(tb, pg, "locks")
	defer conn.Close(tb.Context())
	rows, err := conn.Query(tb.Context(), `
		SELECT 'lock ' || mode || ' ' || classid || ' ' || objid || ' of ' || pid FROM pg_locks WHERE locktype = 'advisory'
		UNION ALL SELECT 'session ' || pid FROM pg_stat_activity WHERE usename = 'locker'`)
	if err != nil {
		tb.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		tb.Fatal(err)
	}
	return all
}
