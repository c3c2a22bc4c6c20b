package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
)

const seePostgres = "docs/backends/postgres.md#faults"

func examinePostgres(ctx context.Context, x *examination) bool {
	config, err := x.postgresConfig()
	if err != nil {
		x.bad(fault, "URL", "the parameters of the connection cannot be used", "use the parameters of libpq; the driver's error names the wrong parameter", seeTLS)
		return true // and the driver reports it
	}
	connecting, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	began := time.Now()
	conn, err := pgconn.ConnectConfig(connecting, config)
	if err != nil {
		x.postgresLogin(config, err)
		return false
	}
	host := fmt.Sprintf("%s:%d", config.Host, config.Port)
	x.good("reach", "%s accepts the login of %s within %.2f ms", host, config.User, cli.Milliseconds(time.Since(began)))
	if _, secure := conn.Conn().(*tls.Conn); secure {
		x.good("TLS", "the connection to %s is encrypted", host)
	} else {
		x.inTheClear([]string{host})
	}
	s := &postgresServer{x: x, conn: conn, host: host, user: config.User}
	err = s.examine(ctx)
	closing, cancel := context.WithTimeout(context.Background(), cli.CloseLimit)
	defer cancel()
	_ = conn.Close(closing) // before the driver needs its own connections
	if err != nil {
		x.bad(fault, "reach", fmt.Sprintf("%s does not answer as PostgreSQL does: %v", host, err), "see the message", seePostgres)
	}
	x.postgresGroups(ctx, config)
	if s.pooled {
		return x.pooler(ctx, host)
	}
	return true
}

// postgresConfig parses the URL without the driver's parameters and keeps the
// password out of the parser.
func (x *examination) postgresConfig() (*pgconn.Config, error) {
	u := x.url
	for _, ours := range []string{"ttl", "fenced", "require", "floor", "max_locks", "max_waiters", "force_unlock", "tokens", "pooler", "key"} {
		u.Has(ours)
	}
	password, err := x.password()
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	for name, value := range u.Rest() {
		if name == "password" {
			password = value
			continue
		}
		query.Set(name, value)
	}
	text := "postgres://"
	if u.User != nil {
		text += url.User(u.User.Username()).String() + "@"
	}
	text += strings.Join(u.Hosts, ",") + (&url.URL{Path: u.Path}).EscapedPath() + "?" + strings.ReplaceAll(query.Encode(), "+", "%20")
	config, err := pgconn.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	if password != "" {
		config.Password = password
	}
	config.ConnectTimeout = x.connect
	return config, nil
}

// postgresLogin is a finding about a server that refuses connections.
func (x *examination) postgresLogin(config *pgconn.Config, err error) {
	host := fmt.Sprintf("%s:%d", config.Host, config.Port)
	if x.certificate(host, err) {
		return
	}
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		text := err.Error()
		if strings.Contains(text, "TLS") {
			x.bad(fault, "TLS", text, "set sslmode= as the server requires", seeTLS)
			return
		}
		x.bad(fault, "reach", text, "is the server running, and does a firewall let this machine through? is the port correct?", seeReach)
		return
	}
	text := fmt.Sprintf("%s: %s (%s)", host, answer.Message, answer.Code)
	switch answer.Code {
	case "28P01", "28000":
		x.bad(fault, "password", text, "put the correct user and password in the URL, with special characters as %XX; or use ALTER ROLE, or change pg_hba.conf", seePasswords)
	case "42501":
		x.bad(fault, "rights", text, fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s", config.Database, config.User), seeRights)
	case "3D000":
		x.bad(fault, "reach", text, "run CREATE DATABASE, or put another path in the URL", seeRights)
	case "53300":
		x.bad(fault, "session limit", text, fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT -1, ALTER DATABASE %s CONNECTION LIMIT -1, or raise max_connections in postgresql.conf",
			config.User, config.Database), "docs/backends/postgres.md#limits")
	default:
		x.bad(fault, "reach", text, "see the message", seePostgres)
	}
}

