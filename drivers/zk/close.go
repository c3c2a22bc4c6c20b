package zk

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// maxTogether is how many locks end in one request of Close.
const maxTogether = 100

// Close implements driver.Driver. The locks of a session end with the session, in one request, but for those whose name the driver
// made: where nobody waits for them they go together with the nodes of their names, many in one request.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	waiting := d.life.AwaitCalls(ctx)
	d.mu.Lock()
	sessions := slices.Collect(maps.Keys(d.all))
	d.mu.Unlock()
	for _, s := range sessions {
		s.tidy(ctx)
		s.kill(false)
	}
	left := 0
	for _, s := range sessions {
		select {
		case <-s.buried:
		case <-ctx.Done():
			s.cut()
			s.breakLinks()
			<-s.buried
		}
		if !s.awaitEnd(ctx) {
			left++
		}
	}
	d.life.End()
	d.life.Wait() // all requests end with their sessions
	if waiting+left > 0 {
		return fmt.Errorf("%w: %d calls and %d sessions were left behind", driver.ErrUnknown, waiting, left)
	}
	return nil
}

// tidy removes the nodes of names together with the locks on them, as far as the server answers at once.
func (s *session) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveFor)
	defer cancel()
	s.mu.Lock()
	var holds []*hold
	for _, h := range s.nodes {
		if h.phase == held && h.ours {
			h.phase = over // whatever the answer: the session ends
			if h.timer != nil {
				h.timer.Stop()
			}
			holds = append(holds, h)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(holds, func(a, b *hold) int { return strings.Compare(a.dir, b.dir) })
	for some := range slices.Chunk(holds, maxTogether) {
		if !s.removeTogether(caller{ctx: ctx}, some) {
			return
		}
	}
}

// removeTogether removes the nodes of some holds, and then the nodes of the names where no other client is left, and reports whether the
// server answered.
func (s *session) removeTogether(c caller, holds []*hold) bool {
	var nodes, dirs []any
	for i, h := range holds {
		nodes = append(nodes, &gozk.DeleteRequest{Path: h.node, Version: -1})
		if i == 0 || h.dir != holds[i-1].dir { // two Reads may have a name
			dirs = append(dirs, &gozk.DeleteRequest{Path: h.dir, Version: ourVersion})
		}
	}
	for ops := append(nodes, dirs...); ; {
		if s.await(c) != nil {
			return false
		}
		results, err := receive(c, s, send(s, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return c.Multi(ops...) }))
		refused := slices.IndexFunc(results, func(r gozk.MultiResponse) bool { return r.Error != nil })
		if err == nil || !isAnswer(err) || refused < 0 || refused >= len(ops) {
			return isAnswer(err)
		}
		ops = slices.Delete(ops, refused, refused+1)
	}
}

// awaitEnd waits until the servers do not have the session any more, and reports whether they do not. A session that began anew under
// another leader may last longer.
func (s *session) awaitEnd(ctx context.Context) bool {
	d := s.driver
	if s.gone.Load() || s.expires.Load() == 0 {
		return true
	}
	late := int64(d.minTTL + time.Second)
	return d.life.Sleep(ctx, time.Duration(s.lastSent.Load()+s.timeout.Load()+late-d.now()))
}
