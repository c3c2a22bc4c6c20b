package recipes

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/guard"
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

func TestSetBalanceRefusesLateWriters(t *testing.T) {
	pg := testenv.Postgres(t)
	client := open(t, pg.URL("pglock")+"?sslmode=disable")
	db, err := sql.Open("pgx", pg.URL("postgres")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		"create table dsync_guard (name text primary key, token bigint not null)",
		"create table accounts (id text primary key, balance bigint not null)",
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
	if err := SetBalance(t.Context(), db, "a", 11, first); !errors.Is(err, guard.ErrStale) {
		t.Errorf("a write with token %d after one with %d: %v, want %v", first, second, err, guard.ErrStale)
	}
	var balance int64
	if err := db.QueryRowContext(t.Context(), "select balance from accounts").Scan(&balance); err != nil || balance != 21 {
		t.Errorf("the balance is %d, %v; want 21", balance, err)
	}
}
