package zk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
)

var _ driver.Limiter = (*Driver)(nil)

// Children of the node of a name with permits. Curator's InterProcessSemaphoreV2 has the first two: an InterProcessMutex, and one node for each
// permit. The third keeps the node of the name, whose data is the limit, from going with the last permit.
const (
	linePart   = "locks"
	leasesPart = "leases"
	keptPart   = "%limit" // no name has a path with this part
)

// givesWayFor is how long a request may take to give leases back that were not
// granted. See readGranted.
const givesWayFor = 50 * time.Millisecond

// maxNodes bounds the request for the nodes of many permits, in bytes.
const maxNodes = sendBuffer / 2

// attemptPermits asks for permits until they are granted or another attempt is needed.
//
// The leases of a name have an order, by their numbers, and a hold has its permits when up to its last lease there are no more leases than the
// limit. A hold looks after the making of its leases, so it counts all that were granted before, and is counted by all that come later: the
// limit is kept by that alone. The line is for the order. Who is the first there makes leases when there is room, and so does a newcomer
// who does not know of anybody there. Leases which are not granted at the first look are taken back, so that nobody waits with a part of what it
// wants. A place in line is kept until the grant: a newcomer finds all who came before, and gives way.
func (h *hold) attemptPermits(c caller, data []byte, waited *bool) error {
	t := &turn{hold: h, caller: c, data: data, waited: waited}
	var err error
	if h.driver.nameNodes.exists(h.dir) {
		err = t.take()
	}
	for err == nil {
		var v permits
		if v, err = t.look(); err != nil {
			break
		}
		granted, room := t.judge(&v)
		switch {
		case granted:
			return t.enter(&v)
		case t.node != "":
			err = t.takeBack()
		case room:
			err = t.take()
		default:
			err = t.wait(&v)
		}
	}
	return t.end(err)
}

// turn is one attempt to get permits.
type turn struct {
	*hold  // whose nodes are leases
	caller caller
	data   []byte
	waited *bool

	line   *hold  // the place in line, once needed
	limit  *watch // of the limit, while in line
	leases *watch // of all leases, while the first in line
}

// take makes the leases.
func (t *turn) take() error {
	_, err := t.queue(t.caller, t.data)
	return err
}

// takeBack removes leases that were not granted.
func (t *turn) takeBack() error {
	t.driver.nameNodes.remove(t.dir)
	_, err := query(t.caller, t.session, t.removeNodes)
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return err
	}
	t.forget()
	t.node = ""
	return nil
}

// judge reports whether the leases are granted, and, where there are none yet, whether there is room for them.
func (t *turn) judge(v *permits) (granted, room bool) {
	if v.before != "" {
		return false, false
	}
	if t.node == "" {
		return false, len(v.leases)+t.count() <= v.limit
	}
	last, upTo := t.seq+int32(t.more), 0
	for _, l := range v.leases {
		if l.seq-last <= 0 {
			upTo++
		}
	}
	return upTo <= v.limit, false
}

// enter leaves the line, and makes the hold one of the driver's. The next request tries without a look where nobody waits.
func (t *turn) enter(v *permits) error {
	if v.waiting {
		t.driver.nameNodes.remove(t.dir)
	} else {
		t.driver.nameNodes.add(t.dir)
	}
	if t.line != nil {
		_ = t.line.abandon(t.caller, nil) // without an answer, in the background
	}
	return t.hold.enter()
}

// wait gets in line, or waits there until there is something to look at. A watch is set before the look that it follows.
func (t *turn) wait(v *permits) (err error) {
	d := t.driver
	d.nameNodes.remove(t.dir)
	if t.request.NoWait {
		return driver.ErrLocked
	}
	name := d.dir(t.request.Name)
	if t.line == nil {
		line := &hold{driver: d, request: t.request, session: t.session, dir: name + "/" + linePart, infix: lineInfix}
		if _, err := line.queue(t.caller, t.data); err != nil {
			return err
		}
		t.line = line
	}
	defer func() {
		if err != nil {
			t.line = nil // which is abandoned
		}
	}()
	if t.limit.isOver() {
		t.limit, err = t.line.watch(t.caller, name, getW)
		return err
	}
	w := t.leases
	switch {
	case v.before != "":
		w, err = t.line.watch(t.caller, t.line.dir+"/"+v.before, getW)
	case w.isOver():
		t.leases, err = t.line.watch(t.caller, t.dir, childrenW)
		return err
	}
	if err != nil {
		return err
	}
	if !*t.waited {
		*t.waited = true
		t.request.Events.Waiting()
	}
	return t.line.sleep(t.caller, w, t.limit)
}

// end ends the attempt, and removes what it has made.
func (t *turn) end(err error) error {
	t.driver.nameNodes.remove(t.dir)
	switch {
	case errors.Is(err, errOver):
		return errAgain
	case errors.Is(err, errStopping):
		return driver.ErrClosed // Close ends the nodes with the session
	case errors.Is(err, errNoAnswer):
		err = withCause(t.caller.ctx, driver.ErrUnknown, err)
	}
	for _, h := range [...]*hold{t.hold, t.line} {
		if h != nil && h.node != "" {
			err = h.abandon(t.caller, err)
		}
	}
	return err
}

