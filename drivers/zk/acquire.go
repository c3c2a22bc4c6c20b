package zk

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

// maxData bounds the data of a node: servers hang up on clients with much longer requests.
const maxData = 64 << 10

// value is what a node says about its maker, for people.
type value struct {
	Owner string    `json:"owner,omitempty"`
	Host  string    `json:"host,omitempty"`
	Time  time.Time `json:"time"`
	Note  string    `json:"note,omitempty"`
	Hold  string    `json:"hold,omitempty"`
}

// data makes what the node of a request says.
func (d *Driver) data(r *driver.Request) ([]byte, error) {
	if d.options.NoteAlone {
		if len(r.Note) > maxData {
			return nil, errLongRequest
		}
		return []byte(r.Note), nil
	}
	text, err := json.Marshal(value{Owner: r.Owner, Host: d.host, Time: time.Now(), Note: r.Note, Hold: r.Hold})
	if err == nil && len(text) > maxData {
		err = errLongRequest
	}
	return text, err
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.Info().CheckTTL(r.TTL); err != nil {
		return nil, err
	}
	data, err := d.data(r)
	if err == nil && r.Mode == driver.Permit {
		err = d.checkPermits(r, data)
	}
	if err != nil {
		return nil, err
	}
	if err := d.life.Enter(); err != nil {
		return nil, err
	}
	defer d.life.Leave()
	c := caller{ctx, d.life.Open().Done()}
	for waited := false; ; {
		paths := d.paths(r)
		s, err := d.boardWith(c, d.class(r), paths)
		if err != nil {
			return nil, err
		}
		h := &hold{driver: d, request: r, session: s, dir: d.dir(r.Name), infix: d.options.infix(r.Mode), paths: paths}
		if r.Mode == driver.Permit {
			h.dir, h.more = h.dir+"/"+leasesPart, r.Permits-1
			err = h.attemptPermits(c, data, &waited)
		} else {
			err = h.attempt(c, data, &waited)
		}
		if err == nil {
			return h, nil
		}
		h.leave()
		if !errors.Is(err, errAgain) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, withCause(ctx, driver.ErrUnavailable, errOver)
		}
	}
}

// attempt asks with one node, until the lock is granted or another attempt is needed.
func (h *hold) attempt(c caller, data []byte, waited *bool) error {
	first, err := h.queue(c, data)
	if err != nil {
		return err
	}
	if !first {
		if err := h.wait(c, waited); err != nil {
			return err
		}
	}
	return h.enter()
}

// queue makes the nodes, and reports whether the node is known to be the first. Those for permits are in containers.
func (h *hold) queue(c caller, data []byte) (first bool, err error) {
	d, s := h.driver, h.session
	permit := h.request.Mode == driver.Permit
	for current := false; ; {
		if err := s.await(c); err != nil {
			return false, h.fail(c, err)
		}
		h.prefix = newPrefix(h.infix)
		h.sent = d.now()
		known := permit || d.nameNodes.exists(h.dir)
		if known && h.request.NoWait && !permit {
			if err := h.peek(c, current); errors.Is(err, gozk.ErrNoNode) {
				d.nameNodes.remove(h.dir)
				continue
			} else if err != nil {
				return false, err
			}
			h.sent = d.now()
		}
		var answer <-chan reply[string]
		if known {
			answer = send(s, func(c *gozk.Conn) (string, error) { return h.create(c, data) })
		} else {
			answer = send(s, func(c *gozk.Conn) (string, error) { return h.createBoth(c, data) })
		}
		node, err := receive(c, s, answer)
		switch {
		case err == nil:
			h.ours = !known
			return !known, h.created(c, node)
		case errors.Is(err, gozk.ErrNodeExists):
			current = true // a write was ordered behind all that had happened
			d.nameNodes.add(h.dir)
		case errors.Is(err, gozk.ErrNoNode) && permit:
			if err := d.makeAbove(c, s, h.dir+"/"); err != nil {
				return false, h.fail(c, err)
			}
		case errors.Is(err, gozk.ErrNoNode) && known:
			d.nameNodes.remove(h.dir)
		case errors.Is(err, gozk.ErrNoNode):
			if err := d.makeAbove(c, s, h.dir); err != nil {
				return false, h.fail(c, err)
			}
		case isThrottled(err):
			if err := s.pause(c); err != nil {
				return false, h.fail(c, err)
			}
		case isAnswer(err):
			return false, h.fail(c, err)
		case isOurs(err):
			return false, h.doubt(c, err, answer, !known)
		default:
			if found, failed := h.recover(c); found || failed != nil {
				return false, failed
			}
			if isServerError(err) {
				return false, h.fail(c, err)
			}
		}
	}
}

// peek returns driver.ErrLocked if somebody contends for the lock whom the request excludes, and driver.ErrSealed if the name is sealed.
// Current: the server knows of all transactions before the call; otherwise the server may lag behind, and show a holder whose release is done.
func (h *hold) peek(c caller, current bool) error {
	read := listSynced
	if current {
		read = list
	}
	l, err := query(c, h.session, func(c *gozk.Conn) (listing, error) { return read(c, h.dir) })
	if errors.Is(err, gozk.ErrNoNode) {
		return err
	}
	if err != nil {
		return h.fail(c, err)
	}
	if l.record().seal != "" {
		return driver.ErrSealed
	}
	for _, child := range l.children {
		if other, ok := contenderOf(child); ok && h.request.Mode.Excludes(other.mode) {
			return driver.ErrLocked
		}
	}
	return nil
}

// fail ends an attempt without a node, and returns the error for the caller.
func (h *hold) fail(c caller, err error) error {
	if errors.Is(err, errOver) {
		return errAgain
	}
	return fault(c.ctx, h.session, err)
}

// doubt ends an attempt that may have left a node.
func (h *hold) doubt(c caller, err error, answer <-chan reply[string], both bool) error {
	if errors.Is(err, errOver) {
		return errAgain // the node went with the session
	}
	h.driver.haunt(&ghost{session: h.session, dir: h.dir, prefix: h.prefix, more: h.more, answer: answer, both: both})
	if errors.Is(err, errStopping) {
		return driver.ErrClosed
	}
	return withCause(c.ctx, driver.ErrUnknown, err)
}

// enter makes a granted hold one of the driver's.
func (h *hold) enter() error {
	d, s := h.driver, h.session
	now := d.now()
	if d.life.Open().Err() != nil {
		return driver.ErrClosed // Close ends the node with the session
	}
	if s.hasExpired(now) {
		s.die(driver.ErrSessionEnded)
		return errAgain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.dead, h.phase == over:
		return errAgain
	}
	h.number()
	h.phase, h.granted = held, now
	h.end.Store(never)
	if h.request.Fixed {
		h.end.Store(h.sent + int64(h.request.TTL))
		h.timer = time.AfterFunc(time.Duration(h.end.Load()-now), h.expire)
	}
	wasEmpty := s.fresh.Empty()
	s.fresh.Add(h)
	if wasEmpty {
		s.look()
	}
	return nil
}
