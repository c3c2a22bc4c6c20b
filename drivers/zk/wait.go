package zk

import (
	"errors"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// backStop is the pause after which a waiter looks although nothing woke it. Those before it are shorter, 16 s with it.
const backStop = 8 * time.Second

// follow has h wake next when it is gone. session.mu is held.
func (h *hold) follow(next *hold) {
	h.next = next
	next.behind = h
	if next.wake == nil {
		next.wake = make(chan struct{}, 1)
	}
}

// wait returns when the node has the lock, or is gone.
func (h *hold) wait(c caller, waited *bool) error {
	s := h.session
	var w *watch
	for {
		s.mu.Lock()
		local, granted := h.behind != nil, h.isFirst
		s.mu.Unlock()
		if granted {
			return nil
		}
		if local {
			w = nil
		} else {
			next, first, err := h.look(c, w)
			if first || err != nil {
				return err
			}
			if w = next; w == nil && !h.follows() {
				continue
			}
		}
		if h.request.NoWait {
			return h.abandon(c, driver.ErrLocked)
		}
		if !*waited {
			*waited = true
			h.request.Events.Waiting()
		}
		if err := h.sleep(c, w); err != nil {
			return err
		}
	}
}

// follows reports whether another hold of this driver will wake h.
func (h *hold) follows() bool {
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	return h.behind != nil || h.isFirst
}

// sleep waits until there is something to look at. The longer it waits, the longer the server may be silent.
func (h *hold) sleep(c caller, w *watch) error {
	var event <-chan struct{}
	if w != nil {
		event = w.over
	}
	h.session.mu.Lock()
	h.waited = true
	h.session.mu.Unlock()
	quiet := time.Duration(h.driver.nudgeAfter.Load())
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-event:
			return nil
		case <-h.wake:
			return nil
		case <-timer.C:
			if quiet >= backStop {
				h.lookAnyway()
				return nil
			}
			h.session.nudge(quiet)
			quiet *= 2
			timer.Reset(quiet)
		case <-h.session.over:
			return errAgain
		case <-c.stop:
			return driver.ErrClosed // Close ends the node with the session
		case <-c.ctx.Done():
			return h.giveUp(c)
		}
	}
}

// lookAnyway has h look who is before it, also if that is a hold of this driver that would wake it.
func (h *hold) lookAnyway() {
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	if p := h.behind; p != nil && !h.isFirst {
		h.behind = nil
		if p.next == h {
			p.next = nil
		}
	}
}

// giveUp ends a wait, unless the lock was granted at this very moment.
func (h *hold) giveUp(c caller) error {
	h.session.mu.Lock()
	granted := h.isFirst
	h.session.mu.Unlock()
	if granted {
		return nil
	}
	return h.abandon(c, withCause(c.ctx, driver.ErrLocked, errors.New("the wait has ended")))
}

// look finds out who is before the node. If that is nobody, it has the lock; if it is one of this driver's, that wakes it; otherwise
// there is a watch. The last one, if it is over, may know.
func (h *hold) look(c caller, last *watch) (next *watch, first bool, err error) {
	s := h.session
	l, sent, ok := last.list()
	if !ok {
		sent = h.driver.now()
		l, err = query(c, s, func(c *gozk.Conn) (listing, error) { return list(c, h.dir) })
	}
	switch {
	case errors.Is(err, gozk.ErrNoNode):
		return nil, false, h.vanish()
	case errors.Is(err, errOver):
		return nil, false, errAgain
	case errors.Is(err, errStopping):
		return nil, false, driver.ErrClosed
	case errors.Is(err, errNoAnswer):
		return nil, false, h.leaveBehind(withCause(c.ctx, driver.ErrUnknown, err))
	case err != nil:
		return nil, false, h.abandon(c, fault(c.ctx, s, err))
	}
	child, found, crowd, latest := h.predecessor(l.children)
	if !found {
		return nil, false, h.vanish()
	}
	r := l.record()
	if r.seal != "" {
		return nil, false, h.abandon(c, driver.ErrSealed)
	}
	s.mu.Lock()
	h.ours, h.crowd, h.record = isOurMake(&l.stat) && r.child == "", crowd, r
	s.mu.Unlock()
	if child == "" {
		h.sent = sent
		return nil, true, nil
	}
	s.mu.Lock()
	p := s.nodes[place{h.dir, latest}]
	if p != nil && p.node == h.dir+"/"+child {
		p.follow(h)
		s.mu.Unlock()
		return nil, false, nil
	}
	s.mu.Unlock()
	next, err = h.watch(c, h.dir+"/"+child)
	return next, false, err
}

// predecessor returns the contender right before the node, or "", and whether the node itself was found, and others behind it.
func (h *hold) predecessor(children []string) (child string, found, crowd bool, latest int32) {
	own := h.node[len(h.dir)+1:]
	for _, other := range children {
		if other == own {
			found = true
			continue
		}
		seq, ok := sequence(other)
		switch {
		case !ok:
		case !before(seq, other, h.seq, own):
			crowd = true
		case child == "" || before(latest, child, seq, other):
			child, latest = other, seq
		}
	}
	return child, found, crowd, latest
}

// vanish ends an attempt whose node somebody removed.
func (h *hold) vanish() error {
	h.isGone(false)
	return errAgain
}

// abandon removes the node of an attempt, and returns err, or ErrUnknown if that could not be done at once.
func (h *hold) abandon(c caller, err error) error {
	d, s := h.driver, h.session
	s.mu.Lock()
	h.leaving = true
	s.mu.Unlock()
	ctx, cancel := d.background(leaveFor)
	defer cancel()
	_, failed := query(caller{ctx, c.stop}, s, func(c *gozk.Conn) (struct{}, error) { return remove(c, h.node) })
	switch {
	case failed == nil, errors.Is(failed, gozk.ErrNoNode):
		h.sweep()
		h.isGone(false)
		return err
	case errors.Is(failed, errOver):
		return err // it went with the session
	case errors.Is(failed, errStopping):
		return driver.ErrClosed // Close ends the node with the session
	}
	if c.ctx.Err() != nil {
		return h.leaveBehind(withCause(c.ctx, driver.ErrUnknown, failed))
	}
	return h.leaveBehind(errors.Join(driver.ErrUnknown, err))
}

// leaveBehind has the node removed in the background.
func (h *hold) leaveBehind(err error) error {
	s := h.session
	s.mu.Lock()
	h.leaving = true
	s.mu.Unlock()
	h.driver.ghosts.Add(&ghost{session: s, hold: h})
	return err
}
