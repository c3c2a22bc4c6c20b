package guard

import (
	"context"
	"database/sql"
	"fmt"
)

// SQL keeps the largest token of each name in a database, in a table that the
// program creates:
//
//	create table dsync_guard (name text primary key, token bigint not null)            -- PostgreSQL, SQLite
//	create table dsync_guard (name varbinary(1024) primary key, token bigint not null) -- MySQL, MariaDB
//
// The names of MySQL are binary because MySQL treats texts as equal that differ
// in case, in accents or in trailing spaces.
//
// Write and Read work in the transaction of the caller, together with the work
// that the token protects, so the check and the work are atomic at every
// isolation level. Call them first in the transaction, before the transaction
// reads the data that its writes depend on, because data read earlier may be
// stale. A value that was read before the transaction began requires a call to
// Enter before that read. After an error, roll back the transaction. If the
// database ends a transaction because of a conflict with another transaction,
// the error is the database's and not ErrStale. As usual, retry the whole
// transaction.
type SQL struct{ dialect *dialect }

// The databases: PostgreSQL 9.5 or later, SQLite 3.35 or later, MySQL 5.7 or
// later, MariaDB 10.2 or later, and compatible databases.
var (
	Postgres = SQL{&postgres}
	SQLite   = SQL{&sqlite}
	MySQL    = SQL{&mysql}
)

// dialect contains the statements of a database. No statement relies on the
// number of affected rows, which drivers count differently.
type dialect struct {
	write  string // stores the token if it is larger than the stored one, and returns the stored token
	kept   string // returns the stored token, or -1, and locks it until the end of the transaction
	silent bool   // write returns nothing, so kept must be queried
}

var (
	postgres = dialect{
		write: writeReturning,
		kept:  `select coalesce((select coalesce(token, 0) from dsync_guard where name = $1 for share), -1)`,
	}
	sqlite = dialect{
		write: writeReturning,
		kept:  `select coalesce((select coalesce(token, 0) from dsync_guard where name = $1), -1)`,
	}
	mysql = dialect{
		write: `insert into dsync_guard (name, token) values (?, ?)
			on duplicate key update token = greatest(coalesce(token, 0), values(token))`,
		kept:   `select coalesce((select coalesce(token, 0) from dsync_guard where name = ? lock in share mode), -1)`,
		silent: true,
	}
)

const writeReturning = `insert into dsync_guard (name, token) values ($1, $2)
	on conflict (name) do update set token = case
		when dsync_guard.token > excluded.token then dsync_guard.token
		else excluded.token
	end returning token`

// Tx is a database/sql transaction. *sql.Tx implements it.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	// Commit is not called. A *sql.DB is not a Tx, because it runs each
	// statement in its own transaction.
	Commit() error
}

// Write admits a write to the resource called name, by the holder whose token
// is token, and keeps the token. No other transaction passes Write for the name
// before the transaction ends. Write returns ErrStale if a later holder has
// written, and ErrNoToken if the token is 0.
func (s SQL) Write(ctx context.Context, tx Tx, name string, token uint64) error {
	return s.dialect.admitWrite(ctx, sqlTx{tx}, name, token)
}

// Read admits a read of the resource called name, by a holder in mode Read
// whose token is token. Read returns ErrStale if a later holder has written,
// and ErrNoToken if the token is 0. Read does not store the token: a concurrent
// reader with a smaller token must not be refused.
//
// Until it ends, the transaction sees no changes by later holders. They cannot
// pass Write, or, on SQLite, the transaction continues to see the earlier
// state. For this purpose the first Read of a name creates its row, and on
// PostgreSQL any Read requires the privilege to update the table.
func (s SQL) Read(ctx context.Context, tx Tx, name string, token uint64) error {
	return s.dialect.admitRead(ctx, sqlTx{tx}, name, token)
}

// DB begins database/sql transactions. *sql.DB and *sql.Conn implement it.
type DB interface {
	BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error)
}

// Enter presents the token at the beginning of a hold, in its own transaction,
// for work that does not fit into one transaction. Enter waits for the
// transactions that have passed Write or Read for the name, and keeps the
// token. When Enter returns nil, all writes of earlier holders are committed or
// will be refused, so the caller may read the data that its work depends on.
//
// Each write afterwards still presents the token with Write, because the lock
// may be lost in the meantime. Enter returns the errors of Write. It returns
// the database's error if a conflict with another transaction ended the
// transaction of Enter. The caller may then call Enter again.
func (s SQL) Enter(ctx context.Context, db DB, name string, token uint64) error {
	if err := check(name, token); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("guard: enter %q: %w", name, err)
	}
	defer tx.Rollback()
	if err := s.Write(ctx, tx, name, token); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("guard: enter %q: %w", name, err)
	}
	return nil
}

