package bench

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
)

// pgConnections has a connection for each lock that is held or waited for, which blocks there, and keeps those that are free.
type pgConnections struct {
	url          string
	lock, unlock string        // statements
	slots        chan struct{} // nil: no limit

	mu   sync.Mutex
	idle []*pgx.Conn
}

// openPGConns opens one with advisory locks, or shared ones if the suffix is "_shared".
func openPGConns(limit int, suffix string) func(context.Context, []string) (Locker, error) {
	return func(_ context.Context, addrs []string) (Locker, error) {
		l := &pgConnections{url: pgURL(addrs), lock: "SELECT pg_advisory_lock" + suffix + "($1)", unlock: "SELECT pg_advisory_unlock" + suffix + "($1)"}
		if limit > 0 {
			l.slots = make(chan struct{}, limit)
		}
		return l, nil
	}
}

func (l *pgConnections) get(ctx context.Context) (*pgx.Conn, error) {
	if l.slots != nil {
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	l.mu.Lock()
	if n := len(l.idle); n > 0 {
		conn := l.idle[n-1]
		l.idle = l.idle[:n-1]
		l.mu.Unlock()
		return conn, nil
	}
	l.mu.Unlock()
	conn, err := pgx.Connect(ctx, l.url)
	if err != nil {
		l.free()
	}
	return conn, err
}

func (l *pgConnections) put(conn *pgx.Conn) {
	if !conn.IsClosed() {
		l.mu.Lock()
		l.idle = append(l.idle, conn)
		l.mu.Unlock()
	}
	l.free()
}

func (l *pgConnections) free() {
	if l.slots != nil {
		<-l.slots
	}
}

func (l *pgConnections) Lock(ctx context.Context, name string) (Held, error) {
	conn, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	h := &pgHeld{l, conn, pgKey(name)}
	if _, err := conn.Exec(ctx, l.lock, h.key); err != nil {
		l.put(conn)
		return nil, err
	}
	return h, nil
}

func (l *pgConnections) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, c := range l.idle {
		errs = append(errs, c.Close(context.Background()))
	}
	return errors.Join(errs...)
}

type pgHeld struct {
	l    *pgConnections
	conn *pgx.Conn
	key  int64
}

func (h *pgHeld) Release(ctx context.Context) error {
	_, err := h.conn.Exec(ctx, h.l.unlock, h.key)
	h.l.put(h.conn)
	return err
}

// pgOne has all locks on one connection. It waits for nobody: it is for locks that are free.
type pgOne struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

func openPGOne(ctx context.Context, addrs []string) (Locker, error) {
	conn, err := pgx.Connect(ctx, pgURL(addrs))
	if err != nil {
		return nil, err
	}
	return &pgOne{conn: conn}, nil
}

func (l *pgOne) call(ctx context.Context, statement string, key int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var done bool
	if err := l.conn.QueryRow(ctx, statement, key).Scan(&done); err != nil {
		return err
	}
	if !done {
		return errLost
	}
	return nil
}

func (l *pgOne) Lock(ctx context.Context, name string) (Held, error) {
	h := &pgOneHeld{l, pgKey(name)}
	return h, l.call(ctx, "SELECT pg_try_advisory_lock($1)", h.key)
}

func (l *pgOne) Close() error { return l.conn.Close(context.Background()) }

type pgOneHeld struct {
	l   *pgOne
	key int64
}

func (h *pgOneHeld) Release(ctx context.Context) error {
	return h.l.call(ctx, "SELECT pg_advisory_unlock($1)", h.key)
}
