package memory

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// session carries the leases of one driver with the same TTL, if
// Options.KeepsAlive is set. It begins with the first lease and is kept alive
// until it has no lease.
type session struct {
	d       *Driver
	ttl     int64
	expires atomic.Int64 // for the driver, on the clock of the server; never after ends

	// Guarded by Server.mu.
	ends   int64 // at the server
	users  int   // leases that wait or are held
	losses []loss
	dead   bool
	timer  *time.Timer // for the next keep-alive, or the end of the session if that is earlier
}

// EndSession ends the sessions of d on the server, as an administrator can. The
// leases are lost with driver.ErrSessionEnded. Without Options.KeepsAlive there
// are no sessions and EndSession does nothing.
func (d *Driver) EndSession() {
	s := d.server
	s.mu.Lock()
	for _, ss := range d.sessions {
		ss.ends = s.now()
		d.unheard = append(d.unheard, ss.die()...)
	}
	losses := d.hear()
	s.mu.Unlock()
	reportLosses(losses)
}

// keepAlive is called by the timer.
func (ss *session) keepAlive() {
	d, s := ss.d, ss.d.server
	s.mu.Lock()
	if ss.dead {
		s.mu.Unlock()
		return
	}
	d.work.Add(1)
	s.mu.Unlock()
	defer d.work.Done()

	sent := s.now()
	ctx, cancel := context.WithTimeout(d.life, time.Duration(min(ss.ttl/6, ss.expires.Load()-sent)))
	lost, err := d.request(ctx, Renewals)
	cancel()
	if lost {
		err = driver.ErrUnknown
	}
	if d.told != nil && d.life.Err() == nil {
		d.told(err)
	}
	reportLosses(ss.kept(sent, err == nil || lost, lost))
}

// kept records the result of a keep-alive and returns the losses if the session
// has expired.
func (ss *session) kept(sent int64, handled, lost bool) []loss {
	s := ss.d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss.dead {
		return nil
	}
	now := s.now()
	if min(ss.expires.Load(), ss.ends) <= now {
		return ss.die()
	}
	pause := ss.ttl / 6
	if handled {
		ss.ends = now + ss.ttl
	}
	if handled && !lost {
		ss.expires.Store(sent + ss.ttl)
		pause = ss.ttl / 3
	}
	ss.timer.Reset(time.Duration(min(pause, ss.expires.Load()-now)))
	return nil
}

// The methods below are called with Server.mu held.

// join attaches l to a session.
func (d *Driver) join(l *lease, sent, now int64) {
	ss := d.sessions[l.r.TTL]
	if ss == nil || min(ss.expires.Load(), ss.ends) <= now {
		ss = &session{d: d, ttl: int64(l.r.TTL), ends: now + int64(l.r.TTL)}
		ss.expires.Store(sent + ss.ttl)
		ss.timer = time.AfterFunc(time.Duration(ss.ttl/3), ss.keepAlive)
		d.sessions[l.r.TTL] = ss
	}
	ss.users++
	l.session = ss
}

// leaveSession detaches l from its session, unless l has none or has left it.
func (l *lease) leaveSession() {
	ss := l.session
	if ss == nil || l.leftSession {
		return
	}
	l.leftSession = true
	if ss.users--; ss.users == 0 {
		ss.stop()
	}
}

// stop ends the keep-alives. Leases that are still attached to the session at
// the server end with it.
func (ss *session) stop() {
	ss.dead = true
	ss.timer.Stop()
	if ttl := time.Duration(ss.ttl); ss.d.sessions[ttl] == ss {
		delete(ss.d.sessions, ttl)
	}
}

// die ends a session that expired, or that the server ended, and returns the
// losses. Waiters of the session try again with a new session.
func (ss *session) die() []loss {
	d, s := ss.d, ss.d.server
	ss.stop()
	s.dismiss(func(l *lease) bool { return l.session == ss }, errAgain)
	for h := range s.holds() {
		if h.session == ss && !h.left {
			if h.lose() {
				ss.losses = append(ss.losses, loss{h, driver.ErrSessionEnded})
			}
			d.leaveBehind(h)
		}
	}
	d.endBehind(s.now())
	return slices.DeleteFunc(ss.losses, func(x loss) bool { return x.l.released })
}
