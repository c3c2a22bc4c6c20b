package guardtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/dsynctest"
	"github.com/go-dsync/dsync/guard"
	"github.com/go-dsync/dsync/httplock"
)

// TestAnswers checks the tables of package httplock.
func TestAnswers(t *testing.T) {
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			db.clear(t)
			ctx := t.Context()
			create, table := "create table dsync_answers (key text primary key, answer text not null, stored timestamp not null default current_timestamp)", httplock.Postgres
			switch name {
			case "mysql":
				create = "create table dsync_answers (`key` varchar(255) primary key, answer longtext not null, stored timestamp not null default current_timestamp)"
				table = httplock.MySQL
			case "sqlite", "sqlite-wal":
				table = httplock.SQLite
			}
			if _, err := db.ExecContext(ctx, create); err != nil {
				t.Fatal(err)
			}
			answers := table(db.DB)
			if a, err := answers.Load(ctx, "k"); a != nil || err != nil {
				t.Errorf("no answer: got %v, %v", a, err)
			}
			want := &httplock.Answer{Request: "r", Status: 201, Header: http.Header{"A": {"1", "2"}}, Body: []byte{0, 0xff, 'x'}}
			if err := answers.Enter(ctx, "k", 2); err != nil {
				t.Fatal(err)
			}
			if err := answers.Store(ctx, "k", want, 1); !errors.Is(err, guard.ErrStale) {
				t.Errorf("Store with an old token: %v, want %v", err, guard.ErrStale)
			}
			if err := answers.Store(ctx, "k", want, 2); err != nil {
				t.Fatal(err)
			}
			if a, err := answers.Load(ctx, "k"); err != nil || !reflect.DeepEqual(a, want) {
				t.Errorf("got %+v, %v; want %+v", a, err, want)
			}
			if err := answers.Enter(ctx, "k", 1); !errors.Is(err, guard.ErrStale) {
				t.Errorf("Enter with an old token: %v, want %v", err, guard.ErrStale)
			}
			if a, err := answers.Load(ctx, "other"); a != nil || err != nil {
				t.Errorf("another key: got %v, %v", a, err)
			}
			writesOnce(t, db.DB, answers)
		})
	}
}

// writesOnce checks that a handler that calls StoreTx makes its writes once for
// each key.
func writesOnce(t *testing.T, db *sql.DB, answers *httplock.Table) {
	client, _ := dsynctest.New(t, nil)
	if _, err := db.ExecContext(t.Context(), "create table charges (amount integer)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = db.ExecContext(context.WithoutCancel(t.Context()), "drop table charges") })
	var before, after func(ctx context.Context, tx *sql.Tx)
	var inside string    // a lock that the handler acquires
	var key *dsync.Lease // of the request
	charge := func(ctx context.Context, w http.ResponseWriter) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if before != nil {
			before(ctx, tx)
		}
		if err := answers.StoreTx(ctx, tx, &httplock.Answer{Status: http.StatusCreated, Body: []byte("charged")}); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		if _, err := tx.ExecContext(ctx, "insert into charges (amount) values (10)"); err != nil {
			t.Fatal(err)
		}
		if after != nil {
			after(ctx, tx)
		}
		if err := tx.Commit(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "charged")
	}
	h := httplock.Idempotent(client, answers, func(*http.Request) string { return "account 7" }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key = dsync.LeaseFrom(r.Context()); inside == "" {
			charge(r.Context(), w)
			return
		}
		err := dsync.Do(r.Context(), client, inside, func(ctx context.Context) error {
			charge(ctx, w)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}))
	request := func(key string) (status int, body string) {
		defer func() { _ = recover() }()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil)
		r.Header.Set(httplock.Header, key)
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	charges := func(what string, want int) {
		t.Helper()
		var got int
		if err := db.QueryRowContext(t.Context(), "select count(*) from charges").Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %d charges, %v; want %d", what, got, err, want)
		}
	}
	charged := func(key string) {
		t.Helper()
		if status, body := request(key); status != http.StatusCreated || body != "charged" {
			t.Errorf("%s: got %d %q, want 201 and the answer", key, status, body)
		}
	}
	after = func(_ context.Context, tx *sql.Tx) {
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		panic("the handler ends after its commit")
	}
	request("ends")
	after = nil
	charged("ends")
	charges("a handler that ended after its commit", 1)
	after = func(_ context.Context, tx *sql.Tx) { _ = tx.Rollback() }
	if status, _ := request("fails"); status != http.StatusServiceUnavailable {
		t.Errorf("after a rollback: got %d, want 503", status)
	}
	charges("a transaction that was rolled back", 1)
	after = nil
	charged("fails")
	charged("fails")
	charges("a repeated request", 2)
	before = func(ctx context.Context, _ *sql.Tx) { // a repeated request is under way
		if err := answers.Enter(ctx, key.Name(), key.Token()+1); err != nil {
			t.Error(err)
		}
	}
	for _, inside = range []string{"", "accounts/7"} {
		if status, body := request("late" + inside); status != http.StatusServiceUnavailable || !strings.Contains(body, "stale") {
			t.Errorf("a handler that has lost its lock, with the lock %q of its own: got %d %q, want 503", inside, status, body)
		}
		charges("a handler that has lost its lock", 2)
	}
	before = nil
	charged("with a lock of its own")
	charges("a handler with a lock of its own", 3)
	inside = ""
	charged("")
	charges("a request without a key", 4)
	if err := answers.StoreTx(t.Context(), nil, &httplock.Answer{}); err == nil {
		t.Error("StoreTx accepts a context without a request")
	}
}
