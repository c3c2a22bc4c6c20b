package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// Storage is what servers do with what they write. The zero value keeps nothing, and so do all servers that are started without one.
type Storage struct {
	// Disk has servers keep their data below [os.TempDir], which has to be on a disk, and flush them as their packages do. Redis, which
	// has snapshots alone unless it is told otherwise, writes a log, and flushes that as its redis.conf says: once a second.
	Disk bool
}

// Redis starts a redis-server as the function Redis does.
func (s Storage) Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	if s.Disk {
		args = append([]string{"--dir", s.dir(tb), "--appendonly", "yes", "--appendfsync", "everysec"}, args...)
	}
	return redisAt(tb, loopback, args)
}

// Etcd starts an etcd as the function Etcd does.
func (s Storage) Etcd(tb testing.TB, args ...string) *EtcdServer {
	tb.Helper()
	if s.Disk {
		args = append([]string{"--unsafe-no-fsync=false", "--data-dir", filepath.Join(s.dir(tb), "data")}, args...)
	}
	return startEtcd(tb, loopback, currentEtcd(tb), nil, args)
}

// ZooKeeper starts a ZooKeeper as the function ZooKeeper does.
func (s Storage) ZooKeeper(tb testing.TB, settings ...string) *ZooKeeperServer {
	tb.Helper()
	if s.Disk {
		settings = append([]string{"-Dzookeeper.forceSync=yes", "preAllocSize=65536", "dataDir=" + s.dir(tb)}, settings...)
	}
	return startZooKeeper(tb, loopback, settings)
}

// Postgres starts a PostgreSQL as the function Postgres does.
func (s Storage) Postgres(tb testing.TB, settings ...string) *PostgresServer {
	tb.Helper()
	if s.Disk {
		s.check(tb)
		settings = append([]string{"fsync=on", "full_page_writes=on", "min_wal_size=80MB", "max_wal_size=1GB"}, settings...)
	}
	server := newPostgres(tb, settings)
	server.launchPostgres()
	return server
}

// dir makes the directory of a server.
func (s Storage) dir(tb testing.TB) string {
	tb.Helper()
	s.check(tb)
	dir, err := serverDir(tb, os.TempDir(), "dsync-server-")
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// check fails the test where the directories of servers are not on a disk.
func (Storage) check(tb testing.TB) {
	tb.Helper()
	if inMemory(os.TempDir()) {
		tb.Fatalf("%s is in memory: TMPDIR has to name a directory on a disk", os.TempDir())
	}
}
