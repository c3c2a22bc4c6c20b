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

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// claim is the set of nodes that a request has on the server: one node, or one
// for each permit, created by one transaction with consecutive numbers. Before
// the grant the fields belong to the request. Once the claim is a ghost, they
// belong to the cleaner.
type claim struct {
	session   *session
	dir       string
	infix     string // in the names of the nodes
	mode      driver.Mode
	count     int
	contained bool // dir is inside the container that is the node of the name

	prefix string // of the names of the nodes
	node   string // the path of the first node; "" if none is known
	seq    int32  // number of the first node

	// Guarded by session.mu once there is a hold.
	ours    bool // the node of the name is removed with the claim, as far as the last read showed
	crowded bool // the request waited, or it reads together with others
}

// size returns the number of bytes that the paths of the nodes occupy in the
// transaction that ends their session.
func (q *claim) size() int { return q.count * pathSize(q.dir, prefixSize(q.infix)) }

// sendCreate requests the nodes, and also the node of the name if q.ours is
// set.
func (q *claim) sendCreate(data []byte) <-chan reply[string] {
	make := q.create
	if q.ours {
		make = q.createBoth
	}
	return send(q.session, func(c *gozk.Conn) (string, error) {
		node, err := make(c, data)
		if err == nil && !strings.HasPrefix(node, q.dir+"/"+q.prefix) {
			return "", errAnswer // such an answer cannot be correct, so the request searches for the node
		}
		return node, err
	})
}

// create makes the nodes if the node of the name exists. The first node has the
// data, and the numbers of the nodes are consecutive.
func (q *claim) create(c *gozk.Conn, data []byte) (string, error) {
	acl := q.session.driver.options.ACL
	if q.count == 1 {
		return c.Create(q.dir+"/"+q.prefix, data, gozk.FlagEphemeralSequential, acl)
	}
	var ops []any
	for range q.count {
		ops = append(ops, &gozk.CreateRequest{Path: q.dir + "/" + q.prefix, Data: data, Acl: acl, Flags: gozk.FlagEphemeralSequential})
		data = nil
	}
	results, err := c.Multi(ops...)
	if err != nil {
		return "", err
	}
	for i, r := range results {
		if len(results) != q.count || r.String != sibling(results[0].String, i) {
			return "", errAnswer
		}
	}
	return results[0].String, nil
}

// createBoth makes the node of the name, and below it the node of the claim,
// which holds the lock. The transaction also changes the node of the name, so a
// node of this driver has version 1 and was made and changed by one
// transaction. No other library makes such nodes.
func (q *claim) createBoth(c *gozk.Conn, data []byte) (string, error) {
	acl := q.session.driver.options.ACL
	results, err := c.Multi(
		&gozk.CreateRequest{Path: q.dir, Acl: acl},
		&gozk.CreateRequest{Path: q.dir + "/" + q.prefix, Data: data, Acl: acl, Flags: gozk.FlagEphemeralSequential},
		&gozk.SetDataRequest{Path: q.dir, Version: -1},
	)
	if err == nil && len(results) < 2 {
		err = errAnswer
	}
	if err != nil {
		return "", err
	}
	return results[1].String, nil
}

// isOurMake reports whether a node was created by createBoth and has not
// changed since.
func isOurMake(stat *gozk.Stat) bool { return stat.Version == ourVersion && stat.Czxid == stat.Mzxid }

// ourVersion is the version of a node made by createBoth. Other nodes have 0.
const ourVersion = 1

// made records the first node of the claim.
func (q *claim) made(node string) error {
	q.node = node
	child := node[len(q.dir)+1:]
	own, ok := contenderOf(child)
	if !ok { // the server is not a ZooKeeper server
		return fmt.Errorf("the server called the node %q", child)
	}
	if q.seq = own.seq; own.seq < 0 || int(own.seq)+q.count-1 >= math.MaxInt32 {
		return fmt.Errorf("%w: %s", errLastNumber, q.dir)
	}
	return nil
}

// find determines the outcome of an unanswered request for the claim. It
// returns the first node, or "" if the server has none, and records whether the
// node of the name is removed with it.
func (q *claim) find(c caller) (node string, err error) {
	l, err := c.listSynced(q.dir)
	if errors.Is(err, gozk.ErrNoNode) {
		return "", nil
	}
	child := l.first(q.prefix)
	if err != nil || child == "" {
		return "", err
	}
	q.ours = isOurMake(&l.stat)
	return q.dir + "/" + child, nil
}

// checkNodes returns ErrNoNode if one of the nodes does not exist or does not
// belong to the session.
func (q *claim) checkNodes(c *gozk.Conn) error {
	for i := range q.count {
		exists, stat, err := c.Exists(sibling(q.node, i))
		if err != nil {
			return err
		}
		if !exists || stat.EphemeralOwner != c.SessionID() {
			// another client has put another node in its place
			return gozk.ErrNoNode
		}
	}
	return nil
}

