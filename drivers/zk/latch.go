package zk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

var _ driver.Latcher = (*Driver)(nil)

// Latches are stored below a separate node in the chroot. No name is stored
// there, because a percent sign in a name becomes %25.
const (
	latchesPart = "/%latches"
	changesPart = "/%changes"
)

// latch is a node with the count as set, and a child. Each countdown changes
// the child, so the child's version is the number of countdowns. Concurrent
// countdowns do not conflict, and a watch of the children of the latch reports
// only the end. The child is named after the change that set the latch, so no
// request affects a later latch of the name.
//
// When the count reaches 0, the latch has ended. The first client that sees
// this removes the nodes. It is the client of the last countdown or, if that
// client has died, the client of the next request.
type latch struct {
	node  string
	child string // its path; "" if there is no latch
	n     int    // the count as set
	downs int

	foreign error // not nil if no driver wrote the data of the node; the error quotes the data
}

// left returns the count.
func (l latch) left() int { return max(0, l.n-l.downs) }

// removal returns the operations that end the latch.
func (l latch) removal() []any {
	return []any{&gozk.DeleteRequest{Path: l.child, Version: -1}, &gozk.DeleteRequest{Path: l.node, Version: -1}}
}

// SetLatch implements driver.Latcher.
func (d *Driver) SetLatch(ctx context.Context, name, id string, n int) (set bool, err error) {
	acl := d.options.ACL
	return d.changeLatch(ctx, name, id, func(l latch) []any {
		if l.child != "" {
			return nil
		}
		part := partOf(id)
		return []any{
			&gozk.CreateRequest{Path: l.node, Data: []byte(strconv.Itoa(n) + " " + part), Acl: acl},
			&gozk.CreateRequest{Path: l.node + "/" + part, Acl: acl},
		}
	})
}

// CountDown implements driver.Latcher.
func (d *Driver) CountDown(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, name, id, func(l latch) []any {
		if l.child == "" {
			return nil
		}
		return []any{&gozk.SetDataRequest{Path: l.child, Version: -1}}
	})
	return err
}

// DeleteLatch implements driver.Latcher.
func (d *Driver) DeleteLatch(ctx context.Context, name, id string) error {
	_, err := d.changeLatch(ctx, name, id, func(l latch) []any {
		if l.child == "" {
			return nil
		}
		return l.removal()
	})
	return err
}

// Latch implements driver.Latcher.
func (d *Driver) Latch(ctx context.Context, name string) (left int, err error) {
	err = d.call(ctx, func(c caller) error {
		l, err := c.latch(d.latchNode(name), true)
		left = l.left()
		return err
	})
	return left, err
}

// WatchLatch implements driver.Latcher.
func (d *Driver) WatchLatch(name string, changed func()) (stop func(), err error) {
	return d.watchChildren(d.latchNode(name), changed)
}

// changeLatch carries out the operations that change returns for a latch,
// unless a request with the id was carried out. It reports whether there were
// any operations. The first read may be outdated. If it is, operations are
// refused. If it shows nothing to do, a second read must confirm that.
func (d *Driver) changeLatch(ctx context.Context, name, id string, change func(latch) []any) (did bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	err = d.call(ctx, func(c caller) (err error) {
		did, err = c.changeLatch(d.latchNode(name), id, change)
		return err
	})
	return did, err
}

func (c caller) changeLatch(node, id string, change func(latch) []any) (did bool, err error) {
	ch := &c.session.driver.changes
	for synced := false; ; synced = true {
		l, err := c.latch(node, synced)
		if err != nil {
			return false, err
		}
		ops := change(l)
		did = len(ops) > 0
		if !did && !synced {
			continue
		}
		note, err := ch.note(c, id, did)
		if err != nil {
			return false, err
		}
		results, err := c.change(append(note.ops, ops...)...)
		if err == nil {
			c.endLatch(l, results)
		}
		if !isOutdated(err) {
			return did && err == nil, err
		}
		did, known, err := ch.find(c, note)
		if known {
			return did, nil
		}
		if isOurs(err) { // the request was refused, perhaps because an earlier one was carried out
			return false, undecided{err}
		}
		if err == nil {
			err = c.makeAbove(node)
		}
		if err != nil {
			return false, err
		}
	}
}

