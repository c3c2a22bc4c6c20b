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

// A handler stores its answer in the transaction of its writes, so that it
// charges once for each key even if the process dies.
func ExampleTable_StoreTx() {
	var db *sql.DB
	answers := httplock.Postgres(db)
	charge := func(w http.ResponseWriter, r *http.Request) {
		tx, err := db.BeginTx(r.Context(), nil)
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		defer tx.Rollback()
		err = answers.StoreTx(r.Context(), tx, &httplock.Answer{Status: http.StatusCreated})
		if err == nil {
			_, err = tx.ExecContext(r.Context(), `update accounts set balance = balance - 10 where id = 7`)
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	_ = http.HandlerFunc(charge)
}
