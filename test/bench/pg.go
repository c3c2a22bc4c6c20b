package bench

import (
	"context"
	"database/sql"
	"hash/fnv"
	"strings"
	"sync"
	"testing"
	"time"

	cirello "cirello.io/pglock"
	gopglock "github.com/allisson/go-pglock/v3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	pgPath  = "/postgres?sslmode=disable"
	pgConns = 64 // in a pool
)

var pgBackend = &Backend{
	Name:  "PostgreSQL",
	Start: startPostgres,
	Rows: append(readRows("pglock", pgPath, &Row{Name: "floor: shared advisory locks, a connection for each", Kind: Floor, In: []int{8, 9}, Open: openPGConns(0, "_shared")}), []*Row{
		{Name: "floor: advisory locks, a connection for each", Kind: Floor, In: []int{1, 2, 3, 4, 5, 14}, Open: openPGConns(0, "")},
		{Name: "floor: advisory locks, 64 connections", Kind: Floor, In: []int{7}, Open: openPGConns(pgConns, "")},
		{Name: "floor: advisory locks, one connection", Kind: Floor, In: []int{6}, Open: openPGOne},
		{Name: "advisory locks over a pgxpool of 64", Kind: Peer, In: []int{1, 2, 3, 4, 5, 7, 14}, Open: openPGPool},
		{Name: "allisson/go-pglock, 64 connections", Kind: Peer, In: []int{1, 2, 3, 4, 5, 7}, Open: openGoPGLock},
		// It waits for a whole lease before it tries again, so that nothing would come of workloads 4 and 7.
		{Name: "cirello.io/pglock", Kind: Peer, In: []int{1, 2, 3, 5, 6}, Open: openCirello},
		ours("dsync", "pglock", pgPath+"&max_locks=200000", dsync.Options{}),
		withoutRights(ours("dsync, role without rights", "pglock", pgPath+"&user=plain", dsync.Options{}, 14)),
		ours("dsync, no tokens", "pglock", pgPath+"&fenced=false", dsync.Options{}, 1, 4),
		withToken(ours("dsync, with Token", "pglock", pgPath+"&max_locks=200000", dsync.Options{}, 1, 2, 4)),
		oursAlone("dsync's driver alone", "pglock", pgPath, 3, 5),
		reads("dsync, Read, no tokens", "pglock", pgPath+"&fenced=false", 8),
	}...),
}

// withoutRights makes a row of a role that may not set deadlock_timeout. Where a thousand wait, each looks for a deadlock, and the server may not
// answer for a TTL, so that a lock is lost. The error is that of another process, and so a text.
func withoutRights(r *Row) *Row {
	r.MayFail = func(w *Workload, err error) bool {
		return w.At >= 1000 && strings.Contains(err.Error(), dsync.ErrLost.Error())
	}
	return r
}

func startPostgres(tb testing.TB, storage testenv.Storage) *Servers {
	// A thousand clients have two connections each.
	s := storage.Postgres(tb, "max_connections=2400", "max_locks_per_transaction=150", "shared_preload_libraries=pg_stat_statements")
	servers := &Servers{Addrs: []string{"postgres@" + s.Addr}, Pids: []int{s.Pid()}}
	servers.Counter = func(tb testing.TB) counter { return countStatements(tb, servers.Addrs) }
	servers.Left = func(tb testing.TB) Sample { return Sample{"left at server": float64(countAdvisory(tb, servers.Addrs))} }
	conn, do := pgAdmin(tb, servers.Addrs)
	defer conn.Close(context.Background())
	do("CREATE EXTENSION pg_stat_statements", "CREATE ROLE plain LOGIN")
	do(countNothing...) // it costs time
	return servers
}

// Settings on the command line could not be changed like these.
var (
	countNothing = []string{"ALTER SYSTEM SET pg_stat_statements.track = none", "SELECT pg_reload_conf()"}
	countAll     = []string{"ALTER SYSTEM SET pg_stat_statements.track = top", "SELECT pg_reload_conf()"}
)

// pgAdmin returns a connection whose statements do not count, and a function that carries them out.
func pgAdmin(tb testing.TB, addrs []string) (*pgx.Conn, func(statements ...string)) {
	tb.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgURL(addrs))
	if err != nil {
		tb.Fatal(err)
	}
	do := func(statements ...string) {
		tb.Helper()
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s); err != nil {
				tb.Fatalf("%s: %v", s, err)
			}
		}
	}
	do("SET pg_stat_statements.track = none")
	return conn, do
}

// countedStatements is how many have ended, and how many are under way: a wait for a lock is a statement. The view pg_stat_activity has tables
// whose locks are among those for which a crowd waits.
const countedStatements = `SELECT (SELECT COALESCE(sum(calls), 0)::bigint FROM pg_stat_statements) +
(SELECT count(*) FROM pg_stat_get_activity(NULL) WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid())`

