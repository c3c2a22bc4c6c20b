package guard_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/guard"
)

// A write that is checked in the transaction that does it.
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

// A holder who does not know yet that another one has the lock.
func ExampleMemory() {
	ctx := context.Background()
	backend := memory.NewServer(nil)
	first, _ := dsync.New(backend.NewDriver(), nil)
	second, _ := dsync.New(backend.NewDriver(), nil)
	defer first.Close(ctx)
	defer second.Close(ctx)

	var accounts guard.Memory
	late, _ := first.Lock(ctx, "accounts/7")
	backend.Expire("accounts/7") // as if the first had stood still for longer than its TTL
	lease, _ := second.Lock(ctx, "accounts/7")

	fmt.Println(accounts.Write("accounts/7", lease.Token()))
	fmt.Println(accounts.Write("accounts/7", late.Token()))
	// Output:
	// <nil>
	// guard: the token is stale: a later holder has written ("accounts/7", token 1, after 2)
}
