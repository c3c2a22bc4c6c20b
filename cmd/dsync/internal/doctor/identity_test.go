package doctor

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	gozk "github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestDoctorOnStrangers examines a URL of two unrelated servers, on which two
// clients can hold one name.
func TestDoctorOnStrangers(t *testing.T) {
	t.Parallel()
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		a, b := testenv.Etcd(t).Addr, testenv.Etcd(t).Addr
		doctor(t, true, "etcd://"+a+","+b).want("identity", fault, a+" and "+b, "one cluster")
	})
	t.Run("zk", func(t *testing.T) {
		t.Parallel()
		a, b := testenv.ZooKeeper(t).Addr, testenv.ZooKeeper(t).Addr
		doctor(t, true, "zk://"+a+","+b).want("identity", fault, a+" and "+b, "server.N")
		doctor(t, false, "zk://"+a).no(warning)
	})
	t.Run("pglock", func(t *testing.T) {
		t.Parallel()
		a, b := testenv.Postgres(t), testenv.Postgres(t)
		url := "pglock://%s@%s,%s/postgres?sslmode=disable"
		doctor(t, true, fmt.Sprintf(url, "postgres", a.Addr, b.Addr)).want("identity", fault, a.Addr+" and "+b.Addr, "one primary")
	})
}

// addrs returns the addresses of servers.
func addrs[S any](servers []S) (all []string) {
	for _, s := range servers {
		all = append(all, reflect.ValueOf(s).Elem().FieldByName("Addr").String())
	}
	return all
}

// TestDoctorOnFriends examines URLs whose servers belong to one group.
func TestDoctorOnFriends(t *testing.T) {
	t.Parallel()
	for scheme, start := range map[string]func() []string{
		"zk":   func() []string { return addrs(testenv.ZooKeeperEnsemble(t, 3)) },
		"etcd": func() []string { return addrs(testenv.EtcdCluster(t, 3)) },
	} {
		doctor(t, false, scheme+"://"+strings.Join(start(), ",")).want("identity", ok, "3 servers", "")
	}
	t.Run("pglock", func(t *testing.T) {
		t.Parallel()
		primary := testenv.Postgres(t)
		admin, err := pgx.Connect(t.Context(), primary.URL("postgres")+"?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close(t.Context())
		if _, err := admin.Exec(t.Context(), "CREATE ROLE plain LOGIN; ALTER ROLE plain PASSWORD 'x'"); err != nil {
			t.Fatal(err)
		}
		replica := testenv.PostgresReplica(t, primary) // has the role from the start
		doctor(t, false, "pglock://plain@"+primary.Addr+","+replica.Addr+"/postgres?sslmode=disable").want("identity", ok, "2 servers", "")
		twice := "localhost" + primary.Addr[strings.LastIndex(primary.Addr, ":"):]
		doctor(t, false, "pglock://plain@"+primary.Addr+","+twice+"/postgres?sslmode=disable").want("identity", ok, "2 servers", "")
	})
}

func TestDoctorOnStrangersOfRedis(t *testing.T) {
	t.Parallel()
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		a, b := testenv.RedisCluster(t, 3, 0), testenv.RedisCluster(t, 3, 0)
		doctor(t, false, "redisson://"+strings.Join(a.Addrs(), ",")+"?mode=cluster").want("identity", ok, "3 servers", "")
		doctor(t, true, "redisson://"+a.Addrs()[0]+","+b.Addrs()[0]+"?mode=cluster").want("identity", fault, "one cluster", "CLUSTER NODES")
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		a, b := testenv.RedisSentinel(t, 0), testenv.RedisSentinel(t, 0)
		url := "redisson://%s?mode=sentinel&master=" + a.Master
		doctor(t, false, fmt.Sprintf(url, strings.Join(a.SentinelAddrs(), ","))).want("identity", ok, "one primary", "")
		doctor(t, true, fmt.Sprintf(url, a.SentinelAddrs()[0]+","+b.SentinelAddrs()[0])).want("identity", fault, "one primary", "sentinels")
	})
}

// TestDoctorOnNodesOfZooKeeper measures a session and a counter by the walk and
// by the dump command.
func TestDoctorOnNodesOfZooKeeper(t *testing.T) {
	t.Parallel()
	for _, words := range []string{"srvr", "srvr,dump"} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			s := testenv.ZooKeeper(t, "4lw.commands.whitelist="+words)
			c, _, err := gozk.Connect([]string{s.Addr}, drivertest.HangGuard, gozk.WithLogInfo(false))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			create := func(node string, flags int32) {
				t.Helper()
				if _, err := c.Create(node, nil, flags, gozk.WorldACL(gozk.PermAll)); err != nil {
					t.Fatal(err)
				}
			}
			create("/app", 0)
			create("/app/x", 0)
			long := strings.Repeat("n", 200)
			for range 30 {
				create("/app/x/"+long, gozk.FlagEphemeralSequential)
			}
			for range 15 {
				create("/app/y", 0)
				if err := c.Delete("/app/y", -1); err != nil {
					t.Fatal(err)
				}
			}
			e := doctor(t, false, "zk://"+s.Addr+"/app")
			e.want("session size", ok, fmt.Sprintf("%.1f KiB", float64(30*(len("/app/x/")+200+10+4))/1024), "")
			e.want("counter", ok, "no name has had more than 30 nodes", "")
			doctor(t, false, "zk://"+s.Addr+"/app/y/none").want("counter", ok, "", "")
		})
	}
}
