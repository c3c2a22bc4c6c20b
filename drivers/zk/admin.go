package zk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/parallel"
)

const maxAsking = 16 // concurrent requests

// standing is a contender with the data of its node.
type standing struct {
	contender
	value value
	since time.Time
	gone  bool // since the listing
}

// holders returns the number of contenders in a queue that hold the name: the
// first, or all Reads up to a contender that excludes them. A Curator Read that
// has the same number as a writer belongs to that writer.
func holders(queue []standing) int {
	for i, s := range queue {
		if i > 0 && s.mode.Excludes(queue[0].mode) && (s.mode != driver.Read || s.seq != queue[0].seq) {
			return i
		}
	}
	return len(queue)
}

// Inspect implements driver.Inspector. Status.Since is the time when the holder
// requested the lock, on the server's clock. Status.TTL is known if the first
// holder belongs to this driver, and Token if all holders do. For contenders of
// other libraries it returns the names of their nodes.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	var status driver.Status
	err := d.call(ctx, func(c caller) (err error) {
		status, err = c.inspect(d.dir(name))
		return err
	})
	return status, err
}

func (c caller) inspect(dir string) (driver.Status, error) {
	d := c.session.driver
	queue, exists, err := c.contenders(dir)
	if err != nil {
		return driver.Status{}, err
	}
	if len(queue) == 0 && exists {
		return c.inspectPermits(dir)
	}
	if err := forEach(queue, maxAsking, func(one *standing) error { return c.readNode(dir, one) }); err != nil {
		return driver.Status{}, err
	}
	queue = slices.DeleteFunc(queue, func(s standing) bool { return s.gone })
	if len(queue) == 0 {
		return driver.Status{}, nil
	}
	first, n := queue[0], holders(queue)
	if last, sealed := sealOf(first.child); sealed {
		return driver.Status{Held: true, Holders: 1, Owner: sealOwner, Token: last, Since: first.since, Waiters: len(queue) - 1}, nil
	}
	status := driver.Status{
		Held:    true,
		Mode:    first.mode,
		Holders: n,
		Hold:    first.value.Hold,
		Owner:   first.value.Owner,
		Note:    first.value.Note,
		Since:   first.since,
		Waiters: len(queue) - n,
	}
	if first.mode != driver.Read {
		status.Holders = 1
	}
	for _, s := range queue[n:] {
		status.Queue = append(status.Queue, s.value.Owner)
	}
	if h := d.ownHold(dir + "/" + first.child); h != nil {
		status.TTL = max(0, time.Until(h.Expires()))
	}
	status.Token = d.lastToken(dir, queue[:n])
	return status, nil
}

// lastToken returns the highest token of some holders, which is the token of
// the last grant. It returns 0 unless all of them are holds of this driver. The
// order of the nodes is not the order of the grants.
func (d *Driver) lastToken(dir string, holders []standing) (last uint64) {
	for _, one := range holders {
		h := d.ownHold(dir + "/" + one.child)
		if h == nil {
			return 0
		}
		if first, n := h.Tokens(); n > 0 {
			last = max(last, first+uint64(n)-1)
		}
	}
	return last
}

// contenders returns the holders and the waiters of a name, in order, and
// whether the node of the name exists.
func (c caller) contenders(dir string) (queue []standing, exists bool, err error) {
	l, err := c.listSynced(dir)
	if errors.Is(err, gozk.ErrNoNode) {
		return nil, false, nil
	}
	return inOrder(l.children), true, err
}

// inOrder returns the contenders among the children, in the order of the queue.
func inOrder(children []string) (queue []standing) {
	for _, child := range children {
		if c, ok := contenderOf(child); ok {
			queue = append(queue, standing{contender: c})
		}
	}
	slices.SortFunc(queue, func(a, b standing) int {
		if a.before(b.contender) {
			return -1
		}
		return 1
	})
	return queue
}

// forEach calls f for all items, several at a time, and returns an error if
// there was one.
func forEach[T any](items []T, atATime int, f func(one *T) error) error {
	errs := make([]error, len(items))
	parallel.Each(len(items), atATime, func(i int) { errs[i] = f(&items[i]) })
	return cmp.Or(errs...)
}

// readNode reads the data of a contender's node, and sets value and since, or
// gone if the node no longer exists.
func (c caller) readNode(dir string, one *standing) error {
	node := dir + "/" + one.child
	var stat gozk.Stat
	text, err := query(c, func(c *gozk.Conn) ([]byte, error) {
		text, st, err := c.Get(node)
		if err == nil {
			stat = *st
		}
		return text, err
	})
	switch {
	case errors.Is(err, gozk.ErrNoNode):
		one.gone = true
		return nil
	case err != nil && !errors.Is(err, gozk.ErrNoAuth):
		return err
	}
	if json.Unmarshal(text, &one.value) != nil || one.value.Hold == "" {
		one.value = value{Owner: one.child, Hold: one.child}
		if len(text) > 0 && utf8.Valid(text) {
			one.value.Note = string(text)
		}
	}
	if stat.Ctime > 0 {
		one.since = time.UnixMilli(stat.Ctime)
	}
	return nil
}

// ownHold returns this driver's hold that has the node, or nil.
func (d *Driver) ownHold(node string) *hold {
	for _, s := range d.sessions.All() {
		if h := s.find(node); h != nil && h.isHeld() == nil {
			return h
		}
	}
	return nil
}

// ForceUnlock implements driver.ForceUnlocker.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	return d.call(ctx, func(c caller) error { return c.forceUnlock(d.dir(name)) })
}

