package sqllock

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Dialect is the SQL of a server.
type Dialect struct {
	name   string
	micros string // the server's clock; "" is the clock of this machine
	insert string // a row, if there is none
	ddl    string
	again  []any // codes of errors after which a statement should be repeated
	table  any   // the code of a missing table
	denied []any // codes of missing permissions
	broken []any // codes after which the outcome of a statement is unknown

	// For ShedLock's table, which holds times of UTC without a zone.
	later     string // the server's time plus a number of microseconds
	epoch     string // a column in microseconds
	duplicate any    // the code of an existing row
}

// The dialects.
var (
	MySQL = &Dialect{
		name:   "mysql", // and MariaDB
		micros: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
		insert: "INSERT IGNORE INTO %s (name, version, value, written) VALUES (?, ?, ?, %s)",
		ddl:    "CREATE TABLE %s (name VARBINARY(1024) PRIMARY KEY, version BINARY(16) NOT NULL, written BIGINT NOT NULL, value MEDIUMBLOB NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
		again:  []any{1213, 1205, 1020}, // deadlock, lock wait timeout, the record has changed
		table:  1146,
		denied: []any{1142, 1143, 1044},
		broken: []any{1053, 1180, 1181}, // shutdown, error during COMMIT or ROLLBACK

		later:     "TIMESTAMPADD(MICROSECOND, %d, UTC_TIMESTAMP(3))",
		epoch:     "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', %s)",
		duplicate: 1062,
	}
	PostgreSQL = &Dialect{
		name:   "postgres",
		micros: "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS bigint)",
		insert: "INSERT INTO %s (name, version, value, written) VALUES (?, ?, ?, %s) ON CONFLICT (name) DO NOTHING",
		ddl:    `CREATE TABLE %s (name text COLLATE "C" PRIMARY KEY, version text NOT NULL, written bigint NOT NULL, value text NOT NULL)`,
		again:  []any{"40001", "40P01", "55P03"}, // serialization failure, deadlock, lock timeout
		table:  "42P01",
		denied: []any{"42501"},

		later:     "(timezone('utc', clock_timestamp()) + %d * interval '1 microsecond')",
		epoch:     "CAST(EXTRACT(EPOCH FROM %s) * 1000000 AS bigint)",
		duplicate: "23505",
	}
	SQLite = &Dialect{
		name:   "sqlite",
		insert: "INSERT INTO %s (name, version, value, written) VALUES (?, ?, ?, %s) ON CONFLICT (name) DO NOTHING",
		ddl:    "CREATE TABLE %s (name TEXT PRIMARY KEY, version TEXT NOT NULL, written INTEGER NOT NULL, value TEXT NOT NULL)",
		again:  []any{5, 6}, // busy, locked
		denied: []any{3, 8, 23},
		broken: []any{10}, // input or output
	}
)

// now returns the expression of the time in microseconds.
func (d *Dialect) now() string {
	if d.micros == "" {
		return strconv.FormatInt(time.Now().UnixMicro(), 10)
	}
	return d.micros
}

// code returns the code of a server error, or nil: a MySQL error number, an
// SQLSTATE, or a primary SQLite code. Drivers for database/sql have no common
// way to report it.
func (d *Dialect) code(err error) any {
	var state interface{ SQLState() string }
	var extended interface{ Code() int }
	switch {
	case d == PostgreSQL && errors.As(err, &state):
		return state.SQLState()
	case d == SQLite && errors.As(err, &extended): // modernc.org/sqlite
		return extended.Code() & 0xff
	}
	field := map[*Dialect]string{MySQL: "Number", SQLite: "Code"}[d] // go-sql-driver/mysql, mattn/go-sqlite3
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct {
			continue
		}
		switch f := v.FieldByName(field); {
		case f.IsValid() && f.CanUint():
			return int(f.Uint())
		case f.IsValid() && f.CanInt():
			return int(f.Int())
		}
	}
	return nil
}

// missing reports whether an error means that there is no table.
func (d *Dialect) missing(err error) bool {
	return d.is([]any{d.table}, err) || d == SQLite && d.is([]any{1}, err) && strings.Contains(err.Error(), "no such table")
}

// refused reports whether the server has answered that it did not execute a
// statement.
func (d *Dialect) refused(err error) bool {
	c := d.code(err)
	if state, ok := c.(string); ok { // from PostgreSQL, or from a pooler that has lost the server
		return !strings.HasPrefix(state, "08") && !strings.HasPrefix(state, "57P") && state != "40003"
	}
	return c != nil && !slices.Contains(d.broken, c)
}

func (d *Dialect) is(codes []any, err error) bool {
	c := d.code(err)
	return c != nil && slices.Contains(codes, c)
}

// text returns text as a parameter.
func (d *Dialect) text(s string) any {
	if d == MySQL {
		return []byte(s)
	}
	return s
}

// statement numbers the parameters if the dialect requires it.
func (d *Dialect) statement(s string) string {
	if d != PostgreSQL {
		return s
	}
	var b strings.Builder
	for n, part := range strings.Split(s, "?") {
		if n > 0 {
			fmt.Fprintf(&b, "$%d", n)
		}
		b.WriteString(part)
	}
	return b.String()
}

// update returns the statement that replaces n rows. Its parameters are name,
// version and value of each row, and the next version.
func (d *Dialect) update(table string, n int) string {
	if d == MySQL {
		rows := "SELECT ? AS name, ? AS version, ? AS value" + strings.Repeat(" UNION ALL SELECT ?, ?, ?", n-1)
		return fmt.Sprintf("UPDATE %s l JOIN (%s) u ON l.name = u.name AND l.version = u.version SET l.value = u.value, l.written = %s, l.version = ?", table, rows, d.now())
	}
	rows := "(CAST(? AS text), CAST(? AS text), CAST(? AS text))" + strings.Repeat(", (?, ?, ?)", n-1)
	return d.statement(fmt.Sprintf("WITH u (name, version, value) AS (VALUES %s) UPDATE %s AS l SET version = ?, value = u.value, written = %s FROM u WHERE l.name = u.name AND l.version = u.version", rows, table, d.now()))
}
