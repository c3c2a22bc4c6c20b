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

// givesWayFor is the time that a request may take to remove leases that were
// not granted. readGranted relies on it.
const givesWayFor = 50 * time.Millisecond

// maxNodes limits the request for the nodes of many permits, in bytes.
const maxNodes = sendBuffer / 2

// forPermits is the rule of permits.
//
// The leases of a name are ordered by their numbers. A hold has its permits if
// the number of leases up to its last one does not exceed the limit. A request
// makes its own leases before it reads all leases. So it counts the leases of
// all earlier grants, and all later requests count its leases. This is enough
// to enforce the limit. The queue only provides the order. The first contender
// in the queue makes leases when there is room, and so does a newcomer that
// knows of no contender in the queue. Leases that are not granted at the first
// read are removed again, so that no request waits with only a part of its
// permits. A contender keeps its place in the queue until the grant, so a
// newcomer finds all earlier contenders and gives way.
var forPermits = rule{
	part:   "/" + leasesPart,
	queues: true,
	supports: func(r *request) error {
		if size := r.asked.Permits * (len(r.claim.dir) - len(r.rule.part) + 200); size+len(r.data) > maxNodes {
			return fmt.Errorf("a request for %d permits takes more than %d bytes: %w", r.asked.Permits, maxNodes, errors.ErrUnsupported)
		}
		return checkLimit(r.asked.Limit)
	},
	begin: func(r *request) state {
		if r.session.driver.nameNodes.exists(r.claim.dir) {
			return asking
		}
		return looking
	},
	look: (*request).lookAtPermits,
	arm:  (*request).armForPermits,
}

// yield removes leases that were not granted.
func (r *request) yield() (state, error) {
	r.session.driver.nameNodes.remove(r.claim.dir)
	_, err := query(r.caller, r.claim.removeNodes)
	if err != nil && !errors.Is(err, gozk.ErrNoNode) {
		return 0, err
	}
	r.claim.node = ""
	return looking, nil
}

// lookAtPermits reads the permits. It decides whether the leases are granted
// or, if there are none yet, whether there is room for them. At the grant the
// request leaves the queue.
func (r *request) lookAtPermits() (state, error) {
	v, err := r.readPermits()
	if err != nil {
		return 0, err
	}
	q, names := r.claim, &r.session.driver.nameNodes
	switch {
	case q.node == "" && v.before == "" && len(v.leases)+q.count <= v.limit:
		r.asksFor = q
		return asking, nil
	case q.node == "":
		names.remove(q.dir)
		if r.asked.NoWait {
			return 0, driver.ErrLocked
		}
		r.before = v.before
		return arming, nil
	}
	last, upTo := q.seq+int32(q.count-1), 0
	for _, l := range v.leases {
		if l.seq-last <= 0 {
			upTo++
		}
	}
	if v.before != "" || upTo > v.limit {
		return yielding, nil
	}
	if v.waiting {
		names.remove(q.dir)
	} else { // so that the next request tries without reading first
		names.add(q.dir)
	}
	if r.queued != nil {
		_ = r.queued.giveBack(r.caller, nil) // without an answer, the removal continues in the background
		r.queued = nil
	}
	return entering, nil
}

// armForPermits joins the queue, or sets the watches of a request in the queue.
// Each watch is set before the read that it complements.
func (r *request) armForPermits() (next state, err error) {
	d := r.session.driver
	switch {
	case r.queued == nil:
		r.queued = r.newQueued(d)
		r.asksFor = r.queued
		return asking, nil
	case r.limit.isOver():
		r.limit, err = r.watch(d.dir(r.asked.Name), getW)
		return looking, err
	case r.before != "":
		r.ahead, err = r.watch(r.queued.dir+"/"+r.before, getW)
		return waiting, err
	case r.leases.isOver():
		r.leases, err = r.watch(r.claim.dir, childrenW)
		return looking, err
	}
	r.ahead = r.leases
	return waiting, nil
}

// readPermits reads the permits, sets the limit of the name to the request's if
// the name has none, and finds the claims of the request. If another client has
// removed one of the claims' nodes, all of them are made again.
func (r *request) readPermits() (v permits, err error) {
	d, asked := r.session.driver, r.asked
	name := d.dir(asked.Name)
	// otherwise the server knows the nodes that the request has made, and so
	// all earlier nodes
	synced := r.queued == nil && r.claim.node == ""
	for {
		r.sent = d.now()
		v, err = r.permits(name, synced)
		if err != nil || v.failed != nil || v.limit != 0 || asked.Limit <= 0 || v.sealed {
			break
		}
		if err = r.makeLimit(name, v); err != nil {
			break
		}
	}
	switch {
	case err != nil:
		return v, err
	case v.failed != nil:
		return v, v.failed
	case v.sealed:
		return v, driver.ErrSealed
	case asked.Limit != 0 && asked.Limit != v.limit, asked.Permits > v.limit:
		return v, driver.ErrLimit
	}
	if r.claim.node != "" {
		own := 0
		for _, l := range v.leases {
			if strings.HasPrefix(l.child, r.claim.prefix) {
				own++
			}
		}
		if own != r.claim.count {
			return v, errGone
		}
	}
	if r.queued != nil {
		p := r.queued.placeAmong(v.queue)
		if !p.found {
			return v, errGone
		}
		v.before, v.waiting = p.before, !p.isLast
		return v, nil
	}
	for _, child := range v.queue {
		if _, ok := contenderOf(child); ok {
			v.before, v.waiting = child, true
		}
	}
	return v, nil
}

