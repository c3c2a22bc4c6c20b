package stress

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-dsync/dsync/internal/testenv"
)

// postgresBed returns a bed of one PostgreSQL server.
func postgresBed(tb testing.TB) *bed {
	server, clock := testenv.PostgresClock(tb)
	for _, command := range []string{"create role locker login", "grant create on database postgres to locker", "grant set on parameter deadlock_timeout to locker"} {
		do(tb, server, command)
	}
	b := &bed{name: "pglock", tied: true, nodes: []node{server}, links: true}
	b.url = func(addrs []string) string {
		return "pglock://locker@" + addrs[0] + "/postgres?sslmode=disable&ttl=" + TTL.String()
	}
	b.left = func([]string) []string {
		return append(
			ask(tb, server, `select 'lock of ' || pid from pg_locks where locktype = 'advisory'`),
			ask(tb, server, `select 'session ' || pid || ' ' || application_name from pg_stat_activity
				where backend_type = 'client backend' and pid <> pg_backend_pid()`)...)
	}
	b.clock = func(_ int, d time.Duration) { clock.Set(d) }
	b.clockOff = func(int) time.Duration {
		seconds, _ := strconv.ParseInt(ask(tb, server, `select extract(epoch from clock_timestamp())::bigint::text`)[0], 10, 64)
		return time.Until(time.Unix(seconds, 0))
	}
	b.endSessions = func() int {
		// Either all sessions with odd process IDs, or all sessions with even
		// process IDs, so that sessions with locks are among them.
		return len(ask(tb, server, `select 'ended ' || ended from (
				select pg_terminate_backend(pid), pid as ended from pg_stat_activity where backend_type = 'client backend'
					and pid <> pg_backend_pid() and pid % 2 = (select pid % 2 from pg_locks where locktype = 'advisory' limit 1)
			) as all_ended`))
	}
	b.ask(tb)
	b.refusals = postgresRefusals(tb, server)
	b.refused = func() int64 {
		n, _ := strconv.ParseInt(ask(tb, server, `select xact_rollback::text from pg_stat_database where datname = 'postgres'`)[0], 10, 64)
		return n
	}
	return b
}

// postgresRefusals makes a server refuse statements and sessions of the role
// locker.
func postgresRefusals(tb testing.TB, server *testenv.PostgresServer) (all []refusal) {
	add := func(name, begin, end string) {
		all = append(all, refusal{name, func(*cell) func() {
			do(tb, server, begin)
			return func() {
				if end != "" {
					do(tb, server, end)
				}
			}
		}})
	}
	for _, setting := range []string{"statement_timeout = 1", "lock_timeout = 1", "default_transaction_read_only = on", "idle_session_timeout = 1",
		"idle_in_transaction_session_timeout = 1"} {
		name, _, _ := strings.Cut(setting, " ")
		all = append(all, refusal{name, func(*cell) func() {
			do(tb, server, "alter system set "+setting)
			do(tb, server, "select pg_reload_conf()")
			return func() {
				do(tb, server, "alter system reset "+name)
				do(tb, server, "select pg_reload_conf()")
			}
		}})
	}
	const sessions = ` from pg_stat_activity where usename = 'locker'`
	add("cancel", "select pg_cancel_backend(pid)"+sessions, "")
	add("too many connections", "alter role locker connection limit 0; select pg_terminate_backend(pid)"+sessions+" and pid % 2 = 0", "alter role locker connection limit -1")
	add("no login", "alter role locker nologin; select pg_terminate_backend(pid)"+sessions+" and pid % 2 = 0", "alter role locker login")
	for _, function := range ask(tb, server, `select oid::regprocedure::text from pg_proc where proname like 'pg_%advisory%' order by 1`) {
		add(function, "revoke execute on function "+function+" from public", "grant execute on function "+function+" to public")
	}
	for _, table := range ask(tb, server, `select format('%I.%I', schemaname, tablename) from pg_tables where tableowner = 'locker' order by 1`) {
		add(table, "revoke all on "+table+" from locker", "grant all on "+table+" to locker")
	}
	for _, sequence := range ask(tb, server, `select format('%I.%I', schemaname, sequencename) from pg_sequences where sequenceowner = 'locker' order by 1`) {
		add(sequence, "revoke all on sequence "+sequence+" from locker", "grant all on sequence "+sequence+" to locker")
	}
	return all
}

// postgresOneAddressBed returns a bed of a server and a replica that takes
// over. The replica does not have the server's locks. The old server freezes
// and is then stopped.
func postgresOneAddressBed(tb testing.TB) *bed {
	server := testenv.Postgres(tb)
	b := &bed{name: "pglock behind one address", tied: true, nodes: []node{server}, links: true}
	b.url = func(addrs []string) string {
		return "pglock://postgres@" + addrs[0] + "/postgres?sslmode=disable&ttl=" + TTL.String()
	}
	active := server
	b.takeOver = func(c *cell, _ int) (string, func()) {
		old, next := active, testenv.PostgresReplica(tb, active)
		active = next
		old.Freeze()
		do(tb, next, "select pg_promote()")
		return next.Addr, func() {
			c.sleep(c.outlasts())
			old.Kill()
		}
	}
	return b.ask(tb)
}

// do runs commands as the superuser.
func do(tb testing.TB, s *testenv.PostgresServer, commands string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	config, err := pgconn.ParseConfig(fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", s.Addr))
	if err != nil {
		tb.Fatal(err)
	}
	for _, setting := range []string{"statement_timeout", "lock_timeout", "idle_session_timeout", "default_transaction_read_only"} {
		config.RuntimeParams[setting] = "0" // overrides the server's configuration
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close(ctx)
	for command := range strings.SplitSeq(commands, "; ") {
		if _, err := conn.Exec(ctx, command).ReadAll(); err != nil {
			tb.Errorf("postgres: %s: %v", command, err)
		}
	}
}

// ask runs a query of one column of text.
func ask(tb testing.TB, s *testenv.PostgresServer, query string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", s.Addr))
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, query)
	if err != nil {
		tb.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		tb.Fatal(err)
	}
	return list
}