// countStatements counts the statements that clients begin, but for those that fail.
func countStatements(tb testing.TB, addrs []string) counter {
	tb.Helper()
	ctx := context.Background()
	conn, do := pgAdmin(tb, addrs)
	do(countAll...)
	if err := pause(ctx, reloadTime); err != nil {
		tb.Fatal(err)
	}
	do("SELECT pg_stat_statements_reset()")
	read := func() (n int64) {
		tb.Helper()
		if err := conn.QueryRow(ctx, countedStatements).Scan(&n); err != nil {
			tb.Fatal(err)
		}
		return n
	}
	return counter{read, sync.OnceFunc(func() {
		do(countNothing...)
		conn.Close(ctx)
	})}
}

// countAdvisory returns how many locks are held.
func countAdvisory(tb testing.TB, addrs []string) (n int64) {
	tb.Helper()
	conn, _ := pgAdmin(tb, addrs)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// reloadTime is how long the processes of the server have to read their settings; it tells nobody when they have.
const reloadTime = 100 * time.Millisecond

func pgURL(addrs []string) string { return "postgres://" + addrs[0] + pgPath }

// pgKey is the advisory lock of a name.
func pgKey(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	return int64(h.Sum64())
}

// pgPool locks by statements on a connection of a pool, which it keeps for as long as it holds the lock.
type pgPool struct{ pool *pgxpool.Pool }

func openPGPool(ctx context.Context, addrs []string) (Locker, error) {
	config, err := pgxpool.ParseConfig(pgURL(addrs))
	if err != nil {
		return nil, err
	}
	config.MaxConns = pgConns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return pgPool{pool}, nil
}

func (l pgPool) Lock(ctx context.Context, name string) (Held, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	h := &pgPoolHeld{conn, pgKey(name)}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", h.key); err != nil {
		conn.Release()
		return nil, err
	}
	return h, nil
}

func (l pgPool) Close() error {
	l.pool.Close()
	return nil
}

type pgPoolHeld struct {
	conn *pgxpool.Conn
	key  int64
}

func (h *pgPoolHeld) Release(ctx context.Context) error {
	_, err := h.conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", h.key)
	h.conn.Release()
	return err
}

// openSQL returns a pool of package database/sql.
func openSQL(addrs []string) (*sql.DB, error) {
	db, err := sql.Open("pgx", pgURL(addrs))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(pgConns)
	db.SetMaxIdleConns(pgConns)
	return db, nil
}

type goPGLock struct{ db *sql.DB }

func openGoPGLock(_ context.Context, addrs []string) (Locker, error) {
	db, err := openSQL(addrs)
	if err != nil {
		return nil, err
	}
	return goPGLock{db}, nil
}

func (l goPGLock) Lock(ctx context.Context, name string) (Held, error) {
	lock, err := gopglock.NewLock(ctx, pgKey(name), l.db)
	if err != nil {
		return nil, err
	}
	if err := lock.WaitAndLock(ctx); err != nil {
		_ = lock.Close() // the error of the lock says more
		return nil, err
	}
	return &goPGLockHeld{lock}, nil
}

func (l goPGLock) Close() error { return l.db.Close() }

type goPGLockHeld struct{ lock gopglock.Lock }

func (h *goPGLockHeld) Release(ctx context.Context) error {
	if err := h.lock.Unlock(ctx); err != nil {
		return err
	}
	return h.lock.Close()
}

type cirelloLocker struct {
	db     *sql.DB
	client *cirello.Client
}

func openCirello(_ context.Context, addrs []string) (Locker, error) {
	db, err := openSQL(addrs)
	if err != nil {
		return nil, err
	}
	client, err := cirello.UnsafeNew(db, cirello.WithLeaseDuration(heldTTL), cirello.WithHeartbeatFrequency(heldTTL/3))
	if err == nil {
		err = client.TryCreateTable()
	}
	if err != nil {
		_ = db.Close() // err says more
		return nil, err
	}
	return &cirelloLocker{db, client}, nil
}

func (l *cirelloLocker) Lock(ctx context.Context, name string) (Held, error) {
	lock, err := l.client.AcquireContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return &cirelloHeld{l.client, lock}, nil
}

func (l *cirelloLocker) Close() error { return l.db.Close() }

type cirelloHeld struct {
	client *cirello.Client
	lock   *cirello.Lock
}

func (h *cirelloHeld) Release(ctx context.Context) error { return h.client.ReleaseContext(ctx, h.lock) }

func (h *cirelloHeld) Err() error {
	if h.lock.IsReleased() {
		return errLost
	}
	return nil
}
