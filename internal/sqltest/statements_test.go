package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/sqllock"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

type events struct{}

func (events) Waiting()    {}
func (events) Tokens() int { return 1 }
func (events) Lost(error)  {}

func hold(tb testing.TB, d driver.Driver, name string) driver.Lease {
	tb.Helper()
	l, err := d.Acquire(tb.Context(), &driver.Request{Name: name, Hold: name + ":1", TTL: time.Minute, NoWait: true, Events: events{}})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// TestManyHeld checks that a client renews many locks on each database. On
// MariaDB, it counts the statements.
func TestManyHeld(t *testing.T) {
	const many = 2500
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			db := s.dial(t, nil)
			d := open(t, s, db)
			leases := make([]driver.Lease, many)
			var all sync.WaitGroup
			for n := range 8 {
				all.Go(func() {
					for i := n; i < many; i += 8 {
						leases[i] = hold(t, d, fmt.Sprintf("n%04d", i))
					}
				})
			}
			all.Wait()
			before := counter(t, s, db, "Com_update_multi")
			sent := time.Now()
			d.(driver.BatchRenewer).RenewAll(t.Context(), leases, func(i int, err error) {
				if err != nil || leases[i].Expires().Before(sent.Add(time.Minute)) {
					t.Errorf("renewal %d: %v", i, err)
				}
			})
			if n := counter(t, s, db, "Com_update_multi") - before; s.dialect == sqllock.MySQL && n != 3 {
				t.Errorf("%d statements renewed %d locks, want 3", n, many)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// counter returns the value of a MariaDB counter.
func counter(tb testing.TB, s *server, db *sql.DB, name string) (n int) {
	tb.Helper()
	if s.dialect != sqllock.MySQL {
		return 0
	}
	if err := db.QueryRowContext(tb.Context(), "SELECT variable_value FROM information_schema.global_status WHERE variable_name = ?", name).Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// TestDeadlockVictim makes a batch of renewals the victim of a deadlock.
func TestDeadlockVictim(t *testing.T) {
	s := mariadb(t)
	db := s.dial(t, nil)
	d := open(t, s, db)
	leases := []driver.Lease{hold(t, d, "a"), hold(t, d, "b")}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	change := func(statement string, args ...any) {
		t.Helper()
		if _, err := tx.ExecContext(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 { // the victim is the transaction that has changed less
		change("INSERT INTO dsync_locks (name, version, written, value) VALUES (?, '', 0, '')", fmt.Sprintf("junk%d", i))
	}
	change("UPDATE dsync_locks SET written = written + 1 WHERE name = 'b'")
	renewed := make(chan struct{})
	go func() { // ends when the transaction ends
		defer close(renewed)
		d.(driver.BatchRenewer).RenewAll(t.Context(), leases, func(i int, err error) {
			if err != nil {
				t.Errorf("renewal %d: %v", i, err)
			}
		})
	}()
	testenv.Eventually(t, func() bool { return counter(t, s, db, "Innodb_row_lock_current_waits") > 0 }, "the batch waits")
	change("UPDATE dsync_locks SET written = written + 1 WHERE name = 'a'")
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	<-renewed
	if n := counter(t, s, db, "Innodb_deadlocks"); n == 0 {
		t.Error("there was no deadlock")
	}
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMissingTable checks that the error of New names the missing table.
func TestMissingTable(t *testing.T) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			_, err := sqllock.New(t.Context(), s.dial(t, nil), s.dialect, &sqllock.Options{Table: "others"})
			if err == nil || !strings.Contains(err.Error(), "CREATE TABLE others (") {
				t.Fatalf("without a table: got %v, want the statement that makes it", err)
			}
			_, ddl, _ := strings.Cut(err.Error(), "CREATE TABLE ")
			db := s.dial(t, nil)
			run(t, db, "CREATE TABLE "+ddl)
			d, err := sqllock.New(t.Context(), db, s.dialect, &sqllock.Options{Table: "others", NoTokens: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := hold(t, d, "name").Release(t.Context()); err != nil {
				t.Error(err)
			}
			var rows int
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM others").Scan(&rows); err != nil || rows > 0 {
				t.Errorf("without tokens there are %d rows after a release (%v)", rows, err)
			}
			if err := d.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMissingRights tests a role that may only read.
func TestMissingRights(t *testing.T) {
	s := postgres(t)
	admin := s.dial(t, nil)
	run(t, admin, "CREATE ROLE reader LOGIN")
	run(t, admin, "GRANT SELECT ON dsync_locks TO reader")
	d, _, err := driver.Open(t.Context(), strings.Replace(s.url, "postgres@", "reader@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	_, err = d.Acquire(t.Context(), &driver.Request{Name: "a", Hold: "a:1", TTL: time.Minute, NoWait: true, Events: events{}})
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want fs.ErrPermission", err)
	}
}

// TestCanceledReads cancels SQLite reads at random times and checks that the
// connection then reads and writes the current rows. Some versions of
// modernc.org/sqlite leak a query that is canceled after its first row.
func TestCanceledReads(t *testing.T) {
	s := sqlite(t)
	d, other := open(t, s, s.dial(t, nil)), open(t, s, s.dial(t, nil))
	defer d.Close(context.Background())
	defer other.Close(context.Background())
	for i := range 3000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%400)*time.Microsecond)
		_, _ = d.(driver.Inspector).Inspect(ctx, "name")
		cancel()
	}
	if err := hold(t, other, "name").Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := d.Acquire(ctx, &driver.Request{Name: "name", Hold: "name:2", TTL: time.Minute, NoWait: true, Events: events{}})
	if err != nil {
		t.Fatal(err)
	}
	if token, _ := l.Tokens(); token != 2 {
		t.Errorf("the token is %d, want 2", token)
	}
}

// TestRefusals checks that a server's permanent refusal ends a call
// immediately. It refuses a user, a column of the table, or a name that is too
// long.
func TestRefusals(t *testing.T) {
	for _, name := range []string{"mariadb", "postgres", "sqlite"} {
		t.Run(name, func(t *testing.T) {
			s := servers[name](t)
			db := s.dial(t, nil)
			run(t, db, "CREATE TABLE others (name CHAR(64), version CHAR(64), written BIGINT)")
			_, err := sqllock.New(t.Context(), db, s.dialect, &sqllock.Options{Table: "others"})
			lasting(t, err, "others", "value")
			if name == "sqlite" {
				return
			}
			run(t, db, "CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL, locked_by VARCHAR(255) NOT NULL)")
			d, err := sqllock.NewShedLock(t.Context(), db, s.dialect, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.Acquire(t.Context(), &driver.Request{Name: strings.Repeat("é", 65), Hold: "a:1", TTL: time.Minute, Events: events{}})
			lasting(t, err, "shedlock", "too long")
			if err := hold(t, d, strings.Repeat("é", 64)).Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if name == "postgres" { // the other server accepts every user
				_, _, err := driver.Open(t.Context(), strings.Replace(s.url, "postgres@", "stranger@", 1))
				if !errors.Is(err, driver.ErrCredentials) || errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("a user who does not exist: got %v, want ErrCredentials", err)
				}
			}
		})
	}
}

func lasting(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("got %v, want ErrUnsupported", err)
	}
	for _, part := range parts {
		if text := strings.ToLower(err.Error()); !strings.Contains(text, part) {
			t.Errorf("the error does not contain %q: %s", part, text)
		}
	}
}

// TestShedLockAtOnce acquires a name as soon as it is released, on a database
// that rounds times up.
func TestShedLockAtOnce(t *testing.T) {
	s := overShedLock(postgres, `text COLLATE "C"`)(t)
	d := open(t, s, s.dial(t, nil))
	defer d.Close(drivertest.Guard(t))
	for range 300 {
		l, err := d.Acquire(t.Context(), drivertest.NoWait("n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
