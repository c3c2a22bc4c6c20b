package sqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

// store is a cas.Store. Each method sends one statement, which is a separate
// transaction.
type store struct {
	db      *sql.DB
	dialect *Dialect
	table   string
	ddl     string
}

// maxValue is the size limit of a MEDIUMBLOB.
const maxValue = 1<<24 - 1

// check queries the table of a store that uses s.
func (s *store) check(ctx context.Context, all cas.Store) error {
	if _, err := all.Read(ctx, "check"); err != nil {
		return err
	}
	if s.dialect == MySQL {
		var autocommit bool
		if err := s.db.QueryRowContext(ctx, "SELECT @@autocommit").Scan(&autocommit); err != nil || !autocommit {
			return errors.Join(err, errors.New("the connections need autocommit=1"))
		}
	}
	return nil
}

// Read implements cas.Store.
func (s *store) Read(ctx context.Context, name string) (e cas.Entry, err error) {
	d := s.dialect
	query := d.statement(fmt.Sprintf("SELECT %s, l.version, l.value, l.written FROM (SELECT 1 AS one) o LEFT JOIN %s l ON l.name = ?", d.now(), s.table))
	err = s.repeat(ctx, func() error {
		return s.query(ctx, query, []any{d.text(name)}, func(row func(...any) error) (err error) {
			e, err = scan(row)
			return err
		})
	})
	return e, s.sorted(err)
}