// makeLimit sets the limit of the name to the request's, unless another client
// has set one since the read.
func (r *request) makeLimit(name string, v permits) error {
	if !v.exists {
		return r.makeAbove(name + "/")
	}
	_, err := query(r.caller, func(c *gozk.Conn) (*gozk.Stat, error) { return c.Set(name, limitData(r.asked.Limit), v.version) })
	if errors.Is(err, gozk.ErrBadVersion) || errors.Is(err, gozk.ErrNoNode) {
		return nil
	}
	return err
}

// permits is the state of a name's permits on the server.
type permits struct {
	exists  bool // the node of the name
	version int32
	limit   int // 0: none is stored; -1: no permit may be granted
	failed  error
	sealed  bool
	leases  []contender
	queue   []string

	before  string // the last contender in the queue before the attempt
	waiting bool   // other contenders are in the queue
}

// permits reads the permits of a name.
func (c caller) permits(name string, synced bool) (permits, error) {
	return query(c, func(c *gozk.Conn) (permits, error) { return readPermits(c, name, synced) })
}

// readPermits reads the leases before the limit, so the limit was in force at a
// time when there were no more leases than those read.
func readPermits(c *gozk.Conn, name string, synced bool) (v permits, err error) {
	if synced {
		if _, err := c.Sync(name); err != nil {
			return v, err
		}
	}
	leases, err := list(c, name+"/"+leasesPart)
	known := int32(1) // number of known children of the name
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
	if stat.NumChildren == known { // so no contender is in the queue, and there is no seal
		return v, nil
	}
	children, err := list(c, name)
	if err == nil {
		v.sealed = children.record().seal != ""
		var queue listing
		queue, err = list(c, name+"/"+queuePart)
		v.queue = queue.children
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

// limitData returns the data of the node of a name: the format of Curator's
// SharedCount.
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
	return 0, fmt.Errorf("the node of the name contains %q, which is not a limit of permits: %w", data, errors.ErrUnsupported)
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
	dir := d.dir(name)
	kept := dir + "/" + keptPart
	isKept := &gozk.CheckVersionRequest{Path: kept, Version: -1}
	return d.call(ctx, func(c caller) error {
		for first := any(isKept); ; {
			_, err := insist(c, func(c *gozk.Conn) ([]gozk.MultiResponse, error) {
				return c.Multi(first, &gozk.SetDataRequest{Path: dir, Data: limitData(limit), Version: -1})
			})
			switch {
			case errors.Is(err, gozk.ErrNodeExists):
				first = isKept
			case errors.Is(err, gozk.ErrNoNode):
				first = &gozk.CreateRequest{Path: kept, Acl: d.options.ACL}
				if err := c.makeAbove(kept); err != nil {
					return err
				}
			default:
				return err
			}
		}
	})
}

// readGranted reads the permits of a name for Inspect. Leases beyond the limit
// belong to permits that were granted before the limit was lowered, or to a
// request that is about to give way. The latter will soon be gone, so
// readGranted includes only leases that a second read confirms.
func (c caller) readGranted(name string) (v permits, err error) {
	v, err = c.permits(name, false)
	if err != nil || v.limit == 0 || len(v.leases) <= v.limit {
		return v, err
	}
	if !c.session.driver.life.Sleep(c.ctx, givesWayFor) {
		return v, errNoAnswer
	}
	first := v.leases
	if v, err = c.permits(name, false); err == nil && v.limit != 0 && len(v.leases) > v.limit {
		v.leases = slices.DeleteFunc(v.leases, func(l contender) bool { return !slices.Contains(first, l) })
	}
	return v, err
}

// granted returns the leases in order, the number of leases that are granted
// permits, and the number of holds of these permits. A Curator waiter that is
// first in the queue has a lease beyond the limit. It comes after the granted
// leases.
func (v *permits) granted() (queue []standing, used, holders int) {
	var children []string
	for _, l := range v.leases {
		children = append(children, l.child)
	}
	queue = inOrder(children)
	used = len(queue)
	if waiters := inOrder(v.queue); v.limit != 0 && used > v.limit && len(waiters) > 0 && isCurators(waiters[0].child) && isCurators(queue[used-1].child) {
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
func (c caller) inspectPermits(name string) (driver.Status, error) {
	for {
		v, err := c.readGranted(name)
		leases, used, holders := v.granted()
		waiters := inOrder(v.queue)
		if err == nil {
			err = forEach(waiters, maxAsking, func(one *standing) error { return c.readNode(name+"/"+queuePart, one) })
		}
		if err == nil && used > 0 {
			err = c.readNode(name+"/"+leasesPart, &leases[0])
		}
		if err != nil {
			return driver.Status{}, err
		}
		status := driver.Status{Limit: max(v.limit, 0)}
		for _, one := range waiters {
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
			if h := c.session.driver.ownHold(name + "/" + leasesPart + "/" + first.child); h != nil {
				status.TTL = max(0, time.Until(h.Expires()))
			}
			return status, nil
		}
	}
}
