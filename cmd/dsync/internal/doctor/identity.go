package doctor

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/servers"
)

// identity is a server's description of the group that it belongs to.
type identity struct{ host, group string }

// sameGroup adds a finding about the servers of one URL. Unrelated servers
// grant the same lock to several clients.
func (x *examination) sameGroup(what string, servers []identity, cure, see string) {
	if len(servers) < 2 {
		return
	}
	first := servers[0]
	other := slices.IndexFunc(servers, func(s identity) bool { return s.group != first.group })
	if other < 0 {
		x.good("identity", "%s belong to one %s", cli.Plural(len(servers), "server"), what)
		return
	}
	x.bad(fault, "identity", fmt.Sprintf("%s and %s do not belong to one %s: both grant the same lock", first.host, servers[other].host, what), cure, see)
}

// etcdGroups compares the clusters of the endpoints.
func (x *examination) etcdGroups(statuses map[string]*clientv3.StatusResponse, endpoints []string) {
	var servers []identity
	for _, endpoint := range endpoints {
		if status := statuses[endpoint]; status != nil && status.Header != nil {
			servers = append(servers, identity{endpoint, fmt.Sprintf("%x", status.Header.ClusterId)})
		}
	}
	x.sameGroup("cluster", servers, "put only members of one cluster in the URL: see etcdctl member list", seeEtcd)
}

// zkGroups finds out whether the hosts belong to the same ensemble. The servers
// of an ensemble share its sessions, so a session of the first host can
// continue on any other host.
func (x *examination) zkGroups(ctx context.Context, hosts []string, config *tls.Config) {
	if len(hosts) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	var servers []identity
	session := make([]byte, 8+zkPasswordSize) // zero: a new session
	var owner net.Conn
	for _, host := range hosts {
		conn, granted, err := zkHandshake(ctx, host, config, session)
		switch {
		case err != nil:
			continue // other checks explain it
		case granted == nil:
			conn.Close()
			servers = append(servers, identity{host, host})
			continue
		case owner != nil:
			owner.Close() // the session has moved
		}
		session, owner = granted, conn
		servers = append(servers, identity{host, "the first one's"})
	}
	if owner != nil {
		const request, closeSession = 1, -11
		b := binary.BigEndian.AppendUint32(nil, request)
		if zkSend(owner, binary.BigEndian.AppendUint32(b, uint32(1<<32+closeSession))) == nil {
			_, _ = io.Copy(io.Discard, owner) // the server closes the connection when the session has ended
		}
		owner.Close()
	}
	x.sameGroup("ensemble", servers, "put only servers of one ensemble in the URL, and list all of them as server.N in each zoo.cfg "+
		"(a server with localSessionsEnabled=true also triggers this finding)", seeZooKeeper)
}

const zkPasswordSize = 16

func zkSend(conn net.Conn, b []byte) error {
	_, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

// zkHandshake resumes a session on a host by its number and password. It
// returns the session, or nil if the host does not know it.
func zkHandshake(ctx context.Context, host string, config *tls.Config, session []byte) (conn net.Conn, granted []byte, err error) {
	if conn, err = servers.Dial(ctx, host, config); err != nil {
		return nil, nil, err
	}
	if until, limited := ctx.Deadline(); limited {
		err = conn.SetDeadline(until)
	}
	const timeout = 10 * time.Second
	request := make([]byte, 4+8) // version, last transaction
	request = binary.BigEndian.AppendUint32(request, uint32(timeout.Milliseconds()))
	request = append(request, session[:8]...)
	request = binary.BigEndian.AppendUint32(request, zkPasswordSize)
	request = append(append(request, session[8:]...), 0) // not read-only
	if err == nil {
		err = zkSend(conn, request)
	}
	// Length, version, timeout, session, length of the password, password.
	answer := make([]byte, 4+4+4+8+4+zkPasswordSize)
	if err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	if err == nil && binary.BigEndian.Uint32(answer[20:]) != zkPasswordSize {
		err = errors.New("the answer does not come from ZooKeeper")
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	if granted = slices.Concat(answer[12:20], answer[24:]); binary.BigEndian.Uint32(answer[8:]) == 0 {
		granted = nil
	}
	return conn, granted, nil
}

// postgresGroups compares the servers of a URL with several hosts.
func (x *examination) postgresGroups(ctx context.Context, config *pgconn.Config) {
	var servers, primaries []identity
	for _, c := range eachHost(config) {
		host := fmt.Sprintf("%s:%d", c.Host, c.Port)
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, x.connect)
			defer cancel()
			conn, err := pgconn.ConnectConfig(ctx, c)
			if err != nil {
				return err
			}
			s := &postgresServer{x: x, conn: conn, host: host}
			rows, err := s.query(ctx, "SELECT system_identifier, pg_is_in_recovery(), pg_postmaster_start_time() FROM pg_control_system()")
			if err == nil && len(rows) == 1 {
				servers = append(servers, identity{host, string(rows[0][0])})
				if string(rows[0][1]) == "f" {
					primaries = append(primaries, identity{host, string(rows[0][2])})
				}
			}
			return errors.Join(err, conn.Close(ctx))
		}()
		if err != nil {
			x.bad(note, "identity", fmt.Sprintf("%s cannot be compared with the other hosts: %v", host, err), "", seePostgres)
		}
	}
	const cure = "put only the hosts of one primary and its standbys in the URL"
	x.sameGroup("database cluster", servers, cure, seePostgres)
	if !x.hasFault("identity") && len(primaries) > 1 {
		x.sameGroup("running server, and both are primaries", primaries, cure+"; stop the wrong primary", seePostgres)
	}
}

