package doctor

import (
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestDoctorOnRedis(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, "--appendonly", "yes")
	e := doctor(t, false, "redisson://"+s.Addr)
	e.no(warning)
	for _, check := range []string{"reach", "version", "eviction", "persistence", "replicas", "session limit", "clock", "rights", "open", "lock"} {
		e.want(check, ok, "", "")
	}
	for _, key := range s.Do("KEYS", "*").([]any) {
		if left := s.Do("PTTL", key.(string)).(int64); left == -1 {
			t.Errorf("the key %s stays forever", key)
		}
	}

	s.Do("HSET", "shared", "mode", "read", "id:1", "1")
	doctor(t, false, "redisson://"+s.Addr).want("read-write", warning, `"shared"`, "write=true")
	s.Do("HSET", "shared", "mode", "other")
	doctor(t, false, "redisson://"+s.Addr).no(warning)

	s.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	doctor(t, true, "redisson://"+s.Addr).want("eviction", fault, "allkeys-lru", "maxmemory-policy noeviction")
	doctor(t, false, "redisson://"+s.Addr+"?evict=allow").want("eviction", warning, "allkeys-lru", "maxmemory-policy noeviction")
	s.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	s.Do("CONFIG", "SET", "appendonly", "no")
	doctor(t, false, "redisson://"+s.Addr).want("persistence", warning, "forgets", "appendonly yes")
	s.Do("CONFIG", "SET", "maxclients", "12")
	doctor(t, false, "redisson://"+s.Addr).want("session limit", warning, "of 12 connections", "maxclients")
}

func TestDoctorOnRedisReplica(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, "--replicaof", "127.0.0.1 1")
	doctor(t, true, "redisson://"+s.Addr).want("read-only", fault, "replica", "the address of the primary")
}

func TestDoctorOnRedisClock(t *testing.T) {
	t.Parallel()
	s, clock := testenv.RedisClock(t)
	clock.Set(time.Minute)
	doctor(t, false, "redisson://"+s.Addr).want("clock", warning, "ahead of", "NTP")
	clock.Set(-time.Hour)
	doctor(t, false, "redisson://"+s.Addr).want("clock", warning, "behind", "NTP")
}

func TestDoctorOnRedisTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	s := testenv.RedisTLS(t, certs, "--tls-auth-clients", "no")
	url := "redisson://" + s.Addr + "?tls=true"
	doctor(t, false, url+"&tls_ca="+certs.CAFile).want("TLS", ok, "valid", "")
	doctor(t, true, url+"&tls_server_name=locks.example&tls_ca="+certs.CAFile).want("TLS name", fault, "for localhost, 127.0.0.1, and not for locks.example", "tls_server_name=")
	doctor(t, true, url).want("TLS", fault, "authority", "tls_ca=")
	doctor(t, true, "redisson://"+s.Addr).want("reach", fault, "", "tls=true")
}

// redlockNodes are three nodes with a user that has only the necessary rights.
type redlockNodes struct {
	t        *testing.T
	nodes    []*testenv.RedisServer
	clock    *testenv.Clock // of the last node
	password string
	url      string // without parameters
}

func newRedlockNodes(t *testing.T) *redlockNodes {
	last, clock := testenv.RedisClock(t, "--appendonly", "yes")
	n := &redlockNodes{t: t, clock: clock, password: testenv.Password(),
		nodes: []*testenv.RedisServer{testenv.Redis(t, "--appendonly", "yes"), testenv.Redis(t, "--appendonly", "yes"), last}}
	for i := range n.nodes {
		n.user(i, n.password, "")
	}
	n.url = "redlock://app:" + n.password + "@" + n.nodes[0].Addr + "," + n.nodes[1].Addr + "," + last.Addr
	return n
}

// user recreates the user of a node without one of its rights.
func (n *redlockNodes) user(node int, password, without string) {
	words := strings.Fields(drivertest.Recipe(n.t, "**Redis, `redlock://`**"))
	args := append([]string{"ACL", "SETUSER", "app", "reset", "on", ">" + password}, words[slices.Index(words, "resetkeys"):]...)
	n.nodes[node].Do(slices.DeleteFunc(args, func(r string) bool { return r == without })...)
}

