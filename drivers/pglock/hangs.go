package pglock

import "time"

// A connection may hang while new ones work: a router has forgotten it, or the
// peer of a proxy is gone. The lock is the connection, so a session with leases
// goes on until its time is over. Everybody else leaves it behind as soon as
// another connection has been made, which tells a connection that hangs from a
// server that is slow.

// lookIn has the session looked at later. Called with mu held.
func (s *session) lookIn(wait time.Duration) {
	s.looks = true
	if s.looker == nil {
		s.looker = time.AfterFunc(wait, s.look)
	} else {
		s.looker.Reset(wait)
	}
}

// look sees whether a request has waited for its answer for answerIn, and
// whether a session that was left behind has no leases any more.
func (s *session) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = false
	switch left := s.sent + int64(answerIn) - s.d.now(); {
	case s.over:
	case s.left && len(s.leases) == 0 && s.d.now()-s.used >= int64(answerIn): // the answer to an unlock may still come
		s.d.life.Go(func() { s.finish(errHangs, true) })
	case s.left && len(s.leases) == 0:
		s.lookIn(answerIn / 4)
	case s.flight.empty() || s.flight.blocks:
	case s.left || left > 0:
		s.lookIn(max(time.Duration(left), answerIn/4))
	default:
		sent := s.sent
		s.looks = s.d.life.Go(func() { s.d.replace(s, sent) }) // ends with an answer, the session or the driver
	}
}

// replace makes another connection for a session that has not answered the
// request of the time sent, and leaves the session behind if it still has not.
func (d *Driver) replace(s *session, sent int64) {
	ctx := d.life.Context()
	for s.waitsFor(sent) {
		fresh, err := d.dial(ctx, s.ttl, false)
		if err == nil {
			d.life.Sleep(ctx, time.Duration(sent+int64(hangsAfter)-d.now()))
			d.swap(s, fresh, sent)
		} else if !d.life.Sleep(ctx, answerIn) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over && !s.left {
		s.lookIn(answerIn)
	}
}

// swap has a fresh session take the place of one that still hangs.
func (d *Driver) swap(s, fresh *session, sent int64) {
	d.mu.Lock()
	hangs := d.run(fresh) && s.waitsFor(sent)
	if hangs {
		c := d.class(s.ttl)
		c.remove(s)
		c.hubs = append(c.hubs, fresh)
	}
	d.mu.Unlock()
	if hangs {
		s.leave()
	} else {
		fresh.end(errQuit)
	}
}

// waitsFor reports whether the request of the time sent has no answer yet.
func (s *session) waitsFor(sent int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over && !s.left && !s.flight.empty() && s.sent == sent
}

// leave has a session that hangs go on for its leases only, until it has none.
func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.left = true
		close(s.behind)
		s.lookIn(0)
	}
}

// hangs reports whether the session was left behind.
func (s *session) hangs() bool {
	select {
	case <-s.behind:
		return true
	default:
		return false
	}
}