func (c caller) forceUnlock(dir string) error {
	d := c.session.driver
	queue, exists, err := c.contenders(dir)
	if err != nil {
		return err
	}
	n := holders(queue)
	if n == 0 && exists {
		v, err := c.readGranted(dir)
		if err != nil {
			return err
		}
		dir += "/" + leasesPart
		queue, n, _ = v.granted()
	}
	if n == 0 {
		return driver.ErrNotHeld
	}
	if _, sealed := sealOf(queue[0].child); sealed {
		return driver.ErrSealed
	}
	var removed, unknown atomic.Bool
	err = forEach(queue[:n], maxAsking, func(one *standing) error {
		node := dir + "/" + one.child
		_, err := insist(c, func(c *gozk.Conn) (struct{}, error) { return remove(c, node) })
		if errors.Is(err, gozk.ErrNoNode) {
			return nil
		}
		if errors.As(err, new(undecided)) {
			unknown.Store(true)
		}
		if err == nil {
			removed.Store(true)
			if h := d.ownHold(node); h != nil {
				h.removed()
			}
		}
		return err
	})
	switch {
	case err == nil && !removed.Load():
		return driver.ErrNotHeld
	case err != nil && (removed.Load() || unknown.Load()):
		return undecided{err}
	}
	return err
}

// List implements driver.Lister. It visits, one after another, all nodes below
// the chroot that can have names with the prefix. It omits nodes that the user
// must not read. It sees all grants that precede the call, on every server.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		err := d.call(ctx, func(c caller) error {
			w := &walk{d, c, prefix, yield}
			if err := w.sync(); err != nil {
				return err
			}
			_, err := w.below("", "")
			return err
		})
		if err != nil {
			yield("", err)
		}
	}
}

// walk is one call to List.
type walk struct {
	d      *Driver
	c      caller
	prefix string
	yield  func(string, error) bool
}

// sync makes the server catch up with the leader. Later answers to the session,
// even from other servers, are no older.
func (w *walk) sync() error {
	_, err := query(w.c, func(c *gozk.Conn) (string, error) { return c.Sync("/") })
	return err
}

// below yields the names at a node and below it. path is the path of the node
// without the chroot, and name is the name that the node represents. goOn is
// false when the caller needs no more names.
func (w *walk) below(path, name string) (goOn bool, err error) {
	node := cmp.Or(w.d.options.Chroot+path, "/")
	l, err := w.c.list(node)
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

// child continues with a child that is not a contender, if there can be names
// with the prefix below it.
func (w *walk) child(path, name, child string) (goOn bool, err error) {
	part, err := url.PathUnescape(child)
	if err != nil || path == "" && w.d.options.Chroot == "" && child == "zookeeper" {
		return true, nil // another program's node
	}
	if path != "" {
		part = name + "/" + part
	}
	if !strings.HasPrefix(part, w.prefix) && !strings.HasPrefix(w.prefix, part+"/") {
		return true, nil
	}
	return w.below(path+"/"+child, part)
}

// nameWatch watches the contenders of a name, for all calls to Watch. It
// outlives them until the server has reported the next change, because a watch
// on the server cannot be withdrawn.
type nameWatch struct {
	driver *Driver
	dir    string

	// Guarded by Driver.watchMu.
	calls map[*watcher]struct{}
	armed bool // the server will report the next change
}

// watcher is one call to Watch.
type watcher struct{ changed func() }

// Watch implements driver.Watcher. The server reports all contenders, including
// new ones, and all leases of permits.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	return d.watchChildren(d.dir(name), changed)
}

// watchChildren calls changed after changes of the children of a node.
func (d *Driver) watchChildren(dir string, changed func()) (stop func(), err error) {
	d.watchMu.Lock()
	defer d.watchMu.Unlock()
	n := d.watched[dir]
	if n == nil {
		n = &nameWatch{driver: d, dir: dir, calls: make(map[*watcher]struct{})}
		if d.life.Open().Err() != nil || !d.life.Go(n.watch) {
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

// watch returns at the first change after the last caller has left, or when the
// driver is closed.
func (n *nameWatch) watch() {
	d := n.driver
	ctx := d.life.Open()
	for ctx.Err() == nil {
		s, err := d.board(ctx, d.options.TTL, 0)
		if err == nil {
			wanted := n.follow(ctx, s)
			if s.Leave(0); !wanted {
				return
			}
		}
		if !d.life.Sleep(ctx, leaveFor) {
			return
		}
	}
}

// follow reports changes as long as the session lasts, and returns whether
// there are still callers.
func (n *nameWatch) follow(ctx context.Context, s *session) (wanted bool) {
	c := s.caller(ctx)
	var own, leases armed
	var err error
	for {
		if own.events == nil {
			if own, err = query(c, n.arm); err != nil {
				return true
			}
		}
		if own.leases && leases.events == nil {
			if leases, err = query(c, n.armLeases); err != nil {
				return true
			}
		}
		n.notify(true)
		select {
		case <-own.events:
			own.events = nil
		case <-leases.events:
			leases.events = nil
		case <-s.Over():
			return n.notify(false) // own and leases report the end later
		case <-ctx.Done():
			return true
		}
		if !n.notify(false) {
			return false
		}
	}
}

// armed is a watch on the server.
type armed struct {
	events <-chan gozk.Event
	leases bool // there are leases of permits
}

// arm makes the server report the next change of the contenders, or the first
// contender.
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

// armLeases makes the server report the next change of the leases. If all
// leases are gone, the watch of the contenders reports new ones.
func (n *nameWatch) armLeases(c *gozk.Conn) (armed, error) {
	_, _, events, err := c.ChildrenW(n.dir + "/" + leasesPart)
	if errors.Is(err, gozk.ErrNoNode) {
		err = nil
	}
	return armed{events: events}, err
}

// notify calls all callers and reports whether there are any. If there are none
// when the watch is no longer armed, the watch ends.
func (n *nameWatch) notify(armed bool) (wanted bool) {
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
