package zk

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

const maxReading = 16 // requests at a time

// contender is the node of a holder or waiter.
type contender struct {
	child string
	seq   int32
	value value
	since time.Time
	gone  bool // since the listing
}

// Inspect implements driver.Inspector. Status.Since is when the holder asked for the lock, on the server's clock. Status.Token and TTL
// are known for holders of this driver alone. Contenders of other libraries are named by their nodes.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	s, err := d.board(caller{ctx: ctx}, d.options.TTL)
	if err != nil {
		return driver.Status{}, err
	}
	defer s.leave()
	c := caller{ctx, d.life.Open().Done()}
	dir := d.dir(name)
	queue, err := s.contenders(c, dir)
	if err != nil {
		return driver.Status{}, fault(ctx, s, err)
	}
	if err := s.read(c, dir, queue); err != nil {
		return driver.Status{}, fault(ctx, s, err)
	}
	queue = slices.DeleteFunc(queue, func(c contender) bool { return c.gone })
	if len(queue) == 0 {
		return driver.Status{}, nil
	}
	first := queue[0]
	if last, sealed := sealOf(first.child); sealed {
		return driver.Status{Held: true, Owner: sealOwner, Token: last, Since: first.since, Waiters: len(queue) - 1}, nil
	}
	status := driver.Status{
		Held:    true,
		Hold:    first.value.Hold,
		Owner:   first.value.Owner,
		Note:    first.value.Note,
		Since:   first.since,
		Waiters: len(queue) - 1,
	}
	for _, c := range queue[1:] {
		status.Queue = append(status.Queue, c.value.Owner)
	}
	if h := d.ownHold(dir + "/" + first.child); h != nil {
		if first, n := h.Tokens(); n > 0 {
			status.Token = first + uint64(n) - 1
		}
		status.TTL = max(0, time.Until(h.Expires()))
	}
	return status, nil
}

// contenders returns the holder and the waiters of a name, in order.
func (s *session) contenders(c caller, dir string) ([]contender, error) {
	l, err := query(c, s, func(c *gozk.Conn) (listing, error) { return listSynced(c, dir) })
	if errors.Is(err, gozk.ErrNoNode) {
		return nil, nil
	}
	var queue []contender
	for _, child := range l.children {
		if seq, ok := sequence(child); ok {
			queue = append(queue, contender{child: child, seq: seq})
		}
	}
	slices.SortFunc(queue, func(a, b contender) int {
		if before(a.seq, a.child, b.seq, b.child) {
			return -1
		}
		return 1
	})
	return queue, err
}

// read fills in what the nodes say.
func (s *session) read(c caller, dir string, queue []contender) error {
	next := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range min(len(queue), maxReading) {
		workers.Go(func() { // ends with next
			for i := range next {
				if err := s.readOne(c, dir, &queue[i]); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	for i := range queue {
		next <- i
	}
	close(next)
	workers.Wait()
	return failed
}

func (s *session) readOne(c caller, dir string, one *contender) error {
	node := dir + "/" + one.child
	var stat gozk.Stat
	text, err := query(c, s, func(c *gozk.Conn) ([]byte, error) {
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

// ownHold returns the hold of this driver with a node, or nil.
func (d *Driver) ownHold(node string) *hold {
	d.mu.Lock()
	var sessions []*session
	for s := range d.all {
		sessions = append(sessions, s)
	}
	d.mu.Unlock()
	for _, s := range sessions {
		if h := s.find(node); h != nil && h.isHeld() == nil {
			return h
		}
	}
	return nil
}

// ForceUnlock implements driver.ForceUnlocker.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	s, err := d.board(caller{ctx: ctx}, d.options.TTL)
	if err != nil {
		return err
	}
	defer s.leave()
	c := caller{ctx, d.life.Open().Done()}
	dir := d.dir(name)
	queue, err := s.contenders(c, dir)
	if err != nil {
		return fault(ctx, s, err)
	}
	if len(queue) == 0 {
		return driver.ErrNotHeld
	}
	if _, sealed := sealOf(queue[0].child); sealed {
		return driver.ErrSealed
	}
	node := dir + "/" + queue[0].child
	_, err = query(c, s, func(c *gozk.Conn) (struct{}, error) { return remove(c, node) })
	if errors.Is(err, gozk.ErrNoNode) {
		return driver.ErrNotHeld
	}
	if err != nil {
		return fault(ctx, s, err)
	}
	if h := d.ownHold(node); h != nil {
		h.removed()
	}
	return nil
}