// endLatch removes the nodes of a latch after the last countdown, whose answer
// ends with the state of the child.
func (c caller) endLatch(l latch, results []gozk.MultiResponse) {
	if len(results) == 0 || l.child == "" {
		return
	}
	if child := results[len(results)-1].Stat; child != nil && int(child.Version) >= l.n {
		_ = c.removeLatch(l) // if this fails, the next read removes the nodes
	}
}

// removeLatch removes the nodes of a latch that has ended.
func (c caller) removeLatch(l latch) error {
	_, err := query(c, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return c.Multi(l.removal()...) })
	if isOutdated(err) { // another client has done so
		return nil
	}
	return err
}

// latch reads a latch. If synced is set, it sees all earlier transactions. It
// removes a latch that has ended.
func (c caller) latch(node string, synced bool) (latch, error) {
	l, err := query(c, func(c *gozk.Conn) (latch, error) {
		if synced {
			if _, err := c.Sync(node); err != nil {
				return latch{}, err
			}
		}
		return readLatch(c, node)
	})
	if err = cmp.Or(err, l.foreign); err != nil || l.child == "" || l.left() > 0 {
		return l, err
	}
	return latch{node: node}, c.removeLatch(l)
}

func readLatch(c *gozk.Conn, node string) (latch, error) {
	for {
		text, _, err := c.Get(node)
		if errors.Is(err, gozk.ErrNoNode) {
			return latch{node: node}, nil
		}
		if err != nil {
			return latch{}, err
		}
		count, part, ok := strings.Cut(string(text), " ")
		n, err := strconv.Atoi(count)
		if !ok || err != nil {
			// returning an error would lead to another attempt
			return latch{foreign: fmt.Errorf("node %q is not a latch: it contains %q", node, text)}, nil
		}
		child := node + "/" + part
		exists, stat, err := c.Exists(child)
		if err != nil {
			return latch{}, err
		}
		if exists {
			return latch{node: node, child: child, n: n, downs: int(stat.Version)}, nil
		}
	}
}

func (d *Driver) latchNode(name string) string {
	return d.options.Chroot + latchesPart + "/" + partOf(name)
}

// partOf returns a text encoded as one part of a path.
func partOf(text string) string { return string(appendPart(nil, text, false)) }

const (
	// knownFor is how long an id must be known.
	knownFor = 2 * driver.RepeatFor

	// usualKeptFor is the age at which a set is removed. A driver puts ids into
	// a set for up to three times knownFor. The rest is a margin for the clocks
	// of servers.
	usualKeptFor = 4 * knownFor
)

// changes records which changes of latches were carried out. The transaction of
// a change makes nodes that are named after the id, and is refused if such a
// node exists. These nodes are children of a set. A driver begins a new set
// when the previous set is knownFor old, and puts the nodes of a change into
// both sets. So a change and its repeats have a set in common, regardless of
// which of their requests arrives first. The nodes are not ephemeral, because
// they must outlast the session and the process. So each driver that begins a
// set removes all sets that are usualKeptFor old, including those of other
// drivers. A request that arrives after that finds no set, and is refused.
type changes struct {
	keptFor time.Duration // see usualKeptFor
	locked  chan struct{} // has an element while a call uses the fields below

	set   string // path of the set, once there is one
	last  string // path of the previous set, while its ids must be known
	begun int64
}

// note is the part of a transaction that records its change.
type note struct {
	set   string
	nodes []string // the nodes at which the id may be stored
	ops   []any
}