// repeat repeats a statement as long as it fails because of a conflicting
// statement.
func (s *store) repeat(ctx context.Context, send func() error) error {
	for {
		err := send()
		if !s.dialect.is(s.dialect.again, err) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// scan reads a row of time, version, value and time of the version.
func scan(row func(...any) error, more ...any) (cas.Entry, error) {
	var now int64
	var version, value sql.NullString
	var written sql.NullInt64
	err := row(append([]any{&now, &version, &value, &written}, more...)...)
	e := cas.Entry{Now: time.UnixMicro(now)}
	if err == nil && version.Valid {
		e.Version, e.Value, e.Written = version.String, []byte(value.String), time.UnixMicro(written.Int64)
	}
	return e, err
}

// Write implements cas.Store. Versions are random.
func (s *store) Write(ctx context.Context, name string, value []byte, version string) (next string, err error) {
	d := s.dialect
	if len(value) > maxValue {
		return "", fmt.Errorf("%w: too many clients use the name", driver.ErrUnavailable)
	}
	next = rand.Text()[:16]
	if version == "" {
		return next, s.change(ctx, fmt.Sprintf(d.insert, s.table, d.now()), d.text(name), d.text(next), d.text(string(value)))
	}
	query := fmt.Sprintf("UPDATE %s SET version = ?, value = ?, written = %s WHERE name = ? AND version = ?", s.table, d.now())
	return next, s.change(ctx, query, d.text(next), d.text(string(value)), d.text(name), d.text(version))
}

// Delete implements cas.Store.
func (s *store) Delete(ctx context.Context, name, version string) error {
	return s.change(ctx, "DELETE FROM "+s.table+" WHERE name = ? AND version = ?", s.dialect.text(name), s.dialect.text(version))
}

// change changes a row, or returns cas.ErrChanged.
func (s *store) change(ctx context.Context, query string, args ...any) error {
	n, err := s.exec(ctx, s.dialect.statement(query), args)
	if err == nil && n == 0 || s.dialect.is([]any{s.dialect.duplicate}, err) {
		return cas.ErrChanged
	}
	return s.sorted(err)
}

// exec returns the number of changed rows. It sends the statement once on a
// separate connection, because a pool would repeat a statement whose connection
// has failed, even if the statement was executed.
func (s *store) exec(ctx context.Context, query string, args []any) (n int64, err error) {
	err = s.repeat(ctx, func() error {
		ctx, c, err := s.conn(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		result, err := c.ExecContext(ctx, query, args...)
		if err == nil {
			n, err = result.RowsAffected()
		}
		return err
	})
	return n, err
}

// query calls each for every row.
func (s *store) query(ctx context.Context, query string, args []any, each func(row func(...any) error) error) error {
	var pool interface {
		QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	} = s.db
	if s.dialect == SQLite {
		of, c, err := s.conn(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, pool = of, c
	}
	rows, err := pool.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// conn returns a connection and the context of a statement. An SQLite statement
// is not canceled, because it ends by itself within the busy timeout and its
// outcome is then known. SQLite drivers also leak a query that is canceled at
// the wrong time, and the connection then continues to read old rows.
func (s *store) conn(ctx context.Context) (context.Context, *sql.Conn, error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return nil, nil, unsentError{err}
	}
	if s.dialect == SQLite {
		ctx = context.WithoutCancel(ctx)
	}
	return ctx, c, nil
}

// unsentError is the error of a statement that got no connection.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// WriteAll implements cas.Batcher. All rows get the same version.
func (s *store) WriteAll(ctx context.Context, writes []*cas.Write) error {
	d, next := s.dialect, rand.Text()[:16]
	rows := slices.SortedFunc(slices.Values(writes), func(a, b *cas.Write) int { return strings.Compare(a.Name, b.Name) })
	var args, names []any
	for _, w := range rows {
		args = append(args, d.text(w.Name), d.text(w.Version), d.text(string(w.Value)))
		names = append(names, d.text(w.Name))
		w.Next = next
	}
	args = append(args, d.text(next))
	query := d.update(s.table, len(rows))
	n, err := s.exec(ctx, query, args)
	if err != nil || n == int64(len(rows)) {
		return s.sorted(err)
	}
	written := map[string]bool{}
	query = d.statement("SELECT name FROM " + s.table + " WHERE version = ? AND name IN (?" + strings.Repeat(", ?", len(names)-1) + ")")
	err = s.query(ctx, query, append([]any{d.text(next)}, names...), func(row func(...any) error) error {
		var name string
		err := row(&name)
		written[name] = true
		return err
	})
	if err != nil { // the rows are changed
		return fmt.Errorf("%w: %v", driver.ErrUnknown, err)
	}
	for _, w := range writes {
		if !written[w.Name] { // or changed in the meantime
			w.Err = cas.ErrChanged
		}
	}
	return nil
}

// page is the number of names that List selects at a time.
const page = 1000

// List implements cas.Lister.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		from, relation := prefix, ">="
		for {
			entries, last, err := s.list(ctx, relation, from)
			if err != nil {
				yield(cas.Entry{}, s.sorted(err))
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if from, relation = last, ">"; len(entries) < page || !strings.HasPrefix(last, prefix) {
				return
			}
		}
	}
}

func (s *store) list(ctx context.Context, relation, from string) (entries []cas.Entry, last string, err error) {
	d := s.dialect
	query := d.statement(fmt.Sprintf("SELECT %s, version, value, written, name FROM %s WHERE name %s ? ORDER BY name LIMIT %d", d.now(), s.table, relation, page))
	err = s.query(ctx, query, []any{d.text(from)}, func(row func(...any) error) error {
		e, err := scan(row, &last)
		entries = append(entries, e)
		return err
	})
	return entries, last, err
}

// sorted converts an error to an error that package cas expects. A server that
// refuses a statement has not executed it.
func (s *store) sorted(err error) error {
	d, dial, unsent := s.dialect, new(net.OpError), unsentError{}
	switch {
	case err == nil:
		return nil
	case d.missing(err):
		return &MissingTableError{s.table, fmt.Sprintf(s.ddl, s.table)}
	case d.is(d.logins, err):
		return fmt.Errorf("%w: %w", driver.ErrCredentials, err)
	case d.is(d.denied, err):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case d.is(d.lasting, err):
		return &refusedError{s.table, err}
	case d.refused(err), errors.As(err, &unsent), errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return err
}

// refusedError is the error of a statement that the server will always refuse,
// because of the columns of the table or the name of a lock. It matches
// errors.ErrUnsupported.
type refusedError struct {
	table string
	err   error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("table %s does not support the statement: %v", e.table, e.err)
}

func (e *refusedError) Is(target error) bool {
	return target == errors.ErrUnsupported
}

func (e *refusedError) Unwrap() error { return e.err }

// MissingTableError is the error of New if the table is missing. It matches
// driver.ErrUnavailable.
type MissingTableError struct {
	Table string
	DDL   string // the statement that creates the table
}

func (e *MissingTableError) Error() string {
	return fmt.Sprintf("%v: there is no table %s: %s", driver.ErrUnavailable, e.Table, e.DDL)
}

func (e *MissingTableError) Unwrap() error { return driver.ErrUnavailable }
