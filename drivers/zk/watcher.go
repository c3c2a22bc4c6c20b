package zk

import (
	"context"
	"errors"

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

// Watch implements driver.Watcher. The server tells of all contenders, those who come as well.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	d.watchMu.Lock()
	defer d.watchMu.Unlock()
	dir := d.dir(name)
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
	for {
		events, err := query(c, s, n.arm)
		if err != nil {
			return true
		}
		n.tell(true)
		select {
		case <-events:
		case <-s.over:
		case <-ctx.Done():
			return true
		}
		if !n.tell(false) {
			return false
		}
	}
}

// arm has the server tell of the next change of the contenders, or that there are some.
func (n *nameWatch) arm(c *gozk.Conn) (<-chan gozk.Event, error) {
	for {
		_, _, events, err := c.ChildrenW(n.dir)
		if !errors.Is(err, gozk.ErrNoNode) {
			return events, err
		}
		exists, _, events, err := c.ExistsW(n.dir)
		if err != nil || !exists {
			return events, err
		}
	}
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
