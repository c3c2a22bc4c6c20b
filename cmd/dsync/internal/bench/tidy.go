package bench

import (
	"context"
	"fmt"
	"path"

	gozk "github.com/go-zookeeper/zk"
	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/servers"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

// tidy returns a function that removes everything that the locks leave on the
// backend of a URL. The caller calls it after all clients are closed. On Redis
// with fence=redisson it removes the counters. On ZooKeeper it removes the
// nodes of names, and the path of the URL if it did not exist. Other
// backends store nothing for a released lock.
func (f *benchFlags) tidy(ctx context.Context, u *driver.URL) (undo func() error, err error) {
	switch {
	case u.Scheme == "redisson" && u.Bool("fenced", true) && u.Param("fence", "") == "redisson":
		option, _, err := servers.RedisOption(u, "dsync-bench")
		if err != nil {
			return nil, err
		}
		return func() error { return f.removeCounters(option) }, nil
	case u.Scheme == "zk":
		return f.tidyPath(ctx, u)
	}
	return func() error { return nil }, nil
}

// removeCounters removes the token counters of each name.
func (f *benchFlags) removeCounters(option rueidis.ClientOption) error {
	ctx, cancel := context.WithTimeout(context.Background(), cli.CloseLimit)
	defer cancel()
	client, err := rueidis.NewClient(option)
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return err
	}
	const prefix = "redisson_lock_token"
	for i := range f.callers {
		if err := client.Do(ctx, client.B().Del().Key(servers.RedisKey(prefix, f.name(i))).Build()).Error(); err != nil {
			return fmt.Errorf("the keys %s of names that begin with %s: %w", prefix, f.prefix, err)
		}
	}
	return nil
}

// tidyPath implements tidy for ZooKeeper.
func (f *benchFlags) tidyPath(ctx context.Context, u *driver.URL) (undo func() error, err error) {
	config, err := tlsurl.Read(u)
	if err != nil {
		return nil, err
	}
	hosts := u.HostsWithPort("localhost", "2181")
	var made []string
	if err := servers.ZooKeeper(ctx, f.Connect, u, hosts, config, func(ctx context.Context, conn *gozk.Conn, _ string) error {
		made = servers.MissingNodes(conn, u.Path)
		return ctx.Err()
	}); err != nil {
		return nil, err
	}
	return func() error {
		return servers.ZooKeeper(context.Background(), cli.CloseLimit, u, hosts, config, func(ctx context.Context, conn *gozk.Conn, _ string) error {
			for i := range f.callers {
				// Most nodes were removed with their last lock. The server
				// removes the others later.
				_ = conn.Delete(path.Join("/", u.Path, f.name(i)), -1)
			}
			servers.DeleteNodes(conn, made)
			return ctx.Err()
		})
	}, nil
}