// giveBack removes the claim and returns err, or ErrUnknown if there is no
// immediate answer. The removal then continues in the background.
func (q *claim) giveBack(c caller, err error) error {
	d := q.session.driver
	ctx, cancel := d.background(leaveFor)
	defer cancel()
	defer context.AfterFunc(c.ctx, func() { // ends when ctx ends
		if d.life.Sleep(ctx, leaveSoon) {
			cancel()
		}
	})()
	_, failed := query(caller{q.session, ctx, c.stop}, q.removeNodes)
	switch {
	case failed == nil, errors.Is(failed, gozk.ErrNoNode):
		q.removeNameNode()
		return err
	case errors.Is(failed, errOver):
		return err // the nodes ended with the session
	case errors.Is(failed, errStopping):
		q.session.leaveToClose(q)
		return driver.ErrClosed
	}
	haunt(&ghost{claim: q})
	if c.ctx.Err() != nil {
		return lifecycle.WithCause(c.ctx, driver.ErrUnknown, failed)
	}
	return errors.Join(driver.ErrUnknown, err)
}

// sendRemove requests the removal of the nodes. If they are the last nodes of
// the name, it also requests the removal of the name's node, provided that a
// driver made it. If other clients are likely to wait or read, the nodes go
// first, which wakes the waiters, and removeNameNode does the rest.
func (q *claim) sendRemove() <-chan reply[struct{}] {
	s := q.session
	crowded := s.driver.nameNodes.isCrowded(q.dir, s.driver.now())
	s.mu.Lock()
	q.crowded = q.crowded || crowded
	alone := q.ours && !q.crowded
	s.mu.Unlock()
	if alone {
		return sendChange(s, q.removeBoth)
	}
	if q.count == 1 {
		if answer := s.removeNow(q.node); answer != nil {
			return answer
		}
	}
	return sendChange(s, q.removeNodes)
}

// removeNodes removes the nodes, all in one step. If another client has removed
// one of them, the others are removed one after another.
func (q *claim) removeNodes(c *gozk.Conn) (struct{}, error) {
	if q.count == 1 {
		return removeOwn(c, q.node)
	}
	var ops []any
	for i := range q.count {
		ops = append(ops, &gozk.DeleteRequest{Path: sibling(q.node, i), Version: -1})
	}
	_, err := c.Multi(ops...)
	if err = ofOwn(err); !errors.Is(err, gozk.ErrNoNode) {
		return struct{}{}, err
	}
	for i := range q.count {
		if _, err := removeOwn(c, sibling(q.node, i)); err != nil && !errors.Is(err, gozk.ErrNoNode) {
			return struct{}{}, err
		}
	}
	return struct{}{}, err
}

// removeBoth removes the node and the node of the name, or only the node if the
// name now has other nodes. The server logs a refusal like a transaction, so in
// the latter case it wakes the waiters after two writes. The next release of
// the name then expects other clients.
func (q *claim) removeBoth(c *gozk.Conn) (struct{}, error) {
	s := q.session
	d := s.driver
	// Callers that arrive in the meantime must not rely on the node of the
	// name.
	d.nameNodes.remove(q.dir)
	_, err := c.Multi(&gozk.DeleteRequest{Path: q.node, Version: -1}, &gozk.DeleteRequest{Path: q.dir, Version: ourVersion})
	if err == nil || errors.Is(err, gozk.ErrNoNode) || !isAnswer(err) {
		return struct{}{}, err
	}
	d.nameNodes.add(q.dir)
	d.nameNodes.crowd(q.dir, d.now()+crowdedFor)
	s.mu.Lock()
	q.ours = false
	s.mu.Unlock()
	return removeOwn(c, q.node)
}

// removeNameNode removes the node of the name in the background, after the
// nodes of the claim, if a driver made the node of the name and no child is
// left. No caller waits for the answer, because the next holder of the name
// tries again. Releases in quick succession share one read.
func (q *claim) removeNameNode() {
	s, dir := q.session, q.dir
	d := s.driver
	s.mu.Lock()
	_, begun := s.removing[dir]
	needed := q.ours && !begun
	if needed {
		s.removing[dir] = struct{}{}
	}
	s.mu.Unlock()
	if !needed {
		return
	}
	d.life.Go(func() { // ends when the session ends
		// Woken waiters come first, because they read the queue and the server
		// handles one request after another.
		awake := d.life.Sleep(s.online, removeAfter)
		s.mu.Lock()
		delete(s.removing, dir)
		s.mu.Unlock()
		if awake {
			send(s, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, d.removeEmpty(c, dir) })
		}
	})
}

