package redlock

import (
	"errors"
	"io/fs"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// vote is the part of one node in a lease. All fields but lease and index are
// guarded by lease.Mu. It has one request in progress at a time. If a deletion
// overtook the request for the value, it would find nothing, and the node would
// stay taken for a whole TTL.
type vote struct {
	lease *lease
	index uint8
	state state
	// handed to the node since the last request; only once, because a second
	// request would find the value of the first
	handed bool
	doubt  bool   // an unanswered request may have set the value, or may still set it
	conn   uint64 // the connection of that request
	tried  bool   // an unanswered request may have deleted the value
	timely bool   // the last request to delete the value was sent before the lease ended
	late   bool   // the node has not answered for too long, so the vote is not awaited
	err    error  // why the node did not vote
}

// state is the progress of a vote.
type state uint8

const (
	unasked  state = iota
	queued         // the request to set the value waits for its turn
	asking         // the request is on its way
	granted        // the node has the value
	refused        // the node has another value
	failed         // the node did not answer, or its answer does not count
	deleting       // the request to delete the value was handed to the node
	gone           // the value does not exist, and will not appear
)

func (v *vote) node() *node { return v.lease.driver.nodes[v.index] }

// prepare prepares the request to set the value. The caller holds lease.Mu.
func (v *vote) prepare() {
	v.state, v.err, v.handed = queued, nil, false
	v.late = v.node().impaired()
}

// hand gives the request to the node, unless too many requests are already
// waiting for it. The caller holds lease.Mu.
func (v *vote) hand() {
	v.handed = true
	n := v.node()
	switch {
	case v.late && n.backlog() >= maxBacklog:
		v.fail(errors.New("too many requests are waiting for its answer"))
	case !n.add(v):
		v.fail(driver.ErrClosed)
	}
}

// command implements task: it returns the request to set the value, or to
// delete it.
func (v *vote) command(n *node, at int64) (rueidis.Completed, bool) {
	l := v.lease
	l.Mu.Lock()
	defer l.Mu.Unlock()
	switch v.state {
	case deleting:
		v.timely = at < l.Term.Expires()
		return v.deletion(n), true
	case queued:
		if l.Phase > redisdriver.Held {
			v.state = gone
			v.tellWaiters()
			l.check()
			return rueidis.Completed{}, false
		}
		if l.Phase == redisdriver.Held && at >= l.Term.Expires() {
			v.fail(driver.ErrNotHeld) // the turn of the request came too late
			return rueidis.Completed{}, false
		}
		if err := n.countsNow(); err != nil {
			v.fail(err)
			return rueidis.Completed{}, false
		}
	default:
		return rueidis.Completed{}, false
	}
	v.state = asking
	if !v.doubt {
		v.conn = n.known
	}
	ttl := l.ttl
	l.Term.Extend(at + int64(ttl))
	if n.driver.single() {
		return takeScript.Call([]string{l.request.Name}, l.value, redisdriver.TTLText(ttl), sealValue).Command(n.client.B()), true
	}
	return n.client.B().Set().Key(l.request.Name).Value(l.value).Nx().PxMilliseconds(redisdriver.Milliseconds(ttl)).Build(), true
}

// deletion returns the request to delete the value. The caller holds lease.Mu.
func (v *vote) deletion(n *node) rueidis.Completed {
	l := v.lease
	onChannel := channel(l.request.Name)
	if l.outvoted && !v.doubt {
		// this is not the end of a hold, so a message would only make one
		// waiter after another try without success
		onChannel = ""
	}
	return releaseScript.Call([]string{l.request.Name}, l.value, onChannel).Command(n.client.B())
}

func (v *vote) answer(n *node, result rueidis.RedisResult, err error) {
	l := v.lease
	l.Mu.Lock()
	state := v.state
	l.Mu.Unlock()
	if state == deleting {
		if !v.deleted(n, result, err) {
			n.ghosts.Add(&ghost{vote: v, until: l.end()})
		}
		return
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	switch {
	case errors.As(err, new(redisdriver.NotSent)):
		v.fail(err)
	case rueidis.IsRedisNil(err), isSealed(err):
		v.state, l.sealed = refused, isSealed(err)
	case err == nil && !isOK(result):
		v.doubt = true
		v.fail(redisdriver.ErrAnswer)
	case err == nil:
		v.state = granted
		if notYet := n.countsNow(); notYet != nil {
			v.err = notYet
		}
	default:
		if _, refusedBy := rueidis.IsRedisErr(err); !refusedBy {
			v.doubt = true
		}
		v.fail(err)
	}
	if l.Phase > redisdriver.Held {
		v.undo()
		v.tellWaiters()
	}
	l.check()
}

// isOK reports whether the answer to a request to set the value means that the
// node has the value.
func isOK(result rueidis.RedisResult) bool {
	text, err := result.ToString()
	return err == nil && text == "OK"
}

// fail records that the node did not vote. The caller holds lease.Mu.
func (v *vote) fail(err error) {
	v.state, v.err = failed, refusal(err)
	v.lease.check()
}

// counts reports whether the node has the value and counts. The caller holds
// lease.Mu.
func (v *vote) counts() bool { return v.state == granted && v.err == nil }

// undo requests the deletion of the value, now or after the answer to the
// request for the value. The caller holds lease.Mu.
func (v *vote) undo() {
	switch {
	case v.state == granted, (v.state == failed || v.state == refused) && v.doubt:
		// the refusal may be due to this attempt's own value
		if v.state = deleting; !v.node().add(v) {
			v.state = gone
		}
	case v.state == unasked, v.state == refused, v.state == failed:
		v.state = gone
	case v.state == queued && v.late: // the node may not reach the request for a long time
		v.state = gone
	}
}

// tellWaiters notifies the waiters' node of the end of a hold if no deletion
// does so. This happens if the node stores another value or received no request
// in time. tellWaiters is called when the vote has ended. The caller holds
// lease.Mu.
func (v *vote) tellWaiters() {
	l, n := v.lease, v.node()
	if !l.tells || v.state != gone || n.index != l.driver.firstNode(l.request.Name) {
		return
	}
	n.add(question{
		func(b rueidis.Builder) rueidis.Completed {
			return b.Publish().Channel(channel(l.request.Name)).Message("").Build()
		},
		func(*node, rueidis.RedisResult, error) {},
	})
}

// deleted handles the answer to a request to delete the value and reports
// whether the vote has ended.
func (v *vote) deleted(n *node, result rueidis.RedisResult, err error) bool {
	l := v.lease
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if v.state == gone {
		return true
	}
	_, answered := rueidis.IsRedisErr(err)
	expired := n.driver.life.Now() > l.Term.Over()
	var told int64
	if err == nil {
		told, err = result.ToInt64()
	}
	if told > 0 {
		if others := int(told) - l.driver.ears[n.index].Own(channel(l.request.Name)); others > 0 {
			l.Awaited, l.crowd = true, max(l.crowd, others)
		}
	}
	switch {
	case err == nil && told >= 0:
		l.removed++
	case err == nil && v.doubt && v.conn > n.cleared && !expired:
		return false // the request that sets the value may still be on its way
	case err == nil && v.tried:
		l.removed++
		l.Awaited = true
	case err == nil, answered && errors.Is(refusal(err), fs.ErrPermission), expired:
		l.missed++ // or the value must expire
	default:
		v.tried = v.tried || v.timely && !answered && !errors.As(err, new(redisdriver.NotSent))
		return false
	}
	v.state = gone
	l.check()
	return true
}

func (v *vote) abandon() {
	l := v.lease
	l.Mu.Lock()
	defer l.Mu.Unlock()
	v.state = gone
	l.missed++
	l.check()
}

// channel returns the channel for messages about the ends of holds of a name.
func channel(name string) string { return "dsync_redlock:" + name }
