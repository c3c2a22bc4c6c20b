package recipes

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/testenv"
)

func open(t *testing.T, url string) *dsync.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := dsync.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// execer is a connection with the method of package database/sql.
type execer struct{ *pgx.Conn }

func (e execer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := e.Exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

func TestSetBalanceRefusesLateWriters(t *testing.T) {
	pg := testenv.Postgres(t)
	client := open(t, pg.URL("pglock")+"?sslmode=disable")
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	db := execer{conn}
	for _, statement := range []string{
		"create table accounts (id text primary key, balance bigint not null)",
		"alter table accounts add column fence bigint not null default 0", // as the recipe says
		"insert into accounts values ('a', 0)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	set := func(balance int64) (token uint64) {
		t.Helper()
		err := dsync.Do(t.Context(), client, "accounts/a", func(ctx context.Context) error {
			token = dsync.LeaseFrom(ctx).Token()
			return errors.Join(SetBalance(ctx, db, "a", balance, token), SetBalance(ctx, db, "a", balance+1, token))
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	first, second := set(10), set(20)
	if err := SetBalance(t.Context(), db, "a", 11, first); !errors.Is(err, ErrFenced) {
		t.Errorf("a write with token %d after one with %d: %v, want ErrFenced", first, second, err)
	}
	var balance int64
	if err := conn.QueryRow(t.Context(), "select balance from accounts").Scan(&balance); err != nil || balance != 21 {
		t.Errorf("the balance is %d, %v; want 21", balance, err)
	}
}