// lock waits for the caller's turn. The caller must then call unlock.
func (ch *changes) lock(c caller) error {
	select {
	case ch.locked <- struct{}{}:
		return nil
	case <-c.ctx.Done():
		return errNoAnswer
	case <-c.stop:
		return errStopping
	}
}

func (ch *changes) unlock() { <-ch.locked }

// note makes the note of a change. Its operations are refused if the id is
// known.
func (ch *changes) note(c caller, id string, did bool) (n note, err error) {
	if err := ch.lock(c); err != nil {
		return n, err
	}
	defer ch.unlock()
	d := c.session.driver
	if now := d.now(); ch.set == "" || now-ch.begun >= int64(knownFor) {
		set, err := c.beginSet()
		if err != nil {
			return n, err
		}
		if ch.last = ch.set; now-ch.begun >= 2*int64(knownFor) {
			ch.last = ""
		}
		ch.set, ch.begun = set, now
		d.life.Go(func() { d.removeSets(set) })
	}
	n.set = ch.set
	var says []byte
	if did {
		says = []byte{'+'}
	}
	for _, set := range [...]string{ch.set, ch.last} {
		if set == "" {
			break
		}
		node := set + "/" + partOf(id)
		n.nodes = append(n.nodes, node)
		n.ops = append(n.ops, &gozk.CreateRequest{Path: node, Data: says, Acl: d.options.ACL})
	}
	return n, nil
}

// find looks up the id of a note after a refusal. If another client has removed
// the set, the next change begins a new set.
func (ch *changes) find(c caller, n note) (did, known bool, err error) {
	for _, node := range n.nodes {
		says, err := c.get(node)
		if !errors.Is(err, gozk.ErrNoNode) {
			return len(says) > 0, err == nil, err
		}
	}
	exists, err := query(c, func(c *gozk.Conn) (bool, error) {
		exists, _, err := c.Exists(n.set)
		return exists, err
	})
	if err != nil || exists {
		return false, false, err
	}
	if err := ch.lock(c); err != nil {
		return false, false, err
	}
	defer ch.unlock()
	if ch.set == n.set {
		ch.set, ch.last = "", ""
	}
	return false, false, nil
}

// beginSet makes a set.
func (c caller) beginSet() (string, error) {
	d := c.session.driver
	node := d.options.Chroot + changesPart + "/set-"
	if err := c.makeAbove(node); err != nil {
		return "", err
	}
	return query(c, func(c *gozk.Conn) (string, error) { return c.Create(node, nil, gozk.FlagSequence, d.options.ACL) })
}

// removeSets removes sets that are old compared to the newest, in order. If it
// cannot remove all of them, for example because another driver is doing the
// same, the next driver that begins a set removes the rest.
func (d *Driver) removeSets(newest string) {
	_ = d.call(d.life.Open(), func(c caller) error {
		above := d.options.Chroot + changesPart
		last, err := c.list(newest)
		if err != nil {
			return err
		}
		sets, err := c.list(above)
		slices.Sort(sets.children)
		for _, set := range sets.children {
			node := above + "/" + set
			var l listing
			// The leaders that made the sets measured these times, in
			// milliseconds, by their own clocks.
			if l, err = c.list(node); err != nil || last.stat.Ctime-l.stat.Ctime < d.changes.keptFor.Milliseconds() {
				break
			}
			if err = c.removeSet(node, l.children); err != nil {
				break
			}
		}
		return err
	})
}

// removeSet removes a set with its ids.
func (c caller) removeSet(set string, ids []string) error {
	var nodes []any
	for _, id := range ids {
		nodes = append(nodes, &gozk.DeleteRequest{Path: set + "/" + id, Version: -1})
	}
	nodes = append(nodes, &gozk.DeleteRequest{Path: set, Version: -1})
	for some := range slices.Chunk(nodes, maxTogether) {
		if _, err := query(c, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return c.Multi(some...) }); err != nil {
			return err
		}
	}
	return nil
}
