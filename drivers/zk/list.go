package zk

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"strings"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// List implements driver.Lister. It goes through all nodes below the chroot that can have names with the prefix, one after the other, and
// leaves out what the user may not read. What was granted before the call is seen on every server.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s, err := d.board(caller{ctx: ctx}, d.options.TTL)
		if err != nil {
			yield("", err)
			return
		}
		defer s.leave()
		w := &walk{d, s, caller{ctx, d.life.Open().Done()}, prefix, yield}
		if err := w.sync(); err != nil {
			yield("", fault(ctx, s, err))
			return
		}
		if _, err := w.below("", ""); err != nil {
			yield("", fault(ctx, s, err))
		}
	}
}

// walk is one call of List.
type walk struct {
	d      *Driver
	s      *session
	c      caller
	prefix string
	yield  func(string, error) bool
}

// sync lets the server catch up with the leader. Later answers of the session, also by other servers, are no older.
func (w *walk) sync() error {
	_, err := query(w.c, w.s, func(c *gozk.Conn) (string, error) { return c.Sync("/") })
	return err
}

// below yields the names at a node and below. Path is that of the node without the chroot, and name what the path stands for. GoOn is false
// when nobody wants more.
func (w *walk) below(path, name string) (goOn bool, err error) {
	node := w.d.options.Chroot + path
	if node == "" {
		node = "/"
	}
	l, err := query(w.c, w.s, func(c *gozk.Conn) (listing, error) { return list(c, node) })
	switch {
	case errors.Is(err, gozk.ErrNoNode), errors.Is(err, gozk.ErrNoAuth) && path != "":
		return true, nil
	case err != nil:
		return false, err
	}
	held, permits := false, false
	for _, child := range l.children {
		_, sealed := sealOf(child)
		one, is := contenderOf(child)
		held = held || is || sealed
		permits = permits || is && one.mode == driver.Permit
		if is || sealed || isBase(child) {
			continue
		}
		if goOn, err := w.child(path, name, child); !goOn || err != nil {
			return false, err
		}
	}
	if above, ok := strings.CutSuffix(name, "/"+leasesPart); ok && permits {
		name, node = above, strings.TrimSuffix(node, "/"+leasesPart)
	}
	if held && path != "" && strings.HasPrefix(name, w.prefix) && w.d.dir(name) == node {
		return w.yield(name, nil), nil
	}
	return true, nil
}

// child goes on with a child that is no contender, if there can be names with the prefix.
func (w *walk) child(path, name, child string) (goOn bool, err error) {
	part, err := url.PathUnescape(child)
	if err != nil || path == "" && w.d.options.Chroot == "" && child == "zookeeper" {
		return true, nil // of somebody else
	}
	if path != "" {
		part = name + "/" + part
	}
	if !strings.HasPrefix(part, w.prefix) && !strings.HasPrefix(w.prefix, part+"/") {
		return true, nil
	}
	return w.below(path+"/"+child, part)
}
