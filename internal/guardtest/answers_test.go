package guardtest

import (
	"errors"
	"net/http"
	"reflect"
	"testing"

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
		})
	}
}
