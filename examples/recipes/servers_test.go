package recipes

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// openGuarded returns a database with the tables of the recipes.
func openGuarded(t *testing.T, pg *testenv.PostgresServer) *sql.DB {
	db, err := sql.Open("pgx", pg.URL("postgres")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for _, statement := range []string{
		"create table dsync_guard (name text primary key, token bigint not null)",
		"create table accounts (id text primary key, balance bigint not null)",
		"insert into accounts values ('a', 100)",
		"create table results (key text primary key, result text not null)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// pause runs next while a transaction with the token has executed statement but
// not committed. The transaction commits when next waits for it.
func pause(t *testing.T, db *sql.DB, name string, token uint64, statement string, next func() error) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Postgres.Write(t.Context(), tx, name, token); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- next() }()
	testenv.Eventually(t, func() bool {
		var n int
		if err := db.QueryRowContext(t.Context(), "select count(*) from pg_stat_activity where wait_event_type = 'Lock'").Scan(&n); err != nil {
			t.Error(err)
		}
		return n > 0 || len(done) > 0
	}, "the next holder waits")
	if err := errors.Join(tx.Commit(), <-done); err != nil {
		t.Error(err)
	}
}

// TestFencing runs each recipe against a holder that is paused just before its
// commit, and then against that holder's late writes.
func TestFencing(t *testing.T) {
	pg := testenv.Postgres(t)
	client := open(t, pg.URL("pglock")+"?sslmode=disable")
	db := openGuarded(t, pg)
	token := func(name string) (token uint64) {
		if err := dsync.Do(t.Context(), client, name, func(ctx context.Context) error {
			token = dsync.LeaseFrom(ctx).Token()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return token
	}
	first := token("accounts/a")
	pause(t, db, "accounts/a", first, "update accounts set balance = 90", func() error {
		return UpdateBalance(t.Context(), db, "a", token("accounts/a"), func(balance int64) int64 { return balance - 20 })
	})
	if err := UpdateBalance(t.Context(), db, "a", first, func(int64) int64 { return 0 }); !errors.Is(err, guard.ErrStale) {
		t.Errorf("a late write: %v, want %v", err, guard.ErrStale)
	}
	second := token("accounts/a")
	pause(t, db, "accounts/a", second, "update accounts set balance = 60", func() error {
		return Charge(t.Context(), db, "a", token("accounts/a"), func(ctx context.Context, balance int64) (int64, error) {
			if err := UpdateBalance(ctx, db, "a", second, func(int64) int64 { return 0 }); !errors.Is(err, guard.ErrStale) {
				t.Errorf("a late write during the work: %v, want %v", err, guard.ErrStale)
			}
			return balance - 30, nil
		})
	})
	var balance int64
	if err := db.QueryRowContext(t.Context(), "select balance from accounts").Scan(&balance); err != nil || balance != 30 {
		t.Errorf("the balance is %d, %v; want 30", balance, err)
	}
	pause(t, db, "once/pay/7", token("once/pay/7"), "insert into results values ('pay/7', 'receipt 1')", func() error {
		result, err := Once(t.Context(), client, db, "pay/7", func(context.Context, *sql.Tx) (string, error) {
			t.Error("the work is done twice")
			return "receipt 2", nil
		})
		if result != "receipt 1" {
			t.Errorf("got %q, want the first receipt", result)
		}
		return err
	})
	failed := errors.New("card refused")
	if _, err := Once(t.Context(), client, db, "pay/8", func(context.Context, *sql.Tx) (string, error) { return "", failed }); !errors.Is(err, failed) {
		t.Errorf("got %v, want %v", err, failed)
	}
	var works atomic.Int32
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			result, err := Once(t.Context(), client, db, "pay/8", func(context.Context, *sql.Tx) (string, error) {
				return fmt.Sprint("receipt ", works.Add(1)), nil
			})
			if result != "receipt 1" || err != nil {
				t.Errorf("got %q, %v; want the first receipt", result, err)
			}
		})
	}
	wg.Wait()
}
