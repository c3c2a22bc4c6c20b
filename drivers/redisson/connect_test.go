package redisson

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestConnect(t *testing.T) {
	t.Parallel()
	password := testenv.Password()
	single := testenv.Redis(t, "--requirepass", password)
	guarded := testenv.RedisSentinel(t, 0)
	cluster := testenv.RedisCluster(t, 3, 0)
	var sentinels, nodes []string
	for _, s := range guarded.Sentinels {
		sentinels = append(sentinels, s.Addr)
	}
	for _, s := range cluster.Nodes {
		nodes = append(nodes, s.Addr)
	}
	var dialed atomic.Int64
	for name, server := range map[string]rueidis.ClientOption{
		"one server": {
			InitAddress: []string{single.Addr}, ForceSingleClient: true, SelectDB: 3,
			AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				return rueidis.AuthCredentials{Password: password}, nil
			},
			DialCtxFn: func(ctx context.Context, addr string, nd *net.Dialer, _ *tls.Config) (net.Conn, error) {
				dialed.Add(1)
				return nd.DialContext(ctx, "tcp", addr)
			},
		},
		"sentinels": {InitAddress: sentinels, Sentinel: rueidis.SentinelOption{MasterSet: guarded.Master}},
		"cluster":   {InitAddress: nodes[:1]},
	} {
		d, err := Connect(t.Context(), server, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		l := acquire(t, d, request("x"))
		if name == "one server" && single.Do("EXISTS", "x") != int64(0) {
			t.Error("the key is in database 0")
		}
		w := wait(t, d, request("x"))
		release(t, l)
		release(t, w.granted(t))
		if err := d.Close(t.Context()); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
	}
	if dialed.Load() == 0 {
		t.Error("the dialer of the program was not used")
	}
	testenv.Eventually(t, func() bool { return !strings.Contains(single.Do("CLIENT", "LIST").(string), "name="+clientName) },
		"the connections are closed")
}

func TestConnectRefuses(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t, "--requirepass", testenv.Password())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for want, server := range map[string]rueidis.ClientOption{
		"no address":  {ForceSingleClient: true},
		"2 addresses": {InitAddress: []string{s.Addr, s.Addr}, ForceSingleClient: true},
		"database 2":  {InitAddress: []string{s.Addr}, SelectDB: 2},
		"permission":  {InitAddress: []string{s.Addr}, ForceSingleClient: true, Password: testenv.Password() + "x"},
	} {
		_, err := Connect(ctx, server, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
		if want == "permission" && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got %v, want fs.ErrPermission", err)
		}
	}
}
