package doctor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// TestDoctorJudges judges server descriptions that test servers cannot easily
// produce.
func TestDoctorJudges(t *testing.T) {
	redis := func(url string, info map[string]string, check func(*redisServer)) func(*examination) {
		return func(x *examination) {
			x.url, _ = driver.ParseURL(url)
			check(&redisServer{x: x, address: "h", info: info})
		}
	}
	replicas := func(s *redisServer) { s.replicas(t.Context()) }
	etcd := func(version string, change func(*clientv3.StatusResponse)) func(*examination) {
		return func(x *examination) {
			status := pb.StatusResponse{Version: version, Leader: 1}
			change((*clientv3.StatusResponse)(&status))
			x.etcdStatus("h", (*clientv3.StatusResponse)(&status))
		}
	}
	as := func(*clientv3.StatusResponse) {}
	zk := func(text string, err error) func(*examination) {
		return func(x *examination) { x.zkAnswer("h", text, err) }
	}
	postgres := func(facts map[string]string) func(*examination) {
		return func(x *examination) {
			s := &postgresServer{x: x, host: "h", user: "u"}
			s.version(facts)
			s.state(facts)
			s.limits(facts)
		}
	}
	login := func(code string) func(*examination) {
		return func(x *examination) {
			x.postgresLogin(&pgconn.Config{Host: "h", Port: 5432, User: "u", Database: "d"}, &pgconn.PgError{Code: code, Message: "refused"})
		}
	}
	nodes := func(bytes int, next uint32) func(*examination) {
		return func(x *examination) {
			x.zkJudge(&zkTree{sessions: map[uint64]int{0x10: 5, 0x1f: bytes}, counters: map[string]uint32{"/a": 1, "/b": next}})
		}
	}
	for i, test := range []struct {
		judge      func(*examination)
		check      string
		level      level
		text, cure string
	}{
		{redis("redisson://h", map[string]string{"connected_slaves": "0"}, replicas), "replicas", ok, "0 replicas", ""},
		{redis("redisson://h", map[string]string{"connected_slaves": "1"}, replicas), "replicas", warning, "1 replica:", "waitreplicas=1"},
		{redis("redisson://h?waitreplicas=1", map[string]string{"connected_slaves": "1"}, replicas), "replicas", ok, "1 replica", ""},
		{redis("redisson://h?waitreplicas=2", map[string]string{"connected_slaves": "1"}, replicas), "replicas", fault, "waitreplicas=2", "lower waitreplicas="},
		{redis("redlock://h", map[string]string{"connected_slaves": "1"}, replicas), "replicas", warning, "1 replica:", "disable failover"},
		{redis("redisson://h", map[string]string{"maxclients": "10", "connected_clients": "9"}, func(s *redisServer) { s.connections(t.Context()) }),
			"session limit", fault, "no connection is left", "maxclients"},
		{etcd("3.5.13", as), "version", ok, "3.5.13", ""},
		{etcd("3.4.30", as), "version", warning, "3.4.30", "3.5.13"},
		{etcd("3.3.27", as), "version", fault, "oldest supported version is 3.4", "3.5.13"},
		{etcd("3.5.13", func(s *clientv3.StatusResponse) { s.Leader = 0 }), "leader", fault, "no leader", "a majority"},
		{etcd("3.5.13", func(s *clientv3.StatusResponse) { s.IsLearner = true }), "read-only", warning, "learner", "promote"},
		{etcd("3.5.13", func(s *clientv3.StatusResponse) { s.Errors = []string{"NOSPACE"} }), "alarm", fault, "NOSPACE", "defragment"},
		{func(x *examination) { x.etcdNumber(1) }, "members", note, "one server", "three"},
		{func(x *examination) { x.etcdNumber(4) }, "members", warning, "4 members", "odd"},
		{func(x *examination) { x.etcdNumber(5) }, "members", ok, "2 of them", ""},
		{zk("Zookeeper version: 3.8.0-5, built\nMode: follower\n", nil), "members", ok, "follower", ""},
		{zk("Zookeeper version: 3.8.0-5, built\nMode: standalone\n", nil), "members", note, "only server", "three"},
		{zk("Zookeeper version: 3.4.14-4c25d, built\nMode: leader\n", nil), "version", fault, "oldest supported version is 3.5", "3.5 or newer"},
		{zk("This ZooKeeper instance is not currently serving requests\n", nil), "leader", fault, "cannot reach a majority", "a majority"},
		{zk("", errors.New("closed")), "version", note, "does not report", "whitelist"},
		{nodes(1000, 1000), "session size", ok, "1.0 KiB", ""},
		{nodes(1<<20, 5), "session size", warning, "0x1f has ephemeral nodes with 1.0 MiB", "jute.maxbuffer"},
		{nodes(2<<20, 5), "session size", fault, "0x1f has ephemeral nodes with 2.0 MiB", "jute.maxbuffer"},
		{nodes(1000, 1<<30), "counter", warning, "/b has had 1073741824 nodes", "deleteall /b"},
		{nodes(1000, 1<<30-1), "counter", ok, "1073741823", ""},
		{postgres(map[string]string{"version": "130011", "text": "13.11"}), "version", fault, "PostgreSQL 13.11", "14 or newer"},
		{postgres(map[string]string{"replicas": "2"}), "replicas", warning, "2 replicas", "failover"},
		{postgres(map[string]string{"max": "97", "used": "90", "role max": "-1"}), "session limit", warning, "90 of 97", "max_connections"},
		{postgres(map[string]string{"max": "97", "used": "9", "database max": "5", "database used": "5"}), "session limit", fault, "5 of 5", "ALTER DATABASE"},
		{login("28P01"), "password", fault, "28P01", "the correct user and password"},
		{login("28000"), "password", fault, "28000", "pg_hba.conf"},
		{login("3D000"), "reach", fault, "3D000", "CREATE DATABASE"},
		{login("57P03"), "reach", fault, "57P03", "see the message"},
	} {
		t.Run(fmt.Sprint(i, " ", test.check, " ", test.level), func(t *testing.T) {
			x := &examination{}
			test.judge(x)
			examined{t, x.report}.want(test.check, test.level, test.text, test.cure)
		})
	}
}
