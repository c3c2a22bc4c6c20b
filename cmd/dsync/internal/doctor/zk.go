package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/servers"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

const seeZooKeeper = "docs/backends/zookeeper.md#faults"

func examineZooKeeper(ctx context.Context, x *examination) bool {
	config, err := tlsurl.Read(x.url)
	if err != nil {
		x.bad(fault, "URL", err.Error(), "see the message", seeTLS)
		return false
	}
	reached := x.reach(ctx, x.url.HostsWithPort("localhost", "2181"), config)
	if len(reached) == 0 {
		return false
	}
	for _, host := range reached {
		x.zkServer(ctx, host, config)
	}
	x.zkGroups(ctx, reached, config)
	x.zkRights(ctx, reached, config)
	return true
}

// zkServer queries one server with the command srvr, which servers answer by
// default.
func (x *examination) zkServer(ctx context.Context, host string, config *tls.Config) {
	ctx, cancel := context.WithTimeout(ctx, x.connect)
	defer cancel()
	text, err := zkWord(ctx, host, config, "srvr")
	x.zkAnswer(host, text, err)
}

// zkAnswer judges a server's response to srvr.
func (x *examination) zkAnswer(host, text string, err error) {
	var version, mode string
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, "Zookeeper version: "); is {
			version, _, _ = strings.Cut(value, "-")
			version = strings.TrimSpace(version)
		}
		if value, is := strings.CutPrefix(line, "Mode: "); is {
			mode = strings.TrimSpace(value)
		}
	}
	switch {
	case strings.Contains(text, "not currently serving"):
		x.bad(fault, "leader", host+" refuses to serve, because it cannot reach a majority of its ensemble", "make sure that a majority of the servers are up and can reach each other", seeZooKeeper)
		return
	case err != nil || version == "":
		x.bad(note, "version", host+" does not report its version and its role", "set 4lw.commands.whitelist=srvr in zoo.cfg", seeReach)
		return
	}
	if major, minor, _ := parseVersion(version); major < 3 || major == 3 && minor < 5 {
		x.bad(fault, "version", fmt.Sprintf("%s is ZooKeeper %s, and the oldest supported version is 3.5", host, version), "install ZooKeeper 3.5 or newer", seeReach)
	} else {
		x.good("version", "%s is ZooKeeper %s", host, version)
	}
	if mode == "standalone" {
		x.bad(note, "members", host+" is the only server: while it is down, nothing is granted", "use three servers if that matters", seeZooKeeper)
	} else {
		x.good("members", "%s is a %s of an ensemble", host, mode)
	}
}

// zkWord sends one of ZooKeeper's four-letter commands.
func zkWord(ctx context.Context, host string, config *tls.Config, word string) (string, error) {
	conn, err := servers.Dial(ctx, host, config)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(conn, 64<<20))
	return string(text), err
}

// zkRights compares the permissions on the URL's path with the permissions that
// the driver needs.
func (x *examination) zkRights(ctx context.Context, hosts []string, config *tls.Config) {
	err := servers.ZooKeeper(ctx, x.connect, x.url, hosts, config, func(ctx context.Context, conn *gozk.Conn, id string) error {
		x.zkPath(conn, x.url.Path, id)
		x.zkNodes(ctx, conn, hosts, config)
		if made := servers.MissingNodes(conn, x.url.Path); len(made) > 0 {
			x.undo = func() {
				_ = servers.ZooKeeper(context.Background(), cli.CloseLimit, x.url, hosts, config, func(_ context.Context, conn *gozk.Conn, _ string) error {
					servers.DeleteNodes(conn, made)
					return nil
				})
			}
		}
		return nil
	})
	switch {
	case err == nil:
	case errors.Is(err, servers.ErrNoLogin):
		x.bad(fault, "password", err.Error(), "put the correct user and password in the URL", seePasswords)
	case errors.Is(err, servers.ErrNoSession):
		x.bad(fault, checkReach, err.Error(), "raise maxClientCnxns in zoo.cfg if there are many connections from this host; make sure that a majority of the servers are up", seeZooKeeper)
	default:
		x.bad(fault, checkReach, err.Error(), "check the hosts in the URL", seeReach)
	}
}

// zkPath checks the permissions on a path. If the path does not exist, it
// checks the nearest existing ancestor, in which the path would be created.
func (x *examination) zkPath(conn *gozk.Conn, chroot, id string) {
	needed, node := "cdrwa", path.Clean("/"+chroot)
	if node == "/" {
		needed = "cdr"
	}
	acl, _, err := conn.GetACL(node)
	for errors.Is(err, gozk.ErrNoNode) && node != "/" {
		node, needed = path.Dir(node), "c"
		acl, _, err = conn.GetACL(node)
	}
	cure := fmt.Sprintf("as a user with the right a, run setAcl %s auth:USER:PASSWORD:crdwa, or put another user, password or path in the URL", node)
	switch {
	case errors.Is(err, gozk.ErrNoAuth):
		x.bad(fault, "rights", fmt.Sprintf("the user has no rights on %s", node), cure, seeRights)
		return
	case err != nil:
		x.bad(fault, "rights", fmt.Sprintf("the rights on %s cannot be read: %v", node, err), "see the message", seeRights)
		return
	}
	missing, unknown := missingPerms(acl, id, needed)
	switch {
	case missing == "":
		x.good("rights", "the user has the rights %s on %s", needed, node)
	case unknown:
		x.bad(note, "rights", fmt.Sprintf("the rights %s on %s may come from a scheme that doctor cannot check", missing, node), "", seeRights)
	default:
		x.bad(fault, "rights", fmt.Sprintf("the user lacks the rights %s on %s", missing, node), cure, seeRights)
	}
}

// missingPerms returns the needed permissions that an ACL grants neither to
// every user nor to a digest id. If unknown is set, the ACL has entries that
// may apply to other identities.
func missingPerms(acl []gozk.ACL, id, needed string) (missing string, unknown bool) {
	bits := map[rune]int32{'r': gozk.PermRead, 'w': gozk.PermWrite, 'c': gozk.PermCreate, 'd': gozk.PermDelete, 'a': gozk.PermAdmin}
	var have int32
	for _, a := range acl {
		switch {
		case a.Scheme == "world", a.Scheme == "digest" && a.ID == id:
			have |= a.Perms
		case a.Scheme != "digest":
			unknown = true
		}
	}
	for _, right := range needed {
		if have&bits[right] == 0 {
			missing += string(right)
		}
	}
	return missing, unknown
}
