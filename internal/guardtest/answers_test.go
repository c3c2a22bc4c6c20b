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
	charge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
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
	})
	h := httplock.Idempotent(client, answers, func(*http.Request) string { return "account 7" }, charge)
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
		key := dsync.LeaseFrom(ctx).Name()
		if err := answers.Enter(ctx, key, dsync.LeaseFrom(ctx).Token()+1); err != nil {
			t.Error(err)
		}
	}
	if status, body := request("late"); status != http.StatusServiceUnavailable || !strings.Contains(body, "stale") {
		t.Errorf("a handler that has lost its lock: got %d %q, want 503", status, body)
	}
	before = nil
	charges("a handler that has lost its lock", 2)
	charged("")
	charges("a request without a key", 3)
	if err := answers.StoreTx(t.Context(), nil, &httplock.Answer{}); err == nil {
		t.Error("StoreTx accepts a context without a request")
	}
}
