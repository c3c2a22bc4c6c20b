package httplock_test

import (
	"context"
	"database/sql"
	"log"
	"net/http"
	"time"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/httplock"
)

// A service serializes the requests of an order, and charges once for each
// Idempotency-Key.
func Example() {
	ctx := context.Background()
	client, err := dsync.Open(ctx, "redisson://localhost:6379", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	var db *sql.DB // with the tables of httplock.Table and guard.SQL
	var orders, charges http.Handler
	account := func(r *http.Request) string { return r.Header.Get("Account") } // of the user who is signed in

	orders = httplock.Serialize(client, func(r *http.Request) string { return r.URL.Path }, orders, dsync.WaitAtMost(2*time.Second))
	charges = httplock.Idempotent(client, httplock.Postgres(db), account, charges, dsync.WaitAtMost(2*time.Second))
	http.Handle("/orders/{id}", orders)
	http.Handle("/charges", charges)
}