// eachHost splits a configuration with several hosts into one configuration for
// each host. For a single host it returns nil.
func eachHost(config *pgconn.Config) (each []*pgconn.Config) {
	tries := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	for _, try := range tries {
		if i := slices.IndexFunc(each, func(c *pgconn.Config) bool { return c.Host == try.Host && c.Port == try.Port }); i >= 0 {
			each[i].Fallbacks = append(each[i].Fallbacks, try) // with TLS, and without
			continue
		}
		c := config.Copy()
		c.Host, c.Port, c.TLSConfig, c.Fallbacks, c.ValidateConnect = try.Host, try.Port, try.TLSConfig, nil, nil
		each = append(each, c)
	}
	if len(each) < 2 {
		return nil
	}
	return each
}

// sentinelGroups compares the primaries that the sentinels of a URL report.
func (x *examination) sentinelGroups(ctx context.Context, option rueidis.ClientOption, hosts []string) {
	master := option.Sentinel.MasterSet
	option.Username, option.Password, option.SelectDB = option.Sentinel.Username, option.Sentinel.Password, 0
	option.Sentinel = rueidis.SentinelOption{}
	x.redisGroups(ctx, option, hosts, "primary", "put only sentinels in the URL that watch the same primary under the name in master=", func(c rueidis.Client, ctx context.Context) (string, error) {
		fields, err := c.Do(ctx, c.B().Arbitrary("SENTINEL", "MASTER", master).Build()).AsStrMap()
		return fields["runid"], err
	})
}

// clusterGroups compares the clusters of the nodes of a URL. A node belongs to
// the first node's cluster if the first node knows it.
func (x *examination) clusterGroups(ctx context.Context, option rueidis.ClientOption, hosts []string) {
	known := ""
	x.redisGroups(ctx, option, hosts, "cluster", "put only nodes of one cluster in the URL: see CLUSTER NODES", func(c rueidis.Client, ctx context.Context) (string, error) {
		id, err := c.Do(ctx, c.B().ClusterMyid().Build()).ToString()
		if err != nil {
			return "", err
		}
		if known == "" {
			if known, err = c.Do(ctx, c.B().ClusterNodes().Build()).ToString(); err != nil {
				return "", err
			}
		}
		if strings.Contains(known, id) {
			return "the first one's", nil
		}
		return id, nil
	})
}

func (x *examination) redisGroups(ctx context.Context, option rueidis.ClientOption, hosts []string, what, cure string,
	group func(rueidis.Client, context.Context) (string, error)) {
	var servers []identity
	for _, host := range hosts {
		ctx, cancel := context.WithTimeout(ctx, x.connect)
		option.InitAddress, option.ForceSingleClient = []string{host}, true
		if client, err := rueidis.NewClient(option); err == nil {
			if g, err := group(client, ctx); err == nil && g != "" {
				servers = append(servers, identity{host, g})
			}
			client.Close()
		}
		cancel()
	}
	x.sameGroup(what, servers, cure, x.seeRedis())
}
