package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Sentinel is a private Redis primary with replicas, watched by sentinels.
type Sentinel struct {
	// Master is the name under which the sentinels know the primary.
	Master string
	// Nodes are the servers that hold data; at first the primary is Nodes[0].
	Nodes []*RedisServer
	// Sentinels are three; two of them must agree that a primary is down.
	Sentinels []*RedisServer

	tb testing.TB
}

// RedisSentinel starts a primary with replicas and three sentinels, and returns when all sentinels know each other and the replicas.
// They take a server that has not answered for two seconds as down. Args are passed to the servers that hold data; one with
// "--requirepass" needs "--masterauth" as well.
func RedisSentinel(tb testing.TB, replicas int, args ...string) *Sentinel {
	tb.Helper()
	return redisSentinel(tb, []host{loopback}, replicas, args)
}

// RedisSentinelOn is RedisSentinel with a sentinel on each of the first three hosts, and the primary and the replicas on the first ones.
func RedisSentinelOn(h *Hosts, replicas int, args ...string) *Sentinel {
	h.tb.Helper()
	return redisSentinel(h.tb, h.hosts, replicas, args)
}

func redisSentinel(tb testing.TB, hosts []host, replicas int, args []string) *Sentinel {
	tb.Helper()
	s := &Sentinel{Master: "main", tb: tb}
	primary := redisAt(tb, hosts[0], args)
	s.Nodes = append(s.Nodes, primary)
	for i := range replicas {
		s.Nodes = append(s.Nodes, redisAt(tb, hosts[(i+1)%len(hosts)],
			append([]string{"--replicaof", strings.Replace(primary.Addr, ":", " ", 1)}, args...)))
	}
	// Sentinels learn of replicas when they ask the primary, which they do at once and then seldom.
	Eventually(tb, func() bool {
		return primary.info("INFO", "replication")["connected_slaves"] == strconv.Itoa(replicas) &&
			!slices.ContainsFunc(s.Nodes[1:], func(node *RedisServer) bool { return !node.replicates() })
	}, "the replicas follow the primary")
	for i := range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(tb, hosts[i%len(hosts)], s.Master, primary))
	}
	for _, sentinel := range s.Sentinels {
		Eventually(tb, func() bool { return s.informed(sentinel, replicas) }, "the sentinel knows the replicas and the others")
	}
	return s
}

// Primary returns the server that the sentinels name as the primary, in the eyes of the first of them that answers.
func (s *Sentinel) Primary() *RedisServer {
	s.tb.Helper()
	for _, sentinel := range s.Sentinels {
		if primary := s.named(sentinel); primary != nil {
			return primary
		}
	}
	s.tb.Fatal("no sentinel knows the primary")
	return nil
}

// AwaitPrimary waits until all sentinels name one server that is a primary. Soon after a fail-over one of them may not know of it yet,
// and turn the new primary into a replica once more, until the others put that right.
func (s *Sentinel) AwaitPrimary() {
	s.tb.Helper()
	Eventually(s.tb, func() bool {
		primary := s.named(s.Sentinels[0])
		if primary == nil || primary.info("INFO", "replication")["role"] != "master" {
			return false
		}
		return !slices.ContainsFunc(s.Sentinels, func(sentinel *RedisServer) bool { return s.named(sentinel) != primary })
	}, "the sentinels name one primary")
}

// named returns the server that a sentinel names as the primary, or nil if it does not answer.
func (s *Sentinel) named(sentinel *RedisServer) *RedisServer {
	answer, err := sentinel.Try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Master)
	if err != nil {
		return nil
	}
	addr := net.JoinHostPort(answer.([]any)[0].(string), answer.([]any)[1].(string))
	if i := slices.IndexFunc(s.Nodes, func(node *RedisServer) bool { return node.Addr == addr }); i >= 0 {
		return s.Nodes[i]
	}
	s.tb.Errorf("%s names %s, which is none of the servers", sentinel.Addr, addr)
	return nil
}

// SentinelAddrs returns the addresses of the sentinels.
func (s *Sentinel) SentinelAddrs() []string {
	var addrs []string
	for _, sentinel := range s.Sentinels {
		addrs = append(addrs, sentinel.Addr)
	}
	return addrs
}

func startSentinel(tb testing.TB, at host, master string, primary *RedisServer) *RedisServer {
	tb.Helper()
	port := freePort(tb)
	config := filepath.Join(tb.TempDir(), "sentinel.conf") // which the sentinel writes its state into
	text := fmt.Sprintf(`port %d
bind %s
protected-mode no
sentinel monitor %[3]s %s 2
sentinel down-after-milliseconds %[3]s 2000
sentinel failover-timeout %[3]s 5000
`, port, at.ip, master, strings.Replace(primary.Addr, ":", " ", 1))
	if primary.password != "" {
		text += fmt.Sprintf("sentinel auth-pass %s %s\n", master, primary.password)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	s := newRedis(tb, at, "redis-sentinel", port, []string{config, "--sentinel"})
	s.ready = func(ctx context.Context) error {
		if err := s.ping(ctx); err != nil {
			return err
		}
		// Meet soon, and do not refuse to act for half a minute because this machine was busy for two seconds. Servers
		// before 7.0 do not have the command and take longer.
		_, err := s.call(ctx, "SENTINEL", "DEBUG", "PUBLISH-PERIOD", "200", "INFO-PERIOD", "500", "TILT-PERIOD", "1000")
		if errors.As(err, new(RedisError)) {
			return nil
		}
		return err
	}
	s.launch()
	return s
}

// informed reports whether a sentinel could carry out a fail-over.
func (s *Sentinel) informed(sentinel *RedisServer, replicas int) bool {
	s.tb.Helper()
	master := pairs(sentinel.Do("SENTINEL", "MASTER", s.Master))
	if master["flags"] != "master" || master["num-other-sentinels"] != "2" || master["num-slaves"] != strconv.Itoa(replicas) {
		return false
	}
	for _, replica := range sentinel.Do("SENTINEL", "REPLICAS", s.Master).([]any) {
		if state := pairs(replica); state["flags"] != "slave" || state["master-link-status"] != "ok" {
			return false
		}
	}
	for _, other := range sentinel.Do("SENTINEL", "SENTINELS", s.Master).([]any) {
		if pairs(other)["flags"] != "sentinel" {
			return false
		}
	}
	return true
}

// pairs decodes a list of names and values.
func pairs(answer any) map[string]string {
	m := make(map[string]string)
	for pair := range slices.Chunk(answer.([]any), 2) {
		m[pair[0].(string)] = pair[1].(string)
	}
	return m
}
