// Package sqllock locks names in a table of MySQL, MariaDB or PostgreSQL, over
// database/sql. A lock is a lease by the server's clock. Package
// [github.com/go-dsync/dsync/driver/cas] makes the driver: exclusive locks,
// read-write locks and permits, granted in the order of the clients' arrival,
// with fencing tokens that are durable.
//
// The package makes nothing in the database, and needs the rights to select,
// insert, update and delete in one table. For MySQL 5.7 and MariaDB 10.2, or
// later:
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
// The tests run on MariaDB 10.11 and PostgreSQL 15, with
// github.com/go-sql-driver/mysql and pgx. MySQL itself and other database/sql
// drivers were not available.
//
// # What it costs
//
// An acquire of a free name takes two statements, a renewal and a release one
// each. One statement renews up to 1,000 locks. Each statement is a transaction
// of its own, so the package works through PgBouncer in transaction mode. A
// waiting client selects one row once in Options.Poll. The server's settings
// decide whether a commit waits for the disk.
//
// A statement is one round trip if the database/sql driver sends it at once:
// with interpolateParams=true in the DSN of github.com/go-sql-driver/mysql. Behind
// PgBouncer, pgx needs default_query_exec_mode=exec, and lib/pq
// binary_parameters=yes. URLs set these.
//
// # Rows
//
// A name that was locked keeps its row, which holds its last token. A row that
// was not written for longer than the longest TTL belongs to a free name. To
// delete it makes the tokens of the name begin again. With Options.NoTokens, or
// fenced=false in a URL, a release deletes the row.
//
// All statements have to reach the server that accepts writes. When a replica
// that lags behind takes over, it may forget the last locks. A server whose
// clock is set forward ends holds early; a clock that is set back makes the holds
// of crashed clients last longer.
//
// # URLs
//
// A program that imports a database/sql driver opens mysql://user@host:3306/db
// or pgtable://user@host:5432/db. The drivers are github.com/go-sql-driver/mysql,
// and pgx/v5/stdlib or lib/pq. The parameters are table=, poll=100ms and
// connections=16, and those of the database/sql driver.
package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/go-dsync/dsync/driver/cas"
)

// Options are optional.
type Options struct {
	Table    string        // "dsync_locks" by default; letters, digits, _, and a dot after the schema
	Poll     time.Duration // how often a waiting client looks; 100 ms by default
	NoTokens bool          // no fencing tokens, and no rows of free names
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// New returns a driver that uses the pool db, which stays open when the driver is
// closed. New fails if the table is missing.
func New(ctx context.Context, db *sql.DB, dialect *Dialect, o *Options) (*cas.Driver, error) {
	s := &store{db: db, dialect: dialect, table: "dsync_locks"}
	options := cas.Options{Name: "sqllock", Clock: true}
	if o != nil {
		if o.Table != "" {
			s.table = o.Table
		}
		options.Poll, options.NoTokens = o.Poll, o.NoTokens
	}
	if !tableName.MatchString(s.table) {
		return nil, fmt.Errorf("%q is not the name of a table", s.table)
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	return cas.New(s, options), nil
}