// PGX is a pgx transaction. pgx.Tx implements it.
type PGX[Row interface{ Scan(...any) error }] interface {
	QueryRow(ctx context.Context, query string, args ...any) Row
	// Commit is not called. A connection or a pool is not a PGX, because it
	// runs each statement in its own transaction.
	Commit(ctx context.Context) error
}

// WritePGX is like Postgres.Write, but for a pgx transaction.
func WritePGX[Row interface{ Scan(...any) error }](ctx context.Context, tx PGX[Row], name string, token uint64) error {
	return Postgres.dialect.admitWrite(ctx, pgxTx[Row]{tx}, name, token)
}

// ReadPGX is like Postgres.Read, but for a pgx transaction.
func ReadPGX[Row interface{ Scan(...any) error }](ctx context.Context, tx PGX[Row], name string, token uint64) error {
	return Postgres.dialect.admitRead(ctx, pgxTx[Row]{tx}, name, token)
}

// PGXTx is a pgx transaction that EnterPGX has begun.
type PGXTx[Row interface{ Scan(...any) error }] interface {
	PGX[Row]
	Rollback(ctx context.Context) error
}

// PGXDB begins pgx transactions. *pgx.Conn and *pgxpool.Pool implement it. A
// pgx.Tx does not have the method, because only a separate transaction can
// commit.
type PGXDB[Options, Tx any] interface {
	BeginTx(ctx context.Context, o Options) (Tx, error)
}

// EnterPGX is like Postgres.Enter, but for a connection or a pool from pgx.
func EnterPGX[Options any, Tx PGXTx[Row], Row interface{ Scan(...any) error }](
	ctx context.Context, db PGXDB[Options, Tx], name string, token uint64) error {
	if err := check(name, token); err != nil {
		return err
	}
	var defaults Options
	tx, err := db.BeginTx(ctx, defaults)
	if err != nil {
		return fmt.Errorf("guard: enter %q: %w", name, err)
	}
	defer tx.Rollback(ctx)
	if err := WritePGX[Row](ctx, tx, name, token); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("guard: enter %q: %w", name, err)
	}
	return nil
}

func (d *dialect) admitWrite(ctx context.Context, tx transaction, name string, token uint64) error {
	if err := check(name, token); err != nil {
		return err
	}
	kept, err := tx.keep(ctx, d, name, token)
	if err != nil {
		return fmt.Errorf("guard: write %q: %w", name, err)
	}
	return compare(name, token, kept)
}

func (d *dialect) admitRead(ctx context.Context, tx transaction, name string, token uint64) error {
	if err := check(name, token); err != nil {
		return err
	}
	kept, err := tx.kept(ctx, d, name)
	if err == nil && kept < 0 { // there is no row to lock
		kept, err = tx.keep(ctx, d, name, 0)
	}
	if err != nil {
		return fmt.Errorf("guard: read %q: %w", name, err)
	}
	return compare(name, token, kept)
}

// transaction is the common part of the two kinds of transactions.
type transaction interface {
	// keep stores the larger of the token and the stored one and returns it.
	keep(ctx context.Context, d *dialect, name string, token uint64) (kept int64, err error)

	// kept returns the stored token, or -1.
	kept(ctx context.Context, d *dialect, name string) (kept int64, err error)
}

type sqlTx struct{ Tx }

func (tx sqlTx) keep(ctx context.Context, d *dialect, name string, token uint64) (kept int64, err error) {
	if !d.silent {
		err = tx.QueryRowContext(ctx, d.write, name, int64(token)).Scan(&kept)
		return kept, err
	}
	if _, err := tx.ExecContext(ctx, d.write, name, int64(token)); err != nil {
		return 0, err
	}
	return tx.kept(ctx, d, name)
}

func (tx sqlTx) kept(ctx context.Context, d *dialect, name string) (kept int64, err error) {
	err = tx.QueryRowContext(ctx, d.kept, name).Scan(&kept)
	return kept, err
}

type pgxTx[Row interface{ Scan(...any) error }] struct{ PGX[Row] }

func (tx pgxTx[Row]) keep(ctx context.Context, d *dialect, name string, token uint64) (kept int64, err error) {
	err = tx.QueryRow(ctx, d.write, name, int64(token)).Scan(&kept)
	return kept, err
}

func (tx pgxTx[Row]) kept(ctx context.Context, d *dialect, name string) (kept int64, err error) {
	err = tx.QueryRow(ctx, d.kept, name).Scan(&kept)
	return kept, err
}
