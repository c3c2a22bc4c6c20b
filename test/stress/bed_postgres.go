package stress

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/internal/testenv"
)

// postgresBed is one PostgreSQL.
func postgresBed(tb testing.TB) *bed {
	server, clock := testenv.PostgresClock(tb)
	b := &bed{name: "pglock", tied: true, nodes: []node{server}, links: true}
	b.url = func(addrs []string) string {
		return "pglock://postgres@" + addrs[0] + "/postgres?sslmode=disable&ttl=" + TTL.String()
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
		// Those that have an odd number, or those that have an even one, but with locks among them.
		return len(ask(tb, server, `select 'ended ' || ended from (
				select pg_terminate_backend(pid), pid as ended from pg_stat_activity where backend_type = 'client backend'
					and pid <> pg_backend_pid() and pid % 2 = (select pid % 2 from pg_locks where locktype = 'advisory' limit 1)
			) as all_ended`))
	}
	return b.ask(tb)
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
