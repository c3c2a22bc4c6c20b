package guardtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"

	"github.com/go-dsync/dsync/guard"
	"github.com/go-dsync/dsync/internal/testenv"
)

// database is a database that package guard supports.
type database struct {
	*sql.DB
	url   string // of a PostgreSQL
	guard guard.SQL

	// table is the table in the documentation of guard, except that token may
	// be null.
	table string

	levels   []level
	conflict func(error) bool // whether an error means that another transaction caused the end of this transaction

	// waiting queries the number of transactions that wait for another
	// transaction. It is empty if transactions never wait and all conflicts are
	// errors.
	waiting string
}

// level is an isolation level.
type level struct {
	sql.IsolationLevel
	conflicts bool // a conflicting transaction may be ended
	locks     bool // no other transaction can write data that this transaction has read
}

// open contains the databases by name.
var open = map[string]func(t *testing.T) *database{
	"postgres":   openPostgres,
	"mysql":      openMySQL,
	"sqlite":     func(t *testing.T) *database { return openSQLite(t, "delete") },
	"sqlite-wal": func(t *testing.T) *database { return openSQLite(t, "wal") },
}

func openPostgres(t *testing.T) *database {
	url := testenv.Postgres(t).URL("postgres")
	return &database{
		DB:     openSQL(t, "pgx", url),
		url:    url,
		guard:  guard.Postgres,
		table:  "dsync_guard (name text primary key, token bigint)",
		levels: []level{{IsolationLevel: sql.LevelReadCommitted}, {IsolationLevel: sql.LevelRepeatableRead, conflicts: true}, {IsolationLevel: sql.LevelSerializable, conflicts: true}},
		conflict: func(err error) bool {
			failed := new(pgconn.PgError)
			return errors.As(err, &failed) && (failed.Code == "40001" || failed.Code == "40P01") // serialization_failure, deadlock_detected
		},
		waiting: "select count(*) from pg_stat_activity where wait_event_type = 'Lock'",
	}
}

func openMySQL(t *testing.T) *database {
	server := testenv.MySQL(t)
	if _, err := openSQL(t, "mysql", "root@tcp("+server.Addr+")/").ExecContext(t.Context(), "create database guard"); err != nil {
		t.Fatal(err)
	}
	return &database{
		DB:    openSQL(t, "mysql", "root@tcp("+server.Addr+")/guard"),
		guard: guard.MySQL,
		table: "dsync_guard (name varbinary(1024) primary key, token bigint)",
		levels: []level{{IsolationLevel: sql.LevelReadUncommitted}, {IsolationLevel: sql.LevelReadCommitted},
			{IsolationLevel: sql.LevelRepeatableRead}, {IsolationLevel: sql.LevelSerializable, locks: true}},
		conflict: func(err error) bool {
			failed := new(mysql.MySQLError)
			return errors.As(err, &failed) && (failed.Number == 1213 || failed.Number == 1020) // ER_LOCK_DEADLOCK, ER_CHECKREAD
		},
		waiting: "select variable_value from information_schema.global_status where variable_name = 'Innodb_row_lock_current_waits'",
	}
}

func openSQLite(t *testing.T, journal string) *database {
	file := filepath.Join(t.TempDir(), "guard.db")
	return &database{
		DB:     openSQL(t, "sqlite", "file:"+file+"?_pragma=journal_mode("+journal+")&_pragma=synchronous(off)"),
		guard:  guard.SQLite,
		table:  "dsync_guard (name text primary key, token bigint)",
		levels: []level{{IsolationLevel: sql.LevelDefault, conflicts: true}},
		conflict: func(err error) bool {
			failed := new(sqlite.Error)
			return errors.As(err, &failed) && failed.Code()&0xff == 5 // SQLITE_BUSY
		},
	}
}

func openSQL(t *testing.T, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// TestDatabases runs the tests on each database, with separate tables.
func TestDatabases(t *testing.T) {
	tests := []struct {
		name string
		run  func(t *testing.T, db *database)
	}{
		{"Admissions", admissionsBySQL},
		{"NullIsNoToken", nullIsNoToken},
		{"RowsAreNotCounted", rowsAreNotCounted},
		{"OtherScaleOfTokens", otherScaleOfTokens},
		{"NoTable", noTable},
		{"WriterMeetsWriter", writerMeetsWriter},
		{"ReaderMeetsWriter", readerMeetsWriter},
		{"WriterMeetsReader", writerMeetsReader},
		{"Snapshot", snapshot},
		{"Crowd", crowd},
		{"EnterMeetsWriter", enterMeetsWriter},
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					db.clear(t)
					test.run(t, db)
				})
			}
		})
	}
}

// clear creates empty tables: the table of guard, and an account with no money
// that the name "x" protects.
func (db *database) clear(t *testing.T) {
	t.Helper()
	for _, statement := range []string{
		"create table if not exists " + db.table, "delete from dsync_guard",
		"create table if not exists account (id int primary key, balance bigint not null)", "delete from account",
		"insert into account (id, balance) values (1, 0)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// work is the work of a transaction.
type work func(ctx context.Context, tx *sql.Tx) error

// transact does work in a transaction.
func (db *database) transact(ctx context.Context, level sql.IsolationLevel, do work) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	if err := do(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err = tx.Commit(); err != nil {
		conn.ExecContext(ctx, "rollback") // on SQLite the transaction may still exist
	}
	return err
}

// write sets the balance to the token, as the holder with the token.
func (db *database) write(token uint64) work {
	return func(ctx context.Context, tx *sql.Tx) error {
		if err := db.guard.Write(ctx, tx, "x", token); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("update account set balance = %d", token))
		return err
	}
}

// balance checks the balance.
func balance(ctx context.Context, tx *sql.Tx, want uint64) error {
	var got uint64
	err := tx.QueryRowContext(ctx, "select balance from account").Scan(&got)
	if err == nil && got != want {
		err = fmt.Errorf("the balance is %d, want %d", got, want)
	}
	return err
}
