package zk

import (
	"context"
	"errors"
	"fmt"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

func init() { driver.Register("zk", open) }

// open is the driver.Opener of the scheme zk. The package comment has the parameters.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	o := &Options{
		Chroot:      u.Path,
		TTL:         c.TTL,
		NoTokens:    !c.Fenced,
		FIFO:        u.Choice("order", "client", "fifo") == "fifo",
		LeaderLatch: u.Choice("node", "lock-", "latch-") == "latch-",
		NoteAlone:   u.Choice("value", "record", "note") == "note",
	}
	usual := "open"
	if u.User != nil {
		o.User = u.User.Username()
		o.Password, _ = u.User.Password()
		usual = "creator"
	}
	var failed error
	if o.User == "" && u.User != nil {
		failed = errors.New("zk URL: a password without a user")
	}
	acl := usual
	if u.Has("acl") {
		acl = u.Choice("acl", "open", "creator")
	}
	switch {
	case acl == "open":
		o.ACL = gozk.WorldACL(gozk.PermAll)
	case u.User == nil:
		failed = errors.New("zk URL: parameter acl: creator needs a user and a password")
	}
	var err error
	o.TLS, err = tlsurl.Read(u)
	if err := errors.Join(u.Err(), err, failed); err != nil {
		return nil, err
	}
	d, err := New(ctx, u.HostsWithPort("localhost", "2181"), o)
	if err != nil {
		return nil, fmt.Errorf("zk: %s: %w", u, err)
	}
	return d, nil
}
