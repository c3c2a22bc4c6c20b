package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-dsync/dsync/driver"
)

func init() { driver.Register("pglock", open) }

// maxOption bounds the limits in a URL.
const maxOption = 1_000_000

// open reads the parameters of the driver and passes all others to the library,
// as parameters of a connection.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	o := &Options{
		TTL:         c.TTL,
		MaxLocks:    u.Int("max_locks", 0, 1, maxOption),
		MaxWaiters:  u.Int("max_waiters", 0, 1, maxOption),
		ForceUnlock: u.Bool("force_unlock", false),
	}
	if u.Choice("tokens", "durable", "fast") == "fast" {
		o.Tokens = TokensFast
	}
	if !c.Fenced {
		o.Tokens = TokensNone
	}
	o.SessionPooler = u.Choice("pooler", "refuse", "session") == "session"
	switch u.Choice("key", "hash", "number", "pair") {
	case "number":
		o.Key = NumberKey
	case "pair":
		o.Key = PairKey
	}
	if password := u.Password(); password != nil {
		o.Password = func(context.Context) (string, error) { return password() }
	}
	rest := u.Rest()
	if err := u.Err(); err != nil {
		return nil, err
	}
	if strings.Contains(strings.TrimPrefix(u.Path, "/"), "/") {
		return nil, errors.New("pglock URL: the path must be the name of a database, without a slash")
	}
	config, err := parseConnection(u, rest)
	if err != nil {
		return nil, err
	}
	d, err := New(ctx, config, o)
	if err != nil {
		return nil, fmt.Errorf("pglock: %s: %w", u, err)
	}
	return d, nil
}

// parseConnection makes a configuration. The library never parses the password,
// because its errors contain its input.
func parseConnection(u *driver.URL, rest map[string]string) (*pgx.ConnConfig, error) {
	password, given := rest["password"]
	delete(rest, "password")
	query := make(url.Values, len(rest))
	for name, value := range rest {
		query.Set(name, value)
	}
	text := "postgres://"
	if u.User != nil {
		text += url.User(u.User.Username()).String() + "@"
	}
	text += strings.Join(u.Hosts, ",") + (&url.URL{Path: u.Path}).EscapedPath()
	if len(query) > 0 {
		text += "?" + encode(query)
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("pglock URL: parameters of the connection: %w", refusedParameter(rest))
	}
	if given {
		config.Password = password
	}
	return config, nil
}

// refusedParameter finds the parameters that the library does not accept. Only
// parameters of TLS are quoted, since others may be secret.
func refusedParameter(rest map[string]string) error {
	tls := make(url.Values)
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		if strings.HasPrefix(name, "ssl") {
			tls.Set(name, rest[name])
		} else if parse(url.Values{name: {rest[name]}}) != nil {
			return fmt.Errorf("the value of %s cannot be parsed", name)
		}
	}
	if err := parse(tls); err != nil {
		return err
	}
	return errors.New("they cannot be parsed")
}

// encode writes parameters with %20 for a space, because since 5.11 the
// library, like libpq, takes + literally.
func encode(query url.Values) string { return strings.ReplaceAll(query.Encode(), "+", "%20") }

// parse returns the library's error for the parameters of a URL.
func parse(query url.Values) error {
	_, err := pgx.ParseConfig("postgres://localhost/?" + encode(query))
	var refused *pgconn.ParseConfigError
	if errors.As(err, &refused) && refused.Unwrap() != nil {
		return refused.Unwrap()
	}
	return err
}

// connectFirst opens the session of the home class and checks the server.
func (d *Driver) connectFirst(ctx context.Context) error {
	s, err := d.dialChecked(ctx)
	if err != nil {
		return err
	}
	d.server.known = true
	d.mu.Lock()
	d.adopt(s)
	d.class(d.home).hubs = append(d.class(d.home).hubs, s)
	d.mu.Unlock()
	if d.options.Key != nil {
		d.keys.custom = d.options.Key
		return nil
	}
	return d.compareKeys(ctx)
}

// dialChecked makes the first dial, and detects a pooler.
func (d *Driver) dialChecked(ctx context.Context) (*session, error) {
	s, err := d.dial(ctx, d.home, false)
	if !errors.Is(err, ErrPooler) {
		return s, err
	}
	if !d.options.SessionPooler {
		return nil, fmt.Errorf("%w; it may hand the sessions that carry locks to other clients: connect to the server itself, "+
			"or allow a pooler in session mode (Options.SessionPooler, pooler=session)", err)
	}
	d.server.pooled = true
	if err := d.probePooler(ctx); err != nil {
		return nil, err
	}
	return d.dial(ctx, d.home, false)
}

// compareKeys finds out which hashes the driver can compute.
func (d *Driver) compareKeys(ctx context.Context) error {
	const separator = "|"
	probes := keyProbes()
	ascii := probes[:len(probes)-1]
	var hashes []int64
	for _, some := range [][]string{ascii, probes[len(ascii):]} {
		rows, err := d.query(ctx, probeQuery, []byte(strings.Join(some, separator)), []byte(separator))
		var answer *pgconn.PgError
		if errors.As(err, &answer) && len(hashes) > 0 {
			break // the encoding of the database cannot represent such characters
		}
		if err != nil {
			return err
		}
		for _, row := range rows {
			if len(row) != 1 || len(row[0]) != 8 {
				return errAnswer
			}
			hashes = append(hashes, int64(binary.BigEndian.Uint64(row[0])))
		}
	}
	d.keys.learn(hashes)
	return nil
}

const probeQuery = `SELECT pg_catalog.hashtextextended(u.v, 0) ` +

	`FROM pg_catalog.unnest(pg_catalog.string_to_array($1::pg_catalog.text, $2::pg_catalog.text)) WITH ORDINALITY u(v, n) ORDER BY u.n`

// probePooler refuses a pooler that moves a client from one server session to
// another.
func (d *Driver) probePooler(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectFor)
	defer cancel()
	var conns [2]*pgconn.PgConn
	for i := range conns {
		conn, err := d.connect(ctx, &session{d: d, ttl: d.home, id: d.label + newID()})
		if err != nil {
			return connectError(err)
		}
		defer conn.Close(ctx)
		conns[i] = conn
	}
	const pid = `SELECT pg_catalog.pg_backend_pid()`
	for range 3 {
		first, err1 := simpleQuery(ctx, conns[0], pid)
		_, err2 := simpleQuery(ctx, conns[1], "BEGIN")
		other, err3 := simpleQuery(ctx, conns[1], pid)
		if err := errors.Join(err1, err2, err3); err != nil {
			return connectError(err)
		}
		again := first
		if first != other {
			var err error
			if again, err = simpleQuery(ctx, conns[0], pid); err != nil {
				return connectError(err)
			}
		}
		if first == other || first != again {
			return fmt.Errorf("%w; it is in transaction mode, which gives one session of the server to several clients in turn, "+
				"and the locks with it: use session mode, or connect to the server itself", ErrPooler)
		}
		if _, err := simpleQuery(ctx, conns[1], "ROLLBACK"); err != nil {
			return connectError(err)
		}
	}
	return nil
}

// simpleQuery returns the first value.
func simpleQuery(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 || len(results[0].Rows) == 0 {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}
