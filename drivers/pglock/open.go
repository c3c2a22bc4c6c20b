package pglock

import (
	"context"
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

// open reads the parameters of the driver and leaves all others to the library, as parameters of a connection.
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
	rest := u.Rest()
	if err := u.Err(); err != nil {
		return nil, err
	}
	if strings.Contains(strings.TrimPrefix(u.Path, "/"), "/") {
		return nil, errors.New("pglock URL: the path is the name of a database, without a slash in it")
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

// parseConnection makes a configuration. The password is kept out of what the library parses, and prints after a failure.
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
		if p, ok := u.User.Password(); ok {
			password, given = p, true
		}
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

// refusedParameter finds the parameters which the library does not take. Only parameters of TLS are quoted, since others may be secret.
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

// encode writes parameters with %20 for a space: like libpq, the library takes + for what it is, from 5.11 on.
func encode(query url.Values) string { return strings.ReplaceAll(query.Encode(), "+", "%20") }

// parse returns what the library says of the parameters of a URL.
func parse(query url.Values) error {
	_, err := pgx.ParseConfig("postgres://localhost/?" + encode(query))
	var refused *pgconn.ParseConfigError
	if errors.As(err, &refused) && refused.Unwrap() != nil {
		return refused.Unwrap()
	}
	return err
}
