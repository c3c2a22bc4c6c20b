package sqllock_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/sqllock"
)

// stub is a database whose table is empty. It counts the writes that it has
// executed. Its next connection, query or write fails with an error.
type stub struct {
	mu               sync.Mutex
	dial, read, sent error
	writes           map[string]int
}

// next returns the error of one call.
func (s *stub) next(err *error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	once := *err
	*err = nil
	return once
}

func (s *stub) Connect(context.Context) (sqldriver.Conn, error) { return s, s.next(&s.dial) }
func (s *stub) Driver() sqldriver.Driver                        { return nil }
func (s *stub) Prepare(string) (sqldriver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (s *stub) Begin() (sqldriver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (s *stub) Close() error                                    { return nil }

func (s *stub) ExecContext(_ context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.mu.Lock()
	s.writes[fmt.Sprint(query, args)]++
	s.mu.Unlock()
	return sqldriver.RowsAffected(1), s.next(&s.sent)
}

func (s *stub) QueryContext(_ context.Context, query string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if strings.Contains(query, "@@autocommit") {
		return &row{values: []sqldriver.Value{true}}, nil
	}
	return &row{values: []sqldriver.Value{time.Now().UnixMicro(), nil, nil, nil}}, s.next(&s.read)
}

// row is a result of one row.
type row struct {
	values []sqldriver.Value
	done   bool
}

func (r *row) Columns() []string { return make([]string, len(r.values)) }
func (r *row) Close() error      { return nil }

func (r *row) Next(to []sqldriver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done = true
	copy(to, r.values)
	return nil
}

// The errors of database/sql drivers.
type (
	mysqlError    struct{ Number uint16 }
	postgresError struct{ code string }
	sqliteError   struct{ Code int }
)

func (e *mysqlError) Error() string       { return fmt.Sprint("Error ", e.Number) }
func (e *postgresError) Error() string    { return "SQLSTATE " + e.code }
func (e *postgresError) SQLState() string { return e.code }
func (e sqliteError) Error() string       { return fmt.Sprint("SQLite ", e.Code) }

type events struct{}

func (events) Waiting()    {}
func (events) Tokens() int { return 1 }
func (events) Lost(error)  {}

// over opens a driver over the stub and closes it at the end of the test.
func over(t *testing.T, s *stub, dialect *sqllock.Dialect) driver.Driver {
	t.Helper()
	s.writes = map[string]int{}
	db := sql.OpenDB(s)
	t.Cleanup(func() { db.Close() })
	d, err := sqllock.New(t.Context(), db, dialect, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func acquire(t *testing.T, d driver.Driver) error {
	t.Helper()
	_, err := d.Acquire(t.Context(), &driver.Request{Name: "a", Hold: "a:1", TTL: time.Minute, NoWait: true, Events: events{}})
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return err
}

// TestErrorsOfWrites checks which errors leave the outcome of a write open, and
// which errors are lasting.
func TestErrorsOfWrites(t *testing.T) {
	all := []error{driver.ErrUnknown, driver.ErrUnavailable, driver.ErrCredentials, fs.ErrPermission, errors.ErrUnsupported}
	for _, test := range []struct {
		dialect *sqllock.Dialect
		err     error
		want    []error
	}{
		{sqllock.MySQL, &mysqlError{2006}, all[:1]}, // from a proxy
		{sqllock.MySQL, &mysqlError{2013}, all[:1]},
		{sqllock.MySQL, &mysqlError{9001}, all[:1]},
		{sqllock.MySQL, &mysqlError{1105}, all[:1]},
		{sqllock.MySQL, &mysqlError{1927}, all[:1]},
		{sqllock.MySQL, &mysqlError{1317}, all[:1]},
		{sqllock.MySQL, &mysqlError{1160}, all[:1]},
		{sqllock.MySQL, &mysqlError{1053}, all[:1]},
		{sqllock.MySQL, &mysqlError{1040}, all[1:2]}, // too many connections
		{sqllock.MySQL, &mysqlError{1290}, all[1:2]}, // read-only
		{sqllock.MySQL, &mysqlError{3024}, all[1:2]}, // too slow
		{sqllock.MySQL, &mysqlError{1142}, all[3:4]},
		{sqllock.MySQL, &mysqlError{1045}, all[2:4]},
		{sqllock.MySQL, &mysqlError{1054}, all[4:]},
		{sqllock.MySQL, &mysqlError{1064}, all[4:]},
		{sqllock.MySQL, &mysqlError{1406}, all[4:]},
		{sqllock.PostgreSQL, &postgresError{"08006"}, all[:1]},
		{sqllock.PostgreSQL, &postgresError{"57P01"}, all[:1]},
		{sqllock.PostgreSQL, &postgresError{"40003"}, all[:1]},
		{sqllock.PostgreSQL, &postgresError{"58000"}, all[:1]}, // from PgCat
		{sqllock.PostgreSQL, &postgresError{"57014"}, all[1:2]},
		{sqllock.PostgreSQL, &postgresError{"53300"}, all[1:2]},
		{sqllock.PostgreSQL, &postgresError{"42P05"}, all[1:2]}, // from another session behind a pooler
		{sqllock.PostgreSQL, &postgresError{"42501"}, all[3:4]},
		{sqllock.PostgreSQL, &postgresError{"28P01"}, all[2:4]},
		{sqllock.PostgreSQL, &postgresError{"22001"}, all[4:]},
		{sqllock.PostgreSQL, &postgresError{"42703"}, all[4:]},
		{sqllock.SQLite, sqliteError{10}, all[:1]},
		{sqllock.SQLite, sqliteError{13}, all[1:2]}, // the disk is full
		{sqllock.SQLite, sqliteError{8}, all[3:4]},
		{sqllock.SQLite, sqliteError{1}, all[4:]},
		{sqllock.MySQL, sqldriver.ErrBadConn, all[:1]},
		{sqllock.PostgreSQL, sqldriver.ErrBadConn, all[:1]},
		{sqllock.PostgreSQL, io.ErrUnexpectedEOF, all[:1]},
	} {
		s := &stub{}
		d := over(t, s, test.dialect)
		s.sent = test.err
		err := acquire(t, d)
		for _, sentinel := range all {
			want := false
			for _, e := range test.want {
				want = want || e == sentinel
			}
			if errors.Is(err, sentinel) != want {
				t.Errorf("%v: got %v, and it matches %q: %t, want %t", test.err, err, sentinel, !want, want)
			}
		}
		for write, n := range s.writes {
			if n > 1 {
				t.Errorf("%v: %d times: %s", test.err, n, write)
			}
		}
	}
}

// TestErrorsOfNew checks that New fails with a lasting error if the server
// refuses the user or the table.
func TestErrorsOfNew(t *testing.T) {
	for _, test := range []struct {
		dialect *sqllock.Dialect
		stub    *stub
		want    error
	}{
		{sqllock.MySQL, &stub{dial: &mysqlError{1045}}, driver.ErrCredentials},
		{sqllock.PostgreSQL, &stub{dial: &postgresError{"28P01"}}, driver.ErrCredentials},
		{sqllock.PostgreSQL, &stub{dial: &postgresError{"28000"}}, driver.ErrCredentials},
		{sqllock.MySQL, &stub{read: &mysqlError{1054}}, errors.ErrUnsupported},
		{sqllock.PostgreSQL, &stub{read: &postgresError{"42703"}}, errors.ErrUnsupported},
		{sqllock.SQLite, &stub{read: sqliteError{1}}, errors.ErrUnsupported},
	} {
		db := sql.OpenDB(test.stub)
		_, err := sqllock.New(t.Context(), db, test.dialect, nil)
		if !errors.Is(err, test.want) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("got %v, want %v", err, test.want)
		}
		db.Close()
	}
}

// TestConnectionsOfWrites checks that a write fails if it gets no connection,
// and that its outcome is then known.
func TestConnectionsOfWrites(t *testing.T) {
	for _, test := range []struct{ err, want error }{
		{&postgresError{"57P03"}, driver.ErrUnavailable}, // the server starts
		{io.ErrUnexpectedEOF, driver.ErrUnavailable},
		{&postgresError{"28P01"}, driver.ErrCredentials},
		{&postgresError{"42501"}, fs.ErrPermission},
	} {
		s := &stub{writes: map[string]int{}}
		db := sql.OpenDB(s)
		defer db.Close()
		db.SetMaxIdleConns(-1) // so that each statement makes a connection
		d, err := sqllock.New(t.Context(), db, sqllock.PostgreSQL, nil)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.Acquire(t.Context(), &driver.Request{Name: "a", Hold: "a:1", TTL: time.Minute, NoWait: true, Events: events{}})
		if err != nil {
			t.Fatal(err)
		}
		s.dial = test.err
		if err := l.Renew(t.Context(), time.Minute); !errors.Is(err, test.want) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%v: got %v, want %v", test.err, err, test.want)
		}
		if err := d.Close(t.Context()); err != nil && !errors.Is(err, driver.ErrNotHeld) {
			t.Error(err)
		}
	}
}