// look reads the permits, and makes the limit of the request that of the name where none is kept.
func (t *turn) look() (v permits, err error) {
	d, s, r := t.driver, t.session, t.request
	name := d.dir(r.Name)
	synced := t.line == nil && t.node == "" // otherwise the server knows of nodes that the attempt has made, and so of all that came before
	for {
		t.sent = d.now()
		v, err = query(t.caller, s, func(c *gozk.Conn) (permits, error) { return readPermits(c, name, synced) })
		if err == nil && v.failed == nil && v.limit == 0 && r.Limit > 0 && !v.sealed {
			if err = t.makeLimit(name, v); err == nil {
				continue
			}
		}
		switch {
		case isOurs(err):
			return v, err
		case err != nil:
			return v, fault(t.caller.ctx, s, err)
		case v.failed != nil:
			return v, v.failed
		case v.sealed:
			return v, driver.ErrSealed
		case r.Limit != 0 && r.Limit != v.limit, r.Permits > v.limit:
			return v, driver.ErrLimit
		}
		return v, t.place(&v)
	}
}

// makeLimit makes the limit of the request that of the name, unless somebody else has made one since the look.
func (t *turn) makeLimit(name string, v permits) error {
	if !v.exists {
		return t.driver.makeAbove(t.caller, t.session, name+"/")
	}
	_, err := query(t.caller, t.session, func(c *gozk.Conn) (*gozk.Stat, error) { return c.Set(name, limitData(t.request.Limit), v.version) })
	if errors.Is(err, gozk.ErrBadVersion) || errors.Is(err, gozk.ErrNoNode) {
		return nil
	}
	return err
}

// place finds the nodes of the attempt among the others. If somebody has removed one, another attempt is needed.
func (t *turn) place(v *permits) error {
	own := 0
	for _, l := range v.leases {
		if t.node != "" && strings.HasPrefix(l.child, t.prefix) {
			own++
		}
	}
	if t.node != "" && own != t.count() {
		return errAgain
	}
	if t.line == nil {
		for _, child := range v.line {
			if _, ok := contenderOf(child); ok {
				v.before, v.waiting = child, true
			}
		}
		return nil
	}
	p := t.line.placeAmong(v.line)
	if !p.found {
		return errAgain
	}
	v.before, v.waiting = p.before, !p.isLast
	return nil
}

// permits is what the server tells of the permits of a name.
type permits struct {
	exists  bool // the node of the name
	version int32
	limit   int // 0: none is kept; -1: no permit may be granted
	failed  error
	sealed  bool
	leases  []contender
	line    []string

	before  string // the last one in line before the attempt
	waiting bool   // others are in line
}

// readPermits reads the leases before the limit: the limit then is the one in force when there were no more leases than that.
func readPermits(c *gozk.Conn, name string, synced bool) (v permits, err error) {
	if synced {
		if _, err := c.Sync(name); err != nil {
			return v, err
		}
	}
	leases, err := list(c, name+"/"+leasesPart)
	known := int32(1) // children of the name
	if errors.Is(err, gozk.ErrNoNode) {
		known = 0
	} else if err != nil {
		return v, err
	}
	v.leases = leases.permits()
	text, stat, err := c.Get(name)
	if errors.Is(err, gozk.ErrNoNode) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	v.exists, v.version = true, stat.Version
	v.limit, v.failed = limitOf(text)
	if stat.NumChildren == known { // so nobody is in line, and there is no seal
		return v, nil
	}
	children, err := list(c, name)
	if err == nil {
		v.sealed = children.record().seal != ""
		var line listing
		line, err = list(c, name+"/"+linePart)
		v.line = line.children
	}
	if errors.Is(err, gozk.ErrNoNode) {
		err = nil
	}
	return v, err
}

// permits returns the leases among the children.
func (l listing) permits() (leases []contender) {
	for _, child := range l.children {
		if c, ok := contenderOf(child); ok && c.mode == driver.Permit {
			leases = append(leases, c)
		}
	}
	return leases
}

// limitData makes the data of the node of a name: that of Curator's SharedCount.
func limitData(limit int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(limit)) }

func limitOf(data []byte) (limit int, err error) {
	switch len(data) {
	case 0:
		return 0, nil
	case 4:
		if limit := int32(binary.BigEndian.Uint32(data)); limit > 0 {
			return int(limit), nil
		}
		return -1, nil
	}
	return 0, fmt.Errorf("the node of the name says %q, which is no limit of permits: %w", data, errors.ErrUnsupported)
}

// checkPermits returns an error for requests for permits that cannot be served.
func (d *Driver) checkPermits(r *driver.Request, data []byte) error {
	if size := r.Permits * (len(d.dir(r.Name)) + 200); size+len(data) > maxNodes {
		return fmt.Errorf("%d permits at once take a request of more than %d bytes: %w", r.Permits, maxNodes, errors.ErrUnsupported)
	}
	return checkLimit(r.Limit)
}

