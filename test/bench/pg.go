package bench

import (
	"context"
	"database/sql"
	"errors"
	"hash/fnv"
	"sync"
	"testing"

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
	Name: "PostgreSQL",
	Start: func(tb testing.TB, storage testenv.Storage) *Servers {
		// 1,000 clients have two connections each.
		s := storage.Postgres(tb, "max_connections=2400", "max_locks_per_transaction=150")
		return &Servers{Addrs: []string{"postgres@" + s.Addr}, Pids: []int{s.Pid()}}
	},
	Rows: []*Row{
		{Name: "floor: advisory locks, a connection for each", Kind: Floor, In: []int{1, 2, 3, 4, 5, 7, 8}, Open: openPGPool(2000)},
		{Name: "floor: advisory locks, one connection", Kind: Floor, In: []int{6}, Open: openPGOne},
		{Name: "advisory locks over a pgxpool of 64", Kind: Peer, In: []int{1, 2, 3, 4, 5, 8}, Open: openPGPool(pgConns)},
		{Name: "allisson/go-pglock, 64 connections", Kind: Peer, In: []int{1, 2, 3, 4, 5}, Open: openGoPGLock},
		// The library waits for the length of a lease before it tries again, so
		// workload 4 would have no result.
		{Name: "cirello.io/pglock", Kind: Peer, In: []int{1, 2, 3, 5, 6}, Open: openCirello},
		ours("dsync", "pglock", pgPath+"&max_locks=200000"),
		ours("dsync, no tokens", "pglock", pgPath+"&fenced=false", 1, 2, 4),
		with(ours("dsync, with Token", "pglock", pgPath+"&max_locks=200000", 1, 2, 4), func(l *dsync.Lease) { l.Token() }),
		reads("pglock", pgPath, 1, 3),
	},
}

func pgURL(addrs []string) string { return "postgres://" + addrs[0] + pgPath }

// pgKey is the key of a name's advisory lock.
func pgKey(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	return int64(h.Sum64())
}

const (
	pgLock    = "SELECT pg_advisory_lock($1)"
	pgTryLock = "SELECT pg_try_advisory_lock($1)"
	pgUnlock  = "SELECT pg_advisory_unlock($1)"
)

// pgOne holds all locks on one connection. It does not wait, because it is only
// used for free locks.
type pgOne struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

func openPGOne(ctx context.Context, addrs []string) (Locker, error) {
	conn, err := pgx.Connect(ctx, pgURL(addrs))
	return &pgOne{conn: conn}, err
}

func (l *pgOne) call(ctx context.Context, statement string, key int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var done bool
	err := l.conn.QueryRow(ctx, statement, key).Scan(&done)
	if err == nil && !done {
		err = errLost
	}
	return err
}

func (l *pgOne) Lock(ctx context.Context, name string) (Held, error) {
	key := pgKey(name)
	return &hold{release: func(ctx context.Context) error { return l.call(ctx, pgUnlock, key) }}, l.call(ctx, pgTryLock, key)
}

func (l *pgOne) Close() error { return l.conn.Close(context.Background()) }

// pgPool uses one connection of a pool for each lock that is held or waited
// for. The statement of a waiter blocks on its connection.
type pgPool struct{ *pgxpool.Pool }

func openPGPool(conns int32) func(context.Context, []string) (Locker, error) {
	return func(ctx context.Context, addrs []string) (Locker, error) {
		config, err := pgxpool.ParseConfig(pgURL(addrs))
		if err != nil {
			return nil, err
		}
		config.MaxConns = conns
		pool, err := pgxpool.NewWithConfig(ctx, config)
		return pgPool{pool}, err
	}
}

func (l pgPool) Lock(ctx context.Context, name string) (Held, error) {
	conn, err := l.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	key := pgKey(name)
	if _, err := conn.Exec(ctx, pgLock, key); err != nil {
		conn.Release()
		return nil, err
	}
	return &hold{release: func(ctx context.Context) error {
		defer conn.Release()
		_, err := conn.Exec(ctx, pgUnlock, key)
		return err
	}}, nil
}

func (l pgPool) Close() error {
	l.Pool.Close()
	return nil
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

type goPGLock struct{ *sql.DB }

func openGoPGLock(_ context.Context, addrs []string) (Locker, error) {
	db, err := openSQL(addrs)
	return goPGLock{db}, err
}

func (l goPGLock) Lock(ctx context.Context, name string) (Held, error) {
	lock, err := gopglock.NewLock(ctx, pgKey(name), l.DB)
	if err != nil {
		return nil, err
	}
	if err := lock.WaitAndLock(ctx); err != nil {
		_ = lock.Close() // the error from the lock is more informative
		return nil, err
	}
	return &hold{release: func(ctx context.Context) error {
		if err := lock.Unlock(ctx); err != nil {
			return err
		}
		return lock.Close()
	}}, nil
}

type cirelloLocker struct {
	*sql.DB
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
		return nil, errors.Join(err, db.Close())
	}
	return cirelloLocker{db, client}, nil
}

func (l cirelloLocker) Lock(ctx context.Context, name string) (Held, error) {
	lock, err := l.client.AcquireContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return &hold{release: func(ctx context.Context) error { return l.client.ReleaseContext(ctx, lock) }, err: func() error {
		if lock.IsReleased() {
			return errLost
		}
		return nil
	}}, nil
}
