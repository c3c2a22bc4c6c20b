package guard

import (
	"context"
	"database/sql"
	"fmt"
)

// SQL is how a database keeps the largest token of each name, in a table that the program creates:
//
//	create table dsync_guard (name varchar(255) primary key, token bigint not null)
//
// Write and Read work in the transaction of the caller, together with what the token protects, so the check and the work are one. After an
// error roll the transaction back. A transaction that the database ended because of a conflict with another one is tried again as a
// whole, as ever.
type SQL struct{ dialect *dialect }

// The databases: PostgreSQL 9.5 or later, SQLite 3.24 or later, MySQL 5.7 or later, or MariaDB 10.2 or later, and what speaks as they do.
var (
	Postgres = SQL{&dialect{
		write: `insert into dsync_guard (name, token) values ($1, $2)
			on conflict (name) do update set token = excluded.token where dsync_guard.token <= excluded.token`,
		kept: `select coalesce((select token from dsync_guard where name = $1 for share), 0)`,
	}}
	SQLite = SQL{&dialect{
		write: `insert into dsync_guard (name, token) values (?, ?)
			on conflict (name) do update set token = excluded.token where dsync_guard.token <= excluded.token`,
		kept: `select coalesce((select token from dsync_guard where name = ?), 0)`,
	}}
	MySQL = SQL{&dialect{
		write: `insert into dsync_guard (name, token) values (?, ?) on duplicate key update token = greatest(token, values(token))`,
		kept:  `select coalesce((select token from dsync_guard where name = ? lock in share mode), 0)`,

		countsChanges: true,
	}}
)

// dialect has the statements of a database.
type dialect struct {
	write string // keeps the token; no row is affected if a larger one is kept
	kept  string // the token that is kept, or 0; nobody changes it before the end of the transaction

	// countsChanges: no row is affected either where the token is kept already, so kept has to tell the two cases apart.
	countsChanges bool
}

// Tx is a transaction of package database/sql: a *sql.Tx.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Write admits a write to what name stands for, by the holder with the token, and keeps the token. Nobody else gets through Write for the
// name before the transaction ends. Write returns ErrStale if a later holder has written, and ErrNoToken if the token is 0.
func (s SQL) Write(ctx context.Context, tx Tx, name string, token uint64) error {
	return s.dialect.admitWrite(ctx, sqlTx{tx}, name, token)
}

// Read admits a read of what name stands for, by a holder in the mode Read with the token. Read returns ErrStale if a later holder has
// written, and ErrNoToken if the token is 0. Nothing is kept, since of two readers the one with the smaller token must not be refused; but
// no writer gets through Write before the transaction ends. On PostgreSQL that takes the privilege to update the table.
func (s SQL) Read(ctx context.Context, tx Tx, name string, token uint64) error {
	return s.dialect.admitRead(ctx, sqlTx{tx}, name, token)
}

// PGX is a transaction of pgx: a pgx.Tx.
type PGX[Tag interface{ RowsAffected() int64 }, Row interface{ Scan(...any) error }] interface {
	Exec(ctx context.Context, query string, args ...any) (Tag, error)
	QueryRow(ctx context.Context, query string, args ...any) Row
}

// WritePGX is Postgres.Write for a transaction of pgx.
func WritePGX[Tag interface{ RowsAffected() int64 }, Row interface{ Scan(...any) error }](ctx context.Context, tx PGX[Tag, Row], name string, token uint64) error {
	return Postgres.dialect.admitWrite(ctx, pgxTx[Tag, Row]{tx}, name, token)
}

// ReadPGX is Postgres.Read for a transaction of pgx.
func ReadPGX[Tag interface{ RowsAffected() int64 }, Row interface{ Scan(...any) error }](ctx context.Context, tx PGX[Tag, Row], name string, token uint64) error {
	return Postgres.dialect.admitRead(ctx, pgxTx[Tag, Row]{tx}, name, token)
}

func (d *dialect) admitWrite(ctx context.Context, tx transaction, name string, token uint64) error {
	n, err := check(name, token)
	if err != nil {
		return err
	}
	rows, err := tx.exec(ctx, d.write, name, n)
	switch {
	case err != nil:
		return fmt.Errorf("guard: write %q: %w", name, err)
	case rows > 0 && !d.countsChanges:
		return nil
	case !d.countsChanges:
		return stale(name, token)
	}
	return d.admitRead(ctx, tx, name, token)
}

func (d *dialect) admitRead(ctx context.Context, tx transaction, name string, token uint64) error {
	n, err := check(name, token)
	if err != nil {
		return err
	}
	kept, err := tx.number(ctx, d.kept, name)
	switch {
	case err != nil:
		return fmt.Errorf("guard: read %q: %w", name, err)
	case n < kept:
		return stale(name, token)
	}
	return nil
}

// transaction is what the two kinds of transactions have in common.
type transaction interface {
	exec(ctx context.Context, query string, args ...any) (rows int64, err error)
	number(ctx context.Context, query string, args ...any) (n int64, err error)
}

type sqlTx struct{ Tx }

func (tx sqlTx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (tx sqlTx) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = tx.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

type pgxTx[Tag interface{ RowsAffected() int64 }, Row interface{ Scan(...any) error }] struct{ PGX[Tag, Row] }

func (tx pgxTx[Tag, Row]) exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := tx.Exec(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return tag.RowsAffected(), nil
}

func (tx pgxTx[Tag, Row]) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = tx.QueryRow(ctx, query, args...).Scan(&n)
	return n, err
}
