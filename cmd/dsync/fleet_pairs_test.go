package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync/internal/testenv"
)

// fleetPairs are the pairs of backends between which a fleet of six moves.
var fleetPairs = []struct {
	name         string
	gated, short bool
	from         func(t *testing.T) *oldPlace
	to           func(t *testing.T) *newPlace
}{
	{"redis to etcd", false, true, fromRedis("redisson", ""), toEtcd},
	{"etcd to redis", false, false, fromEtcd, toRedis},
	{"redis to postgres", true, true, fromRedis("redisson", ""), toPostgres},
	{"string locks to redisson", false, false, fromRedis("redis-string", "SET NX PX"), toRedis},
	{"single to cluster", false, false, fromRedis("redisson", ""), toCluster},
	{"zookeeper to etcd", false, false, fromZooKeeper, toEtcd},
}

// server is a backend that can be killed and restarted without losing
// acknowledged data.
type server interface{ Restart() }

// The users of an old backend: a program that uses only that backend, and a
// program in the migration.
const (
	oldUser   = "old"
	moverUser = "mover"
)

// oldPlace is an old backend.
type oldPlace struct {
	server
	url      string            // with USER@ in place of "user:password@"
	secret   string            // the password of both users
	cutOff   func(user string) // permanently
	speaks   string            // kind of its incumbent, see clerk
	tokens   bool
	stays    bool // names cannot come back
	unlisted bool // it cannot list names
}

func (o *oldPlace) as(user string) string {
	return strings.Replace(o.url, "USER@", user+":"+o.secret+"@", 1)
}

// newPlace is a new backend.
type newPlace struct {
	server
	url string
}

// durable holds the arguments of a Redis server that does not lose acknowledged
// data.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

func fromRedis(scheme, speaks string) func(*testing.T) *oldPlace {
	return func(t *testing.T) *oldPlace {
		password, users := testenv.Password(), "user default on nopass ~* &* +@all\n"
		for _, user := range []string{oldUser, moverUser} {
			users += fmt.Sprintf("user %s on >%s ~* &* +@all\n", user, password)
		}
		file := filepath.Join(t.TempDir(), "users.acl")
		if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
			t.Fatal(err)
		}
		s := testenv.Redis(t, append([]string{"--aclfile", file}, durable...)...)
		o := &oldPlace{server: s, url: scheme + "://USER@" + s.Addr, secret: password, speaks: speaks, tokens: scheme == "redisson", unlisted: scheme != "redisson"}
		if scheme == "redis-string" {
			o.url += "?durable=true"
		}
		o.cutOff = func(user string) {
			s.Do("ACL", "SETUSER", user, "off")
			s.Do("ACL", "SAVE")
			s.Do("CLIENT", "KILL", "USER", user)
		}
		return o
	}
}

// fromEtcd is an etcd whose users have the rights listed in docs/backends.
func fromEtcd(t *testing.T) *oldPlace {
	s, password := testenv.Etcd(t, "--bcrypt-cost", "4"), testenv.Password()
	dial := func(user string) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: user, Password: password, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const prefix, role = "locks/", "locks"
	c, ctx := dial(""), context.Background()
	must(c.RoleAdd(ctx, "root"))
	must(c.RoleAdd(ctx, role))
	must(c.RoleGrantPermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite)))
	for user, role := range map[string]string{"root": "root", oldUser: role, moverUser: role} {
		must(c.UserAdd(ctx, user, password))
		must(c.UserGrantRole(ctx, user, role))
	}
	must(c.AuthEnable(ctx))
	return &oldPlace{server: s, url: "etcd://USER@" + s.Addr + "/" + prefix, secret: password, speaks: "Mutex", tokens: true, stays: true,
		cutOff: func(user string) { must(dial("root").UserDelete(ctx, user)) }}
}

// mortal is a server that is not started again after it was shut down.
type mortal struct {
	*testenv.ZooKeeperServer
	dead atomic.Bool
}

func (m *mortal) Restart() {
	if !m.dead.Load() {
		m.ZooKeeperServer.Restart()
	}
}

// fromZooKeeper is a ZooKeeper without users. The tests shut it down to
// disconnect programs.
func fromZooKeeper(t *testing.T) *oldPlace {
	s := &mortal{ZooKeeperServer: testenv.ZooKeeper(t)}
	return &oldPlace{server: s, url: "zk://" + s.Addr + "/locks", tokens: true, cutOff: func(string) {
		s.dead.Store(true)
		s.Kill()
	}}
}

func toEtcd(t *testing.T) *newPlace {
	s := testenv.Etcd(t)
	return &newPlace{s, "etcd://" + s.Addr + "/locks/"}
}

func toRedis(t *testing.T) *newPlace {
	s := testenv.Redis(t, durable...)
	return &newPlace{s, "redisson://" + s.Addr}
}

func toCluster(t *testing.T) *newPlace {
	c := testenv.RedisCluster(t, 3, 0, durable...)
	return &newPlace{c.Owner("b"), "redisson://" + strings.Join(c.Addrs(), ",") + "?mode=cluster"}
}

func toPostgres(t *testing.T) *newPlace {
	s := testenv.Postgres(t)
	return &newPlace{s, s.URL("pglock")}
}
