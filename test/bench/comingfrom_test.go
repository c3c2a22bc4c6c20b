package bench

// This file has the code of other libraries in docs/coming-from.md, so that the
// page shows code that compiles. The package also measures this code.

import (
	"context"
	"errors"
	"testing"
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

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/testenv"
)

var _ = []any{comingFromRedsync, comingFromRedislock, comingFromRueidislock, comingFromEtcd, comingFromZooKeeper, comingFromAdvisoryLocks}

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
		return err // redislock.ErrNotObtained: another client has it
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

func comingFromAdvisoryLocks(ctx context.Context, conn *pgx.Conn) error { // a connection only for the lock
	if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtextextended($1, 0))`, "orders/42"); err != nil {
		return err
	}
	defer conn.Exec(context.WithoutCancel(ctx), `select pg_advisory_unlock(hashtextextended($1, 0))`, "orders/42")
	return pack(ctx) // nothing reports that the connection, and with it the lock, is gone
}

// redissonOf is a driver for the servers of a go-redis client.
func redissonOf(ctx context.Context, o *redis.UniversalOptions) (*redisson.Driver, error) {
	server := rueidis.ClientOption{
		InitAddress: o.Addrs, Username: o.Username, Password: o.Password, SelectDB: o.DB, TLSConfig: o.TLSConfig,
		Sentinel: rueidis.SentinelOption{MasterSet: o.MasterName, Username: o.SentinelUsername, Password: o.SentinelPassword,
			TLSConfig: o.TLSConfig},
		ForceSingleClient: len(o.Addrs) == 1 && !o.IsClusterMode,
	}
	if o.CredentialsProvider != nil {
		server.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (c rueidis.AuthCredentials, err error) {
			c.Username, c.Password = o.CredentialsProvider()
			return c, nil
		}
	}
	return redisson.Connect(ctx, server, nil) // dsync.New takes the driver and closes its connections with the client
}

// TestRedissonOf has a program with go-redis lock on its server, in its
// database.
func TestRedissonOf(t *testing.T) {
	password := testenv.Password()
	server := testenv.Redis(t, "--requirepass", password)
	for name, o := range map[string]*redis.UniversalOptions{
		"password": {Addrs: []string{server.Addr}, Password: password, DB: 2},
		"provider": {Addrs: []string{server.Addr}, DB: 2, CredentialsProvider: func() (string, string) { return "", password }},
	} {
		t.Run(name, func(t *testing.T) {
			own := redis.NewUniversalClient(o)
			defer own.Close()
			d, err := redissonOf(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			client, err := dsync.New(d, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = dsync.Do(t.Context(), client, "orders/42", func(ctx context.Context) error {
				if n, err := own.Exists(ctx, "orders/42").Result(); n != 1 || err != nil {
					t.Errorf("go-redis sees %d keys, %v; want the lock", n, err)
				}
				return nil
			})
			if err := errors.Join(err, client.Close(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
}
