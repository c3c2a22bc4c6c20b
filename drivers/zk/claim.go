package zk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/internal/cleaner"
)

// create makes the node where the node of the name is there, and others for further permits.
func (h *hold) create(c *gozk.Conn, data []byte) (string, error) {
	if h.more > 0 {
		return h.createAll(c, data)
	}
	node, err := c.Create(h.dir+"/"+h.prefix, data, gozk.FlagEphemeralSequential, h.driver.options.ACL)
	return h.checkedNode(node, err)
}

// createAll makes all nodes in one transaction. The first one has the data, and their numbers follow each other.
func (h *hold) createAll(c *gozk.Conn, data []byte) (string, error) {
	var ops []any
	for range h.count() {
		ops = append(ops, &gozk.CreateRequest{Path: h.dir + "/" + h.prefix, Data: data, Acl: h.driver.options.ACL, Flags: gozk.FlagEphemeralSequential})
		data = nil
	}
	results, err := c.Multi(ops...)
	if err != nil {
		return "", err
	}
	for i, r := range results {
		if len(results) != h.count() || r.String != sibling(results[0].String, i) {
			return "", errAnswer
		}
	}
	return h.checkedNode(results[0].String, nil)
}

// createBoth makes the node of the name, and below it the node of the attempt, with the lock. The transaction also changes the node of the
// name, so a node of this driver has version 1 and was made and changed by one transaction. No other library's node is like this.
func (h *hold) createBoth(c *gozk.Conn, data []byte) (string, error) {
	acl := h.driver.options.ACL
	results, err := c.Multi(
		&gozk.CreateRequest{Path: h.dir, Acl: acl},
		&gozk.CreateRequest{Path: h.dir + "/" + h.prefix, Data: data, Acl: acl, Flags: gozk.FlagEphemeralSequential},
		&gozk.SetDataRequest{Path: h.dir, Version: -1},
	)
	if err == nil && len(results) < 2 {
		err = errAnswer
	}
	if err != nil {
		return "", err
	}
	return h.checkedNode(results[1].String, nil)
}

// checkedNode returns the node in an answer, and an error if the answer cannot be right: the caller then looks for the node.
func (h *hold) checkedNode(node string, err error) (string, error) {
	if err == nil && !strings.HasPrefix(node, h.dir+"/"+h.prefix) {
		return "", errAnswer
	}
	return node, err
}

// isOurMake reports whether a node was made by createBoth, and not changed since.
func isOurMake(stat *gozk.Stat) bool { return stat.Version == ourVersion && stat.Czxid == stat.Mzxid }

// ourVersion is the version of a node by createBoth. Others have 0.
const ourVersion = 1

// created enters a new node in the books of the session.
func (h *hold) created(c caller, node string) error {
	child := node[len(h.dir)+1:]
	own, ok := contenderOf(child)
	if !ok { // a server of another make
		h.node = node
		return h.abandon(c, fmt.Errorf("the server called the node %q", child))
	}
	h.node, h.seq = node, own.seq
	if own.seq < 0 || int(own.seq)+h.more >= math.MaxInt32 {
		return h.abandon(c, fmt.Errorf("%w: %s", errLastNumber, h.dir))
	}
	s := h.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return errAgain
	}
	for i := range h.count() {
		s.nodes[sibling(node, i)] = h
	}
	return nil
}

// recover looks for a node after a request without an answer.
func (h *hold) recover(c caller) (found bool, err error) {
	l, err := query(c, h.session, func(c *gozk.Conn) (listing, error) { return listSynced(c, h.dir) })
	if isOurs(err) {
		return false, h.doubt(c, err, nil, false)
	}
	if child := l.first(h.prefix); child != "" {
		return true, h.created(c, h.dir+"/"+child)
	}
	// A server that stood still may yet carry the request out.
	h.driver.haunt(&ghost{session: h.session, dir: h.dir, prefix: h.prefix, more: h.more})
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false, h.fail(c, err)
	}
	return false, nil
}

