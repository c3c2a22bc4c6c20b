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
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := t.store(ctx, tx, key, a, token); err != nil {
		return err
	}
	return tx.Commit()
}

// StoreTx stores the answer to a request in a transaction of the handler. The
// transaction commits the answer together with the handler's writes, which are
// therefore made once for the key of the request. Call StoreTx first in the
// transaction, before the handler reads what its writes depend on. If the
// transaction commits, the client receives this answer instead of what the
// handler writes to its http.ResponseWriter.
//
// ctx is the context of the request that [Idempotent] has passed to the
// handler. StoreTx sets a.Request. It does nothing for a request without a key.
// It returns guard.ErrStale if the lock of the key was lost and a repeated
// request is under way.
func (t *Table) StoreTx(ctx context.Context, tx guard.Tx, a *Answer) error {
	c, ok := ctx.Value(callKey{}).(*call)
	switch {
	case !ok:
		return errors.New("httplock: StoreTx requires the context of a request that Idempotent has passed to its handler")
	case c == nil:
		return nil
	}
	c.stored.Store(true)
	a.Request = c.request
	return t.store(ctx, tx, c.key, a, c.token)
}

func (t *Table) store(ctx context.Context, tx guard.Tx, key string, a *Answer, token uint64) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := t.guard.Write(ctx, tx, key, token); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, t.insert, key, string(text))
	return err
}
