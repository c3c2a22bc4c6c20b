// Package redisstring tests the migration from plain string locks. Programs
// with redislock, and with redsync on one node, run together with dsync
// programs that migrate from these libraries.
package redisstring

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m, map[string]func(){"redislock": byRedislock, "redsync": byRedsync, "dsync": byDsync})
}

const (
	addressVariable = "STRING_TEST_ADDRESS"
	urlVariable     = "STRING_TEST_URL"
	lockName        = "interop {lock}/ä"
	ttl             = 20 * time.Second
)

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A locker tries once to acquire a lock of one of the libraries. It returns nil
// if another client holds the lock.
type locker func(ctx context.Context, name string) (release func() error, err error)

func newRedislock(address string) (locker, func()) {
	client := redis.NewClient(&redis.Options{Addr: address})
	locks := redislock.New(client)
	return func(ctx context.Context, name string) (func() error, error) {
		l, err := locks.Obtain(ctx, name, ttl, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	}, func() { _ = client.Close() }
}

func newRedsync(address string) (locker, func()) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, ForceSingleClient: true, DisableCache: true})
	exitOn(err)
	rs := redsync.New(redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client)))
	return func(ctx context.Context, name string) (func() error, error) {
		m := rs.NewMutex(name, redsync.WithExpiry(ttl))
		taken := (*redsync.ErrTaken)(nil)
		if err := m.TryLockContext(ctx); errors.As(err, &taken) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		return func() error {
			_, err := m.Unlock()
			return err
		}, nil
	}, client.Close
}

// count increments the counter in a file, under a lock that it requests until
// it is granted.
func count(l locker) {
	testenv.Count(func() (func() error, error) {
		for {
			release, err := l(context.Background(), lockName)
			if release != nil || err != nil {
				return release, err
			}
			time.Sleep(time.Millisecond) // these libraries poll
		}
	})
}

func byRedislock() {
	l, stop := newRedislock(os.Getenv(addressVariable))
	defer stop()
	count(l)
}

func byRedsync() {
	l, stop := newRedsync(os.Getenv(addressVariable))
	defer stop()
	count(l)
}

func byDsync() {
	c, err := dsync.Open(context.Background(), os.Getenv(urlVariable), &dsync.Options{TTL: ttl})
	exitOn(err)
	testenv.Count(func() (func() error, error) {
		l, err := c.Lock(context.Background(), lockName)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Unlock(context.Background()) }, nil
	})
	exitOn(c.Close(context.Background()))
}

func oldURL(s *testenv.RedisServer) string { return "redis-string://" + s.Addr + "?durable=true" }

// migrateURL migrates to another database of the same server, where the names
// are free for other kinds of keys.
func migrateURL(s *testenv.RedisServer, phase migrate.Phase) string {
	return "migrate:?from=" + url.QueryEscape(oldURL(s)) + "&to=" + url.QueryEscape("redisson://"+s.Addr+"/1") + "&phase=" + phase.String()
}

// TestCounter makes processes of both libraries, and of dsync before and during
// a migration, increment one number under one lock.
func TestCounter(t *testing.T) {
	s := testenv.Redis(t)
	address := addressVariable + "=" + s.Addr
	c := testenv.NewCounter(t)
	c.Spawn(2, "redislock", 300, 1, address)
	c.Spawn(2, "redsync", 300, 1, address)
	c.Spawn(2, "dsync", 300, 1, urlVariable+"="+oldURL(s))
	c.Spawn(2, "dsync", 300, 1, urlVariable+"="+migrateURL(s, migrate.PhaseDual))
	c.Run()
	testenv.Eventually(t, func() bool { return s.Do("EXISTS", lockName) == int64(0) }, "the lock is gone")
}

// TestMigration migrates from string locks to redisson and back, while another
// program still uses the old locks.
func TestMigration(t *testing.T) {
	for name, open := range map[string]func(string) (locker, func()){"redislock": newRedislock, "redsync": newRedsync} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.Redis(t)
			incumbent, stop := open(s.Addr)
			defer stop()
			d, _, err := driver.Open(t.Context(), migrateURL(s, migrate.PhaseDual))
			if err != nil {
				t.Fatal(err)
			}
			c, err := dsync.New(d, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			m := &moving{t, incumbent, c}

			m.excludeEachOther()
			release := m.take()
			if err := d.(*migrate.Driver).SetPhase(t.Context(), migrate.PhaseNew); err != nil {
				t.Fatal(err)
			}
			m.refused() // also in phase new, as long as the name has not moved
			if err := release(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				l := m.lock()
				m.inVain()
				m.unlock(l)
				m.inVain() // nor when the name is free
			}
			if err := d.(*migrate.Driver).SetPhase(t.Context(), migrate.PhaseDual); err != nil {
				t.Fatal(err)
			}
			if err := d.(*migrate.Driver).Rollback(t.Context(), lockName); err != nil {
				t.Fatal(err)
			}
			m.excludeEachOther()
		})
	}
}

// moving is a program that takes part in the migration, with an incumbent.
type moving struct {
	t         *testing.T
	incumbent locker
	client    *dsync.Client
}

func (m *moving) lock() *dsync.Lease {
	m.t.Helper()
	l, err := m.client.Lock(m.t.Context(), lockName, dsync.WaitAtMost(10*time.Second))
	if err != nil {
		m.t.Fatal(err)
	}
	return l
}

func (m *moving) unlock(l *dsync.Lease) {
	m.t.Helper()
	if err := l.Unlock(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// refused checks that the moving program is refused while the incumbent holds
// the lock.
func (m *moving) refused() {
	m.t.Helper()
	if _, err := m.client.TryLock(m.t.Context(), lockName); !errors.Is(err, dsync.ErrLocked) {
		m.t.Fatalf("dsync while the incumbent holds the lock: got %v, want ErrLocked", err)
	}
}

// inVain checks that the incumbent cannot acquire the lock.
func (m *moving) inVain() {
	m.t.Helper()
	if release, err := m.incumbent(m.t.Context(), lockName); release != nil || err != nil {
		m.t.Fatalf("the incumbent: got the lock %t, %v, want neither", release != nil, err)
	}
}

func (m *moving) take() (release func() error) {
	m.t.Helper()
	release, err := m.incumbent(m.t.Context(), lockName)
	if release == nil || err != nil {
		m.t.Fatalf("the incumbent: got the lock %t, %v", release != nil, err)
	}
	return release
}

func (m *moving) excludeEachOther() {
	m.t.Helper()
	l := m.lock()
	m.inVain()
	m.unlock(l)
	release := m.take()
	m.refused()
	if err := release(); err != nil {
		m.t.Fatal(err)
	}
	m.unlock(m.lock())
}