// pooler checks whether there is a pooler between this machine and the server,
// and reports whether to open the driver.
func (x *examination) pooler(ctx context.Context, host string) bool {
	const check = "pooler"
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	raw := x.raw
	allowed := x.url.Param("pooler", "") == "session"
	if !allowed {
		raw += map[bool]string{true: "&", false: "?"}[strings.Contains(raw, "?")] + "pooler=session"
	}
	d, _, err := driver.Open(ctx, raw)
	if err == nil {
		err = cli.CloseDriver(d)
	}
	switch {
	case errors.Is(err, pglock.ErrPooler):
		x.bad(fault, check, host+" is a pooler in transaction mode: several clients share a session of the server, and its locks",
			"connect to the server itself; or set pool_mode=session for this database and pooler=session in the URL", "docs/backends/postgres.md#caveats")
		return false
	case err != nil:
		x.bad(fault, check, fmt.Sprintf("%s is a pooler and unfit for locks: %v", host, err), "connect to the server itself", "docs/backends/postgres.md#caveats")
		return false
	case !allowed:
		x.bad(fault, check, host+" is a pooler, which the driver refuses without pooler=session", "connect to the server itself; or use pooler=session in the URL, because the pooler is in session mode",
			"docs/backends/postgres.md#caveats")
		return false
	}
	x.bad(note, check, host+" is a pooler in session mode", "", "docs/backends/postgres.md#caveats")
	return true
}

// postgresServer is a PostgreSQL server under examination.
type postgresServer struct {
	x          *examination
	conn       *pgconn.PgConn
	host, user string
	pooled     bool
}

// facts are queried by their names.
var facts = []struct{ name, sql string }{
	{"version", "current_setting('server_version_num')"},
	{"text", "current_setting('server_version')"},
	{"standby", "pg_is_in_recovery()"},
	{"clock", "extract(epoch FROM clock_timestamp())"},
	{"process", "pg_backend_pid()"},
	{"fsync", "current_setting('fsync')"},
	{"replicas", "(SELECT count(*) FROM pg_stat_replication)"},
	{"max", "current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"},
	{"used", "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"},
	{"role max", "(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user)"},
	{"role used", "(SELECT count(*) FROM pg_stat_activity WHERE usename = current_user)"},
	{"database max", "(SELECT datconnlimit FROM pg_database WHERE datname = current_database())"},
	{"database used", "(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())"},
	{"database", "current_database()"},
	{"signals", "pg_has_role(current_user, 'pg_signal_backend', 'member')"},
}

func (s *postgresServer) examine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.x.connect)
	defer cancel()
	var columns []string
	for _, f := range facts {
		columns = append(columns, f.sql)
	}
	asked := time.Now()
	rows, err := s.query(ctx, "SELECT "+strings.Join(columns, ", "))
	answered := time.Now()
	if err != nil || len(rows) != 1 || len(rows[0]) != len(facts) {
		return errors.Join(err, errors.New("the facts about the server are missing"))
	}
	f := map[string]string{}
	for i, fact := range facts {
		f[fact.name] = string(rows[0][i])
	}
	s.version(f)
	s.state(f)
	if seconds, err := strconv.ParseFloat(f["clock"], 64); err == nil {
		s.x.clock(s.host, time.UnixMicro(int64(seconds*1e6)), asked, answered, seePostgres)
	}
	s.limits(f)
	s.pooled = f["process"] != strconv.FormatUint(uint64(s.conn.PID()), 10)
	return s.rights(ctx, f)
}

// query runs a query by the simple protocol, which poolers also support.
func (s *postgresServer) query(ctx context.Context, sql string) ([][][]byte, error) {
	results, err := s.conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return nil, err
	}
	return results[0].Rows, nil
}

func (s *postgresServer) version(f map[string]string) {
	if number, err := strconv.Atoi(f["version"]); err == nil && number < 140000 {
		s.x.bad(fault, "version", fmt.Sprintf("%s is PostgreSQL %s, and the oldest supported version is 14", s.host, f["text"]), "install PostgreSQL 14 or newer", seeReach)
		return
	}
	s.x.good("version", "%s is PostgreSQL %s", s.host, f["text"])
}

