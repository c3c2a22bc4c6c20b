package pglock_test

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/pglock"
)

// A program that has a DSN, or a pool, locks on the same database. The driver
// opens its own connections, one for all locks and one for each name that the
// process waits for. It leaves the pool's connections to the application.
func ExampleNew() {
	ctx := context.Background()
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL")) // postgres://..., or pool.Config().ConnConfig
	if err != nil {
		log.Fatal(err)
	}
	d, err := pglock.New(ctx, config, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := dsync.New(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
}