// makeAbove makes what is missing above a node, and begins anew where the server removes an empty container meanwhile.
func (d *Driver) makeAbove(c caller, s *session, node string) error {
	for i := 1; i < len(node); i++ {
		next := strings.IndexByte(node[i:], '/')
		if next < 0 {
			return nil
		}
		i += next
		path, inChroot := node[:i], i <= len(d.options.Chroot)
		_, err := query(c, s, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, d.ensure(c, path, inChroot) })
		if errors.Is(err, gozk.ErrNoNode) {
			i = 0
		} else if err != nil && !errors.Is(err, gozk.ErrNodeExists) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// ensure makes a node unless there is one: a container, which the server removes when empty, or a persistent node if stays is set.
func (d *Driver) ensure(c *gozk.Conn, path string, stays bool) error {
	if exists, _, err := c.Exists(path); exists || err != nil {
		return err
	}
	if !stays {
		_, err := c.CreateContainer(path, nil, gozk.FlagContainer, d.options.ACL)
		if isAnswer(err) || !isServerError(err) {
			return err
		}
		// The server knows no containers.
	}
	_, err := c.Create(path, nil, gozk.FlagPersistent, d.options.ACL)
	return err
}

// askToRemove asks to remove the node, and with the last node of a name the node of the name, if a driver made it. Where others are likely
// to wait, or to read, the node goes first, which wakes those who wait, and the rest is left to removeNameNode.
func (h *hold) askToRemove() <-chan reply[struct{}] {
	d, s := h.driver, h.session
	crowded := d.nameNodes.isCrowded(h.dir, d.now())
	s.mu.Lock()
	h.crowded = h.crowded || crowded
	alone := h.ours && !h.crowded
	s.mu.Unlock()
	if alone {
		return sendChange(s, h.removeBoth)
	}
	if h.more > 0 {
		return sendChange(s, h.removeNodes)
	}
	if answer := s.removeNow(h.node); answer != nil {
		return answer
	}
	return sendChange(s, h.removeNodes)
}

// removeNodes removes the nodes of the hold, all in one step. If somebody has removed one, the others go one after the other.
func (h *hold) removeNodes(c *gozk.Conn) (struct{}, error) {
	if h.more == 0 {
		return removeOwn(c, h.node)
	}
	var ops []any
	for i := range h.count() {
		ops = append(ops, &gozk.DeleteRequest{Path: sibling(h.node, i), Version: -1})
	}
	_, err := c.Multi(ops...)
	if err = ofOwn(err); !errors.Is(err, gozk.ErrNoNode) {
		return struct{}{}, err
	}
	for i := range h.count() {
		if _, err := removeOwn(c, sibling(h.node, i)); err != nil && !errors.Is(err, gozk.ErrNoNode) {
			return struct{}{}, err
		}
	}
	return struct{}{}, err
}

// removeBoth removes the node and the node of the name, or the node alone if there are others by now. The server writes a refusal to its
// log, as it does a transaction, so those who wait are woken after two writes: the next release of the name expects others.
func (h *hold) removeBoth(c *gozk.Conn) (struct{}, error) {
	d, s := h.driver, h.session
	// Callers who come meanwhile must not rely on the node of the name.
	d.nameNodes.remove(h.dir)
	_, err := c.Multi(&gozk.DeleteRequest{Path: h.node, Version: -1}, &gozk.DeleteRequest{Path: h.dir, Version: ourVersion})
	if err == nil || errors.Is(err, gozk.ErrNoNode) || !isAnswer(err) {
		return struct{}{}, err
	}
	d.nameNodes.add(h.dir)
	d.nameNodes.crowd(h.dir, d.now()+crowdedFor)
	s.mu.Lock()
	h.ours = false
	s.mu.Unlock()
	return removeOwn(c, h.node)
}

// removeNameNode removes the node of the name in the background, after the node of the hold, if a driver made the node of the name and no child
// is left. Nobody waits for the answer: the next holder of the name tries again. Releases that follow each other share a look.
func (h *hold) removeNameNode() {
	d, s, dir := h.driver, h.session, h.dir
	s.mu.Lock()
	_, begun := s.removing[dir]
	needed := h.ours && !begun
	if needed {
		s.removing[dir] = struct{}{}
	}
	s.mu.Unlock()
	if !needed {
		return
	}
	d.life.Go(func() { // ends with the session
		// Waiters that were woken come first: they look, and the server handles one request after the other.
		awake := d.life.Sleep(s.online, removeAfter)
		s.mu.Lock()
		delete(s.removing, dir)
		s.mu.Unlock()
		if awake {
			send(s, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, d.removeEmpty(c, dir) })
		}
	})
}

// removeEmpty removes the node of a name that a driver made and nobody contends for. A look comes first, since the server writes a refused
// deletion to its log, and no look.
func (d *Driver) removeEmpty(c *gozk.Conn, dir string) error {
	exists, stat, err := c.Exists(dir)
	if err != nil || exists && (stat.NumChildren > 0 || !isOurMake(stat)) {
		return err
	}
	// Callers who come meanwhile must not rely on the node of the name.
	d.nameNodes.remove(dir)
	if !exists {
		return nil
	}
	err = c.Delete(dir, ourVersion)
	if errors.Is(err, gozk.ErrNotEmpty) {
		d.nameNodes.add(dir)
	}
	return err
}

const (
	maxCleaning = 16 // requests at a time
	retireAfter = 2 * time.Second
)

