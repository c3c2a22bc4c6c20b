// Package sqllock locks names in a table of MySQL, MariaDB, PostgreSQL or
// SQLite, over database/sql. A lock is a lease by the server's clock. Package
// [github.com/go-dsync/dsync/driver/cas] implements the driver: exclusive
// locks, read-write locks and permits, granted to clients in the order of their
// arrival, with durable fencing tokens.
//
// The package creates no tables. It needs permission to select, insert, update
// and delete in one table. For MySQL 5.7 and MariaDB 10.2, or later:
//
//	CREATE TABLE dsync_locks (
//		name VARBINARY(1024) PRIMARY KEY,
//		version BINARY(16) NOT NULL,
//		written BIGINT NOT NULL,
//		value MEDIUMBLOB NOT NULL
//	) ENGINE=InnoDB ROW_FORMAT=DYNAMIC
//
// For PostgreSQL:
//
//	CREATE TABLE dsync_locks (
//		name text COLLATE "C" PRIMARY KEY,
//		version text NOT NULL,
//		written bigint NOT NULL,
//		value text NOT NULL
//	)
//
// For SQLite 3.33 or later, preferably after PRAGMA journal_mode = WAL:
//
//	CREATE TABLE dsync_locks (
//		name TEXT PRIMARY KEY,
//		version TEXT NOT NULL,
//		written INTEGER NOT NULL,
//		value TEXT NOT NULL
//	)
//
// # URLs
//
// A program that imports a database/sql driver opens one of these:
//
//	mysql://user:password@host:3306/db
//	pgtable://user:password@host:5432/db
//	sqlite:///path/to/file
//
// The database/sql driver is github.com/go-sql-driver/mysql, or pgx/v5/stdlib
// or lib/pq, or modernc.org/sqlite or mattn/go-sqlite3. The parameters are
// table=, poll=100ms and, except for SQLite, connections=16 and the parameters
// of the database/sql driver.
//
// # Caveats
//
// All statements must reach the server that accepts writes. A replica that lags
// and takes over may have forgotten the most recent locks. If the server's
// clock jumps forward, holds end early.
//
// A name that was locked keeps its row, which holds its last token. If the row
// is deleted, the tokens of the name start again. With Options.NoTokens a
// release deletes the row.
//
// A waiting client checks once per Options.Poll. Each statement is a separate
// transaction, so the package works through PgBouncer in transaction mode. Make
// your own pool send a statement in one round trip: interpolateParams=true with
// github.com/go-sql-driver/mysql and, behind PgBouncer,
// default_query_exec_mode=exec with pgx or binary_parameters=yes with lib/pq.
// URLs set these.
//
// A lease in an SQLite file ends by the clock of the machine, which all
// processes that use the file must share. If this clock jumps forward, holds
// end early. Give your own pool db.SetMaxOpenConns(1) and a busy timeout, as
// URLs do. An SQLite statement is not canceled with its context, so the busy
// timeout also bounds the time by which a call can outlast its context.
//
// # ShedLock
//
// [NewShedLock], or shedlock=true in a URL for MySQL or PostgreSQL, uses a
// table of Java's ShedLock, so that jobs in Go and in Java exclude each other.
// There are only exclusive locks, without tokens and without an order. ShedLock
// must use the server's clock, which is its option usingDbTime(), and all
// sessions must have the same time zone.
//
// docs/backends/sql.md lists costs, limits and the promises under each fault.
package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/go-dsync/dsync/driver/cas"
)

// Options are the optional settings of New.
type Options struct {
	// "dsync_locks" or "shedlock" by default; letters, digits, _, and a dot
	// after the schema
	Table    string
	Poll     time.Duration // the interval at which a waiting client checks; 100 ms by default
	NoTokens bool          // no fencing tokens, and no rows of free names
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// New returns a driver that uses the pool db, which stays open when the driver
// is closed. New fails if the table is missing.
func New(ctx context.Context, db *sql.DB, dialect *Dialect, o *Options) (*cas.Driver, error) {
	s, options, err := prepare(db, dialect, o, "dsync_locks")
	if err != nil {
		return nil, err
	}
	if err := s.check(ctx, s); err != nil {
		return nil, err
	}
	return cas.New(s, options), nil
}

func prepare(db *sql.DB, dialect *Dialect, o *Options, table string) (*store, cas.Options, error) {
	s := &store{db: db, dialect: dialect, table: table, ddl: dialect.ddl}
	options := cas.Options{Name: "sqllock", Clock: true}
	if o != nil {
		s.table = cmp.Or(o.Table, table)
		options.Poll, options.NoTokens = o.Poll, o.NoTokens
	}
	if !tableName.MatchString(s.table) {
		return nil, options, fmt.Errorf("%q is not a valid table name", s.table)
	}
	return s, options, nil
}