// removeEmpty removes the node of a name that a driver made and that has no
// contenders. It reads the node first, because the server writes refused
// deletions to its log, but not reads.
func (d *Driver) removeEmpty(c *gozk.Conn, dir string) error {
	exists, stat, err := c.Exists(dir)
	if err != nil || exists && (stat.NumChildren > 0 || !isOurMake(stat)) {
		return err
	}
	// Callers that arrive in the meantime must not rely on the node of the
	// name.
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

// makeAbove makes missing nodes above a node. It starts again if the server
// removes an empty container in the meantime.
func (c caller) makeAbove(node string) error {
	d := c.session.driver
	for i := 1; i < len(node); i++ {
		next := strings.IndexByte(node[i:], '/')
		if next < 0 {
			return nil
		}
		i += next
		path, inChroot := node[:i], i <= len(d.options.Chroot)
		_, err := query(c, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, d.ensure(c, path, inChroot) })
		if errors.Is(err, gozk.ErrNoNode) {
			i = 0
		} else if err != nil && !errors.Is(err, gozk.ErrNodeExists) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// ensure makes a node unless there is one. The node is a container, which the
// server removes when it is empty, or, if stays is set, a persistent node.
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

const (
	maxCleaning = 16 // concurrent requests
	retireAfter = 2 * time.Second
)

// ghost is an unwanted claim that may be left on the server, or may appear
// there later.
//
// A known node is gone when the server has removed it, or answers that there is
// none. A node whose creation got no answer may still appear, from a server
// that was frozen. The cleaner then checks again at growing intervals, and the
// session accepts no more locks. So the session, and the node with it, ends as
// soon as the last of its locks ends. The number of ghosts is bounded by the
// number of requests that fail while a session lasts.
type ghost struct {
	cleaner.Ghost
	claim  *claim
	hold   *hold // the hold of the claim, if it was granted
	leaves bool  // the hold is still a user of the session
	// receives the answer to the request for the claim, if it may still arrive
	late    <-chan reply[string]
	refused bool // the server refuses to remove the nodes
}

// newCleaner returns the cleaner that ends ghosts.
func newCleaner(d *Driver) *cleaner.Cleaner[*ghost] {
	settle := func(ghosts []*ghost) []*ghost { return slices.DeleteFunc(ghosts, d.endGhost) }
	return cleaner.New(d.life, cleaner.Policy[*ghost]{Settle: settle, Batch: 1, Calls: maxCleaning})
}

// haunt makes the cleaner settle a ghost. Its nodes count as nodes of the
// session.
func haunt(g *ghost) {
	s := g.claim.session
	if !g.leaves {
		s.AddLoad(g.claim.size())
	}
	s.driver.ghosts.Add(g)
}

// endGhost makes one attempt and reports whether the ghost is gone permanently.
func (d *Driver) endGhost(g *ghost) bool {
	ctx, cancel := d.background(attemptFor)
	defer cancel()
	s := g.claim.session
	settled := s.IsDead() || g.remove(caller{session: s, ctx: ctx}) // the nodes are deleted with the session
	if !settled && g.refused && time.Since(g.Added) > retireAfter {
		s.Retire()
		if g.leaves {
			g.leaves = false
			s.AddLoad(g.claim.size())
			g.hold.leaveSession()
		}
	}
	switch {
	case settled && g.leaves:
		g.hold.leaveSession()
	case settled:
		s.AddLoad(-g.claim.size())
	}
	return settled
}

// remove makes one attempt to remove the claim of a ghost and reports whether
// it is gone permanently. If an unanswered claim does not appear for some time,
// the session ends with its last lock.
func (g *ghost) remove(c caller) bool {
	q := g.claim
	if g.late != nil {
		node, err := receive(c, g.late)
		if isOurs(err) {
			return false
		}
		g.late = nil
		if isAnswer(err) && err != nil {
			return true // no node was made
		}
		q.node = node // "" after an error
	}
	if q.node == "" {
		node, err := q.find(c)
		if q.node = node; node == "" {
			if err == nil && time.Since(g.Added) > retireAfter {
				q.session.Retire()
			}
			return false
		}
	}
	if c.await() != nil {
		return false
	}
	_, err := receive(c, q.sendRemove())
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		g.refused = isAnswer(err) && !isThrottled(err)
		return false
	}
	q.session.mu.Lock()
	crowded := q.crowded
	if g.hold != nil {
		g.hold.phase = over
	}
	q.session.mu.Unlock()
	if crowded {
		q.removeNameNode()
	}
	if g.hold != nil {
		g.hold.forget()
	}
	return true
}

// pathSize returns the number of bytes that the path of a node below dir
// occupies in the transaction that ends its session.
func pathSize(dir string, prefix int) int { return len(dir) + 1 + prefix + seqDigits + pathExtra }

func prefixSize(infix string) int { return len(guidPrefix) + 2*guidSize + 1 + len(infix) }
