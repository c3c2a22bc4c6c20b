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

	// Codes of errors. An SQLSTATE matches each code that it begins with.
	again   []any // a statement should be repeated
	table   any   // the table is missing
	logins  []any // the user or the password is refused
	denied  []any // a permission is missing
	lasting []any // the statement will never be accepted
	broken  []any // the outcome of the statement is unknown

	// For ShedLock's table, which holds times of UTC without a zone.
	later     string // the server's time plus a number of microseconds
	epoch     string // a column in microseconds
	duplicate any    // the code of an existing row
}

// The dialects.
var (
	MySQL = &Dialect{
		name:   "mysql", // also MariaDB
		micros: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
		insert: "INSERT IGNORE INTO %s (name, version, value, written) VALUES (?, ?, ?, %s)",
		ddl:    "CREATE TABLE %s (name VARBINARY(1024) PRIMARY KEY, version BINARY(16) NOT NULL, written BIGINT NOT NULL, value MEDIUMBLOB NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",

		again:  []any{1213, 1205, 1020}, // deadlock, lock wait timeout, the record has changed
		table:  1146,
		logins: []any{1045, 1698},
		denied: []any{1142, 1143, 1044},
		// no database, column, syntax, no default, text, length
		lasting: []any{1046, 1054, 1064, 1364, 1366, 1406},
		// shutdown, error during COMMIT or ROLLBACK, interrupted, connection
		// ended, network; also unknown errors of proxies
		broken: []any{1053, 1180, 1181, 1317, 1152, 1184, 1927, 1158, 1159, 1160, 1161, 1105},

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
		logins: []any{"28"},
		denied: []any{"42501"},
		// data, syntax, columns, types, constraints
		lasting: []any{"22", "426", "427", "428", "42P1"},
		// connection, shutdown, COMMIT; also from a pooler that has lost the
		// server
		broken: []any{"08", "57P", "40003", "58", "XX"},

		later:     "(timezone('utc', clock_timestamp()) + %d * interval '1 microsecond')",
		epoch:     "CAST(EXTRACT(EPOCH FROM %s) * 1000000 AS bigint)",
		duplicate: "23505",
	}
	SQLite = &Dialect{
		name:   "sqlite",
		insert: "INSERT INTO %s (name, version, value, written) VALUES (?, ?, ?, %s) ON CONFLICT (name) DO NOTHING",
		ddl:    "CREATE TABLE %s (name TEXT PRIMARY KEY, version TEXT NOT NULL, written INTEGER NOT NULL, value TEXT NOT NULL)",

		again:   []any{5, 6}, // busy, locked
		denied:  []any{3, 8, 23},
		lasting: []any{1, 26}, // SQL, the file is not a database
		broken:  []any{10},    // input or output
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
	// go-sql-driver/mysql, mattn/go-sqlite3
	field := map[*Dialect]string{MySQL: "Number", SQLite: "Code"}[d]
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
	// Only numbers in these ranges are from the server. A proxy passes on the
	// numbers of its client library, which start at 2000, or uses its own.
	if n, ok := d.code(err).(int); ok && d == MySQL && (n < 1000 || n/1000 == 2 || n >= 5000) {
		return false
	}
	return d.code(err) != nil && !d.is(d.broken, err)
}

func (d *Dialect) is(codes []any, err error) bool {
	c := d.code(err)
	return c != nil && slices.ContainsFunc(codes, func(code any) bool {
		prefix, ok := code.(string)
		return code == c || ok && strings.HasPrefix(c.(string), prefix)
	})
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
