package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync/internal/testenv"
)

// fleetPair is what a fleet of six goes from and to, and by which runbook.
type fleetPair struct {
	name, runbook string
	from          func(t *testing.T) *oldPlace
	to            func(t *testing.T) *newPlace
}

var fleetPairs = []fleetPair{
	{"redis to etcd", sealsTitle, fromRedis("redisson", ""), toEtcd},
	{"single to cluster", sealsTitle, fromRedis("redisson", ""), toCluster},
	{"etcd to redis", sealsTitle, fromEtcd, toRedis},
	{"string locks to redisson", sealsTitle, fromRedis("redis-string", "SET NX PX"), toRedis},
	{"redis to postgres", gateTitle, fromRedis("redisson", ""), toPostgres},
}

// server is a backend that can be killed and started again, with what it has acknowledged.
type server interface{ Restart() }

// The users of an old backend: one of the programs that know it alone, and one of those in the migration.
const (
	oldUser   = "old"
	moverUser = "mover"
)

// oldPlace is an old backend.
type oldPlace struct {
	server
	url    string            // with the place of "user:password@" as %s
	secret string            // the password of both users
	cutOff func(user string) // for good
	speaks string            // how its incumbent does, see clerk
	tokens bool
}

func (o *oldPlace) as(user string) string { return fmt.Sprintf(o.url, user+":"+o.secret+"@") }

// newPlace is a new backend.
type newPlace struct {
	server
	url string
}

// durable are the arguments of a Redis that keeps what it has acknowledged.
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
		o := &oldPlace{server: s, url: scheme + "://%s" + s.Addr, secret: password, speaks: speaks, tokens: scheme == "redisson"}
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

// fromEtcd is an etcd whose users may do what docs/backends says.
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
	return &oldPlace{server: s, url: "etcd://%s" + s.Addr + "/" + prefix, secret: password, speaks: "Mutex", tokens: true,
		cutOff: func(user string) { must(dial("root").UserDelete(ctx, user)) }}
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
