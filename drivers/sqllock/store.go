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

// store is a cas.Store. Each method sends one statement, which is a transaction
// of its own.
type store struct {
	db      *sql.DB
	dialect *Dialect
	table   string
}

// maxValue is the size limit of a MEDIUMBLOB.
const maxValue = 1<<24 - 1

// check queries the table.
func (s *store) check(ctx context.Context) error {
	if _, err := s.Read(ctx, "check"); err != nil {
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
	query := d.statement(fmt.Sprintf("SELECT %s, l.version, l.value, l.written FROM (SELECT 1 AS one) o LEFT JOIN %s l ON l.name = ?", d.micros, s.table))
	err = s.repeat(ctx, func() error {
		e, err = scan(s.db.QueryRowContext(ctx, query, d.text(name)).Scan)
		return err
	})
	return e, s.sorted(err)
}

// repeat repeats a statement for as long as it is the victim of another
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
		return next, s.change(ctx, fmt.Sprintf(d.insert, s.table, d.micros), d.text(name), d.text(next), d.text(string(value)))
	}
	query := fmt.Sprintf("UPDATE %s SET version = ?, value = ?, written = %s WHERE name = ? AND version = ?", s.table, d.micros)
	return next, s.change(ctx, query, d.text(next), d.text(string(value)), d.text(name), d.text(version))
}

// Delete implements cas.Store.
func (s *store) Delete(ctx context.Context, name, version string) error {
	return s.change(ctx, "DELETE FROM "+s.table+" WHERE name = ? AND version = ?", s.dialect.text(name), s.dialect.text(version))
}

// change changes a row, or returns cas.ErrChanged. It also does so if package
// cas should repeat the statement.
func (s *store) change(ctx context.Context, query string, args ...any) error {
	n, err := s.exec(ctx, s.dialect.statement(query), args)
	if err == nil && n == 0 || s.dialect.is(s.dialect.again, err) {
		return cas.ErrChanged
	}
	return s.sorted(err)
}

func (s *store) exec(ctx context.Context, query string, args []any) (int64, error) {
	result, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// WriteAll implements cas.Batcher. All rows get the same version.
func (s *store) WriteAll(ctx context.Context, writes []*cas.Write) (err error) {
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
	var n int64
	err = s.repeat(ctx, func() error {
		n, err = s.exec(ctx, query, args)
		return err
	})
	if err != nil || n == int64(len(rows)) {
		return s.sorted(err)
	}
	written := map[string]bool{}
	query = d.statement("SELECT name FROM " + s.table + " WHERE version = ? AND name IN (?" + strings.Repeat(", ?", len(names)-1) + ")")
	found, err := s.db.QueryContext(ctx, query, append([]any{d.text(next)}, names...)...)
	if err != nil {
		return s.unknown(err)
	}
	defer found.Close()
	for found.Next() {
		var name string
		if err := found.Scan(&name); err != nil {
			return s.unknown(err)
		}
		written[name] = true
	}
	for _, w := range writes {
		if !written[w.Name] { // or changed since
			w.Err = cas.ErrChanged
		}
	}
	return s.unknown(found.Err())
}

// unknown hides that a query was refused after a change.
func (s *store) unknown(err error) error {
	if err != nil {
		return fmt.Errorf("%w: %v", driver.ErrUnknown, err)
	}
	return nil
}

// page is how many names List selects at a time.
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
	query := d.statement(fmt.Sprintf("SELECT %s, version, value, written, name FROM %s WHERE name %s ? ORDER BY name LIMIT %d", d.micros, s.table, relation, page))
	rows, err := s.db.QueryContext(ctx, query, d.text(from))
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	for rows.Next() {
		e, err := scan(rows.Scan, &last)
		if err != nil {
			return nil, "", err
		}
		entries = append(entries, e)
	}
	return entries, last, rows.Err()
}

// sorted returns an error in the form that package cas expects. A server that
// refuses a statement has not executed it.
func (s *store) sorted(err error) error {
	d, dial := s.dialect, new(net.OpError)
	switch {
	case err == nil:
		return nil
	case d.missing(err):
		return fmt.Errorf("%w: there is no table %s: %s", driver.ErrUnavailable, s.table, fmt.Sprintf(d.ddl, s.table))
	case d.is(d.denied, err):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case d.refused(err), errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return err
}
