package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/go-dsync/dsync/guard"
	"github.com/go-dsync/dsync/internal/testenv"
)

const table = "create table dsync_guard (name varchar(255) primary key, token bigint not null)"

// TestPostgres runs the tests on one server, each with a table of its own.
func TestPostgres(t *testing.T) {
	url := testenv.Postgres(t).URL("postgres")
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for name, test := range map[string]func(t *testing.T, db *sql.DB){
		"Admissions":            admissionsBySQL,
		"AdmissionsOfPGX":       func(t *testing.T, _ *sql.DB) { admissionsByPGX(t, url) },
		"LateWriterWaits":       lateWriterWaits,
		"ReaderKeepsWritersOut": readerKeepsWritersOut,
		"NoTable":               noTable,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := db.ExecContext(t.Context(), "drop table if exists dsync_guard; "+table); err != nil {
				t.Fatal(err)
			}
			test(t, db)
		})
	}
}

// inTx runs f in a transaction, which is rolled back after an error.
func inTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func admissionsBySQL(t *testing.T, db *sql.DB) {
	admit(t, func(name string, token uint64) error {
		return inTx(t.Context(), db, func(tx *sql.Tx) error { return guard.Postgres.Write(t.Context(), tx, name, token) })
	}, func(name string, token uint64) error {
		return inTx(t.Context(), db, func(tx *sql.Tx) error { return guard.Postgres.Read(t.Context(), tx, name, token) })
	})
}

func admissionsByPGX(t *testing.T, url string) {
	conn, err := pgx.Connect(t.Context(), url)
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

// lateWriterWaits has a late writer meet the transaction of a later holder, which ends meanwhile: the first of a name, and one
// more. In the end the transaction is committed, or rolled back.
func lateWriterWaits(t *testing.T, db *sql.DB) {
	for i, commit := range []bool{true, true, false} {
		late, token := uint64(10*i+1), uint64(10*i+2)
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := guard.Postgres.Write(t.Context(), tx, "x", token); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() {
			answer <- inTx(t.Context(), db, func(tx *sql.Tx) error { return guard.Postgres.Write(t.Context(), tx, "x", late) })
		}()
		waits := `select count(*) from pg_stat_activity where wait_event_type = 'Lock'`
		testenv.Eventually(t, func() bool {
			var n int
			return db.QueryRowContext(t.Context(), waits).Scan(&n) == nil && n == 1
		}, "the late writer waits")
		select {
		case err := <-answer:
			t.Errorf("the late writer did not wait: %v", err)
		default:
		}
		end, want := tx.Commit, guard.ErrStale
		if !commit {
			end, want = tx.Rollback, nil
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-answer:
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("case %d: the late writer got %v, want %v", i, err, want)
			}
		case <-time.After(time.Minute):
			t.Fatal("the late writer waits on")
		}
	}
}

// readerKeepsWritersOut has a writer wait for the transaction of a reader.
func readerKeepsWritersOut(t *testing.T, db *sql.DB) {
	write := func(token uint64) error {
		return inTx(t.Context(), db, func(tx *sql.Tx) error { return guard.Postgres.Write(t.Context(), tx, "x", token) })
	}
	if err := write(1); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Postgres.Read(t.Context(), tx, "x", 2); err != nil {
		t.Fatal(err)
	}
	if err := inTx(t.Context(), db, func(other *sql.Tx) error { return guard.Postgres.Read(t.Context(), other, "x", 1) }); err != nil {
		t.Errorf("a second reader: %v", err)
	}
	answer := make(chan error, 1)
	go func() { answer <- write(3) }()
	testenv.Eventually(t, func() bool {
		var n int
		return db.QueryRowContext(t.Context(), `select count(*) from pg_stat_activity where wait_event_type = 'Lock'`).Scan(&n) == nil && n == 1
	}, "the writer waits")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("the writer: %v", err)
	}
}

func noTable(t *testing.T, db *sql.DB) {
	if _, err := db.ExecContext(t.Context(), "drop table dsync_guard"); err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]func(tx *sql.Tx) error{
		"write": func(tx *sql.Tx) error { return guard.Postgres.Write(t.Context(), tx, "x", 1) },
		"read":  func(tx *sql.Tx) error { return guard.Postgres.Read(t.Context(), tx, "x", 1) },
	} {
		if err := inTx(t.Context(), db, f); err == nil || errors.Is(err, guard.ErrStale) {
			t.Errorf("%s without the table: got error %v", what, err)
		}
	}
}
