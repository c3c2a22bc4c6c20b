package guard_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"sync"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/guard"
)

// This example checks a write in the transaction that makes it.
func ExampleSQL_Write() {
	var (
		ctx    context.Context
		client *dsync.Client
		db     *sql.DB
	)
	err := dsync.Do(ctx, client, "accounts/7", func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := guard.Postgres.Write(ctx, tx, "accounts/7", dsync.LeaseFrom(ctx).Token()); err != nil {
			return err // guard.ErrStale: a later holder has written
		}
		if _, err := tx.ExecContext(ctx, "update accounts set balance = balance - 10 where id = 7"); err != nil {
			return err
		}
		return tx.Commit()
	})
	log.Print(err)
}

// This example does work that does not fit into one transaction.
func ExampleSQL_Enter() {
	var (
		ctx     context.Context
		client  *dsync.Client
		db      *sql.DB
		convert func(ctx context.Context, balance int64) (int64, error) // takes long
	)
	err := dsync.Do(ctx, client, "accounts/7", func(ctx context.Context) error {
		token := dsync.LeaseFrom(ctx).Token()
		if err := guard.Postgres.Enter(ctx, db, "accounts/7", token); err != nil {
			return err
		}
		var balance int64 // read after Enter
		if err := db.QueryRowContext(ctx, "select balance from accounts where id = 7").Scan(&balance); err != nil {
			return err
		}
		balance, err := convert(ctx, balance)
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := guard.Postgres.Write(ctx, tx, "accounts/7", token); err != nil {
			return err // the lock was lost in the meantime, and a later holder has entered
		}
		if _, err := tx.ExecContext(ctx, "update accounts set balance = $1 where id = 7", balance); err != nil {
			return err
		}
		return tx.Commit()
	})
	log.Print(err)
}

// This example is a service whose handler presents the token under the mutex of
// its data.
func ExampleToken() {
	var (
		mu      sync.Mutex
		tokens  guard.Memory
		balance int64
	)
	http.HandleFunc("/accounts/7", func(w http.ResponseWriter, r *http.Request) {
		token, err := guard.Token(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusPreconditionRequired)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if err := tokens.Write("accounts/7", token); err != nil { // for a GET, too
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
			return
		}
		if r.Method == http.MethodPut {
			fmt.Fscan(r.Body, &balance)
		}
		fmt.Fprintln(w, balance)
	})
}

// In this example, the first holder does not know yet that another client holds
// the lock.
func ExampleMemory() {
	ctx := context.Background()
	backend := memory.NewServer(nil)
	first, _ := dsync.New(backend.NewDriver(), nil)
	second, _ := dsync.New(backend.NewDriver(), nil)
	defer first.Close(ctx)
	defer second.Close(ctx)

	var accounts guard.Memory
	late, _ := first.Lock(ctx, "accounts/7")
	backend.Expire("accounts/7") // as if the first holder had been suspended for longer than its TTL
	lease, _ := second.Lock(ctx, "accounts/7")

	fmt.Println(accounts.Write("accounts/7", lease.Token()))
	fmt.Println(accounts.Write("accounts/7", late.Token()))
	// Output:
	// <nil>
	// guard: the token is stale: a later holder has written ("accounts/7", token 1, after 2)
}
