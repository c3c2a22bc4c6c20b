package httplock

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"github.com/go-dsync/dsync/guard"
)

// Table implements Answers in a database. The program creates its table next to
// the table of guard.SQL:
//
//	create table dsync_answers (key text primary key, answer text not null, stored timestamp not null default current_timestamp)         -- PostgreSQL, SQLite
//	create table dsync_answers (`key` varchar(255) primary key, answer longtext not null, stored timestamp not null default current_timestamp) -- MySQL, MariaDB
//
// Rows stay until the program deletes them, for example once a day.
type Table struct {
	db           *sql.DB
	guard        guard.SQL
	load, insert string
}

// Postgres returns a Table in PostgreSQL.
func Postgres(db *sql.DB) *Table { return &Table{db, guard.Postgres, loadDollar, insertDollar} }

// SQLite returns a Table in SQLite.
func SQLite(db *sql.DB) *Table { return &Table{db, guard.SQLite, loadDollar, insertDollar} }

// MySQL returns a Table in MySQL or MariaDB.
func MySQL(db *sql.DB) *Table {
	return &Table{db, guard.MySQL, "select answer from dsync_answers where `key` = ?", "insert into dsync_answers (`key`, answer) values (?, ?)"}
}

const (
	loadDollar   = `select answer from dsync_answers where key = $1`
	insertDollar = `insert into dsync_answers (key, answer) values ($1, $2)`
)

// Load implements Answers.
func (t *Table) Load(ctx context.Context, key string) (*Answer, error) {
	var text []byte
	err := t.db.QueryRowContext(ctx, t.load, key).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a := new(Answer)
	if err := json.Unmarshal(text, a); err != nil {
		return nil, err
	}
	return a, nil
}

// Enter implements Answers.
func (t *Table) Enter(ctx context.Context, key string, token uint64) error {
	return t.guard.Enter(ctx, t.db, key, token)
}

// Store implements Answers.
func (t *Table) Store(ctx context.Context, key string, a *Answer, token uint64) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := t.guard.Write(ctx, tx, key, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, t.insert, key, string(text)); err != nil {
		return err
	}
	return tx.Commit()
}
