package stress

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync/internal/testenv"
)

// etcdBed returns a bed of one etcd server or of a cluster.
func etcdBed(tb testing.TB, servers ...*testenv.EtcdServer) *bed {
	b := &bed{name: "etcd", links: true}
	if len(servers) > 1 {
		b.name = fmt.Sprint("etcd ×", len(servers))
		// a frozen leader that continues ends leases by its state from before
		// the freeze
		b.ends = "server-freeze"
	}
	for _, s := range servers {
		b.nodes = append(b.nodes, s)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: b.addrs(), Logger: zap.NewNop(), DialTimeout: patience})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	b.url = func(addrs []string) string { return "etcd://" + strings.Join(addrs, ",") + "?ttl=" + TTL.String() }
	e := etcdAdmin{tb: tb, client: client, servers: servers}
	b.left, b.leader, b.newLeader, b.endSessions = e.left, e.leader, e.newLeader, e.revoke
	b.strain = e.strain()
	b.recover = 30 * time.Second // a new leader restarts the TTL of all leases
	g, front := etcdGate(tb, b.addrs())
	b.refusals, b.refused, b.front = []refusal{g.refusal(answersOfEtcd)}, g.count.Load, front
	return b.ask(tb)
}

// etcdOneAddressBed returns a bed of a cluster behind one address.
func etcdOneAddressBed(tb testing.TB) *bed {
	servers := testenv.EtcdCluster(tb, 3)
	b := etcdBed(tb, servers...)
	b.name += " behind one address"
	b.ends = "one-address" // as server-freeze
	return b.oneAddress(tb, b.nodes)
}

// etcdApartBed returns a bed of a cluster whose servers have separate hosts.
func etcdApartBed(tb testing.TB) *bed {
	hosts := testenv.NewHosts(tb, 3)
	return etcdBed(tb, testenv.EtcdClusterOn(hosts)...).apart(hosts)
}

// etcdAdmin queries servers without the driver.
type etcdAdmin struct {
	tb      testing.TB
	client  *clientv3.Client
	servers []*testenv.EtcdServer
}

func (e etcdAdmin) left(names []string) (left []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, name := range names {
		answer, err := e.client.Get(ctx, name, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return []string{err.Error()}
		}
		for _, kv := range answer.Kvs {
			left = append(left, "key "+string(kv.Key))
		}
	}
	leases, err := e.client.Leases(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for range leases.Leases {
		left = append(left, "lease")
	}
	return left
}

// leader returns the number of the server that considers itself the leader, or
// -1 if there is none.
func (e etcdAdmin) leader() int {
	for i, s := range e.servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		status, err := e.client.Status(ctx, s.Addr)
		cancel()
		if err == nil && status.Leader == status.Header.MemberId {
			return i
		}
	}
	return -1
}

func (e etcdAdmin) id(i int) uint64 {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	status, err := e.client.Status(ctx, e.servers[i].Addr)
	if err != nil {
		e.tb.Fatal(err)
	}
	return status.Header.MemberId
}

func (e etcdAdmin) newLeader() {
	old := e.leader()
	leader, err := clientv3.New(clientv3.Config{Endpoints: []string{e.servers[old].Addr}, Logger: zap.NewNop(), DialTimeout: patience})
	if err != nil {
		e.tb.Fatal(err)
	}
	defer leader.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := leader.MoveLeader(ctx, e.id((old+1)%len(e.servers))); err != nil {
		e.tb.Fatal(err)
	}
	testenv.Eventually(e.tb, func() bool { now := e.leader(); return now >= 0 && now != old }, "another node leads")
}

// strain reports only the number of requests.
func (e etcdAdmin) strain() func() strain {
	var before int64
	return func() strain {
		var now strain
		for _, s := range e.servers {
			for _, n := range s.Requests() {
				now.requests += n
			}
		}
		before, now.requests = now.requests, now.requests-before
		return now
	}
}

// revoke revokes every second lease and returns their number.
func (e etcdAdmin) revoke() (n int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	leases, err := e.client.Leases(ctx)
	if err != nil {
		e.tb.Fatal(err)
	}
	for i, l := range leases.Leases {
		if i%2 == 1 {
			continue
		}
		if _, err := e.client.Revoke(ctx, l.ID); err == nil { // on an error, the lease has just ended
			n++
		}
	}
	return n
}
