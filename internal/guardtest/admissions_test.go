package guardtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/guard"
)

// admission is a call to Write or Read, with the expected error.
type admission struct {
	name  string
	token uint64
	read  bool
	want  error
}

// long is one byte shorter than the longest valid name.
var long = strings.Repeat("n", 1023)

// admissions are successive calls, for every guard.
var admissions = []admission{
	{name: "a", token: 1, read: true},
	{name: "a", token: 5},
	{name: "a", token: 5},
	{name: "a", token: 4, want: guard.ErrStale},
	{name: "a", token: 4, read: true, want: guard.ErrStale},
	{name: "a", token: 5, read: true},
	{name: "b", token: 3},
	{name: "a", token: 9, read: true},
	{name: "a", token: 8, read: true},
	{name: "a", token: 7},
	{name: "a", token: 5, want: guard.ErrStale},
	{name: "a", token: 0, want: guard.ErrNoToken},
	{name: "a", token: 0, read: true, want: guard.ErrNoToken},
	{name: "a", token: math.MaxInt64},
	{name: "a", token: 8, want: guard.ErrStale},

	// Names that are nearly equal.
	{name: "A", token: 1},
	{name: "a ", token: 1},
	{name: "ä", token: 1},
	{name: long + "1", token: 2},
	{name: long + "2", token: 1},
	{name: `o'k\"; --`, token: 2},
	{name: `o'k\"; --`, token: 1, want: guard.ErrStale},
}

// admit runs the admissions on a guard.
func admit(t *testing.T, write, read func(name string, token uint64) error) {
	t.Helper()
	for i, a := range admissions {
		call := write
		if a.read {
			call = read
		}
		if err := call(a.name, a.token); !errors.Is(err, a.want) || a.want == nil && err != nil {
			t.Errorf("call %d, %+v: got error %v", i, a, err)
		}
	}
	if err := write("a", math.MaxInt64+1); err == nil || !strings.Contains(err.Error(), "larger than a bigint") {
		t.Errorf("a token that no database stores: got error %v", err)
	}
}

func TestMemory(t *testing.T) {
	var m guard.Memory
	admit(t, m.Write, m.Read)
}

func TestPGX(t *testing.T) {
	db := openPostgres(t)
	db.clear(t)
	conn, err := pgx.Connect(t.Context(), db.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	admit(t, func(name string, token uint64) error {
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return guard.WritePGX(t.Context(), tx, name, token) })
	}, func(name string, token uint64) error {
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return guard.ReadPGX(t.Context(), tx, name, token) })
	})
}

func admissionsBySQL(t *testing.T, db *database) {
	admit(t, func(name string, token uint64) error {
		return db.transact(t.Context(), sql.LevelDefault, func(ctx context.Context, tx *sql.Tx) error { return db.guard.Write(ctx, tx, name, token) })
	}, func(name string, token uint64) error {
		return db.transact(t.Context(), sql.LevelDefault, func(ctx context.Context, tx *sql.Tx) error { return db.guard.Read(ctx, tx, name, token) })
	})
}

// nullIsNoToken checks a null in a table that was created without the
// constraint that token is not null.
func nullIsNoToken(t *testing.T, db *database) {
	if _, err := db.ExecContext(t.Context(), "insert into dsync_guard (name, token) values ('x', null)"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		token uint64
		want  error
	}{{2, nil}, {1, guard.ErrStale}} {
		if err := db.transact(t.Context(), sql.LevelDefault, db.write(step.token)); !errors.Is(err, step.want) || step.want == nil && err != nil {
			t.Errorf("token %d: got error %v, want %v", step.token, err, step.want)
		}
	}
}

// otherScaleOfTokens changes the backend of a program, first only by the URL
// and then with a floor.
func otherScaleOfTokens(t *testing.T, db *database) {
	write := func(floor uint64) error {
		t.Helper()
		client, err := dsync.New(memory.New(nil), &dsync.Options{Floor: floor})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(t.Context())
		return dsync.Do(t.Context(), client, "x", func(ctx context.Context) error {
			return db.transact(ctx, sql.LevelDefault, db.write(dsync.LeaseFrom(ctx).Token()))
		})
	}
	if err := write(70000); err != nil {
		t.Fatal(err)
	}
	if err := write(0); !errors.Is(err, guard.ErrStale) || !strings.Contains(err.Error(), "token 1,") || !strings.Contains(err.Error(), "70001") {
		t.Errorf("a backend whose tokens are smaller: got error %v, want %v with both tokens", err, guard.ErrStale)
	}
	if err := write(70001); err != nil {
		t.Errorf("with a floor: %v", err)
	}
}

func noTable(t *testing.T, db *database) {
	if _, err := db.ExecContext(t.Context(), "drop table dsync_guard"); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]work{
		"write": func(ctx context.Context, tx *sql.Tx) error { return db.guard.Write(ctx, tx, "x", 1) },
		"read":  func(ctx context.Context, tx *sql.Tx) error { return db.guard.Read(ctx, tx, "x", 1) },
	} {
		if err := db.transact(t.Context(), sql.LevelDefault, do); err == nil || errors.Is(err, guard.ErrStale) {
			t.Errorf("%s without the table: got error %v", what, err)
		}
	}
}

// rowsAreNotCounted uses a connection that reports no changed row for any
// statement, as some do if a value stays the same.
func rowsAreNotCounted(t *testing.T, db *database) {
	for _, step := range []struct {
		token uint64
		want  error
	}{{2, nil}, {3, nil}, {3, nil}, {2, guard.ErrStale}} {
		err := db.transact(t.Context(), sql.LevelDefault, func(ctx context.Context, tx *sql.Tx) error {
			return db.guard.Write(ctx, noRows{tx}, "x", step.token)
		})
		if !errors.Is(err, step.want) || step.want == nil && err != nil {
			t.Errorf("token %d: got error %v, want %v", step.token, err, step.want)
		}
	}
}

type noRows struct{ *sql.Tx }

func (tx noRows) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	_, err := tx.Tx.ExecContext(ctx, query, args...)
	return driver.RowsAffected(0), err
}