func (s *postgresServer) state(f map[string]string) {
	if f["standby"] == "t" {
		// Locks and tokens work just as well in read-only transactions.
		s.x.bad(fault, "read-only", s.host+" is a standby: its locks are separate from the locks of the primary, and it issues no tokens",
			"put the address of the primary in the URL; if the URL lists several hosts, the driver finds the primary", seePostgres)
	}
	if f["fsync"] == "off" {
		s.x.bad(warning, "persistence", s.host+" runs with fsync=off: tokens may fall after a crash of its machine", "set fsync = on in postgresql.conf", seePostgres)
	} else {
		s.x.good("persistence", "%s writes acknowledged data to disk", s.host)
	}
	if n, _ := strconv.Atoi(f["replicas"]); n > 0 {
		s.x.bad(warning, "replicas", fmt.Sprintf("%s has %s: if a standby takes over while the old primary is alive, both grant locks", s.host, cli.Plural(n, "replica")),
			"make the failover stop the old primary first; fencing tokens expose late holders", seePostgres)
	}
}

// limits checks the connection limit that is reached first.
func (s *postgresServer) limits(f map[string]string) {
	least, where, used, setting := -1, "", "", ""
	for _, l := range []struct{ prefix, where, setting string }{
		{"role ", "role " + s.user, "ALTER ROLE " + s.user + " CONNECTION LIMIT"},
		{"database ", "database " + f["database"], "ALTER DATABASE " + f["database"] + " CONNECTION LIMIT"},
		{"", s.host, "raise max_connections in postgresql.conf"},
	} {
		limit, err1 := strconv.Atoi(f[l.prefix+"max"])
		n, err2 := strconv.Atoi(f[l.prefix+"used"])
		if err1 != nil || err2 != nil || limit < 0 {
			continue
		}
		if left := limit - n; least < 0 || left < least {
			least, where, used, setting = left, l.where, fmt.Sprintf("%d of %d connections", n, limit), l.setting
		}
	}
	if where != "" {
		s.x.connections(where, least, used, setting)
	}
}

// functions are the functions that the driver calls. A role needs EXECUTE on
// them if that was revoked from PUBLIC.
var functions = []string{
	"pg_advisory_lock", "pg_try_advisory_lock", "pg_advisory_unlock", "pg_advisory_lock_shared", "pg_try_advisory_lock_shared",
	"pg_advisory_unlock_shared", "pg_try_advisory_xact_lock_shared", "pg_current_xact_id", "pg_logical_emit_message",
}

func (s *postgresServer) rights(ctx context.Context, f map[string]string) error {
	rows, err := s.query(ctx, "SELECT proname FROM pg_catalog.pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace "+
		"AND proname IN ('"+strings.Join(functions, "', '")+"') GROUP BY proname HAVING NOT bool_and(has_function_privilege(oid, 'EXECUTE')) ORDER BY proname")
	if err != nil {
		return err
	}
	var missing []string
	for _, row := range rows {
		missing = append(missing, string(row[0]))
	}
	if len(missing) == 0 {
		s.x.good("rights", "%s may connect and call the functions that locks need", s.user)
	} else {
		s.x.bad(fault, "rights", fmt.Sprintf("%s may not call %s", s.user, strings.Join(missing, ", ")),
			fmt.Sprintf("GRANT EXECUTE ON FUNCTION pg_catalog.%s TO %s, for each signature", missing[0], s.user), seeRights)
	}
	if s.x.url.Bool("force_unlock", false) && f["signals"] != "t" {
		s.x.bad(warning, "rights", s.user+" may not end the sessions of others, which force_unlock=true needs",
			"GRANT pg_signal_backend TO "+s.user, seeRights)
	}
	return s.crowds(ctx, f)
}

// crowds checks whether waiting sessions of the driver may skip the search for
// deadlocks. PostgreSQL 15 and later can grant that right.
func (s *postgresServer) crowds(ctx context.Context, f map[string]string) error {
	if number, err := strconv.Atoi(f["version"]); err != nil || number < 150000 {
		return nil
	}
	rows, err := s.query(ctx, "SELECT has_parameter_privilege('deadlock_timeout', 'SET')")
	if err == nil && len(rows) == 1 && string(rows[0][0]) != "t" {
		s.x.bad(note, "rights", s.user+" may not set deadlock_timeout, which matters if hundreds of clients wait for one name",
			"GRANT SET ON PARAMETER deadlock_timeout TO "+s.user, seeRights)
	}
	return err
}
