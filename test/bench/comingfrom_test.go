package bench

// The code of other libraries in docs/coming-from.md, so that the page shows what compiles. What it does is measured by this package.

import (
	"context"
	"net"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync/drivers/redisson"
)

var _ = []any{comingFromRedsync, comingFromRedislock, comingFromRueidislock, comingFromEtcd, comingFromZooKeeper, comingFromAdvisoryLocks, redissonOf}

func pack(context.Context) error { return nil }

func comingFromRedsync(ctx context.Context, rs *redsync.Redsync) error {
	mutex := rs.NewMutex("orders/42", redsync.WithExpiry(30*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(ctx)
	return pack(ctx) // in less than 30 s, or with a goroutine that calls mutex.ExtendContext
}

func comingFromRedislock(ctx context.Context, client *redislock.Client) error {
	lock, err := client.Obtain(ctx, "orders/42", 30*time.Second, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond),
	})
	if err != nil {
		return err // redislock.ErrNotObtained: somebody has it
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return pack(ctx) // in less than 30 s, or with a goroutine that calls lock.Refresh
}

func comingFromRueidislock(ctx context.Context, locker rueidislock.Locker) error {
	ctx, cancel, err := locker.WithContext(ctx, "orders/42")
	if err != nil {
		return err
	}
	defer cancel()
	return pack(ctx)
}

func comingFromEtcd(ctx context.Context, client *clientv3.Client) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "orders/42")
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	return pack(ctx) // and look at session.Done(); mutex.Header().Revision is the token
}

func comingFromZooKeeper(ctx context.Context, conn *zk.Conn) error {
	lock := zk.NewLock(conn, "/app/orders/42", zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil { // which no context ends
		return err
	}
	defer lock.Unlock()
	return pack(ctx) // and look at the events of the session
}

func comingFromAdvisoryLocks(ctx context.Context, conn *pgx.Conn) error { // a connection for the lock alone
	if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtextextended($1, 0))`, "orders/42"); err != nil {
		return err
	}
	defer conn.Exec(context.WithoutCancel(ctx), `select pg_advisory_unlock(hashtextextended($1, 0))`, "orders/42")
	return pack(ctx) // nothing tells that the connection has ended, and the lock with it
}

// redissonOf is a driver for the servers of a go-redis client.
func redissonOf(o *redis.UniversalOptions) (*redisson.Driver, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: o.Addrs, Username: o.Username, Password: o.Password, SelectDB: o.DB, TLSConfig: o.TLSConfig,
		Sentinel:         rueidis.SentinelOption{MasterSet: o.MasterName, Username: o.SentinelUsername, Password: o.SentinelPassword},
		Dialer:           net.Dialer{Timeout: 2 * time.Second, KeepAlive: time.Second},
		ConnWriteTimeout: 3 * time.Second,
		DisableCache:     true,
	})
	if err != nil {
		return nil, nil, err
	}
	d, err := redisson.New(client, nil)
	return d, client.Close, err // to be called after the Close of the dsync.Client
}
