package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
	"github.com/go-dsync/dsync/drivers/sqllock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	conformance.RunWorker()
	m.Run()
}

// poll is the interval at which waiters query the database.
const poll = 20 * time.Millisecond

// server is a database with the table.
type server struct {
	url     string
	dialect *sqllock.Dialect
	open    func(context.Context, *sql.DB, *sqllock.Dialect, *sqllock.Options) (*cas.Driver, error)
	dial    func(tb testing.TB, w *wire.Wire) *sql.DB // through w, or directly if w is nil
	freeze  interface {
		Freeze()
		Thaw()
		Restart()
	}
}

const ddl = `CREATE TABLE dsync_locks (name text COLLATE "C" PRIMARY KEY, version text NOT NULL, written bigint NOT NULL, value text NOT NULL)`

func mariadb(tb testing.TB) *server {
	s := testenv.MySQL(tb, "max-connections=1000") // the suite has many pools
	source := "root@tcp(" + s.Addr + ")/locks?interpolateParams=true"
	var dials atomic.Int64
	dial := func(tb testing.TB, w *wire.Wire) *sql.DB {
		if w == nil {
			return pool(tb, "mysql", source)
		}
		network := fmt.Sprintf("wire%d", dials.Add(1))
		mysql.RegisterDialContext(network, func(ctx context.Context, addr string) (net.Conn, error) { return w.DialContext(ctx, "tcp", addr) })
		tb.Cleanup(func() { mysql.DeregisterDialContext(network) })
		return pool(tb, "mysql", strings.Replace(source, "@tcp(", "@"+network+"(", 1))
	}
	run(tb, pool(tb, "mysql", "root@tcp("+s.Addr+")/"), "CREATE DATABASE locks")
	run(tb, dial(tb, nil), "CREATE TABLE dsync_locks (name VARBINARY(1024) PRIMARY KEY, version BINARY(16) NOT NULL, written BIGINT NOT NULL, value MEDIUMBLOB NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC")
	return &server{url: "mysql://root@" + s.Addr + "/locks", dialect: sqllock.MySQL, open: sqllock.New, dial: dial, freeze: s}
}

func postgres(tb testing.TB) *server {
	s := testenv.Postgres(tb)
	p := overPostgres(s.Addr)
	p.freeze = s
	run(tb, p.dial(tb, nil), ddl)
	return p
}

// pgbouncer returns a server behind a PgBouncer, which may use a different
// connection for each statement.
func pgbouncer(tb testing.TB) *server {
	s := testenv.Postgres(tb)
	run(tb, overPostgres(s.Addr).dial(tb, nil), ddl)
	return overPostgres(testenv.PgBouncer(tb, s, "transaction").Addr)
}

func overPostgres(addr string) *server {
	url := "postgres@" + addr + "/postgres?sslmode=disable"
	return &server{url: "pgtable://" + url, dialect: sqllock.PostgreSQL, open: sqllock.New, dial: func(tb testing.TB, w *wire.Wire) *sql.DB {
		config, err := pgx.ParseConfig("postgres://" + url + "&default_query_exec_mode=exec")
		if err != nil {
			tb.Fatal(err)
		}
		if w != nil {
			config.DialFunc = w.DialContext
		}
		return closing(tb, stdlib.OpenDB(*config))
	}}
}

// sqlite returns a file. Each pool has its own connections, as another process
// would have.
func sqlite(tb testing.TB) *server {
	file := filepath.Join(tb.TempDir(), "locks.db")
	s := &server{url: "sqlite://" + file, dialect: sqllock.SQLite, open: sqllock.New, dial: func(tb testing.TB, _ *wire.Wire) *sql.DB {
		db := pool(tb, "sqlite", "file:"+file+"?_pragma=busy_timeout(1000)&_pragma=synchronous(off)")
		db.SetMaxOpenConns(1)
		return db
	}}
	admin := s.dial(tb, nil)
	run(tb, admin, "PRAGMA journal_mode = wal")
	run(tb, admin, "CREATE TABLE dsync_locks (name TEXT PRIMARY KEY, version TEXT NOT NULL, written INTEGER NOT NULL, value TEXT NOT NULL)")
	return s
}

func pool(tb testing.TB, name, source string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(name, source)
	if err != nil {
		tb.Fatal(err)
	}
	return closing(tb, db)
}

func closing(tb testing.TB, db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	tb.Cleanup(func() { db.Close() })
	return db
}

func run(tb testing.TB, db *sql.DB, statement string) {
	tb.Helper()
	if _, err := db.ExecContext(tb.Context(), statement); err != nil {
		tb.Fatal(err)
	}
}

// overShedLock returns the server with a table of ShedLock, whose names may
// have any bytes and any length.
func overShedLock(start func(testing.TB) *server, name string) func(testing.TB) *server {
	return func(tb testing.TB) *server {
		s := start(tb)
		s.open = sqllock.NewShedLock
		s.url = strings.Replace(s.url+"&shedlock=true", "/locks&", "/locks?", 1)
		run(tb, s.dial(tb, nil), "CREATE TABLE shedlock (name "+name+" PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL, locked_by VARCHAR(255) NOT NULL)")
		return s
	}
}

// servers are the databases by name.
var servers = map[string]func(testing.TB) *server{"mariadb": mariadb, "postgres": postgres, "pgbouncer": pgbouncer, "sqlite": sqlite}

// TestConformance runs the suite. PostgreSQL runs only in the long form of the
// tests, because its store differs only in the text of statements.
func TestConformance(t *testing.T) {
	all := maps.Clone(servers)
	all["shedlock"] = overShedLock(mariadb, "VARBINARY(1024)")
	all["shedlock-postgres"] = overShedLock(postgres, `text COLLATE "C"`)
	for name, start := range all {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "postgres") || name == "pgbouncer" {
				testenv.Long(t)
			}
			s := start(t)
			admin := s.dial(t, nil)
			conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend {
				b := &conformance.Backend{
					New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
						if s.dialect == sqllock.SQLite { // there is no network
							return open(tb, s, s.dial(tb, nil)), nil
						}
						w := new(wire.Wire)
						tb.Cleanup(w.Close)
						return open(tb, s, s.dial(tb, w)), conformance.LinkOver(w)
					},
					Expire: func(tb testing.TB, name string) {
						d := open(tb, s, admin).(driver.ForceUnlocker)
						_ = d.ForceUnlock(tb.Context(), name) // ErrNotHeld if it does not exist
					},
					Ping: func(ctx context.Context) error { return admin.PingContext(ctx) },
					URL:  s.url,
				}
				if s.freeze != nil {
					b.Freeze = func(testing.TB) { s.freeze.Freeze() }
					b.Thaw = func(testing.TB) { s.freeze.Thaw() }
					b.Restart = func(testing.TB) { s.freeze.Restart() }
				}
				return b
			}})
		})
	}
}

func open(tb testing.TB, s *server, db *sql.DB) driver.Driver {
	tb.Helper()
	d, err := s.open(tb.Context(), db, s.dialect, &sqllock.Options{Poll: poll})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}
