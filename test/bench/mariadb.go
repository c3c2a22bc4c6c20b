package bench

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/sqllock"
	"github.com/go-dsync/dsync/internal/testenv"
)

// In one of the two backends, the floor stores a row with a token for each
// name. In the other, it stores only rows for held names.
var (
	mariadbBackend = &Backend{Name: "MariaDB", Start: startMariaDB, Rows: []*Row{
		{Name: "floor: a row with a token", Kind: Floor, In: sqlWorkloads, Open: openSQLFloor(true)},
		ours("dsync", "mysql", "/bench", sqlWorkloads...),
		with(ours("dsync, with Token", "mysql", "/bench", 1, 2), func(l *dsync.Lease) { l.Token() }),
	}}
	mariadbPlainBackend = &Backend{Name: "MariaDB without tokens", Start: startMariaDB, Rows: []*Row{
		{Name: "floor: INSERT … ON DUPLICATE KEY UPDATE, DELETE", Kind: Floor, In: sqlWorkloads, Open: openSQLFloor(false)},
		ours("dsync, no tokens", "mysql", "/bench?fenced=false", sqlWorkloads...),
	}}
)

// sqlWorkloads leaves out hand-overs between clients, which poll.
var sqlWorkloads = []int{1, 2, 3, 6}

func startMariaDB(tb testing.TB, storage testenv.Storage) *Servers {
	s := storage.MySQL(tb)
	db, err := sql.Open("mysql", "root@tcp("+s.Addr+")/")
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		"CREATE DATABASE bench",
		"CREATE TABLE bench.dsync_locks (name VARBINARY(1024) PRIMARY KEY, version BINARY(16) NOT NULL, written BIGINT NOT NULL, value MEDIUMBLOB NOT NULL) ENGINE=InnoDB",
		"CREATE TABLE bench.floor (name VARBINARY(1024) PRIMARY KEY, holder BINARY(16) NOT NULL, until BIGINT NOT NULL, token BIGINT NOT NULL) ENGINE=InnoDB",
	} {
		if _, err := db.Exec(statement); err != nil {
			tb.Fatal(err)
		}
	}
	return &Servers{Addrs: []string{"root@" + s.Addr}, Pids: []int{s.Pid()}}
}

// sqlFloor has a row for each lock. A waiter polls as often as a waiter of
// dsync.
type sqlFloor struct {
	*sql.DB
	tokens bool
}

func openSQLFloor(tokens bool) func(context.Context, []string) (Locker, error) {
	return func(_ context.Context, addrs []string) (Locker, error) {
		user, addr, _ := strings.Cut(addrs[0], "@")
		db, err := sql.Open("mysql", fmt.Sprintf("%s@tcp(%s)/bench?interpolateParams=true", user, addr))
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(16) // as dsync
		db.SetMaxIdleConns(16)
		return sqlFloor{db, tokens}, nil
	}
}

const (
	sqlNow  = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	sqlLock = "INSERT INTO floor (name, holder, until, token) VALUES (?, ?, " + sqlNow + " + ?, LAST_INSERT_ID(1)) ON DUPLICATE KEY UPDATE " +
		"token = IF(until < " + sqlNow + ", LAST_INSERT_ID(token + 1), token), holder = IF(until < " + sqlNow + ", VALUES(holder), holder), " +
		"until = IF(holder = VALUES(holder), VALUES(until), until)"
)

// exec runs a statement that changes one row, and reports whether it did. The
// answer also contains the token.
func (l sqlFloor) exec(ctx context.Context, query string, args ...any) (bool, error) {
	r, err := l.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := r.RowsAffected()
	return n > 0, err
}

func (l sqlFloor) Lock(ctx context.Context, name string) (Held, error) {
	id := newID()
	for {
		got, err := l.exec(ctx, sqlLock, name, id, heldTTL.Microseconds())
		if err == nil && !got {
			err = pause(ctx, 100*time.Millisecond)
		}
		if err != nil {
			return nil, err
		}
		if got {
			break
		}
	}
	unlock := "UPDATE floor SET until = 0 WHERE name = ? AND holder = ?"
	if !l.tokens {
		unlock = "DELETE FROM floor WHERE name = ? AND holder = ?"
	}
	change := func(ctx context.Context, query string, args ...any) error {
		changed, err := l.exec(ctx, query, args...)
		if err == nil && !changed {
			err = errLost
		}
		return err
	}
	return &hold{
		release: func(ctx context.Context) error { return change(ctx, unlock, name, id) },
		renew: func(ctx context.Context) error {
			return change(ctx, "UPDATE floor SET until = "+sqlNow+" + ? WHERE name = ? AND holder = ?", heldTTL.Microseconds(), name, id)
		},
	}, nil
}
