package servers

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"path"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
)

// Dial connects to a host, with TLS if config is not nil.
func Dial(ctx context.Context, host string, config *tls.Config) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil || config == nil {
		return conn, err
	}
	if config.ServerName == "" {
		config = config.Clone()
		if config.ServerName, _, err = net.SplitHostPort(host); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // no longer usable
		return nil, err
	}
	return secure, nil
}

// RedisOption returns the client option for the servers of a URL, and their
// mode.
func RedisOption(u *driver.URL, clientName string) (option rueidis.ClientOption, mode string, err error) {
	if option, err = redisdial.ReadURL(u, clientName); err != nil {
		return option, "", err
	}
	port := "6379"
	switch mode = u.Choice("mode", "single", "sentinel", "cluster"); mode {
	case "single":
		option.ForceSingleClient = true
	case "sentinel":
		port = "26379"
		redisdial.ToSentinels(&option, rueidis.SentinelOption{MasterSet: u.Param("master", ""), Username: u.Param("sentinel_user", ""),
			Password: u.Param("sentinel_password", "")})
		option.DialCtxFn = redisdial.New(nil).Dial
	}
	option.InitAddress = u.HostsWithPort("localhost", port)
	option.AlwaysPipelining = true
	return option, mode, nil
}

// RedisKey returns the key with a prefix that belongs to a lock.
func RedisKey(prefix, lock string) string {
	if strings.Contains(lock, "{") {
		return prefix + ":" + lock
	}
	return prefix + ":{" + lock + "}"
}

// Reasons for a missing connection to ZooKeeper.
var (
	ErrNoSession = errors.New("the server opens no session")
	ErrNoLogin   = errors.New("the server rejects user and password")
)

// ZooKeeper calls do with a connection that has a session and the user of a
// URL. It also passes the user's name in ACLs. The limit applies to the whole
// call.
func ZooKeeper(ctx context.Context, limit time.Duration, u *driver.URL, hosts []string, config *tls.Config,
	do func(ctx context.Context, conn *gozk.Conn, id string) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, events, err := gozk.Connect(hosts, limit, gozk.WithLogInfo(false), gozk.WithLogger(log.New(io.Discard, "", 0)),
		gozk.WithDialer(func(_, address string, timeout time.Duration) (net.Conn, error) {
			limited, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return Dial(limited, address, config)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := zkSession(ctx, events); err != nil {
		return fmt.Errorf("%w: %w", ErrNoSession, err)
	}
	defer context.AfterFunc(ctx, conn.Close)() // the library's requests do not accept a context
	if u.User == nil {
		return do(ctx, conn, "")
	}
	password, _ := u.User.Password()
	account := u.User.Username() + ":" + password
	if err := conn.AddAuth("digest", []byte(account)); err != nil {
		return fmt.Errorf("%w: %w", ErrNoLogin, err)
	}
	sum := sha1.Sum([]byte(account))
	return do(ctx, conn, u.User.Username()+":"+base64.StdEncoding.EncodeToString(sum[:]))
}

// MissingNodes returns the nodes of a path that do not exist and that the
// driver will create, deepest first.
func MissingNodes(conn *gozk.Conn, chroot string) (missing []string) {
	for node := path.Clean("/" + chroot); node != "/"; node = path.Dir(node) {
		if there, _, err := conn.Exists(node); there || err != nil {
			break
		}
		missing = append(missing, node)
	}
	return missing
}

// zkSession waits for a session.
func zkSession(ctx context.Context, events <-chan gozk.Event) error {
	for {
		select {
		case e, open := <-events:
			if !open {
				return errors.New("the connection was closed")
			}
			if e.State == gozk.StateHasSession {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// DeleteNodes deletes nodes unless they have children by now.
func DeleteNodes(conn *gozk.Conn, nodes []string) {
	for _, node := range nodes {
		_ = conn.Delete(node, -1)
	}
}
