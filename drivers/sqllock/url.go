package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

func init() {
	driver.Register("mysql", open)
	driver.Register("pgtable", open)
	driver.Register("sqlite", open)
}

// kinds maps a scheme to its database/sql drivers, with the parameters that
// they need.
var kinds = map[string]struct {
	dialect *Dialect
	drivers []string
	params  []map[string]string
	source  func(u *driver.URL, params url.Values) string
}{
	"mysql":   {MySQL, []string{"mysql"}, []map[string]string{{"interpolateParams": "true", "timeout": "5s"}}, mysqlSource},
	"pgtable": {PostgreSQL, []string{"pgx", "postgres"}, []map[string]string{{"default_query_exec_mode": "exec"}, {"binary_parameters": "yes"}}, postgresSource},
	"sqlite":  {SQLite, []string{"sqlite", "sqlite3"}, []map[string]string{{"_pragma": "busy_timeout(1000)"}, {"_busy_timeout": "1000"}}, sqliteSource},
}

// open opens a pool with the first of the drivers that the program imports.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u, kind := c.URL, kinds[c.URL.Scheme]
	o := &Options{Table: u.Param("table", ""), Poll: u.Duration("poll", 100*time.Millisecond), NoTokens: !c.Fenced}
	newDriver := New
	if kind.dialect != SQLite && u.Bool("shedlock", false) {
		newDriver = NewShedLock
	}
	connections, rest := 1, map[string]string{} // SQLite has one writer, and its drivers ignore unknown parameters
	if kind.dialect != SQLite {
		connections, rest = u.Int("connections", 16, 1, 10000), u.Rest()
	}
	if err := u.Err(); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(kind.drivers, func(name string) bool { return slices.Contains(sql.Drivers(), name) })
	if i < 0 {
		return nil, fmt.Errorf("%s URL: the program imports no database/sql driver named %s", u.Scheme, strings.Join(kind.drivers, " or "))
	}
	if kind.dialect == MySQL && len(u.Hosts) > 1 {
		return nil, errors.New("mysql URL: want one host, the server that accepts writes")
	}
	if kind.dialect == SQLite && (u.User != nil || len(u.Hosts) > 0 || u.Path == "") {
		return nil, errors.New("sqlite URL: want the absolute path of a file, as in sqlite:///var/lib/app.db")
	}
	params := url.Values{}
	for _, all := range []map[string]string{kind.params[i], rest} {
		for name, value := range all {
			params.Set(name, value)
		}
	}
	db, err := sql.Open(kind.drivers[i], kind.source(u, params))
	if err != nil { // the text may contain the password
		return nil, fmt.Errorf("%s URL: the database/sql driver %s refuses a parameter", u.Scheme, kind.drivers[i])
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	d, err := newDriver(ctx, db, kind.dialect, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", u, err), db.Close())
	}
	return owner{d, db}, nil
}

func mysqlSource(u *driver.URL, params url.Values) string {
	source := "tcp(" + u.HostsWithPort("127.0.0.1", "3306")[0] + ")" + "/" + url.PathEscape(strings.TrimPrefix(u.Path, "/")) + "?" + params.Encode()
	if u.User != nil {
		password, _ := u.User.Password()
		source = u.User.Username() + ":" + password + "@" + source
	}
	return source
}

func postgresSource(u *driver.URL, params url.Values) string {
	return (&url.URL{Scheme: "postgres", User: u.User, Host: strings.Join(u.Hosts, ","), Path: u.Path, RawQuery: params.Encode()}).String()
}

// sqliteSource returns the source of a file that exists.
func sqliteSource(u *driver.URL, params url.Values) string {
	params.Set("mode", "rw")
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: u.Path}).EscapedPath(), RawQuery: params.Encode()}).String()
}

// owner is a driver that owns its pool.
type owner struct {
	*cas.Driver
	db *sql.DB
}

// Close implements [driver.Driver].
func (o owner) Close(ctx context.Context) error {
	return errors.Join(o.Driver.Close(ctx), o.db.Close())
}