func (n *redlockNodes) doctor(faults bool, url string, args ...string) examined {
	n.t.Helper()
	return doctor(n.t, faults, url, append(args, "--name", "lk:doctor")...)
}

// TestDoctorOnRedlock plants faults on one of three nodes.
func TestDoctorOnRedlock(t *testing.T) {
	t.Parallel()
	n := newRedlockNodes(t)
	durable, last := n.url+"?durable=true", n.nodes[2].Addr
	e := n.doctor(false, durable)
	e.no(warning)
	for _, node := range n.nodes {
		for _, check := range []string{"reach", "version", "eviction", "persistence", "replicas", "session limit", "clock", "rights"} {
			e.want(check, ok, node.Addr, "")
		}
	}
	e.want("lock", ok, "p50", "")
	n.clock.Set(time.Minute)
	n.doctor(false, durable).want("clock", warning, last+" is 1m0s ahead", "NTP")
	n.clock.Set(0)
	n.user(2, testenv.Password()+"other", "")
	n.doctor(true, durable).want("password", fault, last, "the correct user and password")
	n.user(2, n.password, "+pexpireat")
	n.doctor(true, durable).want("rights", fault, last+": locks: the user lacks +pexpireat", "ACL SETUSER app +pexpireat")
	n.user(2, n.password, "+info")
	n.doctor(true, durable).want("rights", fault, last+": locks: the user lacks +info", "ACL SETUSER app +info")
	n.user(2, n.password, "")
	n.nodes[2].Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	n.doctor(true, durable).want("eviction", fault, last, "maxmemory-policy noeviction")
	n.doctor(false, durable+"&evict=allow").want("eviction", warning, last, "maxmemory-policy noeviction")
	n.nodes[2].Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	n.nodes[2].Do("CONFIG", "SET", "maxclients", "12")
	n.doctor(false, durable).want("session limit", warning, last, "maxclients")
	n.nodes[2].Do("CONFIG", "SET", "maxclients", "10000")
	n.doctor(true, strings.Replace(durable, last, olderRedis(t, n.nodes[2]), 1)).want("version", fault, "Redis 6.0.9", "6.2 or newer")
}

// TestDoctorOnRedlockNodes uses nodes that lose their data, that are replicas,
// or that are down.
func TestDoctorOnRedlockNodes(t *testing.T) {
	t.Parallel()
	n := newRedlockNodes(t)
	durable, last := n.url+"?durable=true", n.nodes[2].Addr
	e := n.doctor(true, n.url+"?maxttl=1h", "--connect", "3s")
	e.want("restart", warning, last+" started", "or set a shorter maxttl=")
	e.want("persistence", ok, last+" needs no persistence", "")
	e.want("lock", fault, "cannot be locked", "")
	n.nodes[2].Do("CONFIG", "SET", "appendonly", "no")
	n.doctor(false, durable).want("persistence", warning, last+" keeps no append-only file, although durable=true", "remove durable=true")
	n.nodes[0].Do("REPLICAOF", "127.0.0.1", "1")
	e = n.doctor(true, durable)
	e.want("read-only", fault, n.nodes[0].Addr, "REPLICAOF NO ONE")
	e.want("rights", ok, last, "")
	n.nodes[0].Do("REPLICAOF", "NO", "ONE")
	n.nodes[2].Kill()
	n.doctor(false, durable).want("reach", warning, last, "is the server running")
	n.nodes[1].Kill()
	n.doctor(true, durable, "--connect", "3s").want("reach", fault, last, "is the server running")
}