func checkLimit(limit int) error {
	if limit > math.MaxInt32 {
		return fmt.Errorf("limit %d is above %d: %w", limit, math.MaxInt32, errors.ErrUnsupported)
	}
	return nil
}

// SetLimit implements driver.Limiter.
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if err := checkLimit(limit); err != nil {
		return err
	}
	s, err := d.board(caller{ctx: ctx}, d.options.TTL)
	if err != nil {
		return err
	}
	defer s.leave()
	c, dir := caller{ctx, d.life.Open().Done()}, d.dir(name)
	kept := dir + "/" + keptPart
	first := any(&gozk.CheckVersionRequest{Path: kept, Version: -1})
	for {
		_, sent, err := insist(c, s, func(c *gozk.Conn) ([]gozk.MultiResponse, error) {
			return c.Multi(first, &gozk.SetDataRequest{Path: dir, Data: limitData(limit), Version: -1})
		})
		switch {
		case errors.Is(err, gozk.ErrNodeExists):
			first = &gozk.CheckVersionRequest{Path: kept, Version: -1}
		case errors.Is(err, gozk.ErrNoNode):
			first = &gozk.CreateRequest{Path: kept, Acl: d.options.ACL}
			if err = d.makeAbove(c, s, kept); err == nil {
				continue
			}
			return fault(ctx, s, err)
		case err == nil:
			return nil
		case sent:
			return d.undecided(ctx, err)
		default:
			return fault(ctx, s, err)
		}
	}
}

// readGranted reads the permits of a name for Inspect. Leases beyond the limit
// are those of permits that were granted before the limit was lowered, or those
// of a request that is about to give way. The latter are soon gone: a second
// look leaves out what is not in both.
func (d *Driver) readGranted(c caller, s *session, name string) (v permits, err error) {
	read := func(c *gozk.Conn) (permits, error) { return readPermits(c, name, false) }
	v, err = query(c, s, read)
	if err != nil || v.limit == 0 || len(v.leases) <= v.limit {
		return v, err
	}
	if !d.life.Sleep(c.ctx, givesWayFor) {
		return v, errNoAnswer
	}
	first := v.leases
	if v, err = query(c, s, read); err == nil && v.limit != 0 && len(v.leases) > v.limit {
		v.leases = slices.DeleteFunc(v.leases, func(l contender) bool { return !slices.Contains(first, l) })
	}
	return v, err
}

// granted returns the leases in their order, and how many of them are those of
// granted permits, of how many holds. Behind them is a waiter of Curator, which
// is the first in line: the waiter has a lease beyond the limit.
func (v *permits) granted() (queue []standing, used, holders int) {
	var children []string
	for _, l := range v.leases {
		children = append(children, l.child)
	}
	queue = inOrder(children)
	used = len(queue)
	if line := inOrder(v.line); v.limit != 0 && used > v.limit && len(line) > 0 && isCurators(line[0].child) && isCurators(queue[used-1].child) {
		used--
	}
	for end := 0; end < used; holders++ {
		head := strings.TrimSuffix(queue[end].child, sequence(queue[end].seq))
		for end < used && strings.HasPrefix(queue[end].child, head) {
			end++
		}
	}
	return queue, used, holders
}

// isCurators reports whether the name of a node has a guid as Curator writes
// it.
func isCurators(child string) bool {
	guid, _, _ := strings.Cut(strings.TrimPrefix(child, guidPrefix), "-")
	return len(guid) != 2*guidSize
}

// inspectPermits is Inspect for a name without contenders.
func (d *Driver) inspectPermits(c caller, s *session, name string) (driver.Status, error) {
	for {
		v, err := d.readGranted(c, s, name)
		leases, used, holders := v.granted()
		line := inOrder(v.line)
		if err == nil {
			err = forEach(line, func(one *standing) error { return s.readNode(c, name+"/"+linePart, one) })
		}
		if err == nil && used > 0 {
			err = s.readNode(c, name+"/"+leasesPart, &leases[0])
		}
		if err != nil {
			return driver.Status{}, fault(c.ctx, s, err)
		}
		status := driver.Status{Limit: max(v.limit, 0)}
		for _, one := range line {
			if !one.gone {
				status.Queue = append(status.Queue, one.value.Owner)
			}
		}
		status.Waiters = len(status.Queue)
		if used == 0 {
			return status, nil
		}
		if first := leases[0]; !first.gone {
			status.Held, status.Mode, status.Used, status.Holders = true, driver.Permit, used, holders
			status.Hold, status.Owner, status.Note, status.Since = first.value.Hold, first.value.Owner, first.value.Note, first.since
			if h := d.ownHold(name + "/" + leasesPart + "/" + first.child); h != nil {
				status.TTL = max(0, time.Until(h.Expires()))
			}
			return status, nil
		}
	}
}
