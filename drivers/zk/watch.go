package zk

import (
	"errors"
	"strings"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// watch waits for the end of a node, on behalf of waiters of one session.
type watch struct {
	over chan struct{} // closed when there is something to look at
	bare bool          // for permits: the contenders are not asked for
	set  bool          // the server tells of the end; guarded by session.mu

	// The contenders, if the goroutine of the event asked for them: waiters are woken by their arrival. These fields are set
	// before over is closed.
	known   bool
	listing listing
	sent    int64 // when the contenders were asked for
}

// list returns what is known of the contenders, if the watch is over and anything is.
func (w *watch) list() (l listing, sent int64, known bool) {
	if w == nil {
		return listing{}, 0, false
	}
	select {
	case <-w.over:
		return w.listing, w.sent, w.known
	default:
		return listing{}, 0, false
	}
}

// isOver reports whether there is something to look at, or no watch.
func (w *watch) isOver() bool {
	if w == nil {
		return true
	}
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// watch returns a watch of a node: over when the node is gone, or was changed, or may have been, and not before the node was seen. Waiters
// for the same node share a watch. For permits a request is given: the server has set the watch when watch returns.
func (h *hold) watch(c caller, node string, request func(*gozk.Conn, string) error) (*watch, error) {
	s := h.session
	bare := request != nil
	if !bare {
		request = getW
	}
	s.mu.Lock()
	w := s.watches[node]
	if w != nil && (w.set || !bare) {
		s.mu.Unlock()
		return w, nil
	}
	if w == nil {
		w = &watch{over: make(chan struct{}), bare: bare}
		s.watches[node] = w
	}
	s.mu.Unlock()
	answer := send(s, func(c *gozk.Conn) (struct{}, error) {
		err := request(c, node)
		if err == nil {
			s.mu.Lock()
			w.set = true
			s.mu.Unlock()
		} else if w := s.unwatch(node); w != nil {
			close(w.over)
		}
		return struct{}{}, err
	})
	_, err := receive(c, s, answer)
	switch {
	case errors.Is(err, errOver):
		return nil, errAgain
	case errors.Is(err, errStopping):
		return nil, driver.ErrClosed
	case errors.Is(err, errNoAnswer):
		return nil, h.giveUp(c)
	case err != nil && !isAnswer(err), isThrottled(err):
		if err := s.pause(c); err != nil {
			return nil, h.giveUp(c)
		}
	}
	return w, nil
}

// unwatch takes the watch of a node out, if there is one.
func (s *session) unwatch(node string) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[node]
	delete(s.watches, node)
	return w
}

// wakeWaiters takes an event of a node. The event alone does not tell whose the lock is now, so the contenders are asked for from right
// here, and waiters wake when they are known.
func (s *session) wakeWaiters(node string) {
	w := s.unwatch(node)
	if w == nil {
		return
	}
	if w.bare {
		close(w.over)
		return
	}
	w.sent = s.driver.now()
	asked := s.listNow(node[:strings.LastIndexByte(node, '/')], func(l listing, err error) {
		w.listing, w.known = l, err == nil
		close(w.over)
	})
	if !asked {
		close(w.over)
	}
}
