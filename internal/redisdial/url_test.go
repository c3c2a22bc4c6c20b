package redisdial_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestIdleConnectionIsRead: the library reads a connection that no request
// uses, and so notices its end without a ping. Close of a client whose callers
// read could hang, which is too rare for a test: see Prepare.
func TestIdleConnectionIsRead(t *testing.T) {
	s := testenv.Redis(t)
	closed := make(chan struct{}, 10)
	o := redisdial.Defaults("idle")
	o.InitAddress, o.Dialer.KeepAlive = []string{s.Addr}, time.Hour
	o.DialCtxFn = func(ctx context.Context, addr string, nd *net.Dialer, _ *tls.Config) (net.Conn, error) {
		c, err := nd.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return testenv.OnClose(c, func() { closed <- struct{}{} }), nil
	}
	client, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s.Do("CLIENT", "KILL", "TYPE", "normal")
	select {
	case <-closed:
	case <-time.After(hangGuard):
		t.Error("the client has not noticed that its connection was closed")
	}
}

// TestPasswordChanges changes the password of a user under load, removes the
// old one, and ends all connections of the user.
func TestPasswordChanges(t *testing.T) {
	sentinel := testenv.RedisSentinel(t, 0)
	servers := []*testenv.RedisServer{sentinel.Primary(), testenv.Redis(t), testenv.Redis(t)}
	one, all := servers[1].Addr, servers[0].Addr+","+servers[1].Addr+","+servers[2].Addr
	for name, address := range map[string]string{
		"redisson":     "redisson://locker@" + one + "/?",
		"sentinel":     "redisson://locker@" + strings.Join(sentinel.SentinelAddrs(), ",") + "/?mode=sentinel&master=" + sentinel.Master + "&",
		"redlock":      "redlock://locker@" + all + "/?durable=true&",
		"redis-string": "redis-string://locker@" + one + "/?durable=true&",
	} {
		t.Run(name, func(t *testing.T) { testPasswordChanges(t, address, servers) })
	}
}

func testPasswordChanges(t *testing.T, address string, servers []*testenv.RedisServer) {
	file := filepath.Join(t.TempDir(), "password")
	do := func(args ...string) {
		for _, s := range servers {
			s.Do(args...)
		}
	}
	old := ""
	change := func() {
		password := testenv.Password()
		do("ACL", "SETUSER", "locker", "on", ">"+password, "~*", "&*", "+@all")
		if err := os.WriteFile(file+".new", []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		if old != "" {
			do("ACL", "SETUSER", "locker", "<"+old)
			do("CLIENT", "KILL", "USER", "locker")
		}
		old = password
	}
	do("ACL", "SETUSER", "locker", "reset")
	change()
	c, err := dsync.Open(t.Context(), address+"password_file="+url.QueryEscape(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var granted atomic.Int64
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() { // ends when ctx ends
			for ctx.Err() == nil {
				l, err := c.Lock(t.Context(), "x")
				if err == nil {
					err = l.Unlock(t.Context())
				}
				if err != nil {
					ended <- err
					return
				}
				granted.Add(1)
			}
			ended <- nil
		}()
	}
	for range 5 {
		before := granted.Load()
		testenv.Eventually(t, func() bool { return granted.Load() > before+50 || len(ended) > 0 }, "more grants")
		change()
	}
	stop()
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := dsync.Open(t.Context(), address+"password_file="+url.QueryEscape(file), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: got %v, want ErrNotExist", err)
	}
}