// TestDoctorKnowsEachRight revokes the rights in docs/backends one by one.
func TestDoctorKnowsEachRight(t *testing.T) {
	t.Parallel()
	for scheme, rows := range map[string][]string{
		"redisson":     {"`Read`, `Write`", "`Permits`", "`Inspect`, `ForceUnlock`", "`List`", "`fair=true`", "`fence=redisson`"},
		"redis-string": nil,
	} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			recipe, parameters := "**Redis, `redisson://`**", "?fair=true&fence=redisson"
			if scheme == "redis-string" {
				recipe, parameters = "**Redis, `redlock://`**", "?durable=true"
			}
			words := strings.Fields(drivertest.Recipe(t, recipe))
			rights := words[slices.Index(words, "resetkeys"):]
			for _, row := range rows {
				rights = append(rights, drivertest.RecipeRow(t, row)...)
			}
			testDoctorKnowsEachRight(t, scheme, parameters, rights)
		})
	}
}

func testDoctorKnowsEachRight(t *testing.T, scheme, parameters string, rights []string) {
	s, password := testenv.Redis(t), testenv.Password()
	user := func(without string) string {
		args := []string{"ACL", "SETUSER", "app", "reset", "on", ">" + password}
		s.Do(append(args, slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == without })...)...)
		return scheme + "://app:" + password + "@" + s.Addr + parameters
	}
	e := doctor(t, false, user(""), "--name", "lk:doctor")
	for _, f := range e.Findings {
		if f.Check == "rights" && f.Level != ok {
			t.Errorf("with all rights: %+v", f)
		}
	}
	doctor(t, true, strings.Replace(user(""), password, testenv.PasswordMark+"wrong", 1)).want("password", fault, "WRONGPASS", "the correct user and password")
	for _, right := range rights {
		switch right {
		case "resetkeys", "resetchannels", "-@all", "+hello", "+auth", "+unsubscribe": // doctor does not check these
			continue
		}
		u, err := driver.ParseURL(user(right))
		if err != nil {
			t.Fatal(err)
		}
		x := &examination{url: u, name: "lk:doctor", connect: drivertest.HangGuard}
		examineRedis(t.Context(), x)
		found := slices.ContainsFunc(x.report.Findings, func(f finding) bool {
			return f.Check == "rights" && f.Level != ok && slices.Contains(strings.Fields(f.Cure), right)
		})
		if !found {
			t.Errorf("without %s: %+v", right, x.report.Findings)
		}
	}
}

// TestTrialsWithoutTheirKey tries rights with a key that expires immediately.
// Commands that create keys must not leave any.
func TestTrialsWithoutTheirKey(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, use := range redisUses {
		for _, line := range use.try {
			word, _, _ := strings.Cut(line, " ")
			if !slices.Contains(makes, word) {
				continue
			}
			trial := redisTrial{client, map[string]string{"$lock": word}, ""}
			trial.lacks(t.Context(), "DEL $lock", line, tryEnd)
			if left := s.Do("PTTL", word); left == int64(-1) {
				t.Errorf("%s leaves a key that stays forever", line)
			}
			trial.remove()
			if s.Do("EXISTS", word) != int64(0) {
				t.Errorf("the key of %s is not removed", line)
			}
		}
	}
}

var versionInHello = regexp.MustCompile(`(version\r\n\$)\d+\r\n[0-9.]+`)

func TestDoctorOnOldRedis(t *testing.T) {
	t.Parallel()
	doctor(t, true, "redisson://"+olderRedis(t, testenv.Redis(t))).want("version", fault, "Redis 6.0.9", "6.2 or newer")
}

// olderRedis returns the address of a proxy that changes the version that a
// server reports.
func olderRedis(t *testing.T, s *testenv.RedisServer) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends when the listener is closed
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", s.Addr)
			if err != nil {
				client.Close()
				continue
			}
			go func() { // ends when the client ends
				_, _ = io.Copy(server, client)
				server.Close()
			}()
			go func() { // ends when the server ends
				defer client.Close()
				for b := make([]byte, 64<<10); ; {
					n, err := server.Read(b)
					if _, err := client.Write(versionInHello.ReplaceAll(b[:n], []byte("${1}5\r\n6.0.9"))); err != nil {
						return
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}
