package zk

import (
	"errors"
	"slices"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

const (
	// knownFor is how long an id has to be known.
	knownFor = 2 * driver.RepeatFor

	// usualKeptFor is how old a set is when the set goes: a driver puts ids there for up to three times knownFor, and the rest is for
	// the clocks of servers.
	usualKeptFor = 4 * knownFor
)

// changes knows which changes of latches were carried out: the transaction of a change makes nodes that are called by the id, and is refused
// where there is one. These nodes are children of a set. A driver begins a set when the one before is knownFor old, and has the nodes of
// a change in both, so that a change and its repeats have a set in common, whichever of their requests comes first. The nodes are not ephemeral,
// since they must outlast the session and the process. So each driver that begins a set removes all sets, also of other drivers,
// that are usualKeptFor old. A later request finds no set, and is refused.
type changes struct {
	keptFor time.Duration // see usualKeptFor
	turn    chan struct{} // has an element while somebody uses the fields below

	set   string // its path, once there is one
	last  string // the one before, while its ids have to be known
	begun int64
}

// note is what a transaction says of the change that it carries out.
type note struct {
	set   string
	nodes []string // where the id may be
	ops   []any
}

// lock waits for the turn of the caller, who then has to call unlock.
func (ch *changes) lock(c caller) error {
	select {
	case ch.turn <- struct{}{}:
		return nil
	case <-c.ctx.Done():
		return errNoAnswer
	case <-c.stop:
		return errStopping
	}
}

func (ch *changes) unlock() { <-ch.turn }

// note makes the note of a change. Its operations are refused if the id is known.
func (ch *changes) note(d *Driver, c caller, s *session, id string, did bool) (n note, err error) {
	if err := ch.lock(c); err != nil {
		return n, err
	}
	defer ch.unlock()
	if now := d.now(); ch.set == "" || now-ch.begun >= int64(knownFor) {
		set, err := d.beginSet(c, s)
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

// find looks for the id of a note after a refusal. If somebody has removed the set, the next change begins one.
func (ch *changes) find(c caller, s *session, n note) (did, known bool, err error) {
	for _, node := range n.nodes {
		says, err := query(c, s, func(c *gozk.Conn) ([]byte, error) {
			text, _, err := c.Get(node)
			return text, err
		})
		if !errors.Is(err, gozk.ErrNoNode) {
			return len(says) > 0, err == nil, err
		}
	}
	exists, err := query(c, s, func(c *gozk.Conn) (bool, error) {
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
func (d *Driver) beginSet(c caller, s *session) (string, error) {
	node := d.options.Chroot + changesPart + "/set-"
	if err := d.makeAbove(c, s, node); err != nil {
		return "", err
	}
	return query(c, s, func(c *gozk.Conn) (string, error) { return c.Create(node, nil, gozk.FlagSequence, d.options.ACL) })
}

// removeSets removes the sets that are old beside the newest, in their order. What is in the way, such as another driver that does the same,
// is left to whoever begins the next set.
func (d *Driver) removeSets(newest string) {
	ctx := d.life.Open()
	s, err := d.board(caller{ctx: ctx}, d.options.TTL)
	if err != nil {
		return
	}
	defer s.leave()
	c, above := caller{ctx, ctx.Done()}, d.options.Chroot+changesPart
	now, _, err := s.listSet(c, newest)
	if err != nil {
		return
	}
	_, sets, err := s.listSet(c, above)
	if err != nil {
		return
	}
	slices.Sort(sets)
	for _, set := range sets {
		made, ids, err := s.listSet(c, above+"/"+set)
		if err != nil || now-made < d.changes.keptFor.Milliseconds() || !s.removeSet(c, above+"/"+set, ids) {
			return
		}
	}
}

// listSet returns when a set was made, in milliseconds of the clock of the leader at that time, and its ids.
func (s *session) listSet(c caller, set string) (made int64, ids []string, err error) {
	l, err := query(c, s, func(c *gozk.Conn) (listing, error) { return list(c, set) })
	return l.stat.Ctime, l.children, err
}

// removeSet removes a set with its ids, and reports whether the set is gone.
func (s *session) removeSet(c caller, set string, ids []string) bool {
	var nodes []any
	for _, id := range ids {
		nodes = append(nodes, &gozk.DeleteRequest{Path: set + "/" + id, Version: -1})
	}
	nodes = append(nodes, &gozk.DeleteRequest{Path: set, Version: -1})
	for some := range slices.Chunk(nodes, maxTogether) {
		if _, err := query(c, s, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return c.Multi(some...) }); err != nil {
			return false
		}
	}
	return true
}
