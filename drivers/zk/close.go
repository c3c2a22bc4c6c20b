package zk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// Close implements driver.Driver. The nodes are removed before their session
// ends, many in one request. The nodes of names that the driver made are
// removed with them if no other client is left.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	waiting := d.life.AwaitCalls(ctx)
	sessions := d.sessions.All()
	var tidying sync.WaitGroup
	for _, s := range sessions {
		tidying.Go(func() {
			s.tidy(ctx)
			s.Die(nil)
		})
	}
	tidying.Wait()
	left := 0
	for _, s := range sessions {
		select {
		case <-s.Buried():
		case <-ctx.Done():
			s.cut()
			s.breakLinks()
			<-s.Buried()
		}
		if !s.awaitEnd(ctx) {
			left++
		}
	}
	d.life.End()
	d.life.Wait() // all requests end when their sessions end
	if waiting+left > 0 {
		return fmt.Errorf("%w: %d calls and %d sessions were left behind", driver.ErrUnknown, waiting, left)
	}
	return nil
}

// tidy removes the nodes of the session and leaves some of the time for the end
// of the session itself. It leaves nodes that a release is removing, and all
// nodes that remain when ctx ends, because they disappear with the session.
func (s *session) tidy(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-min(leaveFor, time.Until(deadline)/2)))
		defer cancel()
	}
	c := caller{session: s, ctx: ctx}
	select {
	case <-s.Ready():
	case <-ctx.Done():
		return
	}
	nodes := s.takeNodes()
	for _, some := range batches(nodes) {
		if !s.removeTogether(c, some) {
			return
		}
	}
	if len(nodes) == 0 && s.Err() == nil {
		// the request to end the session is sent once, so the connection must
		// be working
		_, _ = query(c, func(c *gozk.Conn) (bool, error) {
			exists, _, err := c.Exists("/")
			return exists, err
		})
	}
}

// unwanted is a node to be removed.
type unwanted struct {
	node string
	dir  string // the node of the name
	ours bool   // dir is removed as well
	rank int    // 1 for the node of a holder, and 0 for others
}

// takeNodes returns the nodes of the session in the order of their names,
// waiters before holders, so that no waiter of the session is woken. From now
// on the holds have ended, even if their nodes stay, because the session ends.
func (s *session) takeNodes() (nodes []unwanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.left {
		for i := range q.count {
			nodes = append(nodes, unwanted{node: sibling(q.node, i), dir: q.dir})
		}
	}
	for node, h := range s.nodes {
		switch h.phase {
		case ending, doubted:
		case held:
			nodes = append(nodes, unwanted{node: node, dir: h.dir, ours: h.ours, rank: 1})
		default:
			nodes = append(nodes, unwanted{node: node, dir: h.dir})
		}
	}
	for _, h := range s.nodes {
		if h.phase == held {
			h.phase = over
			if h.timer != nil {
				h.timer.Stop()
			}
		}
	}
	slices.SortFunc(nodes, func(a, b unwanted) int {
		return cmp.Or(strings.Compare(a.dir, b.dir), cmp.Compare(a.rank, b.rank))
	})
	return nodes
}

// leaveToClose makes Close remove the nodes of an unwanted claim.
func (s *session) leaveToClose(q *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, q)
}

// batches splits nodes into groups for one request each.
func batches(nodes []unwanted) (all [][]unwanted) {
	for len(nodes) > 0 {
		n, size := 0, 0
		for n < min(len(nodes), maxTogether) {
			if size += 2 * len(nodes[n].node); size > maxNodes && n > 0 {
				break
			}
			n++
		}
		all, nodes = append(all, nodes[:n]), nodes[n:]
	}
	return all
}

// removeTogether removes some nodes, and also the nodes of their names if no
// other client is left. It reports whether the server answered.
func (s *session) removeTogether(c caller, some []unwanted) bool {
	var nodes, dirs []any
	last := ""
	for _, u := range some {
		nodes = append(nodes, &gozk.DeleteRequest{Path: u.node, Version: -1})
		if u.ours && u.dir != last { // two Reads may have the same name
			dirs = append(dirs, &gozk.DeleteRequest{Path: u.dir, Version: ourVersion})
			last = u.dir
		}
	}
	for ops := append(nodes, dirs...); len(ops) > 0; {
		if c.await() != nil {
			return false
		}
		results, err := receive(c, send(s, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return c.Multi(ops...) }))
		refused := slices.IndexFunc(results, func(r gozk.MultiResponse) bool { return r.Error != nil })
		if err == nil || isOurs(err) {
			return err == nil
		}
		if isAnswer(err) && refused >= 0 && refused < len(ops) {
			ops = slices.Delete(ops, refused, refused+1)
		} else if isServerError(err) && !isThrottled(err) || c.pause() != nil {
			return isAnswer(err)
		}
	}
	return true
}

// awaitEnd waits until the servers have ended the session, and reports whether
// they have ended it. A session that started again under another leader may
// last longer.
func (s *session) awaitEnd(ctx context.Context) bool {
	d := s.driver
	if s.gone.Load() || s.End.At() == 0 {
		return true
	}
	late := int64(d.minTTL + time.Second)
	return d.life.Sleep(ctx, time.Duration(s.lastSent.Load()+s.timeout.Load()+late-d.now()))
}