// ghost is an unwanted node that may be left at the server, or appear there later.
//
// A known node is gone when the server has removed it, or answers that there is none. A node whose creation got no answer may yet appear,
// from a server that stood still: the cleaner looks again, ever more seldom, and the session takes no more locks, so that the session
// ends, and the node with it, as soon as the last of its locks does. Ghosts are bounded by the requests that fail while a session lasts.
type ghost struct {
	cleaner.Ghost
	session *session
	hold    *hold // nil if the node is not known to be there
	leaves  bool  // the hold is still a user of the session
	refused bool  // the server refuses to remove the node

	dir, prefix string
	answer      <-chan reply[string] // to the request for the node, if the answer may come yet
	node        string               // the path of the node, once known
	more        int                  // nodes that were made together with the node
	both        bool                 // the node of the name goes with the node
	paths       int                  // bytes of the paths of the nodes, unless those count as the hold's
}

// newCleaner returns what ends ghosts.
func newCleaner(d *Driver) *cleaner.Cleaner[*ghost] {
	settle := func(ghosts []*ghost) []*ghost { return slices.DeleteFunc(ghosts, d.endGhost) }
	return cleaner.New(d.life, cleaner.Policy[*ghost]{Settle: settle, Batch: 1, Calls: maxCleaning})
}

// haunt has a ghost settled. Its nodes count among those of the session.
func (d *Driver) haunt(g *ghost) {
	if !g.leaves {
		dir, prefix, more := g.dir, g.prefix, g.more
		if h := g.hold; h != nil {
			dir, prefix, more = h.dir, h.prefix, h.more
		}
		g.paths = (more + 1) * pathSize(dir, len(prefix))
		g.session.mu.Lock()
		g.session.paths += g.paths
		g.session.mu.Unlock()
	}
	d.ghosts.Add(g)
}

// endGhost asks once, and reports whether the ghost is gone for good.
func (d *Driver) endGhost(g *ghost) bool {
	ctx, cancel := d.background(attemptFor)
	defer cancel()
	s := g.session
	settled := s.isDead() // and all its nodes with it
	switch {
	case settled:
	case g.hold != nil:
		settled = g.hold.removeOnce(ctx, g)
	default:
		settled = d.find(ctx, g)
	}
	if !settled && g.refused && time.Since(g.Added) > retireAfter { // the node goes with the session
		s.retire()
		if g.leaves {
			g.leaves = false
			g.hold.leave()
		}
	}
	switch {
	case settled && g.leaves:
		g.hold.leave()
	case settled:
		s.mu.Lock()
		s.paths -= g.paths
		s.mu.Unlock()
	}
	return settled
}

// removeOnce asks once to remove the node of a ghost.
func (h *hold) removeOnce(ctx context.Context, g *ghost) bool {
	s := h.session
	c := caller{ctx: ctx}
	if s.await(c) != nil {
		return false
	}
	_, err := receive(c, s, h.askToRemove())
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		g.refused = isAnswer(err) && !isThrottled(err)
		return false
	}
	s.mu.Lock()
	h.phase = over
	crowded := h.crowded
	s.mu.Unlock()
	if crowded {
		h.removeNameNode()
	}
	h.forget()
	return true
}

// find looks for the node of a request without an answer, and removes the node.
func (d *Driver) find(ctx context.Context, g *ghost) bool {
	s := g.session
	c := caller{ctx: ctx}
	if g.answer != nil {
		node, err := receive(c, s, g.answer)
		if isOurs(err) {
			return false
		}
		g.answer = nil
		if isAnswer(err) && err != nil {
			return true // nothing was made
		}
		g.node = node // "" after an error
	}
	if g.node == "" && !g.look(c) {
		return false
	}
	// A repeat finds no node where the request before did its work and its answer is missing.
	for i := range g.more + 1 {
		_, err := query(c, s, func(c *gozk.Conn) (struct{}, error) { return removeOwn(c, sibling(g.node, i)) })
		if err != nil && !errors.Is(err, gozk.ErrNoNode) {
			g.refused = isAnswer(err) && !isThrottled(err)
			return false
		}
	}
	if g.both {
		send(s, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, c.Delete(g.dir, ourVersion) })
	}
	return true
}

// look reports whether the node is at the server. If the node does not appear for some time, the session ends with its last lock.
func (g *ghost) look(c caller) bool {
	s := g.session
	l, err := query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, g.dir) })
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return false
	}
	if child := l.first(g.prefix); child != "" {
		g.node, g.both = g.dir+"/"+child, isOurMake(&l.stat)
		return true
	}
	if time.Since(g.Added) > retireAfter {
		s.retire()
	}
	return false
}
