package zk

import (
	"context"
	"errors"
	"slices"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// nameWatch watches the contenders of a name, for all calls of Watch. It outlives them until the server has told of the next change, since a
// watch at the server cannot be taken back.
type nameWatch struct {
	driver *Driver
	dir    string

	// Guarded by Driver.watchMu.
	calls map[*watcher]struct{}
	armed bool // the server tells of the next change
}

// watcher is one call of Watch.
type watcher struct{ changed func() }

// Watch implements driver.Watcher. The server tells of all contenders, those who come as well, and of all leases of permits.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	return d.watchChildren(d.dir(name), changed)
}

// watchChildren has changed called after changes of the children of a node.
func (d *Driver) watchChildren(dir string, changed func()) (stop func(), err error) {
	d.watchMu.Lock()
	defer d.watchMu.Unlock()
	n := d.watched[dir]
	if n == nil {
		n = &nameWatch{driver: d, dir: dir, calls: make(map[*watcher]struct{})}
		if d.life.Open().Err() != nil || !d.life.Go(n.run) {
			return nil, driver.ErrClosed
		}
		d.watched[dir] = n
	}
	w := &watcher{changed}
	if n.calls[w] = struct{}{}; n.armed {
		changed()
	}
	return func() {
		d.watchMu.Lock()
		defer d.watchMu.Unlock()
		delete(n.calls, w)
	}, nil
}

// run ends with the first change of which nobody wants to know, or with the driver.
func (n *nameWatch) run() {
	d := n.driver
	ctx := d.life.Open()
	for ctx.Err() == nil {
		s, err := d.board(caller{ctx: ctx}, d.options.TTL)
		if err == nil {
			wanted := n.follow(ctx, s)
			if s.leave(); !wanted {
				return
			}
		}
		if !d.life.Sleep(ctx, leaveFor) {
			return
		}
	}
}

// follow tells of changes as long as the session lasts, and reports whether anybody still wants to know.
func (n *nameWatch) follow(ctx context.Context, s *session) (wanted bool) {
	c := caller{ctx, ctx.Done()}
	var own, leases armed
	var err error
	for {
		if own.events == nil {
			if own, err = query(c, s, n.arm); err != nil {
				return true
			}
		}
		if own.leases && leases.events == nil {
			if leases, err = query(c, s, n.armLeases); err != nil {
				return true
			}
		}
		n.tell(true)
		select {
		case <-own.events:
			own.events = nil
		case <-leases.events:
			leases.events = nil
		case <-s.over:
		case <-ctx.Done():
			return true
		}
		if !n.tell(false) {
			return false
		}
	}
}

// armed is a watch at the server.
type armed struct {
	events <-chan gozk.Event
	leases bool // there are leases of permits
}

// arm has the server tell of the next change of the contenders, or that there are some.
func (n *nameWatch) arm(c *gozk.Conn) (armed, error) {
	for {
		children, _, events, err := c.ChildrenW(n.dir)
		if !errors.Is(err, gozk.ErrNoNode) {
			return armed{events, slices.Contains(children, leasesPart)}, err
		}
		exists, _, events, err := c.ExistsW(n.dir)
		if err != nil || !exists {
			return armed{events: events}, err
		}
	}
}

// armLeases has the server tell of the next change of the leases. If there are none any more, the watch of the contenders tells of that.
func (n *nameWatch) armLeases(c *gozk.Conn) (armed, error) {
	_, _, events, err := c.ChildrenW(n.dir + "/" + leasesPart)
	if errors.Is(err, gozk.ErrNoNode) {
		err = nil
	}
	return armed{events: events}, err
}

// tell calls all who want to know, and reports whether there are any. If there are none when the watch is not armed any more, it is over.
func (n *nameWatch) tell(armed bool) (wanted bool) {
	d := n.driver
	d.watchMu.Lock()
	defer d.watchMu.Unlock()
	n.armed = armed
	for w := range n.calls {
		w.changed()
	}
	if len(n.calls) > 0 || armed {
		return true
	}
	delete(d.watched, n.dir)
	return false
}
