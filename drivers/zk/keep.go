package zk

import (
	"context"
	"errors"
	"fmt"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// pace is the pause between two rounds of requests that confirm a session. The pause has to be longer than half a tick, a quarter of
// the shortest timeout, unless the server was told to keep shorter ones.
func (s *session) pace() time.Duration { return max(s.ttl()/4, s.driver.minTTL*3/10) }

// keep has the session confirmed until the session is over: on a new connection at once, and then in rounds of two requests, of which every
// second one has a write.
func (s *session) keep() {
	timer := time.NewTimer(s.pace())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.joined:
		case <-s.over:
			return
		}
		timer.Reset(s.confirm())
	}
}

// confirm sends the due requests, one after the other, and returns how long none is.
func (s *session) confirm() time.Duration {
	for {
		now := s.driver.now()
		r, due := s.confirmation.next(now)
		if r == toServer {
			return max(time.Duration(due-now), time.Millisecond)
		}
		err := s.ask(r, now)
		if !isThrottled(err) {
			s.tell(err)
		}
		if isThrottled(err) {
			return s.patience() / 20
		}
		if err != nil {
			return s.pace() // unless there is another connection before
		}
	}
}

// tell says whether the session is kept alive, unless the session is over.
func (s *session) tell(err error) {
	if errors.Is(err, errOver) {
		return
	}
	if err != nil {
		if cause := s.trouble(); cause != nil {
			err = cause
		}
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	s.driver.tell(err)
}

// ask sends a request whose answer alone matters, and returns nil if there was one. If there was none in half the time that is
// left, the server is given up: perhaps another one is not cut off from the leader.
func (s *session) ask(r reach, now int64) error {
	l := s.current.Load()
	if l == nil {
		return errNoServer
	}
	ctx, cancel := context.WithTimeout(s.online, time.Duration(s.expires.Load()-now)/2)
	defer cancel()
	_, err := receive(caller{ctx: ctx}, s, send(s, func(c *gozk.Conn) (struct{}, error) {
		if r == toMajority {
			_, err := c.Multi() // a transaction without a change, which needs no rights
			return struct{}{}, err
		}
		_, err := c.Sync("/")
		return struct{}{}, err
	}))
	if errors.Is(err, errNoAnswer) {
		l.Close()
	}
	return err
}
