package stress

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/sqllock"
	"github.com/go-dsync/dsync/internal/testenv"
)

// mariadbBed returns a bed of one MariaDB server.
func mariadbBed(tb testing.TB) *bed {
	// Commits survive a kill of the server.
	server, clock := testenv.MySQLClock(tb, "innodb-flush-log-at-trx-commit=2", "innodb-lock-wait-timeout=1")
	m := mariadb{tb, server}
	m.do("CREATE DATABASE locks",
		"CREATE TABLE locks.dsync_locks (name VARBINARY(1024) PRIMARY KEY, version BINARY(16) NOT NULL, written BIGINT NOT NULL, value MEDIUMBLOB NOT NULL) ENGINE=InnoDB",
		"CREATE TABLE locks.heavy (n INT PRIMARY KEY) ENGINE=InnoDB")
	b := &bed{name: "sqllock", nodes: []node{server}, links: true}
	b.url = func(addrs []string) string {
		return "mysql://root@" + addrs[0] + "/locks?poll=20ms&ttl=" + TTL.String()
	}
	b.left = func(names []string) []string { return m.left(b.url(b.addrs()), names) }
	b.clock = func(_ int, d time.Duration) { clock.Set(d) }
	b.clockOff = func(int) time.Duration {
		return time.Until(time.Unix(m.numbers("SELECT UNIX_TIMESTAMP()")[0], 0))
	}
	b.endSessions = func() int { return m.kill("KILL", sessions+" AND id % 2 = (SELECT MAX(id) % 2 "+sessions+")") }
	b.refusals = m.refusals()
	b.refused = func() int64 {
		return m.numbers("SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_deadlocks'")[0]
	}
	return b.ask(tb)
}

// sessions selects the sessions of the clients. The superuser's sessions have
// no database.
const sessions = " FROM information_schema.processlist WHERE db = 'locks'"

// mariadb is the superuser of a server.
type mariadb struct {
	tb     testing.TB
	server *testenv.MySQLServer
}

// use calls f with a separate connection.
func (m mariadb) use(f func(ctx context.Context, db *sql.Conn) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pool, err := sql.Open("mysql", "root@tcp("+m.server.Addr+")/?max_statement_time=0")
	if err != nil {
		m.tb.Fatal(err)
	}
	defer pool.Close()
	db, err := pool.Conn(ctx)
	if err == nil {
		defer db.Close()
		err = f(ctx, db)
	}
	if err != nil {
		m.tb.Errorf("mariadb: %v", err)
	}
}

// do runs statements.
func (m mariadb) do(statements ...string) {
	m.use(func(ctx context.Context, db *sql.Conn) error {
		for _, s := range statements {
			if _, err := db.ExecContext(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	})
}

// numbers runs a query of one column of numbers.
func (m mariadb) numbers(query string) (all []int64) {
	m.use(func(ctx context.Context, db *sql.Conn) error {
		rows, err := db.QueryContext(ctx, query)
		if err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
		defer rows.Close()
		for rows.Next() {
			var n int64
			if err := rows.Scan(&n); err != nil {
				return err
			}
			all = append(all, n)
		}
		return rows.Err()
	})
	return all
}

// kill ends sessions or their statements and returns their number.
func (m mariadb) kill(command, sessions string) (n int) {
	for _, id := range m.numbers("SELECT id" + sessions) {
		m.use(func(ctx context.Context, db *sql.Conn) error {
			if _, err := db.ExecContext(ctx, fmt.Sprint(command, " ", id)); err == nil { // otherwise it has ended
				n++
			}
			return nil
		})
	}
	return n
}

// left returns the locks that are held or waited for, and the sessions.
func (m mariadb) left(url string, names []string) (left []string) {
	for _, id := range m.numbers("SELECT id" + sessions) {
		left = append(left, fmt.Sprint("session ", id))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, _, err := driver.Open(ctx, url)
	if err != nil {
		m.tb.Fatal(err)
	}
	defer d.Close(ctx)
	for _, name := range names {
		s, err := d.(driver.Inspector).Inspect(ctx, name)
		if err != nil {
			m.tb.Error(err)
		}
		if s.Held || s.Waiters > 0 {
			left = append(left, fmt.Sprintf("%s: %d holders, %d waiters", name, s.Holders, s.Waiters))
		}
	}
	return left
}

// refusals make a server refuse statements.
func (m mariadb) refusals() []refusal {
	// under returns a refusal that a transaction causes for as long as it
	// lasts.
	under := func(name string, begin, end []string) refusal {
		return refusal{name, func(*cell) func() {
			over, done := make(chan struct{}), make(chan struct{})
			begun := make(chan struct{})
			go func() { // until the refusal ends
				defer close(done)
				m.use(func(ctx context.Context, db *sql.Conn) error {
					run := func(statements []string) (err error) {
						for _, s := range statements {
							if err == nil {
								_, err = db.ExecContext(ctx, s)
							}
						}
						return err
					}
					err := run(begin)
					close(begun)
					<-over
					_ = run(end) // the superuser may be the victim
					return err
				})
			}()
			<-begun
			return func() {
				close(over)
				<-done
			}
		}}
	}
	killed := func(name, command string) refusal {
		return refusal{name, func(*cell) func() {
			m.kill(command, sessions)
			return func() {}
		}}
	}
	// The transaction locks all rows in share mode and then writes them. So
	// each waiting statement becomes the victim of a deadlock, because it has
	// changed fewer rows.
	deadlock := under("deadlock",
		[]string{"BEGIN", "INSERT INTO locks.heavy SELECT seq FROM locks.seq_1_to_1000", "SELECT COUNT(*) FROM (SELECT name FROM locks.dsync_locks LOCK IN SHARE MODE) AS s"},
		[]string{"UPDATE locks.dsync_locks SET written = written + 0", "ROLLBACK"})
	return []refusal{
		deadlock, deadlock, deadlock,
		under("rows locked", []string{"BEGIN", "SELECT COUNT(*) FROM (SELECT name FROM locks.dsync_locks FOR UPDATE) AS s"}, []string{"ROLLBACK"}),
		under("table locked", []string{"LOCK TABLES locks.dsync_locks WRITE"}, []string{"UNLOCK TABLES"}),
		under("table away", []string{"RENAME TABLE locks.dsync_locks TO locks.away"}, []string{"RENAME TABLE locks.away TO locks.dsync_locks"}),
		{"statements too slow", func(*cell) func() { // of sessions that begin now
			m.do("SET GLOBAL max_statement_time = 0.0001")
			m.kill("KILL", sessions)
			return func() {
				m.do("SET GLOBAL max_statement_time = 0")
				m.kill("KILL", sessions)
			}
		}},
		killed("statements canceled", "KILL QUERY"), killed("sessions ended", "KILL"),
	}
}
